"""`pipelag list`: the runs of a paper or a result at a scale, their logs, and their hours."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median

from pipelag.commands.arguments import add_scale
from pipelag.experiments import Arm, Scale, all_arms, arms, load_paper, load_scale, run_dir
from pipelag.experiments.told import asked_for
from pipelag.report.gather import NOT_READ
from pipelag.results.logs import Item
from pipelag.runs.spec import RunSpec

LONG = ("train", "speed", "profile")  # the kinds of run that take more than seconds


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "A run is done, to do, shared (it is that of a line above), left out (by the scale), or its log is not read "
        "(it is damaged)."
    )
    parser.add_argument("paper", nargs="?", help="a paper (default: all of config/config.yaml)")
    parser.add_argument("result", nargs="?", help="one of its results (default: all)")
    add_scale(parser)
    parser.add_argument(
        "--hours", action="store_true", help="one line per result: hours that its runs took, and hours to go"
    )


def main(args: argparse.Namespace) -> int:
    """Print a line per run, which ends with the folder of its log; with `--hours`, a line per result."""
    scale = load_scale(args.scale, args.published)
    asked = list(_asked(args, scale))
    if args.hours:
        print("\n".join(_hours(asked, scale, budgets={} if args.result else scale.hours)))
        return 0
    seen: set[str] = set()
    left_out: set[str] = set()
    read: dict[str, str] = {}
    for name, result, arm in asked:
        folder = run_dir(scale, arm.spec.id)
        done = (folder / "summary.json").exists()
        if done and arm.spec.id not in read:
            read[arm.spec.id] = NOT_READ if Item.of(arm, scale).damaged else "done"
        state = read[arm.spec.id] if done else "shared" if arm.spec.id in seen else "to do"
        state = "left out" if arm.left_out else state
        (left_out if arm.left_out else seen).add(arm.spec.id)
        label = ", ".join(arm.labels.values())
        how = " + ".join(phase.method for phase in arm.spec.phases) or arm.spec.kind
        steps = f"{arm.spec.steps:>7} steps  seed {arm.seed}"
        log = folder if done else "no log"
        print(f"{arm.spec.id}  {state:8}  {steps}  {how:26}  {name} {result}: {label}  ({log})")
    beside = len(left_out - seen)
    print(f"{len(seen)} different runs" + (f", and {beside} that the scale leaves out" if beside else ""))
    return 0


def _asked(args: argparse.Namespace, scale: Scale) -> Iterator[tuple[str, str, Arm]]:
    """All (paper, result, run) of the papers asked for, in the order of the config."""
    for name in [args.paper] if args.paper is not None else asked_for():
        paper = load_paper(name)
        one = args.result
        by_result = all_arms(paper, scale) if one is None else {one: arms(paper, one, scale)}
        yield from ((name, result, arm) for result, its_arms in by_result.items() for arm in its_arms)


def _hours(asked: list[tuple[str, str, Arm]], scale: Scale, budgets: Mapping[str, float]) -> Iterator[str]:
    """A line per result: its runs (all, logged, left out, to do), hours spent, hours to go; then each paper's budget.

    A run counts in the first result that uses it, so that columns add up. Its step is estimated to take the median of
    logged runs with the same model, data and minibatch; "?" marks runs without such a log. Runs that neither train nor
    measure take seconds and are not counted.
    """
    paces: dict[str, list[float]] = defaultdict(list)
    took: dict[str, float] = {}
    for spec in {arm.spec.id: arm.spec for _, _, arm in asked}.values():
        if (seconds := _seconds(scale, spec)) is not None:
            took[spec.id] = seconds
            if spec.kind in LONG:
                paces[_alike(spec)].append(seconds / max(spec.steps, 1))
    yield f"{'paper':14} {'result':30} {'runs':>5} {'logged':>7} {'left out':>9} {'to do':>6} {'spent':>8} {'to go':>9}"
    seen: set[str] = set()
    total = [0, 0, 0, 0, 0.0, 0.0, 0]
    spent: dict[str, float] = defaultdict(float)
    for name, result in dict.fromkeys((name, result) for name, result, _ in asked):
        row = [0, 0, 0, 0, 0.0, 0.0, 0]  # runs, logged, left out, to do, seconds spent and to go, of unknown length
        for _, _, arm in (each for each in asked if each[:2] == (name, result)):
            if arm.spec.id in seen:
                continue
            seen.add(arm.spec.id)
            pace = paces.get(_alike(arm.spec))
            open_ = arm.spec.id not in took and not arm.left_out
            row[0] += 1
            row[1] += arm.spec.id in took
            row[2] += bool(arm.left_out) and arm.spec.id not in took
            row[3] += open_
            row[4] += took.get(arm.spec.id, 0.0)
            row[5] += median(pace) * max(arm.spec.steps, 1) if open_ and pace else 0.0
            row[6] += open_ and not pace and arm.spec.kind in LONG
        total = [a + b for a, b in zip(total, row, strict=True)]
        spent[name] += row[4]
        if row[0]:  # other results are drawn from runs that are counted already
            yield _line(name, result, row)
    yield _line("total", "", total)
    for name in (name for name in spent if name in budgets):
        yield f"{name:14} {spent[name] / 3600:.2f} h of a budget of {budgets[name]:g} h"


def _line(name: str, result: str, row: list[float]) -> str:
    runs, logged, left_out, open_, spent, to_go, unknown = row
    ahead = f"{to_go / 3600:.2f} h" + (" + ?" if unknown else "")
    counts = f"{runs:5.0f} {logged:7.0f} {left_out:9.0f} {open_:6.0f}"
    return f"{name:14} {result:30} {counts} {spent / 3600:6.2f} h {ahead if open_ else '-':>9}"


def _seconds(scale: Scale, spec: RunSpec) -> float | None:
    """Seconds that a logged run took, 0 where its kind does not say; None without a log."""
    try:
        return float(json.loads((run_dir(scale, spec.id) / "summary.json").read_text()).get("seconds", 0.0))
    except (OSError, ValueError, AttributeError, TypeError):
        return None


def _alike(spec: RunSpec) -> str:
    """A key that is equal for runs whose steps take about the same time."""
    return json.dumps([spec.kind, repr(spec.model), repr(spec.data), spec.batch, spec.executor])
