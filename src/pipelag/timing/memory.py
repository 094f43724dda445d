"""What a pipeline's worker holds at its fullest, by kind (PipeOptim section V-D), and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from pipelag.errors import PipelagError
from pipelag.schedules import Schedule
from pipelag.timing.costs import uniform
from pipelag.timing.timed import time_schedule

MOST = 2**40  # samples of a batch, beyond which nothing is looked for


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one stage's worker.

    weights: the live ones. versions: further copies of them, as `Method.weight_copies` counts (PipeOptim, table II).
    remembered: what the method follows besides the optimizer's state (XPipe's moments over SGD, PipeMare's delta).
    gradients: of the weights. optimizer: its state.
    inputs: the stage's input of every microbatch under way. activations: what the passes keep beyond that, of one
        microbatch where they are computed again, otherwise of all that are under way.
    rings: what this package's executors hold instead of `versions`: they keep the version that is live beside the live
        weights, and what passes read made ready. Not part of the total.
    """

    weights: float
    versions: float
    remembered: float
    gradients: float
    optimizer: float
    inputs: float
    activations: float
    rings: float

    def parts(self, executor: bool = False) -> dict[str, float]:
        """By kind, what adds up to the total.

        Args:
            executor: as the executors here hold it: `rings` for `versions`.
        """
        parts = asdict(self)
        del parts["versions" if executor else "rings"]
        return parts

    def total(self, executor: bool = False) -> float:
        """Bytes in all; see `parts`."""
        return sum(self.parts(executor).values())

    def largest_part(self, executor: bool = False) -> str:
        """The kind that takes most."""
        parts = self.parts(executor)
        return max(parts, key=lambda kind: parts[kind])


def microbatches_under_way(schedule: Schedule) -> list[int]:
    """Per stage, the most microbatches that are between their forward and the end of their backward at any time, on one
    of its replicas where there are some.
    """
    workers = [worker for replicas in schedule.replicas for worker in replicas]
    if len(set(workers)) < len(workers):
        raise PipelagError(
            f"in the schedule '{schedule.name}' a worker has several stages; memory can only be counted with one "
            "stage per worker"
        )
    peaks = time_schedule(schedule, uniform(schedule.stages, kept_bytes=1.0)).peak_memory
    return [round(max(peaks[worker] for worker in replicas)) for replicas in schedule.replicas]


def activations_of(entering: float, inside: float, under_way: int, recompute: bool) -> tuple[float, float]:
    """(`inputs`, `activations`) of a stage in bytes.

    Args:
        entering: its input of one microbatch; inside: what a pass keeps beyond that, its output included.
    """
    return under_way * entering, (1 if recompute else under_way) * inside


def most_that_fit(holds: Callable[[int], float], memory: float) -> int | None:
    """The largest number of samples, exactly, at which `holds(samples)` bytes are at most `memory`.

    0 where not even one fits, None where they fit however many they are. By bisection: more samples must not hold less.
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
