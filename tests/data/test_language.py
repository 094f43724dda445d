"""Running text: streams of words, minibatches by number, a generated grammar, the Penn Treebank from a mirror."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from pipelag import data
from pipelag.data.text.language import LanguageBatches, RunningText, running_text
from pipelag.errors import PipelagError
from pipelag.runs.text_metrics import LanguageTest
from tests.data.samples import mirror


def test_the_target_is_the_next_word() -> None:
    text = running_text("toy", "toy", ["a b c", "b a"] * 40, ["a b"])
    batches = LanguageBatches(text, batch=3, length=5, seed=0)
    for t in (0, 1, len(batches), 2 * len(batches) + 1):
        words, after = batches[t]
        assert words.shape == after.shape == (3, 5)
        assert torch.equal(words[:, 1:], after[:, :-1])
    same_seed = LanguageBatches(text, batch=3, length=5, seed=0)
    assert torch.equal(batches.inputs(7), same_seed.inputs(7))
    first, second = batches.inputs(0), batches.inputs(1)
    assert torch.equal(batches.targets(0)[:, -1], second[:, 0]) and first.shape == second.shape  # the text goes on


def test_every_epoch_and_every_seed_cuts_its_stretches_elsewhere() -> None:
    text = running_text("toy", "toy", [" ".join(f"w{i}" for i in range(400))], ["w1"])

    def start(seed: int, epoch: int) -> str:
        batches = LanguageBatches(text, batch=3, length=20, seed=seed)
        return text.words[int(batches.inputs(epoch * len(batches))[0, 0])]

    assert len({start(0, epoch) for epoch in range(8)}) > 3 and len({start(seed, 0) for seed in range(8)}) > 3
    assert start(5, 3) == start(5, 3)


def test_an_epoch_has_no_word_twice() -> None:
    """401 words are three rows of 126, each of six stretches."""
    text = running_text("toy", "toy", [" ".join(f"w{i}" for i in range(400))], ["w1"])
    batches = LanguageBatches(text, batch=3, length=20, seed=0)
    for epoch in (0, 1):
        words = torch.cat([batches.inputs(epoch * 6 + t).flatten() for t in range(len(batches))])
        assert len(words) == len(words.unique()) == 3 * 6 * 20


def test_unknown_words_need_a_place() -> None:
    with pytest.raises(PipelagError, match="the test text's word 'z' is not in the training text"):
        running_text("toy", "toy", ["a b"], ["a z"])
    known = running_text("toy", "toy", ["a <unk>"], ["a z"])
    assert known.words[int(known.test[1])] == "<unk>"
    with pytest.raises(PipelagError, match="has no words"):
        running_text("toy", "toy", [], ["a"])
    with pytest.raises(PipelagError, match="too few for a batch of 8 rows and stretches of 50 words"):
        LanguageBatches(running_text("toy", "toy", ["a b"] * 20, ["a"]), 8, 50, 0)


def test_a_test_text_shorter_than_a_stretch_is_refused() -> None:
    text = running_text("toy", "toy", ["a b c"] * 20, ["a b"])
    assert LanguageTest(text, torch.device("cpu"), length=2).length == 2
    with pytest.raises(PipelagError, match="test text of 'toy' has 3 words, too few for a stretch of 3"):
        LanguageTest(text, torch.device("cpu"), length=3)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity() -> None:
    text = data.load("grammar", train=600, test=60)

    class Even(nn.Module):
        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*words.shape, len(text.words))

    measured = LanguageTest(text, torch.device("cpu"), length=11).measure(Even())
    assert measured["perplexity"] == pytest.approx(len(text.words), rel=1e-4)
    assert measured["test_loss"] == pytest.approx(math.log(len(text.words)), rel=1e-4)


def test_the_grammar_is_the_same_for_the_same_seed() -> None:
    first, second = data.load("grammar", train=600, test=10, seed=3), data.load("grammar", train=600, test=10, seed=3)
    assert torch.equal(first.train, second.train)
    assert not torch.equal(first.train[:100], data.load("grammar", train=600, test=10, seed=4).train[:100])


def test_the_grammars_test_text_goes_on_where_its_training_text_ends() -> None:
    def said(text: RunningText, part: str) -> list[str]:
        return [text.words[i] for i in getattr(text, part)]

    parted, whole = data.load("grammar", train=600, test=40), data.load("grammar", train=640, test=1)
    assert said(parted, "train") + said(parted, "test") == said(whole, "train")


def test_the_penn_treebank_from_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"train": " no it was n't <unk> \n it was \n", "valid": " it was zebra \n", "test": " no \n"}
    files = {f"ptb.{part}.txt.gz": gzip.compress(text.encode()) for part, text in texts.items()}
    monkeypatch.setenv("PIPELAG_MIRROR", str(mirror(tmp_path / "m", files, name="ptb", layout="text-gz", note="gzip")))
    text = data.load("ptb")
    assert len(text.train) == 9 and len(text.test) == 4
    assert [text.words[i] for i in text.test] == ["it", "was", "<unk>", "<eos>"]
    assert text.note == "gzip" and not text.official
