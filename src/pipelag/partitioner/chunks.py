"""Cuts into one stage for each worker or, for interleaved 1F1B, into several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from pipelag.schedules import Schedule
from pipelag.schedules.virtual import Interleaved
from pipelag.timing.costs import Topology
from pipelag.timing.layers import Profile, balanced_cuts, one_stage_more
from pipelag.timing.timed import time_schedule

CHUNKS = (2, 3, 4, 5, 6, 8, 10, 12, 16)  # the numbers of stages per worker that interleaving may have
UNLIKE = 0.5  # what a second of difference between the slowest stages of two parts counts


@lru_cache(maxsize=256)
def cuts_of(
    profile: Profile,
    workers: int,
    chunks: int = 1,
    build: Callable[..., Schedule] | None = None,
    links: Topology | None = None,
) -> tuple[int, ...]:
    """The cuts of a profile into `chunks` stages for each of so many workers, cached.

    One stage: those that make the slowest stage as fast as possible. Several: of such cuts into `chunks` times as many
    stages, of those by `parts` and, over links that take time, of those with the fastest slowest stage or link, the
    cuts that are faster when two groups of microbatches go through the pipeline.

    Args:
        build: a method's, which makes the schedule; None: interleaved 1F1B's.
        links: between the workers; None: messages take no time.
    """
    if chunks == 1:
        return balanced_cuts(profile, workers)
    schedule = (build or Interleaved(chunks))(chunks * workers, 1, microbatches=2 * workers)
    kinds = [balanced_cuts(profile, chunks * workers), parts(profile, workers, chunks)]
    if links is not None:
        both_ways = [2e3 * links.seconds(layer.output_bytes) for layer in profile.layers]
        kinds.append(balanced_cuts(profile, chunks * workers, crossing_ms=both_ways))
    return min(dict.fromkeys(kinds), key=lambda cuts: time_schedule(schedule, profile.cut(cuts), links).makespan)


def parts(profile: Profile, workers: int, chunks: int) -> tuple[int, ...]:
    """Cuts into `chunks` parts, and of each into a stage per worker, with equal work for the workers.

    Cuts that make the slowest of all stages fast may give one worker slow ones and another fast ones. Here the layers
    are divided where a worker's stages take least, if each takes as long as the slowest of its half of the parts; and
    each half is divided likewise. Where the two differ, the schedule waits, so that a difference counts besides.
    """
    if chunks == 1:
        return balanced_cuts(profile, workers)
    layers = profile.layers
    few, many = chunks // 2, chunks - chunks // 2
    times = [layer.total_ms for layer in layers]
    first, second = slowest_of(times, few * workers), slowest_of(times[::-1], many * workers)

    def cost(at: int) -> float:
        a, b = first[at], second[len(layers) - at]
        return few * a + many * b + UNLIKE * abs(a - b)

    at = min(range(few * workers, len(layers) - many * workers + 1), key=cost)
    before = parts(Profile(layers[:at]), workers, few)
    after = parts(Profile(layers[at:]), workers, many)
    return (*before, at, *(at + cut for cut in after))


def slowest_of(times: Sequence[float], stages: int) -> list[float]:
    """For every number of first layers, from 0: the time of the slowest of so many stages, cut to be fastest."""
    until = np.array([0.0, *accumulate(times)])
    best = until
    for number in range(2, stages + 1):
        best, _ = one_stage_more(best, until, number - 1)
    return [float(each) for each in best]
