"""The length of recomputation's segments at which a pipeline caches the fewest activations (A.3)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count
from math import sqrt
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import exact
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "pipemare"
OTHER = 6  # colours from this on are of further pipelines of as many stages
GOES_BY = {"PipeMare": "P", "GPipe": "N"}  # the count whose root is the best length


def pipelines(rows: list[dict[str, Any]], name: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of each pipeline of PipeMare or GPipe, by segment; PipeMare's do not go by the microbatches."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        if row["pipeline"] == name:
            micro = f", N = {row['microbatches']}" if name == "GPipe" else ""
            found.setdefault(f"P = {row['stages']}{micro}", {})[row["segment"]] = row
    return {pipeline: [of[segment] for segment in sorted(of)] for pipeline, of in found.items()}


def root(row: dict[str, Any]) -> float:
    """sqrt(P) of PipeMare, sqrt(N) of GPipe."""
    return sqrt(row["stages"] if GOES_BY[row["pipeline"]] == "P" else row["microbatches"])


def styles_of(lines: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Colours and dashes: pipelines of as many stages have the same in both panels, as far as a panel has one alone."""
    stages: list[str] = []
    styles: dict[str, tuple[int, int]] = {}
    others = count(OTHER)
    for line in lines:
        own = line.split(", ")[0]
        stages += [] if own in stages else [own]
        style = (1 + stages.index(own), stages.index(own))
        twice = any(micro.startswith(f"{own}, ") for micro in styles) and line != own
        styles[line] = (next(others), len(stages)) if twice else style
    return styles


@drawing(PAPER, "text_segments")
def text_segments(context: Context) -> Drawn:
    """A line per pipeline, over the stages of a segment."""
    log = context.log()
    if log is None:
        return not_logged("the counts have no log")
    rows = [
        {
            "panel": name,
            "line": line,
            "segment": row["segment"],
            "share": row["with"] / row["without"],
            "root": root(row),
        }
        for name in GOES_BY
        for line, of in pipelines(log.rows, name).items()
        for row in of
    ]
    x = Axis("segment", "stages of a segment, S", log=True, ticks=(1, 4, 16, 64, 256))
    y = Axis("share", "cached activations, of those without recomputation", limits=(0, 1.05))
    chart = Lines(
        x,
        y,
        line="line",
        panel="panel",
        styles=styles_of(dict.fromkeys(row["line"] for row in rows)),
        vertical="root",
        vertical_title={name: f"S = sqrt({symbol})" for name, symbol in GOES_BY.items()},
        shared_y=True,
        own_legends=True,
        height=3.0,
    )
    return Drawn.of(chart, rows)


def least(context: Context, name: str) -> Finding:
    """Whether every pipeline caches fewest activations at the whole numbers on either side of the root."""
    texts, holds = [], []
    for pipeline, rows in pipelines(log_of(context).rows, name).items():
        best = min(rows, key=lambda row: row["with"])
        holds.append(abs(best["segment"] - root(best)) < 1)
        texts.append(
            f"{pipeline}: {best['with']:,} of {best['without']:,} at S = {best['segment']} "
            f"(sqrt({GOES_BY[name]}) = {root(best):.1f})"
        )
    return exact(all(holds), "; ".join(texts), "S is a whole number: one of the two around the root")


judge(PAPER, "text_segments", "root_of_stages")(partial(least, name="PipeMare"))
judge(PAPER, "text_segments", "root_of_microbatches")(partial(least, name="GPipe"))
