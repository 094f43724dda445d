"""Run every benchmark in turn into results/benchmarks/<device>.json, then write docs/benchmarks.md from these files.

Nothing else should run on the machine; the load before each benchmark is recorded. A benchmark's rows are written when
it ends; the rows of benchmarks that do not run again stay. Takes an hour or more on two cores.

A GPU has benchmarks of its own (`make bench DEVICE=cuda:0`); `make gpu-check` checks it, and workflow.py measures how
long the workflow takes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import page
from benchmarks.ledger import VARIABLE
from pipelag import precision
from pipelag.errors import PipelagError
from pipelag.files import write_whole
from pipelag.runs.carry_out import resolve_device
from pipelag.runs.folder import device_title, environment

CPU = (
    "real_speedup --depths 20 56 --seconds 3",
    "against_torch",
    "timed_against_real",
    "simulated_overhead --stages 4 --batch 32",
    "simulated_overhead --stages 8 --batch 32 --optimizer adamw",
    "simulated_overhead --model transformer --stages 8 --batch 32 --optimizer adamw",
    "simulated_overhead --stages 100 --batch 32",
    "simulated_overhead --model transformer --stages 100 --batch 32 --rounds 7 --optimizer adamw",
    "simulated_overhead --model transformer --stages 100 --batch 8 --rounds 7 --optimizer adamw --no-goal",
    "simulated_overhead --model resnet50 --batch 64 --microbatches 8 --rounds 5 --methods pipedream pipemare",
    "simulated_overhead --model resnet50 --batch 16 --microbatches 8 --rounds 5 --methods pipedream pipemare --no-goal",
    "simulated_overhead --model resnet50 --batch 16 --microbatches 8 --rounds 5 --methods gpipe pipemare --grouped",
    "host_calls",
    "scaling",
)
GPU = ("recorded_steps --rounds 4", "recorded_steps --rounds 4 --bf16")
FOLDER = Path("results/benchmarks")


def run(command: str, device: str, commit: str | None) -> dict[str, object]:
    """Run one benchmark, which prints as it goes; returns its rows and how they were measured. commit: of the code."""
    load, began = os.getloadavg()[0], time.monotonic()
    print(f"-- {command} (load {load:.1f})", flush=True)
    script, *options = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        here = os.environ | {VARIABLE: str(rows), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{script}", *options], env=here)
        if done.returncode:
            raise PipelagError(f"{command} ended with status {done.returncode}; its numbers of before stay")
        measured = [json.loads(line) for line in rows.read_text().splitlines()]
    precision.prepare(alone=True)  # as each benchmark does, so that `environment` records it
    took = round(time.monotonic() - began, 1)
    about = environment(device, 1) | {"commit": commit}
    return {"command": command, "load": load, "seconds": took, "environment": about, "rows": measured}


def named(device: str) -> str:
    """The name of a device's file: cpu, or from a GPU's name its model, such as h100 for an NVIDIA H100 80GB HBM3."""
    if device == "cpu":
        return device
    words = device_title(device).lower().replace("nvidia", "").replace("geforce", "").split()
    return next((word for word in words if any(letter.isdigit() for letter in word)), "gpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0: each has benchmarks of its own (default: cpu)")
    parser.add_argument("--name", help="of the file that is written (default: the device's, as h100 and cpu)")
    parser.add_argument("--only", nargs="+", default=[""], help="those whose command holds such a word; others stay")
    args = parser.parse_args()
    device = resolve_device(args.device)
    runs = CPU if device == "cpu" else tuple(f"{each} --device {device}" for each in GPU)
    chosen = [command for command in runs if any(word in command for word in args.only)]
    if not chosen:
        parser.error(f"no benchmark holds {' or '.join(args.only)}; they are {'; '.join(runs)}")
    target = FOLDER / f"{args.name or named(device)}.json"
    commit = environment(device, 1)["commit"]  # now: the file to be written would mark the tree as changed
    for command in chosen:
        new = {command: run(command, device, commit)}
        before = {each["command"]: each for each in json.loads(target.read_text())["runs"]} if target.exists() else {}
        held = [(before | new)[each] for each in runs if each in before | new]
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, json.dumps({"runs": held}, indent=1) + "\n")
    print(f"written: {target}")
    page.main(["docs/benchmarks.md"])


if __name__ == "__main__":
    try:
        main()
    except PipelagError as error:
        sys.exit(str(error))
