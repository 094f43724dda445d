"""What the policy of a stage's weights refuses, whom its errors name, and which versions updates go by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.errors import PipelagError
from pipelag.methods import Method, get
from pipelag.methods.carriers import Average, Difference
from pipelag.methods.reads import DelayCompensation, Predict
from pipelag.schedules import Action, Schedule, check
from pipelag.schedules.library import cycle
from pipelag.stage.optimizers import group_by_stage
from pipelag.stage.phase import Phase
from pipelag.stage.policy import StageWeights
from pipelag.stage.weights import FlatParameters

BATCHES = [(x, (x.sum(1) > 0).long()) for x in torch.randn(9, 8, 3, generator=torch.Generator().manual_seed(0))]


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(3, 4), nn.Linear(4, 2)]


def method_of(**parts: Any) -> Method:
    return Method(**({"name": "mine", "summary": "", "source": "", "build": cycle} | parts))


def late(stages: int, minibatches: int) -> Schedule:
    """A schedule that makes every update after the next minibatch's passes, so that the backward is late, too."""
    row = [Action(kind, 1, m) for m in range(minibatches) for kind in ("F", "B")]
    for m in range(minibatches):
        row.insert(min(3 * m + 4, len(row)), Action("U", 1, m))
    return Schedule("late", 1, minibatches, (tuple(row),))


def test_a_prediction_beside_an_old_backward_is_refused() -> None:
    check(late(1, 5))
    assert method_of(build=late).delays(1).backward == (1,)
    with pytest.raises(PipelagError, match="predicts the forward's weights but reads old ones in the backward"):
        pipelag.train(layers(), BATCHES, method=method_of(build=late, forward_reads=Predict("difference")))


def test_a_memory_is_not_taken_for_another() -> None:
    flat, method = FlatParameters([nn.Parameter(torch.ones(2))]), method_of()
    policy = StageWeights(flat, method, 1, 1, method.delays(1), None, flat.parameters, back=0)
    kept = policy.remember("mine", Difference)
    assert policy.remember("mine", Difference) is kept
    with pytest.raises(PipelagError, match="remembers a Difference as 'mine', not a Average; choose another name"):
        policy.remember("mine", Average)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_rate_policy_that_gives_no_rate_is_named(wrong: float) -> None:
    method = method_of(learning_rate=lambda stage, stages, step, tau: wrong if (stage, step) == (2, 3) else 1.0)
    with pytest.raises(
        PipelagError, match="the rate policy of 'mine' returns .* for stage 2 in step 5; it should return"
    ):
        pipelag.train(layers(), BATCHES, phases=[Phase(get("sequential"), 2), Phase(method, 6, (1,))])


class Failing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise KeyError("mine")


def test_what_an_optimizers_step_raises_says_that_it_was_the_update() -> None:
    with pytest.raises(KeyError, match="mine") as raised:
        pipelag.train(layers(), BATCHES, cuts=(1,), optimizer=lambda params: Failing(params, lr=0.1))
    assert raised.value.__notes__ == ["in step 0: the update"]


COMPENSATED = replace(get("1f1b"), name="compensated", update=DelayCompensation(0.5))


def test_an_update_that_goes_by_what_its_forward_read_keeps_it() -> None:
    """Delay compensation keeps as many versions as stashing, although the backward reads live weights."""
    assert COMPENSATED.versions_back(4) == get("pipedream").versions_back(4) == (3, 2, 1, 0)
    assert COMPENSATED.weight_copies(4) == (4, 3, 2, 1)


def test_while_a_pipeline_fills_anew_an_update_goes_by_the_oldest_weights_that_there_are() -> None:
    """While a pipeline fills anew, updates go by the oldest version that exists.

    This one begins at version 5 and has none from before, so that forwards read version 5 until there is version 7.
    """
    flat = FlatParameters([nn.Parameter(torch.ones(3))])
    optimizer = group_by_stage(lambda params: torch.optim.SGD(params, lr=0.1), [flat.parameters], {}, [1])
    method = get("dc_asgd", strength=0.5)
    policy = StageWeights(flat, method, 1, 3, method.delays(3), optimizer, flat.parameters, back=2)
    policy.begin_at(5)
    (weight,), g, w = flat.parameters, torch.tensor([1.0, -2.0, 0.5]), [torch.ones(3)]
    for t in range(4):
        weight.grad = g.clone()
        policy.before_step()
        compensated = g + 0.5 * g * g * (w[t] - w[max(0, t - 2)])
        torch.testing.assert_close(weight.grad, compensated)
        optimizer.step()  # type: ignore[union-attr]
        policy.after_step()
        policy.prepare()
        w.append(w[t] - 0.1 * compensated)


@pytest.mark.real
def test_real_workers_compensate_over_live_weights_as_simulated_ones_do() -> None:
    ends = []
    for executor in ("simulated", "real"):
        run = pipelag.train(
            layers(), BATCHES, method=COMPENSATED, cuts=(1,), executor=executor, optimizer=torch.optim.SGD, lr=0.5
        )
        ends.append([*(parameter.detach() for parameter in run.model.parameters())])
    assert all(map(torch.equal, *ends))
