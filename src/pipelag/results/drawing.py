"""What a result module gives for a result: a table, a figure with its data, or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any, Protocol

import pandas as pd

from pipelag.report.figures import empty
from pipelag.report.tables import Table
from pipelag.results.context import Context
from pipelag.results.logs import Item


class Chart(Protocol):
    """Draws a data frame (`pipelag.report.frames`)."""

    def draw(self, frame: pd.DataFrame) -> Any:
        """The figure."""


@dataclass
class Drawn:
    """A drawn result. Figures come with the numbers they show, as a data frame; `of` draws the figure from it.

    chart: what the chart is, as plain values, with which its frame can be drawn again (`pipelag.report.explore`).
    items: the runs that it is about, where these are not all of the result's. note: a sentence of its own below it.
    """

    table: Table | None = None
    figure: Any = None
    data: pd.DataFrame | None = None
    chart: dict[str, Any] | None = None
    items: list[Item] | None = None
    note: str = ""

    @property
    def spread(self) -> str:
        """How a figure shows several seeds."""
        if self.chart is not None and self.chart["kind"] == "Bars":
            seeds = self.data is not None and "seed" in self.data
            return "whiskers of one standard deviation" if seeds else "their means"
        if self.chart is not None and self.chart.get("hollow"):
            return "a small point each, lines through their mean (hollow where some of them diverge)"
        whiskers = self.figure is not None and any(axes.containers for axes in self.figure.axes)  # of lone points
        return f"{'bands or whiskers' if whiskers else 'bands'} of one standard deviation"

    def footer(self, context: Context) -> str:
        """What its numbers are from, in sentences; of an empty frame nothing, for it says itself why it is empty."""
        if self.figure is not None and self.data is not None and self.data.empty:
            return ""
        shown_context = context if self.items is None else replace(context, items=self.items)
        spread = self.spread if self.figure is not None else ""
        notes = self.table.notes if self.table is not None else ()
        sentences = shown_context.footer(self.data, spread, whole=self.table is not None, notes=notes)
        return f"{sentences} {self.note}".strip()

    @classmethod
    def of(
        cls,
        chart: Chart,
        rows: pd.DataFrame | Sequence[Mapping[str, Any]],
        items: list[Item] | None = None,
        note: str = "",
    ) -> Drawn:
        """A chart of the rows that are saved beside it."""
        frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
        described = {"kind": type(chart).__name__} | asdict(chart) if is_dataclass(chart) else None
        return cls(figure=chart.draw(frame), data=frame, chart=described, items=items, note=note)


def not_logged(sentence: str = "the schedule has no log") -> Drawn:
    """An empty frame with a sentence in it: without a log there is nothing to draw."""
    return Drawn(figure=empty(sentence), data=pd.DataFrame())


Draw = Callable[[Context], Drawn]
DRAWINGS: dict[tuple[str, str], Draw] = {}


def draw(context: Context) -> Drawn:
    """A result, drawn by the function its config names; a frame that says why where a scale leaves out its runs."""
    paper, result = context.paper, context.result
    drawn = DRAWINGS[paper.id, result.draw or context.name](context)
    why = context.left_out()
    if drawn.figure is not None and drawn.data is not None and drawn.data.empty and why:
        return not_logged(f"Left out at this scale: {why}")
    return drawn


def drawing(paper: str, *names: str) -> Callable[[Draw], Draw]:
    """Register the function that draws these results (or, with `draw:` in the config, whatever names it)."""

    def add(function: Draw) -> Draw:
        for name in names:
            DRAWINGS[paper, name] = function
        return function

    return add
