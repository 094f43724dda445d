"""The base of all real workers: what they are assigned, and how they perform it and keep their clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pipelag.distributed.checkpoints import CheckpointWriter
from pipelag.distributed.job import Job
from pipelag.distributed.p2p import Receiver, Sender
from pipelag.distributed.record import Record
from pipelag.schedules import Action
from pipelag.stage.guard import Later
from pipelag.stage.optimizers import OptimizerFactory, placed, set_rates
from pipelag.stage.phase import Phase
from pipelag.stage.rounded import Masters
from pipelag.tensors import trainable

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Assignment:
    """What all workers of a phase are given: the phase, the training's settings, and where in the run they begin.

    rate: gives the factor on the base learning rate at a step of the run.
    start: the run's step of the worker's first minibatch.
    offset: the phase's minibatches that were done before it (more than 0 after a restart).
    masters: in bfloat16, the float32 master weights of the model's parameters.
    to_come: what the phases after this one would refuse in the layers.
    """

    phase: Phase
    optimizer: OptimizerFactory
    loss: Loss
    rate: Callable[[int], float]
    seed: int
    start: int
    offset: int = 0
    masters: Masters | None = None
    to_come: Later | None = None

    @property
    def steps(self) -> int:
        """The number of minibatches that are left of the phase."""
        return self.phase.steps - self.offset

    @property
    def begun(self) -> int:
        """The run's step at which the phase began."""
        return self.start - self.offset

    def rate_of(self, stage: int, version: int) -> float:
        """The factor on a stage's base rate for the update that ends a version of the phase; see `Phase.rate_of`."""
        return self.phase.rate_of(stage, version, self.rate, self.begun)

    def marks(self, writer: CheckpointWriter | None) -> list[int]:
        """The numbers of minibatches of the phase after which a checkpoint is written.

        The last of the phase is among them, because the phase may be longer after a restart.
        """
        ends = range(self.offset + 1, self.phase.steps + 1)
        return [end for end in ends if writer is not None and writer.wants(self.begun + end)]


def received_inputs(receiver: Receiver) -> tuple[torch.Tensor, ...]:
    """The next message as inputs, which require gradients if the sender's outputs did."""
    received = receiver.receive()
    assert receiver.metas is not None
    for tensor, meta in zip(received, receiver.metas, strict=True):
        tensor.requires_grad_(meta.differentiable)
    return received


class Worker:
    """The base class of a phase's workers: it performs actions, keeps the clocks, and leaves a `Record`."""

    synchronising = 0.0  # seconds and, below, bytes of the sums over replicas
    synchronised = 0
    step = 0  # the run's minibatch under way, for error messages
    saving = 0.0  # seconds of writing checkpoints, which no clock counts

    def __init__(self, job: Job, assignment: Assignment, base: Mapping[str, float] | None = None) -> None:
        self.job, self.assignment, self.base = job, assignment, base or {}
        self.start, self.offset = assignment.start, assignment.offset
        self.record = Record()
        self.events: list[torch.cuda.Event] = []  # one per update, on a GPU
        self.receivers: Sequence[Receiver] = ()
        self.senders: Sequence[Sender] = ()

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase, after the optimizers got their state."""
        raise NotImplementedError

    def perform(self, action: Action) -> None:
        """Do one action."""
        raise NotImplementedError

    def named(self, action: Action) -> Action:
        """The action with its name in a timeline."""
        return action

    def perform_all(self, actions: Sequence[Action]) -> None:
        """Perform all actions in order, and keep the clocks of `Record`."""
        self.began = time.perf_counter()
        for action in actions:
            start, aside = time.perf_counter(), self.saving + self.waiting()
            self.perform(action)
            start += self.saving + self.waiting() - aside
            self.record.spans.append((self.named(action), start, time.perf_counter()))
        for sender in self.senders:
            sender.finish()
        self.stop_clock()

    def stop_clock(self) -> None:
        """Note the phase's times and traffic at its end."""
        for name, value in self.clock().items():
            setattr(self.record, name, value)

    def mark(self) -> None:
        """Note the time of an update; on a GPU with an event, because no one waits for the update there."""
        if self.job.device.type == "cuda":
            self.events.append(torch.cuda.Event(enable_timing=True))
            self.events[-1].record()
        else:
            self.record.updated.append(time.perf_counter())

    def read_marks(self) -> None:
        """Wait for the GPU, and read the times of its updates from their events."""
        if self.events:
            torch.cuda.synchronize(self.job.device)
            self.record.updated = [self.events[0].elapsed_time(event) / 1000 for event in self.events]

    def waiting(self) -> float:
        """The seconds so far of waiting for messages."""
        return sum(receiver.waited for receiver in self.receivers)

    def clock(self) -> dict[str, float]:
        """The times and traffic of the phase so far, including those before a restart (`base`); see `Record`."""
        now = {
            "seconds": time.perf_counter() - self.began - self.saving,
            "waited": self.waiting(),
            "sending": sum(sender.seconds for sender in self.senders) + self.synchronising,
            "sent_bytes": sum(sender.bytes for sender in self.senders) + self.synchronised,
        }
        return {name: value + self.base.get(name, 0) for name, value in now.items()}


