"""A backward in two parts over random graphs: shared and frozen weights, unused inputs, several outputs."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from pipelag.stage.recompute import backward_through
from pipelag.stage.split import Later, backward_to_inputs
from pipelag.tensors import entering
from tests.stage.test_split import Product, alike

SIZE = 4  # all tensors are 4 x 4


def in_place(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = a.clone()
    y[:, 1] += b[0]
    return y


OPERATORS: list[Any] = [
    torch.add,
    torch.mul,
    in_place,
    lambda a, b: a @ b / 2,
    lambda a, b: a - b.t(),
    lambda a, b: torch.tanh(a),
    lambda a, b: a.sum(0) + b,
    lambda a, b: torch.cat([a[:2], b[2:]]),
    lambda a, b: torch.cat(a.sin().split(2)[::-1]),
    lambda a, b: Product.apply(a, b) / 2,
]


class Drawn:
    """A graph: `steps` are operators and the numbers of what they take, among inputs, weights and earlier results."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.seed = seed
        self.inputs = [draw.random() < 0.7 for _ in range(draw.randint(1, 3))]  # whether they need a gradient
        self.weights = [draw.random() < 0.85 for _ in range(draw.randint(1, 5))]
        leaves, count = len(self.inputs) + len(self.weights), draw.randint(1, 14)
        self.steps = [
            (draw.choice(OPERATORS), draw.randrange(leaves + k), draw.randrange(leaves + k)) for k in range(count)
        ]
        self.outputs = [leaves + count - 1] + [draw.randrange(leaves + count) for _ in range(draw.randint(0, 2))]
        self.missing = [draw.random() < 0.15 for _ in self.outputs]  # which of their gradients do not come

    def backward(self, split: bool) -> tuple[list[Any], list[Any]] | None:
        """The gradients of inputs and weights, and what hooks saw; None: nothing has a gradient."""
        generator = torch.Generator().manual_seed(self.seed)
        inputs, weights = (
            tuple(torch.randn(SIZE, SIZE, generator=generator).requires_grad_(needs) for needs in leaves)
            for leaves in (self.inputs, self.weights)
        )
        seen: list[list[torch.Tensor]] = [[] for _ in weights]
        for weight, seen_here in zip(weights, seen, strict=True):
            if weight.requires_grad:
                weight.register_hook(lambda g, to=seen_here: to.append(g.clone()))
                weight.register_post_accumulate_grad_hook(lambda p, to=seen_here: to.append(p.grad.clone()))
        values = [*entering(inputs), *weights]
        for operator, a, b in self.steps:
            values.append(operator(values[a], values[b]))
        outputs = tuple(values[place] for place in self.outputs)
        drawn = [torch.randn(SIZE, SIZE, generator=generator) for _ in outputs]
        if not any(t.requires_grad for t in outputs):
            return None
        gradients = tuple(
            None if missing else gradient
            for t, gradient, missing in zip(outputs, drawn, self.missing, strict=True)
            if t.requires_grad
        )
        if split:
            arrived, left = backward_to_inputs(outputs, gradients, inputs)
            left.accumulate()
        else:
            arrived = backward_through(outputs, gradients, inputs)
        return [*arrived, *(weight.grad for weight in weights)], [each for one in seen for each in [None, *one]]


def test_the_parts_of_any_graph_are_the_whole_bit_for_bit() -> None:
    compared = 0
    for seed in range(400):
        graph = Drawn(seed)
        whole, split = graph.backward(split=False), graph.backward(split=True)
        if whole is not None and split is not None:
            assert alike(whole[0], split[0]) and alike(whole[1], split[1]), seed
            compared += 1
    assert compared > 300


def in_turn(split: bool) -> torch.Tensor:
    """The gradient of a weight that the third microbatch uses twice, so that its B computes it; W are two late."""
    generator = torch.Generator().manual_seed(0)
    weight, waiting = torch.randn(16, 16, generator=generator).requires_grad_(), list[Later]()
    for m in range(4):
        x, gradient = (torch.randn(16, 16, generator=generator) for _ in range(2))
        x.requires_grad_()
        y = entering(x) @ weight
        y = y @ weight if m == 2 else y
        if not split:
            backward_through(y, (gradient,), x)
            continue
        waiting.append(backward_to_inputs(y, (gradient,), x, waiting)[1])
        assert (weight.grad is not None) == (m > 2)  # nothing is added before the first W
        if m >= 2:
            waiting.pop(0).accumulate()
    for left in waiting:
        left.accumulate()
    assert weight.grad is not None
    return weight.grad


def test_gradients_are_added_in_the_order_of_the_microbatches() -> None:
    assert torch.equal(in_turn(split=True), in_turn(split=False))


def test_a_part_of_a_gradient_keeps_the_whole() -> None:
    """What arrives at the linear layer is a part of what arrived at the join, as in a densely connected network."""
    layer, x = nn.Linear(SIZE, SIZE), torch.randn(SIZE, SIZE, requires_grad=True)
    value = entering(x)
    output = torch.cat([layer(value), torch.tanh(value)], 1).sin()
    _, left = backward_to_inputs(output, (torch.ones_like(output),), x)
    (kept,) = left.parts[0].gradients
    assert kept.shape == (SIZE, SIZE) and left.bytes == kept.untyped_storage().nbytes() == 2 * kept.nbytes


def test_a_layer_that_torch_has_compiled() -> None:
    """Its backward may overwrite what the forward has saved, and is run once."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE))
    layers = nn.Sequential(nn.Linear(SIZE, SIZE), torch.compile(inner, backend="aot_eager"), nn.Tanh())
    x, gradient, found = torch.randn(3, SIZE, requires_grad=True), torch.randn(3, SIZE), []
    for split in (False, True):
        output = layers(entering(x))
        if split:
            arrived, left = backward_to_inputs(output, (gradient,), x)
            left.accumulate()
        else:  # the backward is compiled now, for a graph that is not kept
            arrived = backward_through(output, (gradient,), x)
        found.append([*arrived, *(p.grad for p in layers.parameters())])
        layers.zero_grad()
        x.grad = None
    assert alike(*found)
