"""Measure the layer times and sizes of a model on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import inf
from statistics import median
from typing import Any

import torch
from torch import nn

from pipelag.allocator import keep_freed_memory
from pipelag.compat.bars import Bar
from pipelag.errors import PipelagError, kind_of, noting, shown
from pipelag.models.cut import layers_of, name_of
from pipelag.stage.split import backward_to_inputs
from pipelag.stage.where import shape_of
from pipelag.tensors import as_tuple, kept_for_backward, own_outputs, unchanged_buffers, weight_bytes
from pipelag.timing.layers import LayerTime, Profile


def profile(
    model: nn.Sequential | Sequence[nn.Module],
    batch: Any,
    repeats: int = 10,
    warmup: int = 2,
    progress: bool | None = None,
    split: bool = False,
) -> Profile:
    """Measure the forward and backward time and the sizes of every layer on a minibatch, on the model's device.

    As in training, all forwards run first, and their activations are kept until the backwards, which run from the last
    layer to the first on the gradients passed down. (Timed alone, a layer would find its tensors in the cache and its
    memory freshly freed.) The backward of a layer computes the gradients of its parameters and, except for the first
    layer, of its input. Times are medians over rounds, so a disturbance spoils a round and not a layer.

    On a GPU, a time is the device's own. Training may take longer where layers are so small that Python launches them
    more slowly than the device computes them. Buffers (batch-norm statistics) and gradients are restored. From this
    call on, the process keeps freed memory (`pipelag.allocator`).

    Args:
        model: an `nn.Sequential` or a list of layers; for a branching model, `pipelag.linearise(model)`.
        batch: the model's input, a tensor or a tuple of tensors, on the model's device.
        repeats: rounds that are measured, at least 1.
        warmup: rounds before these that are not measured.
        progress: whether to show a progress bar; by default if there is a terminal.
        split: also measure `weight_ms` and `split_ms`, which zero-bubble schedules are timed by, and `gradient_bytes`
            and `freed_bytes`, by which their memory is counted. Each round then runs a second time, with every backward
            in two parts, as on real workers (`pipelag.stage.split`). The first layer has no gradient of its input to
            compute, so its whole backward counts as that of the parameters.

    Raises:
        PipelagError: the model is not a sequence of layers, the batch is not a tensor or a tuple of tensors, or there
            are too few rounds. Exceptions of a layer are raised unchanged, with a note that names layer and shapes.
    """
    layers = _checked(model, batch, repeats, warmup)
    place = as_tuple(batch)[0].device
    with torch.cuda.device(place) if place.type == "cuda" else nullcontext():  # for the events and kernels
        return _profile(layers, batch, repeats, warmup, None if progress is None else not progress, split)


def _checked(model: Any, batch: Any, repeats: Any, warmup: Any) -> list[nn.Module]:
    """The model's layers; refuses arguments that cannot be profiled."""
    layers = layers_of(model)
    if not layers:
        raise PipelagError("the model has no layers; give an nn.Sequential, or a list of modules")
    for number, layer in enumerate(layers, start=1):
        if not isinstance(layer, nn.Module):
            raise PipelagError(f"layer {number} of the model is {shown(layer)}; it should be an nn.Module")
    if not as_tuple(batch) or not all(isinstance(part, torch.Tensor) for part in as_tuple(batch)):
        raise PipelagError(
            f"the batch is {kind_of(batch)}; it should be the model's input, a tensor or a tuple of tensors"
        )
    if not all(part.numel() for part in as_tuple(batch)):
        raise PipelagError("the batch has no samples; give an input of the model with at least one")
    for name, value, least in (("repeats", repeats, 1), ("warmup", warmup, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise PipelagError(f"{name} is {shown(value)}; it should be a whole number from {least} on")
    return layers


Times = list[list[float]]  # by layer, the milliseconds of each round


def _profile(
    layers: list[nn.Module], batch: Any, repeats: int, warmup: int, hidden: bool | None, split: bool
) -> Profile:
    keep_freed_memory()
    clock = Clock(as_tuple(batch)[0].is_cuda)
    forward, backward, again, of_inputs, of_weights = (_no_times(layers) for _ in range(5))
    whole = nn.ModuleList(layers)
    with unchanged_buffers(whole), _gradients_aside(whole):
        sizes = _sizes(layers, batch, split)
        whole.zero_grad(set_to_none=True)
        for turn in Bar(range(warmup + repeats), unit="round", desc="profile", disable=hidden):
            _backwards(_forwards(layers, batch, clock, forward), clock, backward)
            if split:
                whole.zero_grad(set_to_none=True)
                _backwards(_forwards(layers, batch, clock, again), clock, of_inputs, of_weights)
            whole.zero_grad(set_to_none=True)
            clock.read()
            if turn < warmup:
                forward, backward, again, of_inputs, of_weights = (_no_times(layers) for _ in range(5))
    measured = [
        LayerTime(i, name_of(layer), median(f), median(b), **size)
        for i, (layer, f, b, size) in enumerate(zip(layers, forward, backward, sizes, strict=True), start=1)
    ]
    return Profile(tuple(_in_two_parts(layers, measured, of_inputs, of_weights) if split else measured))


def _no_times(layers: Sequence[nn.Module]) -> Times:
    return [[] for _ in layers]


def _forwards(layers: Sequence[nn.Module], batch: Any, clock: Clock, into: Times) -> list[tuple[Any, Any]]:
    """Time the forward of every layer; returns each layer's input and output."""
    passes: list[tuple[Any, Any]] = []
    value: Any = batch
    for index, layer in enumerate(layers):
        received = _detached(value, differentiable=index > 0)
        with clock.timing(into[index], ("forward", index)):
            value = layer(received)
        passes.append((received, value))
    return passes


def _backwards(passes: list[tuple[Any, Any]], clock: Clock, into: Times, weights: Times | None = None) -> None:
    """Time the backward of every layer; in two parts if there are lists for the gradients of the weights, too."""
    gradients = [torch.randn_like(t) for t in as_tuple(passes[-1][1]) if t.requires_grad]
    for index in reversed(range(len(passes))):
        received, value = passes.pop()
        outputs, output_gradients = own_outputs(value, gradients, received)
        with clock.timing(into[index], ("backward", index, weights is None)):
            if weights is not None:
                _, left = backward_to_inputs(tuple(outputs), tuple(output_gradients), received)
            elif outputs:
                torch.autograd.backward(outputs, output_gradients)
        if weights is not None:
            with clock.timing(weights[index], ("weights", index)):
                left.accumulate()
        before = as_tuple(passes[-1][1]) if passes else ()  # outputs without a gradient get none
        gradients = [
            _gradient(t) for t, source in zip(as_tuple(received), before, strict=False) if source.requires_grad
        ]


def _in_two_parts(
    layers: Sequence[nn.Module], measured: Sequence[LayerTime], of_inputs: Times, of_weights: Times
) -> list[LayerTime]:
    """The layers with the times of their backwards in two parts."""
    rows = [replace(measured[0], weight_ms=measured[0].backward_ms)]
    for layer, row, b, w in zip(layers[1:], measured[1:], of_inputs[1:], of_weights[1:], strict=True):
        weights = median(w) if any(p.requires_grad for p in layer.parameters()) else 0.0
        rows.append(replace(row, weight_ms=weights, split_ms=max(0.0, median(b) + weights - row.backward_ms)))
    return rows


@contextmanager
def _gradients_aside(module: nn.Module) -> Iterator[None]:
    """Take away the parameters' gradients, to which a backward would add, and put them back afterwards."""
    held = [(parameter, parameter.grad) for parameter in module.parameters()]
    module.zero_grad(set_to_none=True)
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


def _sizes(layers: Sequence[nn.Module], batch: Any, split: bool) -> list[dict[str, int]]:
    """The sizes of each layer (`LayerTime`) by name, from one forward and, with `split`, a B of each layer alone."""
    sizes, value = [], batch
    once = weight_bytes(layers)
    for index, layer in enumerate(layers):
        received = _detached(value, differentiable=index > 0)
        weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}
        known = weights | {t.untyped_storage().data_ptr() for t in as_tuple(received)}
        where = f"while profiling: layer {index + 1} ({name_of(layer)}), input {shape_of(received)}"
        with noting(where), kept_for_backward(known) as kept_bytes:
            value = layer(received)
        # The next layer keeps this layer's output as its input. Its bytes are counted there, as `out` of this layer.
        outputs = {t.untyped_storage().data_ptr() for t in as_tuple(value)}
        passing = {t.untyped_storage().data_ptr() for t in as_tuple(received)}
        new = sum(
            t.numel() * t.element_size() for t in as_tuple(value) if t.untyped_storage().data_ptr() not in passing
        )
        out = sum(t.numel() * t.element_size() for t in as_tuple(value))
        inside = sum(size for place, size in kept_bytes.items() if place not in outputs)
        last = index == len(layers) - 1
        size = {"output_bytes": out, "kept_bytes": inside + (0 if last else new), "weight_bytes": once[index]}
        sizes.append(size | (_until_w(value, received, kept_bytes, size["kept_bytes"]) if split else {}))
    return sizes


def _until_w(value: Any, received: Any, saved: dict[int, int], kept: int) -> dict[str, int]:
    """A layer's `gradient_bytes` and `freed_bytes`.

    Args:
        saved: what the forward has saved: bytes by the address of their storage.
        kept: the layer's `kept_bytes`.
    """
    outputs, gradients = own_outputs(value, [torch.zeros_like(t) for t in as_tuple(value) if t.requires_grad], received)
    _, left = backward_to_inputs(tuple(outputs), tuple(gradients), received)
    until_w = sum(saved[place] for place in {t.untyped_storage().data_ptr() for t in left.saved()} & {*saved})
    first = not any(t.requires_grad for t in as_tuple(received))
    return {"gradient_bytes": left.bytes, "freed_bytes": 0 if first else max(0, kept - until_w)}


def _detached(value: Any, differentiable: bool) -> Any:
    copies = tuple(t.detach().requires_grad_(differentiable and t.is_floating_point()) for t in as_tuple(value))
    return copies if isinstance(value, tuple) else copies[0]


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


AHEAD = 3.0  # before a timed pass the GPU is kept busy for this many times the shortest time that its calls took
LONGEST = 50.0  # the most milliseconds for which it is kept busy


class Clock:
    """Measures milliseconds: on a GPU with events, read when a round is over, so that no layer waits for another.

    Events would include the time in which the GPU waits for calls. So from the third time on the GPU is kept busy while
    the calls of a pass are made. The duration of the first calls is not used, because libraries choose kernels then.
    """

    def __init__(self, events: bool) -> None:
        self.events = events
        self.pending: list[tuple[list[float], Any, Any]] = []
        self.called: dict[Any, float] = {}  # by pass: the shortest time that its calls took, in milliseconds
        self.cycles = self._cycles() if events else 0.0

    def _cycles(self) -> float:
        """The cycles of the GPU's clock per millisecond."""
        asked, spent = 2_000_000, list[float]()
        for _ in range(2):  # the first one is slow
            start = self.mark()
            torch.cuda._sleep(asked)
            end = self.mark()
            torch.cuda.synchronize()
            spent.append(start.elapsed_time(end))
        return asked / spent[-1]

    def mark(self) -> Any:
        """The present moment: in seconds, or as an event on the GPU."""
        if not self.events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def timing(self, into: list[float], what: Any) -> Iterator[None]:
        """Append the milliseconds of what runs inside to a list, on a GPU at the next `read`.

        what: a key of the timed pass, the same for the same calls.
        """
        if self.called.get(what, inf) < inf:
            torch.cuda._sleep(int(min(AHEAD * self.called[what], LONGEST) * self.cycles))
        start, begun = self.mark(), time.perf_counter()
        yield
        calls, end = 1e3 * (time.perf_counter() - begun), self.mark()
        if self.events:
            self.called[what] = min(calls, self.called[what]) if what in self.called else inf
            self.pending.append((into, start, end))
        else:
            into.append(1e3 * (end - start))

    def read(self) -> None:
        """Wait for the GPU, and append all times that are still pending to their lists."""
        if self.pending:
            torch.cuda.synchronize()
        for into, start, end in self.pending:
            into.append(start.elapsed_time(end))
        self.pending.clear()
