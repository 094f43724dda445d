"""Weights shown to passes by reference train like weights shown by copies, bit for bit, and do not outlast the step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from pipelag.errors import PipelagError
from pipelag.methods import METHODS, Method, get
from pipelag.methods.carriers import Correction
from pipelag.methods.reads import DelayCompensation
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage import showing as showing_module
from pipelag.stage import weights as weights_module
from pipelag.stage.phase import Phase
from pipelag.stage.policy import StageWeights
from pipelag.stage.showing import Aside, ByReference, Copies, InPlace
from pipelag.stage.weights import FlatParameters
from tests.stage.test_guard import IMAGE, KINDS, WORDS
from tests.toy import Noise, adamw, convolutional, sgd, simulated

CUTS, STEPS = (1, 2, 4), 9
loss_of = nn.functional.cross_entropy


def training_of(
    method: str | Method, parts: int = 1, copied: bool = False, bf16: bool = False, linear: bool = False
) -> SimulatedTraining:
    """A training of the toy model.

    copied: ask for graphs, so that weights are copied to fixed places; without a GPU steps are eager all the same.
    linear: make the first stage of layers whose graphs keep views of their weights.
    """
    momentum = 0.0 if method == "nesterov_async" else 0.9  # nesterov_async brings its own
    sgd = partial(torch.optim.SGD, lr=0.02, momentum=momentum, weight_decay=1e-3)
    make = adamw if method in ("pipeoptim", "xpipe") else sgd
    phases = [Phase(get(method), STEPS, CUTS, microbatches=parts)]
    rate = lambda t: 1 / (1 + t / 4)  # noqa: E731
    model = convolutional()
    if linear:
        model[0] = nn.Sequential(nn.Flatten(), nn.Linear(192, 20), nn.Linear(20, 512), nn.Unflatten(1, (8, 8, 8)))
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
        assert ways(training) == {Aside if bf16 else InPlace if copied else ByReference}
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
    """Parameters point at the live weights between steps, and at a kept version in a forward once the pipeline is full.

    Where graphs keep views of that version, the backward's weights are written over it, unless other microbatches read
    it, too.
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
    versions = {buffer.untyped_storage().data_ptr() for ring in first.rings for each in ring for buffer in each}
    assert isinstance(first.showing, ByReference)
    assert bool(first.showing.pointed) is (method != "pipedream" and not linear)
    assert bool(first.showing.scratch) is copies
    assert len(seen[-1] - live) >= 1 and (copies or seen[-1] <= versions)


