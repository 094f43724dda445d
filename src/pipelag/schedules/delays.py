"""Staleness, derived from a schedule. The papers' formulas are tests of this module, never its code."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pipelag.errors import PipelagError
from pipelag.schedules.actions import Action, Kind, Schedule

Lags = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Delays:
    """How old the weights are that each pass reads.

    `forward_lags[i][j]`, `backward_lags[i][j]`: the steady state of stage i+1 and of the j-th microbatch of a
    minibatch: how many updates lie between the weights that the pass reads and the update that its own gradient makes
    (0: none, as in ordinary training).
    `forward`, `backward`: the greatest over a minibatch's microbatches, per stage.
    `entry_lags[i][j]`: the same of the weights that the stage had when the microbatch entered the pipeline, on a clock;
    empty where the schedule has none.
    `beyond[i]`: the updates that the stage makes, its own for the minibatch included, until the minibatch's last
    backward, that of stage 1 (its round trip, SpecTrain section 3.3).
    `forward_versions[i][m]`, `backward_versions[i][m]`: the version that microbatch m reads, fill included; version v
    is the weights after v updates of that stage.
    """

    forward_lags: Lags
    backward_lags: Lags
    forward_versions: Lags
    backward_versions: Lags
    entry_lags: Lags = ()
    beyond: tuple[int, ...] = ()

    @property
    def forward(self) -> tuple[int, ...]:
        """Per stage, in updates. Of PipeMare's pipeline, its tau_fwd: ceil((2(P-i)+1)/N) (appendix A.1)."""
        return tuple(map(max, self.forward_lags))

    @property
    def backward(self) -> tuple[int, ...]:
        """Per stage, in updates; PipeMare's tau_bkwd."""
        return tuple(map(max, self.backward_lags))


def lagged(lags: Lags, minibatches: int) -> Lags:
    """The versions that microbatches read whose lags are these: those of the fill stop at version 0."""
    return tuple(tuple(max(0, t - lag) for t in range(minibatches) for lag in stage) for stage in lags)


def update_cycles(schedule: Schedule) -> dict[int, list[int]]:
    """The cycles in which each stage updates; nothing where the schedule has no clock."""
    cycles: dict[int, list[int]] = {}
    for row, clock in zip(schedule.workers, schedule.cycles or (), strict=schedule.cycles is not None):
        for action, cycle in zip(row, clock, strict=True):
            if action.kind == "U":
                cycles.setdefault(action.stage, []).append(cycle)
    return cycles


def versions(schedule: Schedule) -> dict[Action, int]:
    """The version of its stage's weights that is live when each F, B and R runs.

    On the worker that also updates the stage, program order decides. On another worker (a clocked schedule only) the
    clock does: an update made in a cycle is seen from the next cycle on (section 3 of the stale-weights paper: the
    registers between accelerators are written at the end of a cycle).
    """
    updates = update_cycles(schedule)
    read: dict[Action, int] = {}
    for worker, row in enumerate(schedule.workers):
        done = dict.fromkeys(range(1, schedule.stages + 1), 0)
        for position, action in enumerate(row):
            if action.kind == "U":
                done[action.stage] += 1
            elif schedule.owners[("U", action.stage)] == worker:
                read[action] = done[action.stage]
            elif schedule.cycles is not None:
                read[action] = bisect_left(updates[action.stage], schedule.cycles[worker][position])
            else:
                raise PipelagError(
                    f"schedule '{schedule.name}' runs {action} on worker {worker} but updates stage {action.stage} on "
                    "another; without a common clock it is undefined which weights are read: put both on one worker"
                )
    return read


def delays(schedule: Schedule) -> Delays:
    """Derive the staleness of every pass from the order of the actions alone."""
    read, stages, per = versions(schedule), range(1, schedule.stages + 1), schedule.microbatches
    total = schedule.minibatches * per

    def table(kind: Kind) -> Lags:
        return tuple(tuple(read[Action(kind, stage, m)] for m in range(total)) for stage in stages)

    forward, backward = table("F"), table("B")
    lags = lags_of(forward, per), lags_of(backward, per)
    if schedule.cycles is None:
        return Delays(*lags, forward, backward, (), rounds_to_the_end(schedule))
    when = {
        action: cycle
        for row, clock in zip(schedule.workers, schedule.cycles, strict=True)
        for action, cycle in zip(row, clock, strict=True)
    }
    updates = update_cycles(schedule)
    entry = tuple(tuple(bisect_left(updates[stage], when[Action("F", 1, m)]) for m in range(total)) for stage in stages)
    return Delays(*lags, forward, backward, lags_of(entry, per), updates_to_the_end(schedule, when, updates))


def lags_of(table: Lags, per: int) -> Lags:
    """From the versions that microbatches read, `per` of them to a minibatch, how many updates they lack."""
    return tuple(tuple(max(m // per - row[m] for m in range(j, len(row), per)) for j in range(per)) for row in table)


def updates_to_the_end(
    schedule: Schedule, when: Mapping[Action, int], updates: Mapping[int, list[int]]
) -> tuple[int, ...]:
    """`Delays.beyond` on a clock: updates by the cycle of a minibatch's last backward, but for those before its own."""
    per = schedule.microbatches
    ends = [when[Action("B", 1, (t + 1) * per - 1)] for t in range(schedule.minibatches)]
    return tuple(
        max(bisect_left(updates[stage], end) - t for t, end in enumerate(ends))
        for stage in range(1, schedule.stages + 1)
    )


def rounds_to_the_end(schedule: Schedule) -> tuple[int, ...]:
    """`Delays.beyond` without a clock: the whole rounds of a stage while its gradient travels on, a stage per pass.

    A round is what the stage's worker does between two updates. For 1F1B that is floor(k/2) on GPU k = 0, 1, ..., as
    SpecTrain's authors port it (ambiguity E1).
    """
    rounds = []
    for stage in range(1, schedule.stages + 1):
        row = schedule.workers[schedule.owners[("U", stage)]]
        passes = sum(action.kind in ("F", "B", "R") for action in row)
        rounds.append((stage - 1) * schedule.minibatches // max(1, passes))
    return tuple(rounds)


@lru_cache(maxsize=256)
def _steady(build: object, stages: int, microbatches: int) -> Delays:
    minibatches = -(-2 * stages // microbatches) + 4
    options = {"microbatches": microbatches} if microbatches > 1 else {}
    derived = delays(build(stages, minibatches, **options))  # type: ignore[operator]
    for lags, rows in (
        (derived.forward_lags, derived.forward_versions),
        (derived.backward_lags, derived.backward_versions),
    ):
        for stage, (row, expected) in enumerate(zip(rows, lagged(lags, minibatches), strict=True), start=1):
            steady = row[-1] >= 2  # the fill is over: versions move on with the minibatches
            if not steady or row != expected:
                raise PipelagError(
                    f"stage {stage}: the staleness does not settle to one value over {minibatches} minibatches "
                    f"(versions read: {row}); such a schedule cannot be simulated by a constant delay"
                )
    return derived


def steady_delays(build: object, stages: int, microbatches: int = 1) -> Delays:
    """The delays of a schedule of any length, from a short one: `build(stages, minibatches)` -> `Schedule`.

    A run of a hundred thousand minibatches needs only this: the j-th microbatch of minibatch t reads version
    max(0, t - lag[j]), which is checked over the fill and some steady state here. With more than one microbatch,
    `build` is given `microbatches=` too.
    """
    return _steady(build, stages, microbatches)
