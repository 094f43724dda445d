"""A minibatch's time in the steady state, and where it goes on each worker (SpecTrain section 4.3, figure 11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipelag.errors import PipelagError
from pipelag.schedules import Schedule
from pipelag.schedules.table import U
from pipelag.timing.costs import StageCost, Topology
from pipelag.timing.lockstep import CLOCKS
from pipelag.timing.timed import Timing

TRIES = 4  # each with four times as many minibatches
MOST = 200_000  # minibatches of a second try and more: replicas may have their turns again after very many
SAME = 1e-9  # how far paces may lie apart, relatively, that are the same but for rounding
NEAR = 1e-3  # and that are told as one where they come no closer


class Unsettled(PipelagError):
    """The pace of a schedule still changes after many minibatches."""


@dataclass(frozen=True)
class Shares:
    """How a minibatch's time divides on one worker; the four add up to 1.

    computing: passes and updates, messages that are under way meanwhile included.
    transfer: the worker is held up by sending, or takes part in summing gradients.
    transfer_idle: it waits because of messages: what the period would lose over links without limits, but for
        `transfer`.
    imbalance_idle: it waits for other reasons, as over links without limits too.
    """

    computing: float
    transfer: float
    transfer_idle: float
    imbalance_idle: float


def shares(period: float, unhindered: float, computing: float, transfer: float = 0.0) -> Shares:
    """Divide a worker's period.

    Args:
        period: seconds per minibatch; unhindered: of the same schedule over links without limits.
        computing, transfer: seconds per minibatch that this worker computes and is held up by sending.
    """
    idle = max(0.0, period - computing - transfer)
    waiting = min(idle, max(0.0, period - unhindered - transfer))
    return Shares(computing / period, transfer / period, waiting / period, (idle - waiting) / period)


def held_by_sending(costs: Sequence[StageCost], topology: Topology) -> list[float]:
    """Seconds per microbatch that each of the stages' workers is held up by what it sends to its neighbours."""
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
    """Seconds that one minibatch more takes, once the pipeline is full.

    Then what is done for one minibatch comes so much later than the same for a minibatch before (or several before:
    over slow links some wait and others do not). Over all passes and updates of as many minibatches as are ever under
    way, the true pace lies between the least and the greatest of these steps (Collatz and Wielandt's bounds, in
    max-plus algebra), and it is not below what the busiest worker computes. So it is known when the two meet. Where a
    stage catches up so slowly that they do not, the greatest step is told if it is too long by `NEAR` at most.

    Args:
        schedule: of so many minibatches.
        clock: "free", every worker goes on as soon as it can; or "lockstep" (`time_lockstep`).
        period: after so many minibatches the same workers have their turns again (of replicas, the least common
            multiple of their numbers). ahead: minibatches under way, where they are more than two per stage.

    Raises:
        Unsettled: a schedule whose pace does not settle.
    """
    emptying = max(2 * -(-len(costs) // schedule(period).microbatches) + 2, ahead, 2 * period if period > 1 else 0)
    count = emptying = -(-emptying // period) * period
    for tried in range(TRIES):
        if tried and 4 * count > MOST:
            break
        count *= 4
        timing = CLOCKS[clock](schedule(count), costs, topology)
        begun = begins(timing, range(count // 2, count - emptying), passes=period > 1)
        times, busiest = begun.reshape(len(begun), -1), max(timing.busy) / count
        pace, apart = float("inf"), float("inf")
        # A few microbatches may keep in step over more minibatches than are under way, up to one per stage; where
        # messages wait for each other, too, up to one per worker and direction of a link.
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
    """When what every stage does for these minibatches begins: a row per pass or update, a column per minibatch.

    passes: without updates, which replicas make once for several minibatches.
    """
    table, per = timing.schedule.table, timing.schedule.microbatches
    passing = table.kinds < U
    minibatch = np.where(passing, table.numbers // per, table.numbers)
    part = np.where(passing, table.numbers % per, 0)
    chosen = np.flatnonzero(
        (minibatch >= minibatches.start) & (minibatch < minibatches.stop) & (passing | (not passes))
    )
    replicas = np.where(passing[chosen], 0, table.workers[chosen])  # each sums and updates by itself
    order = chosen[np.lexsort((minibatch[chosen], replicas, part[chosen], table.stages[chosen], table.kinds[chosen]))]
    return timing.start[order].reshape(-1, len(minibatches))