@pytest.mark.parametrize("method", ["spectrain", "pipemare", "pipedream", "1f1b"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_step_that_breaks_off_leaves_nothing_that_a_restart_would_keep(method: str, where: str) -> None:
    """After a step that breaks off, a restart goes on bit for bit.

    The step itself is not repeated where it has written over weights.
    """
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
    if where == "forward" or method == "pipedream":  # PipeDream's backward reads what its forward read
        training.model.zero_grad()
        assert torch.equal(training.step(*batches[7]), expected[0])
    else:
        with pytest.raises(PipelagError, match="interrupted; continue from a checkpoint"):
            training.step(*batches[7])
    training.load_state_dict(state)
    assert all(torch.equal(training.step(*batches[t]), loss) for t, loss in zip(range(7, STEPS), expected, strict=True))


@pytest.mark.parametrize("parts", [1, 2])
def test_a_live_version_that_a_backward_has_read_in_a_copy_is_kept_there(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live version that was overwritten for a backward is kept in its copy, and not copied once more.

    The ring of versions takes the overwritten place instead.
    """
    training, batches = training_of("stale_weights", parts, linear=True), Noise()
    first, copied = training.pipeline.weights[0], set[int]()
    showing = first.showing
    assert isinstance(showing, ByReference)
    training.step(*batches[0])
    monkeypatch.setattr(Copies, "keep", lambda self, stage, there: copied.add(stage.stage))
    for t in range(1, STEPS):
        places = {id(each) for each in [*first.plain, showing.scratch] if each}
        training.step(*batches[t])
        assert {id(each) for each in [*first.plain, showing.scratch] if each} == places or t <= first.back
    assert copied == {2, 3}  # stages whose graphs keep no views, so that nothing is written over


class Sliced(nn.Conv2d):
    """A convolution that uses a view of its weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, self.weight[:], padding=1)


class Around(nn.Module):
    """A layer that, from a given call on, uses a convolution's weights in a linear layer."""

    def __init__(self, since: int = 0) -> None:
        super().__init__()
        self.convolution, self.since = nn.Conv2d(6, 6, 1, bias=False), since

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.since -= 1
        if self.since >= 0:
            return self.convolution(x.transpose(1, 3)).transpose(1, 3)
        return nn.functional.linear(x, self.convolution.weight.view(6, 6))


class Detached(nn.Module):
    """A convolution whose graph keeps a detached tensor on the weights' memory."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
            return self.convolution(x)


class Scale(nn.Module):
    """Multiplies by one parameter, so that the layers after it have an input that needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


class ByView(torch.autograd.Function):
    """A product that keeps a view of its weights where autograd does not see it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.weight, ctx.x = weight.t(), x.flatten(0, -2)
        return x @ ctx.weight

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return gradient @ ctx.weight.t(), gradient.flatten(0, -2).t() @ ctx.x


class Owned(nn.Linear):
    """A linear layer by `ByView`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ByView.apply(x, self.weight) + self.bias


class Beside(nn.Module):
    """A layer that in every other call makes an output which nobody uses and which the next call drops."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.calls = nn.Conv2d(6, 6, 1, bias=False), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.unused = None
        rows = nn.functional.linear(x, self.convolution.weight.view(6, 6))
        if self.calls % 2:
            self.unused = rows
            return self.convolution(x.transpose(1, 3)).transpose(1, 3)
        return rows


class Caching(nn.Module):
    """A convolution that holds on to the view it uses until it makes the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(6, 6, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.same = self.convolution.weight[:]
        return nn.functional.conv2d(x.transpose(1, 3), self.same).transpose(1, 3)


POINTED = {"convolution", "grouped convolution", "transposed convolution", "batch norm", "group norm", "layer norm"}
OTHERS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "slopes": (IMAGE, lambda: nn.PReLU(8)),
    "subclass": (IMAGE, lambda: Sliced(8, 8, 3)),
    "from outside": (IMAGE, Around),
    "from outside, later": (IMAGE, lambda: Around(5)),
    "from outside, from a minibatch's last part on": (IMAGE, lambda: Around(8)),
    "detached": (IMAGE, Detached),
    "caching": (IMAGE, Caching),
    "a function's own": (WORDS, lambda: Owned(8, 8)),
    "unused beside": (IMAGE, Beside),
    "norm and linear": (WORDS, lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))),
}


def small(name: str, device: str, copied: bool, method: str, parts: int, loss: Any = loss_of) -> SimulatedTraining:
    """A training of three stages, of which the middle one is the named layer."""
    shape, make = (KINDS | OTHERS)[name]
    torch.manual_seed(0)
    model = nn.Sequential(Scale(), make(), nn.Sequential(nn.Flatten(), nn.LazyLinear(3))).to(device)
    model(torch.zeros(shape, device=device))
    phases, where = [Phase(get(method), 8, (1, 2), microbatches=parts)], torch.device(device)
    loss = partial(loss, model) if loss is not loss_of else loss
    return SimulatedTraining(model, phases, sgd, loss, device=where, graphs=copied)


