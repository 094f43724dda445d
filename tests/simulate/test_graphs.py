"""Steps replayed as two recordings equal eager steps bit for bit; steps that cannot be replayed are eager and say why.

Without a GPU the recordings are emulated: plain calls over the same fixed tensors, into the same places.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pipelag
from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.runs.kinds.train_simulated import shortened as row_of
from pipelag.simulate import graphs
from pipelag.simulate.discrepancy import Discrepancy
from pipelag.simulate.recordable import Results, alike, counted_together, counting_once
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage import joined
from pipelag.stage.phase import Phase
from pipelag.tensors import copy_each, unchanged_buffers
from tests.toy import Noise, convolutional, equal, sgd

loss_of = nn.functional.cross_entropy
CUTS = (1, 2, 4)
METHODS = ("stale_weights", "pipedream", "pipemare", "spectrain", "pipeoptim", "1f1b", "gpipe", "dc_asgd", "sequential")


class Emulated:
    """Plain calls in place of CUDA graphs.

    As on a GPU, a recording computes nothing, a replay overwrites the results of the one before, and the tensors that
    it reads must not have moved.

    count: how many replays there were. spoiled: the error with which a recording ends, leaving its changes behind.
    """

    def __init__(self, spoiled: type[Exception] | None = None) -> None:
        self.count, self.spoiled, self.module = 0, spoiled, nn.Module()

    def aside(self) -> Any:
        return nullcontext()

    def record(self, passes: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        saved = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        places = self.places()
        results = passes()
        if self.spoiled is not None:
            raise self.spoiled("an operation that a graph cannot hold\nand more")
        for buffer, value in saved:
            buffer.data.copy_(value)  # through `data`, so that it is no change: a real recording computes nothing
        for value in results:
            if value is not None:
                value.data.fill_(float("nan"))

        def replay() -> None:
            assert self.places() == places
            self.count += 1
            for place, value in zip(results, passes(), strict=True):
                if place is not None and value is not None:
                    place.data.copy_(value)

        return replay, results

    def places(self) -> list[int]:
        return [tensor.data_ptr() for tensor in (*self.module.parameters(), *self.module.buffers())]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    recorder = Emulated()
    monkeypatch.setattr(graphs, "recorder_of", lambda device: recorder)
    return recorder


def model_of(*more: nn.Module, seed: int = 0) -> nn.Sequential:
    """The toy model without dropout, with these modules before its classifier."""
    model = convolutional(seed)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return nn.Sequential(*list(model)[:5], *more, model[5]).to(memory_format=torch.channels_last)


def begin(
    model: nn.Sequential, name: str | list[Phase] = "stale_weights", steps: int = 8, loss: Any = loss_of, **of: Any
) -> SimulatedTraining:
    recorder = of.pop("recorder", None)
    used, bf16 = of.pop("graphs", recorder is not None), of.pop("bf16", False)
    phases = [Phase(methods.get(name), steps, of.pop("cuts", CUTS), **of)] if isinstance(name, str) else name
    make = sgd if name != "pipeoptim" else lambda params: torch.optim.AdamW(params, lr=0.01)
    device = next(model.parameters()).device
    training = SimulatedTraining(model.train(), phases, make, loss, seed=3, device=device, graphs=used, bf16=bf16)
    if recorder is not None:
        recorder.module = nn.ModuleList([model, loss]) if isinstance(loss, nn.Module) else model
    return training


def advance(training: SimulatedTraining, batches: Any, steps: int | None = None) -> list[torch.Tensor]:
    losses = []
    for _ in range(training.total if steps is None else steps):
        losses.append(training.step(*batches[training.done]))
    return losses


def same(first: SimulatedTraining, second: SimulatedTraining) -> bool:
    """Whether two trainings have equal weights, statistics, optimizer states and kept versions."""
    flat = [torch.utils._pytree.tree_leaves(each.state_dict()) for each in (first, second)]
    return len(flat[0]) == len(flat[1]) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(*flat, strict=True)
    )


def compared(
    recorder: Emulated, model: Callable[[], nn.Sequential], *how: Any, batches: Any = None, **of: Any
) -> SimulatedTraining:
    """Train eagerly and with graphs, check that nothing differs, and return the training with graphs."""
    batches = Noise() if batches is None else batches
    plain, graphed = begin(model(), *how, **of), begin(model(), *how, recorder=recorder, **of)
    losses, graphed_losses = advance(plain, batches), advance(graphed, batches)
    assert all(torch.equal(a, b) for a, b in zip(losses, graphed_losses, strict=True))
    assert same(plain, graphed)
    assert all(parameter.grad is None for parameter in graphed.model.parameters())
    return graphed


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_same_bit_for_bit(name: str, emulated: Emulated) -> None:
    graphed = compared(emulated, model_of, name)
    assert graphed.pipeline.graphs.why == ""
    assert emulated.count == 2 + 2 * 7  # the first step is eager, and before the second one replay is compared


@pytest.mark.parametrize("name", ["stale_weights", "pipeoptim"])
def test_a_model_without_statistics_is_replayed_as_it_is(name: str, emulated: Emulated) -> None:
    def plain() -> nn.Sequential:
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.LazyLinear(9), nn.ReLU(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 4)]
        network = nn.Sequential(*layers)
        network(Noise()[0][0])
        return network

    graphed = compared(emulated, plain, name)
    assert graphed.pipeline.graphs.why == "" and emulated.count == 2 + 2 * 7


def test_without_being_asked_nothing_is_recorded(emulated: Emulated) -> None:
    graphed = compared(emulated, model_of, graphs=False)
    assert emulated.count == 0 and graphed.pipeline.graphs.why == "graphs were not asked for"


class Uneven(Noise):
    """Minibatches 0, 4 and 7 are short."""

    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().__getitem__(t)
        return (inputs[:5], targets[:5]) if t in (0, 4, 7) else (inputs, targets)


def test_minibatches_of_another_form_are_eager(emulated: Emulated) -> None:
    graphed = compared(emulated, model_of, batches=Uneven())
    assert graphed.pipeline.graphs.why == "" and emulated.count == 2 + 2 * 4


class Dense(Noise):
    """Minibatch 2 has another memory layout."""

    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().__getitem__(t)
        return (inputs.contiguous() if t == 2 else inputs), targets


def test_so_are_those_of_another_layout(emulated: Emulated) -> None:
    compared(emulated, model_of, batches=Dense())
    assert emulated.count == 2 + 2 * 6 and len({Dense()[t][0].stride() for t in (1, 2)}) == 2


def test_only_the_devices_tensors_and_constants_are_given(emulated: Emulated) -> None:
    device, x = torch.device("cpu"), torch.zeros(2, 3)

    def form(*leaves: Any) -> Any:
        return graphs.form_of(leaves, None, device)

    assert form(x, 1) == form(x + 1, 1) != form(x, True)
    assert form(x) != form(x.t().contiguous()) and form(x) != form(x.double())
    bad = (x.to_sparse(), torch.zeros(2, requires_grad=True), torch.zeros(2, device="meta"), nn.Parameter(x), object())
    assert [form(one) for one in bad] == [None] * 5


class Gapped(Noise):
    """Every second row of larger images: minibatches with gaps in memory, which a copy of them does not have."""

    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().__getitem__(t)
        return inputs[:, :, ::2], targets


def test_minibatches_with_gaps_are_eager(emulated: Emulated) -> None:
    graphed = compared(emulated, model_of, batches=Gapped(size=16))
    assert graphed.pipeline.graphs.why == "a tensor of the minibatch does not lie densely in memory"


class Between(nn.Module):
    """A layer whose forward is a given function of the layer itself, with all that it has kept, and of its input."""

    def __init__(self, does: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.does, self.count, self.seen = does, 0, [1]
        self.table: dict[str, float] = {}
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.does(self, x)


def counting(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.count += 1
    return x * self.count


def rebinding(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.steps = self.steps + 1
    return x * self.steps


def appending(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.seen.append(len(self.seen))
    return x * sum(self.seen)


def filling(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.table["scale"] = self.table.get("scale", 1.0) + 0.5
    return x * self.table["scale"]


def naming(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.new = getattr(self, "new", 1.0) * 1.5
    return x * self.new


def drawing(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)


def choosing(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


def writing(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x.mul_(1.5)


OUTSIDE = [0]


def counting_outside(self: Any, x: torch.Tensor) -> torch.Tensor:
    OUTSIDE[0] += 1
    return x * OUTSIDE[0]


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (counting, "a pass sets 'count' of Between, which a graph would not"),
        (rebinding, "a pass sets 'steps' of Between, which a graph would not"),
        (appending, "a pass sets 'seen' of Between, which a graph would not"),
        (filling, "a pass sets 'scale' of Between, which a graph would not"),
        (drawing, "a pass draws random numbers, of which every minibatch has its own"),
        (choosing, "a pass draws random numbers, of which every minibatch has its own"),
    ],
)
def test_a_layer_that_python_has_a_part_in_stays_eager(
    does: Any, why: str, emulated: Emulated, capsys: pytest.CaptureFixture[str]
) -> None:
    random.seed(5)
    batches = Noise()
    plain = begin(model_of(Between(does)))
    advance(plain, batches)
    random.seed(5)
    graphed = begin(model_of(Between(does)), recorder=emulated)
    advance(graphed, batches)
    assert same(plain, graphed) and graphed.pipeline.graphs.why == why
    assert capsys.readouterr().err == f"pipelag: steps are computed without CUDA graphs: {why}\n"


def test_what_a_forward_names_anew_is_forgotten(emulated: Emulated) -> None:
    attributes = graphs.Attributes([layer := Between(naming)])
    assert attributes.changed() == ""
    layer(torch.ones(1))
    assert attributes.changed() == "'new' of Between"
    attributes.restore()
    assert not hasattr(layer, "new") and attributes.changed() == ""


def test_what_a_function_counts_or_binds_in_its_closure_is_forgotten() -> None:
    def functions() -> tuple[Callable[[], int], Callable[[], int]]:
        count, late = 0, 1

        def counting() -> int:
            nonlocal count
            count += 1
            return count

        def binding() -> int:
            nonlocal late
            late = 7
            return late

        del late  # its variable has no value until it is called
        return counting, binding

    counting, binding = functions()
    assert counting() == 1
    for called, name in ((counting, "count"), (binding, "late")):
        attributes = graphs.Attributes([counting, binding])
        called()
        assert attributes.changed() == f"'{name}' of {called.__name__}"
        attributes.restore()
        assert attributes.changed() == ""
    assert counting() == 2 and vars(binding) == {}


def test_a_shape_that_every_forward_notes_anew_is_the_same_until_it_differs() -> None:
    layer: Any = Between(naming)
    layer.shape = (2, (3, 4))
    attributes = graphs.Attributes([layer])
    for shape, changed in (((3, 4), ""), ((3, 5), "'shape' of Between"), ((3, 4, 5), "'shape' of Between")):
        layer.shape = (2, tuple(list(shape)))
        assert attributes.changed() == changed
    attributes.restore()
    assert layer.shape == (2, (3, 4))


def test_a_layer_that_writes_into_its_minibatch_stays_eager(emulated: Emulated) -> None:
    model = nn.Sequential(Between(writing), *model_of())
    training = begin(model, recorder=emulated)
    batches = [Noise()[t] for t in range(8)]
    advance(training, batches)
    assert training.pipeline.graphs.why == "a pass writes into its minibatch"
    assert all(torch.equal(batches[t][0], 1.5 * Noise()[t][0]) for t in range(8))  # once each, as eager steps do


def test_what_no_look_finds_the_comparison_does(emulated: Emulated) -> None:
    graphed = begin(model_of(Between(counting_outside)), recorder=emulated)
    advance(graphed, Noise())
    assert graphed.pipeline.graphs.why == "a replayed step differs from the same step without graphs"


class Learning(nn.Module):
    """A loss with a weight that is in no optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss_of(output * self.scale, target)


