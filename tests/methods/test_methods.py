"""Every method: its delays follow the papers' formulas, its weights follow hand-written references."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pipelag
from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.methods import METHODS, Method, get
from pipelag.methods.prediction import Scaled, coupled_decay, moments, prediction_rule, rule_of
from pipelag.methods.reads import DelayCompensation, Predict, SpikeCompensation, Update
from pipelag.schedules import SCHEDULES, check, delays, schedule, steady_delays
from pipelag.simulate.discrepancy import Discrepancy, rms
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.optimizers import CaffeSGD, group_by_stage
from pipelag.stage.phase import Phase
from pipelag.stage.policy import StageWeights
from pipelag.stage.weights import FlatParameters
from tests.toy import Noise, convolutional, equal, parts_of, sgd

loss_of = nn.functional.cross_entropy
CUTS = (1, 2, 4)  # four stages of the toy model


def plain_sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05)


def train(name: str | Method, cuts: tuple[int, ...], steps: int = 12, make: Any = sgd, **how: Any) -> Any:
    model = convolutional()
    pipelag.train(model, Noise(), method=name, cuts=cuts, steps=steps, optimizer=make, seed=2, **how)
    return model.state_dict()


# Delays against the papers' formulas ------------------------------------------------------------------------------


@given(stages=st.integers(1, 9), n=st.integers(1, 12))
def test_delays_equal_the_papers_formulas(stages: int, n: int) -> None:
    every = range(1, stages + 1)
    # PipeDream's n - l on stage l from 1, PipeOptim's D - rank - 1 on a rank from 0
    assert get("pipedream").delays(stages).forward == tuple(stages - i for i in every)
    assert get("pipedream").delays(stages).backward == tuple(stages - i for i in every)
    assert get("1f1b").delays(stages).backward == (0,) * stages
    assert get("pipedream_vertical_sync").delays(stages).forward == (stages - 1,) * stages
    assert get("dualpipe").delays(stages).forward == tuple(2 * (stages - 1 - k) for k in range(stages))
    mare = get("pipemare").delays(stages, n)
    assert mare.forward == tuple(math.ceil((2 * (stages - i) + 1) / n) for i in every)
    assert mare.backward == (0,) * stages
    for name in ("gpipe", "1f1b_flush", "sequential"):
        assert get(name).delays(stages, n).forward == get(name).delays(stages, n).backward == (0,) * stages
    if n >= stages > 1:
        assert get("pipedream_2bw").delays(stages, n).forward == (1,) * stages
    assert get("asp").delays(stages).forward == (stages - 1,) * stages


@given(
    name=st.sampled_from(sorted(set(SCHEDULES) - {"asp", "1f1b_rr"})),
    stages=st.integers(1, 8),
    minibatches=st.integers(1, 8),
    microbatches=st.integers(1, 6),
)
def test_any_schedule_is_possible_and_its_versions_settle(
    name: str, stages: int, minibatches: int, microbatches: int
) -> None:
    """Every schedule passes `check`, and each pass reads the version that its steady lag says, none beyond its own.

    `check` requires that nothing deadlocks, inputs come first, every microbatch comes once and updates are in order.
    """
    stages += name == "zb_v" and stages % 2  # it wants an even number
    plan = schedule(name, stages=stages, minibatches=minibatches, microbatches=microbatches)
    check(plan)
    derived = delays(plan)
    steady = steady_delays(SCHEDULES[name], stages, microbatches)
    for rows, lags in (
        (derived.forward_versions, steady.forward_lags),
        (derived.backward_versions, steady.backward_lags),
    ):
        for row, lag in zip(rows, lags, strict=True):
            assert list(row) == sorted(row)
            assert list(row) == [max(0, m // microbatches - lag[m % microbatches]) for m in range(len(row))]


def test_2bw_needs_as_many_microbatches_as_stages() -> None:
    with pytest.raises(PipelagError, match="as many as stages are always enough"):
        get("pipedream_2bw").delays(4, 2)


def test_a_method_that_cannot_split_says_so() -> None:
    with pytest.raises(PipelagError, match="'hogwild' cannot split a minibatch"):
        get("hogwild").delays(3, 2)
    with pytest.raises(PipelagError, match="a minibatch of 8 cannot be split into 3 equal microbatches"):
        train("gpipe", (2,), microbatches=3)


# One stage is plain training --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(METHODS))
def test_one_stage_of_any_method_is_plain_training(name: str, device: str) -> None:
    """Over one stage all methods are plain training, except on PipeMare's pipeline: there it is an update late."""
    if get(name).build is SCHEDULES["pipemare"]:
        assert not equal(train(name, (), 6, device=device), train("sequential", (), 6, device=device))
        return
    if name == "nesterov_async":  # it has its own momentum even over one stage, and is plain training without
        method = get(name, gamma=0.0)
        plain = train("sequential", (), 6, make=plain_sgd, device=device)
        assert equal(train(method, (), 6, make=plain_sgd, device=device), plain)
        return
    assert equal(train(name, (), 6, device=device), train("sequential", (), 6, device=device))


