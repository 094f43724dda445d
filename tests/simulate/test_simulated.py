"""The simulated executor equals plain PyTorch without delays, and a naive machine of cycles and registers with them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.models.cut import stages as cut_stages
from pipelag.randomness import seed_stage
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.optimizers import CaffeSGD
from pipelag.stage.phase import Phase
from tests.toy import Noise, convolutional, equal, sgd

CPU = torch.device("cpu")
loss_of = nn.functional.cross_entropy


def simulate(
    model: nn.Sequential, phases: list[Phase], batches: Noise, make: Any = sgd, **options: Any
) -> SimulatedTraining:
    training = SimulatedTraining(model, phases, make, loss_of, **options)
    for t in range(training.total):
        training.step(*batches[t])
    return training


def test_zero_delay_equals_plain_pytorch_bit_for_bit(device: str) -> None:
    model, plain, batches = convolutional().to(device), convolutional().to(device), Noise(device=device)
    simulate(model, [Phase(methods.get("sequential"), 20)], batches, seed=7)
    optimizer = sgd(plain.parameters())
    for t in range(20):
        inputs, targets = batches[t]
        seed_stage(7, t, 1, torch.device(device))
        loss_of(plain(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert equal(model.state_dict(), plain.state_dict())


@pytest.mark.parametrize("name", ["pipedream", "pipemare", "pipeoptim"])
def test_weights_whose_memory_has_gaps_train_like_others(name: str) -> None:
    """A parameter may be a part of a larger tensor, as torch's own slices are."""
    ends = []
    for gaps in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Tanh(), nn.Linear(6, 4))
        if gaps:
            larger = torch.zeros(4, 9)
            larger[:, :6] = model[3].weight.detach()
            model[3].weight = nn.Parameter(larger[:, :6])
        simulate(model, [Phase(methods.get(name), 6, (2,))], Noise())
        ends.append(model.state_dict())
    assert equal(*ends)


def test_sequential_is_the_same_whatever_the_cuts(device: str) -> None:
    def without_dropout() -> nn.Sequential:
        model = convolutional().to(device)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    batches = Noise(device=device)
    whole = simulate(without_dropout(), [Phase(methods.get("sequential"), 8)], batches)
    pieces = simulate(without_dropout(), [Phase(methods.get("sequential"), 8, (1, 2, 4))], batches)
    assert equal(whole.model.state_dict(), pieces.model.state_dict())


def brought(tensor: torch.Tensor) -> torch.Tensor:
    """What arrives of a tensor that is sent number by number."""
    return torch.tensor(tensor.detach().tolist(), dtype=tensor.dtype)


