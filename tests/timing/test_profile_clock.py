"""Layers are timed on a GPU without waiting for each: by events, read when a round is over, and the GPU's own time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.timing import profile
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.profile import Clock

CYCLES = 1000.0  # in a millisecond


class Gpu:
    """Milliseconds: `now` is the process's, `free` is when the GPU has done what it was called for."""

    def __init__(self) -> None:
        self.now = self.free = 0.0
        self.waits = 0

    def call(self, calling: float, computing: float) -> None:
        """A kernel, which begins once it is called and what came before is over."""
        self.now += calling
        self.free = max(self.now, self.free) + computing

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802
        gpu = self

        class Event:
            def record(self) -> None:
                self.at, self.waits = max(gpu.now, gpu.free), gpu.waits

            def elapsed_time(self, other: Any) -> float:
                assert gpu.waits > other.waits, "read before the queue was empty"
                return other.at - self.at

        return Event()

    def synchronize(self) -> None:
        self.waits += 1
        self.now = max(self.now, self.free)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "Event", gpu.Event)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: gpu.call(0.0, cycles / CYCLES))
    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: gpu.now / 1e3))
    return gpu


def rounds(gpu: Gpu, clock: Clock, kernels: list[tuple[float, float]], count: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in kernels]
    for _ in range(count):
        for number, kernel in enumerate(kernels):
            with clock.timing(times[number], number):
                gpu.call(*kernel)
        clock.read()
    return times


def test_one_synchronisation_a_round(gpu: Gpu) -> None:
    clock = Clock(events=True)
    assert clock.cycles == CYCLES
    before = gpu.waits
    assert rounds(gpu, clock, [(0.0, 1.0), (0.0, 2.0), (0.0, 3.0)], 2) == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert gpu.waits == before + 2


def test_a_layer_that_is_called_more_slowly_than_computed_has_its_own_time(gpu: Gpu) -> None:
    first, second, *later = zip(*rounds(gpu, Clock(events=True), [(5.0, 1.0), (4.0, 0.5)], 4), strict=True)
    assert first[0] == second[0] == pytest.approx(6.0)  # nothing kept the GPU busy yet
    assert all(each == pytest.approx((1.0, 0.5)) for each in later)


def test_what_a_library_does_at_first_keeps_no_gpu_busy(gpu: Gpu) -> None:
    clock, kernels = Clock(events=True), [(400.0, 1.0)]
    rounds(gpu, clock, kernels, 1)
    kernels[0] = (100.0, 1.0)
    rounds(gpu, clock, kernels, 1)
    before = gpu.now
    rounds(gpu, clock, kernels, 1)
    assert gpu.now - before < 160.0  # the call, and not three times as long before


class Scripted:
    """A clock by which every pass takes so long, round by round: two disturbed ones to warm up, then three."""

    ROUNDS = (100.0, 50.0, 1.0, 2.0, 9.0)

    def __init__(self, events: bool) -> None:
        self.seen: Counter[Any] = Counter()

    @contextmanager
    def timing(self, into: list[float], what: Any) -> Iterator[None]:
        yield
        into.append(self.ROUNDS[self.seen[what]])
        self.seen[what] += 1

    def read(self) -> None:
        pass


def test_a_layers_time_is_the_median_of_the_rounds_behind_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "Clock", Scripted)
    timed = profile.profile([nn.Linear(2, 2), nn.Linear(2, 2)], torch.randn(3, 2), repeats=3, warmup=2)
    assert [(layer.forward_ms, layer.backward_ms) for layer in timed.layers] == [(2, 2), (2, 2)]


class Slow(nn.Linear):
    """Takes 20 milliseconds of its clock, and notes whether its input wants a gradient."""

    seconds = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Slow.seconds += 0.02
        self.wanted = x.requires_grad
        return super().forward(x)


def test_times_are_milliseconds_and_the_first_input_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: Slow.seconds))
    first, second = Slow(2, 2), Slow(2, 2)
    timed = profile.profile([first, second], torch.randn(3, 2), repeats=1, warmup=0)
    assert [layer.forward_ms for layer in timed.layers] == pytest.approx([20, 20])
    assert (first.wanted, second.wanted) == (False, True)


class Taking(torch.autograd.Function):
    """Its backward takes so many milliseconds of the clock."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, milliseconds: float) -> torch.Tensor:
        ctx.milliseconds = milliseconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        Slow.seconds += ctx.milliseconds / 1e3
        return gradient, None


class Shared(nn.Module):
    """Two milliseconds of its backward are for the input, three for the weight; before them, one for both."""

    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2), requires_grad=trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Taking.apply(Taking.apply(x, 2.0) * Taking.apply(self.weight, 3.0), 1.0)


class Constant(nn.Module):
    """Its output does not depend on its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()


