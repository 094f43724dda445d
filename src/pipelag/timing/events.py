"""The event loop that times a schedule where a sweep (`pipelag.timing.sweep`) cannot.

A sweep cannot tell which worker is first on a shared medium, nor when a gate opens for all workers (lockstep). The loop
is deterministic: events at equal times are served in the order in which they were pushed.
"""

from __future__ import annotations

import heapq

import numpy as np

from pipelag.timing.wiring import ALWAYS, MEETING, Wiring

_DONE, _ARRIVED, _FREE = range(3)


class Clockwork:
    """One run of the event loop over a schedule.

    A worker performs its actions in order, each as soon as the worker is free and the action's message has arrived;
    outputs travel over the links. An event is (time, order, what, worker, action), where `what` says that the action is
    done, that its message has arrived, or that its sender is free again. Actions are numbered by their place in the
    schedule's table.
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
        self.summing: dict[tuple[int, int], list[int]] = {}  # by (stage, number): the replicas that wait for a sum
        self.start_of, self.arrival = np.zeros(len(table)), np.zeros(len(table))

    def push(self, when: float, what: int, worker: int, action: int) -> None:
        """Add a future event."""
        heapq.heappush(self.events, (when, self.order, what, worker, action))
        self.order += 1

    def run(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Serve all events; the result has the form of `Sweep.run`'s."""
        for worker in range(len(self.idle)):
            self.start(worker, 0.0)
        while self.events:
            now, _, what, worker, action = heapq.heappop(self.events)
            if what == _ARRIVED:
                self.arrive(worker, action, now)
            elif what == _DONE:
                self.finish(worker, action, now)
            else:  # the worker has finished sending
                self.idle[worker] = True
                self.start(worker, now)
        begun = [at - first for at, first in zip(self.position, self.bounds, strict=False)]
        return self.start_of, self.arrival, begun

    def start(self, worker: int, now: float) -> None:
        """Begin the worker's next action if its input has arrived."""
        at = self.position[worker]
        if at == self.bounds[worker + 1]:
            return
        source = self.source[at]
        if source == MEETING:
            self.meet(worker, at, now)
        elif source == ALWAYS or source in self.ready:
            self.begin(worker, at, now)

    def meet(self, worker: int, at: int, now: float) -> None:
        """Have a replica wait for its stage's sum of gradients; begin the sum when all replicas wait for it."""
        table = self.wiring.table
        stage, number = int(table.stages[at]), int(table.numbers[at])
        come = self.summing.setdefault((stage, number), [])
        if worker not in come:
            come.append(worker)
        if len(come) == len(self.wiring.schedule.replicas[stage - 1]):
            for replica in sorted(self.summing.pop((stage, number))):
                self.begin(replica, self.position[replica], now)

    def begin(self, worker: int, at: int, now: float) -> None:
        """Have a worker perform an action from now on."""
        self.position[worker] += 1
        self.idle[worker] = False
        self.start_of[at] = now
        self.push(now + self.seconds[at], _DONE, worker, at)

    def arrive(self, worker: int, action: int, now: float) -> None:
        """Deliver the message of `action` to the worker."""
        self.ready.add(action)
        if self.idle[worker]:
            self.start(worker, now)

    def finish(self, worker: int, action: int, now: float) -> None:
        """Finish an action: queue its message on the link, and let the worker go on to its next action."""
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
