"""Schedules with replicated stages: which replica does what, and when a stage's weights are updated.

In a stage of r replicas, minibatch m goes to replica m mod r for both passes (PipeDream section 3.2). The r minibatches
of a round make one update: their gradients are summed over the replicas (S), and every replica steps by the mean (U),
so that all replicas have equal weights. S and U are numbered by rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from numbers import Integral

from pipelag.errors import PipelagError
from pipelag.schedules.actions import Action, Schedule
from pipelag.schedules.library import one_f_one_b, one_f_one_b_rr


def check_replicas(replicas: Sequence[int], stages: int, minibatches: int) -> None:
    """Refuse replicas that do not fit the stages, and numbers of minibatches that do not make whole rounds."""
    if len(replicas) != stages or not all(isinstance(count, Integral) and count >= 1 for count in replicas):
        raise PipelagError(
            f"replicas is {list(replicas)}; it should give each of the {stages} stages a whole number of workers, 1 "
            "or more"
        )
    rounds = lcm(*replicas)
    if minibatches % rounds:
        nearest = max(rounds, minibatches - minibatches % rounds)
        raise PipelagError(
            f"{minibatches} minibatches do not make whole rounds of the replicas {list(replicas)}, which take turns; "
            f"train {nearest} or {nearest + rounds}"
        )


def one_f_one_b_rounds(stages: int, minibatches: int, replicas: Sequence[int], depth: int | None = None) -> Schedule:
    """1F1B-RR with one update per round, U(stage, round), on every replica of the stage, after S(stage, round)."""
    check_replicas(replicas, stages, minibatches)
    base = one_f_one_b_rr(stages, minibatches, replicas, depth)
    rows = []
    for row in base.workers:
        actions: list[Action] = []
        for action in row:
            if action.kind == "U":
                round_, count = action.number // replicas[action.stage - 1], replicas[action.stage - 1]
                actions += [Action("S", action.stage, round_)] if count > 1 else []
                actions.append(Action("U", action.stage, round_))
            else:
                actions.append(action)
        rows.append(tuple(actions))
    return Schedule("1f1b_rounds", stages, minibatches, tuple(rows))


def dealt(schedule: Schedule, replicas: Sequence[int]) -> Schedule:
    """Replicate the stages of a schedule that has one worker per stage: deal a stage's minibatches to its replicas.

    Every replica keeps its actions in the schedule's order, and a round's update comes where the update of the round's
    last minibatch was. A schedule without deadlocks therefore stays without.

    Raises:
        PipelagError: the schedule gives a worker several stages, or a stage several workers.
    """
    check_replicas(replicas, schedule.stages, schedule.minibatches)
    if any(action.stage != worker + 1 for worker, action in schedule):
        raise PipelagError(
            f"schedule '{schedule.name}' does not give each stage a worker of its own, so its stages cannot be "
            "replicated; leave out the replicas"
        )
    rows: list[tuple[Action, ...]] = []
    clocks: list[tuple[int, ...]] = []
    for worker, (row, count) in enumerate(zip(schedule.workers, replicas, strict=True)):
        clock = schedule.cycles[worker] if schedule.cycles is not None else (0,) * len(row)
        hands: list[list[tuple[Action, int]]] = [[] for _ in range(count)]
        for action, cycle in zip(row, clock, strict=True):
            if action.kind != "U":
                hands[action.number // schedule.microbatches % count].append((action, cycle))
            elif action.number % count == count - 1:
                round_ = action.number // count
                shared = [Action("S", action.stage, round_)] * (count > 1) + [Action("U", action.stage, round_)]
                for hand in hands:
                    hand += [(each, cycle) for each in shared]
        rows += [tuple(action for action, _ in hand) for hand in hands]
        clocks += [tuple(cycle for _, cycle in hand) for hand in hands]
    cycles = tuple(clocks) if schedule.cycles is not None else None
    name, per = schedule.name, schedule.microbatches
    return Schedule(name, schedule.stages, schedule.minibatches, tuple(rows), cycles, per, schedule.segment)


@dataclass(frozen=True)
class Replicated:
    """Builds a method's schedule with replicated stages: 1F1B-RR for 1F1B, `dealt` for all other schedules."""

    build: Callable[..., Schedule]
    replicas: tuple[int, ...]

    @property
    def rounds(self) -> int:
        """The number of minibatches after which every stage has used all of its replicas equally often."""
        return lcm(*self.replicas)

    def __call__(self, stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
        """The schedule; the minibatches must make whole rounds."""
        if self.build is one_f_one_b and microbatches == 1:
            return one_f_one_b_rounds(stages, minibatches, self.replicas)
        options = {"microbatches": microbatches} if microbatches > 1 else {}
        return dealt(self.build(stages, minibatches, **options), self.replicas)
