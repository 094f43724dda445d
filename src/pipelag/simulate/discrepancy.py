"""Measures during a run how far the weights that passes read are from those that they should have read.

On every `every`-th minibatch of a phase it measures:

* for any method and stage, staleness and discrepancy as distances: the root mean square of (weights that the forward
  reads - weights that the minibatch's own update starts from), and of (weights that the forward reads - weights that
  the backward reads). In a minibatch of several microbatches these are the first one's, whose forward reads the oldest
  weights; the delays that papers print are its delays. In `hogwild` and `hogwild_t1`, gradients are late but passes
  read live weights, so both distances are 0 and say nothing about the delay;
* for methods that predict, SpecTrain's figure 9: for each s of `horizons`, the RMSE of the weights predicted s updates
  ahead against the true ones, beside the RMSE of the weights as they were s updates before.

A step that is interrupted and then taken again counts once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from pipelag.simulate.pipeline import SimulatedPipeline

Buffers = list[torch.Tensor]


def rms(a: Buffers, b: Buffers, count: int) -> float:
    """Root mean square of a - b over `count` weights (padding between parameters is equal in both)."""
    squares = sum(float((x - y).double().square().sum()) for x, y in zip(a, b, strict=True))
    return (squares / max(1, count)) ** 0.5


class Discrepancy:
    """Measures one phase's pipeline. `row` returns the means since its last call."""

    def __init__(self, pipeline: SimulatedPipeline, horizons: tuple[int, ...] = (), every: int = 10) -> None:
        self.pipeline, self.horizons, self.every = pipeline, horizons, every
        self.sizes = [sum(p.numel() for p in weights.flat.parameters) for weights in pipeline.weights]
        self.foreseen: dict[int, list[tuple[int, list[Buffers], list[Buffers]]]] = {}
        self.seen: dict[int, Buffers] = {}
        self.begun = -1  # the minibatch that was begun last
        self.passes: list[tuple[Any, float]] = []  # measured in this minibatch, which may be interrupted
        self.sums: dict[Any, float] = {}
        self.most: dict[Any, float] = {}
        self.counts: dict[Any, int] = {}
        pipeline.observe = self.observe

    def add(self, key: Any, value: float) -> None:
        """Add a measured value to its mean and maximum."""
        self.sums[key] = self.sums.get(key, 0.0) + value
        self.counts[key] = self.counts.get(key, 0) + 1
        self.most[key] = max(self.most.get(key, 0.0), value)

    def observe(self, kind: str, t: int, index: int) -> None:
        """Called by the pipeline in minibatch t when stage `index` has loaded the weights of a pass.

        `kind`: forward ("F") or backward ("B"), of several microbatches the first; before the update ("U"), when the
        live weights are loaded; and once at the minibatch's start ("start") and end ("end").
        """
        weights = self.pipeline.weights[index]
        if kind == "start":
            self.passes.clear()
            if t == self.begun:  # taken again, perhaps with old weights in place of the live ones; this part is done
                return
            self._compare(t)
            if t % self.every == 0:
                self._foresee(t)
            self.begun = t
        elif kind == "end":
            for key, value in self.passes:
                self.add(key, value)
            self.passes.clear()
        elif t % self.every:
            return
        elif kind == "F":
            self.seen[index] = [buffer.clone() for buffer in weights.showing.buffers]
        else:
            distance = rms(self.seen[index], weights.showing.buffers, self.sizes[index])
            self.passes.append(((kind, index), distance))

    def _predicting(self) -> list[int]:
        return [index for index, weights in enumerate(self.pipeline.weights) if weights.prediction is not None]

    def _foresee(self, t: int) -> None:
        """Predict the weights s updates ahead, and keep the present ones, to compare both with the true ones then."""
        stages = self._predicting()
        for s in self.horizons if stages else ():
            predicted, stale = [], []
            for index in stages:
                weights = self.pipeline.weights[index]
                out = [torch.zeros_like(buffer) for buffer in weights.live]
                assert weights.prediction is not None
                weights.prediction.write(out, s)
                predicted.append(out)
                stale.append([buffer.clone() for buffer in weights.live])
            self.foreseen.setdefault(t + s, []).append((s, predicted, stale))

    def _compare(self, t: int) -> None:
        for s, predicted, stale in self.foreseen.pop(t, ()):
            live = [buffer for index in self._predicting() for buffer in self.pipeline.weights[index].live]
            count = sum(self.sizes[index] for index in self._predicting())
            self.add(("predicted", s), rms([b for part in predicted for b in part], live, count))
            self.add(("stale", s), rms([b for part in stale for b in part], live, count))

    def row(self) -> dict[str, Any]:
        """A row for the log: the means since the last call, and for predictions the maxima."""
        mean = {key: total / self.counts[key] for key, total in self.sums.items()}
        stages = range(len(self.sizes))
        row: dict[str, Any] = {
            "forward_distance": [mean.get(("U", index), 0.0) for index in stages],
            "discrepancy": [mean.get(("B", index), 0.0) for index in stages],
        }
        for s in self.horizons:
            if ("predicted", s) in mean:
                row |= {f"rmse_predicted_{s}": mean["predicted", s], f"rmse_stale_{s}": mean["stale", s]}
                row |= {f"rmse_{kind}_{s}_most": self.most[kind, s] for kind in ("predicted", "stale")}
        self.sums, self.most, self.counts = {}, {}, {}
        return row

    def state_dict(self) -> dict[str, Any]:
        """The state between two steps: measurements since the last row, and predictions that wait to be compared."""
        return {name: getattr(self, name) for name in ("sums", "most", "counts", "foreseen")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.begun, self.passes = -1, []
        self.sums, self.most, self.counts = dict(state["sums"]), dict(state["most"]), dict(state["counts"])
        place = self.pipeline.device
        self.foreseen = tree_map(lambda v: v.to(place) if isinstance(v, torch.Tensor) else v, state["foreseen"])
