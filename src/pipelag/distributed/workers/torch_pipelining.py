"""The synchronous baselines of torch.distributed.pipelining, GPipe and 1F1B, on the data of our runs.

They learn what our own gpipe and 1f1b_flush learn; their runs show how fast the library is that people use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pipelag.data.split import split
from pipelag.distributed.checkpoints import CheckpointWriter
from pipelag.distributed.job import Job
from pipelag.distributed.p2p import TensorMeta
from pipelag.distributed.record import Record
from pipelag.distributed.workers.base import Assignment, WholeModel
from pipelag.errors import PipelagError
from pipelag.randomness import preserved_randomness, seed_stage
from pipelag.schedules.library import gpipe, one_f_one_b_flush
from pipelag.stage.optimizers import group_by_stage
from pipelag.tensors import alone, as_tuple, unchanged_buffers

# The classes of torch.distributed.pipelining, by the function that builds the same schedule here.
SCHEDULES: dict[Callable[..., Any], str] = {gpipe: "ScheduleGPipe", one_f_one_b_flush: "Schedule1F1B"}


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise what a layer raised, which torch's stages wrap in an error of their own."""
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None


class Bounded(nn.Module):
    """A stage that takes and returns contiguous tensors, as torch requires, with the same random numbers as ours."""

    def __init__(self, stage: nn.Module, takes: Sequence[TensorMeta], gives: Sequence[TensorMeta]) -> None:
        super().__init__()
        self.stage, self.takes, self.gives = stage, takes, gives
        self.before: Callable[[], None] = lambda: None

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The stage's output, each tensor in the form in which it is sent."""
        self.before()
        if self.takes:
            tensors = tuple(meta.unwire(tensor) for meta, tensor in zip(self.takes, tensors, strict=True))
        value = self.stage(alone(tensors))
        if not self.gives:
            return value
        sent = tuple(meta.wire(tensor) for meta, tensor in zip(self.gives, as_tuple(value), strict=True))
        return alone(sent)


class TorchWorker(WholeModel):
    """The worker of this rank's stage under a schedule of torch.distributed.pipelining.

    Args:
        pieces: all stages; running those before this one shows what it will receive.
        assignment, writer: see `WholeModel`.

    Raises:
        PipelagError: by `run`, boundary tensors that cannot have a gradient: torch's stages send one for every tensor.
    """

    def __init__(
        self, job: Job, pieces: Sequence[nn.Module], assignment: Assignment, writer: CheckpointWriter | None = None
    ) -> None:
        super().__init__(job, pieces[job.rank], assignment, writer)
        self.pieces, self.stage, self.stages = pieces, job.rank + 1, len(pieces)
        self.shadows = list(self.module.parameters())
        self.optimizer = group_by_stage(assignment.optimizer, [self.shadows], assignment.phase.stage_lr, [self.stage])
        self.record.opaque = True

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase, one minibatch after another, with a flush after each."""
        assignment, parts = self.assignment, self.assignment.phase.microbatches
        self.step = self.start
        runner, bounded = self.schedule(as_tuple(split(inputs(self.start), parts)[0]))
        first, last = self.stage == 1, self.stage == self.stages
        self.began = time.perf_counter()
        for step in range(self.start, self.start + assignment.steps):
            numbers = iter(range(step * parts, (step + 1) * parts))
            self.step = step
            bounded.before = lambda numbers=numbers: seed_stage(  # type: ignore[misc]
                assignment.seed, next(numbers), self.stage, self.job.device
            )
            losses: list[torch.Tensor] = []
            entering = as_tuple(inputs(step)) if first else ()
            with plain_errors():
                runner.step(*entering, **({"target": targets(step), "losses": losses} if last else {}))
            if last:
                self.record.losses[step - self.start] = torch.stack(losses).mean().detach()
            if self.optimizer is not None:
                self.set_rates(step, self.stage)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            self.mark()
            if self.writer is not None and self.writer.wants(step + 1):
                self.keep_buffers(step + 1)
                self.write_checkpoint(step + 1)
        self.read_marks()
        self.record.seconds = self.clock()["seconds"]
        return self.record

    def schedule(self, value: tuple[torch.Tensor, ...]) -> tuple[Any, Bounded]:
        """torch's schedule over this stage, and the stage; `value` is a microbatch of the first stage's input."""
        from torch.distributed import pipelining

        crossing: list[tuple[torch.Tensor, ...]] = [value]
        with preserved_randomness():
            for piece in self.pieces[: self.stage]:
                with unchanged_buffers(piece):
                    entering = crossing[-1]
                    crossing.append(as_tuple(piece(alone(entering))))
        takes = [] if self.stage == 1 else self.metas(crossing[-2])
        gives = [] if self.stage == self.stages else self.metas(crossing[-1])
        bounded = Bounded(self.module, takes, gives)
        sent = [
            tuple(
                meta.wire(tensor.detach()).requires_grad_(meta.differentiable)
                for meta, tensor in zip(metas, tensors, strict=True)
            )
            if metas
            else tensors
            for metas, tensors in ((takes, crossing[-2]), (gives, crossing[-1]))
        ]
        stage = pipelining.PipelineStage(
            bounded, self.job.rank, self.stages, self.job.device, input_args=sent[0], output_args=sent[1]
        )
        kind = getattr(pipelining, SCHEDULES[self.assignment.phase.method.build])
        return kind(stage, self.assignment.phase.microbatches, loss_fn=self.assignment.loss), bounded

    def metas(self, tensors: tuple[torch.Tensor, ...]) -> list[TensorMeta]:
        """The descriptions of tensors that cross a boundary; refuses those that cannot have a gradient."""
        for tensor in tensors:
            if not tensor.is_floating_point():
                raise PipelagError(
                    f"a tensor of type {tensor.dtype} crosses the boundary at stage {self.stage}, but "
                    "torch.distributed.pipelining sends a gradient for every tensor; use gpipe or 1f1b_flush"
                )
        return [TensorMeta.of(tensor) for tensor in tensors]
