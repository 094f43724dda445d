"""Small tools over what a layer takes, gives and keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    """A layer's input or output as the tensors that cross its boundary."""
    return value if isinstance(value, tuple) else (value,)


def alone(values: Sequence[Any]) -> Any:
    """The inverse: one value by itself, several as a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


def weight_bytes(layers: Sequence[nn.Module]) -> list[int]:
    """Bytes of each layer's parameters; one that several layers share counts in the first."""
    counted: set[int] = set()
    sizes = []
    for layer in layers:
        new = {id(p): p.numel() * p.element_size() for p in layer.parameters() if id(p) not in counted}
        counted |= set(new)
        sizes.append(sum(new.values()))
    return sizes


def own_outputs(
    value: Any, gradients: Sequence[torch.Tensor], received: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs that a layer's backward starts from, with their gradients, when the layer is run by itself.

    A tensor that only passes through has its gradient handed on as it is; autograd, asked to, would copy it, which it
    does not do inside a stage.

    Args:
        value: the layer's output; gradients: one for each of its tensors that needs one; received: its input.
    """
    passing = {id(t) for t in as_tuple(received)}
    outputs, given = [], []
    for tensor, gradient in zip((t for t in as_tuple(value) if t.requires_grad), gradients, strict=True):
        if id(tensor) in passing:
            tensor.grad = gradient
        else:
            outputs.append(tensor)
            given.append(gradient)
    return outputs, given


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
