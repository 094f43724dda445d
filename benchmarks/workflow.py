"""Measure how long the workflow takes, and on what it spends the time: training, starting, drawing, Snakemake itself.

It works in a fresh clone of this checkout's commit, with this interpreter: one quick table, the same table again
("nothing to be done"), the published page, and with --everything the whole quick scale. Seconds are by the clock;
shares are of the machine's core seconds. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path

from pipelag.cores import allowed

ROOT = Path(__file__).resolve().parents[1]
RUN, DRAWN = ("run",), ("table", "figure", "page")


def jobs(clone: Path, since: float) -> list[tuple[str, Path, float]]:
    """(rule, an output, seconds) of the jobs that Snakemake has recorded since the time `since`."""
    by_command: dict[str, tuple[str, Path, float]] = {}  # by command: a job has a record for each of its outputs
    for record in (clone / ".snakemake/metadata").rglob("*"):
        if record.is_file() and record.stat().st_mtime >= since:
            content = json.loads(record.read_text())
            output = Path(base64.b64decode(record.name).decode())
            begin, end = content["starttime"], content["endtime"]
            by_command[content["shellcmd"]] = content["rule"], output, end - begin
    return list(by_command.values())


def trained(clone: Path, outputs: list[Path]) -> float:
    """The seconds that the runs with these outputs have trained, timed or profiled, by their summaries."""
    total = 0.0
    for output in outputs:
        summary = json.loads((clone / output.parent / "summary.json").read_text())
        total += summary.get("seconds") or 0.0
    return total


def timed(clone: Path, name: str, *words: str) -> float:
    """Call Snakemake, and print how long it took and on what; returns the seconds by the clock."""
    since, cores = time.time(), len(allowed())
    begin = time.perf_counter()
    command = [sys.executable, "-m", "snakemake", "--cores", "all", *words]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, env=environment(clone))
    seconds = time.perf_counter() - begin
    if done.returncode:
        sys.exit(f"snakemake {' '.join(words)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    rules: dict[str, list[tuple[Path, float]]] = defaultdict(list)
    for rule, output, took in jobs(clone, since):
        rules[rule].append((output, took))
    runs = [each for rule in RUN for each in rules[rule]]
    drawn = [took for rule in DRAWN for _, took in rules[rule]]
    work = trained(clone, [output for output, _ in runs])
    starting = sum(took for _, took in runs) - work
    rest = cores * seconds - work - starting - sum(drawn)
    print(f"{name:24s} {seconds:8.1f} s   {len(runs)} runs, {len(drawn)} drawings")
    parts = {"training": work, "starting and checking": starting, "drawing": sum(drawn), "Snakemake and waiting": rest}
    for part, share in parts.items():
        print(f"    {part:22s} {share:8.1f} core seconds  {100 * share / (cores * seconds):5.1f} %")
    return seconds


def environment(clone: Path) -> dict[str, str]:
    """The environment in which the clone's own sources are used, whatever is installed."""
    return os.environ | {"PYTHONPATH": str(clone / "src")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", default="stale_weights_table_6", help="the quick table that is made from nothing")
    parser.add_argument("--everything", action="store_true", help="the whole quick scale too")
    parser.add_argument("--keep", type=Path, help="a folder for the clone, which stays (default: none)")
    args = parser.parse_args()
    with nullcontext(args.keep) if args.keep else tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "pipelag")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        timed(clone, "one quick table", args.table)
        timed(clone, "nothing to be done", args.table)
        timed(clone, "the published page", "--config", "scale=published")
        if args.everything:
            timed(clone, "everything, quick")
            timed(clone, "nothing to be done", "all")


if __name__ == "__main__":
    main()
