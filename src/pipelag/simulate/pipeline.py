"""The simulated executor: exact staleness on one device, at the cost of one model.

Minibatch t's gradient depends only on the weights that each stage reads for it, and every stage takes minibatches in
order. A loop that takes one minibatch after another through the whole model therefore computes exactly what a pipeline
computes, if it gives each pass its weights: at stage i, the forward reads version max(0, t - forward lag), the backward
reads version max(0, t - backward lag), and the update makes version t+1. The lags come from the method's schedule, one
per microbatch of an update. Predictions and corrections of a version are made in `pipelag.stage.policy`. A stage with r
replicas updates once in r minibatches, so its t counts rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from pipelag.data.split import split
from pipelag.errors import PipelagError
from pipelag.randomness import seed_stage
from pipelag.simulate.graphs import Graphs
from pipelag.simulate.grouped import Grouped, Lags
from pipelag.simulate.late import LateGradients
from pipelag.simulate.layouts import Layouts
from pipelag.simulate.rounds import Buffers, Rounds
from pipelag.stage import together
from pipelag.stage.flat_step import FlatStep
from pipelag.stage.guard import Guard, Later, due
from pipelag.stage.optimizers import apart, others_code, set_rates
from pipelag.stage.phase import Phase
from pipelag.stage.policy import StageWeights
from pipelag.stage.recompute import Gradients, backward_through, fresh, segments_of
from pipelag.stage.rounded import Examined, Masters, computing, differentiating, flat_of, lent, refuse_lost, unlike
from pipelag.stage.showing import BROKEN, Copies
from pipelag.stage.weights import publish
from pipelag.stage.where import noted
from pipelag.tensors import BuffersRead, apart_from_weights, crossing, entering, kept_whole, trainable

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


class SimulatedPipeline:
    """One phase of a run: `step` takes a minibatch through all stages, with the version that each pass would read.

    Args:
        stages: the model cut into stages, in order. Their parameters become views of flat buffers.
        phase: determines the staleness.
        optimizer: has the stages' parameters, in groups of one stage each (`pipelag.stage.optimizers.group_by_stage`).
        loss: (output of the last stage, targets) -> scalar.
        rate: step of the *run* -> factor on all base rates.
        seed: for dropout; random numbers are drawn per (seed, minibatch, stage).
        start: the step of the run at which this phase starts; its first minibatch reads version 0 of the phase.
        spare_memory: True: if the phase recomputes, every stage does. False: only stages whose backward reads other
            weights than their forward recompute; at the others, the second forward would repeat the first bit for bit.
        masters: in bfloat16, rounded parameter -> the float32 master that the optimizer steps on.
        graphs: replay passes as CUDA graphs where possible (`pipelag.simulate.graphs`), with the same bits.
        grouped: let microbatches that read the same weights share passes (`pipelag.simulate.grouped`), with the same
            results but for rounding.
        to_come: what later phases would refuse about the layers.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        phase: Phase,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss,
        *,
        rate: Callable[[int], float],
        seed: int = 0,
        start: int = 0,
        device: torch.device | None = None,
        spare_memory: bool = True,
        masters: Masters | None = None,
        graphs: bool = False,
        grouped: bool = False,
        to_come: Later | None = None,
    ) -> None:
        self.stages, self.phase, self.optimizer, self.loss = list(stages), phase, optimizer, loss
        self.method, self.microbatches, self.recompute = phase.method, phase.microbatches, phase.recompute
        self.rate, self.seed, self.start, self.spare_memory = rate, seed, start, spare_memory
        count = len(self.stages)
        self.delays, self.periods = phase.delays, phase.delays.periods
        self.device = device or next((p.device for s in stages for p in s.parameters()), torch.device("cpu"))
        self.rounded = masters is not None
        self.computing = partial(computing, self.device, self.rounded)
        self.weights: list[StageWeights] = []
        self.late = LateGradients.of(self.method, count, seed, self.weights)
        groups = apart(optimizer)
        by_reference = not (graphs or grouped or self.recompute)
        for number, stage in enumerate(self.stages, start=1):
            flat = flat_of(stage.parameters(), masters, groups)
            back = max(*self.delays.forward_lags[number - 1], *self.delays.backward_lags[number - 1])
            back = 0 if self.late is not None else back
            self.weights.append(
                StageWeights(
                    flat, self.method, number, count, self.delays, optimizer, flat.parameters, back, by_reference
                )
            )
        self.flat_step = FlatStep(optimizer, self.weights)
        self.segments = segments_of(count, phase.segment) if phase.segment else []
        self.heads = {segment[0] for segment in self.segments}
        for weights, lags in zip(self.weights, phase.recompute_lags, strict=False):
            weights.correct_recomputation(lags)
        self.guards = [
            Guard(stage, weights, phase, to_come) for stage, weights in zip(self.stages, self.weights, strict=True)
        ]
        self.rounds = Rounds(self.weights, self.delays) if phase.replicated else None
        self.buffers = Buffers(self.stages, self.delays.places) if phase.replicated else None
        self.observe: Callable[[str, int, int], None] | None = None  # set by `Discrepancy`
        self.updating = False  # whether an update is under way
        self.moved = [(number, weights) for number, weights in enumerate(self.weights) if weights.plain]
        self.made = [weights for _, weights in self.moved if weights.readings]  # stages that predict or correct
        self.graphs, self.grouped, self.examined = Graphs(graphs), Grouped(self, grouped), Examined()
        self.layouts = Layouts()

    def version(self, index: int, m: int, lags: Sequence[Sequence[int]]) -> tuple[int, int]:
        """(version, index in the update's period) of what a pass of the phase's microbatch m reads at a stage."""
        period = self.periods[index]
        t, j = divmod(m, period) if period > 1 else (m, 0)
        version = t - lags[index][j]
        return (version, j) if version > 0 else (0, j)

    def step(self, step: int, inputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Forward, backward and updates for the run's minibatch number `step`; returns the detached loss.

        The caller must take the steps of a phase in order. An exception from a layer, the loss or the optimizer is
        raised again with a note that says where it came from.
        """
        try:
            with differentiating(self.device, self.rounded):  # entered once, for all backwards of the step
                return self._step(step, inputs, targets)
        except Exception as error:
            noted(error, step, self.stages)
            raise

    def _step(self, step: int, inputs: Any, targets: torch.Tensor) -> torch.Tensor:
        t = step - self.start
        if due(t):
            self.examined.over, self.layouts.examining = False, True
            for guard in self.guards:
                guard.unseen = True
        self.set_rates(t)
        if self.made:
            with self.flat_step.watching():
                together.prepare(self.made)
        self._observed("start", t)
        reads = self._reads(t)
        show = partial(self._show, reads, t * self.microbatches)
        total = self.graphs.loss(self, inputs, targets, show)
        if total is not None:
            seed_stage(self.seed, step, len(self.stages), self.device)  # the state in which eager passes leave it
        else:
            total = self.grouped.loss(self, t, inputs, targets, reads)
        if total is None:
            total = self.by_microbatches(t, inputs, targets, reads)
        self.layouts.examining = False
        self.update(step)
        self._observed("end", t)
        return total

    def by_microbatches(self, t: int, inputs: Any, targets: Any, reads: Lags) -> torch.Tensor:
        """Compute the phase's minibatch t one microbatch after another: returns its loss, leaves its gradients."""
        total: torch.Tensor | None = None
        parts = zip(split(inputs, self.microbatches), split(targets, self.microbatches), strict=True)
        for j, (value, target) in enumerate(parts):
            m = t * self.microbatches + j
            self._show(reads, m, "F", j == 0)
            entered, outputs, read = [], {}, list[BuffersRead]()
            for number, stage in enumerate(self.stages, start=1):
                if self.recompute:
                    value = value if self.segments and number not in self.heads else fresh(value)
                    entered.append(value)
                seed_stage(self.seed, self.start * self.microbatches + m, number, self.device)
                with self._buffers_of(number, m), self.computing(), self.guards[number - 1]():
                    value = self._first(stage, value, number, read) if self.recompute else stage(value)
                value = self._handed_on(value, number)
                if self.recompute and self._alike(number - 1, m, reads):
                    outputs[number] = value
            loss = self.part_of_loss(value, target)
            if self.segments:
                self._recomputed_by_segments(entered, read, target, m)
            else:
                self._show(reads, m, "B", j == 0)
                if self.recompute:
                    self._recomputed(entered, read, outputs, target, m)
                else:
                    loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
            if self.rounds is not None:
                self.rounds.collect(m)
        assert total is not None
        return total

    def _show(self, reads: Lags, m: int, kind: str, observed: bool = True) -> None:
        """Let the parameters hold what passes of a kind ("F" or "B") read for microbatch m."""
        lags, backward = reads[kind], reads["B"]
        with Copies() as copies:
            for index, weights in self.moved:
                ahead = kind == "F" and weights.showing.ahead
                then = self.version(index, m, backward) if ahead else None
                weights.load(kind, *self.version(index, m, lags), then, copies)
        if observed:
            self._observed(kind, m // self.microbatches)

    def plain(self, value: Any, target: Any) -> torch.Tensor:
        """The loss of a whole minibatch, without random draws, guards or recomputation (for CUDA graphs)."""
        with self.computing():
            for number, stage in enumerate(self.stages, start=1):
                value = self._handed_on(stage(value), number)
        return self.part_of_loss(value, target)

    def _observed(self, kind: str, t: int, among: range | None = None) -> None:
        """Call `observe` at a minibatch's start or end, or for each stage whose weights are loaded.

        Args:
            among: only these stages, from 1.
        """
        if self.observe is not None:
            for index, _ in self.moved if kind not in ("start", "end") else [(0, None)]:
                if among is None or index + 1 in among:
                    self.observe(kind, t, index)

    def _buffers_of(self, number: int, m: int) -> AbstractContextManager[None]:
        """A context for a stage's forward, which reads and changes the buffers of microbatch m's replica."""
        return self.buffers.of(number - 1, m) if self.buffers is not None else nullcontext()

    def part_of_loss(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """A microbatch's part of the minibatch's mean loss."""
        with self.computing():
            loss = trainable(self.loss(output, target))
        return loss / self.microbatches if self.microbatches > 1 else loss

    def _first(self, stage: nn.Module, value: Any, number: int, read: list[BuffersRead]) -> Any:
        """The first forward of a stage that recomputes from this input, or from the stage before it in a segment."""
        read.append(BuffersRead(stage))
        if self.segments and number not in self.heads:
            value = stage(value)
        else:
            with kept_whole(value, number):
                value = stage(entering(value))
        read[-1].changed()
        return value

    def _forward_again(self, number: int, m: int, value: Any, read: BuffersRead) -> Any:
        """Run a stage's forward for microbatch m again, with the same random numbers and buffers."""
        seed_stage(self.seed, self.start * self.microbatches + m, number, self.device)
        with self._buffers_of(number, m), read.again(), self.computing(), self.guards[number - 1]():
            value = self.stages[number - 1](entering(value))
        return self._handed_on(value, number)

    def _handed_on(self, value: Any, number: int) -> Any:
        """A stage's output as the next stage gets it; the last stage's output as it is."""
        if number < len(self.stages):
            value = apart_from_weights(crossing(value, number), self.stages[number - 1])
        return self.layouts.answered_alike(value, number) if number < len(self.stages) else value

    def _alike(self, index: int, m: int, reads: Lags) -> bool:
        """Whether a stage may skip recomputing microbatch m, since its backward reads what its forward read."""
        if self.spare_memory or self.segments:
            return False
        forward, backward = (self.version(index, m, reads[kind]) for kind in ("F", "B"))
        return self.weights[index].alike(forward, backward)

    def _recomputed(
        self, entered: list[Any], read: list[BuffersRead], outputs: dict[int, Any], target: torch.Tensor, m: int
    ) -> None:
        """The backward of microbatch m, last stage first; a stage's forward is run again unless its output is kept."""
        gradients: Gradients | None = None
        for number in range(len(self.stages), 0, -1):
            inputs = entered[number - 1]
            if number in outputs:
                output = outputs.pop(number)
            else:
                output = self._forward_again(number, m, inputs, read[number - 1])
            if number == len(self.stages):
                output = self.part_of_loss(output, target)
            gradients = backward_through(output, gradients, inputs)

    def _recomputed_by_segments(
        self, entered: list[Any], read: list[BuffersRead], target: torch.Tensor, m: int
    ) -> None:
        """The backward of microbatch m, last segment first: a segment's forwards again, then its backwards.

        Each stage recomputes with the weights that are due at its recomputation. Backwards read what they always do.
        """
        gradients: Gradients | None = None
        for segment in reversed(self.segments):
            for number in segment:
                self.weights[number - 1].load("R", *self.version(number - 1, m, self.phase.recompute_lags))
            value = inputs = entered[segment[0] - 1]
            for number in segment:
                value = self._forward_again(number, m, value, read[number - 1])
            if segment[-1] == len(self.stages):
                value = self.part_of_loss(value, target)
            for number in segment:
                self.weights[number - 1].load("B", *self.version(number - 1, m, self.delays.backward_lags))
            if m % self.microbatches == 0:
                self._observed("B", m // self.microbatches, segment)
            gradients = backward_through(value, gradients, inputs)

    def _reads(self, t: int) -> Lags:
        """The lags of the versions that minibatch t reads, by kind of pass; drawn for t if the method draws them."""
        law = self.method.random
        if law is None or law.of == "gradient":
            return {"F": self.delays.forward_lags, "B": self.delays.backward_lags}
        drawn = [[age] for age in law.draw(self.method.taus(len(self.stages)), self.seed, t)]
        return {"F": drawn, "B": drawn}

    def update(self, step: int) -> None:
        """Update every stage whose period ends with this minibatch, at this step's rates."""
        t, examines = step - self.start, self.rounded and not self.examined.over
        if examines:
            read = [(weights.flat, weights.showing.buffers) for weights in self.weights]
            refuse_lost(self.examined.begin(read), self.stages)
        with Copies() as copies:
            for _, weights in self.moved:
                weights.rest(copies)
        self._observed("U", t)
        if self.optimizer is None:
            return
        self.updating = True  # and remains so if anything fails from here on
        if self.late is not None:
            self.late.exchange(t)
        ending = self.rounds.ending(t, self.microbatches) if self.rounds is not None else None
        moved = [weights for index, weights in self.moved if ending is None or index in ending]
        together.before_step(moved)
        with self._gradients_lent():
            left = self.flat_step.step()
        if examines:
            refuse_lost(self.examined.end(), self.stages)
        together.after_step(moved)
        if self.rounded:
            publish([(weights.flat, weights.live) for weights in self.weights])
        if left:
            self.optimizer.zero_grad(set_to_none=True)
        self.updating = False

    def refuse_broken(self) -> None:
        """Raise `PipelagError` if an update has failed half way: taken again, it would move some weights twice."""
        if self.updating:
            raise PipelagError(BROKEN)

    def _gradients_lent(self) -> AbstractContextManager[None]:
        """A context for the optimizer's step: others' code there reaches the model's gradients in bfloat16, too."""
        assert self.optimizer is not None
        lends = self.rounded and others_code(self.optimizer)
        return lent((weights.flat for weights in self.weights), self.optimizer) if lends else nullcontext()

    def unlike(self) -> list[nn.Parameter]:
        """In bfloat16, the parameters that are no copies of the live weights as they should be between two steps."""
        return unlike((weights.flat, weights.live) for weights in self.at_rest()) if self.rounded else []

    def at_rest(self) -> list[StageWeights]:
        """The stages whose parameters hold the live weights in their own place; after a failed step, others may not."""
        moved = [weights for _, weights in self.moved if weights.showing.content != weights.alive]
        moved += [weights for _, weights in self.moved if weights.showing.buffers is not weights.live]
        return [weights for weights in self.weights if weights not in moved]

    def set_rates(self, t: int) -> None:
        """Set the stages' rates for the update to which the phase's minibatch t belongs; predictions use them too."""
        if self.optimizer is None:
            return
        first = t * self.microbatches
        alike = self.method.learning_rate is None  # the factor depends on the stage through its period alone
        factors, of_stage = dict[int, float](), list[float]()
        for stage, period in enumerate(self.periods, start=1):
            key = period if alike else stage
            if key not in factors:
                factors[key] = self.phase.rate_of(stage, first // period, self.rate, self.start)
            of_stage.append(factors[key])
        set_rates(self.optimizer, lambda stage: of_stage[stage - 1])

    def state_dict(self) -> dict[str, Any]:
        """The state of the policies, without the live weights and the optimizer's state, which are saved elsewhere.

        Raises:
            PipelagError: the last step broke off where it cannot be taken again.
        """
        self.refuse_broken()
        state: dict[str, Any] = {"weights": [weights.state_dict() for weights in self.weights]}
        if self.late is not None:
            state["gradients"] = list(self.late.kept)
        if self.rounds is not None:
            state["rounds"] = self.rounds.sums
        if self.buffers is not None:
            state["buffers"] = self.buffers.own
        return state | {"grouped": self.grouped.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state in place; restore the weights and the optimizer's state first."""
        self.updating = False
        for weights, saved in zip(self.weights, state["weights"], strict=True):
            weights.load_state_dict(saved)
        self.grouped.load_state_dict(state.get("grouped", {}))
        if self.late is not None:
            self.late.restore(state["gradients"], self.device)
        if self.rounds is not None:
            self.rounds.restore(state["rounds"], self.device)
        if self.buffers is not None:
            self.buffers.restore(state.get("buffers"), self.device)
