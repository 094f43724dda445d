"""What a schedule's actions wait for, as arrays: how long each lasts, whose message it needs, over which link."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelag.schedules import Schedule
from pipelag.schedules.table import B, F, R, S, U
from pipelag.timing.costs import StageCost, Topology

NOT_YET, NEVER, ALWAYS, MEETING = -1.0, -3, -2, -1


class Wiring:
    """The actions of a schedule's table, [actions] each.

    cost: where it stands in `seconds` and `message`, which are of every kind and stage: how long it lasts, and how long
    its message is on a free link.
    source: the action whose message it waits for; `ALWAYS`: none, `MEETING`: the other replicas (S), `NEVER`: one that
    nobody performs. link: on which its own message leaves, -1: it sends none to another worker. target: who gets it.
    links: how many there are. forwards: [stages, microbatches], where each forward stands.
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
        """[kinds, stages]: seconds; a gradient is as large as the output that it is of."""
        crossing = [self.topology.seconds(cost.output_bytes) for cost in self.costs]
        outputs, gradients, none = crossing, [0.0, *crossing[:-1]], [0.0] * len(crossing)
        return np.array([outputs, gradients, outputs, none, none])

    def _seconds(self) -> np.ndarray:
        """[kinds, stages]."""
        summing = [
            self.topology.ring_seconds(cost.weight_bytes, max(1, len(workers)))
            for cost, workers in zip(self.costs, self.schedule.replicas, strict=True)
        ]
        recompute = [cost.forward if cost.recompute is None else cost.recompute for cost in self.costs]
        plain = [[getattr(cost, name) for cost in self.costs] for name in ("forward", "backward", "update")]
        return np.array([plain[0], plain[1], recompute, plain[2], summing])

    def _sources(self) -> np.ndarray:
        table, stages = self.table, self.schedule.stages
        source = np.full(len(table), ALWAYS, np.int32)
        source[table.kinds == S] = MEETING

        def wait(of: np.ndarray, places: np.ndarray, step: int) -> None:
            """Let these actions wait for those of the same number `step` stages on."""
            entries = places[table.stages[of] - 1 + step, table.numbers[of]]
            source[of] = np.where(entries < 0, NEVER, entries)

        wait(np.flatnonzero((table.kinds == F) & (table.stages > 1)), self.forwards, -1)
        backwards = table.places(B, self.forwards.shape[1])
        wait(np.flatnonzero((table.kinds == B) & (table.stages < stages)), backwards, 1)
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
        """[kinds, stages]: by how many bytes a forward's or recomputation's start, a backward's end changes memory."""
        activations = np.array([cost.kept_bytes for cost in self.costs])
        before = activations.copy()  # kept from the forward on; where a segment runs again, its input at most
        for kind, stage in self.schedule.owners:
            if kind == "R":
                before[stage - 1] = self.costs[stage - 1].entering_bytes if self.schedule.heads(stage) else 0.0
        return np.array([before, -activations, activations - before])
