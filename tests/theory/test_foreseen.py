"""Prediction rules against the optimizers themselves (PipeOptim, table I)."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch

from pipelag.errors import PipelagError
from pipelag.theory.foreseen import SIZE, optimizers, study


@pytest.mark.parametrize("name", ["SGDM", "SGDM, dampened", "Adam", "AdamW"])
def test_without_noise_a_rule_is_exact(name: str) -> None:
    one, three = study({"optimizer": name, "horizons": [1, 3]}, 0)
    assert max(one["share"], three["share"]) < 1e-9 and min(one["stale"], three["stale"]) > 0


def test_stale_weights_are_apart_by_as_many_steps() -> None:
    """Of constant gradients' full velocity, ten times the gradient, a step takes a hundredth."""
    draw = torch.Generator().manual_seed(0)
    _, gradient = (torch.randn(SIZE, generator=draw, dtype=torch.float64) for _ in range(2))
    rows = study({"optimizer": "SGDM", "horizons": [1, 3], "steps": 900}, 0)
    step = 0.01 * 10 * float(gradient.square().mean().sqrt())
    assert [row["stale"] for row in rows] == pytest.approx([step, 3 * step], rel=1e-9)


def test_the_last_third_of_the_steps_counts() -> None:
    """With a momentum of 0.9 the k-th step is 1 - 0.9^k of a full one: of 30 steps those from the 20th on."""
    draw = torch.Generator().manual_seed(0)
    _, gradient = (torch.randn(SIZE, generator=draw, dtype=torch.float64) for _ in range(2))
    (row,) = study({"optimizer": "SGDM", "horizons": [1], "steps": 30}, 0)
    full = 0.01 * 10 * float(gradient.square().mean().sqrt())
    assert row["stale"] == pytest.approx(full * fmean((1 - 0.9**k) ** 2 for k in range(20, 30)) ** 0.5)


def test_what_a_rule_leaves_out_shows() -> None:
    (decay,) = study({"optimizer": "AdamW, decay", "horizons": [3]}, 0)
    assert 1e-4 < decay["share"] < 0.5


@pytest.mark.parametrize("name", list(optimizers()))
def test_noise_costs_accuracy_and_more_so_for_a_longer_look(name: str) -> None:
    near, far = study({"optimizer": name, "horizons": [1, 6], "noise": 1.0}, 0)
    assert far["predicted"] > near["predicted"] > 0


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(PipelagError, match="did you mean 'Adam'"):
        list(study({"optimizer": "Adan"}, 0))
    with pytest.raises(PipelagError, match="horizons should be from 1 update"):
        list(study({"optimizer": "Adam", "horizons": [0]}, 0))
