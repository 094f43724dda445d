"""Read the logs of runs: one `RunLog` per folder, and one `Item` per run that a result asks for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelag.errors import PipelagError
from pipelag.experiments import Arm, Scale, run_dir
from pipelag.files import read_text
from pipelag.runs.folder import is_as_written, is_summed, seal
from pipelag.runs.spec import RunSpec

MOST_BYTES = 2**30  # of a log


class Share(float):
    """A share of samples, or a BLEU, in percent.

    error: its standard error, from the test set as a finite sample; None if its size is not logged. The variation
    between seeds comes on top.
    """

    error: float | None = None

    @classmethod
    def with_error(cls, percent: float, error: float | None) -> Share:
        """A share with its standard error."""
        share = cls(percent)
        share.error = error
        return share

    @classmethod
    def of(cls, percent: float, samples: int | None) -> Share:
        """The share of this many samples. One right and one wrong sample are added, so that 100 % has an error too."""
        if not samples:
            return cls(percent)
        p = (percent / 100 * samples + 1) / (samples + 2)
        return cls.with_error(percent, 100 * math.sqrt(p * (1 - p) / (samples + 2)))


@dataclass(frozen=True)
class RunLog:
    """A finished run: its log lines, summary, environment and folder."""

    folder: Path
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    environment: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        """What the run was trained on, as its summary describes it; empty for a run without data."""
        return self.summary.get("data") or {}

    @property
    def phase(self) -> dict[str, Any]:
        """The summary of a training's first phase: cuts, stages, delays, percentage of stale weights, copies."""
        phase: dict[str, Any] = self.summary["phases"][0]
        return phase

    def evaluations(self, metric: str) -> list[dict[str, Any]]:
        """The log lines that have a value of a metric."""
        return [row for row in self.rows if row.get(metric) is not None]

    @property
    def accuracy(self) -> float | None:
        """Final test accuracy in percent; None if the run diverged."""
        final = self.summary.get("final")
        return self.share(final["accuracy"]) if final else None

    def share(self, percent: float) -> float:
        """An accuracy on the run's test set, with its standard error.

        An accuracy of words has none, because the number of words is not logged.
        """
        words = "bleu" in (self.summary.get("final") or {})
        return Share.of(percent, None if words else self.data.get("test"))

    def bleu(self, row: Mapping[str, Any]) -> Share:
        """The BLEU of an evaluation, with its standard error by bootstrap if that is logged."""
        return Share.with_error(row["bleu"], row.get("bleu_error"))

    @property
    def diverged_at(self) -> int | None:
        """The step at which the loss stopped being finite; None if it never did."""
        return self.summary.get("diverged_at")


def curve(log: RunLog | None, metric: str) -> list[tuple[float, float]]:
    """Pairs (epoch, value) of a run's evaluations; empty without a log."""
    return [(row["epoch"], row[metric]) for row in log.evaluations(metric)] if log else []


def read_log(folder: Path, spec: RunSpec | None = None) -> RunLog | None:
    """Read a run's log; None unless the folder holds the log lines and the summary of a finished run.

    spec: the run that the log should belong to.

    Raises:
        PipelagError: the log is damaged, was changed after the run, or belongs to another run.
    """
    lines, ending, machine = (folder / name for name in ("metrics.jsonl", "summary.json", "environment.json"))
    config = folder / "config.yaml"
    if not (lines.exists() and ending.exists()):
        return None
    try:
        text, summary_text = (read_text(path, "a run's log", MOST_BYTES) for path in (lines, ending))
        summary = _parsed(summary_text, ending)
        rows = [_parsed(line, lines, number) for number, line in enumerate(text.splitlines(), start=1)]
        environment = _parsed(read_text(machine, "a run's environment"), machine) if machine.exists() else {}
        sealed = seal(text)
    except (ValueError, RecursionError) as error:
        raise PipelagError(f"the log in {folder} is damaged ({error}); delete the folder to make it again") from error
    said = summary if isinstance(summary, dict) else {}
    whole = {
        ending: said is summary and is_as_written(said),
        lines: all(isinstance(row, dict) for row in rows) and said.get("log", sealed) == sealed,
        machine: isinstance(environment, dict) and is_summed(said, machine),
        config: is_summed(said, config),
    }
    changed = [path.name for path, as_it_was in whole.items() if not as_it_was]
    if changed:
        raise PipelagError(
            f"the log in {folder} is not what its run wrote ({changed[0]}); delete the folder to make it again"
        )
    if spec is not None:
        _check_run(folder, summary, spec)
    return RunLog(folder, rows, summary, environment)


def _parsed(text: str, path: Path, number: int = 1) -> Any:
    """Parse a file's JSON, or that of one of its lines; raises `ValueError` with the file and the line.

    number: the line at which the text begins.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = number + error.lineno - 1
        raise ValueError(f"{path.name}, line {line}: {error.msg} at character {error.colno}") from error


def _check_run(folder: Path, summary: Mapping[str, Any], spec: RunSpec) -> None:
    """Refuse a log that belongs to another run or has another number of steps than its spec."""
    if summary.get("id", spec.id) != spec.id:
        raise PipelagError(f"the log in {folder} is of the run {summary['id']}; delete the folder to make this one")
    if spec.kind == "train" and summary.get("status") == "finished" and summary.get("steps", spec.steps) != spec.steps:
        raise PipelagError(
            f"the log in {folder} ends after {summary['steps']} of {spec.steps} steps; delete it to make it again"
        )


@dataclass(frozen=True)
class Item:
    """A run that a result asks for, with its log; None if it has none."""

    arm: Arm
    log: RunLog | None
    damaged: str = ""  # why an existing log cannot be read

    @property
    def why(self) -> str:
        """Why the run has no log: it is damaged, or the scale leaves it out; empty if neither is known."""
        return self.damaged or self.arm.left_out

    @classmethod
    def of(cls, arm: Arm, scale: Scale) -> Item:
        """Read the run's log, if there is one."""
        try:
            return cls(arm, read_log(run_dir(scale, arm.spec.id), arm.spec))
        except PipelagError as error:
            return cls(arm, None, str(error))
