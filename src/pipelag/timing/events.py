"""The event loop, for what no sweep can tell: who is first on a shared medium, and gates that open for all workers.

Deterministic: equal times are served in the order in which they arise.
"""

from __future__ import annotations

import heapq

import numpy as np

from pipelag.timing.wiring import ALWAYS, MEETING, Wiring

_DONE, _ARRIVED, _FREE = range(3)


class Clockwork:
    """One run. Events: (time, order, what, worker, action) for an action done, its message there, its sender free.

    Actions are places in the schedule's table. A worker performs its own in order, each as soon as it is free and the
    message is there; outputs travel over the links.
    """

    def __init__(self, wiring: Wiring) -> None:
        table = wiring.table
        self.wiring, self.overlap = wiring, wiring.topology.overlap
        self.seconds, self.message = wiring.seconds[wiring.cost].tolist(), wiring.message[wiring.cost].tolist()
        self.source, self.link, self.target = wiring.source.tolist(), wiring.link.tolist(), wiring.target.tolist()
        self.bounds = table.bounds.tolist()
        self.position = self.bounds[:-1]
        self.idle = [True] * table.count
        self.ready: set[int] = set()  # actions whose messages have arrived
        self.last = [0.0] * wiring.links
        self.events: list[tuple[float, int, int, int, int]] = []
        self.order = 0
        self.summing: dict[tuple[int, int], list[int]] = {}  # the replicas that have come to a sum
        self.start_of, self.arrival = np.zeros(len(table)), np.zeros(len(table))

    def push(self, when: float, what: int, worker: int, action: int) -> None:
        """Note an event to come."""
        heapq.heappush(self.events, (when, self.order, what, worker, action))
        self.order += 1

    def run(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Serve all events; returns what `Sweep.run` does."""
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
        begun = [at - first for at, first in zip(self.position, self.bounds, strict=False)]
        return self.start_of, self.arrival, begun

    def start(self, worker: int, now: float) -> None:
        """Begin the worker's next action, where its input has arrived."""
        at = self.position[worker]
        if at == self.bounds[worker + 1]:
            return
        source = self.source[at]
        if source == MEETING:
            self.meet(worker, at, now)
        elif source == ALWAYS or source in self.ready:
            self.begin(worker, at, now)

    def meet(self, worker: int, at: int, now: float) -> None:
        """Come to a sum, which begins when all replicas have."""
        table = self.wiring.table
        stage, number = int(table.stages[at]), int(table.numbers[at])
        come = self.summing.setdefault((stage, number), [])
        if worker not in come:
            come.append(worker)
        if len(come) == len(self.wiring.schedule.replicas[stage - 1]):
            for replica in sorted(self.summing.pop((stage, number))):
                self.begin(replica, self.position[replica], now)

    def begin(self, worker: int, at: int, now: float) -> None:
        """Let a worker perform an action from now on."""
        self.position[worker] += 1
        self.idle[worker] = False
        self.start_of[at] = now
        self.push(now + self.seconds[at], _DONE, worker, at)

    def arrive(self, worker: int, action: int, now: float) -> None:
        """The message that `action` made has reached the worker."""
        self.ready.add(action)
        if self.idle[worker]:
            self.start(worker, now)

    def finish(self, worker: int, action: int, now: float) -> None:
        """An action is done: its message leaves behind those before it on the link, and the worker takes the next."""
        free, link = now, self.link[action]
        if link >= 0:
            self.last[link] = free = max(now, self.last[link]) + self.message[action]
            self.push(free, _ARRIVED, self.target[action], action)
        else:
            self.ready.add(action)
        self.arrival[action] = free
        if free > now and not self.overlap:
            self.push(free, _FREE, worker, action)
        else:
            self.idle[worker] = True
            self.start(worker, now)
