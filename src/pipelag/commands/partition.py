"""`pipelag partition`: print the plan for a profile on a cluster and, on request, write or draw it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelag.commands.arguments import location, number, whole
from pipelag.errors import PipelagError, shortened
from pipelag.files import check_writable, write_whole
from pipelag.partitioner.cluster import SYNC, Cluster
from pipelag.partitioner.plan import Plan, PlanStage, bytes_per_minibatch, memory_of, predict, timed_period
from pipelag.partitioner.published import chain, read_graph
from pipelag.partitioner.search import partition
from pipelag.timing.layers import Profile
from pipelag.typed import MOST_WORKERS

DRAWN = (".pdf", ".svg", ".png")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("profile", type=location, help="a profile saved by pipelag (.jsonl), or PipeDream's graph.txt")
    parser.add_argument(
        "--cluster", type=location, required=True, help="the cluster as YAML: levels of {workers, bandwidth, latency}"
    )
    parser.add_argument("--workers", type=whole(1, MOST_WORKERS), help="number of workers that the cluster must have")
    parser.add_argument(
        "--communication",
        choices=sorted(SYNC),
        default="ring",
        help="cost of summing gradients: that of a ring, or as the paper prints it (default: ring)",
    )
    parser.add_argument("--straight", action="store_true", help="one stage per worker, without replicas")
    parser.add_argument(
        "--scale", type=number(above=0), default=1.0, help="minibatch size relative to the profiled one (default: 1)"
    )
    parser.add_argument(
        "--state",
        type=number(least=0),
        default=0.0,
        help="bytes of optimizer state per byte of weights; Adam has 2 (default: 0)",
    )
    parser.add_argument(
        "--out", type=location, help="write the plan to this .json file, or draw it as .pdf, .svg or .png"
    )


def main(args: argparse.Namespace) -> int:
    """Read the profile and the cluster, search the plan, and print it."""
    if args.out is not None and args.out.suffix not in (".json", *DRAWN):
        raise PipelagError(f"'{args.out}' cannot be a plan; its name must end in .json, .pdf, .svg or .png")
    check_writable(args.out)
    profile, notes = read_profile(args.profile)
    profile = profile.scaled(args.scale)
    cluster = Cluster.load(args.cluster, args.workers)
    plan = partition(profile, cluster, args.communication, args.straight, state=args.state)
    for note in notes:
        print(note)
    alone = Plan((PlanStage(1, len(profile.layers), cluster.workers),))
    mine, others = (numbers_of(profile, cluster, one, args.communication, args.state) for one in (plan, alone))
    print(text_of(profile, cluster, plan, mine, others))
    if args.out is not None:
        write(args.out, profile, plan, mine)
        print(f"wrote {args.out}")
    return 0


def read_profile(path: Path) -> tuple[Profile, list[str]]:
    """A profile in either format, and notes on what was merged to make it a chain."""
    if path.suffix == ".txt":
        return chain(read_graph(path))
    return Profile.load(path), []


def numbers_of(profile: Profile, cluster: Cluster, plan: Plan, communication: str, state: float) -> dict[str, Any]:
    """A plan's predicted and timed seconds per minibatch, bytes sent per minibatch, and bytes per worker of each stage.

    Args:
        state: bytes of the optimizer's state per byte of weights.
    """
    return {
        "predicted": predict(profile, cluster, plan, communication),
        "timed": timed_period(profile, cluster, plan),
        "bytes": bytes_per_minibatch(profile, plan),
        "memory": memory_of(profile, plan, state=state),
    }


def text_of(profile: Profile, cluster: Cluster, plan: Plan, mine: dict[str, Any], others: dict[str, Any]) -> str:
    """The plan as lines: its stages, then its throughput beside that of data parallelism.

    Args:
        mine, others: the numbers of the plan and of data parallelism.
    """
    stages = "1 stage" if len(plan.stages) == 1 else f"{len(plan.stages)} stages"
    lines = [f"plan {plan.config}: {stages} on {counted(plan.workers)}, NOAM {plan.noam}"]
    for place, (stage, held) in enumerate(zip(plan.stages, mine["memory"], strict=True), start=1):
        layers = profile.layers[stage.first - 1 : stage.last]
        lines.append(
            f"  stage {place}: layers {stage.first}-{stage.last} "
            f"({shortened(layers[0].name)} ... {shortened(layers[-1].name)}), {counted(stage.replicas)}, "
            f"{rounded(sum(layer.total_ms for layer in layers))} ms, {rounded(held / 1e6, 0)} MB"
        )
    (needed,) = others["memory"]
    too_much = f"; it does not fit: {rounded(needed / 1e6, 0)} MB per worker" if needed > cluster.memory else ""
    for name, numbers, end in (("plan", mine, ""), ("data parallelism", others, too_much)):
        lines.append(
            f"  {name}: predicted {rounded(1 / numbers['predicted'])}, timed {rounded(1 / numbers['timed'])} "
            f"minibatches per second, {rounded(numbers['bytes'] / 1e6, 1)} MB sent per minibatch{end}"
        )
    return "\n".join(lines)


def counted(workers: int) -> str:
    """`1 worker`, `2 workers`."""
    return f"{workers} worker{'s' if workers > 1 else ''}"


def rounded(value: float, places: int = 2) -> str:
    """A number from 0 on with `places` decimals; below 1, three significant digits, so that it is not rounded to 0."""
    return f"{value:.{places}f}" if value >= 1 else f"{value:.3g}"


def write(out: Path, profile: Profile, plan: Plan, numbers: dict[str, Any]) -> None:
    """Write the plan as JSON, with its numbers and the period found by the search, or draw it."""
    if out.suffix == ".json":
        stages = [asdict(stage) for stage in plan.stages]
        content = {"stages": stages, "period": plan.period, "cuts": list(plan.cuts)} | numbers
        write_whole(out, json.dumps(content, indent=1) + "\n")
        return
    from pipelag.report.diagrams import plan_of_layers
    from pipelag.report.style import save

    times = [layer.total_ms for layer in profile.layers]
    save(plan_of_layers(times, [asdict(s) for s in plan.stages]), out.with_suffix(""), (out.suffix,))
