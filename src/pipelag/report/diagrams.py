"""Diagrams: steps of a workflow, the levels of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelag.report.style import CENTRED, COLOURS, PAGE, figure


def workflow(steps: Sequence[tuple[str, str]]) -> Any:
    """Boxes from left to right, an arrow from each to the next: (name of the step, what it gave)."""
    fig, axes = figure(PAGE * 0.9, 1.2)
    before = None
    for number, (name, text) in enumerate(steps):
        colour = COLOURS[1 + number]
        style = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": colour, "linewidth": 1.2}
        box = axes.text(3 * number, 0, text, fontsize=7, bbox=style, **CENTRED).get_bbox_patch()
        axes.text(3 * number, 0.78, name, ha="center", va="bottom", color=colour, weight="bold")
        if before is not None:  # boxes are as wide as their texts, so the arrow is cut off at them
            arrow = {"arrowstyle": "->", "color": "#555555", "linewidth": 1.2, "patchA": before, "patchB": box}
            axes.annotate("", (3 * number, 0), (3 * number - 3, 0), arrowprops=arrow | {"shrinkA": 4, "shrinkB": 4})
        before = box
    axes.set_xlim(-1.3, 3 * len(steps) - 1.7)
    axes.set_ylim(-0.9, 1.2)
    axes.axis("off")
    return fig


def cluster_levels(levels: Sequence[Mapping[str, float]]) -> Any:
    """Two levels: servers of workers, each group with the bandwidth of its links, and the latency where it is given."""
    from matplotlib.patches import FancyBboxPatch, Rectangle

    inner = levels[0] if len(levels) > 1 else {"workers": 1, "bandwidth": float("nan")}
    outer = levels[-1]
    workers, servers = int(inner["workers"]), int(outer["workers"])
    across = min(workers, 4)
    down = -(-workers // across)
    fig, axes = figure(PAGE * 0.8, 1.3 + 0.3 * down)
    wide = across + 1.0
    for server in range(servers):
        left = server * (wide + 0.9)
        outline: Any = {"boxstyle": "round,pad=0.1", "fill": False, "edgecolor": COLOURS[5], "linestyle": "--"}
        axes.add_patch(FancyBboxPatch((left, 0), wide, down + 0.7, **outline))
        for worker in range(workers):
            x, y = left + 0.6 + worker % across, 0.25 + worker // across
            axes.add_patch(Rectangle((x, y), 0.8, 0.7, facecolor=COLOURS[3], edgecolor="white"))
            number = str(server * workers + worker + 1)
            axes.text(x + 0.4, y + 0.35, number, color="white", fontsize=6.5, **CENTRED)
        if workers > 1:
            axes.text(left + wide / 2, down + 0.45, f"$B_1$ = {_speed(inner)}", fontsize=6, **CENTRED)
        axes.plot([left + wide / 2] * 2, [-0.1, -0.75], color=COLOURS[2], linewidth=1.2)
    end = (servers - 1) * (wide + 0.9)
    axes.plot([wide / 2, end + wide / 2], [-0.75, -0.75], color=COLOURS[2], linewidth=1.2)
    which = "$B_2$" if len(levels) > 1 else "$B_1$"
    axes.text((end + wide) / 2, -0.9, f"{which} = {_speed(outer)}", ha="center", va="top", color=COLOURS[2])
    axes.set_xlim(-0.3, end + wide + 0.3)
    axes.set_ylim(-1.5, down + 1.0)
    axes.axis("off")
    return fig


def _speed(level: Mapping[str, float]) -> str:
    """Of a level's links."""
    latency = level.get("latency")
    return f"{level['bandwidth'] / 1e9:g} GB/s" + (f", {latency * 1e6:g} µs" if latency else "")


def plan_of_layers(times: Sequence[float], stages: Sequence[Mapping[str, int]]) -> Any:
    """Layers in a row, as wide as they take time, coloured by stage, with the stage's workers above.

    Args:
        times: milliseconds per layer; stages: first and last layer (from 1) and replicas of each.
    """
    from matplotlib.patches import Rectangle

    fig, axes = figure(PAGE, 1.2)
    starts = [sum(times[:i]) for i in range(len(times) + 1)]
    for number, stage in enumerate(stages):
        colour = COLOURS[1 + number % (len(COLOURS) - 1)]
        left, right = starts[stage["first"] - 1], starts[stage["last"]]
        for layer in range(stage["first"] - 1, stage["last"]):
            style: Any = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.4}
            axes.add_patch(Rectangle((starts[layer], 0), times[layer], 1, **style))
        text = f"stage {number + 1}: {stage['replicas']} worker{'s' if stage['replicas'] > 1 else ''}"
        place = (left + right) / 2, 1.1 + 0.32 * (number % 2)
        axes.text(*place, text, ha="center", va="bottom", color=colour, fontsize=6)
    axes.set_xlim(0, starts[-1])
    axes.set_ylim(0, 1.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("time of forward and backward, layer by layer (ms)")
    return fig
