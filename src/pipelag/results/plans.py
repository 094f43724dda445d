"""Reading the logs of `plan` runs."""

from __future__ import annotations

from typing import Any

from pipelag.results.logs import Context, RunLog
from pipelag.results.verdict import need

Row = dict[str, Any]
READINGS = ("PipeDream", "PipeDream, ring")  # the partitioner by the paper's cost of summing gradients, by a ring's


def planned(log: RunLog | None, name: str) -> Row | None:
    """The row of a plan by name; None where the run or the plan is not logged."""
    if log is None:
        return None
    return next((row for row in log.rows if row["what"] == "plan" and row["plan"] == name), None)


def timed(log: RunLog | None, name: str) -> float | None:
    """A plan's timed seconds per minibatch."""
    row = planned(log, name)
    return row["timed"] if row else None


def ratio(log: RunLog | None, slower: str, faster: str) -> float | None:
    """How many times as fast the second plan is."""
    a, b = timed(log, slower), timed(log, faster)
    return a / b if a is not None and b else None


def needed(log: RunLog | None, slower: str, faster: str, what: str) -> float:
    """`ratio`, for a judge."""
    return need(ratio(log, slower, faster), what)


def planned_gains(log: RunLog | None, what: str) -> list[float]:
    """How many times as fast as data parallelism the plan is, by each of `READINGS`; for a judge."""
    return [needed(log, "data parallel", name, what) for name in READINGS]


def saved(log: RunLog | None, name: str) -> float | None:
    """The share of data parallelism's bytes that a plan does not send."""
    alone, other = planned(log, "data parallel"), planned(log, name)
    return 1 - other["bytes_per_sample"] / alone["bytes_per_sample"] if alone and other else None


def by_model(context: Context, **labels: str) -> dict[str, RunLog]:
    """The logs by model, in the order of the config; models without one are left out."""
    found = {model: context.log(model=model, **labels) for model in context.values("model")}
    return {model: log for model, log in found.items() if log is not None}
