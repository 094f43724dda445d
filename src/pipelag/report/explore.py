"""A figure's saved frame once more: as curves that a browser draws, and as a sentence for those who do not see it.

Both read the CSV beside the figure and the chart in its record, so that they cannot say anything else than the figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from pipelag.errors import PipelagError
from pipelag.report.charts import GREEK
from pipelag.report.frames import Axis, Lines, axis_of
from pipelag.report.gather import Record
from pipelag.report.panels import rows_of, values_of
from pipelag.report.style import COLOURS, DASHES

LINES = TypeAdapter(Lines)
LISTENED = 700  # characters of a description
NAMED = 12  # values or lines of a panel that a sentence names; of more it gives the range
LETTERS = {"tau": "τ", "Delta": "Δ", "alpha": "α", "beta": "β", "gamma": "γ"}


def frame_of(path: Path) -> pd.DataFrame:
    """The frame that is saved beside a figure; empty where nothing was logged.

    Raises:
        PipelagError: a file that cannot be read.
    """
    try:
        return pd.read_csv(path, keep_default_na=True)
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except (OSError, ValueError) as error:
        raise PipelagError(f"{path} cannot be read ({' '.join(str(error).split())}); draw its figure again") from error


def plain(text: str) -> str:
    """A title in one line, with Greek letters as letters: "tau_fwd" -> "τ_fwd"."""
    one_line = " ".join(text.split())
    return GREEK.sub(lambda name: LETTERS[name[1]] + (f"_{name[2]}" if name[2] else ""), one_line)


def lines_of(record: Record) -> Lines | None:
    """The chart of curves that a record describes; None for other figures, and for older records."""
    if not record.chart or record.chart.get("kind") != "Lines":
        return None
    try:
        return LINES.validate_python({key: value for key, value in record.chart.items() if key != "kind"})
    except ValidationError:
        return None


def panels(chart: Lines, frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """By panel: title, axes and lines, each with its points, their spread over seeds, colour and dashes."""
    if frame.empty:
        return
    names = values_of(frame, chart.line)
    for panel in values_of(frame, chart.panel):
        part = rows_of(frame, chart.panel, panel)
        x, y = axis_of(chart.x, str(panel)), axis_of(chart.y, str(panel))
        lines: list[dict[str, Any]] = []
        remarks: dict[str, None] = {}
        for number, name in enumerate(names):
            rows = rows_of(part, chart.line, name).dropna(subset=[y.column])
            if rows.empty:
                continue
            points, remark = chart.smoothed(chart.points(rows, x, y))
            remarks[remark] = None
            colour, dash = chart.styles.get(str(name), (number, number))
            dashes = DASHES[dash % len(DASHES)]
            line = {"label": plain(str(name)), "colour": COLOURS[colour % len(COLOURS)]}
            drawn = {"dash": list(dashes[1]) if isinstance(dashes, tuple) else []}
            drawn |= {"x": short(points.index), "y": short(points["mean"])}
            drawn |= {"std": short(points["std"])} if (points["std"] > 0).any() and not chart.hollow else {}
            lines.append(line | drawn)
        if lines:
            yield {"title": plain(str(panel)), "x": title(x), "y": title(y), "logx": x.log, "logy": y.log,
                   "limits": list(y.limits), "lines": lines,
                   "remark": "; ".join(filter(None, remarks)),
                   "levels": {plain(label): at for label, at in {**chart.levels, **y.levels}.items()}}  # fmt: skip


def title(axis: Axis) -> str:
    """An axis' title without mathematics."""
    return plain(axis.title or axis.column)