def test_synchronous_methods_learn_the_mean_gradient_of_the_microbatches() -> None:
    for name in ("gpipe", "1f1b_flush"):
        assert equal(train(name, (2, 4), 6, microbatches=4), train("sequential", (2, 4), 6, microbatches=4))


# Hand-written references ------------------------------------------------------------------------------------------


def linear_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


class Vectors:
    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(t)
        x = torch.randn(12, 6, generator=generator)
        return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


def delayed_sgd(steps: int, lag: Callable[[int], int], microbatches: int = 1) -> list[torch.Tensor]:
    """The weights that SGD with delayed gradients ends with, from a list of all versions.

    It is w(t+1) = w(t) - lr v, v = m v + grad f(w(t - lag)).
    """
    model = linear_model()
    history = [[p.detach().clone() for p in model.parameters()]]
    velocity = [torch.zeros_like(p) for p in history[0]]
    for t in range(steps):
        x, y = Vectors()[t]
        with torch.no_grad():
            for p, old in zip(model.parameters(), history[max(0, t - lag(t))], strict=True):
                p.copy_(old)
        model.zero_grad()
        for xs, ys in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
            (loss_of(model(xs), ys) / microbatches).backward()
        new = []
        for v, p, w in zip(velocity, model.parameters(), history[-1], strict=True):
            assert p.grad is not None
            v.mul_(0.9).add_(p.grad)
            new.append(w - 0.1 * v)
        history.append(new)
    return history[-1]


@pytest.mark.parametrize(
    ("name", "microbatches", "lag"),
    [("pipedream_vertical_sync", 1, 2), ("pipedream_2bw", 4, 1), ("asp", 1, 2), ("gpipe", 3, 0)],
)
def test_uniform_staleness_equals_hand_written_delayed_sgd(name: str, microbatches: int, lag: int) -> None:
    model = linear_model()
    pipelag.train(
        model,
        Vectors(),
        method=name,
        cuts=(1, 3),
        steps=15,
        microbatches=microbatches,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    )
    reference = delayed_sgd(15, lambda t: lag, microbatches)
    for ours, expected in zip(model.parameters(), reference, strict=True):
        torch.testing.assert_close(ours.detach(), expected, rtol=1e-5, atol=1e-6)


