"""`pipelag timeline`: draw a schedule or a run's trace as PDF, SVG or PNG, or write it as a trace for Perfetto."""

from __future__ import annotations

import argparse
import os
import shutil
from contextlib import suppress
from functools import partial
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pipelag.commands.arguments import location, number, whole, wholes
from pipelag.errors import PipelagError, shortened
from pipelag.files import check_writable, json_of, read_text, read_yaml, written
from pipelag.typed import MOST_STEPS, MOST_WORKERS, checked

if TYPE_CHECKING:
    from pipelag.schedules import Schedule

MOST_TRACE = 256 * 2**20  # bytes
DRAWN = (".pdf", ".svg", ".png")
MOST_ACTIONS = 200_000  # in a drawing: more fit on no page, and browsers are too slow for them
# Options that apply to a schedule, not to a run's folder.
OF_SCHEDULES = (
    "stages",
    "minibatches",
    "microbatches",
    "replicas",
    "depth",
    "forward",
    "backward",
    "weight_gradient",
    "transfer",
    "segment",
)
Time = Annotated[float, Field(ge=0, le=1e15)]
Number = Annotated[int, Field(ge=0, le=MOST_STEPS)]


class Event(BaseModel):
    """What is read of an action in a trace: times in microseconds. Browsers know more fields."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    tid: int = Field(ge=0, le=MOST_WORKERS)
    ts: Time
    dur: Time
    cat: str
    args: Action


class Action(BaseModel):
    """Which action it is."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

    stage: Number
    minibatch: Number
    microbatch: Number | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", help="a schedule or method (1f1b, gpipe, pipemare, ...), or a run's folder")
    parser.add_argument(
        "--out",
        type=location,
        required=True,
        help="the file to write: a figure (.pdf, .svg, .png) or a Perfetto trace (.json)",
    )
    parser.add_argument("--stages", type=whole(1, 1000), help="number of stages (default: as in --replicas, or else 4)")
    parser.add_argument(
        "--minibatches", type=whole(1, MOST_ACTIONS), default=8, help="number of minibatches (default: 8)"
    )
    parser.add_argument(
        "--microbatches", type=whole(1, 1000), default=1, help="microbatches per minibatch (default: 1)"
    )
    parser.add_argument(
        "--replicas",
        type=wholes(1, 1000),
        default=(),
        help="workers of each stage, such as 2,1 (1f1b_rr only; default: 1 each)",
    )
    parser.add_argument(
        "--depth",
        type=whole(1, 1000),
        help="minibatches in flight per worker of the first stage (1f1b_rr only; default: NOAM, which keeps "
        "all workers busy)",
    )
    parser.add_argument(
        "--forward", type=number(above=0), default=1.0, help="time of a stage's forward pass (default: 1)"
    )
    parser.add_argument(
        "--backward", type=number(above=0), default=2.0, help="time of a stage's backward pass (default: 2)"
    )
    parser.add_argument(
        "--weight-gradient",
        type=number(least=0),
        help="the part of a backward's time that computes the gradients of weights, where a schedule does so apart "
        "(default: half of it)",
    )
    parser.add_argument(
        "--transfer", type=number(least=0), default=0.0, help="time of a message between stages (default: 0)"
    )
    parser.add_argument(
        "--segment", type=whole(0, 1000), default=0, help="stages recomputed together (pipemare only; default: none)"
    )
    parser.add_argument("--until", type=number(above=0), help="draw only actions that begin before this time")


