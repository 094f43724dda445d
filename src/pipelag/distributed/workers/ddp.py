"""Data parallelism with a barrier (BSP) by torch's DistributedDataParallel, the baseline that users really run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipelag.data.split import split
from pipelag.distributed.checkpoints import CheckpointWriter
from pipelag.distributed.job import Job
from pipelag.distributed.record import Record
from pipelag.distributed.workers.base import Assignment, WholeModel
from pipelag.errors import PipelagError
from pipelag.randomness import seed_stage
from pipelag.stage.optimizers import group_by_stage
from pipelag.stage.phase import SHARES


class ReplicaWorker(WholeModel):
    """One replica of the whole model for one phase: it takes its share of each minibatch; gradients are averaged.

    Batch-norm statistics are those of the replica's share, and the running ones those of rank 0 (DDP's default). Except
    for them, this equals a simulated run with as many microbatches as workers.
    """

    averaged = 0  # the number of losses that are already means over the replicas

    def __init__(
        self, job: Job, model: nn.Module, assignment: Assignment, writer: CheckpointWriter | None = None
    ) -> None:
        super().__init__(job, model, assignment, writer)
        self.replica = DistributedDataParallel(model)
        self.shadows = list(model.parameters())
        self.optimizer = group_by_stage(assignment.optimizer, [self.shadows], assignment.phase.stage_lr, [1])
        self.record.opaque = True

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase; every replica asks for whole minibatches and takes its share."""
        world, rank, assignment = self.job.world, self.job.rank, self.assignment
        self.began = time.perf_counter()
        for step in range(self.start, self.start + assignment.steps):
            self.step = step
            x, y = split(inputs(step), world, SHARES)[rank], split(targets(step), world, SHARES)[rank]
            seed_stage(assignment.seed, step * world + rank, 1, self.job.device)
            loss = self.part_of_loss(self.replica(x), y)
            loss.backward()
            self.check_gradients()
            if self.optimizer is not None:
                self.set_rates(step)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            self.record.losses[step - self.start] = loss.detach()
            self.mark()
            if self.writer is not None and self.writer.wants(step + 1):
                self.average_losses()
                if rank == 0:
                    self.keep_buffers(step + 1)
                    self.write_checkpoint(step + 1)
        self.average_losses()
        self.read_marks()
        self.record.seconds = self.clock()["seconds"]
        return self.record

    def check_gradients(self) -> None:
        """Refuse a parameter without a gradient, because DistributedDataParallel would wait for it."""
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise PipelagError(
                    f"'{name}' gets no gradient in step {self.step}, and DistributedDataParallel waits for one of "
                    f"every parameter; freeze it ({name}.requires_grad_(False)), or take a pipelined method"
                )

    def average_losses(self) -> None:
        """Replace new losses by their means over the replicas; all replicas call this after the same step."""
        new = range(self.averaged, len(self.record.losses))
        if new:
            means = torch.stack([self.record.losses[t] for t in new])
            dist.all_reduce(means)
            self.record.losses |= dict(zip(new, means / self.job.world, strict=True))
            self.averaged = len(self.record.losses)