class Slope(nn.Module):
    """A stage whose gradient is the same constant at every step, whatever its weights."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_buffer("slope", torch.tensor([slope, -2 * slope, 0.5]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.weight * self.slope).sum()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgdm": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "damped sgdm": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.9),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "caffe": lambda params: CaffeSGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "amsgrad": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.0),
    "nadam": lambda params: torch.optim.NAdam(params, lr=0.01),
}
CAN = {  # the methods whose prediction is exact for a constant gradient, and the optimizers it is exact for
    "pipeoptim": list(OPTIMIZERS),
    "spectrain_1f1b": ["sgdm", "damped sgdm", "nesterov", "caffe"],
    "spectrain_batch_order": ["sgdm", "damped sgdm", "nesterov", "caffe"],
    "lwp_v": ["sgdm", "damped sgdm"],
    "lwp_w": list(OPTIMIZERS),
    "xpipe": ["adam", "adamw", "amsgrad", "nadam"],
}


@pytest.mark.parametrize(("name", "optimizer"), [(n, o) for n, os in CAN.items() for o in os])
def test_predictions_are_the_true_future_when_the_gradient_is_constant(name: str, optimizer: str) -> None:
    """Under a constant gradient, a forward reads exactly the weights that there are `horizon` updates later.

    It does once momentum and moments have settled.
    """
    stages = 3
    stage = Slope(0.3)
    flat = FlatParameters(stage.parameters())
    stepping = group_by_stage(OPTIMIZERS[optimizer], [flat.parameters], {}, [1])
    assert stepping is not None
    method = get(name)
    assert method.forward_reads != "live"
    lags = method.delays(stages)
    policy = StageWeights(flat, method, 1, stages, lags, stepping, flat.parameters, back=lags.forward[0])
    (horizon,) = (int(amount) for amount in method.amounts("F", 1, stages, lags))
    policy.begin_at(0)
    seen, true = [], []
    settled = 6000 if optimizer == "nadam" else 400
    for t in range(settled):
        if t >= settled - 20:
            seen.append(policy.seen[horizon][t % len(policy.seen[horizon])][0].clone())
            true.append(flat.buffers[0].clone())
        policy.load("F", t)
        stage(torch.zeros(())).backward()
        policy.before_step()
        stepping.step()
        policy.after_step()
        policy.prepare()
        stepping.zero_grad()
    assert horizon == {"spectrain_batch_order": 4}.get(name, 2)
    for past, future in zip(seen, true[horizon:], strict=False):
        torch.testing.assert_close(past, future, rtol=2e-4, atol=1e-5)
    assert not torch.allclose(true[0], true[horizon])


def test_spectrain_horizons_are_those_of_equations_5_and_6() -> None:
    method, stages = get("spectrain"), 3
    lags = method.delays(stages)
    forward = [method.amounts("F", k + 1, stages, lags)[0] for k in range(stages)]
    backward = [method.amounts("B", k + 1, stages, lags)[0] for k in range(stages)]
    assert forward == [2 * stages - k - 2 for k in range(stages)]
    assert backward == list(range(stages))


def test_pipemare_t2_is_exact_stashing_when_weights_move_linearly() -> None:
    """If weights move linearly, T2's backward reads exactly the forward's version.

    Then delta is the step itself, so that w - (tau_fwd - tau_bkwd) delta is this version.
    """
    stage = Slope(0.7)
    flat = FlatParameters(stage.parameters())
    optimizer = group_by_stage(plain_sgd, [flat.parameters], {}, [1])
    assert optimizer is not None
    method = get("pipemare", decay=0.01)
    policy = StageWeights(flat, method, 1, 4, method.delays(4), optimizer, flat.parameters, back=0)
    policy.begin_at(0)
    versions = []
    for t in range(200):
        versions.append(flat.buffers[0].clone())
        stage(torch.zeros(())).backward()
        policy.load("B", t)
        read = flat.buffers[0].clone()
        policy.before_step()
        optimizer.step()
        policy.after_step()
        policy.prepare()
        optimizer.zero_grad()
    torch.testing.assert_close(read, versions[-1 - 7], rtol=1e-4, atol=1e-6)  # 2(P-i)+1 = 7 updates ago


def test_pipemare_t1_divides_the_rate_by_the_delay_and_anneals() -> None:
    method = get("pipemare_t1", annealing=100)
    assert method.learning_rate is not None
    assert method.learning_rate(1, 4, 0, 7) == pytest.approx(1 / 7)
    assert method.learning_rate(1, 4, 50, 7) == pytest.approx(7**-0.5)
    assert method.learning_rate(1, 4, 100, 7) == method.learning_rate(1, 4, 500, 7) == 1.0
    assert method.learning_rate(4, 4, 0, 1) == 1.0  # the last stage keeps the base rate


@pytest.mark.parametrize("momentum", [0.9, 0.0, 1.0])
def test_spike_compensation_equals_its_formula(momentum: float) -> None:
    """One stage with D = 2 moves by w - lr (a v + b g), a = m^D, b = (1 - m^D)/(1 - m), as an update written by hand.

    For D = 2, b is 1 + m; without momentum the update is plain SGD's.
    """
    stage = nn.Linear(4, 1)
    flat = FlatParameters(stage.parameters())
    make = lambda params: torch.optim.SGD(params, lr=0.1, momentum=momentum, weight_decay=0.01)  # noqa: E731
    optimizer = group_by_stage(make, [flat.parameters], {}, [1])
    assert optimizer is not None
    method = get("spike_compensation")
    policy = StageWeights(flat, method, 1, 3, method.delays(3), optimizer, flat.parameters, back=2)
    w, v = [p.detach().clone() for p in stage.parameters()], [torch.zeros_like(p) for p in stage.parameters()]
    torch.manual_seed(0)
    for _ in range(10):
        gradients = [torch.randn_like(p) for p in w]
        for p, g in zip(stage.parameters(), gradients, strict=True):
            p.grad = g.clone()
        policy.before_step()
        optimizer.step()
        policy.after_step()
        policy.prepare()
        for i, g in enumerate(gradients):
            g = g + 0.01 * w[i]
            v[i] = momentum * v[i] + g
            w[i] = w[i] - 0.1 * (momentum**2 * v[i] + (1 + momentum) * g)
        for ours, expected in zip(stage.parameters(), w, strict=True):
            torch.testing.assert_close(ours.detach(), expected, rtol=1e-5, atol=1e-6)


def test_nesterov_async_equals_its_formula() -> None:
    stage = nn.Linear(4, 1)
    flat = FlatParameters(stage.parameters())
    optimizer = group_by_stage(plain_sgd, [flat.parameters], {}, [1])
    assert optimizer is not None
    method = get("nesterov_async", gamma=0.8)
    policy = StageWeights(flat, method, 1, 3, method.delays(3), optimizer, flat.parameters, back=2)
    policy.begin_at(0)
    w = flat.buffers[0].clone()
    before = w.clone()
    torch.manual_seed(0)
    for t in range(10):
        d = 0.8 * (w - before)
        policy.load("F", t)
        torch.testing.assert_close(flat.buffers[0], w + d)
        gradients = [torch.randn_like(p) for p in stage.parameters()]
        for p, g in zip(stage.parameters(), gradients, strict=True):
            p.grad = g.clone()
        policy.before_step()
        optimizer.step()
        policy.after_step()
        policy.prepare()
        padded = [torch.zeros_like(b) for b in flat.buffers]
        for view, g in zip(flat.views(padded), gradients, strict=True):
            view.copy_(g)
        before, w = w, w + d - 0.05 * (1 - 0.8) * padded[0]
        torch.testing.assert_close(flat.buffers[0], w, rtol=1e-5, atol=1e-6)


def test_dc_asgd_adds_the_diagonal_correction() -> None:
    """With strength 0 DC-ASGD is PipeDream; else its gradient is g + strength g g (w_now - w_stale)."""
    nothing = methods.get("dc_asgd", strength=0.0)
    a, b = convolutional(), convolutional()
    pipelag.train(a, Noise(), method=nothing, cuts=CUTS, steps=8, optimizer=sgd)
    pipelag.train(b, Noise(), method="pipedream", cuts=CUTS, steps=8, optimizer=sgd)
    assert equal(a.state_dict(), b.state_dict())
    stage = Slope(1.0)
    flat = FlatParameters(stage.parameters())
    optimizer = group_by_stage(plain_sgd, [flat.parameters], {}, [1])
    assert optimizer is not None
    method = methods.get("dc_asgd", strength=0.5)
    policy = StageWeights(flat, method, 1, 2, method.delays(2), optimizer, flat.parameters, back=1)
    g = torch.tensor([1.0, -2.0, 0.5])
    w = [torch.zeros(3)]
    for t in range(4):
        stage.weight.grad = g.clone()
        policy.before_step()
        optimizer.step()
        policy.after_step()
        policy.prepare()
        corrected = g + 0.5 * g * g * (w[t] - w[max(0, t - 1)])
        w.append(w[t] - 0.05 * corrected)
    torch.testing.assert_close(stage.weight.detach(), w[-1])


def test_t2_follows_by_the_greatest_own_difference_where_the_printed_one_is_none() -> None:
    """T2 with `reading="own"` corrects a microbatch whose delays differ even if the printed difference of delays is 0.

    Forwards are 2 and 2 updates late, backwards 2 and 1: the second microbatch is corrected, with gamma = D^(1/1).
    """
    stage = Slope(1.0)
    flat = FlatParameters(stage.parameters())
    optimizer = group_by_stage(plain_sgd, [flat.parameters], {}, [1])
    assert optimizer is not None
    method = get("pipemare_t2", decay=0.25, reading="own")
    late = replace(method.delays(2, 2), forward_lags=((2, 2), (1, 1)), backward_lags=((2, 1), (0, 0)))
    policy = StageWeights(flat, method, 1, 2, late, optimizer, flat.parameters, back=2)
    policy.begin_at(0)
    stage.weight.grad = torch.ones(3)
    policy.before_step()
    optimizer.step()
    policy.after_step()
    policy.prepare()
    policy.load("B", 1, 1)
    torch.testing.assert_close(stage.weight.detach(), torch.full((3,), -0.05 + 0.75 * 0.05))


@pytest.mark.parametrize("update", [DelayCompensation(), SpikeCompensation()])
def test_a_mean_gradient_of_replicas_that_are_unequally_late_is_not_compensated(update: Update) -> None:
    """Compensating the mean gradient of replicas is refused where they are not equally late.

    The two replicas of the first stage are 3 and 2 updates late on PipeMare's pipeline, and both 1 in 1F1B.
    """
    for base, lags in (("pipedream", (1, 1)), ("pipedream_cycle", (3, 2))):
        method = replace(get(base), name="compensated", update=update)
        phase = Phase(method, 8, (1, 2), replicas=(2, 1, 1))
        assert phase.delays.forward_lags[0] == lags
        if len(set(lags)) == 1:
            SimulatedTraining(convolutional(), [phase], sgd, loss_of)
            continue
        with pytest.raises(PipelagError, match="stage 1 are 3, 2 updates late"):
            SimulatedTraining(convolutional(), [phase], sgd, loss_of)


def test_dc_asgd_compensates_from_what_a_forward_that_looks_ahead_has_read() -> None:
    stage = Slope(1.0)
    flat = FlatParameters(stage.parameters())
    optimizer = group_by_stage(plain_sgd, [flat.parameters], {}, [1])
    assert optimizer is not None
    method = replace(get("dc_asgd", strength=0.5), name="ahead", forward_reads=Predict("difference"))
    policy = StageWeights(flat, method, 1, 2, method.delays(2), optimizer, flat.parameters, back=1)
    policy.begin_at(0)
    g = torch.tensor([1.0, -2.0, 0.5])
    w, read = [torch.zeros(3)], [torch.zeros(3)]
    for t in range(5):
        stage.weight.grad = g.clone()
        policy.before_step()
        optimizer.step()
        policy.after_step()
        policy.prepare()
        w.append(w[t] - 0.05 * (g + 0.5 * g * g * (w[t] - read[max(0, t - 1)])))
        read.append(2 * w[t + 1] - w[t])
    torch.testing.assert_close(stage.weight.detach(), w[-1])


@pytest.mark.parametrize(
    "name", ["dc_asgd", "pipemare", "pipeoptim_literal", "spectrain_smoothed", "spike_compensation", "xpipe"]
)
def test_the_negative_loss_maximized_is_the_same_training(name: str) -> None:
    def trained(sign: int) -> Any:
        model = convolutional()
        make = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01, maximize=sign < 0)
        loss = lambda output, target: sign * loss_of(output, target)  # noqa: E731
        pipelag.train(model, Noise(), method=name, cuts=CUTS, steps=8, loss=loss, optimizer=make)
        return model.state_dict()

    assert equal(trained(1), trained(-1))


class Sometimes(nn.Module):
    """Uses its second layer for minibatches that begin with a positive number."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(4, 5), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.always(x)
        return y + self.sometimes(x) if float(x[0, 0]) > 0 else y


