"""The simulated executor: exact staleness on one device, at the cost of one model.

Minibatch t's gradient depends only on the weights that each stage read for it, and the stages see minibatches in
order. So the loop below, which takes one minibatch after the other through the whole model, computes exactly what a
pipeline computes: stage i's forward reads version max(0, t - forward delay), its backward version
max(0, t - backward delay), and the update makes version t+1. The delays come from the method's schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pipelag.methods import Method
from pipelag.optim import set_rates
from pipelag.randomness import seed_stage
from pipelag.weights import FlatParameters

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


class StageWeights:
    """The versions of one stage's weights that passes still to come will read: a ring of `delay + 1` copies."""

    def __init__(self, flat: FlatParameters, forward_delay: int, backward_delay: int) -> None:
        self.live = flat.buffers
        self.forward_delay, self.backward_delay = forward_delay, backward_delay
        self.depth = max(forward_delay, backward_delay) + 1
        copies = self.depth if self.depth > 1 else 0  # without delay the live weights are all there is
        self.ring = [[torch.zeros_like(buffer) for buffer in self.live] for _ in range(copies)]

    def slot(self, version: int) -> list[torch.Tensor]:
        """Where a version is kept (it must be one of the newest `depth`)."""
        return self.ring[version % self.depth]


class SimulatedPipeline:
    """One phase of a run: `step` takes a minibatch through all stages with the versions each would read.

    Args:
        stages: the model cut into stages, in order. Their parameters become views of flat buffers.
        method: decides the staleness.
        optimizer: over the stages' parameters, one group per stage (`pipelag.optim.group_by_stage`).
        loss: (output of the last stage, targets) -> scalar.
        rate: the factor on all base rates at a step of the *run*.
        seed: of dropout; draws are made per (seed, minibatch, stage).
        start: the step of the run at which this phase starts; its first minibatch reads version 0 of the phase.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        method: Method,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss,
        rate: Callable[[int], float],
        seed: int = 0,
        start: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self.stages, self.method, self.optimizer, self.loss = list(stages), method, optimizer, loss
        self.rate, self.seed, self.start = rate, seed, start
        self.delays = method.delays(len(self.stages))
        self.device = device or next((p.device for s in stages for p in s.parameters()), torch.device("cpu"))
        self.weights = [
            StageWeights(FlatParameters(stage.parameters()), forward, backward)
            for stage, forward, backward in zip(self.stages, self.delays.forward, self.delays.backward, strict=True)
        ]
        self.delayed = [weights for weights in self.weights if weights.depth > 1 and weights.live]

    def step(self, step: int, inputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Forward, backward and update for the run's minibatch number `step`; returns the detached loss.

        The caller must take the steps of a phase in order.
        """
        t = step - self.start
        for weights in self.delayed:
            torch._foreach_copy_(weights.slot(t), weights.live)
            torch._foreach_copy_(weights.live, weights.slot(max(0, t - weights.forward_delay)))
        value = inputs
        for number, stage in enumerate(self.stages, start=1):
            seed_stage(self.seed, step, number, self.device)
            value = stage(value)
        loss = self.loss(value, targets)
        for weights in self.delayed:
            if weights.backward_delay != weights.forward_delay:
                torch._foreach_copy_(weights.live, weights.slot(max(0, t - weights.backward_delay)))
        loss.backward()
        for weights in self.delayed:
            if weights.backward_delay:
                torch._foreach_copy_(weights.live, weights.slot(t))
        self.update(step)
        return loss.detach()

    def update(self, step: int) -> None:
        """Version t -> t+1 of every stage, at this step's rates."""
        if self.optimizer is None:
            return
        common = self.rate(step)
        policy, stages = self.method.learning_rate, len(self.stages)
        if policy is None:
            set_rates(self.optimizer, lambda stage: common)
        else:
            phase_step = step - self.start
            set_rates(
                self.optimizer,
                lambda stage: common * policy(stage, stages, phase_step, self.delays.forward[stage - 1]),
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """The rings; weights and optimizer state are the model's and the optimizer's own."""
        return {"rings": [weights.ring for weights in self.weights]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the rings (in place)."""
        for weights, ring in zip(self.weights, state["rings"], strict=True):
            for slot, saved in zip(weights.ring, ring, strict=True):
                torch._foreach_copy_(slot, [tensor.to(self.device) for tensor in saved])
