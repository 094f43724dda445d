"""Whether minibatches can be split as their phases split them, as far as this is known before the training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from pipelag.errors import PipelagError
from pipelag.stage.phase import Phase

Parts = tuple[int, str]  # into how many equal parts minibatches are split, and what these are called


def check_sizes(
    batches: Any, phases: Sequence[Phase], even: bool, workers: int | None = None, unpacked: bool = False
) -> None:
    """Refuse minibatches of a list, and a loader's last, partial minibatch, that cannot be trained on.

    Args:
        even: all must have the same size, as real workers need.
        workers: the number of real workers; None: simulated, or not given.
        unpacked: a function makes the minibatches from the items of a list, whose sizes say nothing then.
    """
    count = sum(phase.steps for phase in phases)
    parts = [phase.parts(workers) for phase in phases]
    if isinstance(batches, (list, tuple)):
        if even:
            _check_even(batches[:count])
        if not unpacked and batches:
            _check_parts(batches, [phase.steps for phase in phases], parts)
    if not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset) or batches.drop_last:
        return
    try:  # the sampler may draw fewer samples than the data set holds, or more
        samples = len(batches.sampler)  # type: ignore[arg-type]
    except TypeError:
        return
    tail = samples % batches.batch_size if batches.batch_size else 0
    if not tail or count < len(batches):
        return
    why = next((f"cannot be split into {n} equal {what}" for n, what in parts if tail % n), "")
    if why or (even and len(batches) > 1):
        raise PipelagError(
            f"the loader's last minibatch has {tail} samples instead of {batches.batch_size}, which "
            f"{why or 'real workers take only with uneven=True'}; give the DataLoader drop_last=True"
        )


def _check_even(batches: Sequence[Any]) -> None:
    """Refuse minibatches of several sizes, if all are pairs whose inputs are tensors."""
    sizes = [len(item[0]) for item in batches if _is_pair(item)]
    other = next((n for n, size in enumerate(sizes) if size != sizes[0]), 0)
    if other and len(sizes) == len(batches):
        raise PipelagError(
            f"minibatch {other} has {sizes[other]} samples and those before it have {sizes[0]}, but real workers "
            "expect one size; leave it out, or pass uneven=True, so that each message states its shapes"
        )


def _check_parts(batches: Sequence[Any], steps: Sequence[int], parts: Sequence[Parts]) -> None:
    """Refuse a minibatch that cannot be split into the parts of the phase that it comes to.

    steps, parts: of each phase. After the last minibatch the first comes again.
    """
    begun = 0
    for count, (number, what) in zip(steps, parts, strict=True):
        for step in range(begun, begun + min(count, len(batches))) if number > 1 else ():
            item = batches[step % len(batches)]
            if _is_pair(item) and len(item[0]) % number:
                raise PipelagError(
                    f"minibatch {step % len(batches)} has {len(item[0])} samples, which cannot be split into {number} "
                    f"equal {what}; choose a batch size that is a multiple of {number}, or leave this minibatch out"
                )
        begun += count


def _is_pair(item: Any) -> bool:
    pair = isinstance(item, (tuple, list)) and len(item) == 2
    return pair and isinstance(item[0], torch.Tensor) and item[0].dim() > 0
