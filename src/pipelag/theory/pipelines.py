"""What a schedule costs in the steady state: utilisation, delays and copies of the weights (PipeMare table 1, A.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipelag.methods import get
from pipelag.schedules import Schedule
from pipelag.schedules.table import F, U
from pipelag.timing.costs import StageCost
from pipelag.timing.timed import Timing, time_schedule


@dataclass(frozen=True)
class Pipeline:
    """A method's pipeline, derived from its schedule.

    utilisation: the busy share of the workers once the pipeline is full, if a forward takes as long as a backward.
    forward_delays, backward_delays: per stage, in updates.
    copies: per stage, how many copies of its weights it holds, including the live ones.
    """

    stages: int
    microbatches: int
    utilisation: float
    forward_delays: tuple[int, ...]
    backward_delays: tuple[int, ...]
    copies: tuple[int, ...]


def pipeline(method: str, stages: int, microbatches: int) -> Pipeline:
    """The pipeline of the method of that name. For the utilisation, its schedule is timed with equal stages."""
    chosen = get(method)
    delays = chosen.delays(stages, microbatches)
    return Pipeline(
        stages,
        microbatches,
        utilisation(chosen.build, stages, microbatches),
        delays.forward,
        delays.backward,
        chosen.weight_copies(stages, microbatches),
    )


@lru_cache(maxsize=64)
def utilisation(build: Callable[..., Schedule], stages: int, microbatches: int) -> float:
    """The utilisation of the schedule that `build` makes; cached, since several methods have the same schedule."""
    fill = -(-2 * stages // microbatches)
    plan = build(stages, fill + 3, microbatches=microbatches)
    return when_full(time_schedule(plan, [StageCost(1.0, 1.0)] * stages))


def when_full(timing: Timing) -> float:
    """The busy share of the workers over whole minibatches, from the first that is done until the last one enters."""
    table = timing.schedule.table
    admitted = timing.start[(table.stages == 1) & (table.kinds == F)].max()
    ends = timing.end[(table.stages == 1) & (table.kinds == U)]
    start, end = ends[ends <= admitted].min(), ends[ends <= admitted].max()
    busy = np.clip(np.minimum(timing.end, end) - np.maximum(timing.start, start), 0.0, None).sum()
    return float(busy / (table.count * (end - start)))
