"""1F1B-RR with the updates of replicated stages (PipeDream section 3.2): who does what, and which versions it reads.

A stage of r replicas sends minibatch m to replica m mod r, for both passes. Its r minibatches of a round make one
update: their gradients are summed over the replicas (S) and every replica steps by the mean (U), so that all have equal
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from pipelag.errors import PipelagError
from pipelag.schedules.actions import Action, Schedule
from pipelag.schedules.library import one_f_one_b_rr


def check_replicas(replicas: Sequence[int], stages: int, minibatches: int) -> None:
    """Refuse replicas that do not fit the stages, and minibatches that do not make whole rounds."""
    if len(replicas) != stages or min(replicas) < 1:
        raise PipelagError(f"replicas {list(replicas)} must give each of the {stages} stages 1 or more")
    rounds = lcm(*replicas)
    if minibatches % rounds:
        nearest = max(rounds, minibatches - minibatches % rounds)
        raise PipelagError(
            f"{minibatches} minibatches do not make whole rounds of the replicas {list(replicas)}, each of which must "
            f"have its turn; train {nearest} or {nearest + rounds}"
        )


def one_f_one_b_rounds(stages: int, minibatches: int, replicas: Sequence[int]) -> Schedule:
    """1F1B-RR in which U(stage, n) is round n's update, on every replica of the stage, with S(stage, n) before it.

    The number of an S or U is that of a round, not of a minibatch.
    """
    check_replicas(replicas, stages, minibatches)
    base = one_f_one_b_rr(stages, minibatches, replicas)
    rows = []
    for row in base.workers:
        own: list[Action] = []
        for action in row:
            if action.kind == "U":
                round_, count = action.number // replicas[action.stage - 1], replicas[action.stage - 1]
                own += [Action("S", action.stage, round_)] if count > 1 else []
                own.append(Action("U", action.stage, round_))
            else:
                own.append(action)
        rows.append(tuple(own))
    return Schedule("1f1b_rounds", stages, minibatches, tuple(rows))


def versions_read(schedule: Schedule) -> list[list[int]]:
    """Per stage and minibatch: how many updates its replica has made before the forward, in its own order."""
    read = [[0] * schedule.minibatches for _ in range(schedule.stages)]
    for row in schedule.workers:
        done = 0
        for action in row:
            if action.kind == "U":
                done += 1
            elif action.kind == "F":
                read[action.stage - 1][action.number] = done
    return read


def staleness(schedule: Schedule, replicas: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Per stage and place in a round: updates between the weights read and the own update, in the steady state."""
    read = versions_read(schedule)
    lags = []
    for stage, count in enumerate(replicas):
        last = schedule.minibatches // count - 1
        lags.append(tuple(last - read[stage][last * count + place] for place in range(count)))
    return tuple(lags)