class Skips(nn.Module):
    """Hands its input on, beside what it makes of it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, Taking.apply(x, 4.0)


class Joins(nn.Module):
    """Adds what crosses the boundary."""

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return pair[0] + pair[1]


def test_the_gradients_of_weights_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: Slow.seconds))
    layers = [Shared(), Skips(), Joins(), Shared(), Shared(trained=False), Shared()]
    timed = profile.profile(layers, torch.randn(3, 2), repeats=3, warmup=1, split=True)
    assert [(layer.backward_ms, layer.weight_ms) for layer in timed.layers] == [
        (pytest.approx(backward), pytest.approx(weights))
        for backward, weights in [(4.0, 4.0), (4.0, 0.0), (0.0, 0.0), (6.0, 3.0), (3.0, 0.0), (6.0, 3.0)]
    ]  # of the first layer nothing but the weights'
    costs = timed.cut((2,))
    assert [(cost.backward, cost.weight_gradient) for cost in costs] == [
        (pytest.approx(8e-3), pytest.approx(4e-3)), (pytest.approx(15e-3), pytest.approx(6e-3))
    ]  # fmt: skip
    behind = profile.profile([Shared(), Constant(), Shared()], torch.randn(3, 2), split=True).layers
    assert [layer.weight_ms for layer in behind] == [pytest.approx(4.0), 0.0, pytest.approx(3.0)]
    plain = profile.profile(layers, torch.randn(3, 2), repeats=3, warmup=1)
    unmeasured = {"weight_ms": None, "gradient_bytes": None, "freed_bytes": 0}
    assert [replace(layer, **unmeasured) for layer in timed.layers] == list(plain.layers)


class Twice(Shared):
    """1.5 milliseconds of its backward are for the input and for the weight, so splitting spends them twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = Taking.apply(x, 2.0) * Taking.apply(self.weight, 3.0)
        if product.requires_grad:
            product.register_hook(self.wait)
        return product

    def wait(self, gradient: torch.Tensor) -> None:
        Slow.seconds += 1.5e-3


def test_what_splitting_costs_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: Slow.seconds))
    timed = profile.profile([Twice(), Twice(), Twice()], torch.randn(3, 2), repeats=3, split=True)
    times = [(layer.backward_ms, layer.weight_ms, layer.split_ms) for layer in timed.layers]
    assert times == [pytest.approx(each) for each in ((4.5, 4.5, 0.0), (6.5, 4.5, 1.5), (6.5, 4.5, 1.5))]
    assert timed.faster(2.0).layers[1].split_ms == pytest.approx(0.75)
    assert timed.scaled(3.0).layers[1].split_ms == pytest.approx(4.5)
    first, second = timed.cut((1,))
    assert (first.splitting, second.splitting) == (0.0, pytest.approx(3e-3))
    assert timed.cut((1,), microbatches=2)[1].splitting == pytest.approx(1.5e-3)
    assert all(cost.splitting == 0 for cost in timed.cut(()))  # one stage has nothing to split


def test_in_the_first_stage_w_takes_no_longer_than_the_backward() -> None:
    layers = (LayerTime(1, "", 1.0, 2.0, weight_ms=2.0), LayerTime(2, "", 1.0, 1.0, weight_ms=1.5, split_ms=1.0))
    (first,) = Profile(layers).cut(())
    assert (first.backward, first.weight_gradient, first.splitting) == (3e-3, 3e-3, 0.0)
    _, second = Profile(layers).cut((1,))
    assert (second.backward, second.weight_gradient, second.splitting) == (1e-3, 1.5e-3, 1e-3)


def test_a_profile_whose_w_takes_longer_than_both_parts_is_refused(tmp_path: Path) -> None:
    layers = (LayerTime(1, "", 1.0, 2.0, weight_ms=2.0), LayerTime(2, "", 1.0, 1.0, weight_ms=2.5, split_ms=1.0))
    Profile(layers).save(tmp_path / "p.jsonl")
    with pytest.raises(PipelagError, match="line 2: weight_ms is 2.5, but .* whose parts take 2 ms together"):
        Profile.load(tmp_path / "p.jsonl")


def test_a_profile_says_what_is_kept_until_w_or_that_it_does_not_know(tmp_path: Path) -> None:
    layer = LayerTime(1, "", 1.0, 2.0, 8, 40, 4, gradient_bytes=6, freed_bytes=10)
    Profile((layer,)).save(tmp_path / "p.jsonl")
    assert Profile.load(tmp_path / "p.jsonl").layers == (layer,)
    twice = Profile((layer,)).scaled(2.0).layers[0]
    assert (twice.gradient_bytes, twice.freed_bytes) == (12, 20)
    older = '{"layer": 1, "name": "", "forward_ms": 1, "backward_ms": 2, "output_bytes": 8, "kept_bytes": 40, '
    (tmp_path / "older.jsonl").write_text(older + '"weight_bytes": 4}')
    (read,) = Profile.load(tmp_path / "older.jsonl").layers
    assert (read.gradient_bytes, read.freed_bytes, Profile((read,)).scaled(2.0).layers[0].gradient_bytes) == (
        None,
        0,
        None,
    )
    Profile((replace(layer, freed_bytes=41),)).save(tmp_path / "p.jsonl")
    with pytest.raises(PipelagError, match="line 1: freed_bytes is 41, but it is a part of kept_bytes, which is 40"):
        Profile.load(tmp_path / "p.jsonl")


class Disturbed(Scripted):
    """A backward in two parts seems to take longer than one in one, or not so long."""

    parts = 7.0

    @contextmanager
    def timing(self, into: list[float], what: Any) -> Iterator[None]:
        yield
        into.append(5.0 if what[-1] is True else self.parts)


def test_no_disturbance_makes_a_time_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "Clock", Disturbed)
    for parts, split in ((7.0, 9.0), (1.0, 0.0)):
        monkeypatch.setattr(Disturbed, "parts", parts)
        timed = profile.profile([nn.Linear(2, 2), nn.Linear(2, 2)], torch.randn(3, 2), split=True)
        assert [(layer.backward_ms, layer.weight_ms, layer.split_ms) for layer in timed.layers] == [
            (5.0, 5.0, 0.0), (5.0, parts, split)
        ]  # fmt: skip
        timed.cut((1,))  # neither part is negative


def test_what_is_timed_apart_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    profile.profile(model, torch.randn(4, 6), repeats=2, split=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
