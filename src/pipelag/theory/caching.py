"""Activations that stages cache, with and without recomputation, counted over the schedule (PipeMare A.2, A.3, D)."""

from __future__ import annotations

from math import isqrt

from pipelag.errors import PipelagError
from pipelag.schedules.library import cycle


def segment_of(size: int | str, count: int) -> int:
    """The stages (or microbatches) of a segment: a number, or "root", the integer nearest to the square root."""
    if size == "root":
        low = isqrt(count)
        return low if count - low**2 <= (low + 1) ** 2 - count else low + 1
    if not isinstance(size, int) or not 1 <= size <= count:
        raise PipelagError(f"a segment has 1 to {count} stages, or 'root' of them, not {size!r}")
    return size


def passes(stages: int) -> dict[int, tuple[int, int]]:
    """The cycles of a microbatch's (forward, backward) at each stage, by PipeMare's schedule; it enters in cycle 0."""
    plan = cycle(stages, 1)
    assert plan.cycles is not None
    clock = {
        (action.kind, action.stage): now
        for row, cycles in zip(plan.workers, plan.cycles, strict=True)
        for action, now in zip(row, cycles, strict=True)
    }
    return {stage: (clock["F", stage], clock["B", stage]) for stage in range(1, stages + 1)}


def asynchronous(stages: int, segment: int | None = None) -> list[int]:
    """Microbatch activations cached by each stage of an asynchronous pipeline in its steady state.

    One microbatch enters per cycle, so a stage caches as many as the cycles for which it keeps one, both ends counted.
    With recomputation, a segment's first stage keeps its input until the segment runs again; the j-th stage (from 0)
    runs again 2(S - j) cycles before its gradient arrives (A.3) and keeps what it computes until then. The first
    stage's own input serves as its recomputed activation.
    """
    held = []
    for stage, (forward, backward) in passes(stages).items():
        if segment is None:
            held.append(backward - forward + 1)
            continue
        place = (stage - 1) % segment
        size = min(segment, stages - (stage - 1 - place))  # the last segment may be shorter
        held.append(backward - forward + 1 if place == 0 else min(2 * (size - place), backward - forward + 1))
    return held


def synchronous(stages: int, microbatches: int, segment: int | None = None) -> list[int]:
    """The same for GPipe: all microbatches of a minibatch at once; with recomputation, in segments of stages (A.3).

    Without: every stage caches N. With segments of S stages the first caches N inputs, and the others what is
    recomputed while gradients return, at most 2(S - j).
    """
    held = []
    for stage in range(1, stages + 1):
        place = 0 if segment is None else (stage - 1) % segment
        full = segment is None or place == 0
        held.append(microbatches if full else min(microbatches, 2 * ((segment or 1) - place)))
    return held
