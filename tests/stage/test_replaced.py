"""Code of the user's that puts other tensors in the place of weights trains them all the same, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.errors import PipelagError
from tests.toy import equal


class Descent(torch.optim.Optimizer):
    """Plain gradient descent, in one of the forms in which it is written."""

    rebinds = False

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if self.rebinds:
                    p.data = p.data - group["lr"] * p.grad
                else:
                    p.data.sub_(group["lr"] * p.grad)


class Rebinding(Descent):
    rebinds = True


class Viewing(Descent):
    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.views = [p.data for group in self.param_groups for p in group["params"]]


class Flat(Descent):
    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data.clone()


def clamping(params: Any) -> torch.optim.Optimizer:
    """SGD with a hook that clips the weights."""

    def clamp(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.data = p.data.clamp(-0.2, 0.2)

    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    optimizer.register_step_post_hook(clamp)
    return optimizer


class Late(nn.Linear):
    """A layer that does something to its weight from its twelfth forward on."""

    def __init__(self, does: Callable[[nn.Linear], torch.Tensor | None], begins: int = 12) -> None:
        super().__init__(8, 8)
        self.does, self.begins, self.calls = does, begins, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        other = self.does(self) if self.calls > self.begins else None
        return nn.functional.linear(x, self.weight if other is None else other, self.bias)


def rebound(layer: nn.Linear) -> None:
    layer.weight.data = torch.renorm(layer.weight.data, 2, 0, 1.0)


def overwritten(layer: nn.Linear) -> None:
    layer.weight.data.copy_(torch.renorm(layer.weight.data, 2, 0, 0.1))


def standardised(layer: nn.Linear) -> torch.Tensor:
    return layer.weight - layer.weight.mean()


def batches(steps: int = 12) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(x, (x.sum(1) > 0).long()) for x in torch.randn(steps, 8, 8, generator=generator)]


def trained(optimizer: Any = Descent, steps: int = 12, layer: nn.Module | None = None, **how: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8), nn.Tanh(), layer or nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]
    run = pipelag.train(layers, batches(steps), optimizer=optimizer, **({"cuts": (2, 4)} | how))
    return run.model.state_dict()


HOW = [
    {"method": "pipedream"},
    {"method": "stale_weights"},
    {"method": "gpipe", "microbatches": 2},
    {"method": "pipemare", "recompute": True},
    {"method": "pipedream", "precision": "bf16"},
    pytest.param({"method": "stale_weights", "executor": "real"}, marks=pytest.mark.real),
    pytest.param({"method": "asp", "executor": "real", "workers": 1, "cuts": ()}, marks=pytest.mark.real),
]


@pytest.mark.parametrize("how", HOW[:-1])
def test_an_optimizer_may_give_its_parameters_new_tensors(how: dict[str, Any]) -> None:
    assert equal(trained(Rebinding, **how), trained(Descent, **how))


def test_so_may_a_hook_of_the_optimizer() -> None:
    state = trained(clamping, method="pipedream")
    assert all(value.abs().max() <= 0.2 for value in state.values())


@pytest.mark.parametrize("kind", [Viewing, Flat])
def test_an_optimizer_that_keeps_the_memory_of_weights_is_refused(kind: type[torch.optim.Optimizer]) -> None:
    with pytest.raises(PipelagError, match=f"{kind.__name__} keeps views of its parameters' memory"):
        trained(kind)


@pytest.mark.parametrize("how", [*HOW[:-3], {"method": "sequential", "cuts": ()}])
def test_a_forward_that_gives_its_layer_a_new_weight_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(PipelagError, match=r"the forward of stage \d puts another tensor in the place of '\d.weight'"):
        trained(layer=Late(rebound, begins=0), **how)


@pytest.mark.parametrize("how", [{}, pytest.param({"executor": "real"}, marks=pytest.mark.real)])
@pytest.mark.parametrize(
    ("does", "why"),
    [(rebound, "puts another tensor"), (overwritten, "in place"), (standardised, "keeps a derived copy")],
)
def test_what_a_layer_begins_to_do_later_is_refused_too(does: Any, why: str, how: dict[str, Any]) -> None:
    trained(layer=Late(does, begins=14), steps=14, method="stale_weights", **how)
    with pytest.raises(PipelagError, match=why):
        trained(layer=Late(does), steps=20, method="stale_weights", **how)


def test_settings_that_change_in_an_instance_that_was_only_shown_are_told() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    shown = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="were changed during the training, which had no effect"):
        pipelag.train(
            model, batches(), optimizer=shown, cuts=(1,), on_step=lambda *_: shown.param_groups[0].update(lr=0.01)
        )
