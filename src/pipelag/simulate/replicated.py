"""Replicated stages, simulated: each stage has versions of its own, made once per round of its replicas.

Only weight stashing is defined for them (PipeDream section 3.2): both passes of a minibatch read the version that its
replica had at its forward. The statistics of batch norm are those of each stage's first replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.optim import set_rates
from pipelag.randomness import seed_stage
from pipelag.schedules.replicated import one_f_one_b_rounds, versions_read
from pipelag.tensors import unchanged_buffers
from pipelag.weights import FlatParameters, Versions

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


def check_replicable(method: Method, microbatches: int, recompute: bool | int) -> None:
    """Refuse methods and settings that replicated stages are not defined for."""
    if method.name != "pipedream":
        raise PipelagError(
            f"replicated stages are defined for PipeDream's weight stashing, not for '{method.name}'; use pipedream"
        )
    if microbatches > 1 or recompute:
        raise PipelagError("replicated stages take minibatches in one piece and keep their activations")


class ReplicatedPipeline:
    """One phase of a run over replicated stages; like `SimulatedPipeline`.

    Args:
        stages: the model cut into stages. replicas: workers of each. steps: minibatches, in whole rounds.
        optimizer: over all stages, a group per stage.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        replicas: Sequence[int],
        steps: int,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss,
        rate: Callable[[int], float],
        seed: int = 0,
        start: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self.stages, self.replicas, self.optimizer, self.loss = list(stages), tuple(replicas), optimizer, loss
        self.rate, self.seed, self.start = rate, seed, start
        self.device = device or next((p.device for s in stages for p in s.parameters()), torch.device("cpu"))
        self.read = versions_read(one_f_one_b_rounds(len(self.stages), steps, replicas))
        self.weights = [Versions(FlatParameters(stage.parameters())) for stage in self.stages]
        self.sums: list[list[torch.Tensor | None]] = [[None] * len(w.flat.parameters) for w in self.weights]

    def step(self, step: int, inputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Forward and backward of the run's minibatch number `step`, and the updates of the rounds that it ends."""
        m, value = step - self.start, inputs
        for number, (stage, weights) in enumerate(zip(self.stages, self.weights, strict=True), start=1):
            weights.show(self.read[number - 1][m])
            seed_stage(self.seed, step, number, self.device)
            with nullcontext() if m % self.replicas[number - 1] == 0 else unchanged_buffers(stage):
                value = stage(value)
        loss = self.loss(value, targets)
        loss.backward()
        ending = []
        for number, (weights, sums) in enumerate(zip(self.weights, self.sums, strict=True), start=1):
            count = self.replicas[number - 1]
            for place, parameter in enumerate(weights.flat.parameters):
                total, gradient = sums[place], parameter.grad
                sums[place] = gradient if total is None else total if gradient is None else total + gradient
                parameter.grad = None
            if (m + 1) % count == 0:
                ending.append(number)
                for place, parameter in enumerate(weights.flat.parameters):
                    total = sums[place]
                    parameter.grad = total / count if total is not None and count > 1 else total
                    sums[place] = None
        self.update(step, ending)
        for weights in self.weights:
            weights.show(weights.version)
        return loss.detach()

    def update(self, step: int, ending: list[int]) -> None:
        """The optimizer's step on the stages whose round is complete; the others have no gradients."""
        if self.optimizer is None:
            return
        common = self.rate(step)
        set_rates(self.optimizer, lambda stage: common)
        m, window = step - self.start, 2 * len(self.read) * max(self.replicas)  # more than can be under way
        for number in ending:
            weights = self.weights[number - 1]
            weights.show(weights.version)
            later = self.read[number - 1][m + 1 : m + 1 + window]
            weights.forget_before(min(later, default=weights.version))
            weights.keep()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for number in ending:
            self.weights[number - 1].updated()

    def state_dict(self) -> dict[str, Any]:
        """The versions kept and the gradients of unfinished rounds; weights and optimizer state are saved elsewhere."""
        return {
            "versions": [(weights.version, weights.kept) for weights in self.weights],
            "sums": self.sums,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore, after the model's weights."""
        self.sums = [[g if g is None else g.to(self.device) for g in stage] for stage in state["sums"]]
        for weights, (version, kept) in zip(self.weights, state["versions"], strict=True):
            weights.version = weights.shown = version
            weights.kept = {old: [buffer.to(self.device) for buffer in buffers] for old, buffers in kept.items()}
