"""Weights that layers in several stages use: they travel with the activations, and their gradients come back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import pipelag
from pipelag.errors import PipelagError

WORDS = torch.randint(12, (10, 6, 5), generator=torch.Generator().manual_seed(0))
BATCHES = [(words[:, :-1], words[:, 1:]) for words in WORDS]


class Language(nn.Module):
    """A language model whose output layer has the embedding's weight, behind a layer of another one."""

    def __init__(self, tied: str = "head") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.places = nn.Embedding(12, 4), nn.Embedding(4, 4)
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 12, bias=False)
        if tied == "head":
            self.head.weight = self.embed.weight
        else:
            self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(()))
        self.double()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words) + self.places.weight * self.scale
        return self.head(self.second(torch.tanh(self.first(hidden))).tanh() / self.scale)


class Shown(nn.Embedding):
    """An embedding that returns its weight, too."""

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(words), self.weight


class Beside(nn.Linear):
    """A layer that passes on a weight."""

    def forward(self, given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(given[0]).tanh(), given[1]


class Product(nn.Module):
    """An output layer without a weight of its own."""

    def forward(self, given: Any) -> torch.Tensor:
        return functional.linear(*given)


def next_word(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def row_of(model: nn.Module, **how: Any) -> pipelag.models.linearise.Linearised:  # type: ignore[name-defined]
    return pipelag.linearise(model, inputs={"words": BATCHES[0][0]}, **{"carry_tied": True} | how)


def trained(model: nn.Module, row: nn.Sequential, method: str, cuts: tuple[int, ...], **how: Any) -> torch.Tensor:
    optimizer = {"name": "sgd", "lr": 0.3, "momentum": 0.9}
    pipelag.train(row, BATCHES, method=method, cuts=cuts, loss=next_word, optimizer=optimizer, seed=0, **how)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("tied", ["head", "second"])
@pytest.mark.parametrize("method", ["sequential", "gpipe", "zb_h1"])
def test_without_staleness_a_tied_model_trains_as_it_does_without_a_pipeline(method: str, tied: str) -> None:
    plain, model = Language(tied), Language(tied)
    optimizer = torch.optim.SGD(plain.parameters(), 0.3, momentum=0.9)
    for words, targets in BATCHES:
        optimizer.zero_grad()
        next_word(plain(words), targets).backward()
        optimizer.step()
    expected = nn.utils.parameters_to_vector(plain.parameters()).detach()
    row = row_of(model)
    assert [layer.label for layer in row] == ["embed", "mul", "first", "second", "head"]
    assert [layer.gives for layer in row] == ([2, 2, 2, 2, 1] if tied == "head" else [1, 1, 2, 1, 1])  # without `scale`
    assert sum(p.numel() for layer in row for p in layer.parameters()) == expected.numel()  # each in one layer
    cuts = (1, 4) if tied == "head" else (2, 3)
    torch.testing.assert_close(trained(model, row, method, cuts), expected, rtol=0, atol=1e-12)


@pytest.mark.real
@pytest.mark.parametrize("method", ["1f1b", "pipedream", "pipemare", "pipeoptim"])
def test_simulated_stages_carry_what_real_workers_send(method: str) -> None:
    ends = []
    for executor in ({"executor": "simulated"}, {"executor": "real", "workers": 3}):
        model = Language()
        ends.append(trained(model, row_of(model), method, (1, 4), **executor))
    assert ends[0].equal(ends[1])


@pytest.mark.parametrize("how", [{}, {"microbatches": 2, "method": "pipemare_naive", "grouped": True}], ids=str)
def test_a_stage_that_returns_its_weight_hands_on_the_version_that_it_has_read(how: dict[str, Any]) -> None:
    """The backward of the last stage, which changes no weight of its own, reads what its forward has read."""
    ends = []
    for copied in (False, True):
        torch.manual_seed(0)
        row = nn.Sequential(Shown(12, 4), Beside(4, 4), Product())
        if copied:
            row[0].register_forward_hook(lambda layer, given, out: (out[0], out[1].clone()))
        ends.append(trained(row, row, **{"method": "1f1b", "cuts": (1, 2)} | how))
    assert ends[0].equal(ends[1])


def test_a_cut_between_tied_layers_says_how_to_carry_the_weight() -> None:
    row = row_of(Language(), carry_tied=False)
    with pytest.raises(PipelagError, match="share a parameter .*linearise.*carry_tied=True"):
        pipelag.train(row, BATCHES, cuts=(1,), loss=next_word, lr=0.1)


def test_a_tied_weight_inside_a_module_that_is_kept_whole_is_refused() -> None:
    with pytest.raises(PipelagError, match=r"^'embed' uses a weight of other layers.*inputs=\{'name': tensor\}"):
        pipelag.linearise(Language(), carry_tied=True)
