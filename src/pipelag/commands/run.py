"""`pipelag run`: carry out one run of any kind, or several simulated trainings in turns."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelag import cores
from pipelag.commands.arguments import location, whole
from pipelag.distributed.launch.torchrun import leads, workers_here
from pipelag.errors import PipelagError
from pipelag.experiments.names import check_names
from pipelag.files import folder_for, json_of, read_yaml
from pipelag.runs.carry_out import carry_out, carry_out_together
from pipelag.runs.folder import finished, leaving_nothing
from pipelag.runs.spec import RunSpec
from pipelag.typed import MOST_WORKERS, mistake


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--spec", action="append", help="the run as JSON text, as the workflow passes it")
    what.add_argument(
        "--config",
        action="append",
        type=location,
        help="the run as a YAML or JSON file, such as another run's config.yaml",
    )
    parser.add_argument(
        "--out",
        action="append",
        type=location,
        required=True,
        help="the run's folder; several runs, each with its own --out, are trained in one process, taking turns",
    )
    parser.add_argument(
        "--again", action="store_true", help="repeat the run even if its folder already holds it, finished"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--threads",
        type=whole(1, MOST_WORKERS),
        help="CPU threads (default: as many as the run that wrote the --config file used, or else all that it may use)",
    )


def main(args: argparse.Namespace) -> int:
    """Check the specs, carry out the runs and print their outcomes; a finished run is not repeated."""
    specs = [read_spec(text, None) for text in args.spec or ()] or [read_spec(None, path) for path in args.config]
    if len(specs) != len(args.out):
        raise PipelagError(
            f"the number of runs is {len(specs)}, but that of folders (--out) {len(args.out)}; give each run its own"
        )
    threads = args.threads or before(args.config or (), specs) or cores.count()
    with ExitStack() as stack:
        for out in args.out if leads() else ():
            stack.enter_context(leaving_nothing(out))
        return carried_out(specs, args, threads)


def carried_out(specs: Sequence[RunSpec], args: argparse.Namespace, threads: int) -> int:
    """Carry out the runs that are not finished, and print the outcome of each; returns the exit status."""
    asked = list(zip(specs, args.out, strict=True))
    say = print if leads() else lambda text: None  # under torchrun one process prints
    to_do, damaged = [], set()
    for spec, out in asked:
        stands = None if args.again or not os.path.isdir(out) else finished(out, spec.id)
        if stands is not None:
            say(
                f"{outcome_of(stands, out)}\nnothing was done: the folder holds this run, finished (--again repeats it)"
            )
            continue
        to_do.append((spec, folder_for(out)))
        if not args.again and (out / "summary.json").exists():
            damaged.add(out)
    ends: list[dict[str, Any] | Exception] = []
    if len(asked) == 1:
        ends += [carry_out(*each, args.device, threads) for each in to_do]
    elif to_do:
        ends = carry_out_together(to_do, args.device, threads)
    broken = []
    for (spec, out), end in zip(to_do, ends, strict=True):
        if isinstance(end, Exception):
            broken.append(end)
            continue
        say(outcome_of({"id": spec.id, "kind": spec.kind} | end, out))
        if out in damaged:
            say("the log that was here was damaged; the run was made again")
    if broken:
        print(
            f"pipelag: {len(broken)} of {len(asked)} runs did not finish; start the command again to continue them",
            file=sys.stderr,
        )
        raise min(
            broken, key=lambda end: isinstance(end, PipelagError)
        )  # an unexpected error first: its traceback is kept
    return 0


def before(configs: Sequence[Path], specs: Sequence[RunSpec]) -> int | None:
    """The threads, over all workers, of the runs that wrote these config files: with others, sums round differently.

    None: unknown, or not the same for all.
    """
    threads = set()
    for path, spec in zip(configs, specs, strict=False):
        with suppress(OSError, ValueError, KeyError, TypeError):
            each = int(json.loads((path.parent / "environment.json").read_text())["threads"])  # of a worker
            threads.add(each * workers_here(spec.workers))
    return threads.pop() if len(threads) == 1 else None


def outcome_of(summary: Mapping[str, Any], out: Path) -> str:
    """A run's outcome in a few lines: how it ended, its final and best measures, where its log is."""
    end = str(summary.get("status", "finished"))
    if summary.get("diverged_at") is not None:
        end += f" at step {summary['diverged_at']}"
    elif "steps" in summary:
        end += f" after {summary['steps']:,} steps"
    seconds = f" in {summary['seconds']:,.1f} s" if "seconds" in summary else ""
    lines = [f"run {summary['id']} ({summary['kind']}): {end}{seconds}"]
    final, best = summary.get("final") or {}, summary.get("best") or {}
    if final:
        lines.append("  final: " + ", ".join(f"{name} {_short(value)}" for name, value in final.items()))
    if best:
        lines.append("  best: " + ", ".join(f"{name} {_short(value)}" for name, value in best.items()))
    return "\n".join([*lines, f"  log: {out / 'metrics.jsonl'}; summary: {out / 'summary.json'}"])


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_spec(text: str | None, path: Path | None) -> RunSpec:
    """The spec from JSON text or from a file, checked as the workflow checks it; errors name the key."""
    value: Any = read_yaml(path, "a run's spec") if path is not None else json_of(text or "", "the run's spec")
    try:
        spec = RunSpec.model_validate(value)
    except ValidationError as error:
        where = "the run's spec" if path is None else f"the run's spec '{path}'"
        raise mistake(error, value, RunSpec).at(f"{where} is wrong") from error
    check_names(spec, "the run's spec")
    return spec
