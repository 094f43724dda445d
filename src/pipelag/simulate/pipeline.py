"""The simulated executor: exact staleness on one device, at the cost of one model.

Minibatch t's gradient depends only on the weights that each stage read for it, and the stages see minibatches in
order. So the loop below, which takes one minibatch after the other through the whole model, computes exactly what a
pipeline computes: stage i's forward reads version max(0, t - forward lag), its backward version
max(0, t - backward lag), and the update makes version t+1. The lags come from the method's schedule, one per microbatch
of a minibatch; what a pass makes of its version (a prediction, a correction) is `pipelag.policy`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pipelag.data.split import split
from pipelag.methods import Method
from pipelag.optim import set_rates
from pipelag.policy import StageWeights
from pipelag.randomness import seed_stage
from pipelag.recompute import backward_through, fresh, recompute_lags, segments_of
from pipelag.tensors import unchanged_buffers
from pipelag.weights import FlatParameters

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


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
        microbatches: equal parts of a minibatch, whose mean gradient makes the update.
        recompute: run each stage's forward again right before its backward; or that of so many stages at a time, from
            the input of the first (`pipelag.recompute`).
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
        microbatches: int = 1,
        recompute: bool | int = False,
    ) -> None:
        self.stages, self.method, self.optimizer, self.loss = list(stages), method, optimizer, loss
        self.rate, self.seed, self.start, self.microbatches = rate, seed, start, microbatches
        self.recompute = recompute
        count = len(self.stages)
        self.delays = method.delays(count, microbatches)
        self.taus = method.rate_taus(count, microbatches)
        self.device = device or next((p.device for s in stages for p in s.parameters()), torch.device("cpu"))
        self.weights = []
        # Of random delays of the gradient: those of the last minibatches, newest first, per stage and parameter.
        self.old_gradients: deque[list[list[torch.Tensor | None]]] | None = None
        if method.random is not None and method.random.of == "gradient":
            self.old_gradients = deque(maxlen=method.random.bound(method.taus(count)) + 1)
        for number, stage in enumerate(self.stages, start=1):
            flat = FlatParameters(stage.parameters())
            back = max(*self.delays.forward_lags[number - 1], *self.delays.backward_lags[number - 1])
            back = 0 if self.old_gradients is not None else back
            self.weights.append(
                StageWeights(flat, method, number, count, self.delays, optimizer, flat.parameters, back)
            )
        self.heads: set[int] = set()
        self.segments = segments_of(count, int(recompute)) if recompute > 1 else []
        self.again: list[tuple[int, ...]] = []  # per stage and microbatch, how old what a recomputation reads is
        if self.segments:
            self.heads = {segment[0] for segment in self.segments}
            self.again = recompute_lags(method, count, microbatches, int(recompute))
            for weights, again in zip(self.weights, self.again, strict=True):
                weights.correct_recomputation(again)
        self.observe: Callable[[str, int, int], None] | None = None  # `Discrepancy` looks on
        self.moved = [(number, weights) for number, weights in enumerate(self.weights) if weights.plain]

    def step(self, step: int, inputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Forward, backward and update for the run's minibatch number `step`; returns the detached loss.

        The caller must take the steps of a phase in order.
        """
        t = step - self.start
        total: torch.Tensor | None = None
        self.set_rates(step)
        for _, weights in self.moved:
            weights.prepare()
        if self.observe is not None:
            self.observe("start", t, 0)
        drawn = self._drawn(t)
        parts = zip(split(inputs, self.microbatches), split(targets, self.microbatches), strict=True)
        for j, (value, target) in enumerate(parts):
            forward = drawn or [lags[j] for lags in self.delays.forward_lags]
            backward = drawn or [lags[j] for lags in self.delays.backward_lags]
            for index, weights in self.moved:
                weights.load("F", max(0, t - forward[index]), j)
            if self.observe is not None and j == 0:
                for index, _ in self.moved:
                    self.observe("F", t, index)
            m = step * self.microbatches + j
            entering = []
            for number, stage in enumerate(self.stages, start=1):
                if self.recompute:
                    value = value if self.segments and number not in self.heads else fresh(value)
                    entering.append(value)
                seed_stage(self.seed, m, number, self.device)
                value = stage(value)
            loss = self._loss(value, target)
            if self.segments:
                self._recomputed_by_segments(entering, target, m, t, j)
                total = loss.detach() if total is None else total + loss.detach()
                continue
            for index, weights in self.moved:
                weights.load("B", max(0, t - backward[index]), j)
            if self.observe is not None and j == 0:
                for index, _ in self.moved:
                    self.observe("B", t, index)
            if self.recompute:
                self._recomputed(entering, target, m)
            else:
                loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        self.update(step)
        assert total is not None
        return total

    def _loss(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """A microbatch's part of the minibatch's mean loss."""
        loss = self.loss(output, target)
        return loss / self.microbatches if self.microbatches > 1 else loss

    def _recomputed(self, entering: list[Any], target: torch.Tensor, m: int) -> None:
        """The backward of microbatch m from the stages' inputs: last stage first, each forward run again."""
        gradients: tuple[torch.Tensor | None, ...] = (None,)
        for number in range(len(self.stages), 0, -1):
            stage, inputs = self.stages[number - 1], entering[number - 1]
            seed_stage(self.seed, m, number, self.device)
            with unchanged_buffers(stage):
                output = stage(inputs)
            if number == len(self.stages):
                output = self._loss(output, target)
            gradients = backward_through(output, gradients, inputs)

    def _recomputed_by_segments(self, entering: list[Any], target: torch.Tensor, m: int, t: int, j: int) -> None:
        """The backward of microbatch m, the j-th of minibatch t: a segment's forward again, then its backward.

        The segment's stages recompute with the weights of their own times, and the backward reads what it always does.
        """
        gradients: tuple[torch.Tensor | None, ...] = (None,)
        for segment in reversed(self.segments):
            for number in segment:
                self.weights[number - 1].load("R", max(0, t - self.again[number - 1][j]), j)
            value = inputs = entering[segment[0] - 1]
            for number in segment:
                seed_stage(self.seed, m, number, self.device)
                with unchanged_buffers(self.stages[number - 1]):
                    value = self.stages[number - 1](value)
            if segment[-1] == len(self.stages):
                value = self._loss(value, target)
            for number in segment:
                self.weights[number - 1].load("B", max(0, t - self.delays.backward_lags[number - 1][j]), j)
            gradients = backward_through(value, gradients, inputs)

    def _drawn(self, t: int) -> list[int]:
        """The random ages of the weights that minibatch t reads, per stage; none where delays are not random."""
        law = self.method.random
        if law is None or law.of == "gradient":
            return []
        return law.draw(self.method.taus(len(self.stages)), self.seed, t)

    def _exchange_gradients(self, t: int) -> None:
        """Keep minibatch t's gradient, and give each stage its part of an older one (PipeMare, equation 16)."""
        law, kept = self.method.random, self.old_gradients
        assert law is not None and kept is not None
        kept.appendleft([[p.grad for p in weights.flat.parameters] for weights in self.weights])
        drawn = law.draw(self.method.taus(len(self.stages)), self.seed, t)
        for index, (weights, delay) in enumerate(zip(self.weights, drawn, strict=True)):
            for parameter, gradient in zip(weights.flat.parameters, kept[min(t, delay)][index], strict=True):
                parameter.grad = gradient

    def update(self, step: int) -> None:
        """Version t -> t+1 of every stage, at this step's rates."""
        for index, weights in self.moved:
            weights.restore()
            if self.observe is not None:
                self.observe("U", step - self.start, index)
        if self.optimizer is None:
            return
        if self.old_gradients is not None:
            self._exchange_gradients(step - self.start)
        for _, weights in self.moved:
            weights.before_step()
        self.optimizer.step()
        for _, weights in self.moved:
            weights.after_step()
        self.optimizer.zero_grad(set_to_none=True)

    def set_rates(self, step: int) -> None:
        """The stages' rates at a step of the run; predictions of this step's version go by them too."""
        if self.optimizer is None:
            return
        common = self.rate(step)
        policy, stages = self.method.learning_rate, len(self.stages)
        if policy is None:
            set_rates(self.optimizer, lambda stage: common)
        else:
            phase_step = step - self.start
            set_rates(self.optimizer, lambda stage: common * policy(stage, stages, phase_step, self.taus[stage - 1]))

    def state_dict(self) -> dict[str, Any]:
        """The versions kept; weights and optimizer state are the model's and the optimizer's own."""
        state: dict[str, Any] = {"weights": [weights.state_dict() for weights in self.weights]}
        if self.old_gradients is not None:
            state["gradients"] = list(self.old_gradients)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the versions (in place), after the weights and the optimizer's state."""
        for weights, saved in zip(self.weights, state["weights"], strict=True):
            weights.load_state_dict(saved)
        if self.old_gradients is not None:
            self.old_gradients.clear()
            self.old_gradients.extend(
                [[g if g is None else g.to(self.device) for g in stage] for stage in gradients]
                for gradients in state["gradients"]
            )
