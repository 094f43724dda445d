"""The same ResNet-20 and cut on two workers: stale weights here, GPipe and 1F1B in torch.distributed.pipelining.

The peers' number of microbatches is tried at 2, 4 and 8 and the best is taken. All alternate in one launch; every
arm trains (forward, backward, optimizer step) on minibatches of the same size. Prints ratios.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F

from pipelag import methods, models
from pipelag.distributed.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.distributed.workers.base import Job
from pipelag.models.cut import stages
from pipelag.phase import Phase

PEERS = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


class Permuted(nn.Module):
    """Passes the boundary as NHWC: the peers send contiguous tensors only, and channels_last is twice as fast."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(*self.order)


def compare(job: Job, depth: int, cut: int, batch: int, steps: int, blocks: int) -> dict[str, list[float]]:
    """Milliseconds per minibatch of every arm, block by block."""
    images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,))
    first, last = job.rank == 0, job.rank == 1
    arms: dict[str, Any] = {}
    for name, schedule in PEERS.items():
        for microbatches in (2, 4, 8):
            piece = stages(models.build(f"resnet{depth}", seed=0).to(memory_format=torch.channels_last), (cut,))[
                job.rank
            ]
            piece = (
                nn.Sequential(*piece, Permuted(0, 2, 3, 1)) if first else nn.Sequential(Permuted(0, 3, 1, 2), *piece)
            )
            stage = PipelineStage(piece, job.rank, 2, job.device)
            runner = schedule(stage, microbatches, loss_fn=F.cross_entropy)
            arms[f"{name}, {microbatches} microbatches"] = (runner, sgd(piece.parameters()))

    def peer(runner: Any, optimizer: torch.optim.Optimizer) -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            if first:
                runner.step(images)
            else:
                runner.step(target=labels)
            optimizer.step()
        dist.barrier()
        return 1000 * (time.perf_counter() - start) / steps

    ours = RealTraining(
        job, models.build(f"resnet{depth}", seed=0).to(memory_format=torch.channels_last), [], sgd, F.cross_entropy,
        lambda step: 1.0, 0,
    )  # fmt: skip

    def pipelined() -> float:
        dist.barrier()
        phase = Phase(methods.get("stale_weights"), steps, (cut,))
        start = time.perf_counter()
        records = ours.run_phase(phase, lambda step: images, lambda step: labels)
        return 1000 * (records[job.rank].updated[-1] - start) / steps  # fill and drain included, as in the peers

    found: dict[str, list[float]] = {"stale weights": [], **{name: [] for name in arms}}
    for block in range(blocks + 1):
        values = {"stale weights": pipelined(), **{name: peer(*arm) for name, arm in arms.items()}}
        if block:  # the first warms up
            for name, value in values.items():
                found[name].append(value)
    assert first or last
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--cut", type=int, default=9, help="between blocks: the peers pass one tensor")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=5)
    args = parser.parse_args()
    found = launch(
        compare, 2, "cpu", 1, depth=args.depth, cut=args.cut, batch=args.batch, steps=args.steps, blocks=args.blocks
    )
    ours = median(found["stale weights"])
    print(f"stale weights            {ours:7.1f} ms per minibatch")
    for name in PEERS:
        best = min((arm for arm in found if arm.startswith(name)), key=lambda arm: median(found[arm]))
        ratios = [theirs / own for theirs, own in zip(found[best], found["stale weights"], strict=True)]
        print(f"{best:24s} {median(found[best]):7.1f} ms per minibatch   ratio {median(ratios):.2f}")


if __name__ == "__main__":
    main()
