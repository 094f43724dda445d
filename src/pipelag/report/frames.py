"""Charts drawn from the data frame that is saved beside them, so that picture and CSV cannot disagree.

A chart is a value: which columns are the axes, which the lines, bars and panels. Rows that differ in their seed only
are one line: their mean, with a band of one standard deviation around it.

    Lines(x="epoch", y="accuracy", line="arm", panel="task").draw(frame)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high
from typing import Any

import pandas as pd

from pipelag.report.charts import greek
from pipelag.report.figures import empty
from pipelag.report.panels import (
    GREY,
    LETTER,
    MANY,
    TITLED,
    draw_levels,
    draw_verticals,
    fitted,
    label_points,
    legend,
    legend_below,
    lengths,
    outlined,
    over_seeds,
    remark,
    rows_of,
    running_mean,
    thin_out_marks,
    values_of,
    with_all_seeds,
    wrapped,
)
from pipelag.report.style import COLOURS, COLUMN, DASHES, PAGE, figure

FEW = 16  # points of a line: as many or fewer are marked, and all where most of a figure's lines have so few
MARKERS = "os^DvP*X"
ABOVE: Any = {"textcoords": "offset points", "xytext": (0, 1.5), "ha": "center", "va": "bottom"}  # of a bar
Style = tuple[int, int]  # numbers of the colour and of the dashes


@dataclass(frozen=True)
class Axis:
    """A column of the frame, its title with the unit, and how it is laid out."""

    column: str
    title: str = ""
    log: bool = False
    ticks: tuple[float, ...] = ()
    limits: tuple[float | None, float | None] = (None, None)
    levels: Mapping[str, float] = field(default_factory=dict)  # thin horizontal lines of this panel, by name

    @property
    def label(self) -> str:
        """What is written along the axis."""
        return greek(self.title or self.column)

    def apply(self, axes: Any, which: str) -> None:
        """Set up the axis of a panel."""
        if self.log:
            getattr(axes, f"set_{which}scale")("log", **({"base": 2} if self.ticks else {}))
        if self.ticks:
            getattr(axes, f"set_{which}ticks")(self.ticks, [f"{tick:g}" for tick in self.ticks])
            getattr(axes, f"{which}axis").minorticks_off() if self.log else None

    def limit(self, axes: Any, which: str) -> None:
        """Set its ends, once all panels are drawn: an end that is free goes by what is there, and is fixed by this."""
        if self.limits != (None, None):
            getattr(axes, f"set_{which}lim")(*self.limits)


@dataclass(frozen=True)
class Lines:
    """A line per value of a column, a panel per value of another.

    x, y: the axes, or the names of their columns; either may be one axis per panel, by the panel's name.
    line, panel: columns; without them there is one. Rows alike in these and in x are of several seeds: of them the mean
        is drawn, and the band.
    styles: by line, numbers of its colour and dashes; by default each its own, in the order of the frame, the first
        black.
    levels: thin horizontal lines, by name. vertical: a column whose values are marked by thin vertical lines, grey
        where lines share one; vertical_title: what these are, for the legend; it may be one title per panel.
    label: a column that is written beside the points, of one line below and of the next above.
    smooth: draw lines of many points as their running mean, over faint points.
    trailing: draw lines of more points as the mean of so many latest ones, over faint points.
    hollow: a point is hollow where some of its seeds have no value, because these runs diverge; instead of the band
        there is a small point per seed.
    own_legends: each panel has its own, where panels have few lines in common.
    """

    x: Axis | str | Mapping[str, Axis]
    y: Axis | str | Mapping[str, Axis]
    line: str = ""
    panel: str = ""
    styles: Mapping[str, Style] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)
    vertical: str = ""
    vertical_title: str | Mapping[str, str] = ""
    label: str = ""
    smooth: bool = False
    trailing: int = 0
    hollow: bool = False
    shared_y: bool = False
    own_legends: bool = False
    height: float = 2.5

    def draw(self, frame: pd.DataFrame) -> Any:
        """The figure of a frame; an empty frame says that nothing is logged."""
        if frame.empty:
            return empty("no run logged")
        panels = values_of(frame, self.panel)
        names = values_of(frame, self.line)
        width = COLUMN if len(panels) == 1 else PAGE
        fig, grid = figure(width, self.height, ncols=len(panels), sharey=self.shared_y, squeeze=False)
        parts = [rows_of(frame, self.panel, panel) for panel in panels]
        columns = [(axis_of(self.x, str(panel)), axis_of(self.y, str(panel))) for panel in panels]
        counts = [n for i, (x, y) in enumerate(columns) for n in lengths(parts[i], self.line, x.column, y.column)]
        most = median_high(counts) if counts else 0
        for axes, panel, part, (x, y) in zip(grid[0], panels, parts, columns, strict=True):
            marked: dict[float, list[str]] = {}  # the colours of the lines that each vertical line is of
            for number, name in enumerate(names):
                rows = rows_of(part, self.line, name)
                style = self.styles.get(name, (number,) * 2)
                self._line(axes, rows, x, y, str(name), style, most <= FEW)
                drawn = rows.dropna(subset=[y.column])
                for place in drawn[self.vertical].dropna().unique() if self.vertical in drawn else ():
                    marked.setdefault(place, []).append(COLOURS[style[0] % len(COLOURS)])
            thin_out_marks(axes, 0.0 if x.log else width / len(panels))
            title = self.vertical_title
            draw_verticals(axes, marked, title if isinstance(title, str) else title[str(panel)])
            draw_levels(axes, {**self.levels, **y.levels})
            if self.label:
                axes.margins(y=0.16)
            x.apply(axes, "x")
            y.apply(axes, "y")
            axes.set_xlabel(wrapped(x.label, width / len(panels)))
            axes.set_ylabel(wrapped(y.label, self.height - 0.5) if axes is grid[0][0] or not self.shared_y else "")
            axes.set_title(greek(wrapped(str(panel), TITLED * width / len(panels))))
            axes.grid(axis="y", color="#E4E4E4", linewidth=0.5)
            if "iteration" in x.title:
                axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
        for axes, (x, y) in zip(grid[0], columns, strict=True):
            x.limit(axes, "x")
            y.limit(axes, "y")
        if self.own_legends:
            for axes in grid[0]:
                legend_below(axes, width / len(panels))
        else:
            legend(fig, grid[0], width, names)
        return fig

    def points(self, rows: pd.DataFrame, x: Axis, y: Axis) -> pd.DataFrame:
        """A line's means and spreads over seeds (`over_seeds`), of a training as far as all its seeds go."""
        return over_seeds(rows if self.hollow else with_all_seeds(rows, x.column), x.column, y.column)

    def smoothed(self, points: pd.DataFrame) -> tuple[pd.DataFrame, str]:
        """The points of a line as they are drawn, and a remark where that is a mean of several."""
        if self.smooth and len(points) > MANY:
            window = len(points) // 30
            means = points.apply(lambda column: running_mean(list(column), window))
            return means, f"running mean of {window} evaluations"
        if self.trailing and len(points) > self.trailing:
            means = points.rolling(self.trailing, min_periods=1).mean()
            return means, f"mean of the latest {self.trailing} evaluations"
        return points, ""

    def _line(self, axes: Any, rows: pd.DataFrame, x: Axis, y: Axis, name: str, style: Style, marked: bool) -> None:
        missing = rows[y.column].isna()
        without, rows = rows[x.column][missing], rows[~missing]
        if rows.empty:
            return
        points = self.points(rows, x, y)
        colour, dashes = COLOURS[style[0] % len(COLOURS)], DASHES[style[1] % len(DASHES)]
        marker, raw = MARKERS[style[0] % len(MARKERS)], points["mean"]
        points, meaning = self.smoothed(points)
        if meaning:
            axes.plot(raw.index, raw, color=colour, linewidth=0.4, alpha=0.25 if self.smooth else 0.35, zorder=1)
            remark(axes, f"evaluations; lines: {meaning.removesuffix(' evaluations')}")
        axes.plot(
            points.index,
            points["mean"],
            color=colour,
            linestyle=dashes,
            marker=marker if marked or len(points) <= FEW else None,
            markersize=3,
            label=greek(name) or None,
        )
        if self.hollow:
            axes.plot(rows[x.column], rows[y.column], ".", color=colour, markersize=2.5, alpha=0.5, zorder=1)
            some = points["mean"][points.index.isin(without)]
            white = {"marker": marker, "markersize": 4, "markerfacecolor": "white", "linestyle": "none"}
            axes.plot(some.index, some, color=colour, zorder=3, **white)
        elif len(points) == 1 and (points["std"] > 0).any():  # a band has no width
            axes.errorbar(points.index, points["mean"], points["std"], color=colour, linewidth=0.8, capsize=2)
        elif (points["std"] > 0).any():
            low, high = points["mean"] - points["std"], points["mean"] + points["std"]
            axes.fill_between(points.index, low, high, color=colour, alpha=0.15, linewidth=0)
        if self.label:
            texts = rows.groupby(x.column)[self.label].first()
            label_points(axes, [(at, points["mean"][at], texts[at]) for at in points.index], colour, style[0] % 2 == 0)