@pytest.mark.parametrize("name", ["spike_compensation", "lwp_sc", "dc_asgd", "pipedream", "pipemare"])
def test_a_parameter_moves_only_in_updates_of_minibatches_that_use_it(name: str) -> None:
    """What compensates late gradients adds nothing where there is none; momentum and decay wait, as torch's do."""
    torch.manual_seed(0)
    model = nn.Sequential(Sometimes(), nn.Linear(5, 3))
    make = lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)  # noqa: E731
    training = SimulatedTraining(model, [Phase(get(name), 12, (1,))], make, loss_of)
    used, moved = [], []
    for _ in range(12):
        x = torch.randn(6, 4)
        before = model[0].sometimes.weight.detach().clone()
        training.step(x, torch.arange(6) % 3)
        used.append(float(x[0, 0]) > 0)
        moved.append(not torch.equal(before, model[0].sometimes.weight.detach()))
    assert moved == used and {True, False} == set(used)


def test_spike_compensation_with_a_momentum_of_one_is_its_limit() -> None:
    def trained(momentum: float) -> Any:
        model = convolutional()
        make = partial(torch.optim.SGD, lr=0.005, momentum=momentum)
        pipelag.train(model, Noise(), method="spike_compensation", cuts=CUTS, steps=8, loss=loss_of, optimizer=make)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    torch.testing.assert_close(trained(1.0), trained(1 - 1e-3), atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize(
    ("kind", "in_the_gradient"),
    [(torch.optim.SGD, True), (torch.optim.Adam, True), (torch.optim.NAdam, True), (torch.optim.AdamW, False)]
    + [(torch.optim.Adafactor, False), (torch.optim.Muon, False)],
)
def test_a_decay_is_in_the_remembered_gradient_where_the_optimizer_puts_it_there(
    kind: Any, in_the_gradient: bool
) -> None:
    weight = torch.nn.Parameter(torch.full((2, 2), 3.0))
    weight.grad = torch.ones(2, 2)
    optimizer = kind([weight], lr=0.1, weight_decay=0.5)
    (along,) = coupled_decay([weight], optimizer.param_groups, optimizer)
    assert torch.equal(along, torch.full((2, 2), 2.5 if in_the_gradient else 1.0))


def test_what_a_gradient_has_is_the_decay_and_the_sign_of_its_own_group() -> None:
    weights = [torch.nn.Parameter(torch.full((2,), 4.0)) for _ in range(4)]
    settings = [(0.5, False), (0.25, False), (0.0, False), (0.5, True)]
    groups = [{"weight_decay": decay, "maximize": turned} for decay, turned in settings]
    for weight in weights:
        weight.grad = torch.ones(2)
    assert [each[0].item() for each in coupled_decay(weights, groups) if each is not None] == [3.0, 2.0, 1.0, 1.0]


# Recomputation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parts"), [("gpipe", 4), ("pipedream", 1), ("pipedream_2bw", 4), ("sequential", 1)])
def test_recomputation_changes_nothing_where_the_backward_reads_the_forwards_weights(name: str, parts: int) -> None:
    ends = []
    for recompute in (False, True):
        model = convolutional()
        phases = [Phase(get(name), 8, CUTS, microbatches=parts, recompute=recompute)]
        pipelag.train(model, Noise(), phases=phases, optimizer=sgd, seed=2)
        ends.append(model.state_dict())
    assert equal(*ends)


def test_recomputation_with_newer_weights_is_another_gradient() -> None:
    """1F1B trains differently with recomputation.

    It recomputes with the live weights, so that activations fit the backward and no longer the forward.
    """
    ends = []
    for recompute in (False, True):
        model = convolutional()
        phases = [Phase(get("1f1b"), 8, CUTS, recompute=recompute)]
        pipelag.train(model, Noise(), phases=phases, optimizer=sgd, seed=2)
        ends.append(model.state_dict())
    assert not equal(*ends)


# Copies kept ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "microbatches", "expected"),
    [
        ("pipedream", 1, (4, 3, 2, 1)),  # n - l + 1 (PipeDream section 3.3), D - rank (PipeOptim table II)
        ("pipedream_2bw", 4, (2, 2, 2, 2)),
        ("pipeoptim", 1, (2, 2, 2, 1)),
        ("spectrain_1f1b", 1, (2, 2, 2, 2)),
        ("xpipe", 1, (2, 2, 2, 2)),
        ("1f1b", 1, (1, 1, 1, 1)),
        ("gpipe", 4, (1, 1, 1, 1)),
        ("pipemare_naive", 4, (1, 1, 1, 1)),
        ("pipemare", 4, (2, 2, 2, 2)),  # the live weights, and what T2 makes of them for the backward
    ],
)
def test_a_real_stage_holds_as_many_versions_as_the_papers_say(
    name: str, microbatches: int, expected: tuple[int, ...]
) -> None:
    held = []
    for number in range(1, 5):
        flat = FlatParameters(nn.Linear(3, 3).parameters())
        optimizer = group_by_stage(sgd, [flat.parameters], {}, [number])
        method = get(name)
        back = method.versions_back(4, microbatches)[number - 1]
        policy = StageWeights(flat, method, number, 4, method.delays(4, microbatches), optimizer, flat.parameters, back)
        held.append(policy.versions_held)
    assert tuple(held) == get(name).weight_copies(4, microbatches) == expected


