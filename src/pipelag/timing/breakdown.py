"""A minibatch's time in the steady state, and how each worker spends it (SpecTrain section 4.3, figure 11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipelag.errors import PipelagError
from pipelag.schedules import Schedule
from pipelag.schedules.library import MOST_PASSES
from pipelag.schedules.table import U
from pipelag.timing.costs import StageCost, Topology
from pipelag.timing.lockstep import CLOCKS
from pipelag.timing.timed import Timing

TRIES = 4  # each try times four times as many minibatches as the one before
MOST = 200_000  # the most minibatches of any try but the first, which needs more where the replicas' period is long
SAME = 1e-9  # paces with at most this relative difference are equal up to rounding
NEAR = 1e-3  # the largest relative difference at which a pace is still reported


class Unsettled(PipelagError):
    """The pace of a schedule still changes after many minibatches."""


@dataclass(frozen=True)
class Shares:
    """The shares of a minibatch's time on one worker; the four add up to 1.

    computing: passes and updates, whether or not messages are on their way at the same time.
    transfer: sending, where it holds the worker up, and summing gradients.
    transfer_idle: waiting for messages: the part of the period that unlimited links would save, less `transfer`.
    imbalance_idle: the rest of the waiting, which remains over unlimited links.
    """

    computing: float
    transfer: float
    transfer_idle: float
    imbalance_idle: float


def shares(period: float, unhindered: float, computing: float, transfer: float = 0.0) -> Shares:
    """Divide a worker's period into the shares of computing, transfer and the two kinds of waiting.

    Args:
        period: seconds per minibatch; unhindered: those of the same schedule over unlimited links.
        computing, transfer: seconds per minibatch in which this worker computes, and in which sending holds it up.
    """
    idle = max(0.0, period - computing - transfer)
    waiting = min(idle, max(0.0, period - unhindered - transfer))
    return Shares(computing / period, transfer / period, waiting / period, (idle - waiting) / period)


def held_by_sending(costs: Sequence[StageCost], topology: Topology) -> list[float]:
    """Per stage, the seconds per microbatch in which its worker is held up by sending to its neighbours."""
    if topology.overlap:
        return [0.0] * len(costs)
    crossing = [topology.seconds(cost.output_bytes) for cost in costs[:-1]]
    return [sum(crossing[max(0, number - 1) : number + 1]) for number in range(len(costs))]


def steady_seconds(
    schedule: Callable[[int], Schedule],
    costs: Sequence[StageCost],
    topology: Topology | None = None,
    clock: str = "free",
    period: int = 1,
    ahead: int = 0,
) -> float:
    """The pace of a schedule in seconds per minibatch, once the pipeline is full.

    In the steady state every pass and update of a minibatch begins a constant time, the pace, after that of the
    minibatch before. (Over slow links some minibatches wait and others do not; then the pace is a mean over several.)
    Take these steps over all passes and updates of as many minibatches as are ever under way. The true pace lies
    between the least and the greatest step (Collatz-Wielandt bounds in max-plus algebra), and is at least what the
    busiest worker computes. When the two bounds meet, the pace is known. If a stage catches up so slowly that they do
    not meet, the greatest step is returned, provided that the bounds differ by at most `NEAR`, relatively.

    Args:
        schedule: makes the schedule of a given number of minibatches.
        clock: "free", where every worker goes on as soon as it can, or "lockstep" (`time_lockstep`).
        period: the number of minibatches after which the workers take their turns again (with replicas, the least
            common multiple of their numbers).
        ahead: the number of minibatches under way, where it exceeds two per stage.

    Raises:
        Unsettled: a schedule whose pace does not settle.
    """
    emptying = max(2 * -(-len(costs) // schedule(period).microbatches) + 2, ahead, 2 * period if period > 1 else 0)
    count = emptying = -(-emptying // period) * period
    lanes = len(costs) * schedule(period).microbatches  # the passes of a minibatch, each way
    for tried in range(TRIES):
        if tried and (4 * count > MOST or 4 * count * lanes > MOST_PASSES):
            break
        count *= 4
        timing = CLOCKS[clock](schedule(count), costs, topology)
        begun = begins(timing, range(count // 2, count - emptying), passes=period > 1)
        times, busiest = begun.reshape(len(begun), -1), max(timing.busy) / count
        pace, apart = float("inf"), float("inf")
        # With few microbatches the steady state may repeat only after more minibatches than are under way: up to one
        # per stage, or, where messages also wait for each other, one per worker and per direction of a link.
        few, many = max(emptying // 2, len(costs) + 1), min(3 * len(costs) - 1, times.shape[1] - emptying + 1)
        if period > 1:
            few, many = times.shape[1] // 2 + 1, 0
        for together in (range(period, min(few, times.shape[1]), period), range(few, many)):
            for after in together:
                steps = (times[:, after:] - times[:, :-after]) / after
                most, least = float(steps.max()), max(float(steps.min()), busiest)
                if abs(most - least) < apart:
                    pace, apart = most, abs(most - least)
            if apart <= SAME * pace:
                return pace
    if apart <= NEAR * pace:
        return pace
    raise Unsettled(
        f"the pace of the schedule '{schedule(period).name}' still changes after {count} minibatches, so it has "
        "no steady time per minibatch"
    )


def begins(timing: Timing, minibatches: range, passes: bool = False) -> np.ndarray:
    """The start times of all passes and updates of these minibatches, in seconds.

    Returns an array with a row per pass or update of a minibatch, and a column per minibatch.

    passes: leave out the updates, which replicas make once for several minibatches.
    """
    table, per = timing.schedule.table, timing.schedule.microbatches
    passing = table.kinds < U
    minibatch = np.where(passing, table.numbers // per, table.numbers)
    part = np.where(passing, table.numbers % per, 0)
    chosen = np.flatnonzero(
        (minibatch >= minibatches.start) & (minibatch < minibatches.stop) & (passing | (not passes))
    )
    replicas = np.where(passing[chosen], 0, table.workers[chosen])  # each replica has its own sums and updates
    order = chosen[np.lexsort((minibatch[chosen], replicas, part[chosen], table.stages[chosen], table.kinds[chosen]))]
    return timing.start[order].reshape(-1, len(minibatches))
