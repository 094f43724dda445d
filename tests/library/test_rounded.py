"""A user's own code around a training in bfloat16: it sees and changes what it would in float32, or it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parametrizations

import pipelag
from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase

INPUTS = torch.randn(24, 12, 8, generator=torch.Generator().manual_seed(0))
BATCHES = [(x, (x.sum(1) > 0).long()) for x in INPUTS]
LOST = "was changed by something other than the optimizer, which would be lost"
loss_of = nn.functional.cross_entropy


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.2)


def train(network: nn.Sequential, batches: Any = BATCHES, **how: Any) -> list[float]:
    how = {"method": "pipedream", "cuts": (2, 4), "progress": False, "optimizer": sgd, "precision": "bf16"} | how
    return [row["loss"] for row in pipelag.train(network, batches, **how).metrics]


# Changes of weights -----------------------------------------------------------------------------------------------


def halve(weight: torch.Tensor) -> None:
    weight.data.mul_(0.5)


def overwrite(weight: torch.Tensor) -> None:
    weight.data.copy_(torch.zeros_like(weight))


def initialise(weight: torch.Tensor) -> None:
    nn.init.ones_(weight.data)


def one_number(weight: torch.Tensor) -> None:
    weight.data.view(-1)[3] = 2.0


CHANGES = [halve, overwrite, initialise, one_number]


@pytest.mark.parametrize("called", ["on_step", "on_evaluation", "on_checkpoint"])
@pytest.mark.parametrize("which", [0, 3], ids=["matrix", "vector"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_callback_that_changes_a_copy_through_its_data_is_refused(
    change: Callable[[torch.Tensor], None], which: int, called: str, tmp_path: Path
) -> None:
    network = model()

    def changing(step: int, _: Any) -> None:
        if step == 10:
            change(list(network.parameters())[which])

    how = {"checkpoints": tmp_path, "checkpoint_every": 5} if called == "on_checkpoint" else {"evaluate_every": 5}
    with pytest.raises(PipelagError, match=LOST):
        train(network, **how, **{called: changing})


@pytest.mark.parametrize("which", [0, 3], ids=["matrix", "vector"])
def test_weights_that_a_callback_puts_back_are_as_they_were(which: int) -> None:
    """As an evaluation with averaged weights does."""
    network, plain = model(), model()

    def changing(step: int, _: Any) -> None:
        weight = list(network.parameters())[which]
        before = weight.detach().clone()
        weight.data.mul_(0.5)
        weight.data.copy_(before)

    assert train(network, on_step=changing) == train(plain)


def test_weights_that_are_no_numbers_are_told_apart() -> None:
    """A training that has diverged to NaN goes on to its end."""
    losses = train(model(), optimizer=partial(torch.optim.SGD, lr=1e30), on_step=lambda step, loss: None)
    assert not all(map(torch.isfinite, torch.tensor(losses)))


def test_data_that_change_the_model_meanwhile_are_refused() -> None:
    """As a generator of minibatches may, which runs between two steps."""
    network = model()

    def batches() -> Iterator[Any]:
        for pair in BATCHES:
            yield pair
            network[0].weight.data.clamp_(-0.1, 0.1)

    with pytest.raises(PipelagError, match=f"'0.weight' {LOST}"):
        train(network, batches(), steps=24)


def begun(network: nn.Sequential, steps: int = 24, method: str = "stale_weights", **how: Any) -> SimulatedTraining:
    how = {"bf16": True, "optimizer": sgd} | how
    return SimulatedTraining(network, [Phase(methods.get(method), steps, (2, 4))], loss=loss_of, **how)


def test_a_checkpoint_is_not_written_of_changed_copies() -> None:
    training = begun(model())
    for t in range(6):
        training.step(*BATCHES[t])
    training.model[2].weight.data.mul_(0.9)
    with pytest.raises(PipelagError, match=f"'2.weight' {LOST}"):
        training.state_dict()


class Clamping(torch.optim.SGD):
    """Clamps weights after its step, those of the model."""

    def __init__(self, params: Any, network: nn.Module, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(params, lr=0.2)
        self.network, self.change = network, change

    def step(self, closure: Any = None) -> Any:
        super().step()
        for weight in self.network.parameters():
            self.change(weight)


def clamped(weight: torch.Tensor) -> None:
    weight.data.clamp_(-0.1, 0.1)


@torch.no_grad()
def clamped_in_place(weight: torch.Tensor) -> None:
    weight.clamp_(-0.1, 0.1)


CLAMPS = [clamped, clamped_in_place]


@pytest.mark.parametrize("clamp", CLAMPS)
def test_an_optimizer_that_changes_the_copies_is_refused(clamp: Callable[[torch.Tensor], None]) -> None:
    network = model()
    with pytest.raises(PipelagError, match=LOST):
        train(network, optimizer=lambda params: Clamping(params, network, clamp))


def hooked(params: Any, hook: Callable[[], Any], post: bool = False) -> torch.optim.Optimizer:
    optimizer = sgd(params)
    register = optimizer.register_step_post_hook if post else optimizer.register_step_pre_hook
    register(lambda *_: (hook(), None)[1])
    return optimizer


@pytest.mark.parametrize("post", [True, False])
@pytest.mark.parametrize("clamp", CLAMPS)
def test_a_hook_of_the_optimizer_that_changes_the_copies_is_refused(
    clamp: Callable[[torch.Tensor], None], post: bool
) -> None:
    network = model()

    def clamp_all() -> None:
        for weight in network.parameters():
            clamp(weight)

    with pytest.raises(PipelagError, match=LOST):
        train(network, optimizer=lambda params: hooked(params, clamp_all, post))


@pytest.mark.parametrize("clamp", CLAMPS)
@pytest.mark.parametrize("hook", ["register_full_backward_hook", "register_forward_hook"])
def test_a_hook_of_a_layer_that_changes_the_copies_is_refused(hook: str, clamp: Callable[[torch.Tensor], None]) -> None:
    network = model()
    getattr(network[2], hook)(lambda layer, *_: clamp(layer.weight))
    with pytest.raises(PipelagError, match="in place|" + LOST):
        train(network, method="1f1b")


def test_a_forward_that_changes_the_copies_in_a_later_step_is_refused() -> None:
    network, calls = model(), []

    def change(layer: Any, *_: Any) -> None:
        calls.append(layer)
        if len(calls) == 7:
            clamped_in_place(layer.weight)

    network[2].register_forward_pre_hook(change)
    with pytest.raises(PipelagError, match=f"'2.weight' {LOST}"):
        train(network)


def test_so_is_one_that_changes_their_data_from_some_step_on() -> None:
    network, calls = model(), []

    def change(layer: Any, *_: Any) -> None:
        calls.append(layer)
        if len(calls) > 7:
            clamped(layer.weight)

    network[2].register_forward_hook(change)
    with pytest.raises(PipelagError, match="in place|" + LOST):
        train(network, batches=BATCHES * 3)
    assert len(calls) == 17


# Gradients --------------------------------------------------------------------------------------------------------


def near(first: list[float], second: list[float]) -> bool:
    return first == pytest.approx(second, abs=0.02)


def both(make: Callable[[nn.Sequential], dict[str, Any]], **how: Any) -> list[list[float]]:
    """The losses in float32 and in bfloat16. make: changes a network; returns further arguments."""
    losses = []
    for precision in ("fp32", "bf16"):
        network = model()
        more = make(network)
        losses.append(train(network, precision=precision, **how, **more))
    return losses


HOW: list[dict[str, Any]] = [
    {},
    {"method": "gpipe", "microbatches": 4},
    {"method": "pipemare", "recompute": True, "microbatches": 2},
    {"method": "stale_weights", "replicas": (2, 2, 1)},
]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_hook_on_a_gradient_sees_what_it_would_in_float32(when: str, how: dict[str, Any]) -> None:
    """The sum over the minibatch's microbatches so far, in float32, which it may change."""
    seen: dict[str, list[torch.Tensor]] = {}

    def make(network: nn.Sequential) -> dict[str, Any]:
        mine = seen.setdefault("bf16" if seen else "fp32", [])
        weight = network[2].weight

        def hook(parameter: torch.Tensor) -> None:
            assert parameter is weight and parameter.grad is not None
            mine.append(parameter.grad.clone())
            parameter.grad.mul_(0.25)

        if when == "before":
            weight.register_post_accumulate_grad_hook(hook)
            return {}
        begin = lambda step, loss: step or weight.register_post_accumulate_grad_hook(hook)  # noqa: E731
        return {"on_step": begin}

    full, rounded = both(make, **how)
    (unhooked, _) = both(lambda network: {}, **how)
    assert near(full, rounded) and not near(full, unhooked)
    assert len(seen["fp32"]) == len(seen["bf16"]) > 20
    for a, b in zip(seen["fp32"], seen["bf16"], strict=True):
        assert a.dtype == b.dtype and torch.allclose(a, b, atol=0.02)


