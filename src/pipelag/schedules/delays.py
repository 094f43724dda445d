"""Staleness, derived from a schedule. The papers' formulas are tests of this module and not part of its code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from pipelag.errors import PipelagError, expect, kind_of
from pipelag.schedules.actions import SUCH_AS, Action, Schedule
from pipelag.schedules.check import check

if TYPE_CHECKING:
    import numpy as np

Lags = tuple[tuple[int, ...], ...]

# Schedules of up to so many actions are checked by symbolic execution. Longer ones, of hundreds of stages, come from
# our own library, and checking them would take seconds.
CHECKED = 50_000


@dataclass(frozen=True)
class Delays:
    """How stale the weights are that each pass reads.

    A stage makes one update per period. A period is the microbatches of one minibatch or, with replicas, of one round.

    `forward_lags[i][j]`, `backward_lags[i][j]`: in the steady state, for stage i+1 and the j-th microbatch of a period:
        how many updates lie between the weights that the pass reads and the update that its own gradient makes. 0 is
        ordinary training.
    `forward`, `backward`: the largest of these over a period, per stage.
    `entry_lags[i][j]`: the same for the weights that the stage had when the microbatch entered the pipeline. Empty if
        the schedule has no clock.
    `beyond[i][j]`: how many updates the stage makes, the microbatch's own included, until the last backward of its
        minibatch on stage 1 (the round trip, SpecTrain section 3.3).
    `forward_versions[i][m]`, `backward_versions[i][m]`: the version that microbatch m reads, from the start of the fill
        on. Version v is the weights after v updates of that stage.
    `places[i][j]`: which replica of the stage, from 0, takes the j-th microbatch of a period.
    """

    forward_lags: Lags
    backward_lags: Lags
    forward_versions: Lags
    backward_versions: Lags
    entry_lags: Lags = ()
    beyond: Lags = ()
    places: Lags = ()

    @cached_property
    def forward(self) -> tuple[int, ...]:
        """Per stage, in updates; in PipeMare's pipeline its tau_fwd, ceil((2(P-i)+1)/N) (appendix A.1)."""
        return tuple(map(max, self.forward_lags))

    @cached_property
    def backward(self) -> tuple[int, ...]:
        """Per stage, in updates; in PipeMare's pipeline its tau_bkwd."""
        return tuple(map(max, self.backward_lags))

    @cached_property
    def periods(self) -> tuple[int, ...]:
        """Per stage, the microbatches that make an update."""
        return tuple(map(len, self.forward_lags))


def lagged(lags: Lags, microbatches: int) -> Lags:
    """Per stage, the versions that the first `microbatches` microbatches read, given the lags; none is below 0."""
    import numpy as np

    every, rows = np.arange(microbatches), []
    for stage in lags:
        read = every // len(stage) - np.resize(np.array(stage), microbatches)
        rows.append(tuple(np.maximum(0, read).tolist()))
    return tuple(rows)


def update_cycles(schedule: Schedule) -> dict[int, list[int]]:
    """Stage -> the cycles in which it updates; empty if the schedule has no clock."""
    from pipelag.schedules.table import U

    if schedule.cycles is None:
        return {}
    table = schedule.table
    length = int(table.numbers[table.kinds == U].max(initial=-1)) + 1
    cycles = enumerate(table.places(U, length, clock_of(schedule)), start=1)
    return {stage: row[row >= 0].tolist() for stage, row in cycles if (row >= 0).any()}


def clock_of(schedule: Schedule) -> np.ndarray:
    """[actions]: the cycle of each action, in the order of the schedule's table."""
    import numpy as np

    from pipelag.schedules.table import Cycles

    rows = [row.values if isinstance(row, Cycles) else np.array(row, dtype=np.int32) for row in schedule.cycles or ()]
    if list(map(len, rows)) != list(map(len, schedule.workers)):
        raise PipelagError(f"schedule '{schedule.name}' should give every action a cycle, but does not")
    return np.concatenate(rows)


def versions(schedule: Schedule) -> dict[Action, int]:
    """F, B, R or W action -> the version of its stage's weights that is live when it runs; see `versions_read`."""
    read = enumerate(versions_read(schedule).tolist())
    return {schedule.table.action(at): version for at, version in read if version >= 0}


