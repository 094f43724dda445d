"""Checks that a schedule can be executed, by executing it symbolically.

Every worker takes its actions in order, each as soon as its inputs are there.
"""

from __future__ import annotations

from pipelag.errors import PipelagError, expect
from pipelag.schedules.actions import SUCH_AS, Action, Kind, Schedule


def inputs_of(action: Action, schedule: Schedule) -> list[Action]:
    """The actions whose results this action needs."""
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
    if kind == "W":
        return [Action("B", stage, index)]
    if kind in ("S", "U"):
        period = schedule.periods[stage - 1]
        last: Kind = "W" if schedule.splits(stage) else "B"
        gradients = [Action(last, stage, m) for m in range(index * period, (index + 1) * period)]
        if kind == "S":
            return gradients
        before = [Action("U", stage, index - 1)] if index else []
        summing = Action("S", stage, index)
        return gradients + before + [summing] * (("S", stage) in schedule.owners and summing in schedule.places)
    raise PipelagError(f"the action {action} has an unknown kind; the kinds are F, B, R, W, S and U")


def check(schedule: Schedule) -> None:
    """Check that a schedule can be executed: every pass happens once, updates come in order and no worker deadlocks.

    Raises:
        PipelagError: the schedule cannot be executed; the sentence names the action or the workers that wait.
    """
    expect("the schedule", schedule, Schedule, SUCH_AS)
    _check_complete(schedule)
    rows, position = [list(row) for row in schedule.workers], [0] * len(schedule.workers)
    done: set[Action] = set()
    waits: list[list[Action]] = [[] for _ in rows]  # the inputs of each worker's next action, computed once

    def come(worker: int) -> None:
        if position[worker] < len(rows[worker]):
            waits[worker] = inputs_of(rows[worker][position[worker]], schedule)

    def possible(worker: int) -> bool:
        if position[worker] == len(rows[worker]) or not done.issuperset(waits[worker]):
            return False
        action = rows[worker][position[worker]]
        if action.kind == "S":  # the replicas meet: each must have reached this action
            others = schedule.replicas[action.stage - 1]
            return all(position[w] < len(rows[w]) and rows[w][position[w]] == action for w in others)
        return True

    for worker in range(len(rows)):
        come(worker)
    moved = True
    while moved:
        moved = False
        for worker, row in enumerate(rows):
            while possible(worker):
                action, moved = row[position[worker]], True
                for each in schedule.replicas[action.stage - 1] if action.kind == "S" else (worker,):
                    position[each] += 1
                    come(each)
                done.add(action)
    if any(place < len(row) for place, row in zip(position, rows, strict=True)):
        stuck = zip(rows, position, strict=True)
        waiting = ", ".join(f"worker {w} at {row[p]}" for w, (row, p) in enumerate(stuck) if p < len(row))
        raise PipelagError(f"schedule '{schedule.name}' deadlocks: {waiting}")


def _check_complete(schedule: Schedule) -> None:
    """Check that every pass happens once, and every update once on each of its stage's workers."""
    import numpy as np

    from pipelag.schedules.table import KINDS, B, F, U, W

    table, total = schedule.table, schedule.minibatches * schedule.microbatches
    # U and S are performed once by each replica, so the worker belongs to their key.
    keys = np.stack([np.where(table.kinds >= U, table.workers, -1), table.kinds, table.stages, table.numbers])
    order = np.lexsort(keys)
    repeated = order[1:][(keys[:, order[1:]] == keys[:, order[:-1]]).all(axis=0)]
    if len(repeated):
        raise PipelagError(f"schedule '{schedule.name}' performs {table.action(repeated.min())} twice")
    for worker, action in schedule if any(schedule.split) else ():
        if action.kind == "W" and schedule.places.get(action._replace(kind="B"), worker) != worker:
            raise PipelagError(
                f"schedule '{schedule.name}' runs {action} on worker {worker}, but its backward, from which it goes "
                "on, on another; put both on one worker"
            )
    performed = {kind: table.places(kind, total) >= 0 for kind in (F, B, W)}
    here = table.kinds == U
    at, numbers = table.stages[here] - 1, table.numbers[here]
    distinct = np.bincount(np.unique(np.stack([at, numbers]), axis=1)[0], minlength=schedule.stages)
    updating = np.zeros((schedule.stages, total), np.int32)  # how many workers perform each update
    np.add.at(updating, (at[numbers < total], numbers[numbers < total]), 1)
    for stage, workers in enumerate(schedule.replicas, start=1):
        for kind, there in performed.items():
            if kind == W and not schedule.splits(stage):
                continue
            if not there[stage - 1].all():
                raise PipelagError(
                    f"schedule '{schedule.name}' never performs {stage}{KINDS[kind]}{there[stage - 1].argmin()}"
                )
        updates = int(distinct[stage - 1])
        expected = updates if updates and total % updates == 0 else schedule.minibatches
        # With summed gradients every replica updates; without (1F1B-RR as drawn), only the minibatch's own replica.
        least = len(workers) if ("S", stage) in schedule.owners else 1
        lacking = updating[stage - 1, :expected] < max(1, least)
        if lacking.any():
            raise PipelagError(f"schedule '{schedule.name}' never performs {stage}U{lacking.argmax()}")
