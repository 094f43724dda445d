"""The layers of a model with their times and sizes, and the cut that balances them. No torch: results read profiles."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence, Sized
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import inf
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pipelag.errors import PipelagError, expect, shown
from pipelag.files import json_of, read_text, write_whole
from pipelag.timing.costs import StageCost
from pipelag.typed import Typed, checked

Milliseconds = Annotated[float, Field(ge=0, le=1e9)]
Bytes = Annotated[int, Field(ge=0, le=10**15)]


class LayerRow(Typed):
    """A line of a profile's file."""

    layer: int = Field(ge=1, le=100_000)
    name: str
    forward_ms: Milliseconds
    backward_ms: Milliseconds
    output_bytes: Bytes
    kept_bytes: Bytes
    weight_bytes: Bytes


@dataclass(frozen=True)
class LayerTime:
    """One layer: its number (from 1), its name, and the median milliseconds of a forward and a backward pass.

    In bytes: its output (which crosses the boundary where the model is cut after it), the tensors that autograd keeps
    for its backward besides weights and the layer's own input, and its weights.
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
    """The layers of a model, each timed on one minibatch: what `pipelag.profile` measures."""

    layers: tuple[LayerTime, ...]

    def save(self, path: Path | str) -> None:
        """Write as JSON lines, a line per layer."""
        expect("the profile's file", path, (str, PathLike), "a path")
        write_whole(Path(path), "".join(json.dumps(asdict(layer)) + "\n" for layer in self.layers))

    def cut(
        self,
        cuts: Sequence[int],
        microbatches: int = 1,
        update_ms: Sequence[float] | None = None,
        recompute: bool = False,
    ) -> list[StageCost]:
        """The costs of the stages that these cuts make ("after layer p", layers counted from 1).

        Args:
            microbatches: equal parts of the profiled minibatch; times and activations shrink in proportion.
            update_ms: per stage, where updates take time.
            recompute: a backward runs the forward again, and only the stage's input is kept for it.

        Raises:
            PipelagError: cuts out of order or range, no whole number of parts, or times for another number of stages.
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
            entering = self.layers[a - 1].output_bytes if a else 0  # received, and kept until the backward
            costs.append(
                StageCost(
                    forward=sum(layer.forward_ms for layer in stage) / 1e3 / microbatches,
                    backward=sum(layer.backward_ms + layer.forward_ms * recompute for layer in stage)
                    / 1e3
                    / microbatches,
                    update=update_ms[number] / 1e3 if update_ms else 0.0,
                    output_bytes=stage[-1].output_bytes / microbatches,
                    kept_bytes=(entering + (0 if recompute else sum(layer.kept_bytes for layer in stage)))
                    / microbatches,
                    weight_bytes=sum(layer.weight_bytes for layer in stage),
                    entering_bytes=entering / microbatches,
                )
            )
        return costs

    def scaled(self, factor: float) -> Profile:
        """For a minibatch `factor` times as large: times and activations in proportion, weights as they are."""
        check_factor(factor)
        return Profile(
            tuple(
                replace(
                    layer,
                    forward_ms=layer.forward_ms * factor,
                    backward_ms=layer.backward_ms * factor,
                    output_bytes=round(layer.output_bytes * factor),
                    kept_bytes=round(layer.kept_bytes * factor),
                )
                for layer in self.layers
            )
        )

    def faster(self, factor: float) -> Profile:
        """On a device `factor` times as fast: times in proportion, sizes as they are."""
        check_factor(factor)
        return Profile(
            tuple(
                replace(layer, forward_ms=layer.forward_ms / factor, backward_ms=layer.backward_ms / factor)
                for layer in self.layers
            )
        )

    @classmethod
    def load(cls, path: Path | str) -> Profile:
        """Read what `save` wrote; raises `PipelagError` where the file is not such a profile."""
        layers: list[LayerTime] = []
        expect("the profile's file", path, (str, PathLike), "a path")
        lines = read_text(Path(path), "a profile").removesuffix("\n").split("\n")  # a name may have other ends of lines
        for number, line in enumerate(lines if lines != [""] else [], start=1):
            where = f"'{path}' is not a profile that pipelag saved: line {number}"
            try:
                row = checked(LayerRow, json_of(line, "this"), "key of a layer")
            except PipelagError as error:
                raise PipelagError(f"{where}: {error}") from error
            if row.layer != number:
                raise PipelagError(f"{where} is of layer {row.layer}; it should be of layer {number}")
            layers.append(LayerTime(**row.model_dump()))
        if not layers:
            raise PipelagError(f"'{path}' is not a profile that pipelag saved: it holds no layers")
        return cls(tuple(layers))


def check_factor(factor: float) -> None:
    """Refuse what no profile can be multiplied or divided by."""
    if not (isinstance(factor, Real) and 0 < factor < inf):
        raise PipelagError(f"a profile's factor is {shown(factor)}; it should be a number above 0")


def balanced_cuts(profile: Profile, stages: int, per_boundary_ms: float = 0.0) -> tuple[int, ...]:
    """Find the cuts that make the slowest of `stages` stages as fast as possible (exact, by dynamic programming).

    Args:
        per_boundary_ms: milliseconds that sending and receiving at a boundary costs each of its two stages.

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
