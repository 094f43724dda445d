"""The peak memory of a pipeline's worker, by kind (PipeOptim section V-D), and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np

from pipelag.errors import PipelagError
from pipelag.schedules import Schedule
from pipelag.schedules.table import B, F, W
from pipelag.timing.costs import uniform
from pipelag.timing.timed import time_schedule

MOST = 2**40  # samples; larger batches are not tried


@dataclass(frozen=True)
class StageMemory:
    """Bytes that one stage's worker holds at its peak.

    weights: the live weights.
    versions: further copies of them, as `Method.weight_copies` counts (PipeOptim, table II).
    remembered: state of the method beside the optimizer's (XPipe's moments over SGD, PipeMare's delta).
    gradients: the gradients of the weights.
    optimizer: the optimizer's state.
    inputs: the stage's inputs of all microbatches under way.
    activations: what the passes keep beyond their inputs: of one microbatch with recomputation, otherwise of all that
        are under way, up to the end of W what is kept until then.
    rings: what this package's executors hold in place of `versions`, which includes a copy of the live version and the
        weights that they compute ahead for passes to read. Not part of the total.
    output_gradients: the gradients of outputs that backwards in two parts keep from B to W.
    """

    weights: float
    versions: float
    remembered: float
    gradients: float
    optimizer: float
    inputs: float
    activations: float
    rings: float
    output_gradients: float = 0.0

    def parts(self, executor: bool = False) -> dict[str, float]:
        """The bytes by kind, which add up to the total.

        Args:
            executor: count what this package's executors hold: `rings` in place of `versions`.
        """
        parts = asdict(self)
        del parts["versions" if executor else "rings"]
        return parts

    def total(self, executor: bool = False) -> float:
        """Bytes in all; see `parts`."""
        return sum(self.parts(executor).values())

    def largest_part(self, executor: bool = False) -> str:
        """The kind that takes the most bytes."""
        parts = self.parts(executor)
        return max(parts, key=lambda kind: parts[kind])


def microbatches_under_way(schedule: Schedule) -> list[int]:
    """Per stage, the largest number of microbatches under way at any time, on one replica where the stage has several.

    A microbatch is under way from the start of its forward to the end of its backward, the second part (W) included.

    Raises:
        PipelagError: a worker has several stages.
    """
    workers = [worker for replicas in schedule.replicas for worker in replicas]
    if len(set(workers)) < len(workers):
        raise PipelagError(
            f"in the schedule '{schedule.name}' a worker has several stages; memory can only be counted with one "
            "stage per worker"
        )
    peaks = time_schedule(schedule, uniform(schedule.stages, kept_bytes=1.0)).peak_memory
    return [round(max(peaks[worker] for worker in replicas)) for replicas in schedule.replicas]


def states_by_part(schedule: Schedule) -> list[np.ndarray]:
    """Per worker, the microbatches under way of each of its stages at the same time: [states, 2, stages].

    They are counted apart between F and B, and between B and W. The stages are in the order of the pipeline. The states
    are those right after a forward or the first part of a backward, each once: one of them is the worker's peak,
    whatever a microbatch keeps on a stage, before B and after it. For under way see `microbatches_under_way`.
    """
    table, split, states = schedule.table, np.array(schedule.split), []
    for a, b in pairwise(table.bounds.tolist()):
        kinds, stages = table.kinds[a:b], table.stages[a:b]
        in_parts = split[stages - 1]
        grows = (kinds == F) | ((kinds == B) & in_parts)
        waiting = [(kinds == F) * 1 - (kinds == B), in_parts * ((kinds == B) * 1 - (kinds == W))]
        counts = [
            [np.cumsum(np.where(stages == stage, changes, 0))[grows] for stage in np.unique(stages)]
            for changes in waiting
        ]
        states.append(np.unique(np.array(counts).transpose(2, 0, 1), axis=0))
    return states


def held_at_peak(states: np.ndarray, passes: Sequence[np.ndarray], recompute: bool) -> dict[str, float]:
    """What a worker's passes hold when they hold most: bytes of `inputs`, `activations` and `output_gradients`.

    Args:
        states: one worker's `states_by_part`.
        passes: `Sizes.passes` of its stages.
        recompute: activations are computed again for the backward: of one microbatch, on the largest of the stages.
    """
    sizes = np.stack(passes, axis=1)
    held = np.tensordot(states, sizes, 2)
    if recompute:
        held[:, 1] = sizes[0, :, 1].max()
    most = held[held.sum(axis=1).argmax()].tolist()
    return dict(zip(("inputs", "activations", "output_gradients"), most, strict=True))


def most_that_fit(holds: Callable[[int], float], memory: float) -> int | None:
    """The largest number of samples for which `holds(samples)` bytes are at most `memory`.

    0: not even one sample fits; None: any number fits. Found exactly by bisection, so `holds` must not decrease.
    """
    if holds(1) > memory:
        return 0
    fits, over = 1, 2
    while holds(over) <= memory:
        if over > MOST:
            return None
        fits, over = over, 2 * over
    while over - fits > 1:
        middle = (fits + over) // 2
        fits, over = (middle, over) if holds(middle) <= memory else (fits, middle)
    return fits
