"""What timelines of all papers share: reading their logs, drawing one, and finding which version a pass reads."""

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
    """The passes of a minibatch (counted from 1) and kind, sorted by stage and time; without these, all passes."""
    rows = [
        row
        for row in log.rows
        if row["kind"] in ("F", "B")
        and (minibatch is None or row["minibatch"] == minibatch - 1)
        and (kind is None or row["kind"] == kind)
    ]
    return sorted(rows, key=lambda row: (row["stage"], row["start"]))


def reads_of(log: RunLog, minibatch: int, kind: str) -> list[int]:
    """The weight version that a minibatch's pass reads on each stage: the number of updates that made it.

    minibatch: counted from 1. kind: "F" or "B".
    """
    return [row["reads"] for row in passes(log, minibatch, kind)]


def idle_free_from(log: RunLog, start: float, end: float) -> bool:
    """Whether every worker is busy all the time from `start` to `end`."""
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
    """The start and end of the time in which the pipeline is full.

    It starts with the first minibatch's last pass, its backward on stage 1, and ends with the first pass of the last
    minibatch.
    """
    first = min(row["start"] for row in log.rows if row["kind"] == "B" and row["stage"] == 1)
    return first, max(row["start"] for row in log.rows if row["kind"] == "F" and row["stage"] == 1)


def busy_once_full(log: RunLog) -> tuple[bool, float, float]:
    """Whether no worker idles while the pipeline is full; and from when until when.

    From the end of the first minibatch's backward on stage 1 until the last minibatch enters.
    """
    start = min(row["end"] for row in log.rows if row["kind"] == "B" and row["stage"] == 1)
    _, end = full_between(log)
    return idle_free_from(log, start, end), start, end


def under_way(log: RunLog) -> list[int]:
    """The greatest number of minibatches whose activations a stage keeps at a time, for each stage in order.

    Activations are kept from the start of a forward until its backward ends, with the gradients of the weights (W)
    where these are computed apart.
    """
    stages: dict[int, list[tuple[float, int]]] = {}
    split = {row["stage"] for row in log.rows if row["kind"] == "W"}
    for row in log.rows:
        if row["kind"] == "F":
            stages.setdefault(row["stage"], []).append((row["start"], 1))
        elif row["kind"] == ("W" if row["stage"] in split else "B"):
            stages.setdefault(row["stage"], []).append((row["end"], -1))
    return [overlapping(moments) for _, moments in sorted(stages.items())]


def overlapping(moments: list[tuple[float, int]]) -> int:
    """The greatest number of intervals that are open at a time.

    moments: (time, +1) opens an interval, (time, -1) closes one; at equal times, closing comes first.
    """
    return max(accumulate((change for _, change in sorted(moments)), initial=0))


def at_once(log: RunLog) -> int:
    """The greatest number of workers that are busy at a time."""
    moments = [(row["start"], 1) for row in log.rows if row["kind"] != "send"]
    moments += [(row["end"], -1) for row in log.rows if row["kind"] != "send"]
    return overlapping(moments)


def one_at_a_time(context: Context) -> Finding:
    """A judge that decides whether never more than one worker is busy at a time."""
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
    """Draw the timeline of one run.

    Args:
        name: the word for a worker; `first`: the number of the first worker.
        label: a note on each pass of the followed minibatch, such as the version that it reads.
        follow: the highlighted minibatch, counted from 1 whatever `numbered_from`; None: all look alike.
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
