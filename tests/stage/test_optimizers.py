"""The optimizers that torch lacks follow their papers, and one that a stage cannot step by itself is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.optimizers import LARS, counted, group_by_stage
from pipelag.stage.phase import Phase


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


def test_lars_leaves_a_parameter_without_a_gradient_alone() -> None:
    still, moved = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([still, moved], 0.5, weight_decay=0.1)
    moved.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(still, torch.ones(2, 2)) and still not in optimizer.state and not torch.equal(moved, still)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_count_in_a_group_may_be_a_tensor(in_place: bool) -> None:
    """What an optimizer has counted since it was made belongs to a checkpoint; its other settings do not."""
    weight = nn.Parameter(torch.ones(2))

    def make(groups: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(groups, lr=0.1)
        optimizer.param_groups[0].update(count=torch.zeros(()), bound=torch.ones(()))
        return optimizer

    optimizer = group_by_stage(make, [[weight]], {}, [1])
    assert optimizer is not None and counted(optimizer) == [{}]
    (group,) = optimizer.param_groups
    group["count"] = group["count"].add_(1) if in_place else group["count"] + 1
    assert counted(optimizer) == [{"count": torch.ones(())}]
    group["bound"] = 1.0  # equal, but no tensor any more
    assert counted(optimizer) == [{"count": torch.ones(()), "bound": 1.0}]


def test_a_stage_has_one_group_or_says_that_it_has_several() -> None:
    def parted(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([group | {"params": [p]} for group in groups for p in group["params"]], lr=0.1)

    for make, several in ((lambda groups: torch.optim.SGD(groups, lr=0.1), False), (parted, True)):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        training = SimulatedTraining(model, [Phase(get("pipedream"), 2, (1,))], make, nn.functional.cross_entropy)
        second = training.pipeline.weights[1]
        assert {group["stage"] for group in second.groups} == {2}
        if several:
            with pytest.raises(
                PipelagError, match="stage 2 has parameter groups whose settings may differ; use `groups`"
            ):
                second.group  # noqa: B018
        else:
            assert training.optimizer is not None and second.group is training.optimizer.param_groups[1]
