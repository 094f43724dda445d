"""The optimizers that torch lacks follow their papers, and one that a stage cannot step by itself is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.stage.optimizers import LARS, group_by_stage


def test_lars_is_its_papers_rule() -> None:
    """LARS follows the rule of You et al. 2017.

    lambda = eta |w| / (|g| + beta |w|), v <- m v + lr lambda (g + beta w), w <- w - v. Vectors, and matrices whose
    weights or gradients are zero, take the plain rate.
    """
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(size, generator=generator, dtype=torch.float64) for size in ((4, 3), (2, 3, 2, 2), (5,))]
    weights += [torch.zeros(3, 3, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)]
    ours = [nn.Parameter(w.clone()) for w in weights]
    lr, momentum, beta, eta = 0.5, 0.8, 0.1, 0.02
    optimizer = LARS(ours, lr, momentum, beta, eta)
    velocities = [torch.zeros_like(w) for w in weights]
    for step in range(4):
        for i, parameter in enumerate(ours):
            g = torch.randn(weights[i].shape, generator=generator, dtype=torch.float64)
            g = torch.zeros_like(g) if i == 4 else g
            parameter.grad, w = g.clone(), weights[i]
            plain = i in (2, 4) or (i == 3 and step == 0)
            rate = lr if plain else lr * eta * w.norm() / (g.norm() + beta * w.norm())
            velocities[i] = momentum * velocities[i] + rate * (g + beta * w)
            weights[i] = w - velocities[i]
        optimizer.step()
        for parameter, expected in zip(ours, weights, strict=True):
            torch.testing.assert_close(parameter.detach(), expected)


class Twice(torch.optim.SGD):
    """An optimizer that needs a closure, as sharpness-aware ones do: they compute the loss again at another point."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


def test_an_optimizer_that_asks_for_the_loss_again_is_refused() -> None:
    with pytest.raises(PipelagError, match="Twice computes the loss again within its step, which a pipeline cannot"):
        group_by_stage(lambda params: Twice(params, lr=0.1), [[nn.Parameter(torch.ones(2))]], {}, [1])
