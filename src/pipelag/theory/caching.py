"""How many activations stages cache, with and without recomputation, counted on the schedule (PipeMare A.2, A.3, D)."""

from __future__ import annotations

from math import isqrt

from pipelag.errors import PipelagError
from pipelag.schedules.library import pipemare


def segment_of(size: int | str, count: int) -> int:
    """The number of stages (or microbatches) in a segment; "root": the integer nearest to the root of `count`."""
    if size == "root":
        low = isqrt(count)
        return low if count - low**2 <= (low + 1) ** 2 - count else low + 1
    if not isinstance(size, int) or not 1 <= size <= count:
        raise PipelagError(
            f"a segment should have 1 to {count} stages, or 'root' (the square root of {count}), not {size!r}"
        )
    return size


def passes(stages: int, segment: int = 0) -> dict[int, dict[str, int]]:
    """Stage -> kind of pass -> its cycle, for one microbatch that enters PipeMare's pipeline in cycle 0."""
    plan = pipemare(stages, 1, segment=segment)
    assert plan.cycles is not None
    clock: dict[int, dict[str, int]] = {stage: {} for stage in range(1, stages + 1)}
    for row, cycles in zip(plan.workers, plan.cycles, strict=True):
        for action, now in zip(row, cycles, strict=True):
            clock[action.stage][action.kind] = now
    return clock


def asynchronous(stages: int, segment: int | None = None) -> list[int]:
    """How many microbatches' activations each stage of an asynchronous pipeline caches in the steady state.

    One microbatch enters per cycle, so a stage caches as many activations as the number of cycles for which it keeps
    one. Without recomputation, that is from its forward to its backward: 2(P-i)+1 (A.2). With recomputation, only a
    segment's first stage keeps its input for so long. The j-th stage (from 1) of a segment of S keeps an activation
    from its recomputation to its backward, both cycles included: 2(S-j)+1 (A.3).
    """
    held = []
    for stage, at in passes(stages, segment or 0).items():
        head = segment is None or (stage - 1) % segment == 0
        held.append(at["B"] - at["F"] if head else at["B"] - at["R"] + 1)
    return held


def synchronous(stages: int, microbatches: int, segment: int | None = None) -> list[int]:
    """How many microbatches' activations each stage of GPipe caches, with N = `microbatches` per minibatch (A.3).

    Without recomputation, every stage caches N. With segments of S stages, a segment's first stage caches N inputs, and
    the others cache as many as in PipeMare, but at most N.
    """
    if segment is None:
        return [microbatches] * stages
    recomputed = asynchronous(stages, segment)
    heads = [stage % segment == 0 for stage in range(stages)]
    return [microbatches if head else min(microbatches, held) for head, held in zip(heads, recomputed, strict=True)]