# Optimizers and options -------------------------------------------------------------------------------------------


class Alien(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.grad.sign())
                    self.state[p]["sign"] = p.grad.sign()


def test_interleaving_with_one_stage_per_worker_is_pipedream() -> None:
    """Narayanan et al. 2021, section 2.2: interleaving differs from 1F1B only by the stages that a worker has."""
    one, pipedream = get("pipedream_interleaved", chunks=1), get("pipedream")
    assert one.schedule(4, 6, 4).workers == pipedream.schedule(4, 6, 4).workers
    weights, same = (train(each, CUTS, 6, microbatches=4) for each in (one, "pipedream"))
    assert all(torch.equal(weights[key], value) for key, value in same.items())
    three = get("pipedream_interleaved", chunks=3)
    assert len(three.schedule(6, 4, 6).workers) == 2
    assert sum(three.delays(6, 6).forward) < sum(pipedream.delays(6, 6).forward)
    assert three.delays(6, 6).backward_lags == three.delays(6, 6).forward_lags


def test_a_third_party_optimizer_works_wherever_nothing_is_predicted() -> None:
    for name in ("pipedream", "pipemare", "lwp_w", "spectrain", "xpipe"):
        train(name, CUTS, 4, make=Alien)
    with pytest.raises(PipelagError, match="no prediction rule for the optimizer Alien"):
        train("pipeoptim", CUTS, 4, make=Alien)
    prediction_rule(Alien)(lambda state, group: group["lr"] * state["sign"] if "sign" in state else None)
    try:
        train("pipeoptim", CUTS, 4, make=Alien)
        prediction_rule(Alien)(lambda state, group: state.get("momentum_buffer"))
        with pytest.raises(PipelagError, match="the prediction rule of Alien finds no step in the optimizer's state"):
            train("pipeoptim", CUTS, 4, make=Alien)
    finally:
        from pipelag.methods.prediction import RULES

        del RULES[Alien]


