"""Is a schedule possible? Executes it symbolically: every action in its worker's order, once its inputs are there."""

from __future__ import annotations

from pipelag.errors import PipelagError, expect
from pipelag.schedules.actions import SUCH_AS, Action, Kind, Schedule


def inputs_of(action: Action, schedule: Schedule) -> list[Action]:
    """The actions whose results this one needs."""
    kind, stage, index = action
    if kind == "F":
        return [Action("F", stage - 1, index)] if stage > 1 else []
    if kind == "R":
        before = [] if schedule.heads(stage) else [Action("R", stage - 1, index)]
        return [Action("F", stage, index), *before]
    if kind == "B":
        below = [Action("B", stage + 1, index)] if stage < schedule.stages else []
        recomputation = Action("R", stage, index)
        return [recomputation if ("R", stage) in schedule.owners else Action("F", stage, index), *below]
    if kind in ("S", "U"):
        period = schedule.periods[stage - 1]
        gradients = [Action("B", stage, m) for m in range(index * period, (index + 1) * period)]
        if kind == "S":
            return gradients
        before = [Action("S", stage, index), Action("U", stage, index - 1)]
        return gradients + [action for action in before if action in schedule.places]
    raise PipelagError(f"the action {action} has a kind that no executor knows; the kinds are F, B, R, S and U")


def check(schedule: Schedule) -> None:
    """Raise `PipelagError` unless every pass happens once, updates come in order and no worker waits for ever."""
    expect("the schedule", schedule, Schedule, SUCH_AS)
    _check_complete(schedule)
    rows, position = [list(row) for row in schedule.workers], [0] * len(schedule.workers)
    done: set[Action] = set()

    def possible(worker: int) -> bool:
        if position[worker] == len(rows[worker]):
            return False
        action = rows[worker][position[worker]]
        if action.kind == "S":  # the replicas meet: each must have come to it
            others = schedule.replicas[action.stage - 1]
            if any(position[w] == len(rows[w]) or rows[w][position[w]] != action for w in others):
                return False
        return done.issuperset(inputs_of(action, schedule))

    moved = True
    while moved:
        moved = False
        for worker, row in enumerate(rows):
            while possible(worker):
                action, moved = row[position[worker]], True
                for each in schedule.replicas[action.stage - 1] if action.kind == "S" else (worker,):
                    position[each] += 1
                done.add(action)
    if any(place < len(row) for place, row in zip(position, rows, strict=True)):
        stuck = zip(rows, position, strict=True)
        waiting = ", ".join(f"worker {w} at {row[p]}" for w, (row, p) in enumerate(stuck) if p < len(row))
        raise PipelagError(f"schedule '{schedule.name}' deadlocks: {waiting}")


def _check_complete(schedule: Schedule) -> None:
    """Every pass once, every update once on each of the stage's workers."""
    seen: set[tuple[int, Action]] = set()
    updated: dict[int, set[int]] = {}  # by stage
    for worker, action in schedule:
        # What all replicas of a stage do, each does.
        key = (worker if action.kind in ("S", "U") else -1, action)
        if key in seen:
            raise PipelagError(f"schedule '{schedule.name}' performs {action} twice")
        seen.add(key)
        if action.kind == "U":
            updated.setdefault(action.stage, set()).add(action.number)
    total = schedule.minibatches * schedule.microbatches
    for stage in range(1, schedule.stages + 1):
        updates = len(updated.get(stage, ()))
        passes: tuple[Kind, ...] = ("F", "B")
        for kind in passes:
            for index in range(total):
                if Action(kind, stage, index) not in schedule.places:
                    raise PipelagError(f"schedule '{schedule.name}' never performs {stage}{kind}{index}")
        expected = updates if updates and total % updates == 0 else schedule.minibatches
        workers = set(schedule.replicas[stage - 1])
        summed = ("S", stage) in schedule.owners
        for index in range(expected):
            updating = {worker for worker in workers if (worker, Action("U", stage, index)) in seen}
            # Who has gradients summed updates on every replica; else (1F1B-RR as it is drawn) whose minibatch it is.
            if not updating or (summed and updating != workers):
                raise PipelagError(f"schedule '{schedule.name}' never performs {stage}U{index}")
