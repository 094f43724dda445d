"""The formulas of a GPT against the counts of a module that is one."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from pipelag.models.gpt import GPT
from pipelag.timing.storages import Saved, id_of

SIZES = GPT(blocks=2, width=32, heads=4, vocabulary=211, context=24)
SEQUENCES = 3


class Embedding(nn.Module):
    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(gpt.vocabulary, gpt.width), nn.Embedding(gpt.context, gpt.width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.words(words) + self.places.weight


class Attention(nn.Module):
    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.heads, self.norm = gpt.heads, nn.LayerNorm(gpt.width)
        self.qkv, self.out = nn.Linear(gpt.width, 3 * gpt.width), nn.Linear(gpt.width, gpt.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, w = x.shape
        q, k, v = (y.view(n, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, w)
        return x + self.out(y)


class Hidden(nn.Module):
    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(gpt.width)
        self.net = nn.Sequential(nn.Linear(gpt.width, 4 * gpt.width), nn.GELU(), nn.Linear(4 * gpt.width, gpt.width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.net(self.norm(x))


class Head(nn.Module):
    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(gpt.width), nn.Linear(gpt.width, gpt.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = F.log_softmax(self.words(self.norm(x)), -1).flatten(0, 1)
        targets = torch.arange(len(shares)) % shares.shape[1]
        return -shares.gather(1, targets[:, None]).mean()


def module(gpt: GPT) -> list[nn.Module]:
    blocks = [half for _ in range(gpt.blocks) for half in (Attention(gpt), Hidden(gpt))]
    return [Embedding(gpt), *blocks, Head(gpt)]


def measured(layer: nn.Module, value: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int, int, int]]:
    """The output, (operations forward, backward, those that a backward of the input alone saves, bytes kept besides
    weights and input)."""
    keep = Saved({id_of(p) for p in layer.parameters()} | {id_of(value)})
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), FlopCounterMode(display=False) as ahead:
        out = layer(value)
    inside = sum(size for place, size in keep.bytes.items() if place != id_of(out))
    with FlopCounterMode(display=False) as alone:
        if value.requires_grad:
            torch.autograd.grad(out, value, torch.ones_like(out), retain_graph=True)
    with FlopCounterMode(display=False) as back:
        out.backward(torch.ones_like(out))
    operations = ahead.get_total_flops(), back.get_total_flops(), back.get_total_flops() - alone.get_total_flops()
    return out.detach().requires_grad_(), (*operations, inside)


def test_the_formulas_are_the_counts_of_a_module() -> None:
    value: torch.Tensor = torch.randint(SIZES.vocabulary, (SEQUENCES, SIZES.context))
    places = SEQUENCES * SIZES.context * 8  # the head's targets, whole numbers, which the formula leaves out
    for layer, counted in zip(module(SIZES), SIZES.layers(SEQUENCES, element=4), strict=True):
        value, (forward, backward, weights, inside) = measured(layer, value)
        assert sum(p.numel() for p in layer.parameters()) == counted.parameters, counted.name
        assert value.numel() * 4 == counted.output_bytes, counted.name
        assert forward == counted.forward, counted.name
        assert backward == counted.backward, counted.name
        assert weights == counted.weight_gradient, counted.name
        extra = places if counted.name == "output" else 0
        assert inside - extra == counted.kept_bytes - counted.output_bytes, counted.name


def test_known_sizes() -> None:
    gpt = GPT(blocks=96, width=12288, heads=96)  # GPT-3: 175 billion parameters (arXiv 2005.14165, table 2.1)
    assert abs(gpt.parameters / 175e9 - 1) < 0.01
    assert gpt.layers(2)[1].forward == 2 * gpt.layers(1)[1].forward


def test_half_precision_halves_what_is_kept_in_the_working_precision() -> None:
    """Statistics, and the logarithms that the loss keeps, stay in float32."""
    words, w = SEQUENCES * SIZES.context, SIZES.width
    numbers = {"embedding": w, "attention": 6 * w, "hidden": 10 * w, "output": w}  # norms, products, sums of a word
    for half, full in zip(SIZES.layers(SEQUENCES, element=2), SIZES.layers(SEQUENCES, element=4), strict=True):
        assert full.kept_bytes - half.kept_bytes == 2 * words * numbers[half.name], half.name
        crosses = 0 if half.name == "output" else 2 * words * w  # the loss is one number
        assert full.output_bytes - half.output_bytes == crosses, half.name
        assert (half.parameters, half.forward, half.backward) == (full.parameters, full.forward, full.backward)