class Averaging(nn.Module):
    """A loss with a running mean in a buffer."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = loss_of(output, target)
        self.mean.mul_(0.9).add_(loss.detach(), alpha=0.1)
        return loss + self.mean


def test_a_gradient_outside_the_stages_is_not_lost(emulated: Emulated) -> None:
    gradients = []
    for recorder in (None, emulated):
        loss = Learning()
        advance(begin(model_of(), loss=loss, recorder=recorder), Noise())
        gradients.append(loss.scale.grad)
    assert gradients[0] is not None and gradients[1] is not None and torch.equal(gradients[0], gradients[1])


def test_a_loss_may_keep_a_buffer(emulated: Emulated) -> None:
    means = []
    for recorder in (None, emulated):
        loss = Averaging()
        training = begin(model_of(), loss=loss, recorder=recorder)
        advance(training, Noise())
        means.append(loss.mean)
    assert torch.equal(means[0], means[1]) and training.pipeline.graphs.why == ""


@pytest.mark.parametrize("error", [RuntimeError, PipelagError])
def test_a_recording_that_fails_leaves_no_trace(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Emulated(spoiled=error)
    monkeypatch.setattr(graphs, "recorder_of", lambda device: recorder)
    phases = [Phase(methods.get("pipemare"), 6, CUTS), Phase(methods.get("sequential"), 4)]
    graphed = compared(recorder, model_of, phases)
    why = f"recording failed: {error.__name__}: an operation that a graph cannot hold"
    assert capsys.readouterr().err == f"pipelag: steps are computed without CUDA graphs: {why}\n"  # once for all phases
    assert (graphed.without_graphs(0), graphed.without_graphs(1), recorder.count) == (why, why, 0)


class Tripping(torch.autograd.Function):
    """A function whose backward fails once, after all eight steps of the eager training and one of that with graphs.

    By then the layers after it already have their gradients.
    """

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Tripping.calls += 1
        if Tripping.calls == 8 + 2:
            raise RuntimeError("tripped")
        return gradient


def test_nor_does_a_backward_that_fails_half_way(emulated: Emulated) -> None:
    Tripping.calls = 0
    graphed = compared(emulated, lambda: model_of(Between(lambda layer, x: Tripping.apply(x))))
    assert graphed.pipeline.graphs.why == "recording failed: RuntimeError: tripped"


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ({"microbatches": 2}, "a minibatch goes through in several microbatches"),
        ({"recompute": True}, "the forward is run again before the backward"),
        ({"cuts": (3,), "replicas": (2, 1), "name": "pipedream"}, "stages have replicas"),
        ({"name": "pipemare_random"}, "the method keeps old gradients"),
    ],
)
def test_a_phase_says_why_it_is_eager(of: dict[str, Any], why: str, emulated: Emulated) -> None:
    name = of.pop("name", "pipemare")
    if name == "pipemare_random":
        name = next(n for n, m in methods.METHODS.items() if m.random is not None and m.random.of == "gradient")
    graphed = compared(emulated, model_of, name, **of)
    assert graphed.pipeline.graphs.why.startswith(why) and emulated.count == 0


def recurrent(dropout: float = 0.0) -> nn.Sequential:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(24, 4, num_layers=2, batch_first=True, dropout=dropout)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = self.lstm(x.transpose(1, 2).flatten(2))[0]
            return rows[:, -1]

    torch.manual_seed(0)
    return nn.Sequential(Rows(), nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 4), nn.Linear(4, 4))


def hooked() -> nn.Sequential:
    model = model_of()
    model[0].register_forward_hook(lambda module, inputs, output: output * 1.5)
    return model


def watched() -> nn.Sequential:
    model = model_of()
    model[5].weight.register_hook(lambda gradient: gradient * 0.5)
    return model


@pytest.mark.parametrize(
    ("model", "name", "why"),
    [
        (convolutional, "stale_weights", "a layer draws random numbers"),
        (lambda: recurrent(0.5), "sequential", "a layer draws random numbers"),
        (recurrent, "stale_weights", "recurrent layers run without cuDNN"),
        (hooked, "stale_weights", "a layer has hooks"),
        (watched, "stale_weights", "a layer has hooks"),
    ],
)
def test_a_model_says_why_it_is_eager(model: Any, name: str, why: str, emulated: Emulated) -> None:
    graphed = compared(emulated, model, name)
    assert graphed.pipeline.graphs.why.startswith(why) and emulated.count == 0


@pytest.mark.parametrize("name", METHODS)
def test_in_bfloat16_the_masters_have_the_gradients(name: str, emulated: Emulated) -> None:
    graphed = compared(emulated, model_of, name, bf16=True)
    assert graphed.pipeline.graphs.why == "" and emulated.count == 2 + 2 * 7
    assert graphed.masters is not None and all(master.grad is None for master in graphed.masters.values())


class Forgetful(Emulated):
    """Its replays of a backward do not write the gradients anywhere."""

    def record(self, passes: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        kept = [tensor.clone() for tensor in self.module.buffers()]
        results = passes()
        for buffer, value in zip(self.module.buffers(), kept, strict=True):
            buffer.data.copy_(value)
        forward = len(results) == 1

        def replay() -> None:
            for place, value in zip(results, passes() if forward else [], strict=forward):
                if place is not None and value is not None:
                    place.data.copy_(value)

        return replay, results


@pytest.mark.parametrize("bf16", [False, True])
def test_gradients_of_a_rehearsal_are_not_taken_for_those_of_a_replay(
    bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rehearsals and replays leave gradients in the same places, so a replay that writes none must be noticed."""
    recorder = Forgetful()
    monkeypatch.setattr(graphs, "recorder_of", lambda device: recorder)
    training = begin(model_of(), "pipedream", recorder=recorder, bf16=bf16)
    advance(training, Noise())
    assert training.pipeline.graphs.why == "a replayed step differs from the same step without graphs"


