"""Pipeline timelines drawn the way the papers draw them: workers down, time across, a numbered box per pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelag.report.style import PAGE, figure

Row = Mapping[str, Any]
Box = tuple[float, float, float, float]  # left, top, width, height
Outline = list[tuple[float, float]]  # corners
# Strong for the minibatch that is followed, pale for the others. Forwards are darker than the blue of lines, which is
# the backwards' green in grey; gradients of weights are lighter than both, and their letters are dark.
STRONG = {"F": "#00568A", "B": "#009E73", "R": "#E69F00", "W": "#F0E442", "S": "#CC79A7", "send": "#7F7F7F"}
PALE = {"F": "#9FC6E6", "B": "#C4E6DA", "R": "#F8E3B8", "W": "#F7F1AE", "S": "#F0DAE6", "send": "#D9D9D9"}
HIGHEST = 20.0  # inches that all workers' rows take; those of very many workers are lower than usual
LEAST = 1.0  # points of a number: smaller ones are specks
NAMES = {
    "F": "forward",
    "B": "backward",
    "R": "recompute",
    "W": "gradients of weights",
    "S": "gradients summed",
    "send": "transfer",
}


def timeline(
    rows: Sequence[Row],
    workers: Sequence[str],
    *,
    number: Callable[[Row], str],
    follow: Callable[[Row], bool] = lambda row: False,
    label: Callable[[Row], str] = lambda row: "",
    unit: str = "time",
    since: float = 0.0,
    until: float | None = None,
) -> Any:
    """A timeline of one schedule.

    Args:
        rows: log lines of a `timeline` run; those of kind "send" are drawn as thin bars under their worker.
        workers: names, from the top.
        number: what stands in a box.
        follow: the passes drawn strongly; all of them where none is.
        label: what stands under the number, e.g. the weights read.
        unit: of the time axis.
        since, until: the stretch of time to show, long runs having boxes too small to read.
    """
    end = until or max(row["end"] for row in rows)
    high = (0.44 if any(label(row) for row in rows) else 0.32) * len(workers)
    scale = min(1.0, HIGHEST / high)
    fig, axes = figure(PAGE, 0.62 + scale * high)
    _draw(axes, rows, workers, number, follow, label, end, since, scale)
    axes.set_xlabel(unit)
    _legend(fig, rows)
    return fig


def draw_on(
    axes: Any,
    rows: Sequence[Row],
    workers: Sequence[str],
    *,
    number: Callable[[Row], str],
    follow: Callable[[Row], bool],
    label: Callable[[Row], str],
) -> None:
    """The same on axes of a larger figure, a page wide, without a legend (`workflow/scripts/picture.py`)."""
    _draw(axes, rows, workers, number, follow, label, max(row["end"] for row in rows))


def stacked(
    panels: Mapping[str, tuple[Sequence[Row], Sequence[str]]],
    number: Callable[[Row], str],
    unit: str,
    follow: Callable[[Row], bool] = lambda row: True,
    until: float | None = None,
) -> Any:
    """Several timelines under each other on one time axis, each with a title; see `timeline`."""
    end = until or max(row["end"] for rows, _ in panels.values() for row in rows)
    heights = [len(workers) for _, workers in panels.values()]
    fig, grid = figure(
        PAGE, 0.7 + 0.27 * sum(heights) + 0.25 * len(panels), nrows=len(panels), sharex=True, height_ratios=heights
    )
    for axes, (title, (rows, workers)) in zip(grid, panels.items(), strict=True):
        _draw(axes, rows, workers, number, follow, lambda row: "", end)
        axes.set_title(title, loc="left")
    grid[-1].set_xlabel(unit)
    _legend(fig, [row for rows, _ in panels.values() for row in rows])
    return fig


def _draw(
    axes: Any,
    rows: Sequence[Row],
    workers: Sequence[str],
    number: Callable[[Row], str],
    follow: Callable[[Row], bool],
    label: Callable[[Row], str],
    end: float,
    since: float = 0.0,
    scale: float = 1.0,
) -> None:
    """Draw on axes. scale: height of a row in relation to the usual one.

    Boxes are collections: a patch for each takes matplotlib a minute for 20,000.
    """
    lasting = [row for row in rows if row["end"] > row["start"] and row["worker"] < len(workers)]
    shown = [row for row in lasting if since <= row["start"] < end]
    passes, messages = ([row for row in shown if (row["kind"] == "send") == sent] for sent in (False, True))
    everything = not any(follow(row) for row in shown)
    _fill(axes, [_rectangle(since, worker + 0.08, end - since, 0.84) for worker in range(len(workers))], ["#F4F4F4"])
    longest = max((len(number(row)) for row in passes), default=1)
    together: dict[tuple[int, float], list[Row]] = {}
    for row in passes:
        together.setdefault((row["worker"], row["start"]), []).append(row)
    boxes: list[Outline] = []
    colours: list[str] = []
    edges: list[float] = []
    for cell in together.values():
        for place, row in enumerate(cell):
            x, y, width, height = _place(row, cell, place)
            cut, width = x + width > end + 1e-9, min(width, end - x)
            strong = everything or follow(row)
            tooth = 0.006 * (end - since) if cut else 0.0
            points = 72 * 6.2 * width / (end - since)  # how wide the box is on paper
            boxes.append([(x, y), *_right_edge(x + width, y, height, tooth), (x, y + height)])
            colours.append((STRONG if strong else PALE)[row["kind"]])
            edges.append(min(0.6, points / 3))  # a wider edge would hide a narrow box
            ink = "white" if strong and row["kind"] != "W" else "#444444"
            _inscribe(axes, (x, y, width, height), number(row), label(row), points, longest, ink, scale)
    _fill(axes, boxes, colours, edges)
    sent = [_rectangle(row["start"], row["worker"] + 0.93, row["end"] - row["start"], 0.12) for row in messages]
    _fill(axes, sent, [(STRONG if everything or follow(row) else PALE)["send"] for row in messages])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlim(since, end)
    axes.set_ylim(len(workers) + 0.08, 0)
    apart = next((step for step in (1, 2, 5, 10, 20, 50, 100) if step * scale >= 0.4), len(workers))
    named = range(0, len(workers), apart)
    axes.set_yticks([worker + 0.5 for worker in named], [workers[worker] for worker in named])
    axes.tick_params(axis="y", length=0)
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)


def _fill(axes: Any, outlines: Sequence[Outline], colours: Sequence[str], edges: Sequence[float] = (0.0,)) -> None:
    """Fill outlines with colours, each with a white edge so many points wide; one of these holds for all."""
    from matplotlib.collections import PolyCollection

    style: Any = {"edgecolors": "white" if any(edges) else "none", "joinstyle": "miter", "capstyle": "butt"}
    boxes = PolyCollection(outlines, facecolors=colours, linewidths=edges, **style)
    axes.add_collection(boxes, autolim=False)


def _rectangle(x: float, y: float, width: float, height: float) -> Outline:
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


def _inscribe(
    axes: Any, box: Box, text: str, below: str, points: float, longest: int, colour: str, scale: float
) -> None:
    """Write into a box its number, as large as the longest of all fits, and below or in a low box beside it a label.

    A number that would be too small to be read is left out.
    """
    x, y, width, height = box
    style = {"ha": "center", "va": "center", "color": colour}
    size = min(7.5, points / (0.75 * longest), (10 * height + 1) * scale)
    beside = below and height < 0.5  # half a box is too low for two lines
    across, down = 0.3 if beside else 0.5, 0.32 if below and not beside else 0.5
    if size >= LEAST:
        axes.text(x + across * width, y + down * height, text, fontsize=size, weight="bold", **style)
    if beside:
        axes.text(x + 0.64 * width, y + 0.5 * height, below, fontsize=6 * scale, **style)
    elif below:
        plain = below.replace("$", "").replace("\\hat", "").replace("{", "").replace("}", "").replace("_", "")
        fitting = min(6.5 * scale, points / (0.6 * len(plain)))
        if fitting >= LEAST:
            axes.text(x + width / 2, y + 0.74 * height, below, fontsize=fitting, **style)


def _right_edge(x: float, y: float, height: float, tooth: float) -> Outline:
    """From above; torn where the box goes on beyond what is shown, so that none thinks it whole."""
    if not tooth:
        return [(x, y), (x, y + height)]
    return [(x - tooth * (i % 2), y + height * i / 8) for i in range(9)]


def _place(row: Row, cell: Sequence[Row], place: int) -> Box:
    """Box of a pass. Two passes that begin together share the cell: of one minibatch in turn, of two at once."""
    start, top, width, height = row["start"], row["worker"] + 0.08, row["end"] - row["start"], 0.84
    if len(cell) == 1:
        return start, top, width, height
    if len({row["minibatch"] for row in cell}) == 1:
        return start + place * width / len(cell), top, width / len(cell), height
    return start, top + place * height / len(cell), width, height / len(cell)


def _legend(fig: Any, rows: Sequence[Row]) -> None:
    from matplotlib.patches import Patch

    kinds = [kind for kind in NAMES if any(row["kind"] == kind for row in rows)]
    handles = [Patch(facecolor=STRONG[kind], label=NAMES[kind]) for kind in kinds]
    fig.legend(handles=handles, loc="outside upper right", ncols=len(handles), handlelength=1.2)
