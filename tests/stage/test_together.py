"""What all stages do together in a few calls equals, bit for bit, what each stage does alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipelag.methods import carriers, get, prediction
from pipelag.simulate import pipeline as pipelines
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage import together
from pipelag.stage.phase import Phase
from tests.toy import Noise, convolutional

METHODS = ("spectrain", "pipeoptim", "xpipe", "pipemare", "lwp_w", "nesterov_async", "dc_asgd", "pipedream")
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01),
    "plain sgd": lambda params: torch.optim.SGD(params, lr=0.05),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}


class OneByOne:
    """`together`'s functions, called for one stage at a time."""

    @staticmethod
    def prepare(stages: list[object]) -> None:
        for stage in stages:
            together.prepare([stage])  # type: ignore[list-item]

    @staticmethod
    def before_step(stages: list[object]) -> None:
        for stage in stages:
            together.before_step([stage])  # type: ignore[list-item]

    @staticmethod
    def after_step(stages: list[object]) -> None:
        for stage in stages:
            together.after_step([stage])  # type: ignore[list-item]


class OnGpu:
    """A tensor whose `device` is a GPU."""

    device = torch.device("cuda")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> object:
        return getattr(self.tensor, name)


def training_of(method: str, optimizer: str, steps: int = 12, kind: torch.dtype = torch.float32) -> SimulatedTraining:
    phases, loss = [Phase(get(method), steps, (1, 2, 4))], nn.functional.cross_entropy
    return SimulatedTraining(convolutional(0).to(kind), phases, OPTIMIZERS[optimizer], loss)


def trained(method: str, optimizer: str, steps: int = 12, kind: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Losses, and the weights at the end."""
    training = training_of(method, optimizer, steps, kind)
    batches = Noise()
    losses = [training.step(batches[t][0].to(kind), batches[t][1]) for t in range(steps)]
    training.close()
    return [*losses, *(parameter.detach().clone() for parameter in training.model.parameters())]


def optimizer_of(method: str) -> str:
    return {"nesterov_async": "plain sgd", "xpipe": "adam"}.get(method, "sgd")


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_stages_together_do_what_each_does_alone(method: str, launched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and weights are the same either way. launched: sums are made as on a GPU."""
    if launched:
        monkeypatch.setattr(carriers, "launched", lambda place: True)
    at_once = trained(method, optimizer_of(method))
    monkeypatch.setattr(pipelines, "together", OneByOne)
    alone = trained(method, optimizer_of(method))
    assert len(at_once) == len(alone) and all(map(torch.equal, at_once, alone))


def test_steps_of_large_stages_are_not_all_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, sizes = trained("pipemare", "sgd"), list[int]()
    subtract = torch._foreach_sub
    of = [weights.size for weights in training_of("pipemare", "sgd").pipeline.weights]
    assert of[0] + of[1] + of[2] > of[2] + of[3]
    monkeypatch.setattr(together, "SMALL", of[2] + of[3])
    monkeypatch.setattr(
        torch, "_foreach_sub", lambda a, b: sizes.append(sum(each.numel() for each in a)) or subtract(a, b)
    )
    in_batches = trained("pipemare", "sgd")
    assert all(map(torch.equal, at_once, in_batches))
    assert sizes == [of[0] + of[1], of[2] + of[3]] * 12


def test_two_predictions_share_their_work_where_their_rule_is_one() -> None:
    stage = training_of("pipeoptim", "adam").pipeline.weights[0]
    assert carriers.ByRule(stage, prediction.adam).does_as(carriers.ByRule(stage, prediction.adam))
    assert not carriers.ByRule(stage, prediction.adam).does_as(carriers.ByRule(stage, prediction.moments))
    assert not carriers.ByRule(stage, prediction.adam).does_as(carriers.Along(stage))


@pytest.mark.parametrize("method", ["spectrain", "pipeoptim", "xpipe", "pipemare", "lwp_w"])
def test_sums_made_in_one_launch_are_the_sums(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of several terms made in one launch equal the usual ones, up to their second rounding."""
    usual, calls = trained(method, optimizer_of(method), kind=torch.float64), []
    in_one = carriers._in_one
    monkeypatch.setattr(carriers, "launched", lambda place: True)
    monkeypatch.setattr(carriers, "_in_one", lambda terms: calls.append(len(terms)) or in_one(terms))
    launched = trained(method, optimizer_of(method), kind=torch.float64)
    assert max(calls) >= 3  # a launch has the sums of several stages
    for ours, theirs in zip(launched, usual, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def test_small_sums_of_a_gpu_alone_are_launched_together() -> None:
    assert not carriers.launched(torch.zeros(3)) and not carriers.launched(torch.zeros(3, device="meta"))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("most", [50, 700, 3000])
def test_how_a_sum_is_rounded_does_not_go_by_where_the_optimizers_state_lies(
    most: int, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum is rounded in the same way whether the optimizer's state lies flat or by parameters.

    It lies by parameters after a restart and with hooks. As on a GPU, sums of up to `most` weights take one launch.
    """
    launched = carriers.launched
    monkeypatch.setattr(carriers, "FEW", most)
    monkeypatch.setattr(carriers, "launched", lambda place: launched(OnGpu(place)))
    flat, by_parameters = (training_of("pipeoptim", optimizer) for _ in range(2))
    by_parameters.pipeline.flat_step.stages = []
    batches, calls, in_one = Noise(), list[int](), carriers._in_one
    monkeypatch.setattr(carriers, "_in_one", lambda terms: calls.append(len(terms)) or in_one(terms))
    for t in range(8):
        assert torch.equal(flat.step(*batches[t]), by_parameters.step(*batches[t]))
    assert bool(calls) == (most > 50)
    assert any(weights.laid is not None for weights in flat.pipeline.weights)
    for ours, theirs in zip(flat.model.parameters(), by_parameters.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_another_state_put_in_place_is_noticed_while_stages_are_watched(optimizer: str) -> None:
    """`FlatStep.watching` compares by identity: it notices a new tensor, a new dict, and entries that come or go."""
    training = training_of("spectrain", optimizer)
    batches = Noise()
    for t in range(3):
        training.step(*batches[t])
    flat_step, state = training.pipeline.flat_step, training.optimizer.state  # type: ignore[union-attr]
    first = next(iter(state))
    key = next(key for key, value in state[first].items() if value.dim())
    held, entry, all_of_it = state[first][key], state[first], dict(state)

    def watched() -> bool:
        with flat_step.watching():
            return all(weights.laid.watched for weights in flat_step.stages if weights.laid is not None)

    assert watched() and watched()
    state[first][key] = held.clone()
    assert not watched()
    state[first][key] = held
    assert watched()
    state[first] = dict(entry)
    assert watched() == all(weights.laid.holds() for weights in flat_step.stages if weights.laid is not None)
    state[first] = {**entry, "more": held}
    assert not watched()
    state[first] = entry
    assert watched()
    del state[first]
    assert not watched()
    state.clear()
    state.update(all_of_it)
    assert watched()
    last = list(state)[-1]
    state[last]["more"] = held  # the last entry of all, in a dict that stays the same
    assert not watched()
    del state[last]["more"]
    assert watched()
    del state[last]
    assert not watched()
    assert not any(weights.laid.watched for weights in flat_step.stages if weights.laid is not None)
