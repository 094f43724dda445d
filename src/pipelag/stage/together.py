"""The work around an update, done for all stages in a few calls, to save launches on a GPU and time in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch

from pipelag.methods.carriers import Buffers, Memory, add_all

if TYPE_CHECKING:
    from pipelag.stage.policy import StageWeights

SMALL = 1 << 20  # elements of the stages whose steps are held in memory at once (one larger stage goes alone)


@torch.no_grad()
def prepare(stages: Sequence[StageWeights]) -> None:
    """Compute what passes read at the live versions; the coming update's rates must be set."""
    add_all(chain.from_iterable(stage.made() for stage in stages if stage.readings and not stage.prepared))
    for stage in stages:
        stage.prepared = True


@torch.no_grad()
def before_step(stages: Sequence[StageWeights]) -> None:
    """Call when the gradients are complete, before the optimizer steps; may change the gradients."""
    for stage in stages:
        stage.complete()
    beginning = [stage for stage in stages if stage.previous]
    kept = [stage for stage in beginning if len(stage.plain) == 1]
    if kept:
        torch._foreach_copy_(_all(stage.previous for stage in kept), _all(stage.live for stage in kept))
    for stage in beginning:
        stage.begun = stage.begun_with()


def after_step(stages: Sequence[StageWeights]) -> None:
    """Call when the optimizer has stepped: the next versions become live. Call `prepare` before a pass reads them."""
    for stage in stages:
        stage.steps += 1
    watched = [stage for stage in stages if stage.watched]
    with torch.no_grad():
        for stage in watched:
            if stage.change is not None:
                stage.change.after_step()
        for some in _batches(watched):
            _remember(some)
    for stage in stages:
        stage.advance()


def _remember(stages: Sequence[StageWeights]) -> None:
    """Tell these stages' memories how the update changed the weights."""
    moved = [stage for stage in stages if stage.previous]
    lived, begun = _all(stage.live for stage in moved), _all(stage.begun for stage in moved)
    made = iter(torch._foreach_sub(lived, begun) if lived else ())
    pairs: dict[type[Memory], list[tuple[Memory, Buffers]]] = {}
    for stage in stages:
        steps = [next(made) for _ in stage.live] if stage.previous else []
        for memory in stage.memories.values():
            pairs.setdefault(type(memory), []).append((memory, steps))
    for kind, each in pairs.items():
        kind.after_steps(each)


def _batches(stages: Sequence[StageWeights]) -> Iterator[list[StageWeights]]:
    """Split the stages into consecutive groups of at most `SMALL` elements, since their steps are held in memory."""
    batch: list[StageWeights] = []
    numbers = 0
    for stage in stages:
        if batch and numbers + stage.size > SMALL:
            yield batch
            batch, numbers = [], 0
        batch.append(stage)
        numbers += stage.size
    if batch:
        yield batch


def _all(each: Iterable[Buffers]) -> Buffers:
    return [buffer for buffers in each for buffer in buffers]
