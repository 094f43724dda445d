"""Staleness, derived from a schedule. The papers' formulas are tests of this module, never its code."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pipelag.errors import PipelagError
from pipelag.schedules.actions import Action, Kind, Schedule

Lags = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Delays:
    """How old the weights are that each pass reads.

    An update of a stage takes a period of microbatches: those of a minibatch, or of a round of its replicas.

    `forward_lags[i][j]`, `backward_lags[i][j]`: the steady state of stage i+1 and of the j-th microbatch of a period:
    how many updates lie between the weights that the pass reads and the update that its own gradient makes (0: none,
    as in ordinary training).
    `forward`, `backward`: the greatest over a period, per stage.
    `entry_lags[i][j]`: the same of the weights that the stage had when the microbatch entered the pipeline, on a clock;
    empty where the schedule has none.
    `beyond[i][j]`: the updates that the stage makes, the one that the microbatch belongs to included, until its
    minibatch's last backward, that of stage 1 (the round trip, SpecTrain section 3.3).
    `forward_versions[i][m]`, `backward_versions[i][m]`: the version that microbatch m reads, fill included; version v
    is the weights after v updates of that stage.
    `places[i][j]`: which of the stage's replicas, from 0, takes the j-th microbatch of a period.
    """

    forward_lags: Lags
    backward_lags: Lags
    forward_versions: Lags
    backward_versions: Lags
    entry_lags: Lags = ()
    beyond: Lags = ()
    places: Lags = ()

    @property
    def forward(self) -> tuple[int, ...]:
        """Per stage, in updates. Of PipeMare's pipeline, its tau_fwd: ceil((2(P-i)+1)/N) (appendix A.1)."""
        return tuple(map(max, self.forward_lags))

    @property
    def backward(self) -> tuple[int, ...]:
        """Per stage, in updates; PipeMare's tau_bkwd."""
        return tuple(map(max, self.backward_lags))

    @property
    def periods(self) -> tuple[int, ...]:
        """Per stage, the microbatches that make an update."""
        return tuple(map(len, self.forward_lags))


