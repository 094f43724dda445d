"""Measure how the cost of planning and timing grows with stages, minibatches, workers and layers. Nothing is trained.

Every case runs in a process of its own; its CPU seconds and the growth of its peak memory are printed. The exponent
below each series means that twice the work costs 2^exponent as much (least squares over the series).
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.ledger import note
from pipelag.partitioner.cluster import Cluster, Level
from pipelag.partitioner.search import partition
from pipelag.schedules import delays, schedule
from pipelag.timing.costs import Topology, uniform
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.timed import time_schedule

Cost = tuple[float, float, int]  # CPU seconds, bytes, work


def schedule_case(name: str, stages: int, minibatches: int, what: str) -> Cost:
    """Build a schedule, and derive its delays or time it over links; the work is its number of actions."""
    began, held = time.process_time(), resident()
    plan = schedule(name, stages=stages, minibatches=minibatches)
    if what == "delays":
        delays(plan)
    if what == "timed":
        links = Topology(bandwidth=1.0, latency=0.01)
        timing = time_schedule(plan, uniform(stages, output_bytes=0.1, kept_bytes=1.0, weight_bytes=1.0), links)
        assert timing.makespan > 0 and timing.throughput > 0 and len(timing.peak_memory) == stages
    return time.process_time() - began, resident() - held, sum(map(len, plan.workers))


def partition_case(servers: int, each: int, layers: int) -> Cost:
    """Plan a chain of layers whose times and sizes vary; the work is the number of workers times that of layers."""
    draw = np.random.default_rng(0)
    times, outputs = draw.uniform(1, 9, layers), draw.uniform(1e6, 9e7, layers)
    weights = draw.uniform(1e5, 4e8, layers)
    profile = Profile(
        tuple(
            LayerTime(n + 1, str(n), t, 2 * t, int(o), int(o), int(w))
            for n, (t, o, w) in enumerate(zip(times, outputs, weights, strict=True))
        )
    )
    began, held = time.process_time(), resident()
    levels = [level for level in (Level(each, 12e9), Level(servers, 1.25e9)) if level.workers > 1]
    partition(profile, Cluster(tuple(levels)))
    return time.process_time() - began, resident() - held, servers * each * layers


def resident() -> float:
    """The peak memory of this process so far, in bytes."""
    unit = 1.0 if sys.platform == "darwin" else 1024.0  # macOS counts bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def series(title: str, unit: str, case: Callable[..., Cost], sizes: Sequence[tuple[Any, ...]]) -> None:
    """Run the cases, and print a line for each, then the exponent."""
    print(f"\n{title}\n{'case':>28} {unit + 's':>12} {'CPU s':>9} {'us each':>8} {'bytes each':>10}")
    seconds, works = [], []
    for size in sizes:
        with get_context("spawn").Pool(1) as fresh:
            took, grew, work = fresh.apply(case, size)
        seconds.append(took)
        works.append(work)
        label = " x ".join(str(part) for part in size)
        if unit == "action":
            note(title, label, [took / work * 1e6], "us an action", most=2.0, work=work)
            note(f"{title}, memory", label, [grew / work], "bytes an action", most=100.0, work=work)
        else:
            note(title, label, [took], "CPU s", most=10.0, work=work)
        print(f"{label:>28} {work:12,} {took:9.2f} {took / work * 1e6:8.2f} {grew / work:10.0f}", flush=True)
    if len(sizes) > 1:
        print(f"exponent {np.polyfit(np.log(works), np.log(seconds), 1)[0]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", default="1f1b", help="1f1b, gpipe, cycle, pipemare, ...")
    parser.add_argument("--most", type=int, default=1024, help="stages, and workers of a partition, at most")
    parser.add_argument("--minibatches", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=128)
    parser.add_argument("--only", choices=("schedule", "delays", "timed", "workers", "layers"))
    args = parser.parse_args()
    counts = [n for n in (64, 128, 256, 512, 1024, 2048, 4096) if n <= args.most]
    if not counts:
        parser.error("--most is 64 or more, the fewest stages and workers that are measured")
    for what in ("schedule", "delays", "timed"):
        if args.only in (None, what):
            sizes = [(args.schedule, n, args.minibatches, what) for n in counts]
            series(f"{what}: more stages", "action", schedule_case, sizes)
            longer = [(args.schedule, counts[0], n * args.minibatches, what) for n in (1, 2, 4, 8, 16)]
            series(f"{what}: more minibatches", "action", schedule_case, longer)
    if args.only in (None, "workers"):
        servers = [(n // 8, 8, args.layers) for n in counts]
        series("partition: more servers of 8 workers", "worker-layer", partition_case, servers)
    if args.only in (None, "layers"):
        sizes_of_layers = [(counts[0] // 8, 8, n) for n in (32, 64, 128, 256)]
        series("partition: more layers", "worker-layer", partition_case, sizes_of_layers)


if __name__ == "__main__":
    main()
