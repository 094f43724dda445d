"""The translations beside a log: any program can compute the log's BLEU from them again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelag.__main__ import main
from pipelag.runs.kinds import train_simulated
from pipelag.runs.translations import separated

SPEC: dict[str, Any] = {
    "model": {"name": "transformer", "options": {"blocks": 1, "size": 16, "hidden": 16, "heads": 2}},
    "data": {"name": "phrases", "options": {"train": 400, "test": 30}},
    "batch": 16,
    "optimizer": {"name": "adam", "lr": 0.01},
    "phases": [{"method": "pipedream", "steps": 40, "cuts": [5, 9]}],
    "evaluate_every": 10,
}


def run(out: Path, **changes: Any) -> int:
    return main(["run", "--spec", json.dumps(SPEC | changes), "--out", str(out), "--threads", "1"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    assert run(out) == 0
    return out


def test_sacrebleus_command_line_gives_the_bleu_in_the_log(whole: Path, tmp_path: Path) -> None:
    lines = [line.split("\t") for line in (whole / "translations.tsv").read_text().split("\n")[:-1]]
    columns = {name: cells for name, *cells in zip(*lines, strict=True)}
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").open()]
    assert list(columns) == ["reference", *(f"step {row['step']}" for row in rows)] and len(rows) == 4
    for name, cells in columns.items():
        (tmp_path / name).write_text("".join(f"{cell}\n" for cell in cells))
    command = [sys.executable, "-m", "sacrebleu", "reference", "-tok", "none", "--force", "-b", "-w", "4"]
    scores = []
    for row in rows:
        asked = subprocess.run(
            [*command, "-i", f"step {row['step']}"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        scores.append(float(asked.stdout))
    assert scores == [row["bleu"] for row in rows] and len(set(scores)) == 4


def test_a_run_that_goes_on_keeps_what_was_written_before(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between two evaluations, with a checkpoint after every step."""
    real = train_simulated.SimulatedTraining.step

    def step(training: Any, *minibatch: Any) -> Any:
        if training.done == 25:
            raise KeyboardInterrupt
        return real(training, *minibatch)

    with monkeypatch.context() as patched:
        patched.setattr(train_simulated, "CHECKPOINT_SECONDS", 0.0)
        patched.setattr(train_simulated, "FLUSH_STEPS", 1)
        patched.setattr(train_simulated.SimulatedTraining, "step", step)
        assert run(tmp_path) == 130
    assert run(tmp_path) == 0
    assert (tmp_path / "translations.tsv").read_bytes() == (whole / "translations.tsv").read_bytes()


@pytest.mark.real
def test_real_workers_leave_the_same_translations(whole: Path, tmp_path: Path) -> None:
    assert run(tmp_path, executor="real", workers=3) == 0
    assert (tmp_path / "translations.tsv").read_bytes() == (whole / "translations.tsv").read_bytes()


def test_changed_translations_make_the_run_unfinished(whole: Path, tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    written = (tmp_path / "summary.json").stat().st_mtime_ns
    assert run(tmp_path) == 0 and (tmp_path / "summary.json").stat().st_mtime_ns == written
    with open(tmp_path / "translations.tsv", "a") as file:
        file.write("more\n")
    assert run(tmp_path) == 0
    assert (tmp_path / "translations.tsv").read_bytes() == (whole / "translations.tsv").read_bytes()


def test_white_space_in_a_sentence_separates_no_columns() -> None:
    assert separated({"a": ["x\ty\r z", ""], "b": ["1", "\u2028"]}) == "a\tb\nx y z\t1\n\t\n"
