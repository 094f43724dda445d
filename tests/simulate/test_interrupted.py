"""A step that failed may be taken again where that is exact; after an update that failed half way it is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from tests.toy import Noise, convolutional, equal


class Tripping(SGD):
    """SGD whose step fails once, as `left` says how many steps later, when it has updated some of the parameters."""

    left = 1_000

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.left -= 1
        for number, group in enumerate(self.param_groups):
            if self.left == 0 and number == 2:
                raise RuntimeError("tripped")
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)


class Hooked(SGD):
    """SGD with a hook after its step that fails once."""

    left = 1_000

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr, momentum=0.9)
        self.register_step_post_hook(self.trip)

    def trip(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("tripped")


def training_of(method: str, kind: Any, bf16: bool = False) -> SimulatedTraining:
    phases = [Phase(methods.get(method), 8, (1, 2, 4))]
    loss = nn.functional.cross_entropy
    return SimulatedTraining(convolutional(), phases, lambda params: kind(params, lr=0.01), loss, seed=3, bf16=bf16)


@pytest.mark.parametrize(
    ("method", "kind", "bf16"),
    [
        ("sequential", Tripping, False),
        ("pipemare", Tripping, False),
        ("pipemare", Tripping, True),
        ("pipedream", Hooked, False),
        ("pipedream", Hooked, True),
    ],
)
def test_an_update_that_failed_half_way_is_not_made_twice(method: str, kind: Any, bf16: bool) -> None:
    batches, whole, training = Noise(), training_of(method, kind, bf16), training_of(method, kind, bf16)
    losses = [whole.step(*batches[t]) for t in range(8)]
    for t in range(3):
        training.step(*batches[t])
    state = copy.deepcopy(training.state_dict())
    training.optimizer.left = 1  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="tripped"):
        training.step(*batches[3])
    for again in (lambda: training.step(*batches[3]), training.state_dict):
        with pytest.raises(PipelagError, match="interrupted; continue from a checkpoint"):
            again()
    training.load_state_dict(state)
    assert [training.step(*batches[t]) for t in range(3, 8)] == losses[3:]
    assert equal(training.model.state_dict(), whole.model.state_dict())


def test_a_layer_that_is_refused_has_left_no_trace() -> None:
    class Scaling(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._conv_forward(x, self.weight * 2, self.bias)

    model = nn.Sequential(*list(convolutional())[:3], Scaling(8, 8, 1), *list(convolutional())[3:])
    before = copy.deepcopy(model.state_dict())
    phases = [Phase(methods.get("stale_weights"), 8, (1, 2, 5))]
    training = SimulatedTraining(model, phases, lambda params: SGD(params, lr=0.01), nn.functional.cross_entropy)
    with pytest.raises(PipelagError, match="keeps a derived copy"):
        training.step(*Noise()[0])
    training.close()
    assert equal(before, model.state_dict())


def test_weights_that_a_loop_replaces_are_refused() -> None:
    training = training_of("pipedream", SGD)
    for t in range(4):
        training.step(*Noise()[t])
    for parameter in training.model.parameters():
        parameter.data = parameter.data.clamp(-0.1, 0.1)
    with pytest.raises(PipelagError, match=r"the parameter '0.0.weight' was given another tensor"):
        training.step(*Noise()[4])


def test_a_rate_that_somebody_else_sets_is_refused() -> None:
    training = training_of("pipedream", SGD)
    training.step(*Noise()[0])
    for group in training.optimizer.param_groups:  # type: ignore[union-attr]
        group["lr"] = 0.001
    with pytest.raises(PipelagError, match=r"the learning rate of stage 1 was set to 0.001 in the optimizer"):
        training.step(*Noise()[1])
    for group in training.optimizer.param_groups:  # type: ignore[union-attr]
        group["lr"], group["base_lr"] = 0.01, 0.001
    training.step(*Noise()[1])
    assert {group["lr"] for group in training.optimizer.param_groups} == {0.001}  # type: ignore[union-attr]
