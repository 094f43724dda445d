"""What an evaluation measures, against a count by hand: means over samples and words, of the model as it is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
import torch
from torch import nn
from torch.nn import functional as F

from pipelag.data.text.language import RunningText, running_text
from pipelag.data.text.parallel import BEGIN, END, PAD, Corpus, corpus
from pipelag.runs.kinds.train_real import with_ages
from pipelag.runs.tasks import best_of, classify, final_of
from pipelag.runs.text_metrics import LanguageTest, TranslationTest
from tests.runs.test_rates import Fixed

CPU = torch.device("cpu")
PAIRS = [("a b", "x y z"), ("b", "y"), ("a a a", "z z x y"), ("b a", "x"), ("a", "z y")]


def text() -> RunningText:
    return running_text("toy", "toy", ["a b c", "d b", "c c a d"] * 9, ["a b", "c d c a", "b b d a c", "a"])


def pairs() -> Corpus:
    return corpus("toy", "toy", PAIRS, PAIRS)


class Scores(nn.Module):
    """Scores of what follows a word, by that word alone; of two inputs by the second. Sometimes it forgets one."""

    def __init__(self, words: int, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.dropout = nn.Embedding(words, words), nn.Dropout(dropout)

    def forward(self, value: Any) -> torch.Tensor:
        return self.dropout(self.table(value[1] if isinstance(value, tuple) else value))


def by_hand(model: Scores, followed: list[tuple[int, int]]) -> tuple[float, float]:
    """Accuracy (%) and mean cross-entropy of what follows a word, one by one."""
    rows = [(model.table.weight[before].log_softmax(0), after) for before, after in followed]
    right = sum(int(chances.argmax()) == after for chances, after in rows)
    return 100 * right / len(rows), -sum(chances[after].item() for chances, after in rows) / len(rows)


def test_the_loss_of_images_is_the_mean_over_samples_not_over_minibatches() -> None:
    test = Fixed(7)  # six samples, then four
    measured = classify(nn.Identity(), test)  # type: ignore[arg-type]
    assert measured["test_loss"] == pytest.approx(float(F.cross_entropy(test.scores, test.targets)), rel=1e-6)


@pytest.mark.parametrize("length", [4, 5])
def test_a_language_model_is_measured_on_the_next_words_of_whole_stretches(length: int) -> None:
    """16 words are three stretches, each word with the one after it; the last of two minibatches is smaller."""
    data, model = text(), Scores(5)
    assert len(data.test) == 16 and len(data.words) == 5
    words = data.test.tolist()
    accuracy, loss = by_hand(model, list(zip(words[: 3 * length], words[1 : 3 * length + 1], strict=True)))
    measured = LanguageTest(data, CPU, length, batch=2).measure(model)
    assert measured["accuracy"] == pytest.approx(accuracy, abs=1e-4) and 0 < accuracy < 100
    assert measured["test_loss"] == pytest.approx(loss, rel=1e-5)
    assert measured["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)


def test_a_perplexity_too_large_for_a_number_is_written_as_a_large_one() -> None:
    model = Scores(5)
    model.table.weight.data *= 1e4
    measured = LanguageTest(text(), CPU, 5).measure(model)
    assert measured["test_loss"] > 1000 and measured["perplexity"] == math.exp(50)


def none_written(model: nn.Module, source: torch.Tensor, *options: object) -> list[list[int]]:
    return [[] for _ in source]


def test_a_translator_is_measured_on_words_and_ends_and_not_on_padding() -> None:
    data = pairs()
    model = Scores(len(data.target_words))
    true = [(BEGIN, *target, END) for _, target in data.test]
    accuracy, loss = by_hand(model, [pair for words in true for pair in zip(words[:-1], words[1:], strict=True)])
    measured = TranslationTest(data, CPU, batch=2, write=none_written).measure(model)
    assert measured["accuracy"] == pytest.approx(accuracy, abs=1e-4)
    assert measured["test_loss"] == pytest.approx(loss, rel=1e-5)


def test_a_test_sentence_ends_with_its_end_as_those_of_training_do() -> None:
    (source, given, wanted), *_ = TranslationTest(pairs(), CPU, batch=2)
    a, b = (pairs().source_words.index(word) for word in "ab")
    assert source.tolist() == [[a, b, END], [b, END, PAD]]
    assert given[:, 0].tolist() == [BEGIN, BEGIN] and torch.equal(given[:, 1:] == PAD, wanted[:, 1:] == PAD)


def test_padding_that_a_translator_foresees_is_no_word_that_is_right() -> None:
    class Padding(nn.Module):
        def forward(self, value: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return F.one_hot(torch.zeros_like(value[1]), 7).float()

    assert len(pairs().target_words) == 7
    assert TranslationTest(pairs(), CPU, write=none_written).measure(Padding())["accuracy"] == 0.0


def test_bleu_is_of_words_as_the_set_splits_them_pieces_joined_and_their_case_kept() -> None:
    """As fairseq-generate with --remove-bpe measures it (docs: no BLEU of detokenised text)."""
    said = "The U.S. dog isn &apos;t 3,000 years old , is it ?"
    true = "The U.S. Dog isn &apos;t 3,000 ye@@ ars old , is n't it ?"
    data = corpus(
        "toy", "toy", [("a", f"{said} {true} ye@@ ars")], [("a", true), ("a", "The dog is old .")], most_unknown=1
    )
    numbers = {word: number for number, word in enumerate(data.target_words)}
    written = [said.replace("years", "ye@@ ars"), "The dog is old"]

    def write(model: nn.Module, source: torch.Tensor, *options: object) -> list[list[int]]:
        return [[numbers[word] for word in sentence.split()] for sentence in written]

    references = [true.replace("ye@@ ars", "years"), "The dog is old ."]
    hypotheses = [said, "The dog is old"]
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none", force=True).score
    for other in ({"tokenize": "13a"}, {"tokenize": "none", "lowercase": True}):
        assert abs(sacrebleu.corpus_bleu(hypotheses, [references], force=True, **other).score - expected) > 0.1
    assert data.references == tuple(references)
    measured = TranslationTest(data, CPU, write=write).measure(Scores(len(data.target_words)))
    assert measured["bleu"] == pytest.approx(expected, abs=1e-4)


MEASURES: dict[str, Callable[[nn.Module], dict[str, float]]] = {
    "images": lambda model: classify(model, Fixed(5)),  # type: ignore[arg-type]
    "running text": lambda model: LanguageTest(text(), CPU, 5).measure(model),
    "translation": lambda model: TranslationTest(pairs(), CPU, write=none_written).measure(model),
}


@pytest.mark.parametrize("kind", MEASURES)
def test_nothing_is_dropped_while_a_model_is_measured_and_training_goes_on(kind: str) -> None:
    size = {"images": 5, "running text": 5, "translation": 7}[kind]
    model = nn.Dropout(0.5) if kind == "images" else Scores(size, dropout=0.5)
    once, again = MEASURES[kind](model.train()), MEASURES[kind](model)
    assert once == again == MEASURES[kind](nn.Identity() if kind == "images" else Scores(size))
    assert all(module.training for module in model.modules())


def test_of_two_evaluations_as_good_the_first_is_the_best_and_bleu_counts_before_accuracy() -> None:
    first, second = {"step": 1, "accuracy": 50.0}, {"step": 2, "accuracy": 50.0}
    assert best_of(second, first) == first and best_of(first | {"accuracy": 50.1}, second)["accuracy"] == 50.1
    words = [{"step": 1, "accuracy": 60.0, "bleu": 1.0}, {"step": 2, "accuracy": 40.0, "bleu": 2.0, "bleu_error": 0.1}]
    assert best_of(words[1], best_of(words[0], None)) == words[1]  # with its error


def test_a_metric_of_ones_own_stands_in_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("pipelag.runs.objectives", fromlist="METRICS").METRICS, "mine", len)
    assert final_of({"step": 3, "accuracy": 1.0, "mine": 2.0, "lr": 0.1}) == {"accuracy": 1.0, "mine": 2.0}


def test_delays_of_a_parameter_server_are_the_workers_own() -> None:
    row: dict[str, Any] = {"method": "asp", "forward_delays": [1], "backward_delays": [1]}
    ages: Any = {rank: SimpleNamespace(ages=ages) for rank, ages in enumerate([[0, 2, 1], [3]])}
    assert with_ages(row, ages) == {"method": "asp", "forward_delays": [3], "backward_delays": [3], "mean_delay": 1.5}
    assert with_ages(row, {0: SimpleNamespace(ages=[])}) == row  # type: ignore[dict-item]
