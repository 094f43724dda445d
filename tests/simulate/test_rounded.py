"""Training in bfloat16 with float32 masters: which weights passes read, what is updated, and exact resumption."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.products import products
from pipelag.randomness import seed_stage
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from tests.toy import Noise, convolutional, equal, sgd

loss_of = nn.functional.cross_entropy


def slow_sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.02, momentum=0.9)


def trained(
    model: nn.Sequential, phase: Phase, batches: Any, device: str = "cpu", bf16: bool = True, make: Any = sgd
) -> Any:
    training = SimulatedTraining(model.to(device), [phase], make, loss_of, device=torch.device(device), bf16=bf16)
    losses = [float(training.step(*(part.to(device) for part in batches[t]))) for t in range(phase.steps)]
    return training, losses


class Watched(torch.autograd.Function):
    """The product x w^T, which notes the weight that each pass reads."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, seen: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.seen = seen
        seen["F"].append(weight.detach().clone())
        return x.to(weight.dtype) @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        ctx.seen["B"].append(weight.detach().clone())
        gradient = gradient.to(weight.dtype)
        return (gradient @ weight).to(x.dtype), gradient.T @ x.to(weight.dtype), None


class Layer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / 3)
        self.seen: dict[str, list[torch.Tensor]] = {"F": [], "B": []}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = Watched.apply(x, self.weight, self.seen)
        return product


@pytest.mark.parametrize("method", ["stale_weights", "stale_weights_stashed", "pipedream", "1f1b"])
def test_a_pass_reads_the_rounded_masters_of_its_version(method: str, device: str) -> None:
    torch.manual_seed(0)
    layers = [Layer(6, 5), Layer(5, 4), Layer(4, 3)]
    model, phase = nn.Sequential(*layers).to(device), Phase(methods.get(method), 12, (1, 2))
    training = SimulatedTraining(model, [phase], sgd, loss_of, device=torch.device(device), bf16=True)
    assert training.masters is not None
    versions: list[list[torch.Tensor]] = []
    for t in range(phase.steps):
        versions.append([master.detach().clone() for master in training.masters.values()])
        generator = torch.Generator().manual_seed(t)
        x, y = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        training.step(x.to(device), y.to(device))
    assert all(master.dtype == torch.float32 for master in training.masters.values())
    for number, layer in enumerate(layers):
        assert not torch.equal(versions[0][number].bfloat16(), versions[-1][number].bfloat16())
        for kind, delays in (("F", phase.delays.forward), ("B", phase.delays.backward)):
            for t, read in enumerate(layer.seen[kind]):
                assert read.dtype == torch.bfloat16
                assert torch.equal(read, versions[max(0, t - delays[number])][number].bfloat16()), (kind, number, t)


def test_without_delays_it_is_mixed_precision_with_masters(device: str) -> None:
    """Without delays, training equals mixed precision written out, bit for bit.

    Passes run under autocast over rounded weights; gradients are added up, and steps made, in float32.
    """
    model, plain, parts = convolutional(), convolutional().to(device), 2
    training, _ = trained(model, Phase(methods.get("gpipe"), 6, (2,), microbatches=parts), Noise(), device)
    masters = {p: p.data.clone() for p in plain.parameters()}
    for p in plain.parameters():
        p.data = p.data.bfloat16() if p.dim() > 1 else p.data
    full = {p: nn.Parameter(master) for p, master in masters.items()}
    optimizer = sgd(full.values())
    for t in range(6):
        inputs, targets = (part.to(device) for part in Noise()[t])
        for j, (x, y) in enumerate(zip(inputs.chunk(parts), targets.chunk(parts), strict=True)):
            value: Any = x
            with products(torch.device(device)):
                for number, stage in enumerate((plain[:2], plain[2:]), start=1):
                    seed_stage(0, t * parts + j, number, torch.device(device))
                    with torch.autocast(device, torch.bfloat16, cache_enabled=False):
                        value = stage(value)
                with torch.autocast(device, torch.bfloat16, cache_enabled=False):
                    loss = loss_of(value, y) / parts
                loss.backward()
            for p, master in full.items():
                assert p.grad is not None
                master.grad = p.grad.float() if master.grad is None else master.grad + p.grad.float()
                p.grad = None
        optimizer.step()
        optimizer.zero_grad()
        for p, master in full.items():
            p.data.copy_(master.data)
    assert equal(training.model.state_dict(), plain.state_dict())
    assert {p.dtype for p in training.model.parameters()} == {torch.bfloat16, torch.float32}


