"""The timed executor: how long would a schedule take on another machine?

Every worker performs its actions in order, each as soon as the worker is free and the action's inputs have arrived;
outputs travel over the links of a topology. The times are deterministic and exact: nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pipelag.errors import PipelagError
from pipelag.methods import Method, get
from pipelag.schedules import Schedule
from pipelag.schedules.actions import Action
from pipelag.schedules.table import B, R, U, W
from pipelag.timing.costs import StageCost, Topology, check_costs
from pipelag.timing.events import Clockwork
from pipelag.timing.sweep import Sweep
from pipelag.timing.wiring import Wiring


class Span(NamedTuple):
    """An action on a worker, from `start` to `end` in seconds."""

    worker: int
    action: Action
    start: float
    end: float


class Transfer(NamedTuple):
    """A message between two workers: the output (F) or input gradient (B) of `action`; times in seconds."""

    source: int
    target: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True, eq=False, repr=False)
class Timing:
    """The result of `pipelag.time`: when every action of a schedule runs, and what follows from it.

    Its properties give seconds (`makespan`, `steady_period`, `busy`), shares from 0 to 1 (`utilisation`, `bubble`),
    minibatches per second (`throughput`) and bytes per worker (`peak_memory`).

    Args:
        wiring: of the schedule.
        start, arrival: one entry per action of the schedule's table: the second at which it begins, and the second at
            which its message has arrived.
        weights: bytes that each worker holds all the time.
    """

    wiring: Wiring
    start: np.ndarray
    arrival: np.ndarray
    weights: tuple[float, ...]

    @property
    def schedule(self) -> Schedule:
        """The schedule that was timed."""
        return self.wiring.schedule

    @cached_property
    def end(self) -> np.ndarray:
        """[actions of the schedule's table], the second at which each action ends."""
        return self.start + self.wiring.seconds[self.wiring.cost]

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """All actions in the order in which they begin; updates are included if they take time."""
        table = self.schedule.table
        order = np.lexsort((table.workers, self.start))
        parts = (table.workers[order].tolist(), self.start[order].tolist(), self.end[order].tolist())
        return tuple(
            Span(worker, table.action(at), start, end)
            for at, worker, start, end in zip(order.tolist(), *parts, strict=True)
        )

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All messages that take time, in the order in which they begin."""
        table, wiring = self.schedule.table, self.wiring
        sent = np.flatnonzero((wiring.link >= 0) & (wiring.message[wiring.cost] > 0))
        sent = sent[np.lexsort((self.arrival[sent], wiring.link[sent]))]
        before = np.zeros(len(sent))  # when the previous message on the same link has arrived
        same = wiring.link[sent][1:] == wiring.link[sent][:-1]
        before[1:][same] = self.arrival[sent][:-1][same]
        begin = np.maximum(self.end[sent], before)
        return tuple(
            Transfer(
                int(table.workers[sent[at]]),
                int(wiring.target[sent[at]]),
                table.action(sent[at]),
                float(begin[at]),
                float(self.arrival[sent[at]]),
            )
            for at in np.lexsort((table.workers[sent], begin))
        )

    @cached_property
    def memory(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """Per worker, pairs (second, bytes): when the memory that it holds changes, and how much it then holds."""
        return tuple(tuple(zip([0.0, *times.tolist()], held.tolist(), strict=True)) for times, held in self._memory())

    @cached_property
    def makespan(self) -> float:
        """Seconds from the first action's start to the last one's end."""
        return float(self.end.max() - self.start.min())

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """The seconds that each worker computes."""
        bounds = self.schedule.table.bounds
        lasting = self.end - self.start
        return tuple(float(lasting[a:b].sum()) for a, b in zip(bounds[:-1], bounds[1:], strict=True))

    @property
    def utilisation(self) -> float:
        """Busy seconds over worker seconds, fill and drain included."""
        return sum(self.busy) / (len(self.schedule.workers) * self._some(self.makespan))

    @property
    def bubble(self) -> float:
        """The idle share: 1 - utilisation."""
        return 1 - self.utilisation

    @property
    def steady_period(self) -> float:
        """Seconds per minibatch once the pipeline is full: the mean over the middle half of the run.

        Measured at the first stage's updates, the last actions of a minibatch.
        """
        table = self.schedule.table
        updates = np.flatnonzero((table.kinds == U) & (table.stages == 1))
        of_number = np.full(int(table.numbers[updates].max(initial=-1)) + 1, -1.0)
        of_number[table.numbers[updates]] = self.end[updates]  # one entry for all replicas, which step together
        done = np.sort(of_number[of_number >= 0]).tolist()
        if len(done) < 4:
            return self.makespan / self.schedule.minibatches
        low, high = len(done) // 4, len(done) - 1 - len(done) // 4
        minibatches = self.schedule.periods[0] // self.schedule.microbatches  # per update
        return (done[high] - done[low]) / ((high - low) * minibatches)

    @property
    def throughput(self) -> float:
        """Minibatches per second in the steady state."""
        return 1 / self._some(self.steady_period)

    def _some(self, seconds: float) -> float:
        """These seconds; refuses to divide by zero."""
        if not seconds:
            raise PipelagError(
                f"schedule '{self.schedule.name}' takes no time with these costs, so it has no throughput; give "
                "its stages a forward or a backward above 0"
            )
        return seconds

    @cached_property
    def peak_memory(self) -> tuple[float, ...]:
        """The most bytes that each worker holds at any time."""
        return tuple(float(held.max()) for _, held in self._memory())

    def _memory(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Per worker, the seconds at which its memory changes, and the bytes that it holds at first and after each.

        What another worker's backward releases is released before an action that begins at the same time.
        """
        table, bytes_changed = self.schedule.table, self.wiring.bytes_changed()
        away = np.flatnonzero(table.kinds == B)
        holder = table.workers[self.wiring.forwards[table.stages[away] - 1, table.numbers[away]]]
        elsewhere = holder != table.workers[away]
        away, holder = away[elsewhere], holder[elsewhere]
        for worker, (weights, a, b) in enumerate(zip(self.weights, table.bounds[:-1], table.bounds[1:], strict=True)):
            passes_of_worker = a + np.flatnonzero(table.kinds[a:b] < U)
            passes_of_worker = (
                np.setdiff1d(passes_of_worker, away, assume_unique=True) if len(away) else passes_of_worker
            )
            at = np.concatenate([away[holder == worker], passes_of_worker])
            kinds = table.kinds[at]
            size = bytes_changed[kinds, table.stages[at] - 1]
            when = np.where((kinds == B) | (kinds == W), self.end[at], self.start[at])
            changes = (size != 0) | (kinds == R)
            when, size = when[changes], size[changes]
            order = when.argsort(kind="stable")
            yield when[order], np.cumsum(np.concatenate([[weights], size[order]]))


def time_schedule(
    schedule: Schedule,
    costs: Sequence[StageCost],
    topology: Topology | None = None,
    versions: Sequence[int] | None = None,
) -> Timing:
    """Time a schedule on a machine given by stage costs and links.

    Args:
        costs: one per stage (`Profile.cut`, `uniform`).
        topology: the links; None: messages take no time. The r replicas of a stage sum their gradients in a ring (S),
            in which each sends 2 (r-1)/r of the weights' bytes in 2 (r-1) messages; the sum begins when all are ready.
        versions: how many copies of its weights each stage holds (`weight_versions`); None: one.

    Raises:
        PipelagError: costs for another number of stages, costs without the `weight_gradient` that the schedule needs,
            or a schedule that deadlocks.
    """
    check_costs(costs, schedule.stages)
    wiring = Wiring(schedule, costs, topology or Topology())
    times = Clockwork(wiring).run() if wiring.topology.shared else Sweep(wiring).run()
    return timing_of(wiring, *times, versions=versions)


def timing_of(
    wiring: Wiring, start: np.ndarray, arrival: np.ndarray, begun: Sequence[int], versions: Sequence[int] | None
) -> Timing:
    """The timing that a run of the sweep or the event loop has found.

    Args:
        begun: how many of its actions each worker has begun.

    Raises:
        PipelagError: a deadlock: some worker has not begun all its actions.
    """
    schedule = wiring.schedule
    for worker, (done, row) in enumerate(zip(begun, schedule.workers, strict=True)):
        if done < len(row):
            raise PipelagError(f"schedule '{schedule.name}' deadlocks: worker {worker} waits at {row[done]}")
    weights = [0.0] * len(schedule.workers)
    for cost, copies, workers in zip(wiring.costs, versions or [1] * schedule.stages, schedule.replicas, strict=True):
        for worker in workers:
            weights[worker] += cost.weight_bytes * copies
    return Timing(wiring, start, arrival, tuple(weights))


def weight_versions(method: str | Method, stages: int, microbatches: int = 1) -> tuple[int, ...]:
    """The number of copies of its weights that each stage holds under a method."""
    return get(method).weight_copies(stages, microbatches)