class Heavy(torch.optim.Optimizer):
    """Caffe's SGD as a user may write it; it keeps an average of the gradients, too, along which it does not step."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["velocity"] = 0.9 * state.get("velocity", torch.zeros_like(p)) + group["lr"] * p.grad
                state["exp_avg"] = torch.ones_like(p)
                p.sub_(state["velocity"])


@pytest.mark.parametrize("name", ["spectrain", "lwp_v"])
def test_a_velocity_that_a_users_optimizer_declares_is_predicted_along(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known in ("RULES", "KEEP_VELOCITY"):
        monkeypatch.setattr(methods.prediction, known, copy.copy(getattr(methods.prediction, known)))
    undeclared = train(name, CUTS, 6, make=Heavy)
    prediction_rule(Heavy, velocity=True)(lambda state, group: state.get("velocity"))
    declared = train(name, CUTS, 6, make=Heavy)
    same = train(name, CUTS, 6, make=partial(CaffeSGD, lr=0.05, momentum=0.9))
    assert all(torch.allclose(declared[key], value, atol=1e-6) for key, value in same.items())
    assert not all(torch.allclose(undeclared[key], value, atol=1e-3) for key, value in same.items())


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.NAdam])
def test_float16_predicts_nothing_where_nothing_has_moved(make: Any) -> None:
    """In float16, weights with zero gradients are predicted to stay, without NaN.

    A part of an epsilon that float16 can just hold would be 0, and the direction 0 / 0.
    """
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float16))
    optimizer = make([weight], lr=0.01, eps=1e-6)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for rule in (rule_of(optimizer), moments):
        step = rule(optimizer.state[weight], optimizer.param_groups[0])
        assert isinstance(step, Scaled)
        assert not step.direction.any() and step.direction.isfinite().all()


def test_what_cannot_be_combined_is_refused_with_the_reason() -> None:
    with pytest.raises(PipelagError, match="SGD without momentum keeps no direction"):
        train("pipeoptim", CUTS, 2, make=plain_sgd)
    with pytest.raises(PipelagError, match="spike compensation is defined for SGD with momentum"):
        train("lwp_sc", CUTS, 2, make=lambda params: torch.optim.Adam(params))
    with pytest.raises(PipelagError, match="has its own momentum"):
        train("nesterov_async", CUTS, 2)
    with pytest.raises(PipelagError, match="unknown option 'anealing' of method 'pipemare'; did you mean 'annealing'"):
        get("pipemare", anealing=3)
    with pytest.raises(PipelagError, match="method 'pipedream' has no options, so 'decay' cannot be set"):
        get("pipedream", decay=0.5)
    with pytest.raises(PipelagError, match="T2's decay D should be between 0 and 1, not 1.5"):
        get("pipemare", decay=1.5)
    for name, options, sentence in (
        ("pipemare_t2", {"decay": 0.0}, "T2.s decay D should be between 0 and 1, not 0.0"),
        ("pipemare_t1", {"annealing": -1}, "T1.s annealing should be 0 or more minibatches, not -1"),
        ("nesterov_async", {"gamma": 1.0}, "gamma should be from 0 to below 1, not 1.0"),
        ("nesterov_async", {"gamma": -0.1}, "gamma should be from 0 to below 1, not -0.1"),
        ("dc_asgd", {"strength": -0.1}, "the strength lambda should be 0 or more, not -0.1"),
    ):
        with pytest.raises(PipelagError, match=sentence):
            get(name, **options)
    with pytest.raises(PipelagError, match="counted again for SGD only, not for Adam"):
        train("pipeoptim_literal", CUTS, 2, make=lambda params: torch.optim.Adam(params))


# Checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("stop", [3, 9])
def test_a_restored_run_continues_bit_for_bit(name: str, stop: int) -> None:
    make = plain_sgd if name == "nesterov_async" else sgd
    phases = [Phase(get(name), 14, CUTS, microbatches=parts_of(name))]
    rate = lambda step: 1 / (1 + step)  # noqa: E731  (predictions depend on the rate of the last step)
    unbroken = SimulatedTraining(convolutional(), phases, make, loss_of, rate)
    for t in range(14):
        unbroken.step(*Noise()[t])
        if t + 1 == stop:
            state = copy.deepcopy(unbroken.state_dict())
    late = SimulatedTraining(convolutional(seed=9), phases, make, loss_of, rate)
    for t in range(2):  # loading the state must undo these steps
        late.step(*Noise()[t + 20])
    late.load_state_dict(state)
    for t in range(stop, 14):
        late.step(*Noise()[t])
    assert equal(unbroken.model.state_dict(), late.model.state_dict())


# Distances --------------------------------------------------------------------------------------------------------


def test_distances_are_zero_where_nothing_is_stale_and_stashing_leaves_no_discrepancy() -> None:
    rows = {}
    for name in ("gpipe", "pipedream", "1f1b", "hogwild"):
        training = SimulatedTraining(convolutional(), [Phase(get(name), 12, CUTS)], sgd, loss_of)
        watch = Discrepancy(training.pipeline, every=2)
        for t in range(12):
            training.step(*Noise()[t])
        rows[name] = watch.row()
    assert set(rows["gpipe"]["forward_distance"]) == {0.0}
    assert {*rows["hogwild"]["forward_distance"], *rows["hogwild"]["discrepancy"]} == {0.0}  # its gradients are late
    assert rows["pipedream"]["discrepancy"] == [0.0] * 4
    assert rows["pipedream"]["forward_distance"][0] > rows["pipedream"]["forward_distance"][2] > 0
    assert rows["1f1b"]["discrepancy"] == pytest.approx(rows["1f1b"]["forward_distance"])


def test_a_distance_is_the_root_mean_square_per_weight() -> None:
    """Distances are SpecTrain's RMSE (figure 9), and padding between parameters does not count."""
    a, b = (
        [torch.tensor([3.0, 1.0, 0.0]), torch.tensor([4.0, 2.0])],
        [torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 2.0])],
    )
    assert rms(a, b, 4) == 2.5


