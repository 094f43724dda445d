"""Is a schedule possible? Executes it symbolically: every action in its worker's order, once its inputs are there."""

from __future__ import annotations

from pipelag.errors import PipelagError
from pipelag.schedules.actions import Action, Schedule


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
        again = Action("R", stage, index)
        return [again if ("R", stage) in schedule.owners else Action("F", stage, index), *below]
    if kind == "U":
        per = schedule.microbatches
        gradients = [Action("B", stage, m) for m in range(index * per, (index + 1) * per)]
        return gradients + ([Action("U", stage, index - 1)] if index else [])
    raise PipelagError(f"the action {action} has a kind that no executor knows; the kinds are F, B, R and U")


def check(schedule: Schedule) -> None:
    """Raise `PipelagError` unless every pass happens once, updates come in order and no worker waits for ever."""
    flat = [action for _, action in schedule]
    present = set(flat)
    if len(present) != len(flat):
        twice = next(action for action in flat if flat.count(action) > 1)
        raise PipelagError(f"schedule '{schedule.name}' performs {twice} twice")
    total = schedule.minibatches * schedule.microbatches
    for stage in range(1, schedule.stages + 1):
        for kind, count in (("F", total), ("B", total), ("U", schedule.minibatches)):
            for index in range(count):
                if Action(kind, stage, index) not in present:  # type: ignore[arg-type]
                    raise PipelagError(f"schedule '{schedule.name}' never performs {stage}{kind}{index}")
    done: set[Action] = set()
    position = [0] * len(schedule.workers)
    while len(done) < len(flat):
        before = len(done)
        for worker, row in enumerate(schedule.workers):
            while position[worker] < len(row) and done.issuperset(inputs_of(row[position[worker]], schedule)):
                done.add(row[position[worker]])
                position[worker] += 1
        if len(done) == before:
            stuck = zip(schedule.workers, position, strict=True)
            waiting = ", ".join(f"worker {w} at {row[p]}" for w, (row, p) in enumerate(stuck) if p < len(row))
            raise PipelagError(f"schedule '{schedule.name}' deadlocks: {waiting}")