def versions_read(schedule: Schedule) -> np.ndarray:
    """[actions]: the version of its stage's weights that is live when each F, B, R and W runs; -1 for U and S.

    If the worker that runs a pass also updates its stage, the order of its actions decides. Otherwise (only in a
    schedule with a clock) the clock decides: an update made in one cycle is seen from the next cycle on, since the
    registers between accelerators are written at the end of a cycle (stale-weights paper, section 3).
    """
    import numpy as np

    from pipelag.schedules.table import U

    for stage, workers in enumerate(schedule.replicas, start=1):
        if not workers:
            raise PipelagError(f"schedule '{schedule.name}' never updates stage {stage}; add its U actions")
    table, cycles = schedule.table, update_cycles(schedule)
    clock = clock_of(schedule) if schedule.cycles is not None else None
    read = np.full(len(table), -1, np.int32)
    for worker, (a, b) in enumerate(zip(table.bounds[:-1], table.bounds[1:], strict=True)):
        stages, kinds = table.stages[a:b], table.kinds[a:b]
        passes = kinds < U
        for stage in np.flatnonzero(table.tally[worker, :U].any(axis=0)).tolist():
            mine = np.flatnonzero(passes & (stages == stage))
            if worker in schedule.replicas[stage - 1]:
                read[a + mine] = np.cumsum((kinds == U) & (stages == stage))[mine]
            elif clock is not None:
                read[a + mine] = np.searchsorted(cycles[stage], clock[a + mine])
            else:
                action = table.action(a + mine[0])
                raise PipelagError(
                    f"schedule '{schedule.name}' runs {action} on worker {worker} but updates stage {action.stage} on "
                    "another worker; without a common clock it is undefined which weights are read, so put both on "
                    "one worker"
                )
    return read


def delays(schedule: Schedule) -> Delays:
    """Derive from the order of a schedule's actions how stale the weights of every pass are.

    Returns:
        `Delays`: in updates, per stage (`forward`, `backward`) and per microbatch (`forward_lags`, ...).

    Raises:
        PipelagError: the argument is not a schedule; a pass or the updates of a stage are missing; an update lies
            between the two parts of a backward (B and W); or a schedule without a clock updates a stage on another
            worker than runs its passes.
    """
    import numpy as np

    from pipelag.schedules.table import B, F, W

    expect("the schedule", schedule, Schedule, SUCH_AS)
    table, read, periods = schedule.table, versions_read(schedule), schedule.periods
    total, per = schedule.minibatches * schedule.microbatches, schedule.microbatches
    forward, backward = table.places(F, total, read), table.places(B, total, read)
    for kind, rows in (("F", forward), ("B", backward)):
        if (rows < 0).any():
            stage, m = np.argwhere(rows < 0)[0].tolist()
            raise PipelagError(f"schedule '{schedule.name}' never performs {stage + 1}{kind}{m}")
    apart = table.places(W, total, read) if any(schedule.split) else backward
    if ((apart >= 0) & (apart != backward)).any():
        stage, m = np.argwhere((apart >= 0) & (apart != backward))[0].tolist()
        raise PipelagError(
            f"schedule '{schedule.name}' updates stage {stage + 1} between {stage + 1}B{m} and {stage + 1}W{m}, which "
            "belong to one backward and read one version of the weights; put the update before both or after both"
        )
    lags_and_versions = lags_of(forward, periods), lags_of(backward, periods), tuples(forward), tuples(backward)
    places = replicas_of(schedule)
    if schedule.cycles is None:
        return Delays(*lags_and_versions, (), rounds_to_the_end(schedule), places)
    clock, updates = clock_of(schedule), update_cycles(schedule)

    def live(cycles: np.ndarray) -> np.ndarray:
        """[stages, microbatches]: the live version of each stage in these cycles."""
        return np.array([np.searchsorted(updates[stage], cycles) for stage in range(1, schedule.stages + 1)])

    last = np.arange(total) // per * per + per - 1  # the last microbatch of each microbatch's minibatch
    entered = live(table.places(F, total, clock)[0])
    ended = live(table.places(B, total, clock)[0][last])
    beyond = tuple(tuple(-lag for lag in stage) for stage in lags_of(ended, periods, least=True))
    return Delays(*lags_and_versions, lags_of(entered, periods), beyond, places)


def tuples(table: np.ndarray) -> Lags:
    """The rows of a table as tuples."""
    return tuple(tuple(row.tolist()) for row in table)


