"""Compare the timed executor's throughput with the measured one: two workers on this machine, schedule by schedule.

Both come from one launch. The two workers profile the model at the same time, so that each stage is measured beside a
busy worker, as in a pipeline. For sequential training, whose workers take turns, one of them measures while the other
waits. Then all schedules are trained, block by block. The link is measured by a message that goes back and forth,
because its time shows where a worker waits for its neighbour, as with GPipe at every flush. Prints predicted over
measured time per minibatch, as the median of the blocks' ratios: for the passes alone, and with the weights that the
method and the optimizer move (`pipelag.timing.rehearsal`), at the speed of a large copy.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from statistics import median

import torch
import torch.distributed as dist
from torch.nn import functional as F

from benchmarks.ledger import note
from pipelag import methods, models
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.stage.phase import Phase
from pipelag.timing.costs import StageCost, Topology
from pipelag.timing.profile import profile
from pipelag.timing.rehearsal import rehearse
from pipelag.timing.timed import time_schedule

ARMS = (
    *(("pipedream", 1), ("stale_weights", 1), ("pipeoptim", 1), ("xpipe", 1)),
    *(("gpipe", 4), ("1f1b_flush", 4), ("zb_h1", 4), ("sequential", 1)),
)


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)  # type: ignore[arg-type]


def copied_per_second(size: int = 2**26, repeats: int = 5) -> float:
    """The bytes that copies of `size` bytes read and write per second."""
    source, target, seconds = torch.ones(size // 4), torch.ones(size // 4), []
    for _ in range(repeats):
        begun = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - begun)
    return 2 * size / median(seconds)


def link(size: float, repeats: int = 9) -> Topology:
    """Latency and bandwidth between the two workers, by sending one number, then `size` bytes, back and forth."""
    there, seconds = dist.get_rank() == 0, []
    for numbers in (1, max(int(size) // 4, 2)):
        message, taken = torch.ones(numbers), []
        for _ in range(repeats):
            begun = time.perf_counter()
            for sending in (there, not there):
                dist.send(message, int(there)) if sending else dist.recv(message, int(there))
            taken.append((time.perf_counter() - begun) / 2)
        seconds.append(median(taken))
    return Topology(bandwidth=size / max(seconds[1] - seconds[0], 1e-9), latency=seconds[0])


def charged(costs: list[StageCost], method: methods.Method, parts: int, speed: float) -> list[StageCost]:
    """The costs with the time that moving weights takes. speed: bytes per second."""
    stages = []
    for number, cost in enumerate(costs, start=1):
        kinds = rehearse(method, sgd, number, len(costs), parts).moved
        seconds = {kind: one.separate * cost.weight_bytes / speed for kind, one in kinds.items()}
        forward, backward = cost.forward + seconds["F"] / parts, cost.backward + seconds["B"] / parts
        stages.append(replace(cost, forward=forward, backward=backward, update=seconds["U"] + seconds["step"]))
    return stages


def compare(
    job: Job, depth: int, cut: int, batch: int, steps: int, blocks: int
) -> dict[str, list[tuple[float, float, float]]]:
    """By name, for every block, (predicted, predicted with moving weights, measured) milliseconds per minibatch."""
    images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,))
    model = models.build(f"resnet{depth}", seed=0).to(memory_format=torch.channels_last)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _ in ARMS}
    for block in range(blocks + 1):
        beside = {}
        for parts in (1, 4):
            dist.barrier()
            beside[parts] = profile(model, images[: batch // parts], repeats=5, split=parts > 1)
        dist.barrier()
        alone = profile(model, images, repeats=5) if dist.get_rank() == 0 else beside[1]
        dist.barrier()
        speed, links = copied_per_second(), link(beside[1].cut((cut,))[0].output_bytes)
        for name, parts in ARMS:
            method = methods.get(name)
            layers = alone if name == "sequential" else beside[parts]
            passes, plan = layers.cut((cut,)), method.schedule(2, steps, parts)
            per_minibatch = [
                1e3 * time_schedule(plan, costs, links).steady_period
                for costs in (passes, charged(passes, method, parts, speed))
            ]
            dist.barrier()
            training = RealTraining(
                job, model, [Phase(method, steps, (cut,), {}, parts)], sgd, F.cross_entropy, rate=lambda s: 1.0, seed=0
            )
            updated = training.run(lambda step: images, lambda step: labels)[0][0].updated
            if block:  # the first block is a warm-up
                low, high = len(updated) // 4, len(updated) - 1 - len(updated) // 4
                measured = 1e3 * (updated[high] - updated[low]) / (high - low)
                found[name].append((per_minibatch[0], per_minibatch[1], measured))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--cut", type=int, default=7)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--blocks", type=int, default=9)
    args = parser.parse_args()
    for name, blocks in launch(compare, 2, "cpu", 1, **vars(args)).items():
        passes, moving, measured = (median(each) for each in zip(*blocks, strict=True))
        ratios = [its_moving / took for _, its_moving, took in blocks]
        alone = median(its_passes / took for its_passes, _, took in blocks)
        note("timed / measured time per minibatch, 2 workers", name, ratios, least=0.9, most=1.1)
        print(
            f"{name:16s} predicted {passes:7.1f} ms, {moving:7.1f} with moving weights   measured {measured:7.1f} ms   "
            f"ratios {alone:.3f}, {median(ratios):.3f}"
        )


if __name__ == "__main__":
    main()
