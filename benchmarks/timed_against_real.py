"""The timed executor's throughput against the measured one: two workers on this machine, schedule by schedule.

Both come from one launch. Every worker profiles its own stage while the other is busy with its own, as they are in a
pipeline, then all schedules are trained, block by block. Prints predicted / measured time per minibatch.
"""

from __future__ import annotations

import argparse
from statistics import median

import torch
import torch.distributed as dist
from torch.nn import functional as F

from pipelag import methods, models
from pipelag.distributed.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.distributed.workers.base import Job
from pipelag.phase import Phase
from pipelag.timing.costs import Topology
from pipelag.timing.profile import profile
from pipelag.timing.timed import time_schedule

ARMS = (("pipedream", 1), ("stale_weights", 1), ("pipeoptim", 1), ("gpipe", 4), ("1f1b_flush", 4), ("sequential", 1))


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)  # type: ignore[arg-type]


def compare(job: Job, depth: int, cut: int, batch: int, steps: int, blocks: int) -> dict[str, tuple[float, float]]:
    """name -> (predicted, measured) milliseconds per minibatch."""
    images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,))
    model = models.build(f"resnet{depth}", seed=0).to(memory_format=torch.channels_last)
    measured: dict[str, list[float]] = {name: [] for name, _ in ARMS}
    predicted: dict[str, list[float]] = {name: [] for name, _ in ARMS}
    for block in range(blocks + 1):
        profiles = {}
        for parts in (1, 4):
            dist.barrier()
            profiles[parts] = profile(model, images[: batch // parts], repeats=5)
        for name, parts in ARMS:
            method = methods.get(name)
            costs = profiles[parts].cut((cut,))
            plan = method.schedule(2, steps, parts)
            timing = time_schedule(plan, costs, Topology(latency=0.0))
            dist.barrier()
            training = RealTraining(
                job, model, [Phase(method, steps, (cut,), {}, parts)], sgd, F.cross_entropy, lambda s: 1.0, 0
            )
            updated = training.run(lambda step: images, lambda step: labels)[0][0].updated
            if block:  # the first warms up
                low, high = len(updated) // 4, len(updated) - 1 - len(updated) // 4
                measured[name].append(1e3 * (updated[high] - updated[low]) / (high - low))
                predicted[name].append(1e3 * timing.steady_period)
    return {name: (median(predicted[name]), median(measured[name])) for name, _ in ARMS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--cut", type=int, default=7)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--blocks", type=int, default=4)
    args = parser.parse_args()
    found = launch(compare, 2, "cpu", 1, **vars(args))
    for name, (predicted, measured) in found.items():
        print(
            f"{name:16s} predicted {predicted:7.1f} ms   measured {measured:7.1f} ms   ratio {predicted / measured:.3f}"
        )


if __name__ == "__main__":
    main()
