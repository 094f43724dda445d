"""What the panels of a chart share: parts of a frame, means over seeds, thin levels, texts, titles, one legend."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import pandas as pd

from pipelag.report.charts import greek
from pipelag.report.style import broken

LETTER = 0.056  # inches that a letter of a tick's label takes
COURSE = ("epoch", "step", "iteration", "hours", "time")  # what a training goes along
MANY = 90  # points: more are drawn as a running mean over the faint evaluations
GREY = "#7F7F7F"
UNIT = re.compile(r"\d [a-z]")
AXIS = 0.75  # of a panel's width that its axis takes
MARK = 4  # points that a mark takes
TITLED = 0.85  # of a panel's room for its title, which is bold
ROOM = 4  # lines of a legend that a figure has room for
LINE = 0.145  # inches of a further one


def values_of(frame: pd.DataFrame, column: str) -> list[Any]:
    """The different values of a column, in the order of the frame; one that is empty where no column is named."""
    return list(frame[column].drop_duplicates()) if column else [""]


def rows_of(frame: pd.DataFrame, column: str, value: Any) -> pd.DataFrame:
    """The rows that have a value in a column; all where no column is named."""
    return frame[frame[column] == value] if column else frame


def over_seeds(rows: pd.DataFrame, by: str, value: str) -> pd.DataFrame:
    """Mean and standard deviation (0 of one) of a value over seeds, by the values of a column, in its order."""
    grouped = rows.groupby(by, sort=pd.api.types.is_numeric_dtype(rows[by]))[value]
    return pd.DataFrame({"mean": grouped.mean(), "std": grouped.std()}).fillna({"std": 0.0})


def with_all_seeds(rows: pd.DataFrame, x: str) -> pd.DataFrame:
    """A training's rows up to where the first of its seeds ends: a mean over those that go on would flatter it."""
    if "seed" not in rows or x not in COURSE:
        return rows
    return rows[rows[x] <= rows.groupby("seed")[x].max().min()]


def lengths(rows: pd.DataFrame, line: str, x: str, y: str) -> list[int]:
    """The numbers of points of a panel's lines."""
    points = rows.dropna(subset=[y])
    return [rows_of(points, line, name)[x].nunique() for name in values_of(points, line)]


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean over `window` neighbours, over fewer at the ends."""
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def draw_levels(axes: Any, levels: Mapping[str, float]) -> None:
    """Thin horizontal lines, each with dashes of its own, dark as the baseline that they often are; over the grid."""
    for number, (label, level) in enumerate(levels.items()):
        dashes = ((4, 2), (1, 1.5), (6, 1.5, 1, 1.5))[number % 3]
        axes.axhline(level, color="#303030", linewidth=0.7, linestyle=(0, dashes), label=greek(label), zorder=1.6)


def draw_verticals(axes: Any, places: Mapping[float, Sequence[str]], label: str) -> None:
    """Thin vertical lines, each in its line's colour, or grey where several lines share it; so in the legend."""
    drawn = {place: colours[0] if len(colours) == 1 else GREY for place, colours in places.items()}
    for place, colour in drawn.items():
        axes.axvline(place, color=colour, linewidth=0.6, alpha=0.6, zorder=0)
    if drawn and label:
        (colour,) = {*drawn.values()} if len({*drawn.values()}) == 1 else {GREY}
        axes.plot([], [], color=colour, linewidth=0.6, alpha=0.6, label=greek(label))


def remark(axes: Any, text: str) -> None:
    """What the pale lines are, in the legend, once: anywhere among the lines it would lie on some of them."""
    if text not in axes.get_legend_handles_labels()[1]:
        axes.plot([], [], color=GREY, linewidth=0.4, label=text)


