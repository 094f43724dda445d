"""Labelled texts: numbering, padding, minibatches by number; generated opinions; IMDb in both of its layouts."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from pipelag import data
from pipelag.data.sets import generated_opinions as generated
from pipelag.data.sets.imdb import aclimdb_tar, jsonl_xz, tokens
from pipelag.data.text.labelled import PAD, UNKNOWN, LabelledBatches, LabelledEvaluation, LabelledText, numbered
from pipelag.errors import PipelagError
from tests.data.samples import mirror, tar

FIRST = "the pace seemed never utterly bland but the cast felt very dull and the ending was very stale"
TEXTS = [(["a", "b", "c", "d"], 0), (["b", "c"], 1), (["b"], 1)]


def test_words_are_numbered_by_how_often_they_occur_and_the_last_place_is_a_word() -> None:
    numbering = numbered("toy", TEXTS, [(["c", "z"], 0), ([], 1)], length=3)
    assert numbering["words"] == ("<pad>", "<unk>", "b", "c", "a", "d")
    assert numbering["train"].tolist() == [[4, 2, 3], [PAD, 2, 3], [PAD, PAD, 2]]
    assert numbering["test"].tolist() == [[PAD, 3, UNKNOWN], [PAD, PAD, UNKNOWN]]
    assert numbering["unknown"] == pytest.approx(2 / 3, abs=1e-4)
    assert numbering["train_labels"].tolist() == [0, 1, 1]
    assert numbered("toy", TEXTS, TEXTS, length=3, last=True)["train"][0].tolist() == [2, 3, 5]
    assert numbered("toy", TEXTS, TEXTS, length=3, least_count=2)["words"][2:] == ("b", "c")
    assert numbered("toy", TEXTS, TEXTS, length=3, most_words=3)["words"][2:] == ("b",)


def test_what_cannot_be_numbered_is_refused() -> None:
    with pytest.raises(PipelagError, match="not 0 and 3 texts and length 3"):
        numbered("toy", [], TEXTS, 3)
    with pytest.raises(PipelagError, match="length 0"):
        numbered("toy", TEXTS, TEXTS, 0)
    with pytest.raises(PipelagError, match="left without words; choose a smaller least_count"):
        numbered("toy", TEXTS, TEXTS, 3, least_count=9)
    with pytest.raises(PipelagError, match="the option 'most_words' of data set 'toy' is -1; it should be 1 or more"):
        numbered("toy", TEXTS, TEXTS, 3, most_words=-1)


def toy(texts: int = 10) -> LabelledText:
    examples = [([f"w{i}"], i % 2) for i in range(texts)]
    about: Any = {"classes": ("no", "yes"), **numbered("toy", examples, examples[:3], 2)}
    return LabelledText("toy", "toy", "r", True, "", **about)


def test_a_minibatch_depends_on_the_seed_and_its_number_alone() -> None:
    batches = LabelledBatches(toy(), batch=3, seed=5)
    assert len(batches) == 3
    later = [batches[t] for t in (7, 2, 0)]
    for (words, labels), t in zip(later, (7, 2, 0), strict=True):
        alone = LabelledBatches(toy(), batch=3, seed=5)[t]
        assert torch.equal(words, alone[0]) and torch.equal(labels, alone[1])
        assert words.shape == (3, 2) and labels.shape == (3,) and words.dtype == labels.dtype == torch.int64
    seen = torch.cat([batches.inputs(t)[:, 1] for t in range(3)])
    assert len(set(seen.tolist())) == 9  # no text twice in an epoch
    assert not torch.equal(batches.inputs(0), batches.inputs(3))  # the next epoch has another order
    assert not torch.equal(batches.inputs(0), LabelledBatches(toy(), batch=3, seed=6).inputs(0))
    with pytest.raises(PipelagError, match="a minibatch of 11 does not fit 'toy'; choose 1 to 10 texts"):
        LabelledBatches(toy(), 11, 0)


def test_inputs_and_targets_belong_together() -> None:
    text = toy()
    label_of = {int(row[1]): int(label) for row, label in zip(text.train, text.train_labels, strict=True)}
    words, labels = LabelledBatches(text, 4, 1)[3]
    assert [label_of[int(row[1])] for row in words] == labels.tolist()


def test_the_evaluation_holds_every_test_text_once() -> None:
    test = LabelledEvaluation(toy(), batch=2)
    assert test.samples == 3 and [len(words) for words, _ in test] == [2, 1]


def meaning(words: list[str]) -> int:
    """The label of an opinion, read anew from its words."""
    text = " ".join(words).replace(" but ", "|*").replace(" and ", "|")
    total = 0.0
    for clause in text.split("|"):
        value = 2.0 if clause.startswith("*") else 1.0
        for word in clause.lstrip("*").split():
            value *= -1 if word in generated.NEGATIONS or word in generated.BAD else 1
            value *= 2 if word in generated.STRONGER else 0.5 if word in generated.WEAKER else 1
        total += value
    return int(total > 0)


def test_opinions_say_what_their_labels_say() -> None:
    rng = random.Random(1)
    for _ in range(300):
        words, label = generated.opinion(rng)
        assert meaning(list(words)) == label and len(words) <= 20


def test_counting_words_does_not_solve_opinions_and_reading_them_reaches_the_noise() -> None:
    text = data.load("opinions", train=3000, test=1000)
    assert len({tuple(row) for row in torch.cat((text.train, text.test)).tolist()}) == 4000
    counts = [torch.stack([torch.bincount(row, minlength=len(text.words)) for row in part])[:, 2:].numpy()
              for part in (text.train, text.test)]  # fmt: skip
    counting = LogisticRegression(max_iter=300).fit(counts[0], text.train_labels)
    assert counting.score(counts[1], text.test_labels) < 0.7
    read = [meaning([text.words[i] for i in row if i != PAD]) for row in text.test.tolist()]
    assert sum(int(a) == b for a, b in zip(text.test_labels, read, strict=True)) / 1000 == pytest.approx(0.92, abs=0.03)
    assert 0.45 < float(text.train_labels.float().mean()) < 0.55


def test_no_opinion_is_in_training_and_test() -> None:
    text = data.load("opinions", train=1500, test=500, clauses=[2, 2])  # of which some are drawn twice
    rows = [*map(tuple, text.train.tolist()), *map(tuple, text.test.tolist())]
    assert len(rows) == 2000 == len(set(rows))


def test_opinions_follow_their_seed_and_refuse_what_cannot_be() -> None:
    first, second = (data.load("opinions", train=50, test=10, seed=3) for _ in range(2))
    assert torch.equal(first.train, second.train) and torch.equal(first.test_labels, second.test_labels)
    assert not torch.equal(first.train, data.load("opinions", train=50, test=10, seed=4).train)
    with pytest.raises(PipelagError, match="noise from 0 to below 0.5"):
        data.load("opinions", noise=0.5)
    for options in ({"negated": 1.5}, {"clauses": [1, 2]}, {"clauses": [3, 2]}, {"clauses": [2]}, {"clauses": [2, 7]}):
        with pytest.raises(PipelagError, match=r"of the clauses. from 0 to 1 and clauses \[fewest, most\] from 2 to 6"):
            data.load("opinions", **options)


def test_opinions_are_as_they_were_without_options() -> None:
    text = data.load("opinions", train=40, test=10)
    assert text.release == "generated: noise 0.08, seed 0"
    assert " ".join(text.words[i] for i in text.train[0].tolist() if i != PAD) == FIRST
    assert torch.equal(data.load("opinions", train=40, test=10, negated=0.3, clauses=[2, 3]).train, text.train)


def test_opinions_can_be_easier_or_longer() -> None:
    easy = data.load("opinions", train=2000, test=500, negated=0, clauses=[2, 2])
    assert easy.release == "generated: noise 0.08, seed 0, 0 negated, 2 to 2 clauses"
    assert not set(easy.words) & set(generated.NEGATIONS)
    ends = torch.tensor([[easy.words[i] in ("and", "but") for i in row] for row in easy.train.tolist()])
    assert (ends.sum(1) == 1).all()  # one joint between two clauses
    counts = [torch.stack([torch.bincount(row, minlength=len(easy.words)) for row in part])[:, 2:].numpy()
              for part in (easy.train, easy.test)]  # fmt: skip
    counting = LogisticRegression(max_iter=300).fit(counts[0], easy.train_labels)
    assert counting.score(counts[1], easy.test_labels) > 0.7
    rng = random.Random(1)
    numbers = set()
    for _ in range(300):
        words, label = generated.opinion(rng, 0.5, (2, 5))
        assert meaning(list(words)) == label
        numbers.add(1 + words.count("and") + words.count("but"))
    assert numbers == {2, 3, 4, 5}


def test_reviews_are_read_as_words() -> None:
    assert tokens("It's <br /><br />GREAT, isn't it?  10/10") == ["it's", "great", "isn't", "it", "10", "10"]


REVIEWS = {
    "train": [(0, 0, 3, "Bad film"), (0, 1, 9, "A good film<br />really"), (1, 0, 1, "bad bad")],
    "test": [(0, 0, 2, "Awful film"), (0, 1, 10, "good")],
}


def jsonl() -> dict[str, bytes]:
    files = {}
    for part, rows in REVIEWS.items():
        lines = [json.dumps({"text": text, "label": label, "rating": 0, "id": n}) for n, label, _, text in rows]
        files[f"imdb/{part}.jsonl.xz"] = lzma.compress(("\n".join(lines) + "\n").encode())
    return files


def test_both_layouts_of_imdb_give_the_same_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"aclImdb/README": b"", "aclImdb/train/unsup/0_0.txt": b"not labelled", "aclImdb/train/urls_pos.txt": b""}
    for part, rows in reversed(REVIEWS.items()):
        for number, label, rating, text in reversed(rows):
            members[f"aclImdb/{part}/{('neg', 'pos')[label]}/{number}_{rating}.txt"] = text.encode()
    (tmp_path / "aclImdb_v1.tar.gz").write_bytes(tar(members))
    files = jsonl()
    folder = mirror(tmp_path / "m", files, name="imdb", layout="jsonl-xz", note="as lines")
    published = aclimdb_tar([tmp_path / "aclImdb_v1.tar.gz"])
    lines = jsonl_xz([folder / path for path in files])
    assert {part: sorted(rows) for part, rows in published.items()} == lines

    archive = mirror(tmp_path / "p", {"a.tar.gz": tar(members)}, name="imdb", layout="aclimdb-tar", note="")
    monkeypatch.setenv("PIPELAG_MIRROR", str(archive))
    archived = data.load("imdb", length=3)
    monkeypatch.setenv("PIPELAG_MIRROR", str(folder))
    text = data.load("imdb", length=3)
    assert [[text.words[i] for i in row] for row in text.train.tolist()] == [
        ["<pad>", "bad", "film"],
        ["a", "good", "film"],
        ["<pad>", "bad", "bad"],
    ]
    assert text.train_labels.tolist() == [0, 1, 0] and text.test_labels.tolist() == [0, 1]
    assert all(torch.equal(getattr(archived, part), getattr(text, part)) for part in ("train", "train_labels", "test"))
    assert text.note == "as lines" and not text.official and text.summary()["unknown"] == pytest.approx(1 / 3, abs=1e-4)
    monkeypatch.setattr("pipelag.data.sets.imdb.LAYOUTS", {"jsonl-xz": None})  # not read again
    fewer = data.load("imdb", length=3, test=1)
    assert torch.equal(fewer.train, text.train) and len(fewer.test) == 1
    with pytest.raises(PipelagError, match="has 2 reviews to test on; choose test from 1 to 2, not 9984"):
        data.load("imdb", length=3, test=9984)


def test_what_is_no_review_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl.xz").write_bytes(lzma.compress(b'{"text": "a", "label": 1}\n'))
    with pytest.raises(PipelagError, match="line 1: it should be a review with text, label and id"):
        jsonl_xz([tmp_path / "train.jsonl.xz"])
    (tmp_path / "a.tar.gz").write_bytes(tar({"aclImdb/train/pos/0_9.txt": b"good"}))
    with pytest.raises(PipelagError, match=r"1 reviews to train with labels \[1\]"):
        aclimdb_tar([tmp_path / "a.tar.gz"])
    (tmp_path / "valid.jsonl.xz").write_bytes(b"")
    with pytest.raises(PipelagError, match="not valid.jsonl.xz"):
        jsonl_xz([tmp_path / "valid.jsonl.xz"])


def test_the_mirrors_reviews(real_mirror: str) -> None:
    text = data.load("imdb", test=100)
    assert text.train.shape == (25_000, 20) and len(text.test) == 100 and len(text.words) == 10_000
    assert int(text.train_labels.sum()) == 12_500 and int(text.test_labels.sum()) == 50
    assert (text.train[:, -1] != PAD).all()
    longer = data.load("imdb", length=200, most_words=10_000, test=9984)  # SpecTrain's port; its table 1
    assert longer.train.shape == (25_000, 200) and len(longer.test) == 9984 and len(longer.words) == 10_000
    assert int(longer.test_labels.sum()) == 4992
