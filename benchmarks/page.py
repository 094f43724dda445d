"""Write docs/benchmarks.md and its plot from results/benchmarks/*.json: none of their numbers is typed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ledger import reached, within_noise
from pipelag.report import style
from pipelag.report.tables import Col, table

FOLDER, PLOT = Path("results/benchmarks"), Path("images/scaling.svg")
LINES = ("solid", "dashed", "dotted")  # for the first machine, the second, the third
HEAD = """# Benchmarks

Written by `python -m benchmarks.page docs/benchmarks.md` from `results/benchmarks/*.json`, which `make bench` measures
([what each script compares](../benchmarks/README.md)). Ratios: the two sides alternate in one run, so that the machine
may drift; given is the median of the blocks, with the least and the greatest, and (of six blocks and more) the
interval in which the true median lies in 95 of 100 such runs. Where that holds the goal, another run may say the
opposite: *about*.
"""


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
        about = f"; {near} of them lie where the median may lie, too" if near else ""
        parts.append(f"Of {len(goals)} goals {sum(goals)} are reached{about}.\n")
        for what in dict.fromkeys(row["what"] for row in rows):
            alike = [row for row in rows if row["what"] == what]
            parts.append(f"**{what}**\n\n{_table(alike)}\n{_exponent(alike)}")
        parts.append(f"**How this was measured**\n\n{table(held['runs'], RUN).markdown()}\n")
    parts.append(f"![Cost of schedules, timing and plans against the work]({PLOT})\n")
    return "\n".join(parts)


def rows_of(held: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows of a device's file."""
    return [row for each in held["runs"] for row in each["rows"]]


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cols = [Col("case", "case"), Col(rows[0]["unit"], lambda row: f"{row['median']:.4g}")]
    if any(row["blocks"] > 1 for row in rows):
        cols.append(Col("least to greatest", lambda row: f"{row['low']:.3g} to {row['high']:.3g}"))
    if any(row.get("interval") for row in rows):
        cols.append(Col("95 % of medians", _interval))
    cols.append(Col("wanted", _goal))
    cols.append(Col("reached", _reached))
    return table(rows, cols).markdown()


def _interval(row: dict[str, Any]) -> str:
    between = row.get("interval")
    return f"{between[0]:.4g} to {between[1]:.4g}" if between else "–"


def _reached(row: dict[str, Any]) -> str:
    word = {True: "yes", False: "**no**", None: "–"}[reached(row)]
    return f"{word}, about" if within_noise(row) else word


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
