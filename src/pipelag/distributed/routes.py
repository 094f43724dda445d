"""Derive from a schedule which worker sends what to whom: one route per boundary between stages and pair of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelag.errors import PipelagError
from pipelag.schedules import Action, Schedule
from pipelag.schedules.actions import Kind

KINDS: tuple[Kind, ...] = ("F", "B", "R")  # passes whose results go to other workers


@dataclass(frozen=True)
class Route:
    """The messages with a stage's outputs (F), gradients (B) or recomputed outputs (R) from one worker to another.

    count: the number of messages.
    lane: numbers the routes of one kind between two workers. Each has a process group of its own, so that their
        messages cannot be mistaken for one another.
    """

    kind: Kind
    stage: int
    source: int
    target: int
    count: int
    lane: int

    @property
    def name(self) -> str:
        """A name that is unique within a phase."""
        return f"{self.kind}{self.stage}:{self.source}-{self.target}"


def consumer(action: Action, schedule: Schedule) -> Action | None:
    """The pass of a neighbouring stage that takes an action's result; None: no pass does."""
    kind, stage, m = action
    if kind == "F" and stage < schedule.stages:
        return Action("F", stage + 1, m)
    if kind == "B" and stage > 1:
        return Action("B", stage - 1, m)
    if kind == "R" and stage < schedule.stages and not schedule.heads(stage + 1):
        return Action("R", stage + 1, m)
    return None


def routes_of(schedule: Schedule) -> list[Route]:
    """All routes of a schedule, in an order that is the same on every worker.

    Raises:
        PipelagError: a backward on another worker than its forward, or messages that are not received in the order in
            which they are sent.
    """
    sent: dict[tuple[Kind, int, int, int], list[int]] = {}
    for worker, action in schedule:
        if action.kind == "B" and schedule.places[Action("F", action.stage, action.number)] != worker:
            raise PipelagError(
                f"schedule '{schedule.name}' runs {action} on another worker than its forward, whose activations it "
                "needs"
            )
        into = consumer(action, schedule) if action.kind in KINDS else None
        target = worker if into is None else schedule.places[into]
        if target != worker:
            sent.setdefault((action.kind, action.stage, worker, target), []).append(action.number)
    order = {action: at for row in schedule.workers for at, action in enumerate(row)}
    lanes: dict[tuple[Kind, int, int], int] = {}
    routes = []
    for (kind, stage, source, target), numbers in sorted(sent.items()):
        taken = [order[into] for m in numbers if (into := consumer(Action(kind, stage, m), schedule)) is not None]
        if taken != sorted(taken):
            raise PipelagError(
                f"schedule '{schedule.name}' receives the messages of stage {stage} on worker {target} in another "
                f"order than worker {source} sends them; both orders should be the same"
            )
        pair = (kind, min(source, target), max(source, target))
        lane = lanes[pair] = lanes.get(pair, -1) + 1
        routes.append(Route(kind, stage, source, target, len(numbers), lane))
    return routes


def stages_on(schedule: Schedule, worker: int) -> list[int]:
    """The stages whose weights a worker holds."""
    return [stage for stage, workers in enumerate(schedule.replicas, start=1) if worker in workers]


def conversations(routes: Sequence[Route]) -> dict[tuple[Kind, int], set[tuple[int, int]]]:
    """By kind and lane, the pairs of workers that exchange messages."""
    pairs: dict[tuple[Kind, int], set[tuple[int, int]]] = {}
    for route in routes:
        pair = min(route.source, route.target), max(route.source, route.target)
        pairs.setdefault((route.kind, route.lane), set()).add(pair)
    return pairs
