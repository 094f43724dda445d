"""A layer of a Transformer that has one weight, and such layers cut into parts: what all of the models share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Tensors = tuple[torch.Tensor, ...]


class Operator(nn.Module):
    """A layer with one weighted module and a label: what the weight works on, its product, and what is made of that.

    A part of one (`split`) has some of the rows of the weight. The first part prepares and the last one finishes;
    between them the tensors are (what the weight works on, the products so far, all else).
    """

    width = 1  # tensors that a product consists of

    def __init__(self, label: str, module: nn.Module) -> None:
        super().__init__()
        self.label, self.module = label, module
        self.number, self.of = 0, 1  # this part of how many
        self.places: list[int] = []  # of the whole weight's outputs, those that this part makes

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """What the weight works on, and what travels on beside it."""
        return value[0], value

    def product(self, given: torch.Tensor, rest: Tensors) -> Tensors:
        """What the weight, or this part of it, makes of that."""
        return (self.module(given),)

    def join(self, products: Tensors) -> Tensors:
        """The whole weight's product from those of its parts."""
        return products if len(products) == 1 else (torch.cat(products, -1),)

    def finish(self, product: Tensors, rest: Tensors) -> Any:
        """What leaves the layer."""
        return *product, *rest

    def forward(self, value: Tensors) -> Any:
        """The layer, or this part of it."""
        if self.number == 0:
            given, rest = self.prepare(value)
            done: Tensors = ()
        else:
            behind = 1 + self.number * self.width
            given, done, rest = value[0], value[1:behind], value[behind:]
        done = (*done, *self.product(given, rest))
        if self.number < self.of - 1:
            return given, *done, *rest
        return self.finish(self.join(done), rest)

    def rows(self, number: int, of: int) -> list[int]:
        """The outputs of the weight that a part makes."""
        return share(range(outputs_of(self.module)), number, of)

    def part(self, number: int, of: int) -> nn.Module:
        """A module with these outputs, and their weights."""
        return piece(self.module, self.rows(number, of))

    def weights(self) -> dict[str, torch.Tensor]:
        """The weight and the bias, or this part of them: a row for each output."""
        parameters = {name: value.detach() for name, value in self.module.named_parameters()}
        return {"weight": parameters["weight"].T} if isinstance(self.module, nn.Embedding) else parameters


class NormPart(nn.Module):
    """Layer normalisation over all of a vector, of which some places are scaled and go on."""

    def __init__(self, whole: nn.LayerNorm, rows: list[int]) -> None:
        super().__init__()
        self.shape, self.eps, self.places = whole.normalized_shape, whole.eps, rows
        self.weight, self.bias = nn.Parameter(whole.weight[rows].clone()), nn.Parameter(whole.bias[rows].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., size) -> (..., places)."""
        first, last = self.places[0], self.places[-1] + 1
        scaled: torch.Tensor = F.layer_norm(x, self.shape, eps=self.eps)[..., first:last] * self.weight + self.bias
        return scaled


def outputs_of(module: nn.Module) -> int:
    """The length of the vectors that a module makes."""
    if isinstance(module, nn.Linear):
        return module.out_features
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    assert isinstance(module, nn.LayerNorm)
    return module.normalized_shape[0]


def share(rows: range, number: int, of: int) -> list[int]:
    """The part `number` of `of` even parts."""
    return list(rows[len(rows) * number // of : len(rows) * (number + 1) // of])


def piece(module: nn.Module, rows: list[int]) -> nn.Module:
    """A module with these outputs of another, and their weights."""
    if isinstance(module, nn.LayerNorm):
        return NormPart(module, rows)
    if isinstance(module, nn.Embedding):
        part = nn.Embedding(module.num_embeddings, len(rows), padding_idx=module.padding_idx)
        part.weight = nn.Parameter(module.weight[:, rows].clone())
        return part
    assert isinstance(module, nn.Linear)
    linear = nn.Linear(module.in_features, len(rows), bias=module.bias is not None)
    linear.weight = nn.Parameter(module.weight[rows].clone())
    if module.bias is not None:
        linear.bias = nn.Parameter(module.bias[rows].clone())
    return linear


def parts_of(operator: Operator, of: int) -> Iterator[Operator]:
    """The operator in so many layers, each with an even part of its weight; what they compute is the same."""
    if of == 1:
        yield operator
        return
    pieces = [(operator.part(number, of), operator.rows(number, of)) for number in range(of)]
    operator.module = nn.Identity()
    for number, (module, places) in enumerate(pieces):
        part = deepcopy(operator)
        part.module, part.places, part.number, part.of = module, places, number, of
        part.label += f", part {number + 1} of {of}"
        yield part


def whole_weights(row: Iterable[nn.Module]) -> list[dict[str, torch.Tensor]]:
    """The weights and biases of a model's operators, a row for each output, put together where they are in parts."""
    operators: list[list[Operator]] = []
    for part in row:
        assert isinstance(part, Operator)
        if part.number == 0:
            operators.append([])
        operators[-1].append(part)
    return [_joined(parts) for parts in operators]


def _joined(parts: Sequence[Operator]) -> dict[str, torch.Tensor]:
    weights = [part.weights() for part in parts]
    if len(weights) == 1:
        return weights[0]
    order = torch.tensor([place for part in parts for place in part.places]).argsort()
    return {name: torch.cat([each[name] for each in weights])[order] for name in weights[0]}
