"""Profiles, a model's layers with their times and sizes, and the cuts that balance them.

This module does without torch, because results read profiles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence, Sized
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from math import inf
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from pipelag.errors import PipelagError, expect, shown
from pipelag.files import json_of, read_text, write_whole
from pipelag.timing.costs import StageCost
from pipelag.typed import Typed, checked

if TYPE_CHECKING:
    import numpy as np

BLOCK = 64  # the columns of a dynamic program that are computed at once

Milliseconds = Annotated[float, Field(ge=0, le=1e9)]
Bytes = Annotated[int, Field(ge=0, le=10**15)]


class LayerRow(Typed):
    """One line of a profile's file."""

    layer: int = Field(ge=1, le=100_000)
    name: str
    forward_ms: Milliseconds
    backward_ms: Milliseconds
    output_bytes: Bytes
    kept_bytes: Bytes
    weight_bytes: Bytes
    weight_ms: Milliseconds | None = None
    split_ms: Milliseconds = 0.0
    gradient_bytes: Bytes | None = None
    freed_bytes: Bytes = 0


@dataclass(frozen=True)
class LayerTime:
    """One layer: its number (from 1), its name, its times and its sizes.

    forward_ms, backward_ms: median milliseconds of a pass.
    output_bytes: what crosses the boundary if the model is cut after this layer.
    kept_bytes: the tensors that autograd keeps for the backward, besides the weights and the layer's input.
    weight_bytes: the layer's weights.
    weight_ms: the gradients of the weights alone (W), where a schedule computes them apart; None: unknown.
    split_ms: what a backward in two parts takes more than `backward_ms`; so B takes the sum of both less `weight_ms`.
    gradient_bytes: the gradients of outputs, the layer's or those inside it, that such a backward keeps from B to W;
        None: unknown.
    freed_bytes: the part of `kept_bytes` that is free after B, if no later layer of the stage keeps gradients for W
        (otherwise autograd keeps all of it until W); 0 of the first layer, whose whole backward is W's.
    """

    layer: int
    name: str
    forward_ms: float
    backward_ms: float
    output_bytes: int = 0
    kept_bytes: int = 0
    weight_bytes: int = 0
    weight_ms: float | None = None
    split_ms: float = 0.0
    gradient_bytes: int | None = None
    freed_bytes: int = 0

    @property
    def total_ms(self) -> float:
        """Forward plus backward."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True)
class Profile:
    """The layers of a model, each timed on one minibatch: what `pipelag.profile` measures."""

    layers: tuple[LayerTime, ...]

    def save(self, path: Path | str) -> None:
        """Write the profile as JSON lines, one line per layer."""
        expect("the profile's file", path, (str, PathLike), "a path")
        write_whole(Path(path), "".join(json.dumps(asdict(layer)) + "\n" for layer in self.layers))

    def cut(
        self,
        cuts: Sequence[int],
        microbatches: int = 1,
        update_ms: Sequence[float] | None = None,
        recompute: bool = False,
    ) -> list[StageCost]:
        """The costs of the stages that these cuts make.

        Args:
            cuts: each cut is the number (from 1) of the layer before it.
            microbatches: the number of equal parts of the profiled minibatch; times and activations are divided by it.
            update_ms: milliseconds of an update, one per stage; None: updates take no time.
            recompute: a backward first runs the forward again, so that a stage keeps only its input.

        Raises:
            PipelagError: cuts out of order or range, no whole number of microbatches, or times for another number of
                stages.
        """
        asked: Any = list(cuts) if isinstance(cuts, Iterable) else cuts
        whole = isinstance(asked, list) and all(isinstance(cut, Integral) for cut in asked)
        bounds = [0, *asked, len(self.layers)] if whole else []
        if not whole or any(b <= a for a, b in pairwise(bounds)):
            raise PipelagError(f"the cuts {asked} must increase strictly and lie between 1 and {len(self.layers) - 1}")
        if not isinstance(microbatches, Integral) or microbatches < 1:
            raise PipelagError(f"microbatches is {shown(microbatches)}; it should be a whole number from 1 on")
        several = isinstance(update_ms, Sized) and len(update_ms) == len(bounds) - 1
        if update_ms is not None and not (several and all(isinstance(one, Real) for one in update_ms)):
            raise PipelagError(
                f"update_ms is {shown(update_ms)}; it should be a time for each of the {len(bounds) - 1} stages"
            )
        costs = []
        for number, (a, b) in enumerate(pairwise(bounds)):
            stage = self.layers[a:b]
            apart = [layer.weight_ms for layer in stage]
            backward = sum(layer.backward_ms + layer.forward_ms * recompute for layer in stage) / 1e3 / microbatches
            # The first stage has no inputs to compute gradients of: its backward stays in one piece, and W, which may
            # take longer than that in a small layer, takes no longer than the stage's backward.
            splitting = sum(layer.split_ms for layer in stage) / 1e3 / microbatches if number else 0.0
            both = backward + splitting
            weights = None if None in apart else min(sum(apart) / 1e3 / microbatches, both)  # type: ignore[arg-type]
            entering = self.layers[a - 1].output_bytes if a else 0  # received, and kept until the backward
            kept, freed = [one.kept_bytes for one in stage], [one.freed_bytes for one in stage]
            gradients = [one.gradient_bytes for one in stage]
            later = kept_until_w(entering, kept, freed, gradients, stage[-1].output_bytes, first=not a)
            costs.append(
                StageCost(
                    forward=sum(layer.forward_ms for layer in stage) / 1e3 / microbatches,
                    backward=backward,
                    update=update_ms[number] / 1e3 if update_ms else 0.0,
                    output_bytes=stage[-1].output_bytes / microbatches,
                    kept_bytes=(entering + (0 if recompute else sum(kept))) / microbatches,
                    weight_bytes=sum(layer.weight_bytes for layer in stage),
                    entering_bytes=entering / microbatches,
                    weight_gradient=weights,
                    splitting=splitting,
                    until_w_bytes=None if None in gradients else sum(later) / microbatches,
                )
            )
        return costs

    def scaled(self, factor: float) -> Profile:
        """The profile for a minibatch `factor` times as large: times and activations grow with it, weights do not."""
        check_factor(factor)
        return Profile(
            tuple(
                replace(
                    layer,
                    forward_ms=layer.forward_ms * factor,
                    backward_ms=layer.backward_ms * factor,
                    weight_ms=None if layer.weight_ms is None else layer.weight_ms * factor,
                    split_ms=layer.split_ms * factor,
                    output_bytes=round(layer.output_bytes * factor),
                    kept_bytes=round(layer.kept_bytes * factor),
                    gradient_bytes=None if layer.gradient_bytes is None else round(layer.gradient_bytes * factor),
                    freed_bytes=round(layer.freed_bytes * factor),
                )
                for layer in self.layers
            )
        )

    def faster(self, factor: float) -> Profile:
        """The profile on a device `factor` times as fast: times are divided by it, sizes stay."""
        check_factor(factor)
        return Profile(
            tuple(
                replace(
                    layer,
                    forward_ms=layer.forward_ms / factor,
                    backward_ms=layer.backward_ms / factor,
                    weight_ms=None if layer.weight_ms is None else layer.weight_ms / factor,
                    split_ms=layer.split_ms / factor,
                )
                for layer in self.layers
            )
        )

    @classmethod
    def load(cls, path: Path | str) -> Profile:
        """Read a profile that `save` wrote.

        Raises:
            PipelagError: the file is no such profile.
        """
        layers: list[LayerTime] = []
        expect("the profile's file", path, (str, PathLike), "a path")
        # Not `splitlines`: a name may hold other line separators.
        lines = read_text(Path(path), "a profile").rstrip().split("\n")
        for number, line in enumerate(lines if lines != [""] else [], start=1):
            where = f"'{path}' is not a profile that pipelag saved: line {number}"
            try:
                row = checked(LayerRow, json_of(line, "this"), "key of a layer")
            except PipelagError as error:
                raise PipelagError(f"{where}: {error}") from error
            if row.layer != number:
                raise PipelagError(f"{where} is of layer {row.layer}; it should be of layer {number}")
            if (row.weight_ms or 0.0) > (row.backward_ms + row.split_ms) * (1 + 1e-9):
                raise PipelagError(
                    f"{where}: weight_ms is {row.weight_ms:g}, but it is a part of the backward, whose parts take "
                    f"{row.backward_ms + row.split_ms:g} ms together (backward_ms and split_ms)"
                )
            if row.freed_bytes > row.kept_bytes:
                raise PipelagError(
                    f"{where}: freed_bytes is {row.freed_bytes}, but it is a part of kept_bytes, which is "
                    f"{row.kept_bytes}"
                )
            layers.append(LayerTime(**row.model_dump()))
        if not layers:
            raise PipelagError(f"'{path}' is not a profile that pipelag saved: it holds no layers")
        return cls(tuple(layers))


def kept_until_w(
    entering: float,
    kept: Sequence[int],
    freed: Sequence[int],
    gradients: Sequence[int | None],
    leaving: float,
    first: bool,
) -> tuple[float, float, float]:
    """What a backward in two parts keeps of a microbatch from B to W.

    Args:
        entering, leaving: bytes of the stage's input and output.
        kept, freed, gradients: bytes per layer of the stage, as `LayerTime` has them.
        first: the stage is the pipeline's first one, whose whole backward is W's.

    Returns:
        Bytes of its input, of its activations and of gradients of outputs. The last are 0 if a layer's are unknown, and
        all activations then count until W.
    """
    if first or None in gradients:
        return entering, sum(kept), 0 if None in gradients else leaving
    late = max((number for number, size in enumerate(gradients, start=1) if size), default=0)
    if not late:  # B computes the gradients of all weights, and frees everything
        return 0, 0, 0
    return entering, sum(kept[:late]) - freed[late - 1], sum(size for size in gradients if size)


def check_factor(factor: float) -> None:
    """Refuse a factor that is not a finite number above 0."""
    if not (isinstance(factor, Real) and 0 < factor < inf):
        raise PipelagError(f"a profile's factor is {shown(factor)}; it should be a number above 0")


def balanced_cuts(
    profile: Profile, stages: int, per_boundary_ms: float = 0.0, crossing_ms: Sequence[float] = ()
) -> tuple[int, ...]:
    """Find the cuts that make the slowest of `stages` stages as fast as possible (exact, by dynamic programming).

    Args:
        per_boundary_ms: milliseconds that sending and receiving at a boundary costs each of its two stages.
        crossing_ms: per layer, the milliseconds that a link needs if a cut lies behind it. While a link sends, stages
            compute, so that the slowest stage or link counts. None are given: links take no time.

    Returns:
        The last layer of each stage but the last, counted from 1.

    Raises:
        PipelagError: `profile` is not a Profile, or `stages` is not a whole number from 1 to the number of layers.
    """
    expect("the profile", profile, Profile, "a pipelag.Profile, such as pipelag.profile(model, inputs)")
    times = [layer.total_ms for layer in profile.layers]
    count = len(times)
    if not isinstance(stages, Integral) or not 1 <= stages <= count:
        raise PipelagError(f"{count} layers can be cut into 1 to {count} stages, not {shown(stages)}")
    import numpy as np

    prefix = np.array([0.0, *accumulate(times)])
    # best[j]: the slowest stage of the first j layers in s stages; begins[s][j]: the layers before the last of these
    best, begins = np.full(count + 1, inf), np.zeros((stages + 1, count + 1), dtype=np.int64)
    best[0] = 0.0
    for s in range(1, stages + 1):
        before, extra = best, per_boundary_ms * ((s > 1) + (s < stages))
        if s > 1 and len(crossing_ms):
            before[1:] = np.maximum(before[1:], crossing_ms)
        best, begins[s] = one_stage_more(before, prefix, s - 1, extra)
    cuts, j = [], count
    for s in range(stages, 0, -1):
        j = int(begins[s, j])
        cuts.append(j)
    return tuple(reversed(cuts[:-1]))


def one_stage_more(
    before: np.ndarray, prefix: np.ndarray, first: int, extra: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """For every number of first layers, from 0: the time of the slowest stage if another stage is the last of them, and
    the number of layers before that stage (of equally good ones the smallest).

    Args:
        before: [layers + 1], the time of the slowest stage without it.
        prefix: [layers + 1], the time of the first layers in all.
        first: the least number of layers before it.
        extra: what is added to its time.
    """
    import numpy as np

    count = len(prefix)
    best, begins = np.full(count, inf), np.zeros(count, dtype=np.int64)
    for j in range(first + 1, count, BLOCK):
        end = min(j + BLOCK, count)
        slowest = np.maximum(before[first : end - 1], prefix[j:end, None] - prefix[first : end - 1] + extra)
        slowest[:, j - first :][np.triu_indices(end - j, 0, end - 1 - j)] = inf  # no layer is left for the last stage
        at = slowest.argmin(axis=1)
        best[j:end], begins[j:end] = slowest[np.arange(end - j), at], first + at
    return best, begins