def lagged(lags: Lags, microbatches: int) -> Lags:
    """The versions that so many microbatches read whose lags are these: those of the fill stop at version 0."""
    return tuple(tuple(max(0, m // len(stage) - stage[m % len(stage)]) for m in range(microbatches)) for stage in lags)


def update_cycles(schedule: Schedule) -> dict[int, list[int]]:
    """The cycles in which each stage updates; nothing where the schedule has no clock."""
    cycles: dict[int, dict[int, int]] = {}
    for row, clock in zip(schedule.workers, schedule.cycles or (), strict=schedule.cycles is not None):
        for action, cycle in zip(row, clock, strict=True):
            if action.kind == "U":
                cycles.setdefault(action.stage, {})[action.number] = cycle
    return {stage: [of[number] for number in sorted(of)] for stage, of in cycles.items()}


def versions(schedule: Schedule) -> dict[Action, int]:
    """The version of its stage's weights that is live when each F, B and R runs.

    On the worker that also updates the stage, program order decides. On another worker (a clocked schedule only) the
    clock does: an update made in a cycle is seen from the next cycle on (section 3 of the stale-weights paper: the
    registers between accelerators are written at the end of a cycle).
    """
    updates = update_cycles(schedule)
    read: dict[Action, int] = {}
    for stage, workers in enumerate(schedule.replicas, start=1):
        if not workers:
            raise PipelagError(f"schedule '{schedule.name}' never updates stage {stage}; add its U actions")
    for worker, row in enumerate(schedule.workers):
        done = dict.fromkeys(range(1, schedule.stages + 1), 0)
        for position, action in enumerate(row):
            if action.kind == "U":
                done[action.stage] += 1
            elif worker in schedule.replicas[action.stage - 1]:
                if action.kind != "S":
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
    read, stages, periods = versions(schedule), range(1, schedule.stages + 1), schedule.periods
    total = schedule.minibatches * schedule.microbatches

    def table(kind: Kind) -> Lags:
        return tuple(tuple(read[Action(kind, stage, m)] for m in range(total)) for stage in stages)

    forward, backward = table("F"), table("B")
    lags = lags_of(forward, periods), lags_of(backward, periods)
    places = replicas_of(schedule)
    if schedule.cycles is None:
        return Delays(*lags, forward, backward, (), rounds_to_the_end(schedule), places)
    when = {
        action: cycle
        for row, clock in zip(schedule.workers, schedule.cycles, strict=True)
        for action, cycle in zip(row, clock, strict=True)
    }
    updates, per = update_cycles(schedule), schedule.microbatches

    def at(action: Action) -> tuple[int, ...]:
        """The version of each stage at the cycle of an action."""
        return tuple(bisect_left(updates[stage], when[action]) for stage in stages)

    entered = tuple(zip(*(at(Action("F", 1, m)) for m in range(total)), strict=True))
    ended = tuple(zip(*(at(Action("B", 1, (m // per + 1) * per - 1)) for m in range(total)), strict=True))
    beyond = tuple(tuple(-lag for lag in stage) for stage in lags_of(ended, periods, least=True))
    return Delays(*lags, forward, backward, lags_of(entered, periods), beyond, places)


def lags_of(table: Lags, periods: Sequence[int], least: bool = False) -> Lags:
    """From the versions at which microbatches find a stage, how many updates these lack; the most over the periods.

    `least`: the least instead, of versions that may lie beyond.
    """
    pick = min if least else max
    return tuple(
        tuple(pick(m // period - row[m] for m in range(j, len(row), period)) for j in range(period))
        for row, period in zip(table, periods, strict=True)
    )


def replicas_of(schedule: Schedule) -> Lags:
    """`Delays.places`. Raises `PipelagError` where a replica's microbatches are not the same in every period."""
    places = []
    for stage, (period, workers) in enumerate(zip(schedule.periods, schedule.replicas, strict=True), start=1):
        if len(workers) == 1:
            places.append((0,) * period)
            continue
        row = [
            workers.index(schedule.places[Action("F", stage, m)])
            for m in range(schedule.minibatches * schedule.microbatches)
        ]
        if any(place != row[m % period] for m, place in enumerate(row)):
            raise PipelagError(
                f"schedule '{schedule.name}' deals the microbatches of stage {stage} to its replicas in another order "
                "from update to update; let every round be alike"
            )
        places.append(tuple(row[:period]))
    return tuple(places)


def rounds_to_the_end(schedule: Schedule) -> Lags:
    """`Delays.beyond` without a clock: the whole rounds of a stage while its gradient travels on, a stage per pass.

    A round is what the stage's worker does between two updates. For 1F1B that is floor(k/2) on GPU k = 0, 1, ..., as
    SpecTrain's authors port it (ambiguity E1).
    """
    rounds = []
    for stage, period in enumerate(schedule.periods, start=1):
        row = schedule.workers[schedule.replicas[stage - 1][0]]
        passes = sum(action.kind in ("F", "B", "R") for action in row)
        updates = sum((action.kind, action.stage) == ("U", stage) for action in row)
        rounds.append(((stage - 1) * updates // max(1, passes),) * period)
    return tuple(rounds)


@lru_cache(maxsize=256)
def _steady(build: object, stages: int, microbatches: int, rounds: int) -> Delays:
    minibatches = rounds * (-(-2 * stages // microbatches) + 4)  # the fill and some steady state
    options = {"microbatches": microbatches} if microbatches > 1 else {}
    derived = delays(build(stages, minibatches, **options))  # type: ignore[operator]
    for lags, rows in (
        (derived.forward_lags, derived.forward_versions),
        (derived.backward_lags, derived.backward_versions),
    ):
        for stage, (row, expected) in enumerate(
            zip(rows, lagged(lags, minibatches * microbatches), strict=True), start=1
        ):
            steady = row[-1] >= 2  # the fill is over: versions move on with the minibatches
            if not steady or row != expected:
                raise PipelagError(
                    f"stage {stage}: the staleness does not settle to one value over {minibatches} minibatches "
                    f"(versions read: {row}); it should be one for each microbatch of a minibatch"
                )
    return derived


def steady_delays(build: object, stages: int, microbatches: int = 1, rounds: int = 1) -> Delays:
    """The delays of a schedule of any length, from a short one: `build(stages, minibatches)` -> `Schedule`.

    A run of a hundred thousand minibatches needs only this: the j-th microbatch of period t reads version
    max(0, t - lag[j]), which is checked over the fill and some steady state here. With more than one microbatch,
    `build` is given `microbatches=` too. `rounds`: of how many minibatches the schedule is made, no other number.
    """
    return _steady(build, stages, microbatches, rounds)
