"""Methods train complex weights as they train their real and imaginary parts, which is what torch's optimizers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipelag

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.3, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.02, weight_decay=0.0),
}


class Complex(nn.Module):
    """(samples, 8) -> (samples, 8), by a complex matrix or by its real and its imaginary part."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        matrix = torch.randn(8, 8, dtype=torch.complex128) / 3
        self.parts = nn.ParameterList([matrix] if whole else [matrix.real.clone(), matrix.imag.clone()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.parts) > 1:
            return x @ self.parts[0].t() + x @ self.parts[1].t()
        product = x.to(torch.complex128) @ self.parts[0].t()
        return product.real + product.imag


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["stale_weights", "pipemare", "pipeoptim", "spectrain", "xpipe", "dc_asgd"])
def test_complex_weights_are_trained_as_their_parts(method: str, optimizer: str) -> None:
    generator = torch.Generator().manual_seed(2)
    samples = torch.randn(12, 16, 8, generator=generator, dtype=torch.float64)
    batches = [(x, (x.sum(1) > 0).long()) for x in samples]

    def losses(whole: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), Complex(whole), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        model.append(nn.Linear(8, 2))
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.double()
        run = pipelag.train(model, batches, method=method, cuts=(3, 5), optimizer=OPTIMIZERS[optimizer])
        return [row["loss"] for row in run.metrics]

    assert losses(True) == pytest.approx(losses(False), rel=0, abs=1e-12)
