"""The timed executor: how long would a schedule take on a machine that is not here?

A discrete-event model. Every worker performs its actions in order, each as soon as the worker is free and the inputs
are there; outputs travel over the links of a topology. Deterministic: equal times are served in the order in which they
arise.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipelag.errors import PipelagError
from pipelag.methods import Method, get
from pipelag.schedules import Schedule
from pipelag.schedules.actions import Action
from pipelag.timing.costs import StageCost, Topology, check_costs


class Span(NamedTuple):
    """An action on a worker, from `start` to `end` in seconds."""

    worker: int
    action: Action
    start: float
    end: float


class Transfer(NamedTuple):
    """A message on its way: the output (F) or input gradient (B) of `action`, between two workers."""

    source: int
    target: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timing:
    """What a schedule takes.

    spans, transfers: in the order in which they begin. Updates have spans of their own where they take time.
    memory: per worker, (second, bytes) whenever its activations and weights change; `peak_memory` their maximum.
    """

    schedule: Schedule
    spans: tuple[Span, ...]
    transfers: tuple[Transfer, ...]
    memory: tuple[tuple[tuple[float, float], ...], ...] = field(repr=False)

    @property
    def makespan(self) -> float:
        """Seconds from the first action's start to the last one's end."""
        return max(span.end for span in self.spans) - min(span.start for span in self.spans)

    @property
    def busy(self) -> tuple[float, ...]:
        """Seconds each worker computes."""
        total = [0.0] * len(self.schedule.workers)
        for span in self.spans:
            total[span.worker] += span.end - span.start
        return tuple(total)

    @property
    def utilisation(self) -> float:
        """Busy seconds over worker seconds, fill and drain included."""
        return sum(self.busy) / (len(self.schedule.workers) * self.makespan)

    @property
    def bubble(self) -> float:
        """The idle share: 1 - utilisation."""
        return 1 - self.utilisation

    @property
    def steady_period(self) -> float:
        """Seconds per minibatch once the pipeline is full: the mean over the middle half of the run.

        Counted at the first stage's updates, the last to happen for a minibatch.
        """
        updates = {span.action: span.end for span in self.spans if span.action.kind == "U" and span.action.stage == 1}
        done = sorted(updates.values())  # one for all replicas, which step together
        if len(done) < 4:
            return self.makespan / self.schedule.minibatches
        low, high = len(done) // 4, len(done) - 1 - len(done) // 4
        minibatches = self.schedule.periods[0] // self.schedule.microbatches  # of an update
        return (done[high] - done[low]) / ((high - low) * minibatches)

    @property
    def throughput(self) -> float:
        """Minibatches per second in the steady state."""
        return 1 / self.steady_period

    @property
    def peak_memory(self) -> tuple[float, ...]:
        """Bytes per worker."""
        return tuple(max((size for _, size in row), default=0.0) for row in self.memory)


def time_schedule(
    schedule: Schedule,
    costs: Sequence[StageCost],
    topology: Topology | None = None,
    versions: Sequence[int] | None = None,
) -> Timing:
    """Time a schedule.

    Args:
        costs: one per stage (`Profile.cut`, `uniform`).
        topology: the links; none: messages take no time. Replicas of a stage sum their gradients in a ring (S), in
            which each sends 2 (r-1)/r of the weights' bytes; none begins before all have come to it.
        versions: how many copies of its weights each stage holds (`weight_versions`); none: one.

    Raises:
        PipelagError: costs for another number of stages, or a schedule that deadlocks.
    """
    check_costs(costs, schedule.stages)
    return Clockwork(schedule, costs, topology or Topology(), versions or [1] * schedule.stages).run()


def weight_versions(method: str | Method, stages: int, microbatches: int = 1) -> tuple[int, ...]:
    """The copies of its weights that each stage of a method holds."""
    return get(method).weight_copies(stages, microbatches)


class Clockwork:
    """One run of the event loop. Events: (time, order, worker) for a worker's action done, with its message if any."""

    def __init__(
        self, schedule: Schedule, costs: Sequence[StageCost], topology: Topology, versions: Sequence[int]
    ) -> None:
        self.schedule, self.topology = schedule, topology
        self.seconds = {
            kind: [
                {
                    "F": cost.forward,
                    "B": cost.backward,
                    "R": cost.forward if cost.recompute is None else cost.recompute,
                    "U": cost.update,
                }[kind]
                for cost in costs
            ]
            for kind in "FBRU"
        }
        self.seconds["S"] = [
            topology.seconds(2 * (1 - 1 / max(1, len(workers))) * cost.weight_bytes)
            for cost, workers in zip(costs, schedule.replicas, strict=True)
        ]
        self.output = [topology.seconds(cost.output_bytes) for cost in costs]
        self.kept = [cost.kept_bytes for cost in costs]
        self.before = list(self.kept)  # kept from the forward on; where a segment runs again, its input at most
        for stage in (stage for kind, stage in schedule.owners if kind == "R"):
            self.before[stage - 1] = costs[stage - 1].entering_bytes if schedule.heads(stage) else 0.0
        self.at: dict[Action, int] = {action: worker for worker, action in schedule}
        self.position = [0] * len(schedule.workers)
        self.idle = [True] * len(schedule.workers)
        self.ready: set[Action] = set()  # messages that have arrived, by the action that made them
        self.links: dict[tuple[int, int], float] = {}
        self.events: list[tuple[float, int, int, int, Action]] = []  # time, order, what, worker, action
        self.order = 0
        self.summing: dict[Action, set[int]] = {}  # the replicas that have come to a sum
        self.spans: list[Span] = []
        self.transfers: list[Transfer] = []
        weights = [0.0] * len(schedule.workers)
        for cost, copies, workers in zip(costs, versions, schedule.replicas, strict=True):
            for worker in workers:
                weights[worker] += cost.weight_bytes * copies
        self.held = weights
        self.memory: list[list[tuple[float, float]]] = [[(0.0, size)] for size in weights]

    def push(self, when: float, what: int, worker: int, action: Action) -> None:
        """Note an event to come."""
        heapq.heappush(self.events, (when, self.order, what, worker, action))
        self.order += 1

    def run(self) -> Timing:
        """Serve all events; raises `PipelagError` where some action never gets its turn."""
        for worker in range(len(self.idle)):
            self.start(worker, 0.0)
        while self.events:
            now, _, what, worker, action = heapq.heappop(self.events)
            if what == _ARRIVED:
                self.arrive(worker, action, now)
            elif what == _DONE:
                self.finish(worker, action, now)
            else:  # the worker has sent what it had to, and is free
                self.idle[worker] = True
                self.start(worker, now)
        for worker, row in enumerate(self.schedule.workers):
            if self.position[worker] < len(row):
                raise PipelagError(
                    f"schedule '{self.schedule.name}' deadlocks: worker {worker} waits at {row[self.position[worker]]}"
                )
        memory = tuple(tuple(row) for row in self.memory)
        spans = tuple(sorted(self.spans, key=lambda span: (span.start, span.worker)))
        return Timing(self.schedule, spans, tuple(self.transfers), memory)

    def start(self, worker: int, now: float) -> None:
        """Begin the worker's next action, where its input has arrived."""
        row, place = self.schedule.workers[worker], self.position[worker]
        if place == len(row):
            return
        action = row[place]
        kind, stage, m = action
        if kind == "F" and stage > 1:
            source = Action("F", stage - 1, m)
        elif kind == "B" and stage < self.schedule.stages:
            source = Action("B", stage + 1, m)
        elif kind == "B" and self.at[Action("F", stage, m)] != worker:
            source = Action("F", stage, m)
        elif kind == "R" and not self.schedule.heads(stage):
            source = Action("R", stage - 1, m)
        else:
            source = action  # needs only what this worker itself has done before
        if source is not action and source not in self.ready:
            return
        if kind == "S":
            there = self.summing.setdefault(action, set())
            there.add(worker)
            if len(there) == len(self.schedule.replicas[stage - 1]):
                for replica in sorted(self.summing.pop(action)):
                    self.begin(replica, action, now)
            return
        self.begin(worker, action, now)

    def begin(self, worker: int, action: Action, now: float) -> None:
        """Let a worker perform an action from now on."""
        kind, stage, _ = action
        end = now + self.seconds[kind][stage - 1]
        self.position[worker] += 1
        self.idle[worker] = False
        self.spans.append(Span(worker, action, now, end))
        if kind == "F" and self.before[stage - 1]:
            self.remember(worker, now, self.before[stage - 1])
        if kind == "R":
            self.remember(worker, now, self.kept[stage - 1] - self.before[stage - 1])
        self.push(end, _DONE, worker, action)

    def remember(self, worker: int, now: float, size: float) -> None:
        """Note that a worker holds so many bytes more from now on."""
        self.held[worker] += size
        self.memory[worker].append((now, self.held[worker]))

    def arrive(self, worker: int, action: Action, now: float) -> None:
        """The message that `action` made has reached the worker."""
        self.ready.add(action)
        if self.idle[worker]:
            self.start(worker, now)

    def receiver(self, action: Action) -> Action | None:
        """The action that needs this one's output; None where none on any worker waits for it."""
        kind, stage, m = action
        if kind == "F":
            return Action("F", stage + 1, m) if stage < self.schedule.stages else Action("B", stage, m)
        if kind == "B" and stage > 1:
            return Action("B", stage - 1, m)
        if kind == "R" and Action("R", stage + 1, m) in self.at and not self.schedule.heads(stage + 1):
            return Action("R", stage + 1, m)
        return None

    def finish(self, worker: int, action: Action, now: float) -> None:
        """An action is done: its message leaves, and the worker takes the next."""
        kind, stage, m = action
        free = now
        if kind == "B" and self.kept[stage - 1]:
            self.remember(self.at[Action("F", stage, m)], now, -self.kept[stage - 1])
        target = self.receiver(action)
        if target is not None:
            to = self.at[target]
            if to == worker:
                self.ready.add(action)
            else:
                size = self.output[stage - 2 if kind == "B" else stage - 1]
                free = self.send(worker, to, action, now, size)
        if free > now and not self.topology.overlap:
            self.push(free, _FREE, worker, action)
        else:
            self.idle[worker] = True
            self.start(worker, now)

    def send(self, worker: int, to: int, action: Action, now: float, seconds: float) -> float:
        """Put a message on its link, behind those before it; returns when it has arrived."""
        link = (-1, -1) if self.topology.shared else (worker, to)
        begin = max(now, self.links.get(link, 0.0))
        arrival = begin + seconds
        self.links[link] = arrival
        if seconds:
            self.transfers.append(Transfer(worker, to, action, begin, arrival))
        self.push(arrival, _ARRIVED, to, action)
        return arrival


_DONE, _ARRIVED, _FREE = range(3)
