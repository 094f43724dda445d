"""A real run that is finished stands, even where it was stopped while its checkpoints were being removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelag.runs import folder as folders
from tests.runs.test_runs import SPEC, lines, main, run

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
    assert json.loads(summary)["status"] == "finished" and len(list(tmp_path.glob("partial-over/*/step-*"))) == 3
    capsys.readouterr()
    assert run(tmp_path, **REAL) == 0
    assert "nothing was done: the folder holds this run, finished" in capsys.readouterr().out
    assert (tmp_path / "summary.json").read_text() == summary and lines(tmp_path) == log
    whole = ["run", "--spec", json.dumps(SPEC | REAL), "--out", str(tmp_path), "--device", "cpu", "--threads", "1"]
    assert main([*whole, "--again"]) == 0  # what was left of it is gone
    assert not list(tmp_path.glob("partial*"))
