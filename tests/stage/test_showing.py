"""Weights shown by reference are those shown by copies, bit for bit, and leave nothing in their place."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from pipelag.methods import METHODS, get
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from pipelag.stage.showing import ByReference, InPlace
from tests.toy import Noise, adamw, convolutional, simulated

CUTS, STEPS = (1, 2, 4), 9
loss_of = nn.functional.cross_entropy


def training_of(method: str, parts: int = 1, copied: bool = False, bf16: bool = False) -> SimulatedTraining:
    """Graphs were asked for: without a GPU steps are eager then, and weights are copied to where they lie for good."""
    momentum = 0.0 if method == "nesterov_async" else 0.9  # it brings its own
    sgd = partial(torch.optim.SGD, lr=0.02, momentum=momentum, weight_decay=1e-3)
    make = adamw if method in ("pipeoptim", "xpipe") else sgd
    phases = [Phase(get(method), STEPS, CUTS, microbatches=parts)]
    rate = lambda t: 1 / (1 + t / 4)  # noqa: E731
    return SimulatedTraining(convolutional().train(), phases, make, loss_of, rate, 5, bf16=bf16, graphs=copied)


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


@pytest.mark.parametrize(("method", "copies"), [("pipedream", False), ("spectrain", True), ("pipemare", True)])
def test_only_a_backward_that_reads_others_has_a_buffer_of_its_own(method: str, copies: bool) -> None:
    """Between two steps parameters lie in the live weights; stashed ones are read where they are kept."""
    training, batches, seen = training_of(method), Noise(), set[int]()
    first = training.pipeline.weights[0]
    live = held(training)
    training.pipeline.stages[0].register_forward_hook(
        lambda *_: seen.add(next(p.untyped_storage().data_ptr() for p in first.flat.parameters))
    )
    for t in range(STEPS):
        training.step(*batches[t])
        assert held(training) == live
    kept = {buffer.untyped_storage().data_ptr() for ring in first.rings for each in ring for buffer in each}
    assert isinstance(first.showing, ByReference)
    assert bool(first.showing.own) is copies
    assert len(seen - live) >= 1 and (copies or seen <= live | kept)


def test_a_step_that_breaks_off_leaves_nothing_that_a_restart_would_keep() -> None:
    training, batches = training_of("spectrain"), Noise()
    for t in range(4):
        training.step(*batches[t])
    state = torch.utils._pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, training.state_dict()
    )
    expected = [training.step(*batches[t]) for t in range(4, STEPS)]
    training.load_state_dict(state)

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    handle = training.pipeline.stages[2].register_forward_hook(broken)
    with pytest.raises(RuntimeError, match="broken"):
        training.step(*batches[4])
    handle.remove()
    training.load_state_dict(state)
    assert all(torch.equal(training.step(*batches[t]), loss) for t, loss in zip(range(4, STEPS), expected, strict=True))