def test_hooks_change_no_bit_that_they_do_not_mean_to() -> None:
    for how in HOW:
        watched, plain = model(), model()
        for parameter in watched.parameters():
            parameter.register_post_accumulate_grad_hook(lambda parameter: None)
            parameter.register_hook(lambda gradient: None)
        assert train(watched, **how) == train(plain, **how)
        assert all(map(torch.equal, watched.parameters(), plain.parameters()))
        assert all(parameter.grad is None and parameter.dtype == torch.float32 for parameter in watched.parameters())


def test_a_hook_may_drop_or_replace_a_gradient() -> None:
    for value in (None, torch.full((8, 16), 0.01)):

        def make(network: nn.Sequential, value: Any = value) -> dict[str, Any]:
            network[2].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", value))
            return {}

        full, rounded = both(make)
        assert near(full, rounded)


def test_the_users_hooks_are_the_users_after_the_training() -> None:
    """A hook stays when the training ends, goes when it is removed, and is called once for each gradient."""
    network, calls = model(), []
    handles = [p.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad)) for p in network.parameters()]
    train(network, steps=3)
    assert len(calls) == 3 * 6
    loss_of(network(BATCHES[0][0]), BATCHES[0][1]).backward()
    assert len(calls) == 4 * 6 and all(
        p.grad is not None and p.grad.dtype == torch.float32 for p in network.parameters()
    )
    for handle in handles:
        handle.remove()
    train(network, steps=3)
    assert len(calls) == 4 * 6


