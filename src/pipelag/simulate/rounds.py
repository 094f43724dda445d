"""Gradients of replicated stages, simulated: summed per replica over a round, then over the replicas, then the mean.

In this order real workers add them up, so that simulated and real agree bit for bit (two replicas; the sum over more
of them is made in another order by a real all-reduce).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipelag.schedules import Delays
from pipelag.stage.policy import StageWeights

Sums = list[list[list[torch.Tensor | None]]]  # per stage, replica and parameter


class Rounds:
    """The unfinished rounds of all stages."""

    def __init__(self, weights: Sequence[StageWeights], delays: Delays) -> None:
        self.weights, self.places, self.periods = weights, delays.places, delays.periods
        self.sums: Sums = [
            [[None] * len(w.flat.parameters) for _ in range(1 + max(place))]
            for w, place in zip(weights, self.places, strict=True)
        ]

    def collect(self, m: int) -> None:
        """Take the gradients that microbatch m has made."""
        for weights, sums, place in zip(self.weights, self.sums, self.places, strict=True):
            row = sums[place[m % len(place)]]
            for at, parameter in enumerate(weights.flat.parameters):
                before, gradient = row[at], parameter.grad
                row[at] = gradient if before is None else before if gradient is None else before + gradient
                parameter.grad = None

    def ending(self, t: int, microbatches: int) -> list[int]:
        """The stages whose round minibatch t ends, their parameters given the round's mean gradient."""
        done, ending = (t + 1) * microbatches, []
        for index, (weights, sums, period) in enumerate(zip(self.weights, self.sums, self.periods, strict=True)):
            if done % period:
                continue
            ending.append(index)
            minibatches = period // microbatches
            for at, parameter in enumerate(weights.flat.parameters):
                total: torch.Tensor | None = None
                for row in sums:
                    gradient, row[at] = row[at], None
                    total = gradient if total is None else total if gradient is None else total + gradient
                parameter.grad = total / minibatches if total is not None and minibatches > 1 else total
        return ending

    def restore(self, sums: Sums, device: torch.device) -> None:
        """Go on inside a round."""
        self.sums = [[[g if g is None else g.to(device) for g in row] for row in stage] for stage in sums]
