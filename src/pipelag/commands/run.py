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
from pipelag.runs.carry_out import carry_out
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
    """Validate, then hand over to the run's kind."""
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
        place = " at " + ".".join(str(part) for part in first["loc"]) if first["loc"] else ""
        said = first["msg"].removeprefix("Value error, ")
        raise PipelagError(f"the run's spec is wrong{place}: {said}") from error
