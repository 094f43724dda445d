"""Write docs/benchmarks.md and its plot from results/benchmarks/*.json: none of their numbers is typed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from benchmarks.ledger import reached, within_noise
from pipelag.report import style
from pipelag.report.tables import Col, table

FOLDER, PLOT = Path("results/benchmarks"), Path("images/scaling.svg")
LINES = ("solid", "dashed", "dotted")  # for the first machine, the second, the third
HEAD = """# Benchmarks

How fast is pipelag, how exact is the timed executor, and which of our goals are reached? This page is written by
`python -m benchmarks.page docs/benchmarks.md` from `results/benchmarks/*.json`, which `make bench` measures
([what each script compares](../benchmarks/README.md)).

**How to read the tables.** A ratio compares two sides that alternate, block by block, in one run, so that the machine's
drift falls on both. The tables give the median of the blocks and their range, from the least to the greatest. For six
blocks and more they also give a 95 % interval: in 95 of 100 such runs, it contains the true median. Where the goal
lies inside this interval, another run may answer the opposite; the answer is then marked as *uncertain*.
"""

# What the rows of a table compare, by how its title begins.
ABOUT = {
    "1 worker / 2 workers": "How many times as fast two real workers, as a pipeline, train as one worker does.",
    "two trainings that do not talk": (
        "What two independent trainings get done at the same time, in units of what one alone does: 2, if they did not "
        "slow each other down."
    ),
    "speedup / what the cut": (
        "The speedup of the first table over its bound: what the busier stage allows (by the cut), times half of what "
        "two independent trainings reach (by the cores)."
    ),
    "torch.distributed.pipelining": (
        "Time per minibatch of a schedule of torch.distributed.pipelining, with its best number of microbatches, over "
        "that of stale weights here."
    ),
    "1F1B with a flush /": (
        "Time per minibatch of our 1F1B with a flush over that of a zero-bubble schedule here, each with its best "
        "number of microbatches."
    ),
    "timed / measured": (
        "Time per minibatch that the timed executor predicts over the time that real workers took. The layers are "
        "measured while both workers compute, for sequential training while one of them does."
    ),
    "simulated step": (
        "CPU time of a step of the simulated executor over that of a plain PyTorch training step on the same model and "
        "minibatch. `minibatch 64 in 8`: 64 samples in 8 microbatches."
    ),
    "calls of any function to make a minibatch": "Calls of functions for each minibatch, as a GPU would get it.",
    "operations of torch to make a minibatch": "Operations of torch for each minibatch, with views and random draws.",
    "calls of any function": (
        "Calls of functions in a simulated step whose passes a GPU would replay as CUDA graphs; counted without a GPU."
    ),
    "operations of torch": "Operations of torch in the same step, beside the replayed passes.",
    "schedule:": "Building a schedule. Cases: schedule x stages x minibatches; an action is a pass or an update.",
    "delays:": "Building a schedule and deriving its delays. Cases as above.",
    "timed:": "Building a schedule and timing it over links. Cases as above.",
    "partition:": "The partitioner's search. Cases: servers x workers of a server x layers.",
    "30,000 iterations": "Seconds for 30,000 training iterations at the pace of the blocks, minibatches included.",
    "recorded step / eager": (
        "Time of a simulated step whose passes are replayed as CUDA graphs over that of a plain PyTorch step, launched "
        "kernel by kernel."
    ),
    "recorded step / recorded": "Time of the same step over that of the same recorded loop without a pipeline.",
}


RUN = [
    Col("python -m benchmarks. ...", "command"),
    Col("commit", lambda each: each["environment"]["commit"]),
    Col("torch", lambda each: each["environment"]["versions"]["torch"]),
    Col("day", lambda each: each["environment"]["date"][:10]),
    Col("load before", lambda each: f"{each['load']:.1f}"),
    Col("seconds", "seconds"),
]


def text(files: dict[str, Any]) -> str:
    """The page's text. `files`: the content of each device's file, by the file's name."""
    parts = [HEAD]
    for name, held in files.items():
        rows = rows_of(held)
        goals = [verdict for verdict in map(reached, rows) if verdict is not None]
        parts.append(f"## {name}: {held['runs'][0]['environment']['device']}\n")
        near = sum(within_noise(row) for row in rows)
        about = f"; for {near} of the {len(goals)} the answer is uncertain" if near else ""
        parts.append(f"{sum(goals)} of {len(goals)} goals are reached{about}.\n")
        for what in dict.fromkeys(row["what"] for row in rows):
            alike = [row for row in rows if row["what"] == what]
            parts.append(f"**{what}**\n\n{_about(what)}{_table(alike)}\n{_exponent(alike)}")
        parts.append(f"**How this was measured**\n\n{table(held['runs'], RUN).markdown()}\n")
    parts.append(f"![Cost of schedules, timing and plans against the work]({PLOT})\n")
    return "\n".join(parts)


