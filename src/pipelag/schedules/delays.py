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

    `forward[i]`, `backward[i]`: the steady state of stage i+1: how many updates lie between the weights that a pass
    reads and the update that its own gradient makes (0: none, as in ordinary training).
    `forward_versions[i][m]`, `backward_versions[i][m]`: the version that microbatch m reads, fill included; version v
    is the weights after v updates of that stage.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    forward_versions: tuple[tuple[int, ...], ...]
    backward_versions: tuple[tuple[int, ...], ...]


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
    table: dict[str, tuple[tuple[int, ...], ...]] = {}
    steady: dict[str, tuple[int, ...]] = {}
    total = schedule.minibatches * schedule.microbatches
    for kind in ("F", "B"):
        table[kind] = tuple(
            tuple(read[Action(kind, stage, m)] for m in range(total))  # type: ignore[arg-type]
            for stage in range(1, schedule.stages + 1)
        )
        steady[kind] = tuple(max(m // schedule.microbatches - v for m, v in enumerate(row)) for row in table[kind])
    return Delays(steady["F"], steady["B"], table["F"], table["B"])


@lru_cache(maxsize=64)
def _steady(build: object, stages: int) -> Delays:
    minibatches = 2 * stages + 4
    derived = delays(build(stages, minibatches))  # type: ignore[operator]
    for lags, rows in ((derived.forward, derived.forward_versions), (derived.backward, derived.backward_versions)):
        for stage, (lag, row) in enumerate(zip(lags, rows, strict=True), start=1):
            steady = row[-1] >= 2  # the fill is over: versions move on with the minibatches
            if not steady or any(version != max(0, m - lag) for m, version in enumerate(row)):
                raise PipelagError(
                    f"stage {stage}: the staleness does not settle to one value over {minibatches} minibatches "
                    f"(versions read: {row}); such a schedule cannot be simulated by a constant delay"
                )
    return derived


def steady_delays(build: object, stages: int) -> Delays:
    """The delays of a schedule of any length, from a short one: `build(stages, minibatches)` -> `Schedule`.

    A run of a hundred thousand minibatches needs only this: minibatch m reads version max(0, m - delay), which is
    checked over the fill and some steady state here.
    """
    return _steady(build, stages)
