"""Data parallelism with a barrier (BSP): torch's DistributedDataParallel, so that pipelines meet the real rival."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipelag.data.split import split
from pipelag.distributed.worker import Job, Loss, Record
from pipelag.optim import OptimizerFactory, group_by_stage, set_rates
from pipelag.randomness import seed_stage


class ReplicaWorker:
    """One replica of the whole model for one phase: its share of each minibatch, gradients averaged over all.

    Batch-norm statistics are those of the replica's share; the running ones are rank 0's (DDP's default). Like a
    simulated run with as many microbatches as workers but for these.
    """

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        optimizer: OptimizerFactory,
        loss: Loss,
        rate: Callable[[int], float],
        seed: int,
        start: int,
        steps: int,
        snapshot_after: frozenset[int],
    ) -> None:
        self.job, self.model, self.loss, self.rate = job, model, loss, rate
        self.seed, self.start, self.steps, self.snapshot_after = seed, start, steps, snapshot_after
        self.replica = DistributedDataParallel(model)
        self.parameters = list(model.parameters())
        self.optimizer = group_by_stage(optimizer, [self.parameters], {}, [1])
        self.record = Record()

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase; every replica asks for whole minibatches and takes its part."""
        world, rank = self.job.world, self.job.rank
        began = time.perf_counter()
        for step in range(self.start, self.start + self.steps):
            x, y = split(inputs(step), world)[rank], split(targets(step), world)[rank]
            seed_stage(self.seed, step * world + rank, 1, self.job.device)
            loss = self.loss(self.replica(x), y)
            loss.backward()
            if self.optimizer is not None:
                set_rates(self.optimizer, lambda stage, step=step: self.rate(step))  # type: ignore[misc]
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            self.record.losses.append(loss.detach())
            self.record.updated.append(time.perf_counter())
            if step + 1 in self.snapshot_after:
                self.record.snapshots[step + 1] = {
                    name: value.detach().clone() for name, value in self.model.state_dict().items()
                }
        means = torch.stack(self.record.losses)
        dist.all_reduce(means)
        self.record.losses = list(means / world)
        self.record.seconds = time.perf_counter() - began
        return self.record