def main(args: argparse.Namespace) -> int:
    """Lay out or read, then write."""
    if args.out.suffix not in (*DRAWN, ".json"):
        raise PipelagError(f"'{args.out}' cannot be a timeline; its name must end in .pdf, .svg, .png or .json")
    folder = Path(args.source)
    if args.until is not None and args.out.suffix == ".json":
        raise PipelagError(
            "--until applies to figures, and a trace holds every action; leave it out, or draw a .pdf, .svg or .png"
        )
    is_folder = args.source != "" and os.path.isdir(folder)  # false of too long a name, too
    if not is_folder and (os.sep in args.source or os.path.exists(folder)):
        raise PipelagError(
            f"there is no folder '{args.source}'; give the folder of a run, or a schedule or a method by name"
        )
    check_writable(args.out)
    if is_folder:
        unasked = argparse.ArgumentParser()
        configure(unasked)
        for name in OF_SCHEDULES:
            if getattr(args, name) != unasked.get_default(name):
                raise PipelagError(
                    f"--{name.replace('_', '-')} applies to a schedule, and '{folder}' is a run's folder; leave it out"
                )
        rows, unit = recorded(folder), unit_of(folder)
    else:
        args.stages = args.stages or len(args.replicas) or 4
        rows, unit = planned(args), "time (one forward pass = 1)" if args.forward == 1 else "time"
    if args.out.suffix == ".json":
        if is_folder:
            with written(args.out) as aside:
                shutil.copyfile(folder / "trace.json", aside)
        else:
            from pipelag.timing.trace import write_trace

            write_trace(rows, args.out)
    else:
        draw(rows, args.out, unit, args.until)
    sent = sum(row["kind"] == "send" for row in rows)
    workers = max(sum(args.replicas), 1 + max(row["worker"] for row in rows))  # few minibatches leave replicas idle
    messages = f" and {sent} messages" if sent else ""
    print(f"{args.out}: {len(rows) - sent} actions{messages} on {workers} worker{'s' if workers > 1 else ''}")
    if not is_folder:
        print(staleness(args))
    return 0


def staleness(args: argparse.Namespace) -> str:
    """The schedule's delays in the steady state, or why no executor could use it."""
    from pipelag.methods import METHODS
    from pipelag.schedules import SCHEDULES, steady_delays
    from pipelag.schedules.replicated import one_f_one_b_rounds

    build = SCHEDULES[args.source] if args.source in SCHEDULES else METHODS[args.source].build
    if args.source == "1f1b_rr":  # a round makes one update
        build = partial(one_f_one_b_rounds, replicas=args.replicas or [1] * args.stages, depth=args.depth)
    try:
        lags = steady_delays(build, args.stages, args.microbatches, lcm(*args.replicas))
    except PipelagError as error:
        return f"no method can use this schedule: {shortened(str(error), 200)}"
    missed = f"updates missed per stage: {list(lags.forward)} in the forward, {list(lags.backward)} in the backward"
    if args.source in SCHEDULES:
        return missed
    return f"{missed}, if they read the live weights; `pipelag methods {args.source}` shows what they read"


