"""`pipelag timeline`: draw a schedule, or what a run really did, as PDF, SVG or PNG, or as a trace for Perfetto."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from pipelag.errors import PipelagError

DRAWN = (".pdf", ".svg", ".png")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", help="a schedule or method (1f1b, gpipe, pipemare, ...), or the folder of a run")
    parser.add_argument("--out", type=Path, required=True, help="a .pdf, .svg or .png to draw, or a .json trace")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--forward", type=float, default=1.0, help="time of a stage's forward (default: 1)")
    parser.add_argument("--backward", type=float, default=2.0, help="time of a stage's backward (default: 2)")
    parser.add_argument("--transfer", type=float, default=0.0, help="time of a message between stages (default: 0)")
    parser.add_argument(
        "--segment", type=int, default=0, help="stages recomputed together (pipemare only; default: none)"
    )
    parser.add_argument("--until", type=float, help="draw only what begins before this time")


def main(args: argparse.Namespace) -> int:
    """Lay out or read, then write."""
    if args.out.suffix not in (*DRAWN, ".json"):
        raise PipelagError(f"'{args.out}' is no timeline file; its name must end in .pdf, .svg, .png or .json")
    folder = Path(args.source)
    if folder.is_dir():
        rows, unit = recorded(folder), "seconds"
    else:
        rows, unit = planned(args), "time (one forward pass = 1)" if args.forward == 1 else "time"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if args.out.suffix == ".json":
        if folder.is_dir():
            shutil.copyfile(folder / "trace.json", args.out)
        else:
            from pipelag.timing.trace import write_trace

            write_trace(rows, args.out)
    else:
        draw(rows, args.out, unit, args.until)
    print(f"{args.out}: {len(rows)} actions of {1 + max(row['worker'] for row in rows)} workers")
    if not folder.is_dir():
        print(staleness(args))
    return 0


def staleness(args: argparse.Namespace) -> str:
    """The delays that follow from the schedule, at any length, or why it has none that an executor could carry out."""
    from pipelag.methods import METHODS
    from pipelag.schedules import SCHEDULES, steady_delays

    build = SCHEDULES[args.source] if args.source in SCHEDULES else METHODS[args.source].build
    try:
        found = steady_delays(build, args.stages, args.microbatches)
    except PipelagError as error:
        return f"no method can use it: {error}"
    return f"updates missed, by stage: {list(found.forward)} in forwards, {list(found.backward)} in backwards"


def planned(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a schedule over equal stages, by the timed executor."""
    import pipelag
    from pipelag.timing.costs import Topology, uniform
    from pipelag.timing.timed import time_schedule
    from pipelag.timing.trace import row_of, transfer_rows

    options = {"microbatches": args.microbatches} if args.microbatches > 1 else {}
    options |= {"segment": args.segment} if args.segment else {}
    plan = pipelag.schedule(args.source, stages=args.stages, minibatches=args.minibatches, **options)
    costs = uniform(args.stages, args.forward, args.backward, output_bytes=1.0 if args.transfer else 0.0)
    timing = time_schedule(plan, costs, Topology(bandwidth=1 / args.transfer) if args.transfer else None)
    rows = [row_of(*span, plan.microbatches) for span in timing.spans if span.action.kind != "U"]
    return rows + transfer_rows(timing)


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's `trace.json`; raises `PipelagError` where the run has left none."""
    path = folder / "trace.json"
    if not path.exists():
        raise PipelagError(
            f"'{folder}' has no trace.json; timeline runs and training runs of the real executor leave one"
        )
    kinds = {"forward": "F", "backward": "B", "recompute": "R", "transfer": "send"}
    return [
        {"worker": event["tid"], "start": event["ts"] / 1e6, "end": (event["ts"] + event["dur"]) / 1e6}
        | {"kind": kinds[event["cat"]], **event["args"]}
        for event in json.loads(path.read_text())["traceEvents"]
        if event["ph"] == "X" and event["cat"] in kinds
    ]


def draw(rows: list[dict[str, Any]], out: Path, unit: str, until: float | None) -> None:
    """Draw the rows, passes numbered by microbatch from 1."""
    from pipelag.report.style import save
    from pipelag.report.timelines import timeline

    workers = 1 + max(row["worker"] for row in rows)
    figure = timeline(
        rows,
        [f"worker {worker + 1}" for worker in range(workers)],
        number=lambda row: str(1 + row.get("microbatch", row["minibatch"])),
        unit=unit,
        until=until,
    )
    save(figure, out.with_suffix(""), (out.suffix,))
