"""Layer times of a model on this machine, and the cut that balances them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from pipelag.allocator import keep_freed_memory
from pipelag.errors import PipelagError
from pipelag.timing.costs import StageCost


@dataclass(frozen=True)
class LayerTime:
    """One layer: its number (from 1), its name, and the median milliseconds of a forward and a backward pass.

    In bytes: its output (which crosses the boundary where the model is cut after it), the tensors that autograd keeps
    for its backward besides weights and the layer's own input, and its weights. 0 in profiles made before these were
    counted.
    """

    layer: int
    name: str
    forward_ms: float
    backward_ms: float
    output_bytes: int = 0
    kept_bytes: int = 0
    weight_bytes: int = 0

    @property
    def total_ms(self) -> float:
        """Forward plus backward."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True)
class Profile:
    """The layers of a model, timed with one minibatch."""

    layers: tuple[LayerTime, ...]

    def save(self, path: Path) -> None:
        """Write as JSON lines, a line per layer."""
        path.write_text("".join(json.dumps(asdict(layer)) + "\n" for layer in self.layers))

    def cut(
        self, cuts: Sequence[int], microbatches: int = 1, update_ms: Sequence[float] | None = None
    ) -> list[StageCost]:
        """The costs of the stages that these cuts make ("after layer p", layers counted from 1).

        Args:
            microbatches: equal parts of the profiled minibatch; times and activations are taken to shrink in proportion.
            update_ms: per stage, where updates take time.

        Raises:
            PipelagError: cuts out of order or range.
        """
        bounds = [0, *cuts, len(self.layers)]
        if any(b <= a for a, b in pairwise(bounds)):
            raise PipelagError(
                f"the cuts {list(cuts)} must increase strictly and lie between 1 and {len(self.layers) - 1}"
            )
        costs = []
        for number, (a, b) in enumerate(pairwise(bounds)):
            stage = self.layers[a:b]
            entering = self.layers[a - 1].output_bytes if a else 0  # received, and kept until the backward
            costs.append(
                StageCost(
                    forward=sum(layer.forward_ms for layer in stage) / 1e3 / microbatches,
                    backward=sum(layer.backward_ms for layer in stage) / 1e3 / microbatches,
                    update=update_ms[number] / 1e3 if update_ms else 0.0,
                    output_bytes=stage[-1].output_bytes / microbatches,
                    kept_bytes=(entering + sum(layer.kept_bytes for layer in stage)) / microbatches,
                    weight_bytes=sum(layer.weight_bytes for layer in stage),
                )
            )
        return costs

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read what `save` wrote; raises `PipelagError` where the file is not such a profile."""
        try:
            return cls(tuple(LayerTime(**json.loads(line)) for line in path.read_text().splitlines()))
        except (OSError, TypeError, json.JSONDecodeError) as error:
            raise PipelagError(f"'{path}' is not a profile that pipelag saved ({error})") from error


def profile(
    model: nn.Sequential | Sequence[nn.Module],
    batch: Any,
    repeats: int = 10,
    warmup: int = 2,
    progress: bool = False,
) -> Profile:
    """Time every layer's forward and backward on `batch`, the model's input, where the model is.

    As in training, all forwards come first and their activations stay until the backwards, which run from the last
    layer to the first on the gradients they hand down: timed alone, a layer would find its tensors in the cache and
    its memory freshly freed. A layer's backward computes the gradients of its parameters and, but for the first
    layer, of its input. Medians over `repeats` rounds, so a disturbance spoils a round, not a layer. Buffers
    (batch-norm statistics) are put back. The process keeps freed memory from here on (`pipelag.allocator`).
    """
    keep_freed_memory()
    layers = list(model)
    sizes = _sizes(layers, batch)
    buffers = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
    forward: list[list[float]] = [[] for _ in layers]
    backward: list[list[float]] = [[] for _ in layers]
    for turn in tqdm(range(warmup + repeats), unit="round", desc="profile", disable=not progress):
        kept: list[tuple[Any, Any]] = []
        value: Any = batch
        for index, layer in enumerate(layers):
            received = _detached(value, differentiable=index > 0)
            start = _now(value)
            value = layer(received)
            forward[index].append(1e3 * (_now(value) - start))
            kept.append((received, value))
        gradients = [torch.randn_like(t) for t in _tuple(value) if t.requires_grad]
        for index in reversed(range(len(layers))):
            received, value = kept.pop()
            outputs = [t for t in _tuple(value) if t.requires_grad]
            start = _now(value)
            if outputs:
                torch.autograd.backward(outputs, gradients)
            backward[index].append(1e3 * (_now(value) - start))
            gradients = [_gradient(t) for t in _tuple(received) if t.requires_grad]
        for layer in layers:
            layer.zero_grad(set_to_none=True)
        if turn < warmup:
            forward, backward = [[] for _ in layers], [[] for _ in layers]
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    names = [getattr(layer, "label", type(layer).__name__) for layer in layers]
    times = zip(names, forward, backward, strict=True)
    return Profile(
        tuple(LayerTime(i, n, median(f), median(b), *sizes[i - 1]) for i, (n, f, b) in enumerate(times, start=1))
    )


def _sizes(layers: Sequence[nn.Module], batch: Any) -> list[tuple[int, int, int]]:
    """(output, kept, weight) bytes per layer, from one forward pass whose effects on buffers are undone."""
    buffers = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
    sizes, value = [], batch
    for index, layer in enumerate(layers):
        received = _detached(value, differentiable=index > 0)
        own = {p.untyped_storage().data_ptr() for p in layer.parameters()}
        known = own | {t.untyped_storage().data_ptr() for t in _tuple(received)}
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor, known: set[int] = known, kept: dict[int, int] = kept) -> torch.Tensor:
            place = tensor.untyped_storage().data_ptr()
            if place not in known:
                kept[place] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            value = layer(received)
        # The output that the next layer keeps as its input is counted there, as this layer's output.
        outputs = {t.untyped_storage().data_ptr() for t in _tuple(value)}
        out = sum(t.numel() * t.element_size() for t in _tuple(value))
        inside = sum(size for place, size in kept.items() if place not in outputs)
        last = index == len(layers) - 1
        weights = sum(p.numel() * p.element_size() for p in layer.parameters())
        sizes.append((out, inside + (0 if last else out), weights))
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    return sizes


def balanced_cuts(profile: Profile, stages: int, per_boundary_ms: float = 0.0) -> tuple[int, ...]:
    """The cuts that make the slowest of `stages` contiguous stages as fast as possible (exact, by dynamic program).

    Args:
        per_boundary_ms: what sending and receiving at a boundary costs each of its two stages.

    Raises:
        PipelagError: more stages than layers.
    """
    times = [layer.total_ms for layer in profile.layers]
    count = len(times)
    if not 1 <= stages <= count:
        raise PipelagError(f"{count} layers can be cut into 1 to {count} stages, not {stages}")
    prefix = [0.0]
    for t in times:
        prefix.append(prefix[-1] + t)
    # best[s][j]: (slowest stage, first layer of the last stage) of the first j layers in s stages
    best = [[(float("inf"), 0)] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = (0.0, 0)
    for s in range(1, stages + 1):
        extra = per_boundary_ms * ((s > 1) + (s < stages))
        for j in range(s, count + 1):
            best[s][j] = min((max(best[s - 1][i][0], prefix[j] - prefix[i] + extra), i) for i in range(s - 1, j))
    cuts, j = [], count
    for s in range(stages, 0, -1):
        j = best[s][j][1]
        cuts.append(j)
    return tuple(reversed(cuts[:-1]))


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _detached(value: Any, differentiable: bool) -> Any:
    copies = tuple(t.detach().requires_grad_(differentiable and t.is_floating_point()) for t in _tuple(value))
    return copies if isinstance(value, tuple) else copies[0]


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _now(value: Any) -> float:
    if _tuple(value)[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()
