"""Small tools over what a layer takes, gives and keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    """A layer's input or output as the tensors that cross its boundary."""
    return value if isinstance(value, tuple) else (value,)


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """What happens inside leaves no trace in batch-norm statistics and counters."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    yield
    for buffer, before in buffers:
        # Through `.data`: autograd may have saved the buffer for a backward to come, which reads batch statistics.
        buffer.data.copy_(before)


@contextmanager
def kept_for_backward(but: set[int]) -> Iterator[dict[int, int]]:
    """Bytes of every tensor that autograd keeps meanwhile, by the place of its storage, each once.

    Args:
        but: places (`untyped_storage().data_ptr()`) that do not count, such as the weights'.
    """
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in but:
            kept[place] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept
