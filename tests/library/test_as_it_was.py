"""What `pipelag.train` leaves where it ends before its end: the live weights; where it refuses, the model as it was."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.errors import PipelagError

BATCHES = [(x, (x.sum(1) > 0).long()) for x in torch.randn(24, 12, 8, generator=torch.Generator().manual_seed(0))]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))


def train(network: nn.Module, **how: Any) -> Any:
    how = {"method": "pipedream", "cuts": (2, 4), "progress": False} | how
    return pipelag.train(network, BATCHES, **how)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("method", ["pipedream", "spectrain", "pipemare", "stale_weights", "pipedream_2bw", "1f1b"])
def test_stopped_within_a_step_the_model_has_its_live_weights(method: str, where: str, precision: str) -> None:
    """By the keyboard in step 11, in a notebook; the next cell computes with the model, or trains it on."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    calls = 0
    micro = {"microbatches": 3} if method == "pipedream_2bw" else {}

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 11 * micro.get("microbatches", 1) + 1:
            if where == "forward":
                raise KeyboardInterrupt
            output = Stop.apply(output)
        return nn.functional.cross_entropy(output, targets)

    stopped, whole = model(), model()
    with pytest.raises(KeyboardInterrupt):
        train(stopped, method=method, loss=loss, precision=precision, **micro)
    train(whole, method=method, steps=11, precision=precision, **micro)
    for weight, expected in zip(stopped.parameters(), whole.parameters(), strict=True):
        assert weight.dtype == torch.float32 and torch.equal(weight, expected) and weight.grad is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        ("pipeoptim", lambda params: torch.optim.SGD(params, lr=0.05)),
        ("spike_compensation", lambda params: torch.optim.Adam(params)),
    ],
)
def test_refused_the_model_is_as_it_was(method: str, optimizer: Any, precision: str) -> None:
    network = model().eval()
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(PipelagError):
        train(network, method=method, optimizer=optimizer, precision=precision)
    assert not any(module.training for module in network.modules())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    network(BATCHES[0][0]).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    train(network, precision=precision)


@pytest.mark.parametrize(("executor", "precision"), [("simulated", "fp32"), ("simulated", "bf16"), ("real", "fp32")])
def test_gradients_of_before_are_no_part_of_the_first_update(executor: str, precision: str) -> None:
    """As of a search for the learning rate, or of a look at a layer that is frozen since."""
    before, plain = model(), model()
    before(BATCHES[0][0]).square().sum().backward()
    for network in (before, plain):
        network[0].requires_grad_(False)
    train(before, executor=executor, precision=precision, steps=6)
    train(plain, precision=precision, steps=6)
    assert all(map(torch.equal, before.parameters(), plain.parameters()))
    assert all(parameter.grad is None for parameter in before.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("called", ["on_step", "on_evaluation", "on_checkpoint"])
def test_a_callback_that_computes_with_the_model_changes_nothing(called: str, precision: str, tmp_path: Path) -> None:
    """It measures a gradient, and leaves the model in the mode for that."""

    def dropping() -> nn.Sequential:
        return nn.Sequential(*model(), nn.Dropout(0.3))

    def look(step: int, found: Any) -> None:
        told.eval()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            told(BATCHES[step % 24][0]).square().sum().backward()

    told, plain = dropping(), dropping()
    kept = {"checkpoints": tmp_path, "checkpoint_every": 2} if called == "on_checkpoint" else {"evaluate_every": 2}
    train(told, precision=precision, **kept, **{called: look})
    train(plain, precision=precision)
    assert all(map(torch.equal, told.parameters(), plain.parameters()))
    assert told.training and all(parameter.grad is None for parameter in told.parameters())


def test_a_callback_that_is_told_again_of_steps_changes_nothing(tmp_path: Path) -> None:
    """A resumed training first tells it of the steps that are done."""

    def dropping() -> nn.Sequential:
        return nn.Sequential(*model(), nn.Dropout(0.3))

    def look(step: int, loss: float) -> None:
        told.eval()
        told(BATCHES[step % 24][0]).square().sum().backward()

    train(dropping(), steps=12, checkpoints=tmp_path)
    told, plain = dropping(), dropping()
    train(told, checkpoints=tmp_path, on_step=look)
    train(plain)
    assert all(map(torch.equal, told.parameters(), plain.parameters()))


@pytest.mark.parametrize("executor", ["simulated", "real"])
def test_what_a_later_phase_cannot_do_is_refused_before_the_first(executor: str) -> None:
    steps: list[int] = []
    phases = [
        pipelag.Phase(pipelag.methods.get("gpipe"), 10, (2,), microbatches=4),
        pipelag.Phase(pipelag.methods.get("pipeoptim"), 5, (2,)),
    ]
    with pytest.raises(PipelagError, match="SGD without momentum keeps no direction"):
        pipelag.train(
            model(),
            BATCHES,
            phases=phases,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.05),
            executor=executor,
            on_step=lambda step, loss: steps.append(step),
            progress=False,
        )
    assert not steps


