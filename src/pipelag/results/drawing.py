"""Drawn results: what a result module returns for a result, a table, a figure with its data, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any, Protocol

import pandas as pd

from pipelag.errors import noting
from pipelag.report.figures import empty
from pipelag.report.tables import Col, Table, table
from pipelag.results.context import Context
from pipelag.results.logs import Item


class Chart(Protocol):
    """Draws a data frame (`pipelag.report.frames`)."""

    def draw(self, frame: pd.DataFrame) -> Any:
        """The figure."""


@dataclass
class Drawn:
    """A drawn result. A figure comes with the numbers that it shows, as a data frame; `of` draws one from the other.

    chart: the chart's settings as plain values, from which the frame can be drawn again (`pipelag.report.explore`).
    items: the runs that it shows, if these are not all of the result's. note: a further sentence for its footer.
    """

    table: Table | None = None
    figure: Any = None
    data: pd.DataFrame | None = None
    chart: dict[str, Any] | None = None
    items: list[Item] | None = None
    note: str = ""

    @property
    def spread(self) -> str:
        """How the figure shows several seeds, in words."""
        if self.chart is not None and self.chart["kind"] == "Bars":
            seeds = self.data is not None and "seed" in self.data
            return "whiskers of one standard deviation" if seeds else "their means"
        if self.chart is not None and self.chart.get("hollow"):
            return "a small point each, lines through their mean (hollow where some of them diverge)"
        whiskers = self.figure is not None and any(axes.containers for axes in self.figure.axes)  # of lone points
        return f"{'bands or whiskers' if whiskers else 'bands'} of one standard deviation"

    def footer(self, context: Context) -> str:
        """Where the numbers come from, in sentences. Empty for an empty figure, which itself says why it is empty."""
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
        """Draw a chart of rows; the rows are saved beside it."""
        frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
        described = {"kind": type(chart).__name__} | asdict(chart) if is_dataclass(chart) else None
        return cls(figure=chart.draw(frame), data=frame, chart=described, items=items, note=note)

    @classmethod
    def tabled(
        cls,
        context: Context,
        rows: Iterable[Any],
        cols: Sequence[Col],
        notes: Sequence[str] = (),
        rule_by: str | None = None,
    ) -> Drawn:
        """A table of rows (`pipelag.report.tables.table`) under the result's caption."""
        return cls(table=table(rows, cols, context.result.caption, notes, rule_by))


def not_logged(sentence: str = "the schedule has no log") -> Drawn:
    """An empty figure with a sentence in it, for a result without logs."""
    return Drawn(figure=empty(sentence), data=pd.DataFrame())


Draw = Callable[[Context], Drawn]
DRAWINGS: dict[tuple[str, str], Draw] = {}


def draw(context: Context) -> Drawn:
    """Draw a result with the function that its config names.

    If nothing can be drawn because the scale leaves out its runs, the empty figure says so.
    """
    paper, result = context.paper, context.result
    with noting(f"in the drawing of {paper.id} {context.name}"):
        drawn = DRAWINGS[paper.id, result.draw or context.name](context)
    why = context.left_out()
    if drawn.figure is not None and drawn.data is not None and drawn.data.empty and why:
        return not_logged(f"Left out at this scale: {why}")
    return drawn


def drawing(paper: str, *names: str) -> Callable[[Draw], Draw]:
    """Register the function that draws these results, or those whose config gives one of the names in `draw:`."""

    def add(function: Draw) -> Draw:
        for name in names:
            DRAWINGS[paper, name] = function
        return function

    return add
