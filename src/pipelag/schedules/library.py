"""The schedules, each a visible little function. `schedule(name, ...)` looks one up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from pipelag.errors import PipelagError, unknown
from pipelag.schedules.actions import Action, Kind, Schedule

SCHEDULES: dict[str, Callable[..., Schedule]] = {}


def register_schedule(function: Callable[..., Schedule]) -> Callable[..., Schedule]:
    """Make a schedule known to `schedule()` under its function's name."""
    SCHEDULES[function.__name__] = function
    return function


def schedule(name: str, *, stages: int, minibatches: int, **options: object) -> Schedule:
    """Build a schedule by name.

    Raises:
        PipelagError: unknown name, or fewer than one stage or minibatch.
    """
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    if stages < 1 or minibatches < 1:
        raise PipelagError(f"a schedule needs at least 1 stage and 1 minibatch, not {stages} and {minibatches}")
    return SCHEDULES[name](stages=stages, minibatches=minibatches, **options)


Turn = tuple[Kind, int, int]  # (kind, stage, offset): minibatch m's turn comes in cycle offset + m * period


def clocked(name: str, stages: int, minibatches: int, turns: dict[int, list[Turn]], period: int = 1) -> Schedule:
    """The schedule in which worker w takes `turns[w]` for every minibatch, `period` cycles apart.

    Within a cycle a worker acts in the order of its list.
    """
    rows, clocks = [], []
    for worker in sorted(turns):
        row, clock = [], []
        first = min(offset for _, _, offset in turns[worker])
        last = max(offset for _, _, offset in turns[worker]) + (minibatches - 1) * period
        for now in range(first, last + 1):
            for kind, stage, offset in turns[worker]:
                m, rest = divmod(now - offset, period)
                if rest == 0 and 0 <= m < minibatches:
                    row.append(Action(kind, stage, m))
                    clock.append(now)
        rows.append(tuple(row))
        clocks.append(tuple(clock))
    return Schedule(name, stages, minibatches, tuple(rows), tuple(clocks))


@register_schedule
def cycle(stages: int, minibatches: int, colocated: bool = True) -> Schedule:
    """The stale-weights paper's pipeline (section 3): every stage does one forward and one backward per cycle.

        colocated, K = 1          0    1    2        3        4
        worker 0 (FS1, BKS2)      1F0  1F1  1F2+1B0  1F3+1B1  1F4+1B2
        worker 1 (FS2, BKS1)           2F0  2F1      2F2      2F3      (2F and 2B in one cycle)

    `colocated`: the forward and the backward of a stage share a worker, K+1 workers in all, as in the paper's 2-GPU
    set-up (section 6.5); a worker runs its forward first, so that staleness is what 2K+1 accelerators have.
    Otherwise the paper's 2K+1 accelerators: FS_1 .. FS_K, then FS_{K+1} with BKS_1, then BKS_2 .. BKS_{K+1}.
    """
    turns: dict[int, list[Turn]] = defaultdict(list)
    for stage in range(1, stages + 1):
        forward_worker = stage - 1
        backward_worker = forward_worker if colocated else 2 * stages - stage - 1
        back = 2 * stages - 1 - stage  # the wave reaches the last stage, and comes back a stage per cycle
        turns[forward_worker] += [("F", stage, stage - 1)]
        turns[backward_worker] += [("B", stage, back), ("U", stage, back)]
    return clocked("cycle", stages, minibatches, turns)


@register_schedule
def sequential(stages: int, minibatches: int, workers: int | None = None) -> Schedule:
    """One minibatch at a time: all forwards, all backwards, then the next (the paper's Figure 2).

    `workers` = `stages` (the default) is model parallelism without pipelining, 1 is ordinary training.
    """
    workers = stages if workers is None else workers
    if workers not in (1, stages):
        raise PipelagError(f"sequential training uses 1 worker or one per stage ({stages}), not {workers}")
    turns: dict[int, list[Turn]] = defaultdict(list)
    for stage in range(1, stages + 1):
        turns[(stage - 1) % workers] += [("F", stage, stage - 1)]
    for stage in range(stages, 0, -1):
        turns[(stage - 1) % workers] += [("B", stage, 2 * stages - stage), ("U", stage, 2 * stages - stage)]
    return clocked("sequential", stages, minibatches, turns, period=2 * stages)