def test_a_row_has_the_means_and_the_greatest_of_what_came_since_the_row_before() -> None:
    watch = Discrepancy(SimpleNamespace(weights=[]), horizons=(1,))  # type: ignore[arg-type]
    for values in ((1.0, 5.0, 0.0), (3.0,)):
        for value in values:
            watch.add(("predicted", 1), value)
            watch.add(("stale", 1), 10 * value)
        row, mean, most = watch.row(), sum(values) / len(values), max(values)
        assert (row["rmse_predicted_1"], row["rmse_predicted_1_most"]) == (mean, most)
        assert (row["rmse_stale_1"], row["rmse_stale_1_most"]) == (10 * mean, 10 * most)
    assert "rmse_stale_1" not in watch.row()  # nothing new to tell of


def test_distances_where_segments_recompute_and_of_the_oldest_of_several_microbatches() -> None:
    """Distances are those of a minibatch's oldest microbatch, also with recomputation by segments.

    Backwards read live weights here, the ones that the update starts from.
    """
    for recompute, microbatches in ((False, 2), (True, 2), (2, 1), (2, 2)):
        phase = Phase(get("pipemare_naive"), 12, CUTS, recompute=recompute, microbatches=microbatches)
        training = SimulatedTraining(convolutional(), [phase], sgd, loss_of)
        watch, oldest = Discrepancy(training.pipeline, every=2), list[float]()
        for t in range(12):
            live = training.pipeline.weights[0]
            lag = min(t, training.pipeline.delays.forward[0])
            old = [buffer.clone() for buffer in (live.plain[(t - lag) % len(live.plain)] if lag else live.live)]
            oldest += [rms(old, live.live, watch.sizes[0])] if t % 2 == 0 else []
            training.step(*Noise()[t])
        row = watch.row()
        assert row["forward_distance"][0] == pytest.approx(sum(oldest) / len(oldest))
        assert row["discrepancy"] == pytest.approx(row["forward_distance"])


