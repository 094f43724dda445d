"""A real run that is finished stands, even where it was stopped while its checkpoints were being removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelag.distributed.checkpoints import Checkpoints
from pipelag.runs import folder as folders
from tests.runs.test_runs import lines, run

REAL: dict[str, Any] = {
    "phases": [{"method": "pipedream", "steps": 20, "cuts": [3]}], "executor": "real", "workers": 2,
    "evaluate_every": 5, "options": {},
}  # fmt: skip


@pytest.mark.real
def test_a_run_stopped_while_it_cleans_up_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(partial: Path) -> None:
        shutil.rmtree(sorted(partial.glob("*/step-*"))[0])
        raise KeyboardInterrupt

    with monkeypatch.context() as half:
        half.setattr(folders, "shutil", type("shutil", (), {"rmtree": stopped}))
        assert run(tmp_path, **REAL) == 130
    summary, log = (tmp_path / "summary.json").read_text(), lines(tmp_path)
    assert json.loads(summary)["status"] == "finished" and len(list(tmp_path.glob("partial/*/step-*"))) == 3
    capsys.readouterr()
    assert run(tmp_path, **REAL) == 0
    assert "nothing was done: this run stood here, finished" in capsys.readouterr().out
    assert (tmp_path / "summary.json").read_text() == summary and lines(tmp_path) == log


def test_sets_put_aside_are_taken_back_by_a_run_that_was_not_over(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "checkpoints", frozenset())

    def there() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    (kept.folder / "step-000000005").mkdir(parents=True)
    kept.set_aside()
    assert not list(tmp_path.glob("checkpoint*"))  # by which a folder knows that something is to be gone on with
    kept.take_back(over=False)
    assert there() == ["checkpoints"] and (kept.folder / "step-000000005").is_dir()
    kept.set_aside()
    kept.take_back(over=True)
    assert there() == []