def naive_cycles(
    model: nn.Sequential,
    cuts: tuple[int, ...],
    batches: Any,
    minibatches: int,
    seed: int,
    stashed: bool,
    loss_of: Any = loss_of,
) -> nn.Sequential:
    """The paper's machine taken literally: registers, cycles and kept activations, without pipelag's delays.

    Every forward runs on a private copy of its stage. Before the backward, the copy's weights are overwritten with the
    current ones (unless stashed), and the gradients go to the stage's own optimizer.
    """
    pieces = [copy.deepcopy(piece) for piece in cut_stages(model, cuts)]
    count = len(pieces)
    optimizers = [sgd(piece.parameters()) for piece in pieces]
    forward_register: dict[tuple[int, int], Any] = {}  # (stage, minibatch) -> input of that stage
    backward_register: dict[tuple[int, int], Any] = {}  # (stage, minibatch) -> gradient of that stage's output
    passes: dict[tuple[int, int], Any] = {}
    for cycle in range(minibatches + 2 * count):
        written: list[tuple[dict[tuple[int, int], Any], tuple[int, int], Any]] = []
        for index in range(count):  # all forward stages of this cycle, with the weights at its beginning
            m = cycle - index
            if not 0 <= m < minibatches:
                continue
            received = batches.inputs(m) if index == 0 else forward_register.pop((index, m))
            tuple_in = received if isinstance(received, tuple) else (received,)
            leaves = tuple(t.detach().requires_grad_(index > 0 and t.is_floating_point()) for t in tuple_in)
            # A private copy of the stage: autograd saves its weights, and `aimed` below overwrites them in place.
            private = copy.deepcopy(pieces[index])
            seed_stage(seed, m, index + 1, CPU)
            output = private(leaves if isinstance(received, tuple) else leaves[0])
            for name, buffer in private.named_buffers():
                dict(pieces[index].named_buffers())[name].copy_(buffer)
            passes[index, m] = (private, leaves, output)
            if index < count - 1:
                # A link brings tensors in row-major order, whatever their layout was; dropout draws in this order.
                passed = tuple(map(brought, output)) if isinstance(output, tuple) else brought(output)
                written.append((forward_register, (index + 1, m), passed))
        for index in reversed(range(count)):  # all backward stages of this cycle
            m = cycle - (2 * count - 2 - index)
            if not 0 <= m < minibatches:
                continue
            private, leaves, output = passes.pop((index, m))
            if not stashed:
                for old, new in zip(private.parameters(), pieces[index].parameters(), strict=True):
                    old.data.copy_(new.data)
            if index == count - 1:
                loss_of(output, batches.targets(m)).backward()
            else:
                outputs = output if isinstance(output, tuple) else (output,)
                differentiable = [t for t in outputs if t.requires_grad]
                torch.autograd.backward(differentiable, backward_register.pop((index, m)))
            for computed, parameter in zip(private.parameters(), pieces[index].parameters(), strict=True):
                parameter.grad = computed.grad
            optimizers[index].step()
            if index:
                written.append(
                    (backward_register, (index - 1, m), tuple(leaf.grad for leaf in leaves if leaf.requires_grad))
                )
        for register, key, value in written:  # registers are written at the end of the cycle
            register[key] = value
    return nn.Sequential(*[layer for piece in pieces for layer in piece])