def short(values: Any) -> list[float | None]:
    """Numbers to five digits, which a screen can show; None where there is none."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in map(float, values)]


def seen(record: Record, frame: pd.DataFrame) -> str:
    """What a figure shows, in sentences: its lines and where they end, its bars and their heights."""
    if frame.empty:
        reasons = dict.fromkeys(run.status for run in record.runs if not run.folder)
        return "An empty frame: nothing is logged" + (f" ({'; '.join(reasons)})." if reasons else ".")
    try:
        chart = lines_of(record)
        if chart is not None:
            return listened(curves_seen(chart, frame))
        if record.chart and record.chart.get("kind") == "Bars":
            return listened(bars_seen(record.chart, frame))
        if record.chart and record.chart.get("kind") == "Scatter":
            return listened(points_seen(record.chart, frame))
    except (KeyError, TypeError, ValueError):  # a chart that does not fit the frame: another version's
        pass
    if {"worker", "start", "end", "kind"} <= set(frame):
        return timeline_seen(frame)
    return f"A diagram of {len(frame)} parts: " + ", ".join(plain(str(name)) for name in frame) + "."


def listened(sentences: Iterator[str]) -> str:
    """Those of the sentences that one listens to the end of, and how many are left."""
    text, left = "", 0
    for sentence in sentences:
        if text and len(text) + len(sentence) > LISTENED:
            left += 1
        else:
            text = f"{text} {sentence}".lstrip()
    return text + (f" The CSV has the values of {left} more panel{'s' if left > 1 else ''}." if left else "")


def curves_seen(chart: Lines, frame: pd.DataFrame) -> Iterator[str]:
    """A sentence per panel."""
    for panel in panels(chart, frame):
        ends = []
        for line in panel["lines"]:
            first, last = line["y"][0], line["y"][-1]
            ends.append(f"{line['label'] or 'it'} from {first} to {last}")
        more = f", and {len(ends) - NAMED} more" if len(ends) > NAMED else ""
        where = f"{panel['title']}: " if panel["title"] else ""
        yield f"{where}{panel['y']} against {panel['x']}; " + ", ".join(ends[:NAMED]) + more + "."


def bars_seen(chart: Mapping[str, Any], frame: pd.DataFrame) -> Iterator[str]:
    """A sentence per panel."""
    columns, by = [chart[key] for key in ("group", "bar", "stack") if chart.get(key)], chart.get("panel", "")
    for panel in values_of(frame, by):
        part = rows_of(frame, by, panel)
        value, told = _axis(chart["y"], str(panel))
        means = part.groupby(columns, sort=False)[value].mean().dropna()
        named = [f"{_words(key)} {_number(number)}" for key, number in means.items()]
        if len(named) > NAMED:
            named = [f"{len(named)} bars from {_end(means, means.idxmin())} to {_end(means, means.idxmax())}"]
        where = f"{plain(str(panel))}: " if panel else ""
        yield f"{where}bars of {told}; {', '.join(named)}."


def points_seen(chart: Mapping[str, Any], frame: pd.DataFrame) -> Iterator[str]:
    """A sentence per panel, with the span of each group of points along both axes."""
    by, of = chart.get("group", ""), chart.get("panel", "")
    for panel in values_of(frame, of):
        rows = rows_of(frame, of, panel)
        axes = [_axis(chart[key], str(panel)) for key in ("x", "y")]
        groups = []
        for group in values_of(rows, by):
            part = rows_of(rows, by, group)
            named = f"{len(part)} point{'s' * (len(part) > 1)}" + (f" of {plain(str(group))}" if by else "")
            spans = [f"{name} {_span(part[key])}" for key, name in axes]
            groups.append(", ".join([named, *spans]))
        where = f"{plain(str(panel))}: " if panel else ""
        yield f"{where}{'; '.join(groups)}."


def _span(values: pd.Series[float]) -> str:
    """Values from the least to the greatest."""
    ends = dict.fromkeys(map(_number, (values.min(), values.max())))
    return " to ".join(ends)


def _axis(axis: Any, panel: str) -> tuple[str, str]:
    """(column, title) of an axis in a record: a column's name, an axis, or one axis per panel."""
    if isinstance(axis, str):
        return axis, plain(axis)
    own = axis if "column" in axis else axis[panel]
    return own["column"], plain(own.get("title") or own["column"])


def timeline_seen(frame: pd.DataFrame) -> str:
    """Of a space-time diagram, which may show a stretch of what its frame holds."""
    passes = {"F": "forward", "B": "backward", "R": "recomputing", "W": "gradients of weights"}
    counts = [f"{number} {word}" for kind, word in passes.items() if (number := int((frame["kind"] == kind).sum()))]
    batches = f"; {frame['minibatch'].nunique()} minibatches" if "minibatch" in frame else ""
    return (
        f"A space-time diagram of {frame['worker'].nunique()} workers, whole or a stretch of it; the CSV has all "
        f"passes ({', '.join(counts)}{batches}), from time {frame['start'].min():g} to {frame['end'].max():g}."
    )


def _words(key: Any) -> str:
    return plain(" ".join(map(str, key)) if isinstance(key, tuple) else str(key))


def _end(means: pd.Series[float], key: Any) -> str:
    return f"{_number(means[key])} ({_words(key)})"


def _number(value: float) -> str:
    """To four digits; what is left of a difference that is zero is zero."""
    return f"{0 if abs(value) < 1e-12 else value:.4g}"
