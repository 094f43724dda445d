"""Weights shown by reference are those shown by copies, bit for bit, and leave nothing in their place."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from pipelag.errors import PipelagError
from pipelag.methods import METHODS, get
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from pipelag.stage.policy import StageWeights
from pipelag.stage.showing import ByReference, Copies, InPlace
from tests.toy import Noise, adamw, convolutional, simulated

CUTS, STEPS = (1, 2, 4), 9
loss_of = nn.functional.cross_entropy


def training_of(
    method: str, parts: int = 1, copied: bool = False, bf16: bool = False, linear: bool = False
) -> SimulatedTraining:
    """copied: graphs were asked for; without a GPU steps are eager then, and weights are copied to where they lie for
    good. linear: the first layer is not a convolution but one whose graph keeps a view of its weights.
    """
    momentum = 0.0 if method == "nesterov_async" else 0.9  # it brings its own
    sgd = partial(torch.optim.SGD, lr=0.02, momentum=momentum, weight_decay=1e-3)
    make = adamw if method in ("pipeoptim", "xpipe") else sgd
    phases = [Phase(get(method), STEPS, CUTS, microbatches=parts)]
    rate = lambda t: 1 / (1 + t / 4)  # noqa: E731
    model = convolutional()
    if linear:
        model[0] = nn.Sequential(nn.Flatten(), nn.Linear(192, 512), nn.Unflatten(1, (8, 8, 8)))
    return SimulatedTraining(model.train(), phases, make, loss_of, rate, 5, bf16=bf16, graphs=copied)


def ways(training: SimulatedTraining) -> set[type]:
    return {type(weights.showing) for weights in training.pipeline.weights}


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    ("method", "parts"), [(name, parts) for name in METHODS for parts in (1, 4) if simulated(name, STEPS, CUTS, parts)]
)
def test_every_method_is_the_same_bit_for_bit(method: str, parts: int, bf16: bool) -> None:
    batches, ends = Noise(), []
    for copied in (True, False):
        training = training_of(method, parts, copied, bf16)
        assert ways(training) == {InPlace if copied else ByReference}
        losses = [training.step(*batches[t]) for t in range(STEPS)]
        ends.append([*losses, *tree_leaves(training.state_dict())])
    assert len(ends[0]) == len(ends[1])
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(*ends, strict=True))


def held(training: SimulatedTraining) -> set[int]:
    return {p.untyped_storage().data_ptr() for w in training.pipeline.weights for p in w.flat.parameters}


@pytest.mark.parametrize(
    ("method", "parts", "linear", "copies"),
    [
        ("pipedream", 1, True, False),
        ("spectrain", 1, True, False),
        ("pipemare", 1, True, False),
        ("1f1b", 1, True, False),
        ("pipemare", 4, True, True),
        ("spectrain", 1, False, False),
        ("pipemare", 4, False, False),
    ],
)
def test_weights_are_read_where_they_are_kept(method: str, parts: int, linear: bool, copies: bool) -> None:
    """Between two steps parameters lie in the live weights; once the pipeline is full, a forward's are a version kept.
    Where graphs keep views, its backward's are written over that, unless other microbatches read it too.
    """
    training, batches = training_of(method, parts, linear=linear), Noise()
    first = training.pipeline.weights[0]
    live, seen = held(training), list[set[int]]()
    training.pipeline.stages[0].register_forward_hook(
        lambda *_: seen.append({p.untyped_storage().data_ptr() for p in first.flat.parameters})
    )
    for t in range(STEPS):
        training.step(*batches[t])
        assert held(training) == live
    kept = {buffer.untyped_storage().data_ptr() for ring in first.rings for each in ring for buffer in each}
    assert isinstance(first.showing, ByReference)
    assert first.pointed is (method != "pipedream" and not linear)
    assert bool(first.showing.own) is copies
    assert len(seen[-1] - live) >= 1 and (copies or seen[-1] <= kept)


@pytest.mark.parametrize("method", ["spectrain", "pipemare", "pipedream", "1f1b"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_step_that_breaks_off_leaves_nothing_that_a_restart_would_keep(method: str, where: str) -> None:
    """Nor is it taken again over what it has written over."""
    training, batches = training_of(method, linear=True), Noise()
    for t in range(7):
        training.step(*batches[t])
    state = deepcopy(training.state_dict())
    expected = [training.step(*batches[t]) for t in range(7, STEPS)]
    training.load_state_dict(deepcopy(state))

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    stage = training.pipeline.stages[1]
    hook = stage.register_forward_hook if where == "forward" else stage.register_full_backward_hook
    handle = hook(broken)  # type: ignore[operator]
    with pytest.raises(RuntimeError, match="broken"):
        training.step(*batches[7])
    handle.remove()
    if where == "forward" or method == "pipedream":  # whose backward reads what its forward read
        training.model.zero_grad()
        assert torch.equal(training.step(*batches[7]), expected[0])
    else:
        with pytest.raises(PipelagError, match="broke off; go on from a checkpoint"):
            training.step(*batches[7])
    training.load_state_dict(state)
    assert all(torch.equal(training.step(*batches[t]), loss) for t, loss in zip(range(7, STEPS), expected, strict=True))


def test_a_live_version_that_a_backward_has_read_in_a_copy_is_kept_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not copied once more: the ring takes the place that was written over."""
    training, batches = training_of("stale_weights", linear=True), Noise()
    first, copied = training.pipeline.weights[0], set[int]()
    training.step(*batches[0])
    monkeypatch.setattr(Copies, "keep", lambda self, stage, there: copied.add(stage.stage))
    for t in range(1, STEPS):
        places = {id(each) for each in first.plain}
        training.step(*batches[t])
        assert {id(each) for each in first.plain} == places or t < first.back
    assert copied == {2, 3}  # whose graphs keep no views, so that nothing is written over


STOPS = {"load": 6, "restore": 3, "before_step": 3}  # three stages; a forward and a backward load


@pytest.mark.parametrize(("what", "which"), [(what, n + 1) for what, count in STOPS.items() for n in range(count)])
@pytest.mark.parametrize("method", ["pipedream", "spectrain", "pipemare"])
def test_a_step_stopped_between_two_stages_moves_loses_no_weight(
    method: str, what: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages say what they show before all of them have copied it."""
    training, batches = training_of(method, copied=True), Noise()
    assert ways(training) == {InPlace}
    for t in range(5):
        training.step(*batches[t])
    live = [parameter.detach().clone() for parameter in training.model.parameters()]
    calls, real = [0], getattr(StageWeights, what)

    def stopped(self: StageWeights, *given: Any) -> None:
        calls[0] += 1
        if calls[0] == which:
            raise KeyboardInterrupt
        real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(StageWeights, what, stopped)
        with pytest.raises(KeyboardInterrupt):
            training.step(*batches[5])
    training.close()
    assert all(torch.equal(a, b) for a, b in zip(live, training.model.parameters(), strict=True))
