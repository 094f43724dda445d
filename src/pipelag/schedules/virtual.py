"""Schedules that give a worker several stages: interleaved 1F1B, and pipelines in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import TYPE_CHECKING

from pipelag.errors import PipelagError, shown
from pipelag.schedules.actions import Action, Kind, Schedule

if TYPE_CHECKING:
    from pipelag.schedules.table import Row

Order = tuple[tuple[Action, ...], ...]  # per worker
PASSES: tuple[Kind, ...] = ("B", "F")


@dataclass(frozen=True)
class Interleaved:
    """Interleaved 1F1B (Narayanan et al. 2021, section 2.2): stage s of P * chunks lives on worker (s-1) mod P.

    A worker takes microbatches in groups of P. A group passes the worker's first stage, then its second, and so on;
    backwards go through them in the opposite order. Smaller stages fill and drain sooner: the bubble of a flush is
    1 / chunks of that of 1F1B.

    flush: True: the pipeline drains at the end of every minibatch (synchronous). False: it never drains, and a stage
        updates after a minibatch's last backward.
    """

    chunks: int = 2
    flush: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.chunks, Integral) or self.chunks < 1:
            raise PipelagError(
                f"chunks, the stages of a worker, should be a whole number from 1 on, not {shown(self.chunks)}"
            )

    def __call__(self, stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
        """The schedule over `stages` stages, which need stages / chunks workers.

        Raises:
            PipelagError: the stages do not divide over the workers, or the microbatches do not make whole groups.
        """
        chunks = min(self.chunks, stages)
        workers = stages // chunks
        if stages % chunks or microbatches % workers:
            raise PipelagError(
                f"interleaving gives each of {workers} workers {chunks} stages and groups of {workers} microbatches, "
                f"into which {stages} stages and {microbatches} microbatches do not divide; use a multiple of "
                f"{chunks} stages and of {workers} microbatches"
            )
        from pipelag.schedules.table import repeated

        if not self.flush:
            total = minibatches * microbatches
            rows = tuple(_interleaved(workers, chunks, rank, total, microbatches) for rank in range(workers))
            return Schedule("1f1b_interleaved", stages, minibatches, rows, microbatches=microbatches)
        once = [_interleaved(workers, chunks, rank, microbatches, microbatches) for rank in range(workers)]
        rows = tuple(repeated(row, minibatches, microbatches) for row in once)
        return Schedule("1f1b_interleaved_flush", stages, minibatches, rows, microbatches=microbatches)


def _interleaved(workers: int, chunks: int, rank: int, count: int, microbatches: int) -> Row:
    """A worker's row for `count` microbatches: warm-up forwards, then forward and backward in turn.

    Its k-th forward is of chunk k // P mod chunks, and of microbatch k mod P of its group; backwards likewise, but take
    the chunks in the opposite order.
    """
    import numpy as np

    from pipelag.schedules.table import B, F, Row, U

    total, group = count * chunks, workers * chunks
    warmup = workers - rank - 1 if chunks == 1 else 2 * (workers - rank - 1) + (chunks - 1) * workers
    k = np.arange(total)
    chunk, numbers = k % group // workers, k // group * workers + k % workers
    forward, backward = (each * workers + rank + 1 for each in (chunk, chunks - 1 - chunk))
    last = np.flatnonzero((numbers + 1) % microbatches == 0)  # these backwards are the last of their minibatch
    order = np.concatenate([3 * (k - warmup), 3 * k + 1, 3 * last + 2]).argsort()
    kinds = np.repeat(np.array([F, B, U], np.uint8), [total, total, len(last)])
    stages = np.concatenate([forward, backward, backward[last]]).astype(np.int32)
    of = np.concatenate([numbers, numbers, numbers[last] // microbatches]).astype(np.int32)
    return Row(kinds[order], stages[order], of[order])


def bidirectional(stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
    """Two pipelines over the same workers in opposite directions (Chimera, Li and Hoefler 2021; DeepSeek's DualPipe).

    Of P stages, worker w = 0 .. P-1 holds stage w+1 for even microbatches, whose forwards go from worker 0 to P-1, and
    stage P-w for odd microbatches, whose forwards go the other way. At the end of a minibatch the two replicas of a
    stage sum their gradients (S) and both step (U). Where one direction has a bubble, the other has work. SpecTrain's
    DualPipe of 2018 is a different schedule: a forward and a backward in every time unit.

    Raises:
        PipelagError: there is more than one stage, and the number of stages or of microbatches is odd.
    """
    if stages == 1:
        rows = [
            [*(Action(kind, 1, m) for m in range(t * microbatches, (t + 1) * microbatches) for kind in ("F", "B"))]
            + [Action("U", 1, t)]
            for t in range(minibatches)
        ]
        whole = tuple(action for row in rows for action in row)
        return Schedule("bidirectional", 1, minibatches, (whole,), microbatches=microbatches)
    if stages % 2 or microbatches % 2:
        raise PipelagError(
            f"pipelines in both directions need an even number of stages and of microbatches, not {stages} and "
            f"{microbatches}"
        )
    pattern = _both_ways(stages, microbatches)
    rows_of = [
        tuple(
            action._replace(number=action.number + (t if action.kind in ("S", "U") else t * microbatches))
            for t in range(minibatches)
            for action in row
        )
        for row in pattern
    ]
    return Schedule("bidirectional", stages, minibatches, tuple(rows_of), microbatches=microbatches)


@lru_cache(maxsize=64)
def _both_ways(stages: int, microbatches: int) -> Order:
    """The rows of one minibatch: whenever a worker is free, it takes a backward that is ready, or else a forward.

    The unit of time is a forward pass; a backward takes two. A stage has at most as many microbatches of a direction
    between their two passes as 1F1B allows.
    """

    rows: list[list[Action]] = [[] for _ in range(stages)]
    free = [0] * stages
    ends: dict[Action, int] = {}
    # (kind, stage, direction) -> the next microbatch: a stage takes those of a direction in order.
    due = {(kind, stage, way): way for kind in PASSES for stage in range(1, stages + 1) for way in (0, 1)}

    def ready(action: Action, now: int) -> bool:
        kind, stage, m = action
        if m >= microbatches:
            return False
        if kind == "F":
            under_way = (due["F", stage, m % 2] - due["B", stage, m % 2]) // 2
            before = [Action("F", stage - 1, m)] if stage > 1 else []
            return under_way < stages - stage + 1 and _done(before, ends, now)
        below = [Action("B", stage + 1, m)] if stage < stages else []
        return _done([Action("F", stage, m), *below], ends, now)

    now = 0
    while len(ends) < 2 * stages * microbatches:
        for worker in range(stages):
            if free[worker] > now:
                continue
            lanes = [(kind, stage, way) for kind in PASSES for stage, way in ((worker + 1, 0), (stages - worker, 1))]
            mine = [action for lane in lanes if ready(action := Action(*lane[:2], due[lane]), now)]
            if mine:
                action = min(mine, key=lambda a: (a.kind, a.number, -a.stage))  # "B" comes before "F"
                due[action.kind, action.stage, action.number % 2] += 2
                rows[worker].append(action)
                ends[action] = free[worker] = now + (2 if action.kind == "B" else 1)
        now += 1
    for worker, row in enumerate(rows):
        for stage in sorted((worker + 1, stages - worker)):
            row += [Action("S", stage, 0), Action("U", stage, 0)]
    return tuple(map(tuple, rows))


def _done(actions: Sequence[Action], ends: dict[Action, int], now: int) -> bool:
    return all(ends.get(action, now + 1) <= now for action in actions)