def test_an_optimizer_that_looks_for_the_models_own_parameters_is_taken_all_the_same() -> None:
    network = model()
    ids = {id(parameter) for parameter in network.parameters()}

    def optimizer(groups: Any) -> torch.optim.Optimizer:
        groups = list(groups)
        assert all(id(parameter) in ids for group in groups for parameter in group["params"])
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)

    phases = [pipelag.Phase(pipelag.methods.get(name), 5, (2,)) for name in ("pipedream", "spectrain")]
    assert len(pipelag.train(network, BATCHES, phases=phases, optimizer=optimizer, progress=False).metrics) == 10


class Doubled(nn.Module):
    """Changes what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


def changing(first: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), first, nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


@pytest.mark.parametrize("first", [nn.ReLU(inplace=True), Doubled()])
def test_a_stage_may_begin_with_a_layer_that_changes_its_input_in_place(first: nn.Module) -> None:
    simulated, real, network = changing(first), changing(first), changing(first)
    train(simulated, cuts=(1, 3))
    train(real, cuts=(1, 3), executor="real")
    assert all(torch.equal(a, b) for a, b in zip(simulated.parameters(), real.parameters(), strict=True))
    for how in ({}, {"executor": "real"}, {"method": "pipemare", "recompute": 2}):
        with pytest.raises(PipelagError, match="stage 2|stage 3") as refused:
            train(network, **({"recompute": True, "cuts": (1, 3)} | how))
        assert "in place" in str(refused.value)


@pytest.mark.parametrize("executor", ["simulated", "real"])
@pytest.mark.parametrize(
    ("gives", "sentence"),
    [
        (lambda x: {"h": x}, "stage 1 returns a dict"),
        (lambda x: [x, x], "a list"),
        (lambda x: (x, 3), "an int in a tuple"),
    ],
)
def test_what_is_no_tensor_does_not_cross_to_the_next_stage(gives: Any, sentence: str, executor: str) -> None:
    class Gives(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return gives(self.layer(x))

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 2)

    class Takes(nn.Module):
        def forward(self, x: Any) -> torch.Tensor:
            return x["h"] if isinstance(x, dict) else x[0]

    with pytest.raises(PipelagError, match=sentence):
        train(nn.Sequential(Gives(), Takes()), cuts=(1,), executor=executor)


def test_as_many_workers_are_started_as_the_schedule_has() -> None:
    how: dict[str, Any] = {"method": "1f1b_interleaved", "cuts": (1, 2, 3), "microbatches": 4}
    simulated, real = model(), model()
    train(simulated, **how)
    train(real, executor="real", **how)
    assert all(torch.equal(a, b) for a, b in zip(simulated.parameters(), real.parameters(), strict=True))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), None, "fast"])
def test_a_rate_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(
        PipelagError, match="the rate schedule returns .* for stage 1 in step 3; it should return a finite"
    ):
        train(model(), rate=lambda step: wrong if step == 3 else 1.0)


@pytest.mark.real
@pytest.mark.parametrize(
    "how",
    [{"method": "bsp", "workers": 2}, {"method": "asp", "workers": 2}, {"method": "gpipe_torch", "cuts": (1,)}],
    ids=lambda how: how["method"],
)
def test_a_rate_that_is_none_is_refused_by_every_kind_of_worker(how: dict[str, Any]) -> None:
    """torch's optimizers step up the hill at a negative rate."""
    with pytest.raises(PipelagError, match=r"the rate schedule returns -1.0 for stage [12] in step 3; it should"):
        train(model(), executor="real", rate=lambda step: -1.0 if step == 3 else 1.0, **({"cuts": ()} | how))


@pytest.mark.parametrize("amounts", [(), (1.0,), (1.0,) * 9, 1.0, ("a",) * 4, (float("nan"),) * 4, None])
def test_a_method_says_by_how_much_each_microbatch_is_changed(amounts: Any) -> None:
    class Reads:
        def amounts(self, passes: Any) -> Any:
            return amounts

        def carry(self, stage: Any) -> Any:
            raise AssertionError

    base = pipelag.methods.get("1f1b")
    phase = pipelag.Phase(
        pipelag.methods.Method(name="mine", summary="", source="me", build=base.build, forward_reads=Reads()),
        5,
        (2,),
        microbatches=4,
    )
    with pytest.raises(PipelagError, match="Reads.amounts of 'mine' returns .* each of 4 microbatches"):
        pipelag.train(model(), BATCHES, phases=[phase], progress=False)


def test_a_metric_gives_a_number_for_each_target() -> None:
    how: dict[str, Any] = {"validation": BATCHES[:2], "steps": 2}
    right = train(model(), metrics={"right": lambda output, targets: (output.argmax(1) == targets).float()}, **how)
    assert right.evaluations
    with pytest.raises(
        PipelagError, match=r"returns numbers of shape \[12, 2\]; it should return one number, or one for each"
    ):
        train(model(), metrics={"wide": lambda output, targets: output}, **how)