def test_small_updates_are_not_lost() -> None:
    """Updates below half a unit of bfloat16's last digit move the master, and several of them the rounded weight."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    model = nn.Sequential(layer)
    training = SimulatedTraining(
        model,
        [Phase(methods.get("sequential"), 8)],
        lambda params: torch.optim.SGD(params, lr=1e-3),
        lambda output, target: output.float().sum(),
        bf16=True,
    )
    for _ in range(8):  # the gradient is 1, so each moves by 0.001; bfloat16's steps just below 1 are 0.0039
        training.step(torch.ones(1, 1), torch.zeros(1))
    assert float(layer.weight.detach()) == pytest.approx(0.992, abs=0.002)


def test_state_restored_goes_on_bit_for_bit(device: str) -> None:
    phase = Phase(methods.get("pipemare"), 10, (2, 4))
    unbroken, _ = trained(convolutional(), phase, Noise(), device)
    early = SimulatedTraining(convolutional().to(device), [phase], sgd, loss_of, device=torch.device(device), bf16=True)
    for t in range(4):
        early.step(*(part.to(device) for part in Noise()[t]))
    state = copy.deepcopy(early.state_dict())
    late = SimulatedTraining(
        convolutional(seed=9).to(device), [phase], sgd, loss_of, device=torch.device(device), bf16=True
    )
    late.load_state_dict(state)
    for t in range(4, 10):
        late.step(*(part.to(device) for part in Noise()[t]))
    assert equal(unbroken.model.state_dict(), late.model.state_dict())
    assert unbroken.masters is not None and late.masters is not None
    for expected, resumed in zip(unbroken.masters.values(), late.masters.values(), strict=True):
        assert torch.equal(expected, resumed)


@pytest.mark.parametrize("which", [0, 1])
def test_a_change_that_would_be_lost_is_refused(which: int) -> None:
    """A parameter changed in place is refused, a matrix and a vector alike; one that was loaded is not."""
    training = SimulatedTraining(convolutional(), [Phase(methods.get("pipedream"), 8, (2, 4))], sgd, loss_of, bf16=True)
    for t in range(2):
        training.step(*Noise()[t])
    saved = copy.deepcopy(training.state_dict())
    name, parameter = list(training.model.named_parameters())[which]
    with torch.no_grad():
        parameter.mul_(0.5)
    with pytest.raises(PipelagError, match=f"the parameter '{name}' was changed by something other than the optimizer"):
        training.step(*Noise()[2])
    training.load_state_dict(saved)
    training.step(*Noise()[2])


class Apart(Noise):
    """Minibatches whose classes lie so far apart that sixty steps learn them, however a processor rounds."""

    def inputs(self, t: int) -> torch.Tensor:
        images = super().inputs(t)
        images[:, :2] += 0.5 * images[:, :2].mean((2, 3), keepdim=True).sign()
        return images


@pytest.mark.parametrize("method", ["pipedream", "pipeoptim", "pipemare"])
def test_it_learns_as_float32_does(method: str) -> None:
    """The losses of bfloat16 and of float32 differ by at most 0.01 at every step, while both networks learn."""
    phase, losses = Phase(methods.get(method), 60, (2, 4)), []
    for bf16 in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(192, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4)
        )
        losses.append(trained(model, phase, Apart(batch=16), bf16=bf16, make=slow_sgd)[1])
    full, half = losses
    assert half != full and half == pytest.approx(full, abs=0.01)
    assert sum(half[-15:]) / 15 < 0.2 * half[0]


class Broken(Noise):
    """Minibatches of which number 5, counted from 0, raises an error."""

    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        if t == 5:
            raise OSError("minibatch 5 cannot be read")
        return super().__getitem__(t)


@pytest.mark.parametrize("broken", [False, True], ids=["to the end", "broken off"])
def test_a_users_model_has_its_masters_in_the_end(broken: bool) -> None:
    """After `pipelag.train` ends or breaks off, the model has float32 weights and takes gradients as usual."""
    model, phase = convolutional(), Phase(methods.get("pipedream"), 9, (3,))
    training, losses = trained(convolutional().train(), phase, Noise(), make=sgd)
    how: dict[str, Any] = {"method": "pipedream", "cuts": (3,), "steps": 9, "optimizer": sgd, "precision": "bf16"}
    if broken:
        with pytest.raises(OSError, match=r"^minibatch 5 cannot be read\nin the data, for step 5$"):
            pipelag.train(model, Broken(), **how)
    else:
        run = pipelag.train(model, Noise(), **how)
        assert [row["loss"] for row in run.metrics] == losses
        full = [training.masters.get(p, p) for p in training.model.parameters()]
        assert all(torch.equal(weight, master) for weight, master in zip(model.parameters(), full, strict=True))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.grad is None for parameter in model.parameters())
    loss_of(model(Noise()[0][0]), Noise()[0][1]).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_what_is_validated_is_what_passes_read() -> None:
    model = convolutional()
    held_out = [Noise(seed=9)[t] for t in range(2)]
    how: dict[str, Any] = {"method": "pipedream", "cuts": (3,), "steps": 4, "optimizer": sgd}
    run = pipelag.train(model, Noise(), precision="bf16", validation=held_out, **how)
    rounded = copy.deepcopy(model).eval()
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16() if parameter.dim() > 1 else parameter.data
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        expected = [float(loss_of(rounded(x), y)) for x, y in held_out]
    assert run.evaluations[-1]["validation_loss"] == pytest.approx(sum(expected) / 2, rel=1e-6)
    with torch.no_grad():
        full = [float(loss_of(model.eval()(x), y)) for x, y in held_out]
    assert sum(full) != sum(expected)


def test_a_precision_that_does_nothing_is_refused() -> None:
    with pytest.raises(PipelagError, match="^unknown precision 'bf61'; did you mean 'bf16'"):
        pipelag.train(convolutional(), Noise(), steps=1, precision="bf61")
    with pytest.raises(PipelagError, match="^precision 'bf16' rounds a model's float32 matrices, but this"):
        pipelag.train(convolutional().double(), Noise(), steps=1, precision="bf16")
    with pytest.raises(PipelagError, match="^real workers of method 'bsp' compute in fp32"):
        pipelag.train(convolutional(), Noise(), steps=2, method="bsp", executor="real", workers=2, precision="bf16")
