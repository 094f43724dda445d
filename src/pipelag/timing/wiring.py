"""A schedule's actions as arrays: how long each takes, whose message it waits for, and the link of its own message."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelag.errors import PipelagError
from pipelag.schedules import Schedule
from pipelag.schedules.table import B, F, R, S, U, W
from pipelag.timing.costs import StageCost, Topology

NOT_YET, NEVER, ALWAYS, MEETING = -1.0, -3, -2, -1


class Wiring:
    """The actions of a schedule's table with their durations and messages; `cost` to `target` are arrays [actions].

    cost: the action's index into `seconds` and `message`, which have an entry for every kind and stage: the seconds
        that the action takes, and that its message takes over a free link.
    source: the action whose message it waits for, or `ALWAYS`: none; `MEETING`: the other replicas (S); `NEVER`: an
        action that no worker performs.
    link: the link of its own message; -1: it sends none to another worker.
    target: the worker that receives the message; -1: none.
    links: the number of links.
    forwards: [stages, microbatches], the place of each forward in the table.
    """

    def __init__(self, schedule: Schedule, costs: Sequence[StageCost], topology: Topology) -> None:
        self.schedule, self.table, self.topology, self.costs = schedule, schedule.table, topology, costs
        self.cost = self.table.kinds.astype(np.int32) * schedule.stages + self.table.stages - 1
        self.seconds, self.message = self._seconds().reshape(-1), self._messages().reshape(-1)
        passes = self.table.numbers[self.table.kinds < U]
        self.forwards = self.table.places(F, int(passes.max(initial=-1)) + 1)
        self.source = self._sources()
        waiting = np.flatnonzero(self.source >= 0)
        sources, receivers = self.source[waiting], self.table.workers[waiting]
        sends = self.table.workers[sources] != receivers
        self.target = np.full(len(self.table), -1, np.int32)
        self.target[sources[sends]] = receivers[sends]
        self.link, self.links = self._links()

    def _messages(self) -> np.ndarray:
        """[kinds, stages]: seconds of a message over a free link; a gradient is as large as the output it is for."""
        crossing = [self.topology.seconds(cost.output_bytes) for cost in self.costs]
        outputs, gradients, none = crossing, [0.0, *crossing[:-1]], [0.0] * len(crossing)
        return np.array([outputs, gradients, outputs, none, none, none])

    def _seconds(self) -> np.ndarray:
        """[kinds, stages]: seconds of an action."""
        summing = [
            self.topology.ring_seconds(cost.weight_bytes, max(1, len(workers)))
            for cost, workers in zip(self.costs, self.schedule.replicas, strict=True)
        ]
        recompute = [cost.forward if cost.recompute is None else cost.recompute for cost in self.costs]
        forward, update = ([getattr(cost, name) for cost in self.costs] for name in ("forward", "update"))
        weights, split = self._weight_gradients(), self.schedule.split
        inputs = [
            cost.in_two_parts - apart if its else cost.backward
            for cost, apart, its in zip(self.costs, weights, split, strict=True)
        ]
        return np.array([forward, inputs, recompute, weights, update, summing])

    def _weight_gradients(self) -> list[float]:
        """Per stage, the seconds of a W action; 0 where the stage has none."""
        seconds = []
        for stage, (cost, split) in enumerate(zip(self.costs, self.schedule.split, strict=True), start=1):
            if split and cost.weight_gradient is None:
                raise PipelagError(
                    f"the schedule '{self.schedule.name}' computes the gradients of stage {stage}'s weights apart from "
                    "the rest of the backward (W), but its cost does not say how long that takes; give the StageCost "
                    "a weight_gradient, or the layers of the profile weight_ms"
                )
            seconds.append((cost.weight_gradient or 0.0) if split else 0.0)
        return seconds

    def _sources(self) -> np.ndarray:
        table, stages = self.table, self.schedule.stages
        source = np.full(len(table), ALWAYS, np.int32)
        source[table.kinds == S] = MEETING
        apart = np.flatnonzero(table.kinds == W)

        def wait(of: np.ndarray, places: np.ndarray, step: int) -> None:
            """Have these actions wait for the actions of the same number, `step` stages further on."""
            entries = places[table.stages[of] - 1 + step, table.numbers[of]]
            source[of] = np.where(entries < 0, NEVER, entries)

        wait(np.flatnonzero((table.kinds == F) & (table.stages > 1)), self.forwards, -1)
        backwards = table.places(B, self.forwards.shape[1])
        wait(np.flatnonzero((table.kinds == B) & (table.stages < stages)), backwards, 1)
        before = backwards[table.stages[apart] - 1, table.numbers[apart]]  # on the same worker, or it can never run
        possible = (before >= 0) & (before < apart) & (table.workers[before] == table.workers[apart])
        source[apart] = np.where(possible, ALWAYS, NEVER)
        last = np.flatnonzero((table.kinds == B) & (table.stages == stages))
        forwards = self.forwards[stages - 1, table.numbers[last]]
        elsewhere = (forwards < 0) | (table.workers[forwards] != table.workers[last])
        wait(last[elsewhere], self.forwards, 0)
        inside = np.array([False, *(not self.schedule.heads(stage) for stage in range(1, stages + 1))])
        recomputations = np.flatnonzero((table.kinds == R) & inside[table.stages])
        wait(recomputations, table.places(R, self.forwards.shape[1]), -1)
        return source

    def _links(self) -> tuple[np.ndarray, int]:
        sends, count = self.target >= 0, self.table.count
        link = np.full(len(self.table), -1, np.int32)
        if self.topology.shared:
            link[sends] = 0
            return link, 1
        pair = self.table.workers[sends].astype(np.int64) * count + self.target[sends]
        used = np.zeros(count * count, dtype=bool)
        used[pair] = True
        link[sends] = (np.cumsum(used, dtype=np.int32) - 1)[pair]
        return link, int(used.sum())

    def bytes_changed(self) -> np.ndarray:
        """[kinds, stages]: the bytes by which memory changes at the start of F and R, and at the end of B and W.

        From the end of B to that of W, a backward in two parts keeps `until_w_bytes`.
        """
        activations = np.array([cost.kept_bytes for cost in self.costs])
        later = np.array([c.kept_bytes if c.until_w_bytes is None else c.until_w_bytes for c in self.costs])
        before = activations.copy()  # kept from the forward on; in a recomputed segment only its input, if anything
        for kind, stage in self.schedule.owners:
            if kind == "R":
                before[stage - 1] = self.costs[stage - 1].entering_bytes if self.schedule.heads(stage) else 0.0
        split = np.array(self.schedule.split)
        ends = [np.where(split, later, 0.0) - activations, np.where(split, -later, 0.0)]
        return np.array([before, ends[0], activations - before, ends[1]])
