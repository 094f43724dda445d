"""Layers are timed on a GPU without waiting for each: by events, read when a round is over, and the GPU's own time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pipelag.timing import profile
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
