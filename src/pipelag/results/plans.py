"""Reading the logs of `partition` runs, and judging what they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelag.results.context import Context
from pipelag.results.logs import RunLog
from pipelag.results.verdict import NotLogged, need

Row = dict[str, Any]
# Two costs of summing gradients in the partitioner: the one that PipeDream prints, and a ring's (ambiguity C4). A
# verdict on a plan needs both to agree; one on a plan's speed uses the first and also says what the second gives.
PRINTED, RING = READINGS = ("PipeDream", "PipeDream, ring")
COSTS = {PRINTED: "paper", RING: "ring"}  # as the rows of plans name them
BOTH_COSTS = "where the printed cost and a ring's give different answers, the claim cannot be judged"
ALONE = "data parallel"
SEVERAL, HYBRID = "several stages", "several stages, not pipelined"

SPEED = 1.2
SPEED_WORDS = (
    "within a factor of 1.2: each of the two times may be a tenth off, as far as timed and measured rates are apart"
)
PRINTED_WORDS = "half a unit of the last printed digit"


def planned(log: RunLog | None, name: str) -> Row | None:
    """The row of a plan by name; None if the run or the plan is not logged."""
    if log is None:
        return None
    return next((row for row in log.rows if row["what"] == "plan" and row["plan"] == name), None)


def plan_in(log: RunLog | None, name: str, what: str) -> Row:
    """`planned` for a judge. Raises `NotLogged`, which calls the plan `what`, if there is none."""
    row = planned(log, name)
    if row is None:
        raise NotLogged(f"{what} has no logged value")
    return row


def config_of(log: RunLog | None, name: str) -> str | None:
    """A plan as the paper writes it: "15-1", "straight", "16"."""
    row = planned(log, name)
    return str(row["config"]) if row else None


def timed(log: RunLog | None, name: str) -> float | None:
    """A plan's timed seconds per minibatch."""
    row = planned(log, name)
    return row["timed"] if row else None


def samples_per_second(log: RunLog | None, name: str) -> float | None:
    """A plan's timed throughput."""
    row = planned(log, name)
    return row["samples_per_second"] if row else None


def ratio(log: RunLog | None, slower: str, faster: str) -> float | None:
    """The speedup of the second plan over the first; None if either is not timed."""
    a, b = timed(log, slower), timed(log, faster)
    return a / b if a is not None and b else None


def needed(log: RunLog | None, slower: str, faster: str, what: str) -> float:
    """`ratio` for a judge. Raises `NotLogged`, which calls the speedup `what`, if there is none."""
    return need(ratio(log, slower, faster), what)


def saved(log: RunLog | None, name: str) -> float | None:
    """The share of data parallelism's communicated bytes that a plan saves."""
    alone, other = planned(log, ALONE), planned(log, name)
    return 1 - other["bytes_per_sample"] / alone["bytes_per_sample"] if alone and other else None


def by_model(context: Context, **labels: str) -> dict[str, RunLog]:
    """The logs by model, in the config's order; models without a log are left out."""
    logs = {model: context.log(model=model, **labels) for model in context.values("model")}
    return {model: log for model, log in logs.items() if log is not None}


def near(value: float, printed: float, factor: float = SPEED) -> bool:
    """Whether a speed or another number agrees with a printed one, within a factor."""
    return printed / factor <= value <= printed * factor


def in_words(ratios: Mapping[str, float]) -> str:
    """Speedups or other ratios by name, in words."""
    return ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
