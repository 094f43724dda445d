"""Cuts into one stage for each worker, or into two for interleaved 1F1B."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import inf

from pipelag.schedules.virtual import Interleaved
from pipelag.timing.layers import Profile, balanced_cuts
from pipelag.timing.timed import time_schedule

UNLIKE = 0.5  # what a second of difference between the two halves' slowest stages counts


@lru_cache(maxsize=256)
def cuts_of(profile: Profile, workers: int, chunks: int = 1) -> tuple[int, ...]:
    """The cuts of a profile into `chunks` (1 or 2) stages for each of so many workers, cached.

    One stage: those that make the slowest stage as fast as possible. Two: of such cuts into twice as many stages and of
    those by `halves`, the cuts that are faster when two groups of microbatches go through the pipeline.
    """
    if chunks == 1:
        return balanced_cuts(profile, workers)
    schedule = Interleaved(chunks)(chunks * workers, 1, 2 * workers)
    return min(
        (balanced_cuts(profile, chunks * workers), halves(profile, workers)),
        key=lambda cuts: time_schedule(schedule, profile.cut(cuts)).makespan,
    )


def halves(profile: Profile, workers: int) -> tuple[int, ...]:
    """Cuts into two parts, and of each into a stage per worker, with equal work for the workers.

    Cuts that make the slowest of all stages fast may give one worker two slow ones and another two fast ones. Here the
    slowest of the first stages and the slowest of the second take least together. Where their times differ, the
    schedule waits, so that a difference counts besides.
    """
    layers = profile.layers
    times = [layer.total_ms for layer in layers]
    first, second = slowest_of(times, workers), slowest_of(times[::-1], workers)

    def cost(at: int) -> float:
        a, b = first[at], second[len(layers) - at]
        return a + b + UNLIKE * abs(a - b)

    at = min(range(workers, len(layers) - workers + 1), key=cost)
    before, after = (balanced_cuts(Profile(part), workers) for part in (layers[:at], layers[at:]))
    return (*before, at, *(at + cut for cut in after))


def slowest_of(times: Sequence[float], stages: int) -> list[float]:
    """For every number of first layers, from 0: the time of the slowest of so many stages, cut to be fastest."""
    until = [0.0, *accumulate(times)]
    best = until
    for number in range(2, stages + 1):
        best = [
            min((max(best[i], until[j] - until[i]) for i in range(number - 1, j)), default=inf)
            for j in range(len(until))
        ]
    return best
