"""Parallel text: vocabularies, filtering, minibatches, number phrases, Multi30k from a mirror."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
import torch

from pipelag import data
from pipelag.data.sets.generated_phrases import english, german
from pipelag.data.text.parallel import BEGIN, END, PAD, UNKNOWN, TextBatches, corpus, pairs_of
from pipelag.errors import PipelagError
from tests.data.samples import mirror


def test_numbers_in_words() -> None:
    assert " ".join(german(0)) == "null"
    assert " ".join(german(17)) == "sieben zehn"
    assert " ".join(german(324_007)) == "drei hundert vier und zwanzig tausend sieben"
    assert " ".join(english(324_007)) == "three hundred twenty four thousand seven"
    assert " ".join(english(15)) == "fifteen"


def test_phrases_are_one_to_one_and_tested_on_unseen_numbers() -> None:
    numbers = random.Random(1).sample(range(1_000_000), 3000)
    assert len({" ".join(german(n)) for n in numbers}) == len({" ".join(english(n)) for n in numbers}) == 3000
    phrases = data.load("phrases", train=500, test=50)
    assert not set(phrases.train) & set(phrases.test)
    assert phrases.unknown["source"] <= 0.05
    with pytest.raises(PipelagError, match="different numbers"):
        data.load("phrases", train=500, test=50, most=100)


def test_long_pairs_are_dropped_and_counted() -> None:
    text = corpus(
        "toy",
        "toy",
        [("a b", "x y"), ("a b c", "x"), ("a", "x y z"), ("", "x"), ("a", "")],
        [("a q", "x")],
        most_tokens=2,
        most_unknown=0.5,
    )
    assert (len(text.train), text.dropped) == (1, 4)
    assert text.test[0][0][1] == UNKNOWN
    assert text.unknown == {"source": 0.5, "target": 0.0}


def test_bad_corpora_are_refused() -> None:
    with pytest.raises(PipelagError, match="2 source lines and 1 target lines"):
        pairs_of(["a", "b"], ["x"], "toy")
    with pytest.raises(PipelagError, match="no training pair left"):
        corpus("toy", "toy", [("a b c", "x")], [("a", "x")], most_tokens=2)
    with pytest.raises(PipelagError, match="100 % of the test set's source words are unknown"):
        corpus("toy", "toy", [("a", "x")], [("b", "x")])
    with pytest.raises(PipelagError, match="does not fit 'toy'"):
        TextBatches(corpus("toy", "toy", [("a", "x")], [("a", "x")]), 2, 0)


def test_minibatches_depend_on_seed_and_number_alone() -> None:
    phrases = data.load("phrases", train=64, test=8)
    first, second = TextBatches(phrases, 16, seed=3), TextBatches(phrases, 16, seed=3)
    list(first[t] for t in range(6))
    for a, b in zip(first.inputs(5), second.inputs(5), strict=True):
        assert torch.equal(a, b)
    (source, decoder_inputs), targets = second[5]
    assert decoder_inputs.shape == targets.shape
    assert (decoder_inputs[:, 0] == BEGIN).all()
    assert ((targets == END).sum(1) == 1).all() and ((source == END).sum(1) == 1).all()
    assert torch.equal(decoder_inputs[:, 1:][targets[:, 1:] != PAD], targets[:, :-1][targets[:, 1:] != PAD])
    seen = sorted(pair for t in range(4) for pair in second.pairs(t))
    assert seen == sorted(phrases.train)  # an epoch is every pair once


def test_multi30k_from_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "train.de.gz": "Ein Hund läuft.\nEin Mann schläft!\n",
        "train.en.gz": "A dog\u2028runs.\nA man sleeps!\n",  # which breaks no line
        "test2016.de.gz": "Ein Hund schläft.\n",
        "test2016.en.gz": "A dog sleeps.\n",
    }
    files = {name: gzip.compress(text.encode()) for name, text in texts.items()}
    folder = mirror(tmp_path / "m", files, name="multi30k", layout="parallel-text-gz", note="tiny")
    monkeypatch.setenv("PIPELAG_MIRROR", str(folder))
    loaded = data.load("multi30k", least_count=1)
    assert (len(loaded.train), loaded.references) == (2, ("a dog sleeps .",))
    assert not loaded.official
    assert "schläft" in loaded.source_words
    for test in (-1, 0, 2):  # as the end of a slice they would leave pairs out, leave none, or change nothing
        with pytest.raises(PipelagError, match=f"has 1 sentences to test on; choose test from 1 to 1, not {test}"):
            data.load("multi30k", least_count=1, test=test)
    with pytest.raises(PipelagError, match="has no train text in 'fr'; it has de and en"):
        data.load("multi30k", source="fr")
