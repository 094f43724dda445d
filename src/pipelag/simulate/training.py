"""A run in the simulated executor: phases, one after the other, and its complete state at any step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.models.cut import stages
from pipelag.optim import OptimizerFactory, adopt_state, group_by_stage
from pipelag.schedules.replicated import check_replicas
from pipelag.simulate.pipeline import Loss, SimulatedPipeline
from pipelag.simulate.replicated import ReplicatedPipeline, check_replicable


@dataclass(frozen=True)
class Phase:
    """A stretch of a run: one method over one cut of the model. `stage_lr`: base rates of single stages.

    `microbatches`: equal parts of each minibatch, whose mean gradient makes the update. `recompute`: keep a stage's
    input alone, and run its forward again before its backward; a number from 2 on: that of so many stages at a time.
    `replicas`: workers of each stage, PipeDream's 1F1B-RR; none: one each.
    """

    method: Method
    steps: int
    cuts: tuple[int, ...] = ()
    stage_lr: dict[int, float] = field(default_factory=dict)
    microbatches: int = 1
    recompute: bool | int = False
    replicas: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """How many stages the cuts make."""
        return len(self.cuts) + 1


class SimulatedTraining:
    """Training over phases, minibatch by minibatch.

    At the end of a phase the pipeline drains (every minibatch in flight updates) and the next phase starts from the
    weights that leaves; momentum stays with its parameter.
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
    ) -> None:
        self.model = model if isinstance(model, nn.Sequential) else nn.Sequential(*model)
        self.phases, self.make_optimizer, self.loss, self.rate = list(phases), optimizer, loss, rate
        self.seed, self.device = seed, device
        self.total = sum(phase.steps for phase in self.phases)
        self.done = 0
        self.optimizer: torch.optim.Optimizer | None = None
        for phase in self.phases:
            check_stage_rates(phase)
            stages(self.model, phase.cuts)  # refuses bad cuts now, not at the switch hours later
            phase.method.delays(phase.stages, phase.microbatches)
            if phase.replicas:
                check_replicable(phase.method, phase.microbatches, phase.recompute)
                check_replicas(phase.replicas, phase.stages, phase.steps)
        self._enter(0)

    def _enter(self, index: int) -> None:
        phase = self.phases[index]
        self.phase = index
        pieces = stages(self.model, phase.cuts)
        before: Mapping[Any, Any] = self.optimizer.state if self.optimizer is not None else {}
        self.optimizer = group_by_stage(
            self.make_optimizer,
            [list(piece.parameters()) for piece in pieces],
            phase.stage_lr,
            range(1, len(pieces) + 1),
        )
        if self.optimizer is not None:
            adopt_state(self.optimizer, before)
        start = sum(earlier.steps for earlier in self.phases[:index])
        self.pipeline: SimulatedPipeline | ReplicatedPipeline
        if phase.replicas:
            self.pipeline = ReplicatedPipeline(
                pieces, phase.replicas, phase.steps, self.optimizer, self.loss, self.rate, self.seed, start, self.device
            )
            return
        self.pipeline = SimulatedPipeline(
            pieces,
            phase.method,
            self.optimizer,
            self.loss,
            self.rate,
            self.seed,
            start,
            self.device,
            phase.microbatches,
            phase.recompute,
        )

    def step(self, inputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Train on the next minibatch; returns its loss, detached, on the device."""
        if self.done >= self.total:
            raise PipelagError(f"all {self.total} steps of this run are done; give it a longer phase")
        while self.done >= self.pipeline.start + self.phases[self.phase].steps:
            self._enter(self.phase + 1)
        loss = self.pipeline.step(self.done, inputs, targets)
        self.done += 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Everything that the steps to come depend on."""
        return {
            "done": self.done,
            "phase": self.phase,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict() if self.optimizer is not None else None,
            "pipeline": self.pipeline.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state` bit for bit as if never interrupted."""
        if state["phase"] != self.phase:
            self._enter(state["phase"])
        self.done = state["done"]
        self.model.load_state_dict(state["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.pipeline.load_state_dict(state["pipeline"])


def check_stage_rates(phase: Phase) -> None:
    """Refuse a learning rate for a stage that the phase does not have."""
    wrong = [stage for stage in phase.stage_lr if not 1 <= stage <= phase.stages]
    if wrong:
        raise PipelagError(
            f"a learning rate is given for stage {wrong[0]}, but the cuts {list(phase.cuts)} make stages 1 to "
            f"{phase.stages}"
        )
