"""The lockstep clock: all workers begin every time unit together, so that a unit lasts as long as its longest task.

The papers' diagrams have such a clock (SpecTrain, figure 6): between two ticks every GPU does one cell. A schedule
without a clock of its own gets that of PipeDream's timeline in SpecTrain's figure 6a, with one pass per unit. A
minibatch then takes two units, and forwards are padded to the length of the backwards on other GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipelag.errors import PipelagError
from pipelag.schedules import Schedule
from pipelag.schedules.actions import Action
from pipelag.timing.costs import StageCost, Topology, check_costs, uniform
from pipelag.timing.events import Clockwork
from pipelag.timing.timed import Timing, time_schedule, timing_of
from pipelag.timing.wiring import Wiring


def units_of(schedule: Schedule) -> dict[Action, int]:
    """The time unit of every action: the schedule's own clock, or else one unit per pass, as early as possible.

    An update belongs to the unit of the pass before it.
    """
    if schedule.cycles is not None:
        clocked = zip(schedule.workers, schedule.cycles, strict=True)
        return {action: cycle for row, clock in clocked for action, cycle in zip(row, clock, strict=True)}
    costs = [uniform(1, 1.0, 2.0 if parts else 1.0)[0] for parts in schedule.split]  # B and W are a unit each
    even = time_schedule(schedule, costs)
    begins = {span.action: round(span.start) for span in even.spans}
    units: dict[Action, int] = {}
    for row in schedule.workers:
        unit = 0
        for action in row:
            unit = unit if action.kind == "U" else begins[action]
            units[action] = unit
    return units


def time_lockstep(
    schedule: Schedule,
    costs: Sequence[StageCost],
    topology: Topology | None = None,
    versions: Sequence[int] | None = None,
) -> Timing:
    """Time a schedule whose workers wait for one another after every time unit.

    A unit begins when all tasks of the units before it are done and all messages that its tasks need from other units
    have arrived. Arguments and errors are those of `time_schedule`; schedules with replicas are refused.
    """
    check_costs(costs, schedule.stages)
    if any(len(workers) > 1 for workers in schedule.replicas):
        raise PipelagError(
            f"the lockstep clock needs one worker per stage, but '{schedule.name}' has replicas; use the clock 'free'"
        )
    wiring = Wiring(schedule, costs, topology or Topology())
    return timing_of(wiring, *_Lockstep(wiring).run(), versions=versions)


CLOCKS = {"free": time_schedule, "lockstep": time_lockstep}


class _Lockstep(Clockwork):
    """The event loop behind a gate: only tasks of units up to `now_open` may begin."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__(wiring)
        units = units_of(wiring.schedule)
        self.units = [units[action] for _, action in wiring.schedule]
        self.undone = Counter(self.units)
        self.gated: dict[int, int] = {}  # by action: the unit that waits for its message
        for receiver, source in enumerate(self.source):
            if source >= 0 and self.link[source] >= 0 and self.units[receiver] != self.units[source]:
                self.gated[source] = self.units[receiver]
        self.under_way = Counter(self.gated.values())
        self.now_open, self.last_unit = min(self.undone), max(self.undone)

    def start(self, worker: int, now: float) -> None:
        """Begin the worker's next action if its unit has begun and its input has arrived."""
        at = self.position[worker]
        if at < self.bounds[worker + 1] and self.units[at] <= self.now_open:
            super().start(worker, now)

    def arrive(self, worker: int, action: int, now: float) -> None:
        """Deliver a message; begin the unit that waited only for it."""
        if action in self.gated:
            self.under_way[self.gated[action]] -= 1
        super().arrive(worker, action, now)
        self.open_next(now)

    def finish(self, worker: int, action: int, now: float) -> None:
        """Finish an action; begin the next unit if it was the last of its own."""
        self.undone[self.units[action]] -= 1
        super().finish(worker, action, now)
        self.open_next(now)

    def open_next(self, now: float) -> None:
        """Begin the next units that wait for nothing more."""
        before = self.now_open
        while (
            self.now_open < self.last_unit and not self.undone[self.now_open] and not self.under_way[self.now_open + 1]
        ):
            self.now_open += 1
        if self.now_open > before:
            for worker, idle in enumerate(self.idle):
                if idle:
                    self.start(worker, now)
