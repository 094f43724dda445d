"""Charts of numbers: lines in panels, grouped bars, predicted against real, heat maps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelag.report.figures import empty
from pipelag.report.style import COLOURS, COLUMN, DASHES, PAGE, figure

GREEK = re.compile(r"\b(tau|Delta|alpha|beta|gamma)(?:_([a-z]+))?\b")


def greek(text: str) -> str:
    """Names of Greek letters as letters, with what follows an underscore below: "tau_fwd"."""
    return GREEK.sub(lambda m: f"$\\{m[1]}_{{\\mathrm{{{m[2]}}}}}$" if m[2] else f"$\\{m[1]}$", text)


Points = Sequence[tuple[float, float]]


def lines(
    panels: Mapping[str, Mapping[str, Points]],
    x: str,
    y: str,
    ticks: Sequence[float] = (),
    log: bool = False,
    log_y: bool = False,
    y_range: tuple[float | None, float | None] = (None, None),
    marker: str = "o",
    shared_y: bool = True,
    level: float | None = None,
    styles: Mapping[str, tuple[int, int]] | None = None,
) -> Any:
    """A panel per title, a line per label; labels have the same colour in all panels.

    Args:
        ticks: of the x axis; log, log_y: logarithmic axes.
        level: of a thin horizontal line.
        marker: of the points; "" for smooth curves.
        styles: number of the colour and of the dashes by label, where each label has not simply its own.
    """
    shown = {title: series for title, series in panels.items() if any(len(points) for points in series.values())}
    if not shown:
        return empty("no run logged")
    wide = COLUMN if len(shown) == 1 else PAGE
    fig, grid = figure(wide, 2.5, ncols=len(shown), sharey=shared_y, squeeze=False)
    labels = list(dict.fromkeys(label for series in shown.values() for label in series))
    for axes, (title, series) in zip(grid[0], shown.items(), strict=True):
        for label, points in series.items():
            colour, dashes = styles[label] if styles else (labels.index(label),) * 2
            axes.plot(
                [px for px, _ in points],
                [py for _, py in points],
                color=COLOURS[colour % len(COLOURS)],
                linestyle=DASHES[dashes % len(DASHES)],
                marker=marker or None,
                markersize=3,
                label=greek(label),
            )
        if log:
            axes.set_xscale("log", base=2 if ticks else 10)
        if log_y:
            axes.set_yscale("log")
        if ticks:
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
        if level is not None:
            axes.axhline(level, color="#7F7F7F", linewidth=0.6)
        axes.set_xlabel(greek(x))
        axes.set_title(title)
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.5)
        if y_range != (None, None):
            axes.set_ylim(*y_range)
    grid[0][0].set_ylabel(y)
    handles: dict[str, Any] = {}
    for axes in grid[0]:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    columns = max(1, min(len(handles), int(wide / (0.55 + 0.062 * max(map(len, handles))))))
    fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
    return fig


def bars(groups: Mapping[str, Mapping[str, float | None]], y: str, number: str = "{:.2f}", x: str = "") -> Any:
    """A group of bars per title, a colour per label; the value above each bar, nothing where it is missing."""
    if not any(value is not None for group in groups.values() for value in group.values()):
        return empty("no run logged")
    labels = list(dict.fromkeys(label for group in groups.values() for label in group))
    total = sum(len(group) for group in groups.values())
    fig, axes = figure(COLUMN if total <= 8 else PAGE, 2.4)
    width = 0.82 / len(labels)
    for number_of, label in enumerate(labels):
        points = [
            (place + (number_of - (len(labels) - 1) / 2) * width, group[label])
            for place, group in enumerate(groups.values())
            if group.get(label) is not None
        ]
        colour = COLOURS[1 + number_of % (len(COLOURS) - 1)]
        drawn = axes.bar([p for p, _ in points], [v for _, v in points], width * 0.92, color=colour, label=label)
        axes.bar_label(drawn, [number.format(v) for _, v in points], fontsize=5.5, padding=1)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(y)
    axes.set_xlabel(x)
    axes.margins(y=0.12)
    if len(labels) > 1:
        fig.legend(loc="outside lower center", ncols=min(len(labels), 5 if total > 8 else 2))
    return fig


def equality(panels: Mapping[str, tuple[Mapping[str, Points], str]], x: str) -> Any:
    """Predicted (x) against real (y) values, a panel per title with its own y label, and the line where both agree."""
    fig, grid = figure(PAGE, 2.6, ncols=len(panels), squeeze=False)
    styles = {0: ("o", COLOURS[1], 12), 1: ("^", COLOURS[2], 34), 2: ("D", COLOURS[3], 30)}
    for axes, (title, (series, y)) in zip(grid[0], panels.items(), strict=True):
        values = [value for points in series.values() for point in points for value in point]
        for number, (label, points) in enumerate(series.items()):
            marker, colour, size = styles[number % 3]
            axes.scatter(
                [p for p, _ in points],
                [r for _, r in points],
                size,
                colour,
                marker,
                label=label,
                alpha=0.8,
                linewidths=0,
            )
        if values:
            axes.plot(
                [0, max(values)], [0, max(values)], color="#7F7F7F", linewidth=0.6, linestyle=(0, (4, 2)), zorder=0
            )
        else:
            axes.text(0.5, 0.5, "no run logged", transform=axes.transAxes, ha="center", color="#7F7F7F")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
    handles = dict(zip(*reversed(grid[0][0].get_legend_handles_labels()), strict=True))
    fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return fig


def heat(
    cells: Sequence[Sequence[float]],
    x: Sequence[float],
    y: Sequence[float],
    labels: tuple[str, str, str],
    curve: Points = (),
    curve_label: str = "",
) -> Any:
    """A heat map over logarithmic axes (cells[row of y][column of x]; NaN is blank, drawn grey), and a curve over it.

    Args:
        labels: of x, y and the colour bar.
    """
    fig, axes = figure(COLUMN, 2.6)
    axes.set_facecolor("#BBBBBB")
    mesh = axes.pcolormesh(x, y, cells, cmap="viridis", shading="nearest", rasterized=True)
    axes.set_xscale("log")
    axes.set_yscale("log")
    if curve:
        axes.plot([p for p, _ in curve], [q for _, q in curve], color=COLOURS[2], linewidth=1.4, label=curve_label)
        axes.set_ylim(min(y), max(y))
        axes.set_xlim(min(x), max(x))
        fig.legend(loc="outside lower center")
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    fig.colorbar(mesh, ax=axes, label=labels[2])
    return fig
