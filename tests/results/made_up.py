"""Logs made in memory, by which tests make a claim true or false; and logs of the runs that need no training.

A judge's case is a function that gives two contexts, one in which the claim holds and one in which it fails:

    @case("stale_weights", "table_2", "four_stage_drops")
    def four_stage_drops() -> Pair:
        return both("stale_weights", "table_2", trained_as({...}), trained_as({...}))

`tests/results/test_judges.py` sees every judge's verdict turn, and fails for a judge without a case. A claim that
rests on several conditions has a `part` for each that its case leaves alone: that one turns the verdict by itself.
"""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelag.experiments import Arm, arms, load_paper, load_scale
from pipelag.results.context import Context
from pipelag.results.logs import Item, RunLog, read_log
from pipelag.runs.folder import digest_of, seal

Make = Callable[[Arm], RunLog | None]
Pair = tuple[Context, Context]  # the claim holds; it fails
Key = tuple[str, str, str]  # paper, result, claim
CASES: dict[Key, Callable[[], Pair]] = {}
PARTS: list[tuple[Key, Callable[[], Pair], bool | None]] = []
OFFICIAL = {"name": "x", "title": "X", "release": "official", "official": True, "note": ""}
NO_TRAINING = ("timeline", "theory", "count", "partition")  # kinds that are carried out for real
SEEDS = (0, 1, 2)


def rewrite(log: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change every line of a finished run's log, as if its run had written it so: its seal follows."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    text = "".join(json.dumps(change(row)) + "\n" for row in rows)
    log.write_text(text)
    summary = log.with_name("summary.json")
    record = json.loads(summary.read_text()) | {"log": seal(text)}
    summary.write_text(json.dumps(record | {"seal": digest_of(record)}))


def case(paper: str, result: str, claim: str) -> Callable[[Callable[[], Pair]], Callable[[], Pair]]:
    """Register how a claim is made true and false."""

    def add(function: Callable[[], Pair]) -> Callable[[], Pair]:
        assert (paper, result, claim) not in CASES, (paper, result, claim)
        CASES[paper, result, claim] = function
        return function

    return add


def part(
    paper: str, result: str, claim: str, becomes: bool | None = False
) -> Callable[[Callable[[], Pair]], Callable[[], Pair]]:
    """Register logs in which a claim holds, and such that one of its conditions alone makes it fail (or None: open)."""

    def add(function: Callable[[], Pair]) -> Callable[[], Pair]:
        PARTS.append(((paper, result, claim), function, becomes))
        return function

    return add


def context(paper: str, result: str, make: Make, scale: str = "paper", seeds: Sequence[int] = SEEDS) -> Context:
    """A result's runs at a scale, with these logs."""
    config = load_paper(paper)
    size = load_scale(scale).model_copy(update={"seeds": list(seeds)})
    items = [Item(arm, make(arm)) for arm in arms(config, result, size)]
    return Context(config, result, config.results[result], size, items)


def both(paper: str, result: str, holds: Make, fails: Make, **how: Any) -> Pair:
    """Two sets of logs for one result."""
    return context(paper, result, holds, **how), context(paper, result, fails, **how)


def log(rows: Sequence[Mapping[str, Any]] = (), **summary: Any) -> RunLog:
    """A finished run's log."""
    return RunLog(Path("results/made-up"), [dict(row) for row in rows], {"status": "finished", **summary}, {})


def curve(final: float, start: float = 10.0, points: int = 20, half: float = 3.0, epochs: float = 200.0) -> list[float]:
    """Accuracies (or BLEU) that rise from `start` to `final`, half of the way in `half` evaluations."""
    return [final - (final - start) * 0.5 ** ((i + 1) / half) for i in range(points - 1)] + [final]


def trained(
    accuracy: float | None = None,
    bleu: float | None = None,
    line: Sequence[float] | None = None,
    diverged_at: int | None = None,
    steps: int = 1000,
    epochs: float = 200.0,
    **summary: Any,
) -> RunLog:
    """A training run that ends with this accuracy or BLEU, along `line` (evaluations at equal distances)."""
    if diverged_at is not None:
        return log(
            [], final=None, best=None, diverged_at=diverged_at, data=OFFICIAL, **{**summary, "status": "diverged"}
        )
    key, value = ("bleu", bleu) if bleu is not None else ("accuracy", accuracy)
    assert value is not None
    values = list(line if line is not None else curve(value, 0.0 if bleu is not None else 10.0))
    rows = []
    for i, point in enumerate(values, start=1):
        share = i / len(values)
        rows.append({"step": round(steps * share), "epoch": epochs * share, "accuracy": point, key: point, "loss": 1.0})
    best = max(rows, key=lambda row: row[key])
    return log(rows, final=rows[-1], best=best, diverged_at=None, data=OFFICIAL, steps=steps, **summary)


def trained_as(values: Mapping[str, Any], by: str = "arm", spread: float = 0.0, **how: Any) -> Make:
    """Training runs whose final accuracy is that of their label `by`; seeds lie `spread` around it.

    A value may be a number (accuracy), a function of the arm that gives a log, a log, or None (no log).
    """

    def make(arm: Arm) -> RunLog | None:
        value = values.get(arm.labels.get(by, ""))
        if value is None or isinstance(value, RunLog):
            return value
        if callable(value):
            return value(arm)
        return trained(value + spread * (arm.seed - 1), **how)

    return make


@functools.cache
def _carried_out(spec_json: str) -> RunLog:
    from pipelag.commands.run import read_spec
    from pipelag.runs.carry_out import carry_out

    with tempfile.TemporaryDirectory(prefix="pipelag-judges-") as folder:
        carry_out(read_spec(spec_json, None), Path(folder), "cpu", 1)
        run = read_log(Path(folder))
    assert run is not None
    return run


def carried_out(arm: Arm) -> RunLog | None:
    """The real log of a run that needs no training; None of the others. Each is made once a session."""
    if arm.spec.kind not in NO_TRAINING:
        return None
    return copy.deepcopy(_carried_out(arm.spec.canonical()))


def altered(change: Callable[[Arm, RunLog], RunLog | None], make: Make = carried_out) -> Make:
    """Logs with something changed in them: `change` gets a copy and returns what to use instead."""

    def changed(arm: Arm) -> RunLog | None:
        run = make(arm)
        return None if run is None else change(arm, copy.deepcopy(run))

    return changed


def with_summary(**entries: Any) -> Callable[[Arm, RunLog], RunLog]:
    """A change of entries of the summary; a function gets the old value."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        new = {k: v(run.summary[k]) if callable(v) else v for k, v in entries.items()}
        return replace(run, summary=run.summary | new)

    return change


def with_rows(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Callable[[Arm, RunLog], RunLog]:
    """A change of every row; None drops it."""

    def changed(arm: Arm, run: RunLog) -> RunLog:
        return replace(run, rows=[new for row in run.rows if (new := change(dict(row))) is not None])

    return changed
