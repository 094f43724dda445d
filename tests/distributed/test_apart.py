"""Gradients of weights computed apart (W) on real workers: layers of any kind, and schedules of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.methods import get
from pipelag.schedules import Action, Schedule
from pipelag.schedules.library import one_f_one_b
from pipelag.stage.phase import Phase
from pipelag.tensors import as_tuple
from tests.stage.test_split import LAYERS
from tests.toy import Noise, convolutional, equal, sgd

pytestmark = pytest.mark.real
KINDS = (
    *("one weight in several operators", "weights of computed weights", "the user's functions", "norms", "lstm", "gru"),
    *("a checkpoint inside", "a frozen weight", "attention", "a weight alone", "the input itself", "nothing to train"),
)


class Head(nn.Module):
    """Two classes from all that comes."""

    def forward(self, value: Any) -> torch.Tensor:
        mean = sum(part.flatten(1).mean(1) if part.dim() > 1 else part.mean() for part in as_tuple(value))
        return torch.stack([mean, -mean], dim=1)


class Numbers:
    """Minibatches of 8 x 6 numbers."""

    def inputs(self, t: int) -> torch.Tensor:
        return torch.randn(8, 6, generator=torch.Generator().manual_seed(t))

    def targets(self, t: int) -> torch.Tensor:
        return (self.inputs(t).sum(1) > 0).long()

    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs(t), self.targets(t)


def model(kind: str) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), LAYERS[kind](), Head())


def each(job: Job, cuts: Sequence[int]) -> list[dict[str, torch.Tensor]]:
    ends, loss = [], nn.functional.cross_entropy
    for kind in KINDS:
        layers, phases = model(kind), [Phase(get("zb_h1"), 5, tuple(cuts), microbatches=2)]
        training = RealTraining(job, layers.train(), phases, sgd, loss, rate=lambda step: 1.0, seed=5)
        training.run(Numbers().inputs, Numbers().targets)
        ends.append(layers.state_dict())
    return ends


@pytest.mark.parametrize("cuts", [(1,), (2,)])
def test_layers_of_any_kind_learn_what_they_learn_simulated(cuts: tuple[int, ...]) -> None:
    ends = launch(each, 2, "cpu", 1, cuts=cuts)
    for kind, real in zip(KINDS, ends, strict=True):
        layers = model(kind)
        pipelag.train(layers, Numbers(), method="zb_h1", steps=5, cuts=cuts, microbatches=2, optimizer=sgd, seed=5)
        simulated = layers.state_dict()
        if kind == "a checkpoint inside":  # what its second forward does to batch statistics depends on when it runs
            real, simulated = ({k: v for k, v in each.items() if "running" not in k} for each in (real, simulated))
        assert equal(simulated, real), kind


def late(stages: int, minibatches: int) -> Schedule:
    """1F1B in which a W comes after the next forward, which reads newer weights."""
    rows = []
    for row in one_f_one_b(stages, minibatches).workers:
        actions: list[Action] = []
        for action in row:
            actions += [action._replace(kind="W"), action] if action.kind == "U" else [action]
        for at, (w, u, f) in enumerate(zip(actions, actions[1:], actions[2:], strict=False)):
            if (w.kind, u.kind, f.kind) == ("W", "U", "F"):
                actions[at : at + 3] = [f, w, u]
        rows.append(tuple(actions))
    return Schedule("late_w", stages, minibatches, tuple(rows))


@pytest.mark.parametrize("reads", ["stashed", "live"])
def test_w_reads_what_its_backward_read(reads: Any) -> None:
    """The schedule is asynchronous: between B and W a forward has read another version of the weights."""
    assert late(2, 3).grid().splitlines() == [
        "1F0 1F1 1B0 1F2 1W0 1B1 1W1 1B2 1W2",
        "2F0 2B0 2F1 2W0 2B1 2F2 2W1 2B2 2W2",
    ]
    method, ends = replace(get("pipedream"), name="late", build=late, backward_reads=reads), []
    for executor in ("simulated", "real"):
        layers = convolutional()
        pipelag.train(layers, Noise(), method=method, cuts=(2, 4), steps=12, optimizer=sgd, executor=executor)
        ends.append(layers.state_dict())
    assert equal(*ends)


class Slices(Numbers):
    """Minibatches that are views of one data set."""

    def __init__(self) -> None:
        self.rows = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))

    def inputs(self, t: int) -> torch.Tensor:
        return self.rows[8 * t : 8 * t + 8]

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize(("method", "parts"), [("zb_h1", 4), ("gpipe", 2), ("1f1b", 1)])
def test_a_first_layer_may_change_its_minibatch_while_others_are_under_way(method: str, parts: int) -> None:
    """Autograd took a change in one view for a change in what another microbatch had saved."""
    ends = []
    for executor in ("simulated", "real"):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Dropout(0.2, inplace=True), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
        pipelag.train(layers, Slices(), method=method, cuts=(2,), microbatches=parts, executor=executor)
        ends.append(layers.state_dict())
    assert equal(*ends)
