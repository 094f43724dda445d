"""ZB-V by formula: two stages per worker in a V, the gradients of weights apart (`pipelag.schedules.zero_bubble.zb_v`).

Worker w of P, from 0, has the stages w+1, on the way down, and 2P-w, on the way up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipelag.methods import Method
from pipelag.schedules.table import KINDS
from pipelag.schedules.zero_bubble import zb_v
from pipelag.timing.costs import StageCost
from pipelag.timing.memory import states_by_part

B, W = KINDS.index("B"), KINDS.index("W")


def in_v(method: Method | None) -> bool:
    """Whether the method has this schedule."""
    return method is not None and method.build is zb_v


def repeating(workers: int, microbatches: int) -> int:
    """As many microbatches as given or, if these are more, as many as leave the rounds of the schedule as they are."""
    return min(microbatches, 4 * workers)


@lru_cache(maxsize=4096)
def kept(workers: int, worker: int, microbatches: int) -> list[tuple[int, ...]]:
    """The microbatches whose activations a worker keeps, of its stage down and of that up: all that may be its peak."""
    states = states_by_part(zb_v(2 * workers, 2, repeating(workers, microbatches)))[worker]
    return [tuple(map(int, state)) for state in np.unique(states.sum(axis=1), axis=0)]


@dataclass(frozen=True)
class Tail:
    """How a worker's minibatch ends.

    down, up: the microbatches whose W on its stage down, and up, follows its last backward.
    backwards, weights: if no W of the stage up does, the B's and W's of the stage down from the last of these on, until
        the last backward, which is one of them.
    """

    down: int
    up: int
    backwards: int
    weights: int


@lru_cache(maxsize=4096)
def tail(workers: int, worker: int, microbatches: int) -> Tail:
    """The end of a worker's minibatch."""
    table = zb_v(2 * workers, 1, repeating(workers, microbatches)).table
    mine = slice(*table.bounds[worker : worker + 2])
    kinds, down = table.kinds[mine], table.stages[mine] == worker + 1
    end = np.flatnonzero(kinds == B)[-1]
    last = np.flatnonzero((kinds == W) & ~down)[-1]  # of the stage up
    between = slice(last, end + 1)
    return Tail(
        int(np.sum(((kinds == W) & down)[end:])),
        int(np.sum(((kinds == W) & ~down)[end:])),
        int(np.sum(((kinds == B) & down)[between])),
        int(np.sum(((kinds == W) & down)[between])),
    )


def seconds(costs: Sequence[StageCost], microbatches: int, message: float) -> float:
    """The seconds per minibatch; exact for equal stages whose W is not the longest pass, and messages of no time.

    For equal passes of a stage, f of them the longer of F and B and b the shorter, and N <= P, it is

        (2P + 2(N-1)) f + 2P b + (1 + max(0, 2N-P)) W,

    as the first microbatch goes down and up, and there and back, and the others follow at the pace of the last worker's
    two stages. With N > P, 2N times b is among them, and max(2P, 2(N-P+1)) times W. A worker never takes less than its
    passes.
    """
    n, workers = microbatches, len(costs) // 2
    pairs = [(costs[worker], costs[-1 - worker]) for worker in range(workers)]
    apart = [sum(cost.weight_gradient or 0.0 for cost in pair) for pair in pairs]
    forward = [sum(cost.forward for cost in pair) for pair in pairs]
    backward = [sum(cost.in_two_parts for cost in pair) - w for pair, w in zip(pairs, apart, strict=True)]
    long, short = sorted((forward, backward), key=sum, reverse=True)
    pace, w = max(*long, 2 * message), max(apart)
    crossing = 4 * (workers - 1) * message
    if n <= workers:
        through = sum(long) + (n - 1) * pace + sum(short) + (1 + max(0, 2 * n - workers)) * w / 2
    else:
        through = sum(long) + (n - 1) * pace + n * max(short) + max(workers, n - workers + 1) * w
    busy = n * max(f + b + w for f, b, w in zip(forward, backward, apart, strict=True))
    return max(through + crossing, busy) + max(sum(cost.update for cost in pair) for pair in pairs)