@pytest.mark.parametrize("cuts", [(3,), (2, 4), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("stashed", [False, True])
def test_simulated_weights_equal_the_naive_machine(cuts: tuple[int, ...], stashed: bool) -> None:
    name = "stale_weights_stashed" if stashed else "stale_weights"
    training = simulate(convolutional(), [Phase(methods.get(name), 24, cuts)], Noise(), seed=3)
    naive = naive_cycles(convolutional(), cuts, Noise(), 24, 3, stashed)
    assert equal(training.model.state_dict(), naive.state_dict())


def test_staleness_changes_the_outcome() -> None:
    results = [
        simulate(convolutional(), [Phase(methods.get(name), 12, (3,))], Noise()).model.state_dict()
        for name in ("sequential", "stale_weights", "stale_weights_stashed")
    ]
    assert not equal(results[0], results[1])
    assert not equal(results[1], results[2])


def test_hybrid_keeps_momentum_and_drains_between_phases() -> None:
    """After the switch, training is plain PyTorch that starts from the pipelined weights *and* their momentum."""
    phases = [Phase(methods.get("stale_weights"), 10, (2, 4)), Phase(methods.get("sequential"), 6)]
    hybrid = simulate(convolutional(), phases, Noise(), seed=1)
    first = simulate(convolutional(), phases[:1], Noise(), seed=1)
    assert first.optimizer is not None
    optimizer = sgd(first.model.parameters())
    for parameter in first.model.parameters():
        optimizer.state[parameter] = first.optimizer.state[parameter]
    for t in range(10, 16):
        inputs, targets = Noise()[t]
        seed_stage(1, t, 1, CPU)
        loss_of(first.model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert equal(hybrid.model.state_dict(), first.model.state_dict())


@pytest.mark.parametrize("stop", [1, 7, 10, 11, 15])
def test_state_restored_at_any_step_continues_bit_for_bit(stop: int, device: str) -> None:
    phases = [
        Phase(methods.get("stale_weights"), 10, (2, 4), {1: 0.01}),
        Phase(methods.get("stale_weights_stashed"), 6, (3,)),
    ]
    batches = Noise(device=device)
    unbroken = simulate(convolutional().to(device), phases, batches)
    early = SimulatedTraining(convolutional().to(device), phases, sgd, loss_of)
    for t in range(stop):
        early.step(*batches[t])
    state = copy.deepcopy(early.state_dict())
    late = SimulatedTraining(convolutional(seed=99).to(device), phases, sgd, loss_of)
    late.load_state_dict(state)
    for t in range(stop, 16):
        late.step(*batches[t])
    assert equal(unbroken.model.state_dict(), late.model.state_dict())


def test_a_stages_own_rate_moves_that_stage_only() -> None:
    def moved(stage_lr: dict[int, float]) -> list[float]:
        model = convolutional()
        before = copy.deepcopy(model.state_dict())
        simulate(model, [Phase(methods.get("stale_weights"), 1, (3,), stage_lr)], Noise())
        return [float((model.state_dict()[name] - before[name]).abs().sum()) for name in ("0.0.weight", "5.weight")]

    usual, slow = moved({}), moved({1: 0.005})
    assert slow[0] == pytest.approx(usual[0] / 10, rel=1e-3)
    assert slow[1] == usual[1]


def test_caffe_sgd_equals_torch_sgd_until_the_rate_drops() -> None:
    for nesterov in (False, True):
        a, b = convolutional(), convolutional()
        rates = [0.05] * 5
        ours = CaffeSGD(a.parameters(), 0.05, 0.9, 1e-3, nesterov)
        theirs = torch.optim.SGD(b.parameters(), 0.05, 0.9, weight_decay=1e-3, nesterov=nesterov)
        for t, rate in enumerate([*rates, 0.005]):
            for model, optimizer in ((a, ours), (b, theirs)):
                optimizer.param_groups[0]["lr"] = rate
                inputs, targets = Noise()[t]
                seed_stage(0, t, 1, CPU)
                optimizer.zero_grad()
                loss_of(model(inputs), targets).backward()
                optimizer.step()
            close = all(torch.allclose(p, q, atol=1e-6) for p, q in zip(a.parameters(), b.parameters(), strict=True))
            assert close == (rate == 0.05), (nesterov, t)


def test_bad_phases_are_refused_before_anything_runs() -> None:
    with pytest.raises(PipelagError, match=r"stage 3, but the cuts \[2\] make stages 1 to 2"):
        SimulatedTraining(convolutional(), [Phase(methods.get("stale_weights"), 5, (2,), {3: 0.1})], sgd, loss_of)
    with pytest.raises(PipelagError, match="all 2 steps of this training are done"):
        simulate(convolutional(), [Phase(methods.get("sequential"), 2)], Noise()).step(*Noise()[2])


@pytest.mark.parametrize(
    "name, recomputed",
    [
        # How many of its 8 forwards each of 3 stages runs a second time where memory need not be spared
        ("gpipe", (0, 0, 0)),  # no delays
        ("pipedream", (0, 0, 0)),  # its backward reads what its forward read
        ("stale_weights", (7, 7, 0)),  # the first minibatch reads the first version in both passes
        ("1f1b", (7, 7, 0)),
        ("spectrain", (8, 8, 8)),  # each pass reads a prediction of its own
        ("pipeoptim", (8, 8, 0)),
    ],
)
def test_what_would_come_out_alike_is_not_recomputed(name: str, recomputed: tuple[int, ...]) -> None:
    """Where memory need not be spared, only forwards whose second run would read other weights are run again.

    Losses, weights and batch-norm statistics are the same bit for bit either way, with dropout.
    """

    def counted(spare_memory: bool) -> tuple[Any, list[float], list[int]]:
        model, calls = convolutional(), [0, 0, 0]
        for stage, part in enumerate(cut_stages(model, (2, 4))):
            part[0].register_forward_hook(lambda *_, stage=stage: calls.__setitem__(stage, calls[stage] + 1))
        phases = [Phase(methods.get(name), 8, (2, 4), recompute=True)]
        training = SimulatedTraining(model, phases, sgd, loss_of, seed=3, spare_memory=spare_memory)
        losses = [float(training.step(*Noise()[t])) for t in range(8)]
        return model.state_dict(), losses, calls

    (spared, losses, all_calls), (plain, the_same, some_calls) = counted(True), counted(False)
    assert equal(spared, plain) and losses == the_same
    assert all_calls == [16, 16, 16]
    assert tuple(calls - 8 for calls in some_calls) == recomputed
