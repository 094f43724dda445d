"""Layers with one weight, as Transformers have them, and the division of such layers into parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Tensors = tuple[torch.Tensor, ...]


class Operator(nn.Module):
    """A layer with one weighted module and a label: `prepare` makes the module's input, `finish` uses its product.

    A part of such a layer (`split`) has some of the rows of the weight. The first part prepares, and the last one
    finishes. The tensors between parts are (the module's input, the products so far, the rest).
    """

    width = 1  # the number of tensors that make up a product

    def __init__(self, label: str, module: nn.Module) -> None:
        super().__init__()
        self.label, self.module = label, module
        self.number, self.of = 0, 1  # this part's number (from 0), and the number of parts
        self.places: list[int] = []  # the rows of the whole weight that this part has

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The module's input, and the tensors that go on beside it."""
        return value[0], value

    def product(self, given: torch.Tensor, rest: Tensors) -> Tensors:
        """The product of the weight, or of this part of it, with the module's input."""
        return (self.module(given),)

    def join(self, products: Tensors) -> Tensors:
        """The product of the whole weight, from those of its parts."""
        return products if len(products) == 1 else (torch.cat(products, -1),)

    def finish(self, product: Tensors, rest: Tensors) -> Any:
        """The layer's output."""
        return *product, *rest

    def forward(self, value: Tensors) -> Any:
        """Compute the layer, or this part of it."""
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
        """The rows of the weight, one per output, that a part has."""
        return share(range(outputs_of(self.module)), number, of)

    def part(self, number: int, of: int) -> nn.Module:
        """The module of a part: it has the part's rows of the weight."""
        return piece(self.module, self.rows(number, of))

    def weights(self) -> dict[str, torch.Tensor]:
        """The weight and the bias, or this part of them, with one row per output."""
        parameters = {name: value.detach() for name, value in self.module.named_parameters()}
        return {"weight": parameters["weight"].T} if isinstance(self.module, nn.Embedding) else parameters


class NormPart(nn.Module):
    """Layer normalisation over a whole vector, of which it scales and returns some positions."""

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
    """The size of a module's output vectors."""
    if isinstance(module, nn.Linear):
        return module.out_features
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    assert isinstance(module, nn.LayerNorm)
    return module.normalized_shape[0]


def share(rows: range, number: int, of: int) -> list[int]:
    """Part `number` (from 0) of `of` equal parts of the rows."""
    return list(rows[len(rows) * number // of : len(rows) * (number + 1) // of])


def piece(module: nn.Module, rows: list[int]) -> nn.Module:
    """A module with these rows, one per output, of another module's weights."""
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
    """Divide an operator into so many layers with equal parts of its weight; together they compute the same."""
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
    """The weights and biases of a model's operators, with one row per output; parts are joined."""
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