def planned(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a schedule over equal stages, by the timed executor."""
    import pipelag
    from pipelag.timing.costs import Topology, uniform
    from pipelag.timing.timed import time_schedule
    from pipelag.timing.trace import row_of, transfer_rows

    if args.stages * args.minibatches * args.microbatches > MOST_ACTIONS:
        raise PipelagError(
            f"{args.stages} stages x {args.minibatches} minibatches x {args.microbatches} microbatches are more than "
            f"{MOST_ACTIONS:,} passes, the most that can be drawn; draw fewer"
        )
    options: dict[str, Any] = {"microbatches": args.microbatches} if args.microbatches > 1 else {}
    options |= {"segment": args.segment} if args.segment else {}
    options |= {"replicas": args.replicas} if args.replicas else {}
    options |= {"depth": args.depth} if args.depth else {}
    plan = pipelag.schedule(args.source, stages=args.stages, minibatches=args.minibatches, **options)
    sizes = {"output_bytes": 1.0 if args.transfer else 0.0} | part_of_weights(plan, args)
    costs = uniform(args.stages, args.forward, args.backward, **sizes)
    timing = time_schedule(plan, costs, Topology(bandwidth=1 / args.transfer) if args.transfer else None)
    rows = [row_of(*span, plan.microbatches) for span in timing.spans if span.action.kind not in ("S", "U")]
    return rows + transfer_rows(timing)


def part_of_weights(plan: Schedule, args: argparse.Namespace) -> dict[str, float]:
    """The time of W, if it is given."""
    if args.weight_gradient is None:
        return {}
    if not any(plan.split):
        raise PipelagError(
            f"--weight-gradient applies to schedules with W actions, such as zb_h1, and '{args.source}' has none; "
            "leave it out"
        )
    if args.weight_gradient > args.backward:
        raise PipelagError(
            f"--weight-gradient is {args.weight_gradient:g}, but it is a part of a backward, which takes "
            f"{args.backward:g} (--backward)"
        )
    return {"weight_gradient": args.weight_gradient}


def _check_seal(path: Path) -> None:
    """Refuse a trace that is not the one whose sum the run's summary holds."""
    from pipelag.runs.folder import is_summed

    summary = path.with_name("summary.json")
    if not summary.exists():
        return  # the run is not finished
    content = json_of(read_text(summary, "a run's summary"), f"'{summary}'")
    if not isinstance(content, dict) or not is_summed(content, path):
        raise PipelagError(f"'{path}' is not what its run wrote; repeat the run with pipelag run")


def unit_of(folder: Path) -> str:
    """Of a run's trace: a timeline's cycles, or the units of the costs that it was given; what trains takes seconds."""
    path = folder / "config.yaml"
    content = read_yaml(path, "a run's config") if path.exists() else None
    if not isinstance(content, dict) or content.get("kind") != "timeline":
        return "seconds"
    options = content.get("options")
    return "time units" if isinstance(options, dict) and options.get("costs") else "cycles"


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's `trace.json`; raises `PipelagError` where the run has left none."""
    from pipelag.timing.trace import NAMES

    kinds = {name: kind for kind, name in NAMES.items() if kind != "U"}  # updates are not drawn
    path = folder / "trace.json"
    with suppress(PermissionError):  # `read_text` says so
        if not path.exists():
            raise PipelagError(
                f"'{folder}' has no trace.json; timeline runs and training runs of the real executor leave one"
            )
    content = json_of(read_text(path, "a trace", MOST_TRACE), f"'{path}'", 100 * MOST_ACTIONS)
    _check_seal(path)
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise PipelagError(f"'{path}' is not a trace: it should be a mapping with the list traceEvents")
    rows = []
    for place, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X" or str(event.get("cat")) not in kinds:
            continue
        try:
            one = checked(Event, event, "key")
        except PipelagError as error:
            raise PipelagError(f"'{path}', event {place}: {error}") from error
        rows.append(
            {"worker": one.tid, "start": one.ts / 1e6, "end": (one.ts + one.dur) / 1e6}
            | {"kind": kinds[one.cat], **one.args.model_dump(exclude_none=True)}
        )
    if not any(row["end"] > row["start"] for row in rows):
        raise PipelagError(f"'{path}' holds no action that takes any time, so there is nothing to draw")
    return rows


def draw(rows: list[dict[str, Any]], out: Path, unit: str, until: float | None) -> None:
    """Draw the rows, passes numbered by microbatch from 1; where a worker has several stages, also by stage."""
    from pipelag.report.style import save
    from pipelag.report.timelines import timeline

    workers = 1 + max(row["worker"] for row in rows)
    held = {(row["worker"], row["stage"]) for row in rows if row["kind"] != "send"}
    several = len(held) > len({worker for worker, _ in held})
    figure = timeline(
        rows,
        [f"worker {worker + 1}" for worker in range(workers)],
        number=lambda row: str(1 + row.get("microbatch", row["minibatch"])),
        label=lambda row: f"s{row['stage']}" if several else "",
        unit=f"{unit}; s: the stage" if several else unit,
        until=until,
    )
    save(figure, out.with_suffix(""), (out.suffix,))
