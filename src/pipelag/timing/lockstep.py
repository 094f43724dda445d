"""The lockstep clock: all workers begin every time unit together, so that each lasts as long as its longest task.

The papers' diagrams have such a clock (SpecTrain, figure 6): between two of its ticks every GPU does one cell. A
schedule without a clock of its own gets the one of PipeDream's timeline in figure 6a, a pass per unit, so that a batch
takes two units and its forwards are padded to the length of other GPUs' backwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipelag.errors import PipelagError
from pipelag.schedules import Schedule
from pipelag.schedules.actions import Action
from pipelag.timing.costs import StageCost, Topology, check_costs, uniform
from pipelag.timing.timed import Clockwork, Timing, time_schedule


def units_of(schedule: Schedule) -> dict[Action, int]:
    """The time unit of every action: the schedule's own cycle, or else one unit per pass, as early as its order allows.

    An update belongs to the unit of the pass before it.
    """
    if schedule.cycles is not None:
        clocked = zip(schedule.workers, schedule.cycles, strict=True)
        return {action: cycle for row, clock in clocked for action, cycle in zip(row, clock, strict=True)}
    even = time_schedule(schedule, uniform(schedule.stages, 1.0, 1.0))
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

    A unit begins when all tasks of the units before it are done and every message that one of its own tasks needs from
    another unit has arrived. Arguments and errors are those of `time_schedule`; schedules with replicas are refused.
    """
    check_costs(costs, schedule.stages)
    if any(len(workers) > 1 for workers in schedule.replicas):
        raise PipelagError(f"the lockstep clock has one worker per stage; '{schedule.name}' has replicas: time it free")
    return _Lockstep(schedule, costs, topology or Topology(), versions or [1] * schedule.stages).run()


CLOCKS = {"free": time_schedule, "lockstep": time_lockstep}


class _Lockstep(Clockwork):
    """The event loop behind a gate: only tasks of units up to `now_open` may begin."""

    def __init__(
        self, schedule: Schedule, costs: Sequence[StageCost], topology: Topology, versions: Sequence[int]
    ) -> None:
        super().__init__(schedule, costs, topology, versions)
        self.units = units_of(schedule)
        self.undone = Counter(self.units.values())
        self.under_way = Counter(unit for action in self.units if (unit := self.gated_unit(action)) is not None)
        self.now_open, self.last = min(self.undone), max(self.undone)

    def gated_unit(self, action: Action) -> int | None:
        """The unit that cannot begin before this action's message is there; None where it makes no such message."""
        receiver = self.receiver(action)
        if receiver is None or self.at[receiver] == self.at[action] or self.units[receiver] == self.units[action]:
            return None
        return self.units[receiver]

    def start(self, worker: int, now: float) -> None:
        """Begin the worker's next action, where its unit has begun and its input is there."""
        row, place = self.schedule.workers[worker], self.position[worker]
        if place < len(row) and self.units[row[place]] <= self.now_open:
            super().start(worker, now)

    def arrive(self, worker: int, action: Action, now: float) -> None:
        """A message may be the last that a unit waits for."""
        unit = self.gated_unit(action)
        if unit is not None:
            self.under_way[unit] -= 1
        super().arrive(worker, action, now)
        self.open_next(now)

    def finish(self, worker: int, action: Action, now: float) -> None:
        """An action may be its unit's last."""
        self.undone[self.units[action]] -= 1
        super().finish(worker, action, now)
        self.open_next(now)

    def open_next(self, now: float) -> None:
        """Begin the next units whose time has come."""
        before = self.now_open
        while self.now_open < self.last and not self.undone[self.now_open] and not self.under_way[self.now_open + 1]:
            self.now_open += 1
        if self.now_open > before:
            for worker, idle in enumerate(self.idle):
                if idle:
                    self.start(worker, now)
