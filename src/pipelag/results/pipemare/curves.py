"""Scores against epochs: the rows, the chart, and the figures with a line per arm."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.results import colours
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.logs import Item
from pipelag.results.pipemare.arms import number
from pipelag.results.pipemare.quality import metric, reasons, scored, title, value_of

PAPER = "pipemare"
STYLES = {
    "Sync": (colours.BASELINE, 0),
    "T1": (colours.TWO_BW, 1),  # free here: PipeMare's figures have no PipeDream-2BW
    "T1+T2": (colours.PIPEMARE, 2),
    "T1+T2+W": (colours.PIPEMARE_W, 3),
    "no correction": (colours.UNMENDED, 1),
    "PipeDream": (colours.PIPEDREAM, 4),
}


def task_of(item: Item) -> str:
    """The task in a run's labels; empty where they name none."""
    return item.arm.labels.get("task", "")


def learning(
    context: Context, name: Callable[[Item], str] = lambda item: item.arm.labels["arm"], **labels: str
) -> list[dict[str, Any]]:
    """A row per evaluation of the runs with these labels.

    A row's `panel` names task and model, its `switch` the epoch at which the first of several phases ends.
    """
    rows = []
    for item in context.select(**labels):
        task = task_of(item)
        evaluations = scored(item) if item.log else []
        first = item.arm.spec.phases[0].steps if len(item.arm.spec.phases) > 1 else None
        switch = first and evaluations and evaluations[-1]["epoch"] * first / evaluations[-1]["step"] or None
        for row in evaluations:
            where = {"panel": title(context, task), "task": task, "line": name(item), "seed": item.arm.seed}
            where["switch"] = switch
            rows.append(where | {"epoch": row["epoch"], "score": value_of(row), "loss": row.get("loss")})
    return rows


def nothing(context: Context) -> Drawn:
    """An empty figure that says why it is empty."""
    return not_logged(textwrap.fill("; ".join(reasons(context)) or "no run is logged", 60))


def compared(context: Context, **labels: str) -> list[Item]:
    """The runs with these labels, without tasks that have logs of synchronous training only: these compare nothing."""
    items = context.select(**labels)
    tasks = {task_of(item) for item in items if item.log is not None and item.arm.labels["arm"] != "Sync"}
    return [item for item in items if item.log is None or task_of(item) in tasks]


def axes_of(rows: Sequence[dict[str, Any]]) -> dict[str, Axis]:
    """The y axis of every panel."""
    return {row["panel"]: Axis("score", metric(row["task"])) for row in rows}


def curves(context: Context, rows: list[dict[str, Any]], items: list[Item] | None = None, grids: bool = False) -> Drawn:
    """Score against epochs, a panel per task.

    Args:
        items: the runs in the rows, where these are not all of the result's.
        grids: each panel has lines of its own but for Sync, so that its colours and its legend begin anew.
    """
    if not rows:
        return nothing(context)
    rows = sorted(rows, key=lambda row: number(row["line"]) if " = " in row["line"] else 0.0)  # a panel may lack some
    others = [line for line in dict.fromkeys(row["line"] for row in rows) if line not in STYLES]
    # Black is Sync's. Colours repeat after 7 lines and dashes after 6, so that no two lines share both.
    place = {line: at for at, line in enumerate(others)}
    if grids:
        panels = [[row["line"] for row in rows if row["panel"] == panel] for panel in axes_of(rows)]
        place = {line: at for lines in panels for at, line in enumerate(other for other in others if other in lines)}
    styles = STYLES | {line: (1 + at % 7, (1 + at) % 6) for line, at in place.items()}
    chart = Lines(
        Axis("epoch", "epochs"),
        axes_of(rows),
        line="line",
        panel="panel",
        styles=styles,
        vertical="switch",
        vertical_title="end of the synchronous start",
        own_legends=grids,
        height=3.0 if grids else 2.5,
    )
    return Drawn.of(chart, rows, items)


@drawing(PAPER, "figure_7", "figure_12", "figure_13", "figure_14", "figure_19")
def by_arm(context: Context) -> Drawn:
    """Score against epochs, a panel per task and a line per arm."""
    items = compared(context)
    return curves(context, learning(replace(context, items=items)), items, grids=context.name == "figure_13")
