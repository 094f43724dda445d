"""Throughput against memory, coloured by staleness: what each method would take of a GPU, and give for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelag.report.figures import empty
from pipelag.report.style import COLOURS, PAGE, figure

BINS = ((0, "none"), (2, "1 to 2"), (8, "3 to 8"), (32, "9 to 32"), (float("inf"), "more"))
MARKERS = "osD^v"
NAMED = 4  # methods of a point that are named


@dataclass(frozen=True)
class Point:
    """A method: GB of the fullest GPU, samples per second, the greatest staleness in minibatches, whether it fits."""

    name: str
    memory: float
    throughput: float
    staleness: int
    fits: bool
    advised: bool = False


def tradeoff(points: Sequence[Point], memory: float) -> Any:
    """The figure; methods that come to the same place are one point, named beside it.

    Args:
        memory: GB of a GPU, drawn where it is finite.
    """
    if not points:
        return empty("no method to draw")
    fig, axes = figure(PAGE, 3.6)
    for number, (most, words) in enumerate(BINS):
        least = BINS[number - 1][0] if number else -1
        in_bin = [p for p in points if least < p.staleness <= most]
        colour, marker = COLOURS[(0, 5, 2, 1, 4)[number]], MARKERS[number]
        for fits in (True, False):
            some = [p for p in in_bin if p.fits is fits]
            if some:
                label, fill = (words, colour) if fits else (f"{words}, does not fit", "none")
                style = {"marker": marker, "facecolors": fill, "edgecolors": colour, "linewidths": 0.9}
                places = [p.memory for p in some], [p.throughput for p in some]
                axes.scatter(*places, s=26, label=label, zorder=3, **style)
    for point in points:
        if point.advised:
            ring = {"facecolors": "none", "edgecolors": COLOURS[3], "linewidths": 1.3}
            axes.scatter([point.memory], [point.throughput], s=130, label="advised", zorder=4, **ring)
    right = max(*(p.memory for p in points), memory if memory < float("inf") else 0.0)
    top = max(p.throughput for p in points)
    if memory < float("inf"):
        axes.axvline(memory, color="#7F7F7F", linewidth=0.8, linestyle=(0, (4, 2)), label="a GPU's memory", zorder=1)
    axes.set_xlim(0, 1.12 * right)
    axes.set_ylim(0, 1.15 * top)
    for names, x, y in labels(points, right, top):
        left = x > 0.6 * right
        aside = {"xytext": (-7 if left else 7, 0), "ha": "right" if left else "left", "va": "center"}
        axes.annotate(names, (x, y), textcoords="offset points", fontsize=6, **aside)
    axes.set_xlabel("memory of the fullest GPU, GB")
    axes.set_ylabel("throughput, samples per second")
    axes.grid(color="#E4E4E4", linewidth=0.5)
    fig.legend(
        loc="outside lower center", ncols=6, title="greatest staleness of a stage, minibatches", title_fontsize=7
    )
    return fig


def labels(points: Sequence[Point], right: float, top: float) -> list[tuple[str, float, float]]:
    """(names, x, y): of points that lie within a letter's width of one another one text, the advised method first."""
    groups: list[list[Point]] = []
    for point in sorted(points, key=lambda p: not p.advised):
        for group in groups:
            if (
                abs(point.memory - group[0].memory) < 0.05 * right
                and abs(point.throughput - group[0].throughput) < 0.045 * top
            ):
                group.append(point)
                break
        else:
            groups.append([point])
    texts = []
    for group in groups:
        names = ", ".join(p.name for p in group[:NAMED])
        more = f" and {len(group) - NAMED} more" if len(group) > NAMED else ""
        texts.append((names + more, group[0].memory, group[0].throughput))
    return texts
