"""Hogwild's random delays follow the law that PipeMare's appendix E names, drawn anew for each stage and minibatch."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch

import pipelag
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.methods.random_delays import RandomDelays, distribution
from tests.toy import Noise, convolutional

DRAWS = 4000


@pytest.mark.parametrize(("mean", "bound"), [(0.3, 4), (2.5, 7), (3.0, 6), (5.5, 7), (6.9, 7), (7.0, 14)])
def test_the_law_is_a_truncated_exponential_with_the_mean_asked_for(mean: float, bound: int) -> None:
    """ "Sampling distributions with different expectation values", "truncated at tau_max uniformly"."""
    reached = distribution(mean, bound)
    law = [b - a for a, b in pairwise((0.0, *reached))]
    assert len(law) == bound + 1 and reached[-1] == pytest.approx(1)
    assert sum(n * p for n, p in enumerate(law)) == pytest.approx(mean)
    ratios = [b / a for a, b in pairwise(law)]
    assert ratios == pytest.approx([ratios[0]] * bound, rel=1e-5)


@pytest.mark.parametrize(("mean", "always"), [(0.0, 0), (5.0, 5)])
def test_at_its_ends_the_law_leaves_one_delay(mean: float, always: int) -> None:
    law = RandomDelays(mean=mean, most=5)
    assert {delay for t in range(50) for delay in law.draw((1, 1), 0, t)} == {always}


def test_a_stages_mean_is_its_delay_in_the_pipeline_and_the_bound_is_common() -> None:
    taus = (7, 5, 3, 1)
    drawn = [RandomDelays().draw(taus, 0, t) for t in range(DRAWS)]
    means = [sum(row[stage] for row in drawn) / DRAWS for stage in range(4)]
    assert means == pytest.approx(taus, abs=0.25)
    assert max(map(max, drawn)) == RandomDelays().bound(taus) == 14


def correlation(first: list[int], second: list[int]) -> float:
    return float(torch.corrcoef(torch.tensor([first, second], dtype=torch.float64))[0, 1])


def test_every_stage_minibatch_and_seed_has_draws_of_its_own() -> None:
    """Draws of different stages, minibatches and seeds are uncorrelated, and drawing again gives the same delay.

    In the paper tau_i is "the stochastic gradient delay for the i-th stage".
    """
    law = RandomDelays(mean=3.0, most=6)
    rows = {seed: [law.draw((1, 1), seed, t) for t in range(DRAWS)] for seed in (0, 1)}
    first, second = ([row[stage] for row in rows[0]] for stage in (0, 1))
    for other in (second, first[1:] + first[:1], [row[0] for row in rows[1]]):
        assert abs(correlation(first, other)) < 0.08
    assert law.draw((1, 1), 0, 17) == rows[0][17]


class Halving(torch.optim.SGD):
    """An optimizer that writes into the gradients that it is given, as clipping does."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)
        return super().step(closure)


def test_a_gradient_that_comes_twice_is_as_it_was() -> None:
    """A gradient that is applied twice is unchanged the second time: halving it is the same as half the rate."""
    ends = []
    for kind, lr in ((Halving, 0.1), (torch.optim.SGD, 0.05)):
        model = convolutional()
        make = partial(kind, lr=lr)
        run = pipelag.train(model, Noise(), method="hogwild", cuts=(2, 4), steps=12, optimizer=make)
        ends.append(torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()]))
    assert torch.equal(*ends)


def test_a_mean_below_one_update_does_not_raise_the_rate() -> None:
    """T1 divides the rate by a delay of at least 1: tau^p of equation 4 would raise it for a mean below 1."""
    assert get("hogwild_t1", mean=0.5, most=3).rate_taus(3) == (1, 1, 1)
    assert get("hogwild_t1", mean=2.5, most=6).rate_taus(2) == (2.5, 2.5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mean": -0.5}, "the mean delay should be 0 or more updates, not -0.5"),
        ({"mean": float("nan")}, "the mean delay should be 0 or more updates, not nan"),
        ({"most": -1}, "the greatest delay should be 0 or more updates, not -1"),
        ({"microbatches": 0}, "1 or more microbatches, not 0"),
    ],
)
def test_delays_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        RandomDelays(**settings)


def test_a_mean_above_the_bound_is_refused_before_the_first_step() -> None:
    with pytest.raises(PipelagError, match="delays of at most 2 updates cannot have a mean of 3; raise `most` or"):
        get("hogwild", mean=3.0, most=2).delays(4)


class Coupled(torch.optim.Optimizer):
    """An optimizer that adds L2 to the gradient in place, as many do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.add_(parameter, alpha=0.2)
                    parameter.sub_(parameter.grad, alpha=group["lr"])


def test_an_optimizer_may_write_into_an_old_gradient() -> None:
    """An old gradient that is by chance applied twice is the minibatch's own both times."""
    ends = []
    for make in (Coupled, lambda params: torch.optim.SGD(params, lr=0.05, weight_decay=0.2)):
        model = convolutional()
        pipelag.train(model, Noise(), method="hogwild", cuts=(2, 4), steps=16, optimizer=make, seed=2)
        ends.append([parameter.detach() for parameter in model.parameters()])
    for ours, expected in zip(*ends, strict=True):
        torch.testing.assert_close(ours, expected)
