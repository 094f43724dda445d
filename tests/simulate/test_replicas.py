"""Simulated replicas of a stage train as PipeDream's section 3.2 says: in rounds, by their mean gradient."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pipelag
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase

STEPS, LR, MOMENTUM, DECAY = 14, 0.3, 0.9, 0.01
Weights = list[torch.Tensor]


def rate(step: int) -> float:
    """A rate that differs at every minibatch, so that it shows which minibatch's rate a round's update has."""
    return 1 / (1 + step / 3)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS, 8, 6, generator=draw, dtype=torch.float64)
    return [(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()) for x in inputs]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)).double()


class Stepping:
    """SGD with momentum and L2 that keeps every version of the weights."""

    def __init__(self, weights: Weights) -> None:
        self.versions, self.velocity = [weights], list[torch.Tensor]()

    def step(self, gradients: Weights, lr: float) -> None:
        decayed = [g + DECAY * w for g, w in zip(gradients, self.versions[-1], strict=True)]
        velocity = zip(self.velocity or [torch.zeros_like(g) for g in decayed], decayed, strict=True)
        self.velocity = [MOMENTUM * v + g for v, g in velocity]
        self.versions.append([w - lr * v for w, v in zip(self.versions[-1], self.velocity, strict=True)])


def spelled_out() -> Weights:
    """PipeDream with two replicas of stage 1 and one of stage 2, written out; the weights at the end.

    NOAM is 2: each replica has two minibatches under way, so that round n reads version n - 1 of stage 1. Stage 2 runs
    each backward right after its forward. Weights are stashed. A round's update is made with its last minibatch, at
    the rate of that minibatch.
    """
    own = [p.detach().clone() for p in model().parameters()]
    first, second, share = Stepping(own[:2]), Stepping(own[2:]), list[Weights]()
    for m, (x, y) in enumerate(batches()):
        n = m // 2
        read = [w.clone().requires_grad_() for w in (*first.versions[max(0, n - 1)], *second.versions[m])]
        loss = F.cross_entropy(F.linear(torch.tanh(F.linear(x, *read[:2])), *read[2:]), y)
        gradients = list(torch.autograd.grad(loss, read))
        second.step(gradients[2:], LR * rate(m))
        share.append(gradients[:2])
        if m % 2:
            first.step([(a + b) / 2 for a, b in zip(*share, strict=True)], LR * rate(m))
            share.clear()
    return first.versions[-1] + second.versions[-1]


def test_a_round_of_replicas_is_one_update_by_its_mean() -> None:
    ours = model()
    pipelag.train(
        ours,
        batches(),
        method="pipedream",
        cuts=(1,),
        replicas=(2, 1),
        optimizer=lambda params: torch.optim.SGD(params, lr=LR, momentum=MOMENTUM, weight_decay=DECAY),
        rate=rate,
    )
    for weight, expected in zip(ours.parameters(), spelled_out(), strict=True):
        torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-12)


def test_statistics_are_those_of_the_first_replica() -> None:
    """The model keeps the first replica's batch norm, in which the other replica's minibatches leave no trace."""
    network = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    phase = Phase(get("pipedream"), STEPS, replicas=(2,))
    training = SimulatedTraining(network.train(), [phase], lambda p: torch.optim.SGD(p, lr=0.1), F.cross_entropy)
    alone = nn.BatchNorm1d(6).double().train()
    for m, (x, y) in enumerate(batches()):
        training.step(x, y)
        if m % 2 == 0:
            alone(x)
    assert all(torch.equal(a, b) for a, b in zip(network[0].buffers(), alone.buffers(), strict=True))


@pytest.mark.parametrize("where", ["second microbatch", "update"])
def test_a_step_of_a_round_that_is_interrupted_is_not_added_twice(where: str) -> None:
    """It is refused if it is taken again after part of it was added; from a checkpoint the training goes on."""
    phase, data, calls = Phase(get("stale_weights"), STEPS, (1,), microbatches=2, replicas=(2, 1)), batches(), [0, -1]

    def fail(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == calls[1]:
            raise ValueError("fails")

    def make(params: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(params, lr=LR)
        if where == "update":
            optimizer.register_step_pre_hook(fail)
        return optimizer

    losses = []
    for fails in (False, True):
        network = model()
        if where != "update":
            network[1].register_forward_pre_hook(fail)
        training = SimulatedTraining(network, [phase], make, F.cross_entropy)
        losses.append([training.step(*data[t]) for t in range(5)])
        if fails:
            state = copy.deepcopy(training.state_dict())
            calls[1] = calls[0] + (1 if where == "update" else 2)
            with pytest.raises(ValueError, match="fails"):
                training.step(*data[5])
            with pytest.raises(PipelagError, match="interrupted; continue from a checkpoint"):
                training.step(*data[5])
            training.load_state_dict(state)
        losses[-1] += [training.step(*data[t]) for t in range(5, STEPS)]
    assert losses[0] == losses[1]


def test_a_first_step_that_failed_leaves_no_replicas_statistics_behind() -> None:
    """In both directions, microbatch 0 goes through one stage's second replica before the loss fails."""
    data, ends = batches(), []
    for fails in (False, True):
        torch.manual_seed(0)
        network = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
        left = [fails]

        def loss(output: torch.Tensor, targets: torch.Tensor, left: list[bool] = left) -> torch.Tensor:
            if left and left.pop():
                raise ValueError("fails")
            return F.cross_entropy(output, targets)

        phase = Phase(get("bidirectional"), STEPS, (2,), microbatches=2)
        training = SimulatedTraining(network.train(), [phase], lambda p: torch.optim.SGD(p, lr=LR), loss)
        if fails:
            with pytest.raises(ValueError, match="fails"):
                training.step(*data[0])
        for t in range(4):
            training.step(*data[t])
        state = training.state_dict()
        kept = state["pipeline"]["buffers"]
        ends.append([*state["model"].values(), *(buffer for key in sorted(kept) for buffer in kept[key])])
    assert len(ends[0]) > len(list(network.state_dict())) and all(map(torch.equal, *ends))
