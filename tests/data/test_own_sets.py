"""A user's own data sets, and options out of range, are refused when the data are opened, not after the training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag import data
from pipelag.data.images.imagenet import ImageFolders
from pipelag.data.text.labelled import LabelledText
from pipelag.data.text.language import RunningText
from pipelag.data.text.parallel import SPECIAL, Corpus
from pipelag.errors import PipelagError
from tests.data.samples import mirror

LABELS = torch.tensor([0, 1, 1])
TEXTS = torch.tensor([[2, 3], [3, 2], [0, 3]])
STREAM = torch.tensor([0, 1, 1, 2])
PAIR, FILE = ((4, 5), (5, 4)), (Path("a.png"), 1)


def labelled(**other: Any) -> LabelledText:
    parts = {"train": TEXTS, "train_labels": LABELS, "test": TEXTS, "test_labels": LABELS, "unknown": 0.0}
    words = ("<pad>", "<unk>", "a", "b")
    return LabelledText("mine", "Mine", "r", True, "", **({"words": words, "classes": ("n", "p"), **parts} | other))


def running(**other: Any) -> RunningText:
    parts = {"words": ("a", "b", "c"), "train": STREAM, "test": STREAM}
    return RunningText("mine", "Mine", "r", True, "", **(parts | other))


def parallel(**other: Any) -> Corpus:
    words = {"source_words": (*SPECIAL, "a", "b"), "target_words": (*SPECIAL, "c", "d")}
    rest = {"train": (PAIR,), "test": (PAIR, PAIR), "references": ("d c", "d c")}
    return Corpus("mine", "Mine", "r", True, "", **(words | rest | other))


def folders(**other: Any) -> ImageFolders:
    parts = {"classes": ("a", "b"), "train": (FILE,), "test": (FILE,), "size": 32}
    return ImageFolders("mine", "Mine", "r", True, "", **(parts | other))


WRONG: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (labelled, {"test": TEXTS[:0], "test_labels": LABELS[:0]}, "has no test texts; it needs at least one"),
    (labelled, {"test_labels": LABELS + 1}, "test_labels of 'mine' run from 1 to 2; with 2 classes .* 0 to 1"),
    (labelled, {"test_labels": LABELS[:2]}, r"test_labels .* should be torch.int64 \(3,\), one for each text"),
    (labelled, {"train_labels": LABELS.int()}, r"train_labels of 'mine' are torch.int32 \(3,\)"),
    (labelled, {"test": TEXTS + 1}, "the words in test of 'mine' run from 1 to 4; with 4 words .* 0 to 3"),
    (labelled, {"train": [[1, 2]]}, r"train of 'mine' is a list; it should be torch.int64 \(N, length\)"),
    (labelled, {"train": TEXTS.float()}, r"train of 'mine' is torch.float32 \(3, 2\); it should be torch.int64"),
    (running, {"test": STREAM[:0]}, "has no test words; it needs at least one"),
    (running, {"test": STREAM - 1}, "the words in test of 'mine' run from -1 to 1"),
    (running, {"train": STREAM.view(2, 2)}, r"train of 'mine' is torch.int64 \(2, 2\); it should be .* \(words,\)"),
    (parallel, {"test": (), "references": ()}, "has no test pairs; it needs at least one"),
    (parallel, {"test": (((4, 6), (5,)),) * 2}, "the source tokens in test of 'mine' run from 4 to 6; with 6 words"),
    (parallel, {"train": (((4,), (6,)),)}, "the target tokens in train of 'mine' run from 6 to 6"),
    (parallel, {"references": ("d c",)}, "has 1 references for 2 test pairs; it needs one for each"),
    (parallel, {"target_words": tuple("cdefgh")}, "target_words of 'mine' should begin with <pad>, <s>, </s>, <unk>"),
    (folders, {"test": ()}, "has no test images; it needs at least one"),
    (folders, {"test": ((Path("a.png"), 2),)}, "the labels in test of 'mine' run from 2 to 2; with 2 classes"),
    (folders, {"size": 0}, "have a size of 0 pixels; it should be 1 or more"),
]


@pytest.mark.parametrize("make", [labelled, running, parallel, folders])
def test_consistent_sets_are_taken(make: Callable[..., Any]) -> None:
    assert make().summary()["name"] == "mine"


@pytest.mark.parametrize(("make", "other", "refusal"), WRONG)
def test_inconsistent_sets_are_refused(make: Callable[..., Any], other: dict[str, Any], refusal: str) -> None:
    with pytest.raises(PipelagError, match=refusal):
        make(**other)


@pytest.mark.parametrize(
    ("name", "options", "refusal"),
    [
        ("grammar", {"test": 0}, "the option 'test' of data set 'grammar' is 0; it should be 1 or more"),
        ("grammar", {"train": 1}, "is not in the training text; take more training text"),
        ("phrases", {"test": -5}, "the option 'test' of data set 'phrases' is -5; it should be 1 or more"),
        ("tatoeba", {"train": -3}, "the option 'train' of data set 'tatoeba' is -3; it should be 1 or more"),
        ("shapes", {"seed": -1}, "shapes need a seed of 0 or more, not -1"),
        ("opinions", {"clauses": [2.0, 3]}, r"from 2 to 6, whole numbers, not .* clauses \[2.0, 3\]"),
        ("opinions", {"clauses": 3}, "from 2 to 6, whole numbers, not .* clauses 3"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any], refusal: str) -> None:
    with pytest.raises(PipelagError, match=refusal):
        data.load(name, **options)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("cifar10", "cifar-python-tar"),
        ("tiny_imagenet", "tiny-imagenet-zip"),
        ("imdb", "aclimdb-tar"),
        ("tatoeba", "tsv-xz"),
    ],
)
def test_a_layout_of_one_file_is_refused_with_two(
    name: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mirror(tmp_path / "m", {"a": b"1", "b": b"2"}, name=name, layout=layout)
    monkeypatch.setenv("PIPELAG_MIRROR", str(folder))
    monkeypatch.setenv("PIPELAG_DATA", str(tmp_path / "data"))
    with pytest.raises(PipelagError, match=f"layout {layout} has one file, not 2: a, b"):
        data.load(name)
