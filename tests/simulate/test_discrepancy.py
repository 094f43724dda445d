"""Distances and predictions are measured right although steps are interrupted and taken again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.simulate.discrepancy import Discrepancy
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from tests.toy import sgd

INPUTS = torch.randn(12, 8, 6, generator=torch.Generator().manual_seed(0))
BATCHES = [(x, (x.sum(1) > 0).long()) for x in INPUTS]


class Frail(nn.Module):
    """Counts forwards and backwards in a list that all have in common, and fails in the pass with a given number."""

    def __init__(self, passes: dict[str, Any]) -> None:
        super().__init__()
        self.passes = passes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count()
        x = x * 1.0
        if x.requires_grad:
            x.register_hook(lambda gradient: self.count())
        return x

    def count(self, *_: Any) -> None:
        self.passes["done"] += 1
        if self.passes["done"] == self.passes.get("fails"):
            raise ValueError("frail")


def begun(method: str, **how: Any) -> tuple[SimulatedTraining, Discrepancy, dict[str, Any]]:
    """A training, what watches it, and its passes; a pass of the optimizer's step counts, too."""
    torch.manual_seed(0)
    passes: dict[str, Any] = {"done": 0}
    layers = [nn.Linear(6, 8), Frail(passes), nn.Linear(8, 8), nn.Tanh(), Frail(passes), nn.Linear(8, 2)]
    more = {name: how.pop(name) for name in ("bf16",) if name in how}

    def make(params: Any) -> torch.optim.Optimizer:
        optimizer = sgd(params)
        optimizer.register_step_pre_hook(lambda *_: Frail.count(layers[1]))  # type: ignore[arg-type]
        return optimizer

    phase = Phase(get(method), 12, (2, 4), **how)
    training = SimulatedTraining(nn.Sequential(*layers), [phase], make, nn.functional.cross_entropy, **more)
    return training, Discrepancy(training.pipeline, (1, 2), every=2), passes


HOW: list[dict[str, Any]] = [{}, {"recompute": True}, {"microbatches": 2}, {"bf16": True}]


@pytest.mark.parametrize("how", HOW, ids=["by reference", "in place", "microbatches", "bf16"])
@pytest.mark.parametrize("method", ["spectrain", "pipemare", "pipedream"])
def test_a_step_that_is_taken_again_is_measured_once(method: str, how: dict[str, Any]) -> None:
    whole, watch, passes = begun(method, **how)
    for t in range(9):
        whole.step(*BATCHES[t])
    expected, each = watch.row(), passes["done"] // 9
    again = 0
    for fails in range(1, each + 1):
        training, watch, passes = begun(method, **how)
        for step in range(9):
            if step == 6:
                passes |= {"done": 0, "fails": fails}
                with pytest.raises(ValueError, match="frail"):
                    training.step(*BATCHES[step])
                passes.pop("fails")
            try:
                training.step(*BATCHES[step])
            except PipelagError as error:
                assert "interrupted; continue from a checkpoint" in str(error)
                break
        else:
            again += 1
            assert watch.row() == expected
    assert again