class WholeModel(Worker):
    """The base class of workers that train one module with one optimizer, by a library or a server.

    Args:
        module: a stage, or the whole model.
        writer: writes the checkpoints; None: none are written.
    """

    optimizer: torch.optim.Optimizer | None
    shadows: list[nn.Parameter]

    def __init__(self, job: Job, module: nn.Module, assignment: Assignment, writer: CheckpointWriter | None) -> None:
        super().__init__(job, assignment, writer.base if writer is not None else None)
        self.module, self.writer = module, writer

    @property
    def trained(self) -> nn.Module:
        """The module that holds the newest weights."""
        return self.module

    def part_of_loss(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """The loss of this worker's part of a minibatch."""
        return trainable(self.assignment.loss(output, target))

    def set_rates(self, step: int, stage: int = 1) -> None:
        """Set the rate of the update that follows the run's minibatch `step`; the whole model is one stage."""
        assert self.optimizer is not None
        share = self.assignment.rate_of(stage, step - self.assignment.begun)
        set_rates(self.optimizer, lambda stage: share)

    def keep_buffers(self, step: int) -> None:
        """Keep batch-norm statistics for the checkpoint after `step` minibatches, before they change again."""
        if self.writer is not None and self.writer.wants(step):
            self.writer.note_buffers(step, self.module)

    def write_checkpoint(self, step: int) -> None:
        """Write the checkpoint after `step` minibatches."""
        assert self.writer is not None
        clock, began = self.clock(), time.perf_counter()
        since = range(self.writer.last - self.start, step - self.start)
        losses = [self.record.losses[t] for t in since] if self.record.losses else []  # of torch's stages only the last
        state = optimizer_state(self.optimizer, self.shadows)
        self.writer.save(step, self.trained, self.optimizer, state, losses, clock, None)
        self.saving += time.perf_counter() - began


def optimizer_state(
    optimizer: torch.optim.Optimizer | None, parameters: Sequence[nn.Parameter]
) -> dict[int, dict[str, Any]]:
    """An optimizer's state per parameter, by the parameter's position."""
    if optimizer is None:
        return {}
    return {i: dict(optimizer.state[p]) for i, p in enumerate(parameters) if p in optimizer.state}


def load_optimizer_state(
    optimizer: torch.optim.Optimizer | None, parameters: Sequence[nn.Parameter], state: Mapping[int, dict[str, Any]]
) -> None:
    """Give an optimizer the state from an earlier phase, or from a checkpoint."""
    if optimizer is not None:
        groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
        for i, values in state.items():
            optimizer.state[parameters[i]] = placed(values, parameters[i], groups.get(parameters[i], {}))