def test_a_hook_that_comes_within_a_step_is_refused() -> None:
    network = model()

    def forward(layer: nn.Module, *_: Any) -> None:
        layer.weight.register_post_accumulate_grad_hook(lambda parameter: None)  # type: ignore[operator,union-attr]

    network[2].register_forward_pre_hook(forward)
    with pytest.raises(PipelagError, match="register it between two steps"):
        train(network)


def test_after_a_hook_has_failed_a_training_goes_on() -> None:
    """Its gradient is not left over, nor the type that it had meanwhile."""
    network, fails = model(), []

    def hook(parameter: torch.Tensor) -> None:
        if fails:
            raise ValueError(fails.pop())

    network[2].weight.register_post_accumulate_grad_hook(hook)
    training, plain = begun(network), begun(model())
    for t in range(6):
        if t == 3:
            fails.append("hook")
            with pytest.raises(ValueError, match="hook"):
                training.step(*BATCHES[t])
        assert torch.equal(training.step(*BATCHES[t]), plain.step(*BATCHES[t]))


def test_a_callback_measures_gradients_by_a_hook_of_its_own() -> None:
    """It registers the hook, runs a backward between two steps, and removes the hook again."""
    network, plain, seen = model(), model(), []

    def measure(step: int, loss: float) -> None:
        hook = network[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(float(p.grad.norm())))
        with torch.autocast("cpu", torch.bfloat16):
            loss_of(network(BATCHES[step][0]), BATCHES[step][1]).backward()
        hook.remove()

    assert train(network, on_step=measure) == train(plain)
    assert len(seen) == len(BATCHES) and min(seen) > 0


