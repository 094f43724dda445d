"""Find when every action of a schedule begins, in one sweep over the actions, where each link has one sender.

A worker sends its messages over a link in the order of its own actions. So all that an action waits for is known before
the run: the action before it, one message, and the previous message on the same link. The start of an action is the
longest path to it. While many workers can go on, the sweep performs one action of each at once, with arrays; when they
are few, it takes them one by one, each until a message is missing.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from pipelag.timing.wiring import ALWAYS, MEETING, NOT_YET, Wiring

WIDE = 64  # from this many workers on, arrays are faster than one worker after the other


class Sweep:
    """One run of the sweep over a schedule. All times are in seconds.

    start: [actions], when each action begins.
    there: [actions], when its message has arrived, or when the action ends, if it sends none.
    position: [workers], the action that each worker performs next.
    free: [workers], from when on the worker can perform it.
    last: [links], when the last message has arrived.
    """

    def __init__(self, wiring: Wiring) -> None:
        table = wiring.table
        self.wiring, self.count = wiring, len(table)
        self.start = np.zeros(self.count)
        self.there = np.full(self.count + 3, NOT_YET)
        self.there[ALWAYS] = 0.0  # the entries of NEVER and MEETING beside it stay NOT_YET
        self.position, self.ends = table.bounds[:-1].copy(), table.bounds[1:]
        self.free = np.zeros(table.count)
        self.last = np.zeros(wiring.links + 1)  # the entry after the links is for actions that send nothing
        self.meeting: dict[tuple[int, int], list[int]] = {}  # by (stage, number): the replicas that wait for a sum

    def run(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Run the sweep; returns `start`, `there` and how many of its actions each worker has begun."""
        most = len(self.position) + 1 if (self.wiring.source == MEETING).any() else WIDE
        going = deque(self.ready(MEETING).tolist())
        while going:
            self.one_by_one(going, most)
            if going:
                going = deque(self.all_at_once().tolist())
        return self.start, self.there[: self.count], (self.position - self.wiring.table.bounds[:-1]).tolist()

    def ready(self, also: int | None = None) -> np.ndarray:
        """The workers whose next action's message has arrived, and those whose next action has the source `also`."""
        source = self.wiring.source.take(self.position, mode="clip")  # masked below where a worker is done
        possible = (self.there[source] >= 0) | (source == also)
        return np.flatnonzero(possible & (self.position < self.ends))

    def all_at_once(self) -> np.ndarray:
        """Perform one action of every worker that can go on, repeatedly, while these are many; returns the last few."""
        wiring, there, holds = self.wiring, self.there, not self.wiring.topology.overlap
        while len(here := self.ready()) >= WIDE:
            at = self.position[here]
            now = np.maximum(self.free[here], there[wiring.source[at]])
            self.start[at] = now
            now += wiring.seconds[wiring.cost[at]]
            link = wiring.link[at]
            arrival = np.maximum(self.last[link], now) + np.where(link < 0, 0.0, wiring.message[wiring.cost[at]])
            self.last[link] = there[at] = arrival
            self.last[-1] = 0.0
            self.free[here] = arrival if holds else now
            self.position[here] = at + 1
        return here

    def one_by_one(self, going: deque[int], most: int) -> None:
        """Perform the actions of each of these workers, and of those that it wakes, until it has to wait.

        Stops when no worker can go on, or when `most` workers can.
        """
        wiring, holds = self.wiring, not self.wiring.topology.overlap
        source, links, targets, cost = viewed(wiring.source, wiring.link, wiring.target, wiring.cost)
        start, there, last, position, free = viewed(self.start, self.there, self.last, self.position, self.free)
        seconds, message = wiring.seconds.tolist(), wiring.message.tolist()
        ends, count = self.ends.tolist(), self.count
        while going and len(going) < most:
            worker = going.popleft()
            now, end, at = free[worker], ends[worker], position[worker]
            while at < end:
                when = there[source[at]]
                if when < 0.0:
                    if source[at] != MEETING:
                        break
                    position[worker], free[worker] = at, now
                    if not self.meet(worker, going):
                        break
                    now, at = free[worker], at + 1
                    continue
                if when > now:
                    now = when
                start[at] = now
                now += seconds[cost[at]]
                link = links[at]
                if link < 0:
                    there[at] = now
                else:
                    arrival = last[link]
                    if now > arrival:
                        arrival = now
                    arrival += message[cost[at]]
                    last[link] = there[at] = arrival
                    if holds and arrival > now:
                        now = arrival
                    waiting = position[targets[at]]
                    if waiting < count and source[waiting] == at:
                        going.append(targets[at])
                at += 1
            position[worker], free[worker] = at, now

    def meet(self, worker: int, going: deque[int]) -> bool:
        """Have a replica wait for its stage's sum of gradients; returns whether it was the last, so that all begin."""
        table, at = self.wiring.table, int(self.position[worker])
        stage, number = int(table.stages[at]), int(table.numbers[at])
        come = self.meeting.setdefault((stage, number), [])
        if worker not in come:
            come.append(worker)
        if len(come) < len(self.wiring.schedule.replicas[stage - 1]):
            return False
        now = max(self.free[come])
        for each in self.meeting.pop((stage, number)):
            place = self.position[each]
            self.start[place] = now
            self.there[place] = self.free[each] = now + self.wiring.seconds[self.wiring.cost[place]]
            self.position[each] += 1
            if each != worker:
                going.append(each)
        return True


def viewed(*arrays: Any) -> list[Any]:
    """Views of the arrays that are quicker to read and write one entry at a time."""
    return [memoryview(each) for each in arrays]
