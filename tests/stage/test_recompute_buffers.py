"""A forward that is run again reads the buffers that the first run read, whatever has changed them since."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import pipelag
from tests.toy import equal

X = [(x, (x.sum(1) > 0).long()) for x in torch.randn(12, 8, 6, generator=torch.Generator().manual_seed(0))]


class Rebound(nn.Module):
    """Subtracts a running mean, which is a new tensor after each pass."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        return x - self.mean


class Written(Rebound):
    """Subtracts a running mean that it changes through `data`, as averaged codebooks do, unseen by version counters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.data.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean.clone()


class Late(nn.Module):
    """Multiplies by a running mean that begins with the first minibatch and is saved for the backward."""

    mean: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        now = x.detach().abs().mean(0)
        self.mean = now if self.mean is None else 0.9 * self.mean + 0.1 * now
        return x * self.mean


def spectral() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(6, 6))


LAYERS = {"rebound": Rebound, "written": Written, "late": Late, "spectral norm": spectral}


def trained(layer: str, recompute: bool | int, method: str = "pipedream", **how: Any) -> pipelag.TrainedRun:
    torch.manual_seed(0)
    model = [nn.Linear(6, 6), LAYERS[layer](), nn.Tanh(), nn.Linear(6, 6), LAYERS[layer](), nn.Linear(6, 2)]
    return pipelag.train(model, X, method=method, cuts=(1, 3, 4), microbatches=2, recompute=recompute, **how)


def alike(one: pipelag.TrainedRun, other: pipelag.TrainedRun) -> bool:
    return equal(one.model.state_dict(), other.model.state_dict()) and one.metrics == other.metrics


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("method, recompute", [("pipedream", True), ("gpipe", True), ("pipedream_cycle", 2)])
def test_with_the_forwards_weights_recomputing_changes_nothing(layer: str, method: str, recompute: bool | int) -> None:
    assert alike(trained(layer, recompute, method), trained(layer, False, method))


@pytest.mark.real
@pytest.mark.parametrize("method, recompute", [("pipemare_naive", True), ("pipemare_naive", 2)])
def test_real_workers_read_the_same_buffers_again(method: str, recompute: bool | int) -> None:
    simulated = trained("written", recompute, method)
    assert alike(trained("written", recompute, method, executor="real"), simulated)
