"""Prediction rules foresee the updates that optimizers make, after a few steps with gradients that change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.methods.carriers import BySmoothedGradient
from pipelag.methods.prediction import rule_of, step_by
from pipelag.stage.optimizers import CaffeSGD, group_by_stage
from pipelag.stage.policy import StageWeights
from pipelag.stage.weights import FlatParameters

Make = Callable[[Any], torch.optim.Optimizer]
GRADIENTS = torch.randn(5, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
GRADIENTS[0] *= 9  # so that AMSGrad's greatest second moment is the first step's


def stepped(make: Make) -> tuple[nn.Parameter, torch.optim.Optimizer, torch.Tensor]:
    """(a weight, its optimizer after five steps, what the last one has subtracted)."""
    weight = nn.Parameter(torch.ones(4, 3, dtype=torch.float64))
    optimizer = make([weight])
    for gradient in GRADIENTS:
        before = weight.detach().clone()
        weight.grad = gradient.clone()
        optimizer.step()
    return weight, optimizer, before - weight.detach()


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
        lambda params: torch.optim.Adam(params, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
        lambda params: torch.optim.Adam(params, lr=0.1, betas=(0.8, 0.95), eps=1e-3, amsgrad=True),
        lambda params: torch.optim.AdamW(params, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.0),
        lambda params: CaffeSGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
    ],
    ids=["sgd", "adam", "amsgrad", "adamw", "caffe"],
)
def test_the_step_foreseen_is_the_last_one_made(make: Make) -> None:
    """A rule foresees the last update again: table I's Delta W is what the optimizer subtracted last, over its rate."""
    weight, optimizer, made = stepped(make)
    foreseen = step_by(rule_of(optimizer), optimizer.state[weight], optimizer.param_groups[0])
    assert foreseen is not None
    torch.testing.assert_close(foreseen.factor * foreseen.direction, made)


def test_nadam_corrects_its_first_moment_by_its_own_product() -> None:
    """NAdam's predicted step is m / (1 - mu_1 .. mu_t) over the root of v / (1 - beta2^t), plus eps.

    Its factors are mu_t = beta1 (1 - 0.96^(t psi) / 2).
    """
    beta1, beta2, eps, psi = 0.8, 0.95, 1e-3, 0.5
    make = partial(torch.optim.NAdam, lr=0.1, betas=(beta1, beta2), eps=eps, momentum_decay=psi)
    weight, optimizer, _ = stepped(make)
    m, v, product = torch.zeros_like(weight), torch.zeros_like(weight), 1.0
    for t, gradient in enumerate(GRADIENTS, start=1):
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        product *= beta1 * (1 - 0.5 * 0.96 ** (t * psi))
    foreseen = step_by(rule_of(optimizer), optimizer.state[weight], optimizer.param_groups[0])
    assert foreseen is not None
    expected = 0.1 * m / (1 - product) / ((v / (1 - beta2**5)).sqrt() + eps)
    torch.testing.assert_close(foreseen.factor * foreseen.direction, expected.detach())


def policy_of(method: str, make: Make, stages: int = 3) -> tuple[StageWeights, nn.Parameter]:
    """(the policy of a first stage of one matrix before any step, this matrix)."""
    weight = nn.Parameter(torch.ones(4, 3, dtype=torch.float64))
    flat = FlatParameters([weight])
    optimizer = group_by_stage(make, [[weight]], {}, [1])
    chosen = get(method)
    lags = chosen.delays(stages)
    return StageWeights(flat, chosen, 1, stages, lags, optimizer, [weight], back=lags.forward[0]), weight


def update(policy: StageWeights, weight: nn.Parameter, gradient: torch.Tensor) -> None:
    assert policy.optimizer is not None
    weight.grad = gradient.clone()
    policy.before_step()
    policy.optimizer.step()
    policy.after_step()
    policy.prepare()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam])
def test_xpipe_reads_the_moments_that_the_optimizer_keeps(kind: Any) -> None:
    """XPipe predicts w - lr s mbar / sqrt(vbar + eps) (equation 6), with the optimizer's moments, betas and epsilon."""
    beta1, beta2, eps = 0.5, 0.9, 1e-2
    policy, weight = policy_of("xpipe", lambda params: kind(params, lr=0.1, betas=(beta1, beta2), eps=eps))
    policy.begin_at(0)
    m, v = torch.zeros_like(weight), torch.zeros_like(weight)
    for gradient in GRADIENTS:
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        update(policy, weight, gradient)
    live = weight.detach().clone()
    policy.load("F", 5)
    expected = live - 0.1 * 2 * (m / (1 - beta1**5)) / (v / (1 - beta2**5) + eps).sqrt()  # s = D - rank - 1 = 2
    torch.testing.assert_close(weight.detach(), expected.detach())


def test_a_decoupled_decay_is_in_no_gradient_that_a_stage_remembers() -> None:
    """A gradient that a stage remembers contains no decoupled decay.

    Muon and Adafactor decouple it without saying so in their parameter groups.
    """
    policy, weight = policy_of("spectrain", lambda params: torch.optim.Muon(params, lr=0.1, weight_decay=0.5))
    weight.grad = GRADIENTS[0].clone()
    (along,) = policy.gradients()
    assert along is not None and torch.equal(along, GRADIENTS[0])


def partly(groups: Any) -> torch.optim.Optimizer:
    """SGD with momentum for the first tensor of each stage only."""
    parts = [
        {"params": [p], "momentum": 0.9 if place == 0 else 0.0}
        for group in groups
        for place, p in enumerate(group["params"])
    ]
    return torch.optim.SGD(parts, lr=0.1)


def bare(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.1)


def bare_caffe(groups: Any) -> torch.optim.Optimizer:
    return CaffeSGD(groups, lr=0.1)


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)]


BATCHES = [(x, (x.sum(1) > 0).long()) for x in torch.randn(12, 8, 3, generator=torch.Generator().manual_seed(1))]


@pytest.mark.parametrize("make", [partly, bare, bare_caffe])
def test_without_a_momentum_there_is_no_direction_to_repeat(make: Make) -> None:
    """PipeOptim refuses SGD without momentum, even if only some parameters have none."""
    with pytest.raises(PipelagError, match="without momentum keeps no direction to predict from; give it momentum"):
        pipelag.train(layers(), BATCHES, method="pipeoptim", cuts=(2, 4), optimizer=make)


def test_spectrain_averages_gradients_itself_where_a_part_has_no_momentum() -> None:
    weights = [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))]
    optimizer = group_by_stage(partly, [weights], {}, [1])
    method, numbers = get("spectrain"), {p: n for n, p in enumerate(weights)}
    policy = StageWeights(FlatParameters(weights, numbers), method, 1, 3, method.delays(3), optimizer, weights, back=4)
    assert isinstance(policy.readings["F"], BySmoothedGradient)


def test_spectrain_over_caffes_sgd_without_momentum_is_that_over_torchs() -> None:
    """SpecTrain without momentum trains alike over Caffe's and torch's SGD: by equation 1's average of gradients.

    What Caffe's SGD keeps without momentum is no average, but the last gradient.
    """
    ends = []
    for make in (bare, bare_caffe):
        run = pipelag.train(layers(), BATCHES, method="spectrain", cuts=(2, 4), optimizer=make)
        ends.append([parameter.detach() for parameter in run.model.parameters()])
    for caffe, torchs in zip(*ends, strict=True):
        torch.testing.assert_close(caffe, torchs)