def lags_of(table: np.ndarray, periods: Sequence[int], least: bool = False) -> Lags:
    """Per stage and microbatch of a period, how many updates the versions lack: the largest number over all periods.

    Args:
        table: versions, [stages, microbatches].
        least: the smallest number instead, for versions that may be newer than the microbatch's own update.
    """
    import numpy as np

    lags, every = [], np.arange(table.shape[1])
    for row, period in zip(table, periods, strict=True):
        lack = (every // period - row).reshape(-1, period)
        lags.append(tuple((lack.min(0) if least else lack.max(0)).tolist()))
    return tuple(lags)


def replicas_of(schedule: Schedule) -> Lags:
    """`Delays.places`. Raises `PipelagError` if replicas do not take the same microbatches in every period."""
    places: list[tuple[int, ...]] = []
    if all(len(workers) == 1 for workers in schedule.replicas):
        return tuple((0,) * period for period in schedule.periods)
    from pipelag.schedules.table import F

    total = schedule.minibatches * schedule.microbatches
    holders = schedule.table.places(F, total, schedule.table.workers)
    for stage, (period, workers) in enumerate(zip(schedule.periods, schedule.replicas, strict=True), start=1):
        if len(workers) == 1:
            places.append((0,) * period)
            continue
        row = [workers.index(holder) for holder in holders[stage - 1].tolist()]
        if any(place != row[m % period] for m, place in enumerate(row)):
            raise PipelagError(
                f"schedule '{schedule.name}' assigns the microbatches of stage {stage} to its replicas in an order "
                "that changes from update to update; make every round the same"
            )
        places.append(tuple(row[:period]))
    return tuple(places)


def rounds_to_the_end(schedule: Schedule) -> Lags:
    """`Delays.beyond` for a schedule without a clock: how many whole rounds a stage makes until the round trip ends.

    The gradient is taken to travel one stage further in the time of one pass. A round is what the stage's worker does
    between two updates. For 1F1B this gives floor(k/2) on GPU k = 0, 1, ..., as in the public port of SpecTrain's
    authors (ambiguity E1).
    """
    from pipelag.schedules.table import U

    rounds, tally = [], schedule.table.tally
    for stage, period in enumerate(schedule.periods, start=1):
        worker = schedule.replicas[stage - 1][0]
        passes, updates = int(tally[worker, :U].sum()), int(tally[worker, U, stage])
        rounds.append(((stage - 1) * updates // max(1, passes),) * period)
    return tuple(rounds)


@lru_cache(maxsize=256)
def _steady(build: object, stages: int, microbatches: int, rounds: int) -> Delays:
    minibatches = rounds * (-(-2 * stages // microbatches) + 4)  # enough to fill the pipeline, and some more
    options = {"microbatches": microbatches} if microbatches > 1 else {}
    schedule = build(stages, minibatches, **options)  # type: ignore[operator]
    if not isinstance(schedule, Schedule):
        raise PipelagError(
            f"a method's build returns {kind_of(schedule)}; it should return a pipelag.schedules.Schedule"
        )
    if sum(map(len, schedule.workers)) <= CHECKED:
        check(schedule)
    derived = delays(schedule)
    for lags, rows in (
        (derived.forward_lags, derived.forward_versions),
        (derived.backward_lags, derived.backward_versions),
    ):
        for stage, (row, expected) in enumerate(
            zip(rows, lagged(lags, minibatches * microbatches), strict=True), start=1
        ):
            steady = row[-1] >= 2  # the pipeline has filled: versions advance with the minibatches
            if not steady or row != expected:
                raise PipelagError(
                    f"the staleness of stage {stage} does not settle to one value over {minibatches} minibatches "
                    f"(versions read: {row}); it should be one for each microbatch of a minibatch"
                )
    return derived


def steady_delays(build: object, stages: int, microbatches: int = 1, rounds: int = 1) -> Delays:
    """The delays of a schedule of any length, derived from a short one that `build(stages, minibatches)` makes.

    In a schedule of any length, the j-th microbatch of period t reads version max(0, t - lag[j]). This is checked here
    while the pipeline fills and for some of the steady state.

    Args:
        build: makes a `Schedule`; with more than one microbatch it is given `microbatches=` too.
        rounds: a number that the schedule's minibatches must be a multiple of.

    Raises:
        PipelagError: the staleness does not settle, or the schedule cannot be executed.
    """
    return _steady(build, stages, microbatches, rounds)
