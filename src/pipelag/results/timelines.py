"""What the papers' timelines have in common: reading their logs, drawing one, and asking what a pass reads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pandas as pd

from pipelag.report.timelines import timeline
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, not_logged
from pipelag.results.judging import exact
from pipelag.results.logs import RunLog
from pipelag.results.verdict import Finding, log_of

Row = dict[str, Any]
FOLLOWED = 5  # the minibatch that the papers follow, counted from 1


def passes(log: RunLog, minibatch: int | None = None, kind: str | None = None) -> list[Row]:
    """The passes of a minibatch (from 1) and kind, by stage and time."""
    rows = [
        row
        for row in log.rows
        if row["kind"] in ("F", "B")
        and (minibatch is None or row["minibatch"] == minibatch - 1)
        and (kind is None or row["kind"] == kind)
    ]
    return sorted(rows, key=lambda row: (row["stage"], row["start"]))


def reads_of(log: RunLog, minibatch: int, kind: str) -> list[int]:
    """The version (after how many updates of the stage) that this pass of a minibatch (from 1) reads, per stage."""
    return [row["reads"] for row in passes(log, minibatch, kind)]


def idle_free_from(log: RunLog, start: float, end: float) -> bool:
    """Whether every worker is busy all the time between two moments."""
    for worker in range(log.summary["workers"]):
        busy = sum(
            min(row["end"], end) - max(row["start"], start)
            for row in log.rows
            if row["worker"] == worker and row["kind"] != "send" and row["start"] < end and row["end"] > start
        )
        if busy < end - start - 1e-9:
            return False
    return True


def full_between(log: RunLog) -> tuple[Any, Any]:
    """When a pipeline is full: from the start of the first minibatch's last pass until the last one's first begins."""
    first = min(row["start"] for row in log.rows if row["kind"] == "B" and row["stage"] == 1)
    return first, max(row["start"] for row in log.rows if row["kind"] == "F" and row["stage"] == 1)


def busy_once_full(log: RunLog) -> tuple[bool, float, float]:
    """Whether no worker waits from the first minibatch's return until no more come in; and these two moments."""
    start = min(row["end"] for row in log.rows if row["kind"] == "B" and row["stage"] == 1)
    _, end = full_between(log)
    return idle_free_from(log, start, end), start, end


def under_way(log: RunLog) -> list[int]:
    """The most minibatches of which each stage, in order, keeps activations: from a forward until its backward ends."""
    stages: dict[int, list[tuple[float, int]]] = {}
    for row in passes(log):
        moment = (row["start"], 1) if row["kind"] == "F" else (row["end"], -1)
        stages.setdefault(row["stage"], []).append(moment)
    return [overlapping(moments) for _, moments in sorted(stages.items())]


def overlapping(moments: list[tuple[float, int]]) -> int:
    """The most that is open at a time, of moments that open (+1) or close (-1); of one moment closing comes first."""
    return max(accumulate((change for _, change in sorted(moments)), initial=0))


def at_once(log: RunLog) -> int:
    """The most workers that are busy at a time."""
    moments = [(row["start"], 1) for row in log.rows if row["kind"] != "send"]
    moments += [(row["end"], -1) for row in log.rows if row["kind"] != "send"]
    return overlapping(moments)


def one_at_a_time(context: Context) -> Finding:
    """A judge: never two workers at once."""
    log = log_of(context)
    most = at_once(log)
    return exact(most == 1, f"at most {most} of {log.summary['workers']} are busy at a time")


def draw(
    context: Context,
    *,
    name: str = "worker",
    first: int = 1,
    label: Callable[[Row], str] = lambda row: "",
    follow: int | None = FOLLOWED,
    unit: str = "time (one forward pass = 1)",
    micro: bool = False,
    numbered_from: int = 1,
    since: float = 0.0,
    until: float | None = None,
    **labels: str,
) -> Drawn:
    """The timeline of one run.

    Args:
        name: of a worker; `first`: the number of the first worker.
        label: what a pass of the followed minibatch says of its weights.
        follow: the minibatch drawn strongly, counted from 1 whatever `numbered_from`; none: all.
        micro: number microbatches instead of minibatches.
    """
    log = context.log(**labels)
    if log is None:
        return not_logged()

    def followed(row: Row) -> bool:
        return follow is not None and row["minibatch"] == follow - 1

    figure = timeline(
        log.rows,
        [f"{name} {first + worker}" for worker in range(log.summary["workers"])],
        number=lambda row: str(numbered_from + (row["microbatch"] if micro else row["minibatch"])),
        follow=followed,  # type: ignore[arg-type]
        label=lambda row: label(row) if followed(row) and row["kind"] != "send" else "",  # type: ignore[arg-type]
        unit=unit,
        since=since,
        until=until,
    )
    return Drawn(figure=figure, data=pd.DataFrame(log.rows))
