"""Generated data are made once in a workflow, and by every process that is in none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag import data
from pipelag.data.images.dataset import Dataset
from pipelag.data.sets.generated_images import shapes
from pipelag.runs.kinds.train_simulated import train
from pipelag.runs.spec import RunSpec

TENSORS = ("train_images", "train_labels", "test_images", "test_labels")


def listed(part: Any) -> Any:
    return part.tolist() if isinstance(part, torch.Tensor) else part


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many training images were asked for each time that the generator worked; in a workflow."""
    counts: list[int] = []

    def counted(train: int = 20, test: int = 10, size: int = 16) -> Dataset:
        counts.append(train)
        return shapes(train, test, size=size)

    monkeypatch.setitem(data.DATASETS, "shapes", counted)
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PIPELAG_WARM", str(tmp_path / "socket"))
    return counts


def test_the_second_run_of_a_workflow_reads_what_the_first_made(generated: list[int], tmp_path: Path) -> None:
    first, second = data.load("shapes", train=20), data.load("shapes", train=20)
    assert generated == [20] and second.summary() == first.summary()
    assert all(torch.equal(getattr(first, name), getattr(second, name)) for name in TENSORS)
    assert len(data.load("shapes", train=21).train_labels) == 21 and generated == [20, 21]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".pickle", ".pickle"]


@pytest.mark.parametrize("name", ["phrases", "opinions", "grammar"])
def test_texts_are_the_same_read_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generated: list[int], name: str
) -> None:
    made_here, read = data.load(name, train=600, test=10), data.load(name, train=600, test=10)
    monkeypatch.delenv("PIPELAG_WARM")
    alone = data.load(name, train=600, test=10)
    assert len([*tmp_path.iterdir()]) == 1
    for other in (made_here, read):
        assert type(other) is type(alone) and other.summary() == alone.summary()
        assert listed(other.train) == listed(alone.train) and listed(other.test) == listed(alone.test)


def test_a_file_that_is_not_whole_is_made_anew(generated: list[int], tmp_path: Path) -> None:
    data.load("shapes")
    (path,) = tmp_path.iterdir()
    for content in (b"", path.read_bytes()[:100]):
        path.write_bytes(content)
        data.load("shapes")
    assert generated == [20, 20, 20] and len(path.read_bytes()) > 100


def test_a_folder_that_others_can_open_is_neither_read_nor_written(generated: list[int], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    data.load("shapes")
    assert not [*tmp_path.iterdir()] and generated == [20]


def test_outside_of_a_workflow_nothing_is_written(
    generated: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIPELAG_WARM")
    monkeypatch.chdir(tmp_path)
    data.load("shapes")
    assert not [*tmp_path.iterdir()] and generated == [20]


def test_a_run_logs_the_same_on_data_that_another_made(generated: list[int], tmp_path: Path) -> None:
    spec = RunSpec.model_validate(
        {
            "kind": "train",
            "model": {"name": "lenet5"},
            "data": {"name": "shapes", "options": {"train": 40, "size": 28}},
            "batch": 8,
            "optimizer": {"lr": 0.1},
            "phases": [{"method": "pipedream", "cuts": [1], "steps": 4}],
        }
    )
    ends = [train(spec, tmp_path / name, torch.device("cpu"), 1)["final"] for name in ("makes", "reads")]
    assert generated == [40] and ends[0] == ends[1]
