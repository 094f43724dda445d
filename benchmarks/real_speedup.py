"""A real pipeline of two workers against one worker, one thread each: CIFAR ResNets, the cut by measured layer times.

One launch alternates blocks of both; per-step times are steady state (fill and drain left out).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

from benchmarks.ledger import note
from pipelag import balanced_cuts, models, profile
from pipelag.runs.kinds.speed import measure
from pipelag.runs.spec import RunSpec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[20, 56, 110])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=5)
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
        times = {
            arm: min(1000 * r["seconds"] / r["steps"] for r in rows if r["arm"] == arm)
            for arm in ("non-pipelined", "pipelined")
        }
        print(
            f"ResNet-{depth:<4d} batch {args.batch}, cut after layer {cuts[0]} ({100 * share:.0f} % of the time): "
            f"speedup {summary['speedup']['pipelined']:.3f}  blocks [{ratios}]  "
            f"best {times['non-pipelined']:.0f} -> {times['pipelined']:.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