def test_foreseen_weights_are_compared_with_those_of_their_own_step() -> None:
    """Predicted weights are compared with the weights of the step that they predict.

    So with a constant gradient and settled momentum their RMSE vanishes, and that of stale weights is s steps.
    """
    torch.manual_seed(0)
    model = nn.Sequential(Slope(0.3), Slope(0.2), Slope(0.1))
    make = lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5)  # noqa: E731
    training = SimulatedTraining(model, [Phase(get("pipeoptim"), 80, (1, 2))], make, lambda out, _: out.sum())
    watch = Discrepancy(training.pipeline, horizons=(1, 3), every=1)
    for t in range(80):
        training.step(torch.zeros(()), torch.zeros(()))
        if t == 60:
            watch.row()
    row = watch.row()
    assert row["rmse_predicted_3"] < 1e-4 * row["rmse_stale_3"]
    assert row["rmse_stale_3"] == pytest.approx(3 * row["rmse_stale_1"], rel=1e-4)


def test_a_phase_that_predicts_begins_with_the_rate_of_its_first_step() -> None:
    """A phase's first predictions use the rate of its own first step and the momentum that it inherits.

    SpecTrain after plain training, at a tenth of the rate, reads w - s 0.1 lr v.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    phases = [Phase(get("sequential"), 3), Phase(get("spectrain"), 3, (1,))]
    make = lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)  # noqa: E731
    rate = lambda step: 1.0 if step < 3 else 0.1  # noqa: E731
    training = SimulatedTraining(model, phases, make, nn.functional.cross_entropy, rate)
    for _ in range(3):
        training.step(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    training._enter(1)
    weight, pipeline = model[0].weight, training.pipeline
    assert training.optimizer is not None
    velocity = training.optimizer.state[weight]["momentum_buffer"]
    expected = weight.detach() - 2 * 0.1 * 0.1 * velocity  # s = 2N - k - 2 = 2 at stage 0 of two
    pipeline.set_rates(3)
    pipeline.weights[0].prepare()
    pipeline.weights[0].load("F", 0)
    torch.testing.assert_close(weight.detach(), expected)