def rows_of(held: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows of a device's file."""
    return [row for each in held["runs"] for row in each["rows"]]


def _about(what: str) -> str:
    """What a table compares, as a paragraph; nothing where nobody has said."""
    return next((f"{fill(sentence, 120)}\n\n" for begins, sentence in ABOUT.items() if what.startswith(begins)), "")


def _table(rows: Sequence[dict[str, Any]]) -> str:
    unit = "ratio" if rows[0]["unit"] == "x" else rows[0]["unit"]
    cols = [Col("case", "case"), Col(unit, lambda row: f"{row['median']:.4g}")]
    if any(row["blocks"] > 1 for row in rows):
        cols.append(Col("range", lambda row: f"{row['low']:.3g} to {row['high']:.3g}"))
    if any(row.get("interval") for row in rows):
        cols.append(Col("95 % interval", _interval))
    cols.append(Col("goal", _goal))
    cols.append(Col("reached", _reached))
    return table(rows, cols).markdown()


def _interval(row: dict[str, Any]) -> str:
    between = row.get("interval")
    return f"{between[0]:.4g} to {between[1]:.4g}" if between else "–"


def _reached(row: dict[str, Any]) -> str:
    word = {True: "yes", False: "**no**", None: "–"}[reached(row)]
    return f"{word} (uncertain)" if within_noise(row) else word


def _goal(row: dict[str, Any]) -> str:
    bounds = [f"at {end} {row[end]:g}" for end in ("least", "most") if row[end] is not None]
    return ", ".join(bounds) or "–"


def _cost(row: dict[str, Any]) -> float:
    """The total CPU seconds of a row."""
    return float(row["median"] * row["work"] * 1e-6 if row["unit"] == "us an action" else row["median"])


def _slope(rows: Sequence[dict[str, Any]]) -> float:
    return float(np.polyfit(np.log([row["work"] for row in rows]), np.log([_cost(row) for row in rows]), 1)[0])


def _exponent(rows: Sequence[dict[str, Any]]) -> str:
    if len(rows) < 2 or any(row["work"] is None or "bytes" in row["unit"] for row in rows):
        return ""
    return f"\nCPU time grows with the work to the power of {_slope(rows):.2f}.\n"


def plot(files: dict[str, Any], target: Path) -> None:
    """Plot CPU seconds against work, with the exponents in the legend."""
    fig, axes = style.figure(style.PAGE, 2.6)
    lines: dict[str, dict[str, list[dict[str, Any]]]] = {}  # by what was measured and by the file
    for name, held in files.items():
        for row in rows_of(held):
            if row["work"] and "bytes" not in row["unit"]:
                lines.setdefault(row["what"], {}).setdefault(name, []).append(row)
    names = list(dict.fromkeys(name for by_file in lines.values() for name in by_file))
    for number, (what, by_file) in enumerate(lines.items()):
        slopes = ", ".join(f"{_slope(rows):.2f}" for rows in by_file.values() if len(rows) > 1)
        colour, label = style.COLOURS[number % 8], f"{what} (exponent {slopes})" if slopes else what
        for name, rows in by_file.items():
            work, cost = [row["work"] for row in rows], [_cost(row) for row in rows]
            (line,) = axes.loglog(work, cost, marker="osD^vP*X"[number % 8], color=colour, label=label)
            line.set(linestyle=LINES[names.index(name) % 3], markerfacecolor="white" if names.index(name) else colour)
            label = "_the same"  # matplotlib leaves labels that begin with _ out of the legend
    legend = ", ".join(f"{name} {LINES[kind % 3]}" for kind, name in enumerate(names))
    axes.set_xlabel("actions, or workers times layers")
    axes.set_ylabel("CPU seconds")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), title=legend if len(names) > 1 else None)
    target.parent.mkdir(parents=True, exist_ok=True)
    style.save(fig, target.with_suffix(""), (".svg",))


def main(words: Sequence[str]) -> None:
    """Write the page that the only argument names, and its plot beside it."""
    if len(words) != 1:
        sys.exit("one argument: the page to be written, docs/benchmarks.md")
    files = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    if not files:
        sys.exit(f"{FOLDER} holds no measurements; make bench makes them")
    target = Path(words[0])
    plot(files, target.parent / PLOT)
    target.write_text(text(files))


if __name__ == "__main__":
    main(sys.argv[1:])