CLIPS = [partial(clip_grad_norm_, max_norm=0.05), partial(clip_grad_value_, clip_value=0.01)]


class Clipping(torch.optim.SGD):
    def __init__(self, params: Any, network: nn.Module, clip: Callable[..., Any]) -> None:
        super().__init__(params, lr=0.2)
        self.network, self.clip = network, clip

    def step(self, closure: Any = None) -> Any:
        self.clip(self.network.parameters())
        return super().step()


def dropped(weight: nn.Parameter) -> None:
    weight.grad = None


def halved(weight: nn.Parameter) -> None:
    weight.grad = weight.grad * 0.5 if weight.grad is not None else None


@pytest.mark.parametrize("change", [dropped, halved])
def test_a_hook_before_the_optimizers_step_replaces_the_models_gradients(
    change: Callable[[nn.Parameter], None],
) -> None:
    def make(network: nn.Sequential) -> dict[str, Any]:
        return {"optimizer": lambda params: hooked(params, lambda: change(network[0].weight))}

    full, rounded = both(make)
    unchanged, _ = both(lambda network: {})
    assert near(full, rounded) and not near(full, unchanged)


def test_a_hook_may_clear_the_models_gradients_after_the_optimizers_step() -> None:
    def make(network: nn.Sequential) -> dict[str, Any]:
        return {"optimizer": lambda params: hooked(params, network.zero_grad, post=True)}

    (full, rounded), (unchanged, _) = both(make), both(lambda network: {})
    assert near(full, rounded) and near(full, unchanged)


@pytest.mark.parametrize("how", HOW[:2])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("where", ["step", "hook"])
def test_an_optimizer_clips_the_models_gradients(where: str, clip: Callable[..., Any], how: dict[str, Any]) -> None:
    """It clips gradients of the parameters that it was not given, those of the model itself."""

    def make(network: nn.Sequential) -> dict[str, Any]:
        if where == "step":
            return {"optimizer": lambda params: Clipping(params, network, clip)}
        return {"optimizer": lambda params: hooked(params, lambda: clip(network.parameters()))}

    full, rounded = both(make, **how)
    unclipped, _ = both(lambda network: {}, **how)
    assert near(full, rounded) and not near(full, unclipped)


class Halving(torch.optim.Optimizer):
    """Gives the model's parameters other gradients within its step. torch's own step would run the hooks once more."""

    def __init__(self, params: Any, network: nn.Module) -> None:
        super().__init__(params, {"lr": 0.2})
        self.network = network

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for weight in self.network.parameters():
            weight.grad = None if weight.grad is None else weight.grad * 0.5
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(group["lr"] * weight.grad)


def test_a_step_that_puts_other_tensors_in_place_of_the_models_gradients_is_refused() -> None:
    """In float32 they are those that the step then uses; copies of bfloat16 would only look like it."""
    network, half = model(), model()
    halved = train(network, optimizer=lambda params: Halving(params, network), precision="fp32")
    assert halved == pytest.approx(
        train(half, optimizer=lambda params: torch.optim.SGD(params, lr=0.1), precision="fp32"), abs=1e-5
    )
    rounded = model()
    with pytest.raises(
        PipelagError, match="has put another tensor in place of the gradient .*in bfloat16 would be lost"
    ):
        train(rounded, optimizer=lambda params: Halving(params, rounded))


@pytest.mark.parametrize("of", ["weight_norm", "orthogonal", "spectral_norm"])
def test_parametrised_layers_train_alike_or_say_why_not(of: str) -> None:
    def make(network: nn.Sequential) -> dict[str, Any]:
        getattr(parametrizations, of)(network[2])
        return {}

    if of == "spectral_norm":  # its buffers stay in float32
        with pytest.raises(RuntimeError, match="must have the same dtype(.|\n)*stage 2, layer 3"):
            both(make)
    else:
        full, rounded = both(make)
        assert near(full, rounded)