@dataclass(frozen=True)
class Bars:
    """A group of bars per value of a column, a bar per value of another, the value above each.

    y: the height. group, bar: columns. stack: a column whose values are stacked in a bar instead. number: the format of
    the values. Bars are means over seeds, with whiskers of one standard deviation, which a bar of one seed has not.
    levels: thin horizontal lines, by name. colours: their numbers by bar, or by part of a stack; by default each its
    own, in the order of the frame.
    """

    y: Axis | str
    group: str
    bar: str = ""
    stack: str = ""
    panel: str = ""
    number: str = "{:.2f}"
    x_title: str = ""
    levels: Mapping[str, float] = field(default_factory=dict)
    colours: Mapping[str, int] = field(default_factory=dict)
    shared_y: bool = False
    height: float = 2.4

    def draw(self, frame: pd.DataFrame) -> Any:
        """The figure of a frame; an empty frame says that nothing is logged."""
        y = self.y if isinstance(self.y, Axis) else Axis(self.y)
        frame = frame.dropna(subset=[y.column]) if not frame.empty else frame
        if frame.empty:
            return empty("no run logged")
        panels = {panel: rows_of(frame, self.panel, panel) for panel in values_of(frame, self.panel)}
        columns = [column for column in (self.group, self.bar) if column]
        count = sum(len(rows[columns].drop_duplicates()) for rows in panels.values())
        width = COLUMN if count <= 8 and len(panels) == 1 else PAGE
        groups = [rows[self.group].nunique() for rows in panels.values()]
        ratios = [max(number, 0.4 * max(groups)) for number in groups]  # bars of one panel as wide as another's
        options = {"ncols": len(panels), "sharey": self.shared_y, "squeeze": False, "width_ratios": ratios}
        fig, grid = figure(width, self.height, **options)
        bars, names = values_of(frame, self.bar), values_of(frame, self.stack or self.bar)
        own = {name: 1 + number % (len(COLOURS) - 1) for number, name in enumerate(names)}
        colours = {name: COLOURS[self.colours.get(name, number)] for name, number in own.items()}
        for axes, (panel, rows), ratio in zip(grid[0], panels.items(), ratios, strict=True):
            inches = width * ratio / sum(ratios)
            self._panel(axes, rows, y, bars, colours, inches, small=count > 24)
            axes.set_title(greek(wrapped(str(panel), TITLED * inches)))
            draw_levels(axes, self.levels)
            if "," in self.number and not y.log:  # the axis as the bars: 10,000
                axes.yaxis.set_major_formatter("{x:,.10g}")
        for axes in grid[0]:
            y.limit(axes, "y")
        grid[0][0].set_ylabel(wrapped(y.label, self.height - 0.5))
        legend(fig, grid[0], width)
        return fig

    def _panel(
        self,
        axes: Any,
        rows: pd.DataFrame,
        y: Axis,
        bars: Sequence[Any],
        colours: Mapping[Any, str],
        inches: float,
        small: bool,
    ) -> None:
        """Bars and what stands above and below them; inches: the panel's width; small: its texts."""
        groups = values_of(rows, self.group)
        drawn = [bar for bar in bars if not rows_of(rows, self.bar, bar).empty]
        width = 0.82 / len(drawn)
        letters = 0.82 * inches * width / len(groups) / LETTER  # that fit above a bar
        for number, bar in enumerate(drawn):
            of_bar = rows_of(rows, self.bar, bar)
            there, aside = set(of_bar[self.group]), (number - (len(drawn) - 1) / 2) * width
            places = {group: at + aside for at, group in enumerate(groups) if group in there}
            tops, whiskers = self._stand(axes, of_bar, y, places, width, colours if self.stack else {bar: colours[bar]})
            for group, top in tops.items():
                text = self.number.format(top)
                place = (places[group], top + whiskers.get(group, 0.0))
                upright = 90 if small and len(text) > min(3, letters) else 0
                style = {"fontsize": 5.5 if small else 6, "path_effects": outlined() if self.levels else None}
                axes.annotate(text, place, rotation=upright, **ABOVE, **style)
        titles, crowded = fitted([greek(str(group)) for group in groups], inches / len(groups))
        axes.set_xticks(range(len(groups)), titles, fontsize=6 if crowded else None)
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel(greek(wrapped(self.x_title, inches)))
        y.apply(axes, "y")
        axes.margins(y=0.18 if small else 0.12)

    def _stand(
        self,
        axes: Any,
        rows: pd.DataFrame,
        y: Axis,
        places: Mapping[Any, float],
        width: float,
        colours: Mapping[Any, str],
    ) -> tuple[dict[Any, float], dict[Any, float]]:
        """One bar of each group, by the colours of its parts, from below; returns its top, and how far its whisker
        goes beyond that where it is one part."""
        tops = dict.fromkeys(places, 0.0)
        whiskers: dict[Any, float] = {}
        for name, colour in colours.items():
            part = rows_of(rows, self.stack, name)
            if part.empty:
                continue
            points = over_seeds(part, self.group, y.column)
            spread = points["std"]
            if not self.stack:
                whiskers = spread.to_dict()
            axes.bar(
                [places[group] for group in points.index],
                points["mean"],
                width * 0.92,
                bottom=[tops[group] for group in points.index],
                color=colour,
                yerr=spread.where(spread > 0) if any(reach > 0 for reach in whiskers.values()) else None,
                error_kw={"linewidth": 0.6, "capsize": 1.5},
                label=greek(str(name)) or None,
                log=y.log,
            )
            for group, value in points["mean"].items():
                tops[group] += value
        return tops, whiskers


