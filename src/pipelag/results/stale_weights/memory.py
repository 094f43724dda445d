"""Section 6.7: the share of PipeDream's memory that stale weights save.

The paper does not state its model of memory, so several readings are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelag.results.context import Context
from pipelag.results.logs import RunLog
from pipelag.results.memory import BYTES, MB, kept_copies, per_stage
from pipelag.results.timelines import under_way
from pipelag.results.verdict import log_of


@dataclass(frozen=True)
class Counted:
    """A network's memory per stage.

    weights, activations: MB, the latter of a minibatch's forward. copies, under_way: how many copies of weights, and
    activations of how many minibatches, PipeDream's schedule keeps.
    """

    weights: Sequence[float]
    activations: Sequence[float]
    copies: Sequence[int]
    under_way: Sequence[int]


def counted(log: RunLog, schedule: RunLog) -> Counted:
    """Memory per stage from a network's count log and PipeDream's timeline."""
    cuts, batch = log.summary["cuts"], log.summary["batch"]
    weights, activations = (per_stage(log.rows, cuts, key) for key in ("parameters", "activations"))
    megabytes = [BYTES * w / MB for w in weights], [BYTES * batch * a / MB for a in activations]
    return Counted(*megabytes, schedule.summary["weight_copies"], under_way(schedule))


def held_by_both(each: Counted) -> float:
    """MB that both methods hold: weights, activations with their gradients (as in table 6), and kept activations."""
    extra = kept_copies(len(each.activations))
    return sum(each.weights) + sum(a * (2 + n) for a, n in zip(each.activations, extra, strict=True))


def scheduled(each: Counted) -> float:
    """MB that PipeDream holds by its own schedule: copies of weights, and activations of the minibatches under way."""
    held = zip(each.copies, each.weights, each.under_way, each.activations, strict=True)
    return sum(n * w + a * (1 + m) for n, w, m, a in held)


# By reading: functions for the MB that PipeDream adds and for those that both hold. The first reading was chosen
# because it comes near the printed savings. All but the last give both methods the same activations ("PipeDream saves
# intermediate activations during training, as we do").
SCHEDULED = "the copies and the activations that PipeDream's own schedule keeps; ours holds what table 6 counts"
READINGS: dict[str, tuple[Callable[[Counted], float], Callable[[Counted], float]]] = {
    "a copy of the network per stage, 2(K+1); both hold weights and one minibatch's activations": (
        lambda c: 2 * len(c.weights) * sum(c.weights),
        lambda c: sum(c.weights) + sum(c.activations),
    ),
    "a copy of the network per stage, 2(K+1); both hold what table 6 counts": (
        lambda c: 2 * len(c.weights) * sum(c.weights),
        held_by_both,
    ),
    "a copy of the network per accelerator, K+1; both hold what table 6 counts": (
        lambda c: len(c.weights) * sum(c.weights),
        held_by_both,
    ),
    "the copies that PipeDream's schedule keeps; both hold what table 6 counts": (
        lambda c: sum((n - 1) * w for n, w in zip(c.copies, c.weights, strict=True)),
        held_by_both,
    ),
    SCHEDULED: (lambda c: scheduled(c) - held_by_both(c), held_by_both),
}


def megabytes(context: Context) -> dict[tuple[str, str], tuple[float, float]]:
    """(ours, PipeDream's) in MB by reading and data set; raises `NotLogged` if a count or the schedule is missing."""
    schedule = log_of(context, arm="PipeDream")
    sizes = {}
    for name, (stash, hold) in READINGS.items():
        for line in context.result.reported:
            each = counted(log_of(context, dataset=line["dataset"]), schedule)
            sizes[name, line["dataset"]] = (hold(each), hold(each) + stash(each))
    return sizes


def savings(context: Context) -> dict[tuple[str, str], float]:
    """The percentage of PipeDream's memory that stale weights save, by reading and data set."""
    return {key: 100 * (theirs - ours) / theirs for key, (ours, theirs) in megabytes(context).items()}