@pytest.mark.parametrize("bf16", [False, True])
def test_replayed_gradients_lie_where_the_update_reads_them(
    bf16: bool, emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []

    def counted(pairs: Any) -> None:
        copies.append(len(both := list(pairs)))
        copy_each(both)

    monkeypatch.setattr(joined, "copy_each", counted)
    training = begin(model_of(), "pipedream", recorder=emulated, bf16=bf16)
    advance(training, Noise())
    assert training.pipeline.graphs.why == "" and copies == [0] * 7  # the first step is the optimizer's own


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("does", ["freezes", "leaves a gradient"])
def test_what_is_done_to_a_parameter_in_between_is_noticed(does: str, bf16: bool, emulated: Emulated) -> None:
    losses, batches = [], Noise()
    for recorder in (None, emulated):
        training = begin(model_of(), "pipedream", recorder=recorder, bf16=bf16)
        weight, step_losses = training.model[5].weight, []
        for t in range(8):
            if t == 5:
                weight.requires_grad_(does != "freezes")
                weight.grad = None if does == "freezes" else torch.ones_like(weight)
            step_losses.append(training.step(*batches[t]))
        losses.append(step_losses)
    assert all(torch.equal(a, b) for a, b in zip(*losses, strict=True))
    assert emulated.count == 2 + 2 * (4 if does == "freezes" else 6)  # the others are eager


def test_a_rounded_parameter_that_somebody_watches_is_eager(emulated: Emulated) -> None:
    phases = [Phase(methods.get("pipedream"), 4, CUTS)]
    watched = begin(model_of(), phases, recorder=emulated, bf16=True)
    watched.model[5].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    advance(watched, Noise())
    assert watched.pipeline.graphs.why == "a layer has hooks" and emulated.count == 0


def test_autocast_is_eager(emulated: Emulated) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        graphed = compared(emulated, model_of, "pipedream")
    assert graphed.pipeline.graphs.why == "autocast is on" and emulated.count == 0


def test_a_model_on_several_devices_is_eager(emulated: Emulated) -> None:
    away = Between(lambda layer, x: x)
    away.register_buffer("away", torch.zeros(2, device="meta"))
    graphed = begin(model_of(away), recorder=emulated)
    advance(graphed, Noise())
    assert graphed.pipeline.graphs.why == "the model lies on several devices"


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    training = begin(model_of(), graphs=True)
    advance(training, Noise())
    assert training.pipeline.graphs.why == "graphs need a CUDA device" and not capsys.readouterr().err


def test_the_library_can_be_asked(emulated: Emulated) -> None:
    models = [emulated.module, _] = [model_of(), model_of()]
    for model, used in zip(models, (True, False), strict=True):
        pipelag.train(model, Noise(), cuts=CUTS, steps=6, optimizer=sgd, graphs=used)
    assert equal(models[0].state_dict(), models[1].state_dict()) and emulated.count == 2 + 2 * 5


def test_a_setting_that_changes_is_followed(emulated: Emulated) -> None:
    """Evaluation mode, frozen layers and gradients left from before change replayed steps as they change eager ones."""

    def run(recorder: Emulated | None) -> SimulatedTraining:
        training = begin(model_of(), steps=16, recorder=recorder)
        batches, model = Noise(), training.model
        advance(training, batches, 4)
        model.eval()
        advance(training, batches, 2)
        model.train()
        model[0][0].weight.requires_grad_(False)
        advance(training, batches, 3)
        model[0][0].weight.requires_grad_(True)
        model[3][0].weight.grad = torch.ones_like(model[3][0].weight)
        advance(training, batches, 3)
        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            advance(training, batches, 4)
        return training

    plain, graphed = run(None), run(emulated)
    assert same(plain, graphed) and emulated.count == 2 + 2 * (3 + 2 + 4)


@pytest.mark.parametrize("name", ["stale_weights", "pipedream", "pipemare", "spectrain", "pipeoptim"])
def test_resumed_equals_unbroken(name: str, emulated: Emulated) -> None:
    whole = compared(emulated, model_of, name)
    first = begin(model_of(), name, recorder=emulated)
    advance(first, Noise(), 4)
    state = copy.deepcopy(first.state_dict())
    advance(first, Noise(), 2)
    second = begin(model_of(seed=9), name, recorder=emulated)
    second.load_state_dict(copy.deepcopy(state))
    advance(second, Noise(), 4)
    assert same(whole, second)
    emulated.module, before = first.model, emulated.count
    first.load_state_dict(copy.deepcopy(state))  # into the tensors that its recording reads
    advance(first, Noise(), 4)
    assert same(whole, first) and emulated.count == before + 2 * 4


def test_every_phase_records_anew(emulated: Emulated) -> None:
    parts = Phase(methods.get("pipedream"), 2, (3,), microbatches=2)
    phases = [Phase(methods.get("stale_weights"), 5, CUTS), Phase(methods.get("sequential"), 4, (2,)), parts]
    graphed = begin(model_of(), phases, recorder=emulated)
    first = graphed.pipeline
    plain = begin(model_of(), phases)
    assert all(torch.equal(*pair) for pair in zip(advance(plain, Noise()), advance(graphed, Noise()), strict=True))
    assert same(plain, graphed) and emulated.count == 2 + 2 * 4 + 2 + 2 * 3
    assert first.graphs.recording is None  # its memory is free
    reasons = [graphed.without_graphs(phase) for phase in range(4)]
    assert reasons == ["", "", "a minibatch goes through in several microbatches", None]
    rows = [row_of(graphed, phase) for phase in range(4)]
    resumed = begin(model_of(), phases, recorder=emulated)
    resumed.load_state_dict(copy.deepcopy(graphed.state_dict()))
    assert [resumed.without_graphs(phase) for phase in (0, 1)] == [None, None]
    assert rows == [{"graphs": "used"}, {"graphs": "used"}, {"graphs": reasons[2]}, {}] and row_of(plain, 0) == {}


def test_an_onlooker_sees_the_same(emulated: Emulated) -> None:
    rows = []
    for recorder in (None, emulated):
        training = begin(model_of(), "spectrain", recorder=recorder)
        watch = Discrepancy(training.pipeline, (1, 2), every=2)
        advance(training, Noise())
        rows.append(watch.row())
    assert rows[0] == rows[1] and rows[0]["rmse_predicted_1"] > 0 and emulated.count


def test_nobody_is_told_of_rehearsals(emulated: Emulated) -> None:
    observed: list[list[Any]] = [[], []]
    for recorder, calls in zip((None, emulated), observed, strict=True):
        training = begin(model_of(), recorder=recorder)
        training.pipeline.observe = lambda *call, calls=calls: calls.append(call)
        advance(training, Noise())
    assert observed[0] == observed[1] and len(observed[0]) > 8 * 4


def test_the_generator_is_left_as_eager_steps_leave_it(emulated: Emulated) -> None:
    """Recording draws nothing from torch's generator, from which an optimizer may draw."""
    drawn = []
    for recorder in (None, emulated):
        training = begin(model_of(), recorder=recorder)
        advance(training, Noise())
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def test_losses_are_not_overwritten(emulated: Emulated) -> None:
    losses = advance(begin(model_of(), recorder=emulated), Noise())
    assert len({float(loss) for loss in losses}) == len(losses) and not any(loss.requires_grad for loss in losses)


def test_batch_norms_count_a_minibatch_together() -> None:
    once, twice, never, averaging, derived = (nn.BatchNorm1d(2, momentum=m) for m in (0.1, 0.1, 0.1, None, 0.1))
    derived.__class__ = type("OwnNorm", (nn.BatchNorm1d,), {})  # may do anything with the number
    model = nn.ModuleList([once, twice, never, averaging, derived, nn.BatchNorm1d(2, track_running_stats=False)])
    x = torch.randn(4, 2)
    with unchanged_buffers(model):
        for norm in (once, twice, twice, averaging, derived):
            norm(x)
        after = [buffer.clone() for buffer in model.buffers()]
    assert counting_once(model, after) == [once]
    with pytest.raises(ValueError, match="interrupted"), counted_together([once]):
        once(x)
        raise ValueError("interrupted")
    assert once.num_batches_tracked == 0
    with counted_together([once]):
        once(x)
    assert once.num_batches_tracked == 1
    with pytest.raises(RuntimeError, match="reads how many minibatches"), counted_together([once]):
        once(x).mul(once.num_batches_tracked > 4)
    assert once.num_batches_tracked == 1


def test_a_recording_has_one_count_for_all_batch_norms(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = torch._foreach_add_
    monkeypatch.setattr(torch, "_foreach_add_", lambda counts, *of: (seen.append(len(counts)), real(counts, *of)))
    norms = [module for module in model_of().modules() if isinstance(module, nn.BatchNorm2d)]
    compared(emulated, lambda: model_of(nn.Identity()))
    assert norms and seen.count(len(norms)) == 1 + 1 + 1 + 7  # tried, recorded, compared, and seven replays
    assert all(count == len(norms) for count in seen)


class Counting(nn.Module):
    """A batch norm whose output depends on how many minibatches it has counted.

    Either this module reads the count, or a forward that it puts in the place of the norm's own does (`inside`).
    """

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.norm, self.inside = nn.BatchNorm2d(12), inside
        if inside:
            self.norm.forward = self.scaled  # type: ignore[method-assign]

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        count = self.norm.num_batches_tracked
        y = nn.BatchNorm2d.forward(self.norm, x)
        return y if count is None else y * torch.where(count > 4, 0.5, 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) if self.inside else self.scaled(x)


class Recomputed(torch.autograd.Function):
    """A function whose backward runs a layer's forward and backward again, as in reversible networks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        ctx.layer, ctx.x, ctx.bf16 = layer, x.detach(), torch.is_autocast_enabled("cpu")
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        x = ctx.x.requires_grad_()
        with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False, enabled=ctx.bf16):
            y = ctx.layer(x)
        torch.autograd.backward(y, gradient.to(y.dtype))
        return x.grad, None


class ByFunction(nn.Module):
    """A convolution that is applied by a given function."""

    def __init__(self, how: Callable[[torch.Tensor, nn.Module], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.how = nn.Conv2d(12, 12, 1), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(x, self.layer)


def with_fifth(make: Callable[[], nn.Module]) -> nn.Sequential:
    """The toy model with one more layer before the pooling."""
    layers = list(model_of())
    torch.manual_seed(5)
    return nn.Sequential(*layers[:4], make(), *layers[4:]).to(memory_format=torch.channels_last)


def checkpointed(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """Apply a layer under a reentrant checkpoint, which works with `backward` and not with `torch.autograd.grad`."""
    return checkpoint(layer, x, use_reentrant=True, preserve_rng_state=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Counting(inside=False),
        lambda: Counting(inside=True),
        lambda: ByFunction(Recomputed.apply),
        lambda: ByFunction(checkpointed),
    ],
    ids=["reads a count", "forward of its own", "recomputed", "checkpointed"],
)
def test_where_less_would_be_something_else_passes_are_recorded_whole(
    make: Callable[[], nn.Module], bf16: bool, emulated: Emulated
) -> None:
    """Where a shorter recording would be wrong, whole passes are recorded.

    A shorter one raises all counts of minibatches at once and returns rounded gradients at once. With these layers some
    counts or gradients would be wrong or missing.
    """
    graphed = compared(emulated, lambda: with_fifth(make), bf16=bf16)
    assert graphed.pipeline.graphs.why == "" and emulated.count == 2 + 2 * 7


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_in_bfloat16_a_parameter_that_is_frozen_at_first_may_be_thawed(at: int, emulated: Emulated) -> None:
    """Its master gets gradients from then on. Replayed and eager steps agree on this, whenever it is thawed."""

    def trained(recorder: Emulated | None) -> SimulatedTraining:
        model, batches = model_of(), Noise()
        frozen = [*model[3].parameters(), *model[5].parameters()]
        for parameter in frozen:
            parameter.requires_grad_(False)
        training = begin(model, recorder=recorder, bf16=True)
        assert training.masters is not None
        masters = [training.masters[parameter] for parameter in frozen]
        first = [master.detach().clone() for master in masters]
        for t in range(8):
            for parameter in frozen:
                parameter.requires_grad_(t >= at)
            training.step(*batches[t])
            moved = [not torch.equal(*pair) for pair in zip(masters, first, strict=True)]
            assert all(moved) if t >= at else not any(moved)
        assert all(parameter.grad is None for parameter in frozen)
        return training

    assert same(trained(None), trained(emulated))


def test_what_counts_as_alike() -> None:
    a, count = torch.tensor([1.0, 2.0]), torch.tensor([100_000])
    assert alike([a, None], [a.clone(), None]) and not alike([a], [None]) and not alike([a], [a + 0.1])
    assert alike([a], [a + 1e-6]) and not alike([count], [count + 1])
    torch.use_deterministic_algorithms(True)
    try:
        assert not alike([a], [a + 1e-6])
    finally:
        torch.use_deterministic_algorithms(False)


def waiting(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * (1.0 if float(x.detach().sum()) > 0 else 0.5)


on_a_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)


@on_a_gpu
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_on_a_gpu_graphs_are_the_eager_steps_bit_for_bit(name: str, bf16: bool, device: str) -> None:
    plain, graphed = (begin(model_of().to(device), name, graphs=used, bf16=bf16) for used in (False, True))
    batches = Uneven(device=device)
    losses, graphed_losses = advance(plain, batches), advance(graphed, batches)
    assert graphed.pipeline.graphs.why == "" and graphed.pipeline.graphs.recording is not None
    assert all(torch.equal(a, b) for a, b in zip(losses, graphed_losses, strict=True)) and same(plain, graphed)


@on_a_gpu
@pytest.mark.parametrize("does", [waiting, counting, rebinding, drawing])
def test_on_a_gpu_what_cannot_be_recorded_leaves_no_trace(does: Any, device: str) -> None:
    plain, graphed = (begin(model_of(Between(does)).to(device), graphs=used) for used in (False, True))
    advance(plain, Noise(device=device))
    advance(graphed, Noise(device=device))
    assert same(plain, graphed) and graphed.pipeline.graphs.why
    pipelag.train(model_of().to(device), Noise(device=device), steps=3, device=device)  # the device is well
