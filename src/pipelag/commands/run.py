"""`pipelag run`: carry out one run, of any kind, into a folder."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelag.commands.arguments import whole
from pipelag.distributed.launch.torchrun import leads
from pipelag.experiments.names import check_names
from pipelag.files import folder_for, json_of, read_yaml
from pipelag.runs.carry_out import carry_out
from pipelag.runs.folder import finished
from pipelag.runs.spec import RunSpec
from pipelag.typed import MOST_WORKERS, mistake


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--spec", help="the run as JSON text (what the workflow passes)")
    what.add_argument("--config", type=Path, help="the run as a YAML or JSON file, e.g. another run's config.yaml")
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--again", action="store_true", help="where the folder holds this run, finished: make it anew")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--threads", type=whole(1, MOST_WORKERS), default=None, help="CPU threads to use (default: all cores)"
    )


def main(args: argparse.Namespace) -> int:
    """Validate, hand over to the run's kind, and say what came out; a finished run stands."""
    spec = read_spec(args.spec, args.config)
    threads = args.threads or os.cpu_count() or 1
    out = folder_for(args.out)
    stands = None if args.again else finished(out, spec.id)
    say = print if leads() else lambda text: None  # with torchrun, one process tells
    if stands is not None:
        say(f"{told(stands, out)}\nnothing was done: this run stood here, finished; --again makes it anew")
        return 0
    damaged = not args.again and (out / "summary.json").exists()
    summary = carry_out(spec, out, args.device, threads)
    say(told({"id": spec.id, "kind": spec.kind} | summary, out))
    if damaged:
        say("what stood here was not whole, and is made anew")
    return 0


def told(summary: Mapping[str, Any], out: Path) -> str:
    """What a run came to, in a few lines: its end, its last and best measures, where its log is."""
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
    """The spec from JSON text or from a file, checked as the workflow checks it; mistakes have their place."""
    value: Any = read_yaml(path, "a run's spec") if path is not None else json_of(text or "", "the run's spec")
    try:
        spec = RunSpec.model_validate(value)
    except ValidationError as error:
        raise mistake(error, value, RunSpec).at("the run's spec is wrong") from error
    check_names(spec, "the run's spec")
    return spec