def outlined() -> list[Any]:
    """What keeps a small text apart from the lines that it lies on."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground="white")]


def label_points(axes: Any, points: Sequence[tuple[float, float, Any]], colour: str, over: bool) -> None:
    """Small texts over or under points (x, y, text); of some that would fall on one another the first."""
    crowded = 0.045 * (max(p[0] for p in points) - min(p[0] for p in points))
    labelled = float("-inf")
    for x, y, text in points:
        if x - labelled < crowded:
            continue
        labelled = x
        place = {"textcoords": "offset points", "xytext": (0, 4 if over else -9), "ha": "center"}
        axes.annotate(str(text), (x, y), fontsize=5.5, color=colour, path_effects=outlined(), **place)


def thin_out_marks(axes: Any, inches: float) -> None:
    """Mark only the end of a line whose marks would overlap and hide others, as one that soon ends beside long ones.

    inches: the panel's width; 0 where its points need not be evenly apart.
    """
    if not inches:
        return
    lines = [line for line in axes.get_lines() if line.get_linestyle() != "None" and len(line.get_xdata()) > 1]
    ends = [place for line in lines for place in (min(line.get_xdata(orig=False)), max(line.get_xdata(orig=False)))]
    for line in lines:
        places = line.get_xdata(orig=False)
        apart = (max(places) - min(places)) / (len(places) - 1)
        if line.get_marker() != "None" and 72 * AXIS * inches * apart < MARK * (max(ends) - min(ends)):
            line.set_markevery([len(places) - 1])


def letters_of(label: str) -> int:
    """How many letters a label shows, of whose mathematics most is markup: two for "$\\tau_{\\mathrm{f}}$"."""
    return len(re.sub(r"\\[a-z]+", "x", label.replace("\\mathrm", "")).translate(dict.fromkeys(map(ord, "${}_^"))))


def wrapped(text: str, inches: float) -> str:
    """A title or an axis' title in as many lines as it needs beside so much of the figure; a number keeps its unit."""
    return "\n".join(broken(text, int(14 * inches), UNIT, break_long_words=False))


def fitted(titles: Sequence[str], inches: float) -> tuple[list[str], bool]:
    """Titles of groups that have so much room each, and whether they are to be small; then a line that would meet the
    next title goes on below."""
    lines = [title.split("\n") for title in titles]
    if max(len(line) for each in lines for line in each) * LETTER <= 0.82 * inches:
        return list(titles), False
    letters = max(1, int(0.9 * inches / (LETTER * 6 / 7)))
    wrap = partial(textwrap.wrap, width=letters, break_long_words=False, break_on_hyphens=False)
    return ["\n".join(part for line in each for part in wrap(line) or [""]) for each in lines], True


def legend(fig: Any, panels: Sequence[Any], width: float, names: Sequence[Any] = ()) -> None:
    """One legend for all panels, below them; none where there is one line or bar without a name.

    A long one makes the figure taller instead of taking the panels' room.

    names: of lines or bars, in their order; that of the panels in which they are may be another.
    """
    handles: dict[str, Any] = {}
    for axes in panels:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if not handles:
        return
    named = [label for name in names if (label := greek(str(name))) in handles]
    before = list(takewhile(lambda label: label not in named, handles)) if named else []
    order = dict.fromkeys([*before, *named, *handles])
    columns = columns_of(order, width)
    fig.legend([handles[label] for label in order], order, loc="outside lower center", ncols=columns)
    fig.set_figheight(fig.get_figheight() + LINE * max(0, lines_of([*order], columns) - ROOM))


def legend_below(axes: Any, width: float) -> None:
    """A panel's own legend, below its axis."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        columns = columns_of(labels, width)
        axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=columns, borderaxespad=0)


def columns_of(labels: Collection[str], width: float) -> int:
    """The columns of a legend in so many inches: equally many entries in each line."""
    fitting = max(1, int(width / (0.55 + 0.055 * max(map(letters_of, labels)))))
    return -(-len(labels) // -(-len(labels) // fitting))


def lines_of(labels: Sequence[str], columns: int) -> int:
    """The lines of a legend that is filled column by column; an entry may have several."""
    entries = -(-len(labels) // columns)
    return max(sum(label.count("\n") + 1 for label in labels[i : i + entries]) for i in range(0, len(labels), entries))
