"""One look for all figures: sized for a paper's column, colour-blind safe, readable in grey."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelag.files import written

COLUMN, PAGE = 3.4, 7.0  # inches: one column, both columns
# Okabe and Ito's palette; black is kept for the baseline.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2, 1, 2)), (0, (4, 4)), "-", "-")

TIE = "\u00a0"  # a space at which no line is broken
WHOLE = re.compile(r"\d+(?: (?:x|to) \d+)+|\b\w+ = \S+|\d %|\(sd \S+\)")  # "4 x 16", "P = 107", "50 %", "(sd 0.8)"

LIGHT = ("#CC79A7", "#E69F00", "#56B4E9")  # of these, too light for white letters


def ink(fill: str) -> str:
    """The colour of letters on a fill."""
    return "black" if fill in LIGHT else "white"


RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # Verdana: as wide, where a reader of an SVG has no DejaVu
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.0,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",  # text stays text: a third of the size, can be searched and read out
    "svg.hashsalt": "pipelag",
    "savefig.dpi": 220,
}
CENTRED: Any = {"ha": "center", "va": "center"}  # of a text at a place
FROZEN: Any = {"figure.constrained_layout.use": False}  # while a figure that is laid out is written


def figure(width: float = COLUMN, height: float = 2.3, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes (`plt.subplots` in the house style)."""
    import matplotlib  # here: most results are tables, which need not wait for it

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcdefaults()  # a matplotlibrc of the user's own changes no figure
    plt.rcParams.update(RC)  # not a context: legends and texts are made after this returns
    return plt.subplots(figsize=(width, height), **options)


def save(fig: Any, base: Path, ends: Sequence[str] = (".pdf", ".svg", ".png"), footer: str = "") -> None:
    """Write <base>.pdf, .svg and .png (or some of them), without dates, so that equal figures are equal files.

    `footer`: a sentence below the figure, small and grey, wrapped to its width.
    """
    import matplotlib.pyplot as plt

    freeze(fig)
    if footer:
        write_below(fig, broken(footer, int(22 * fig.get_figwidth()), WHOLE))
    dates: dict[str, Any] = {
        ".pdf": {"CreationDate": None},
        ".svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
        ".png": {},
    }
    for end in ends:
        drawn = io.BytesIO()  # not a file: on a full disk the writer of PDFs hides why it fails
        with plt.rc_context(FROZEN):  # or matplotlib would lay it out anew for the next
            fig.savefig(drawn, format=end[1:], metadata=dates[end])
        content = drawn.getvalue()
        with written(base.with_suffix(end)) as aside:
            aside.write_bytes(slim(content.decode()).encode() if end == ".svg" else content)
    plt.close(fig)


def broken(text: str, letters: int, whole: re.Pattern[str], **how: Any) -> list[str]:
    """A text in lines of at most so many letters, none of them broken within what `whole` finds.

    how: further arguments of `textwrap.wrap`.
    """
    tied = whole.sub(lambda found: found[0].replace(" ", TIE), text)
    return [line.replace(TIE, " ") for line in textwrap.wrap(tied, letters, **how)]


def slim(svg: str) -> str:
    """An SVG with its places to a hundredth of a point and without comments; what is written in it stays as it is."""
    placed = re.sub(
        r' (?:d|x|y|transform|width|height)="[^"]*"', lambda place: re.sub(r"(\.\d\d)\d+", r"\1", place[0]), svg
    )
    return re.sub(r"\n *(?=\n)", "", re.sub(r"<!--.*?-->", "", placed, flags=re.S))


def freeze(fig: Any) -> None:
    """Lay the figure out once and for all: matplotlib would do so twice for every format."""
    import matplotlib.pyplot as plt

    fig.draw_without_rendering()
    with plt.rc_context(FROZEN):
        fig.set_layout_engine(None)


def write_below(fig: Any, lines: Sequence[str]) -> None:
    """Make a figure that is laid out so much taller, and write the lines there; nothing else moves on the page."""
    width, height = fig.get_size_inches()
    room = 0.06 + 0.108 * len(lines)
    places = [(axes, axes.get_position()) for axes in fig.axes]
    legends = [(legend, legend.get_window_extent().transformed(fig.transFigure.inverted())) for legend in fig.legends]
    fig.set_size_inches(width, height + room)

    def up(y: float) -> float:
        return float((y * height + room) / (height + room))

    for axes, place in places:
        axes.set_position([place.x0, up(place.y0), place.width, up(place.y1) - up(place.y0)])
    for legend, place in legends:
        legend.set_loc((place.x0, up(place.y0)))
    for text in fig.texts:
        text.set_y(up(text.get_position()[1]))
    place_of_text = {"ha": "left", "va": "top", "fontsize": 6, "color": "#59636E", "linespacing": 1.15}
    fig.text(0.04 / width, (room - 0.02) / (height + room), "\n".join(lines), **place_of_text)
