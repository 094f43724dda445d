"""A run in the simulated executor: its phases one after another, and its complete state at any step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.models.cut import stages
from pipelag.simulate.pipeline import Loss, SimulatedPipeline
from pipelag.stage.guard import later, packed
from pipelag.stage.optimizers import OptimizerFactory, adopt_state, group_by_stage, restore_state
from pipelag.stage.phase import Phase
from pipelag.stage.rehearsal import check_optimizer
from pipelag.stage.rounded import Rounding, masters_of, refuse_lost
from pipelag.tensors import kept_buffers


class SimulatedTraining:
    """Training over phases, minibatch by minibatch.

    At the end of a phase the pipeline drains (every minibatch in flight makes its update), and the next phase starts
    from the weights after that. Every parameter keeps its momentum.

    Args:
        bf16: passes read weights rounded to bfloat16; the optimizer steps on float32 masters (`pipelag.stage.rounded`).
        graphs: replay passes as CUDA graphs where that gives the same result (`pipelag.simulate.graphs`).
        grouped: let microbatches that read the same weights share passes (`pipelag.simulate.grouped`).
    """

    def __init__(
        self,
        model: nn.Sequential | Sequence[nn.Module],
        phases: Sequence[Phase],
        optimizer: OptimizerFactory,
        loss: Loss,
        rate: Callable[[int], float] = lambda step: 1.0,
        seed: int = 0,
        device: torch.device | None = None,
        spare_memory: bool = True,
        bf16: bool = False,
        graphs: bool = False,
        grouped: bool = False,
    ) -> None:
        self.model = model if isinstance(model, nn.Sequential) else nn.Sequential(*model)
        self.phases, self.make_optimizer, self.loss, self.rate = list(phases), optimizer, loss, rate
        self.seed, self.device, self.spare_memory, self.graphs = seed, device, spare_memory, graphs
        self.grouped, self.parted = grouped, dict[int, str]()  # finished phase -> why it was not grouped, or ""
        self.graphed: dict[int, str] = {}  # finished phase -> why it used no graphs, or ""
        self.unrecorded = ""  # why later phases should not try to record graphs, or ""
        self.masters: Rounding | None = None
        self.total = sum(phase.steps for phase in self.phases)
        self.done = 0
        self.optimizer: torch.optim.Optimizer | None = None
        for phase in self.phases:
            phase.check()
            stages(self.model, phase.cuts)  # refuses bad cuts now, and not at the phase's start hours later
        check_optimizer(self.phases[1:], optimizer)
        if bf16:
            self.masters = masters_of(self.model.parameters())
        try:
            self._enter(0)
        except BaseException:  # leave the model as it was
            if self.masters is not None:
                self.masters.end()
            raise
        self.forget_gradients()  # gradients from before would enter the first update

    def _enter(self, index: int) -> None:
        phase = self.phases[index]
        self.phase = index
        pieces = stages(self.model, phase.cuts)
        before: Mapping[Any, Any] = self.optimizer.state if self.optimizer is not None else {}
        self.optimizer = self.optimizer_of(index)
        if self.optimizer is not None:
            adopt_state(self.optimizer, before)
        start = sum(earlier.steps for earlier in self.phases[:index])
        self.pipeline = SimulatedPipeline(
            pieces,
            phase,
            self.optimizer,
            self.loss,
            rate=self.rate,
            seed=self.seed,
            start=start,
            device=self.device,
            spare_memory=self.spare_memory,
            masters=self.masters,
            graphs=self.graphs,
            grouped=self.grouped,
            to_come=later(self.model, self.phases[index + 1 :]),
        )
        if self.unrecorded:
            self.pipeline.graphs.close(self.unrecorded)

    def optimizer_of(self, index: int) -> torch.optim.Optimizer | None:
        """A new optimizer for a phase, without the state of the phase before."""
        phase = self.phases[index]
        pieces = stages(self.model, phase.cuts)
        parameters = [[self.masters.get(p, p) if self.masters else p for p in piece.parameters()] for piece in pieces]
        return group_by_stage(self.make_optimizer, parameters, phase.stage_lr, range(1, len(pieces) + 1))

    def _leave(self) -> None:
        """End a phase: note what it could not use, and free its graphs' memory before the next phase takes more."""
        graphs = self.pipeline.graphs
        self.graphed[self.phase], self.parted[self.phase] = graphs.why, self.pipeline.grouped.why
        self.unrecorded = graphs.why if graphs.failed else self.unrecorded
        graphs.close()

    def without_graphs(self, phase: int) -> str | None:
        """Why a phase used no CUDA graphs; empty if it used them, None for phases that ended before a restart."""
        return self.pipeline.graphs.why if phase == self.phase else self.graphed.get(phase)

    def without_groups(self, phase: int) -> str | None:
        """Why a phase's microbatches shared no passes; empty or None as in `without_graphs`."""
        return self.pipeline.grouped.why if phase == self.phase else self.parted.get(phase)

    def step(self, inputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Train on the next minibatch; returns its loss, detached, on the device.

        Raises:
            PipelagError: the training is done; an update failed half way before; a parameter has other memory than
                before, or in bfloat16 was changed in place.
        """
        if self.done >= self.total:
            raise PipelagError(f"all {self.total} steps of this training are done; give it a longer phase")
        looking = self.done & (self.done - 1) == 0  # now and then, for changes without a trace
        self.refuse_lost_changes(looking)
        if looking:
            self._refuse_displaced()
        while self.done >= self.pipeline.start + self.phases[self.phase].steps:
            self._leave()
            self._enter(self.phase + 1)
        first = self.done == self.pipeline.start  # in which guards refuse layers, after their forwards
        restore = kept_buffers(self.model) if first else None
        try:
            with self.masters.step() if self.masters is not None else nullcontext():
                loss = self.pipeline.step(self.done, inputs, targets)
        except BaseException:
            self.forget_gradients()  # part of a sum, to which the step would add if it were taken again
            if restore is not None:
                restore()
                if self.pipeline.buffers is not None:
                    self.pipeline.buffers.begin()
            raise
        self.done += 1
        if self.masters is not None and (touched := self.masters.touched()):
            laid_out_anew = packed(self.model)
            refuse_lost([parameter for parameter in touched if id(parameter) not in laid_out_anew], [self.model])
            self.masters.note()
        return loss

    def refuse_lost_changes(self, looking: bool = True) -> None:
        """Call between two steps.

        Args:
            looking: compare all values, which takes a pass over the weights and waits for the device; otherwise only
                those of parameters that torch counts as changed in place, which leaves out changes through `data`.

        Raises:
            PipelagError: an update has failed half way, or in bfloat16 somebody has changed a parameter, which is a
                copy.
        """
        self.pipeline.refuse_broken()
        if self.masters is not None:
            refuse_lost(self.masters.changed() or (self.pipeline.unlike() if looking else []), [self.model])

    def _refuse_displaced(self) -> None:
        """Raise `PipelagError` if somebody has given a parameter other memory than that of the live weights."""
        there = {id(parameter) for each in self.pipeline.at_rest() for parameter in each.flat.displaced()}
        named = self.model.named_parameters() if there else ()
        for name in (name for name, parameter in named if id(parameter) in there):
            raise PipelagError(
                f"the parameter '{name}' was given another tensor (its `data` was set), which would not be trained; "
                "change weights in place (copy_)"
            )

    def forget_gradients(self) -> None:
        """Clear all gradients, for callers who run a backward between two steps."""
        for parameter in self.model.parameters():
            parameter.grad = None
        if self.masters is not None:
            self.masters.forget_gradients()

    def close(self) -> None:
        """End the training, even after a failed step: the model gets its live weights, in float32."""
        self._at_rest()
        if self.masters is not None:
            self.masters.end()

    def _at_rest(self) -> None:
        """Put the live weights back and clear gradients: a failed step may have left old weights and gradients."""
        for weights in self.pipeline.weights:
            weights.restore()
            for parameter in weights.flat.parameters:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Everything that later steps depend on.

        Raises:
            PipelagError: as `refuse_lost_changes`.
        """
        self.refuse_lost_changes()
        return {
            "done": self.done,
            "phase": self.phase,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict() if self.optimizer is not None else None,
            "pipeline": self.pipeline.state_dict(),
        } | ({"masters": [master.data for master in self.masters.rounded]} if self.masters is not None else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, bit for bit as if the training had not been interrupted."""
        self._at_rest()
        if state["phase"] != self.phase:
            self.pipeline.graphs.close()
            self._enter(state["phase"])
        self.done = state["done"]
        self.model.load_state_dict(state["model"])
        if self.optimizer is not None:
            restore_state(self.optimizer, state["optimizer"])
        if self.masters is not None:
            for parameter, master in self.masters.items():
                master.data.copy_(parameter.data)
            for master, saved in zip(self.masters.rounded, state["masters"], strict=True):
                master.data.copy_(saved)
            self.masters.note()
        self.pipeline.load_state_dict(state["pipeline"])
