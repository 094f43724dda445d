"""`pipelag run`: carry out one run, of any kind, into a folder."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipelag.errors import PipelagError
from pipelag.runs.spec import RunSpec


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--spec", help="the run as JSON text (what the workflow passes)")
    what.add_argument("--config", type=Path, help="the run as a YAML or JSON file, e.g. another run's config.yaml")
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads to use (default: all cores)")


def main(args: argparse.Namespace) -> int:
    """Validate, then hand over to the module of the run's kind."""
    spec = read_spec(args.spec, args.config)
    threads = args.threads or os.cpu_count() or 1
    carry_out(spec, args.out, args.device, threads)
    return 0


def read_spec(text: str | None, path: Path | None) -> RunSpec:
    """The spec from JSON text or from a file; bad ones are refused with the place of the first mistake."""
    try:
        if path is not None:
            value: Any = yaml.safe_load(path.read_text())
        else:
            value = json.loads(text or "")
        return RunSpec.model_validate(value)
    except FileNotFoundError as error:
        raise PipelagError(f"there is no run file '{path}'") from error
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise PipelagError(f"the run's spec cannot be read: {str(error).splitlines()[0]}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the spec"
        raise PipelagError(f"the run's spec is wrong at {place}: {first['msg']}") from error


def resolve_device(name: str) -> str:
    """`auto` is the first GPU where there is one; a GPU asked for that is not there is refused."""
    import torch

    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PipelagError(f"device '{name}' was asked for, but torch sees no GPU here; use --device cpu or auto")
    if name != "cpu" and not name.startswith("cuda"):
        raise PipelagError(f"unknown device '{name}'; the devices are auto, cpu, cuda and cuda:N")
    return "cuda:0" if name == "cuda" else name


def train(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """A training run, by the executor that it names; no two at once in one folder."""
    from pipelag.runs.checkpoint import alone

    with alone(out / "partial"):
        if spec.executor == "simulated":
            import torch

            from pipelag.runs.train import train as simulated

            return simulated(spec, out, torch.device(device), threads)
        from pipelag.distributed.run import train as real

        return real(spec, out, device, threads)


def carry_out(spec: RunSpec, out: Path, device_name: str, threads: int) -> dict[str, Any]:
    """Run `spec` into `out`; returns the summary that was written."""
    if spec.kind == "timeline":  # needs no torch
        from pipelag.runs.timeline import lay_out

        return lay_out(spec, out)
    if spec.kind == "theory":
        from pipelag.runs.theory import study

        return study(spec, out)
    import torch

    torch.set_num_threads(threads)
    device = resolve_device(device_name)
    if spec.kind == "train":
        return train(spec, out, device, threads)
    if spec.kind == "speed":
        from pipelag.distributed.speed import measure

        return measure(spec, out, device, threads)
    if spec.kind == "plan":
        from pipelag.runs.plan import plan

        return plan(spec, out)
    from pipelag.runs import inspect

    return (
        inspect.profile(spec, out, torch.device(device), threads)
        if spec.kind == "profile"
        else inspect.count(spec, out, threads)
    )
