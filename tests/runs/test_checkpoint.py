"""A checkpoint is the one that was written, whole and its owner's; or it is set aside, and what is there is said."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag import checkpoint
from pipelag.errors import PipelagError

STATE: dict[str, Any] = {"weights": torch.arange(1000.0), "done": 7}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stage.pt"


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def test_the_one_before_is_kept_where_that_is_asked_and_only_there(path: Path) -> None:
    for done in (1, 2):
        checkpoint.save(STATE | {"done": done}, path, of="run")
    assert names(path) == ["stage.pt"]
    checkpoint.save(STATE | {"done": 3}, path, keep=True, of="run")
    assert names(path) == ["stage-before.pt", "stage.pt"]
    for where, done in ((path, 3), (checkpoint.before(path), 2)):
        loaded = checkpoint.load(where, of="run")
        assert loaded is not None and loaded["done"] == done and torch.equal(loaded["weights"], STATE["weights"])


@pytest.mark.parametrize(("owner", "asked"), [("run", "other"), ("run", ""), ("", "run")])
def test_another_owners_is_set_aside(path: Path, owner: str, asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint.save(STATE, path, of=owner)
    content = path.read_bytes()
    assert checkpoint.whole(path, owner) and not checkpoint.whole(path, asked)
    assert checkpoint.load(path, of=asked) is None
    assert names(path) == ["stage.damaged"] and (path.parent / "stage.damaged").read_bytes() == content
    assert "is damaged and was set aside as stage.damaged" in capsys.readouterr().err


def test_one_other_bit_in_a_number_is_seen(path: Path) -> None:
    checkpoint.save(STATE, path, of="run")
    content = bytearray(path.read_bytes())
    content[content.index(STATE["weights"].numpy().tobytes()) + 2000] ^= 1
    path.write_bytes(content)
    assert torch.load(path)["done"] == 7  # torch sees nothing
    assert checkpoint.load(path, of="run") is None and names(path) == ["stage.damaged"]


def test_what_a_killed_process_left_half_written_is_removed(path: Path) -> None:
    checkpoint.save(STATE, path)
    path.with_suffix(".tmp").write_text("half")
    assert checkpoint.load(path) is not None and names(path) == ["stage.pt"]


def test_what_cannot_be_opened_just_now_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(STATE, path)

    def refused(*arguments: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(PipelagError, match=r"cannot be opened \(Permission denied\); fix that and start again"):
        checkpoint.load(path)
    assert names(path) == ["stage.pt"]


def test_a_pipe_in_its_place_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    assert not checkpoint.whole(path) and checkpoint.load(path) is None and names(path) == ["stage.damaged"]


@pytest.mark.parametrize(
    ("there", "earlier", "outcome"),
    [
        ("", False, "none is kept"),
        ("", True, "the one before it is kept"),
        ("stage.pt", False, "the one before it is kept"),
        ("stage-before.pt", False, "the one before it is kept"),
    ],
)
def test_on_a_full_disk_it_is_said_what_is_kept(
    path: Path, there: str, earlier: bool, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        checkpoint.save(STATE, path.with_name(there))

    def full(state: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(PipelagError, match=rf"could not be written \(No space left on device\); {outcome}: free some"):
        checkpoint.save(STATE, path, keep=True, earlier=earlier)
    assert names(path) == ([there] if there else [])
