"""Staleness, derived from a schedule. The papers' formulas are tests of this module, never its code."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from pipelag.errors import PipelagError
from pipelag.schedules.actions import Action, Schedule


@dataclass(frozen=True)
class Delays:
    """How old the weights are that each pass reads.

    `forward_lags[i][j]`, `backward_lags[i][j]`: the steady state of stage i+1 and of the j-th microbatch of a
    minibatch: how many updates lie between the weights that the pass reads and the update that its own gradient makes
    (0: none, as in ordinary training).
    `forward`, `backward`: the greatest over a minibatch's microbatches, per stage.
    `forward_versions[i][m]`, `backward_versions[i][m]`: the version that microbatch m reads, fill included; version v
    is the weights after v updates of that stage.
    """

    forward_lags: tuple[tuple[int, ...], ...]
    backward_lags: tuple[tuple[int, ...], ...]
    forward_versions: tuple[tuple[int, ...], ...]
    backward_versions: tuple[tuple[int, ...], ...]

    @property
    def forward(self) -> tuple[int, ...]:
        """Per stage, in updates."""
        return tuple(map(max, self.forward_lags))

    @property
    def backward(self) -> tuple[int, ...]:
        """Per stage, in updates."""
        return tuple(map(max, self.backward_lags))

    @property
    def tau(self) -> tuple[int, ...]:
        """The delay that PipeMare writes, per stage: ceil((2(P-i)+1)/N), at least 1 (its appendix A.1).

        It counts the minibatch's own update too, and where two microbatches of a minibatch read different versions
        it counts from the newer.
        """
        return tuple(1 + min(lags) for lags in self.forward_lags)

    @property
    def distance(self) -> tuple[float, ...]:
        """The updates between the forward's and the backward's weights, per stage: the mean over a minibatch."""
        return tuple(
            (sum(forward) - sum(backward)) / len(forward)
            for forward, backward in zip(self.forward_lags, self.backward_lags, strict=True)
        )


def lagged(lags: tuple[tuple[int, ...], ...], minibatches: int) -> tuple[tuple[int, ...], ...]:
    """The versions that microbatches read whose lags are these: those of the fill stop at version 0."""
    return tuple(tuple(max(0, t - lag) for t in range(minibatches) for lag in stage) for stage in lags)


def versions(schedule: Schedule) -> dict[Action, int]:
    """The version of its stage's weights that is live when each F, B and R runs.

    On the worker that also updates the stage, program order decides. On another worker (a clocked schedule only) the
    clock does: an update made in a cycle is seen from the next cycle on (section 3 of the stale-weights paper: the
    registers between accelerators are written at the end of a cycle).
    """
    update_cycles: dict[int, list[int]] = {}
    if schedule.cycles is not None:
        for row, clock in zip(schedule.workers, schedule.cycles, strict=True):
            for action, cycle in zip(row, clock, strict=True):
                if action.kind == "U":
                    update_cycles.setdefault(action.stage, []).append(cycle)
    read: dict[Action, int] = {}
    for worker, row in enumerate(schedule.workers):
        done = dict.fromkeys(range(1, schedule.stages + 1), 0)
        for position, action in enumerate(row):
            if action.kind == "U":
                done[action.stage] += 1
            elif schedule.owners[("U", action.stage)] == worker:
                read[action] = done[action.stage]
            elif schedule.cycles is not None:
                read[action] = bisect_left(update_cycles[action.stage], schedule.cycles[worker][position])
            else:
                raise PipelagError(
                    f"schedule '{schedule.name}' runs {action} on worker {worker} but updates stage {action.stage} on "
                    "another; without a common clock it is undefined which weights are read: put both on one worker"
                )
    return read


def delays(schedule: Schedule) -> Delays:
    """Derive the staleness of every pass from the order of the actions alone."""
    read = versions(schedule)
    per, total = schedule.microbatches, schedule.minibatches * schedule.microbatches
    tables: list[tuple[tuple[int, ...], ...]] = []
    lags: list[tuple[tuple[int, ...], ...]] = []
    for kind in ("F", "B"):
        table = tuple(
            tuple(read[Action(kind, stage, m)] for m in range(total))  # type: ignore[arg-type]
            for stage in range(1, schedule.stages + 1)
        )
        tables.append(table)
        lags.append(
            tuple(tuple(max(m // per - row[m] for m in range(j, total, per)) for j in range(per)) for row in table)
        )
    return Delays(*lags, *tables)


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
