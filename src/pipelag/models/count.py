"""Count a model's weights and activations per layer, on the meta device, without memory or computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from pipelag.models import build
from pipelag.models.cut import layer_numbers, layers_of, name_of, weights_of
from pipelag.models.pieces import Piece
from pipelag.tensors import as_tuple


@dataclass(frozen=True)
class LayerCount:
    """The counts of one numbered layer.

    parameters: all parameters. weights: only kernels and matrices.
    activations: elements per sample that its operations write (`activations_of`).
    output: elements per sample that cross a boundary after this layer.
    """

    layer: int
    name: str
    parameters: int
    weights: int
    activations: int
    output: int


def count(model: nn.Sequential | Sequence[nn.Module], sample_shape: Sequence[int]) -> list[LayerCount]:
    """Count every layer for one sample of `sample_shape` (C, H, W). The model stays unchanged."""
    rows = []
    value: Any = torch.empty(2, *sample_shape, device="meta")
    for layer, (_, last) in zip(layers_of(model), layer_numbers(model), strict=True):
        value, activations = activations_of(layer, value)
        outputs = as_tuple(value)
        rows.append(
            LayerCount(
                last,
                name_of(layer),
                sum(p.numel() for p in layer.parameters()),
                weights_of(layer),
                activations,
                sum(t[0].numel() for t in outputs),
            )
        )
    return rows


def activations_of(layer: nn.Module, value: Any) -> tuple[Any, int]:
    """The layer's output, and the elements per sample of the new tensors that it writes.

    The rule is torchsummary's (StaleWeights section 6.6), but counts only what takes memory: every module's output
    counts once; containers, in-place activations, reshapes and tensors that only pass through do not count. A module
    with children counts the tensor that its own forward writes (the sum of a residual block), unless it has
    `writes_output = False`; a layer of `linearise` counts only tensors that none of its modules has returned.
    """
    total = 0
    passing = {id(t) for t in as_tuple(value)}
    made: dict[int, torch.Tensor] = {}  # what modules have returned; kept alive, so that no other tensor gets its id

    def add(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal total
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]  # attention may give a None
        known = passing.union(made) if isinstance(module, Piece) else passing
        total += sum(t[0].numel() for t in tensors if id(t) not in known)
        made.update((id(t), t) for t in tensors)

    def counts(module: nn.Module) -> bool:
        if isinstance(module, (nn.Sequential, nn.Flatten, nn.Identity)) or getattr(module, "inplace", False):
            return False
        return bool(getattr(module, "writes_output", True))

    # Stand-ins without data replace the tensors, so that weights and batch-norm statistics stay unchanged.
    tensors = chain(layer.named_parameters(), layer.named_buffers())
    stand_ins = {name: tensor.detach().to("meta") for name, tensor in tensors}
    hooks = [module.register_forward_hook(add) for module in layer.modules() if counts(module)]
    try:
        with torch.no_grad():
            return functional_call(layer, stand_ins, (value,)), total
    finally:
        for hook in hooks:
            hook.remove()


def parameters_only(name: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """The log lines of a `count` run whose model takes no images: parameters and weights per layer."""
    with torch.device("meta"):
        model = build(name, **options)
    return [
        {
            "layer": number,
            "name": name_of(layer),
            "parameters": sum(p.numel() for p in layer.parameters()),
            "weights": weights_of(layer),
        }
        for number, layer in enumerate(model, start=1)
    ]


def rows(name: str, options: dict[str, Any], sample_shape: Sequence[int]) -> list[dict[str, Any]]:
    """The log lines of a `count` run for a registered model."""
    with torch.device("meta"):
        model = build(name, **({"in_channels": sample_shape[0]} | options))
    return [asdict(row) for row in count(model, sample_shape)]
