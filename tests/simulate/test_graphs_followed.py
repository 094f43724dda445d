"""What Python code changes between two steps changes replayed steps as it changes eager ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from pipelag.simulate import graphs
from pipelag.simulate.recordable import Results
from pipelag.simulate.training import SimulatedTraining
from tests.simulate.test_graphs import Emulated, advance, begin, loss_of, model_of
from tests.toy import Noise, equal


class Tape(TorchDispatchMode):
    """Notes the operations of a pass, to do them again without the Python code around them, as a graph does."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, tree_flatten(out)[0]))
        return out

    def again(self) -> None:
        for func, args, kwargs, outs in self.done:
            new = tree_flatten(func(*args, **kwargs))[0]
            for place, value in zip(outs, new, strict=True):
                if isinstance(place, torch.Tensor) and place.data_ptr() != value.data_ptr():
                    place.copy_(value)


class Taped(Emulated):
    def record(self, passes: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        saved = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        with Tape() as tape:
            results = passes()
        for buffer, value in saved:
            buffer.data.copy_(value)

        def replay() -> None:
            self.count += 1
            with torch.no_grad():
                tape.again()

        return replay, results


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> Taped:
    recorder = Taped()
    monkeypatch.setattr(graphs, "recorder_of", lambda device: recorder)
    return recorder


class Scaled(nn.Module):
    """A layer whose forward depends on values that lie in containers and other objects."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.factors, self.deep = 1.0, [1.0], {"of": [{"value": 1.0}]}
        self.held, self.slope = SimpleNamespace(value=1.0), partial(nn.functional.leaky_relu, negative_slope=0.1)
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.ones(1))
        self.more, self.pair = 1.0, torch.ones(2)  # no buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = (
            getattr(self, "more", 0.5)
            * self.pair[1]
            * self.factor
            * self.factors[0]
            * self.deep["of"][0]["value"]
            * self.held.value
        )
        return self.slope(x * factor * self.mask)


class Smoothed:
    def __init__(self) -> None:
        self.smoothing = 0.0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target, label_smoothing=self.smoothing)


def closed(smoothing: dict[str, float]) -> Any:
    return lambda output, target: nn.functional.cross_entropy(output, target, label_smoothing=smoothing["value"])


Change = Callable[[SimulatedTraining], Any]
SMOOTHING = {"value": 0.0}


def norm_of(training: SimulatedTraining) -> Any:
    return training.model[0][1]


def halve(*given: Any) -> Any:
    return given[-1] * 0.5 if isinstance(given[-1], torch.Tensor) else None


def new_loss(training: SimulatedTraining) -> None:
    training.pipeline.loss = lambda output, target: 2 * loss_of(output, target)


CHANGES: dict[str, Change] = {
    "forward hook": lambda training: training.model[4].register_forward_hook(halve),
    "forward pre-hook": lambda training: training.model[4].register_forward_pre_hook(lambda _, given: (given[0] / 2,)),
    "backward hook": lambda training: training.model[4].register_full_backward_hook(lambda _, x, y: (x[0] / 2,)),
    "hook on a weight": lambda training: training.model[6].weight.register_hook(halve),
    "hook on all modules": lambda training: nn.modules.module.register_module_forward_hook(halve),
    "dropout": lambda training: setattr(training.model[3][3], "p", 0.3),
    "momentum of a norm": lambda training: setattr(norm_of(training), "momentum", 0.5),
    "mode of a layer": lambda training: norm_of(training).eval(),
    "frozen weight": lambda training: norm_of(training).weight.requires_grad_(False),
    "another layer": lambda training: training.model[0].__setitem__(2, nn.Tanh()),
    "forward of a layer": lambda training: setattr(training.model[0][2], "forward", torch.tanh),
    "attribute": lambda training: setattr(training.model[5], "factor", 0.5),
    "attribute that is gone": lambda training: delattr(training.model[5], "more"),
    "tensor that is no buffer": lambda training: setattr(training.model[5], "pair", torch.full((2,), 0.5)),
    "list": lambda training: training.model[5].factors.__setitem__(0, 0.5),
    "deep inside": lambda training: training.model[5].deep["of"][0].update(value=0.5),
    "object": lambda training: setattr(training.model[5].held, "value", 0.5),
    "partial": lambda training: setattr(training.model[5], "slope", torch.tanh),
    "buffer": lambda training: setattr(training.model[5], "mask", torch.full((1,), 0.5)),
    "loss": new_loss,
    "attribute of the loss": lambda training: setattr(training.pipeline.loss, "smoothing", 0.3),
    "closure of the loss": lambda training: SMOOTHING.update(value=0.3),
}


@pytest.mark.parametrize(
    ("what", "bf16"), [*((what, False) for what in CHANGES), ("forward hook", True), ("hook on a weight", True)]
)
def test_a_change_between_two_steps_is_followed(
    what: str, bf16: bool, taped: Taped, capsys: pytest.CaptureFixture[str]
) -> None:
    ends, counts = [], []
    for recorder in (None, taped):
        SMOOTHING["value"] = 0.0
        loss: Any = closed(SMOOTHING) if what.startswith("closure") else Smoothed()
        training = begin(model_of(Scaled()), "pipedream", loss=loss, recorder=recorder, bf16=bf16)
        losses = advance(training, Noise(), 5)
        counts.append(taped.count)
        with ExitStack() as stack:
            handle = CHANGES[what](training)
            if hasattr(handle, "remove"):
                stack.callback(handle.remove)
            losses += advance(training, Noise(), 3)
        ends.append([*losses, *training.model.state_dict().values()])
    assert all(map(torch.equal, *ends))
    assert counts == [0, 2 + 2 * 4] and taped.count == counts[1]  # eager since the change
    assert capsys.readouterr().err.count("pipelag: steps are computed without CUDA graphs while ") == 1


def test_once_the_hook_is_gone_steps_are_replayed_again(taped: Taped) -> None:
    plain, graphed = begin(model_of()), begin(model_of(), recorder=taped)
    for training in (plain, graphed):
        advance(training, Noise(), 3)
        handle = training.model[0].register_forward_hook(lambda *_: None)
        advance(training, Noise(), 2)
        handle.remove()
        nn.Linear(2, 2).register_forward_hook(lambda *_: None)  # which is nothing to it
        advance(training, Noise(), 3)
    assert equal(plain.model.state_dict(), graphed.model.state_dict()) and taped.count == 2 + 2 * (2 + 3)


def test_a_hook_on_all_modules_is_none_that_a_graph_would_call(taped: Taped) -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    training = begin(model_of(), recorder=taped)
    advance(training, Noise())
    handle.remove()
    assert training.pipeline.graphs.why == "a layer has hooks" and not taped.count


class Annealed(nn.Module):
    """A layer that counts its calls in an object of its own, and changes what it does at the sixth."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"meter": SimpleNamespace(calls=[0])}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state["meter"].calls[0] += 1
        return x if self.state["meter"].calls[0] < 6 else x * 0.5


def test_a_layer_that_counts_out_of_sight_stays_eager(taped: Taped) -> None:
    plain, graphed = begin(model_of(Annealed())), begin(model_of(Annealed()), recorder=taped)
    losses = [advance(training, Noise()) for training in (plain, graphed)]
    assert all(map(torch.equal, *losses)) and not taped.count
    assert graphed.pipeline.graphs.why == "a pass sets 'calls' of SimpleNamespace, which a graph would not"
