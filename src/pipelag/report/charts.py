"""A heat map, which is no chart from a frame (`pipelag.report.frames`), and Greek letters in labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isnan
from typing import Any

from pipelag.report.style import COLOURS, COLUMN, figure

GREEK = re.compile(r"\b(tau|Delta|alpha|beta|gamma)(?:_([a-z]+))?\b")


def greek(text: str) -> str:
    """Names of Greek letters as letters, with what follows an underscore below: "tau_fwd"."""
    return GREEK.sub(lambda m: f"$\\{m[1]}_{{\\mathrm{{{m[2]}}}}}$" if m[2] else f"$\\{m[1]}$", text)


Points = Sequence[tuple[float, float]]
BLANK = "#BBBBBB"


def heat(
    cells: Sequence[Sequence[float]],
    x: Sequence[float],
    y: Sequence[float],
    labels: tuple[str, str, str],
    curve: Points = (),
    curve_label: str = "",
    most: float | None = None,
    blank: str = "",
) -> Any:
    """A heat map over logarithmic axes (cells[row of y][column of x]; NaN is blank, drawn grey), and a curve over it.

    Args:
        labels: of x, y and the colour bar.
        most: the value from which on cells have the last colour; by default the greatest.
        blank: what blank cells are, for the legend.
    """
    from matplotlib.patches import Patch

    fig, axes = figure(COLUMN, 2.6)
    axes.set_facecolor(BLANK)
    mesh = axes.pcolormesh(x, y, cells, cmap="viridis", shading="nearest", rasterized=True, vmax=most)
    axes.set_xscale("log")
    axes.set_yscale("log")
    if curve:
        axes.plot([p for p, _ in curve], [q for _, q in curve], color=COLOURS[2], linewidth=1.4, label=curve_label)
        axes.set_ylim(min(y), max(y))
        axes.set_xlim(min(x), max(x))
        grey = (
            [Patch(facecolor=BLANK, label=blank)] if blank and any(isnan(cell) for row in cells for cell in row) else []
        )
        fig.legend(handles=[*axes.get_lines(), *grey], loc="outside lower center", ncols=1 + len(grey))
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    fig.colorbar(mesh, ax=axes, label=labels[2], extend="neither" if most is None else "max")
    return fig
