"""Compare a real pipeline of two workers with one worker, one thread each: CIFAR ResNets, cut by measured layer times.

One launch alternates blocks of both; times per step are those of the steady state, without fill and drain. The speedup
is printed with the most that it could be. Two things limit it: one worker has more than half of the work, and even two
processes that do not communicate slow each other down (memory, caches). The latter is measured by trainings that run
alone and side by side.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import multiprocessing as processes
from torch.nn import functional as F

from benchmarks.ledger import note
from pipelag import balanced_cuts, models, profile
from pipelag.allocator import keep_freed_memory
from pipelag.runs.kinds.speed import measure
from pipelag.runs.spec import RunSpec


def training(depth: int, batch: int, seconds: float, begin: Any, results: Any) -> None:
    """Train with plain PyTorch and one thread for `seconds`, once all processes are ready.

    The seconds of a step are put into `results`.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    model = models.build(f"resnet{depth}", seed=0).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    targets = torch.randint(0, 10, (batch,))

    def step() -> None:
        F.cross_entropy(model(images), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    begin.wait()
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        step()
        steps += 1
    results.put((time.perf_counter() - began) / steps)


def apart(depth: int, batch: int, seconds: float, rounds: int) -> list[float]:
    """Per round, the throughput of two trainings that do not communicate over that of one; 2 without interference."""
    context, ratios = processes.get_context("spawn"), []
    for _ in range(rounds):
        rates = []
        for number in (1, 2):
            begin, results = context.Barrier(number), context.SimpleQueue()
            args = depth, batch, seconds, begin, results
            workers = [context.Process(target=training, args=args) for _ in range(number)]
            for worker in workers:
                worker.start()
            seconds_of_step = [results.get() for _ in workers]
            for worker in workers:
                worker.join()
            rates.append(sum(1 / value for value in seconds_of_step))
        ratios.append(rates[1] / rates[0])
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[20, 56, 110])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4.0, help="about how long a block takes")
    parser.add_argument("--cut", type=int, default=None, help="instead of the measured cut")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for depth in args.depths:
        model = models.build(f"resnet{depth}", seed=0).to(memory_format=torch.channels_last)
        images = torch.randn(args.batch, 3, 32, 32).to(memory_format=torch.channels_last)
        layers = profile(model, images, repeats=7)
        cuts = (args.cut,) if args.cut else balanced_cuts(layers, 2)
        total = sum(layer.total_ms for layer in layers.layers)
        share = sum(layer.total_ms for layer in layers.layers[: cuts[0]]) / total
        spec = RunSpec.model_validate(
            {
                "kind": "speed",
                "model": {"name": f"resnet{depth}"},
                "data": {"name": "shapes", "options": {"train": 1000, "test": 100}},
                "batch": args.batch,
                "optimizer": {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4},
                "phases": [{"method": "stale_weights", "cuts": cuts, "steps": 12}],
                "executor": "real",
                "workers": 2,
                "options": {"blocks": args.blocks, "block_steps": max(12, int(1000 * args.seconds / total))},
            }
        )
        with tempfile.TemporaryDirectory() as folder:
            summary = measure(spec, Path(folder), "cpu", 2)
            rows = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
        ratios = " ".join(f"{value:.2f}" for value in summary["speedups"]["pipelined"])
        goal = 1.95 if depth == 20 else 1.7
        case = f"ResNet-{depth}, minibatch {args.batch}, cut after layer {cuts[0]}"
        note("1 worker / 2 workers, stale weights", case, summary["speedups"]["pipelined"], least=goal)
        cores, cut = apart(depth, args.batch, args.seconds, args.blocks), 1 / max(share, 1 - share)
        note("two trainings that do not talk / one alone", f"ResNet-{depth}, minibatch {args.batch}", cores)
        most = cut * median(cores) / 2
        allowed = f"ResNet-{depth}: {cut:.2f} by the cut, {median(cores):.2f} by the cores"
        note(
            "speedup / what the cut and the cores allow", allowed, [x / most for x in summary["speedups"]["pipelined"]]
        )
        times = {
            arm: min(1000 * r["seconds"] / r["steps"] for r in rows if r["arm"] == arm)
            for arm in ("non-pipelined", "pipelined")
        }
        print(
            f"ResNet-{depth:<4d} batch {args.batch}, cut after layer {cuts[0]} ({100 * share:.0f} % of the time): "
            f"speedup {summary['speedup']['pipelined']:.3f}  blocks [{ratios}]  "
            f"best {times['non-pipelined']:.0f} -> {times['pipelined']:.0f} ms, at most {most:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