@dataclass(frozen=True)
class Scatter:
    """Points, a marker per value of a column, a panel per value of another.

    x, y: the axes, or the names of their columns; y may be one axis per panel, by the panel's name. group: the column
    of the markers; its first value is drawn small and pale, as the crowd that the others stand out from. markers: by
    group, where they are not simply one after the other. equal: draw the line on which both axes have the same value.
    """

    x: Axis | str
    y: Axis | str | Mapping[str, Axis]
    group: str = ""
    panel: str = ""
    markers: Mapping[str, str] = field(default_factory=dict)
    equal: bool = False
    height: float = 2.6

    def draw(self, frame: pd.DataFrame) -> Any:
        """The figure of a frame; an empty frame says that nothing is logged."""
        x = self.x if isinstance(self.x, Axis) else Axis(self.x)
        if frame.empty:
            return empty("no run logged")
        panels = values_of(frame, self.panel)
        groups = values_of(frame, self.group)
        width = COLUMN if len(panels) == 1 else PAGE
        fig, grid = figure(width, self.height, ncols=len(panels), squeeze=False)
        for axes, panel in zip(grid[0], panels, strict=True):
            part = rows_of(frame, self.panel, panel)
            y = axis_of(self.y, str(panel))
            for number, name in enumerate(groups):
                rows = rows_of(part, self.group, name)
                if rows.empty:
                    continue
                axes.scatter(
                    rows[x.column],
                    rows[y.column],
                    s=30 if number else 11,
                    color=COLOURS[1 + number % (len(COLOURS) - 1)],
                    marker=self.markers.get(str(name), MARKERS[number % len(MARKERS)]),
                    label=greek(str(name)) or None,
                    alpha=1.0 if number else 0.45,
                    linewidths=0,
                    zorder=2 + number,
                )
            if self.equal:
                most = float(part[[x.column, y.column]].max().max())
                dashed = {"color": GREY, "linewidth": 0.6, "linestyle": (0, (4, 2)), "zorder": 0}
                axes.plot([0, most], [0, most], label="as predicted", **dashed)
                axes.set_xlim(left=0)
                axes.set_ylim(bottom=0)
            x.apply(axes, "x")
            y.apply(axes, "y")
            axes.set_xlabel(wrapped(x.label, width / len(panels)))
            x.limit(axes, "x")
            y.limit(axes, "y")
            axes.set_ylabel(y.label)
            axes.set_title(greek(wrapped(str(panel), TITLED * width / len(panels))))
        legend(fig, grid[0], width)
        return fig


def axis_of(axis: Axis | str | Mapping[str, Axis], panel: str) -> Axis:
    """The axis of a panel, where each may have its own."""
    if isinstance(axis, Mapping):
        return axis[panel]
    return axis if isinstance(axis, Axis) else Axis(axis)
