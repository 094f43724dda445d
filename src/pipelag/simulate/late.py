"""Gradients that arrive a random number of updates late, each stage's by a delay of its own (PipeMare, equation 16)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import torch

from pipelag.methods import Method
from pipelag.methods.random_delays import RandomDelays
from pipelag.stage.policy import StageWeights

Gradients = list[list[torch.Tensor | None]]  # of a minibatch, per stage and parameter


class LateGradients:
    """The last minibatches' gradients, newest first.

    Args:
        taus: per stage, the delay from which the law's mean and bound are computed (`Method.taus`).
        weights: all stages.
    """

    def __init__(self, law: RandomDelays, taus: Sequence[int], seed: int, weights: Sequence[StageWeights]) -> None:
        self.law, self.taus, self.seed, self.weights = law, taus, seed, weights
        self.kept: deque[Gradients] = deque(maxlen=law.bound(taus) + 1)

    @classmethod
    def of(cls, method: Method, stages: int, seed: int, weights: Sequence[StageWeights]) -> LateGradients | None:
        """Those of a method over so many stages; None if the method does not draw delays of the gradient."""
        law = method.random
        if law is None or law.of != "gradient":
            return None
        return cls(law, method.taus(stages), seed, weights)

    def exchange(self, t: int) -> None:
        """Keep minibatch t's gradient, and give each stage its block of an older one."""
        self.kept.appendleft([[p.grad for p in weights.flat.parameters] for weights in self.weights])
        drawn = self.law.draw(self.taus, self.seed, t)
        for index, (weights, delay) in enumerate(zip(self.weights, drawn, strict=True)):
            for parameter, gradient in zip(weights.flat.parameters, self.kept[min(t, delay)][index], strict=True):
                # A copy: the optimizer may write into the gradient, and a later step may use it again.
                parameter.grad = None if gradient is None else gradient.clone()

    def restore(self, kept: Iterable[Gradients], device: torch.device) -> None:
        """Continue with the gradients that a checkpoint holds."""
        self.kept.clear()
        self.kept.extend([[g if g is None else g.to(device) for g in stage] for stage in each] for each in kept)
