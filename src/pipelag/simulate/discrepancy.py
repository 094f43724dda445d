"""How far the weights that passes read are from the ones they should have read: measured while a run goes.

Two questions, on every `every`-th minibatch of a phase:

* per stage, the root mean square of (forward's weights - the weights that the minibatch's own update starts from), and
  of (forward's - backward's weights): staleness and discrepancy as distances, for any method. Of a minibatch in several
  microbatches those of the first, whose forward reads the oldest weights: the delay that papers print is its own. Where
  gradients are late and passes read live weights (`hogwild`), both are 0, and say nothing of that delay;
* for methods that predict, SpecTrain's figure 9: RMSE of the weights foreseen s updates ahead against the true ones,
  beside RMSE of the weights as they were s updates ago, for each s of `horizons`.
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
    """Watches one phase's pipeline. `row` gives the means since the last call."""

    def __init__(self, pipeline: SimulatedPipeline, horizons: tuple[int, ...] = (), every: int = 10) -> None:
        self.pipeline, self.horizons, self.every = pipeline, horizons, every
        self.sizes = [sum(p.numel() for p in weights.flat.parameters) for weights in pipeline.weights]
        self.foreseen: dict[int, list[tuple[int, list[Buffers], list[Buffers]]]] = {}
        self.seen: dict[int, Buffers] = {}
        self.sums: dict[Any, float] = {}
        self.most: dict[Any, float] = {}
        self.counts: dict[Any, int] = {}
        pipeline.observe = self.observe

    def add(self, key: Any, value: float) -> None:
        """Count a measured value."""
        self.sums[key] = self.sums.get(key, 0.0) + value
        self.counts[key] = self.counts.get(key, 0) + 1
        self.most[key] = max(self.most.get(key, 0.0), value)

    def observe(self, kind: str, t: int, index: int) -> None:
        """The pipeline has loaded what stage `index` reads in minibatch t's forward or backward, or ("U") its own.

        Of several microbatches it tells of the first.
        """
        weights = self.pipeline.weights[index]
        if kind == "start":
            self._compare(t)
            if t % self.every == 0:
                self._foresee(t)
        elif t % self.every:
            return
        elif kind == "F":
            self.seen[index] = [buffer.clone() for buffer in weights.showing.buffers]
        else:
            self.add((kind, index), rms(self.seen[index], weights.showing.buffers, self.sizes[index]))

    def _predicting(self) -> list[int]:
        return [index for index, weights in enumerate(self.pipeline.weights) if weights.prediction is not None]

    def _foresee(self, t: int) -> None:
        """What the weights will be s updates from now, and what they are, to be compared then."""
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
        """For a log line: means, and for predictions the greatest value too, since the last call."""
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
        """Between two steps: what was measured since the last row, and what is foreseen and still to be compared."""
        return {name: getattr(self, name) for name in ("sums", "most", "counts", "foreseen")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.sums, self.most, self.counts = dict(state["sums"]), dict(state["most"]), dict(state["counts"])
        place = self.pipeline.device
        self.foreseen = tree_map(lambda v: v.to(place) if isinstance(v, torch.Tensor) else v, state["foreseen"])
