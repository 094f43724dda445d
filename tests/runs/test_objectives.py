"""Metrics of one's own: means over what counts, against a count by hand; the names and values that are refused."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator

import pytest
import sacrebleu
import torch
from torch import nn

from pipelag import data
from pipelag.data.text.parallel import PAD
from pipelag.errors import PipelagError
from pipelag.runs.objectives import METRICS, Means, metric
from pipelag.runs.text_metrics import TranslationTest


@pytest.fixture
def squares() -> Iterator[str]:
    metric("squares")(lambda output, target: (output.argmax(-1) - target).double() ** 2)
    yield "squares"
    del METRICS["squares"]


def test_a_metric_is_the_mean_over_all_targets_not_over_batches(squares: str) -> None:
    draw = torch.Generator().manual_seed(0)
    scores, targets = torch.randn(7, 4, generator=draw), torch.randint(4, (7,), generator=draw)
    means = Means([squares])
    means.add(scores[:5], targets[:5])
    means.add(scores[5:], targets[5:])
    by_hand = sum((int(s.argmax()) - int(t)) ** 2 for s, t in zip(scores, targets, strict=True)) / 7
    assert means.by_name() == {squares: pytest.approx(by_hand)}


def test_padding_does_not_count_where_words_are_written(squares: str) -> None:
    corpus = data.load("phrases")

    class Constant(nn.Module):
        """Writes word 5, whatever it reads."""

        def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return nn.functional.one_hot(torch.full_like(pair[1], 5), len(corpus.target_words)).float()

    def none(model: nn.Module, source: torch.Tensor, *options: object) -> list[list[int]]:
        return [[5] for _ in source]

    test = TranslationTest(corpus, torch.device("cpu"), write=none, metrics=[squares])
    words = [int(word) for _, _, targets in test for word in targets.flatten() if word != PAD]
    assert test.measure(Constant())[squares] == pytest.approx(sum((5 - word) ** 2 for word in words) / len(words))


def test_what_is_no_metric_is_refused(squares: str) -> None:
    with pytest.raises(PipelagError, match="already registered"):
        metric(squares)(lambda output, target: output)
    with pytest.raises(PipelagError, match="which evaluations use already"):
        metric("accuracy")
    METRICS[squares] = lambda output, target: output.sum()
    with pytest.raises(PipelagError, match=r"returns shape \(\) for targets of shape \(3,\)"):
        Means([squares]).add(torch.zeros(3, 2), torch.zeros(3))


def test_the_error_of_bleu_is_its_spread_over_resampled_test_sets() -> None:
    corpus = data.load("phrases", train=50, test=60)
    draw = random.Random(0)
    references = list(corpus.references)
    # Half of the translations are right, the others are another sentence's.
    numbers = [list(map(int, pair[1])) for pair in corpus.test]
    translations = [words if i % 2 else numbers[i - 1] for i, words in enumerate(numbers)]
    order = iter(translations)

    def written(model: nn.Module, source: torch.Tensor, *options: object) -> list[list[int]]:
        return [next(order) for _ in source]

    class Blind(nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return torch.zeros(*pair[1].shape, len(corpus.target_words))

    measured = TranslationTest(corpus, torch.device("cpu"), write=written).measure(Blind())
    hypotheses = [corpus.sentence(words) for words in translations]
    scores = []
    for _ in range(200):
        chosen = [draw.randrange(len(references)) for _ in references]
        sampled, expected = [hypotheses[i] for i in chosen], [references[i] for i in chosen]
        scores.append(sacrebleu.corpus_bleu(sampled, [expected], tokenize="none", force=True).score)
    assert measured["bleu"] == pytest.approx(
        sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none", force=True).score, abs=1e-3
    )
    assert measured["bleu_error"] == pytest.approx(statistics.stdev(scores), rel=0.3) and measured["bleu_error"] > 1
