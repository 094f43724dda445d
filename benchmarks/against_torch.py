"""Compare pipelag's schedules with torch's on two workers: stale weights and synchronous schedules, the same ResNet-20.

torch's schedules are GPipe, 1F1B, interleaved 1F1B and ZB-V (two stages per worker) of torch.distributed.pipelining.
pipelag's synchronous ones are also compared with each other: what a zero bubble saves. Each schedule, pipelag's and
torch's, runs with 2, 4 and 8 microbatches, and the best counts. All alternate in one launch;
every arm trains (forward, backward, optimizer step) on minibatches of the same size. Prints ratios.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.nn import functional as F

from benchmarks.ledger import note
from pipelag import methods, models
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.models.cut import stages
from pipelag.stage.phase import Phase

PEERS: dict[str, Any] = {
    "GPipe": ScheduleGPipe,
    "1F1B": Schedule1F1B,
    "interleaved 1F1B": ScheduleInterleaved1F1B,
    "ZB-V": ScheduleZBVZeroBubble,
}
PLACES = {"interleaved 1F1B": ((0, 2), (1, 3)), "ZB-V": ((0, 3), (1, 2))}  # by rank, the stages of four, from 0
OURS = {
    "our 1F1B with a flush": "1f1b_flush",
    "our interleaved 1F1B": "1f1b_interleaved",
    "our ZB-H1": "zb_h1",
    "our ZB-V": "zb_v",
}
PARTS = (2, 4, 8)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


class Turned(torch.autograd.Function):
    """NCHW to NHWC or back. What is sent, outputs and gradients, is contiguous in NHWC."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, leaving: bool) -> torch.Tensor:
        ctx.leaving = leaving
        return x.permute(0, 2, 3, 1).contiguous() if leaving else x.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        turned = gradient.permute(0, 3, 1, 2) if ctx.leaving else gradient.permute(0, 2, 3, 1).contiguous()
        return turned, None


class Boundary(nn.Module):
    """Crosses a stage boundary in NHWC.

    torch's schedules send only contiguous tensors, and channels_last is twice as fast. copied: what leaves is no view,
    since torch's zero-bubble schedules detach it in place.
    """

    def __init__(self, leaving: bool, copied: bool = False) -> None:
        super().__init__()
        self.leaving, self.copied = leaving, copied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned: torch.Tensor = Turned.apply(x, self.leaving)
        return turned.clone() if self.copied else turned


def bounded(pieces: list[nn.Sequential], number: int, copied: bool) -> nn.Sequential:
    """Stage `number` (from 0) for torch's schedules, with its boundaries."""
    before = [Boundary(leaving=False)] if number else []
    after = [Boundary(leaving=True, copied=copied)] if number < len(pieces) - 1 else []
    return nn.Sequential(*before, *pieces[number], *after)


def compare(
    job: Job, depth: int, cut: int, cuts: tuple[int, ...], batch: int, steps: int, blocks: int
) -> dict[str, list[float]]:
    """The milliseconds per minibatch of every arm, by its name and block."""
    images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,))
    first, last = job.rank == 0, job.rank == 1
    arms: dict[str, Any] = {}
    with_loss: list[Any] = []  # the schedules whose last stage is on this rank
    for name, schedule in PEERS.items():
        for microbatches in PARTS:
            virtual = name in PLACES
            whole = models.build(f"resnet{depth}", seed=0).to(memory_format=torch.channels_last)
            pieces = stages(whole, cuts if virtual else (cut,))
            places = PLACES[name][job.rank] if virtual else (job.rank,)
            local = [bounded(pieces, number, name == "ZB-V") for number in places]
            held = [PipelineStage(m, k, len(pieces), job.device) for k, m in zip(places, local, strict=True)]
            runner = schedule(held if virtual else held[0], microbatches, loss_fn=F.cross_entropy)
            with_loss += [runner] * (len(pieces) - 1 in places)
            arms[f"{name}, {microbatches} microbatches"] = (runner, sgd(nn.ModuleList(local).parameters()))

    def peer(runner: Any, optimizer: torch.optim.Optimizer) -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            runner.step(*([images] if first else []), **({"target": labels} if runner in with_loss else {}))
            optimizer.step()
        dist.barrier()
        return 1000 * (time.perf_counter() - start) / steps

    ours = RealTraining(
        job, models.build(f"resnet{depth}", seed=0).to(memory_format=torch.channels_last), [], sgd, F.cross_entropy,
        rate=lambda step: 1.0, seed=0,
    )  # fmt: skip

    def here(method: str, microbatches: int = 1) -> float:
        dist.barrier()
        over = cuts if method in ("1f1b_interleaved", "zb_v") else (cut,)
        phase = Phase(methods.get(method), steps, over, microbatches=microbatches)
        start = time.perf_counter()
        records = ours.run_phase(phase, lambda step: images, lambda step: labels)
        return 1000 * (records[job.rank].updated[-1] - start) / steps  # with fill and drain, as torch's schedules

    times: dict[str, list[float]] = {}
    for block in range(blocks + 1):
        values = {"stale weights": here("stale_weights")}
        for label, method in OURS.items():
            values |= {f"{label}, {parts} microbatches": here(method, parts) for parts in PARTS}
        values |= {name: peer(*arm) for name, arm in arms.items()}
        if block:  # the first block is a warm-up
            for name, value in values.items():
                times.setdefault(name, []).append(value)
    assert first or last
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--cut", type=int, default=9, help="between blocks: the peers pass one tensor")
    parser.add_argument("--cuts", type=int, nargs=3, default=(5, 9, 13), help="of the four stages that are interleaved")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=5)
    args = parser.parse_args()
    options = {"depth": args.depth, "cut": args.cut, "cuts": tuple(args.cuts), "batch": args.batch}
    times = launch(compare, 2, "cpu", 1, **options, steps=args.steps, blocks=args.blocks)
    best = {"stale weights": "stale weights"}
    for name in (*OURS, *PEERS):
        variants = [arm for arm in times if arm.rsplit(",", 1)[0] == name]
        best[name] = min(variants, key=lambda arm: median(times[arm]))
    for arm in best.values():
        print(f"{arm:40s} {median(times[arm]):7.1f} ms per minibatch   {ratio(times, arm, best['stale weights'])}")
    for name in PEERS:
        peer, fastest = times[best[name]], times[best["stale weights"]]
        values = [theirs / here for theirs, here in zip(peer, fastest, strict=True)]
        note("torch.distributed.pipelining / stale weights here, 2 workers", best[name], values, least=1.0)
    plain = times[best["our 1F1B with a flush"]]
    for name in ("our ZB-H1", "our ZB-V"):
        values = [flushed / here for flushed, here in zip(plain, times[best[name]], strict=True)]
        note("1F1B with a flush / a zero-bubble schedule, both here, 2 workers", best[name], values)
    for theirs, ours in (("1F1B", "1F1B with a flush"), *((name, name) for name in PLACES)):
        print(f"torch's {theirs} / ours: {ratio(times, best[theirs], best[f'our {ours}'])}")


def ratio(times: dict[str, list[float]], arm: str, to: str) -> str:
    """The median of the blocks' ratios `arm` / `to`, as text."""
    return f"ratio {median(theirs / here for theirs, here in zip(times[arm], times[to], strict=True)):.2f}"


if __name__ == "__main__":
    main()
