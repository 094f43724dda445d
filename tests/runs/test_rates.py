"""Rate schedules against torch's own, and top-5 accuracy against a count by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, PolynomialLR

from pipelag.runs.rates import LRScheduleSpec, factor
from pipelag.runs.tasks import best_of, classify

TOTAL = 40


@pytest.mark.parametrize(
    ("spec", "torchs"),
    [
        ({"name": "polynomial", "power": 1.0}, lambda o: PolynomialLR(o, TOTAL, 1.0)),
        ({"name": "polynomial", "power": 2.5}, lambda o: PolynomialLR(o, TOTAL, 2.5)),
        ({"name": "cosine"}, lambda o: CosineAnnealingLR(o, TOTAL)),
        ({"name": "milestones", "gamma": 0.1, "milestones": [0.5, 0.75]}, lambda o: MultiStepLR(o, [20, 30], 0.1)),
    ],
)
def test_a_schedule_is_torchs(spec: dict[str, Any], torchs: Callable[[Any], Any]) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, ours = torchs(optimizer), factor(LRScheduleSpec.model_validate(spec), TOTAL)
    for step in range(TOTAL):
        assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-12)
        optimizer.step()
        schedule.step()
    assert ours(TOTAL + 5) == pytest.approx(ours(TOTAL), abs=1e-12)


def test_a_warm_up_multiplies_and_a_horizon_is_what_fractions_refer_to() -> None:
    ours = factor(LRScheduleSpec(name="cosine", warmup=4, horizon=80), TOTAL)
    assert ours(0) == pytest.approx(0.25) and ours(40) == pytest.approx(0.5)


class Fixed:
    """Ten samples whose scores are given."""

    device, samples = torch.device("cpu"), 10

    def __init__(self, classes: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.scores = torch.randn(10, classes, generator=draw)
        self.targets = torch.randint(classes, (10,), generator=draw)

    def __iter__(self) -> Any:
        yield self.scores[:6], self.targets[:6]
        yield self.scores[6:], self.targets[6:]


@pytest.mark.parametrize("classes", [5, 6, 20])
def test_top5_counts_targets_among_the_five_greatest(classes: int) -> None:
    test = Fixed(classes)
    measured = classify(nn.Identity(), test)  # type: ignore[arg-type]
    ranks = [int((scores > scores[target]).sum()) for scores, target in zip(test.scores, test.targets, strict=True)]
    assert measured["accuracy"] == 10.0 * sum(rank == 0 for rank in ranks)
    assert measured.get("top5") == (10.0 * sum(rank < 5 for rank in ranks) if classes > 5 else None)
    assert ("top5" in best_of(measured | {"step": 1}, None)) == (classes > 5)