def drawn(name: str, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    shape, generator = (KINDS | OTHERS)[name][0], torch.Generator().manual_seed(1)
    shape = (4 * shape[0], *shape[1:])
    batches = [(torch.randn(shape, generator=generator), torch.zeros(shape[0], dtype=torch.int64)) for _ in range(8)]
    return [(x.to(device), y.to(device)) for x, y in batches]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("method", ["stale_weights", "pipemare", "spectrain"])
@pytest.mark.parametrize("name", [*sorted(POINTED), "linear", "attention", *OTHERS])
def test_where_no_view_of_weights_is_kept_a_backward_is_pointed_at_its_own(
    name: str, method: str, parts: int, device: str
) -> None:
    """Where graphs keep no view of weights, a backward's parameters point at its weights, and nothing is written over.

    It trains as where weights are written over, also where a view is kept only from some minibatch on.
    """
    ends = []
    for copied in (False, True):
        trained = small(name, device, copied, method, parts)
        ends.append([trained.step(*batch) for batch in drawn(name, device)])
        ends[-1] += [parameter.detach() for parameter in trained.model.parameters()]
        showing = trained.pipeline.weights[1].showing
        assert copied or (isinstance(showing, ByReference) and showing.pointed is (name in POINTED))
    assert all(map(torch.equal, *ends))


def orthogonal(model: nn.Sequential, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss that asks for orthogonal filters, and so keeps a view of a stage's weights."""
    rows = model[1].weight.flatten(1)
    return loss_of(output, target) + 0.1 * (rows @ rows.t() - torch.eye(8)).square().sum()


def smooth(model: nn.Sequential, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss that contains a gradient."""
    loss = loss_of(output, target)
    slopes = torch.autograd.grad(loss, [model[1].weight, model[0].by], create_graph=True)
    return loss + 0.1 * sum(slope.square().sum() for slope in slopes)


@pytest.mark.parametrize("method", ["stale_weights", "pipemare", "spectrain"])
@pytest.mark.parametrize("loss", [orthogonal, smooth])
def test_a_loss_over_a_stages_weights_reads_those_of_the_backward_too(loss: Any, method: str) -> None:
    """A loss over a stage's weights reads the backward's weights, in an unbroken training as in a resumed one.

    A resumed one is another case, because the first forward of a pipeline is examined.
    """
    batches = drawn("convolution", "cpu")
    whole, copied = (small("convolution", "cpu", graphs, method, 1, loss) for graphs in (False, True))
    states, losses = [], []
    for batch in batches:
        states.append(deepcopy(whole.state_dict()))
        losses.append(whole.step(*batch))
        assert torch.equal(losses[-1], copied.step(*batch))
    for done in (1, 3, 6):
        resumed = small("convolution", "cpu", False, method, 1, loss)
        resumed.load_state_dict(states[done])
        assert [resumed.step(*batch) for batch in batches[done:]] == losses[done:]


def test_replicas_are_taken_up_again_between_two_minibatches_of_an_update() -> None:
    """A training with replicas resumes bit for bit within a round.

    It does although a backward has overwritten a copy that later minibatches of the round read, too.
    """
    phases, batches, losses = [Phase(get("stale_weights"), 10, CUTS, replicas=(2, 2, 1, 1))], Noise(), []

    def begun() -> SimulatedTraining:
        model = convolutional()
        model[0] = nn.Sequential(nn.Flatten(), nn.Linear(192, 20), nn.Linear(20, 512), nn.Unflatten(1, (8, 8, 8)))
        return SimulatedTraining(model.train(), phases, sgd, loss_of)

    whole, states = begun(), []
    for t in range(10):
        states.append(deepcopy(whole.state_dict()))
        losses.append(whole.step(*batches[t]))
    for t in (3, 4):
        resumed = begun()
        resumed.load_state_dict(states[t])
        assert [resumed.step(*batches[each]) for each in range(t, 10)] == losses[t:]


def stops_at(real: Any, calls: list[int], which: int, after: bool, *arguments: Any, **named: Any) -> Any:
    """Call `real`, but raise KeyboardInterrupt before or after the call with this number."""
    if "_foreach" in real.__name__ and sys._getframe(1).f_globals["__name__"] != ByReference.__module__:
        return real(*arguments, **named)  # this call moves something other than weights
    calls[0] += 1
    if calls[0] == which and not after:
        raise KeyboardInterrupt
    out = real(*arguments, **named)
    if calls[0] == which:
        raise KeyboardInterrupt
    return out


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("method", ["stale_weights", "pipemare", "pipedream"])
@pytest.mark.parametrize("name", ["convolution", "linear"])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(
    ("where", "what"), [(FlatParameters, "point"), (torch, "_foreach_copy_"), (Correction, "write_all")]
)
def test_a_step_stopped_while_weights_are_shown_is_taken_again_or_refused(
    where: Any, what: str, closed: bool, name: str, method: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step interrupted before or after any operation that moves weights is repeated exactly, or refused.

    It never trains on with other weights. closed: go on from a checkpoint that is written after the interruption.
    """
    batches, whole = drawn(name, "cpu"), small(name, "cpu", False, method, parts)
    losses = [whole.step(*batch) for batch in batches]
    real = getattr(where, what)
    for done, after in [(0, False), (5, False), (5, True)]:
        for which in range(1, 40):
            training, calls = small(name, "cpu", False, method, parts), [0]
            assert [training.step(*batch) for batch in batches[:done]] == losses[:done]

            stopped = partial(stops_at, real, calls, which, after)
            with monkeypatch.context() as patch:
                patch.setattr(where, what, stopped if where is torch else partialmethod(stopped))
                try:
                    training.step(*batches[done])
                    break
                except KeyboardInterrupt:
                    pass
            training.model.zero_grad()
            try:
                if closed:
                    training.close()
                    state = deepcopy(training.state_dict())
                    training = small(name, "cpu", False, method, parts)
                    training.load_state_dict(state)
                assert [training.step(*batch) for batch in batches[done:]] == losses[done:]
            except PipelagError as error:
                assert "interrupted; continue from a checkpoint" in str(error)


STOPS = {"load": 6, "rest": 3, "complete": 3}  # three stages; a forward and a backward load


@pytest.mark.parametrize(("what", "which"), [(what, n + 1) for what, count in STOPS.items() for n in range(count)])
@pytest.mark.parametrize("method", ["pipedream", "spectrain", "pipemare"])
def test_a_step_stopped_between_two_stages_moves_loses_no_weight(
    method: str, what: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step interrupted while only some stages have copied their weights leaves the live weights as they were.

    Stages note what they show before all of them have copied it.
    """
    training, batches = training_of(method, copied=True), Noise()
    assert ways(training) == {InPlace}
    for t in range(5):
        training.step(*batches[t])
    live = [parameter.detach().clone() for parameter in training.model.parameters()]
    calls, real = [0], getattr(StageWeights, what)

    def stopped(self: StageWeights, *arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == which:
            raise KeyboardInterrupt
        real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StageWeights, what, stopped)
        with pytest.raises(KeyboardInterrupt):
            training.step(*batches[5])
    training.close()
    assert all(torch.equal(a, b) for a, b in zip(live, training.model.parameters(), strict=True))


@pytest.mark.parametrize("method", ["pipedream", "spectrain", "pipemare", "stale_weights"])
def test_a_step_stopped_while_copies_are_made_is_taken_again(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 passes read copies. A step that is interrupted before or after one is made is repeated exactly."""
    batches, whole = Noise(), training_of(method, bf16=True)
    losses = [whole.step(*batches[t]) for t in range(STEPS)]
    real, stopped = weights_module.publish, 0
    for which in range(1, 10):
        for after in (False, True):
            training, calls = training_of(method, bf16=True), [0]
            assert [training.step(*batches[t]) for t in range(5)] == losses[:5]
            with monkeypatch.context() as patch:
                patch.setattr(showing_module, "publish", partial(stops_at, real, calls, which, after))
                try:
                    training.step(*batches[5])
                    continue
                except KeyboardInterrupt:
                    stopped += 1
            assert [training.step(*batches[t]) for t in range(5, STEPS)] == losses[5:]
    assert stopped >= 2


def test_weights_that_an_update_goes_by_are_not_written_over() -> None:
    """Weights that a forward read are not overwritten where the update reads them again.

    DC-ASGD does, here where backwards read live weights.
    """
    method, batches, ends = replace(get("1f1b"), name="compensated", update=DelayCompensation(0.5)), Noise(), []
    for copied in (True, False):
        training = training_of(method, copied=copied, linear=True)
        assert ways(training) == {InPlace if copied else ByReference}
        losses = [training.step(*batches[t]) for t in range(STEPS)]
        ends.append([*losses, *tree_leaves(training.state_dict()["model"])])
    assert all(map(torch.equal, *ends))
