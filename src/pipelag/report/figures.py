"""The diagrams that papers on pipelining draw: space-time diagrams, layer partitions; and the figure without logs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from pipelag.report.style import CENTRED, COLOURS, COLUMN, PAGE, figure, ink


def empty(why: str) -> Any:
    """What stands in the place of a figure that has no log: a sentence that says why, and nothing to be read off."""
    fig, axes = figure(COLUMN, 1.6)
    axes.text(0.5, 0.5, textwrap.fill(why, 48), transform=axes.transAxes, color="#7F7F7F", **CENTRED)
    axes.set_axis_off()
    return fig


def space_time(rows: Sequence[Mapping[str, Any]], workers: Sequence[str], versions: bool = False) -> Any:
    """A space-time diagram: workers down, cycles across, a box per pass, coloured by minibatch.

    Args:
        rows: log lines of a `timeline` run.
        workers: their names, from the top.
        versions: write under a box which version of its stage's weights it reads, or makes.
    """
    cycles = max(row["end"] for row in rows)
    fig, axes = figure(min(PAGE, 1.1 + 0.62 * cycles), 0.5 + 0.52 * len(workers))
    cells: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["worker"], row["start"]), []).append(row)

    def write(x: float, y: float, text: str, size: float, colour: str, pad: float, **style: Any) -> None:
        box = {"boxstyle": f"round,pad={pad}", "facecolor": colour, "edgecolor": "none"}
        axes.text(x, y, text, fontsize=size, color=ink(colour), bbox=box, **CENTRED, **style)

    for worker in range(len(workers)):
        for cycle in range(cycles):
            here = cells.get((worker, cycle), [])
            if not here:
                axes.add_patch(_box(cycle, worker, 1, "#F3F3F3", "#D8D8D8"))
            for place, row in enumerate(here):
                share = 1 / len(here)
                colour = COLOURS[1 + row["minibatch"] % (len(COLOURS) - 1)]
                forward = row["kind"] == "F"
                axes.add_patch(_box(cycle + place * share, worker, share, colour, "white", None if forward else "////"))
                middle = cycle + (place + 0.5) * share
                name, high = f"{row['kind']}{row['minibatch']}", 0.4 if versions else 0.5
                write(middle, worker + high, name, 6.5, colour, 0.12, weight="bold")
                if versions:
                    text = f"reads $W_{{{row['reads']}}}$" if forward else f"makes $W_{{{row['writes']}}}$"
                    write(middle, worker + 0.78, text.split(" ")[1] if len(here) > 1 else text, 6, colour, 0.1)
    axes.set_xlim(0, cycles)
    axes.set_ylim(len(workers), 0)
    axes.set_xticks([c + 0.5 for c in range(cycles)], [str(c) for c in range(cycles)])
    axes.set_yticks([w + 0.5 for w in range(len(workers))], workers)
    axes.tick_params(length=0)
    axes.set_xlabel("cycle")
    for spine in axes.spines.values():
        spine.set_visible(False)
    return fig


def _box(x: float, y: float, width: float, face: str, edge: str, hatch: str | None = None) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (x + 0.02, y + 0.06), width - 0.04, 0.88, facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0.4
    )


def partition(stages: Sequence[Sequence[int]], accelerators: Sequence[str]) -> Any:
    """A network's layers in a row, grouped into partitions, each above the accelerator that computes it."""
    fig, axes = figure(PAGE * 0.75, 1.35)
    x = 0.0
    for number, (layers, accelerator) in enumerate(zip(stages, accelerators, strict=True)):
        colour, start = COLOURS[1 + number % (len(COLOURS) - 1)], x
        for layer in layers:
            axes.add_patch(_box(x, 0, 0.9, colour, "white"))
            axes.text(x + 0.45, 0.5, f"{layer}", color=ink(colour), weight="bold", **CENTRED)
            x += 0.9
        middle = (start + x) / 2
        axes.text(middle, -0.2, f"P{number}", ha="center", va="bottom", color=colour, weight="bold")
        axes.annotate("", (middle, 1.5), (middle, 1.0), arrowprops={"arrowstyle": "->", "color": colour})
        frame = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": colour}
        axes.text(middle, 1.75, accelerator, color=colour, weight="bold", bbox=frame, **CENTRED)
        x += 0.35
    axes.text(-0.15, 0.5, "layers", ha="right", va="center")
    axes.set_xlim(-1.1, x)
    axes.set_ylim(2.1, -0.75)
    axes.axis("off")
    return fig


def registers(stages: int, accelerators: Mapping[str, str]) -> Any:
    """Forward stages above, backward stages below, the register pairs between, coloured by accelerator.

    Args:
        stages: K + 1.
        accelerators: the accelerator of "FS1", "BKS1", ...
    """
    fig, axes = figure(PAGE * 0.8, 2.0)
    names = sorted(set(accelerators.values()))
    colour = {name: COLOURS[1 + i % (len(COLOURS) - 1)] for i, name in enumerate(names)}

    def box(x: float, y: float, name: str) -> None:
        axes.add_patch(_box(x, y, 2.0, colour[accelerators[name]], "white"))
        axes.text(x + 1.0, y + 0.5, f"{name}  ({accelerators[name]})", color="white", weight="bold", **CENTRED)

    def arrow(a: tuple[float, float], b: tuple[float, float], **style: Any) -> None:
        axes.annotate("", b, a, arrowprops={"arrowstyle": "->", "linewidth": 0.9}, **style)

    step = 3.4
    for i in range(stages):
        box(i * step, 0, f"FS{i + 1}")
        box(i * step, 2, f"BKS{stages - i}")
        arrow((i * step + 1.0, 0.97), (i * step + 1.0, 2.03))
        axes.text(i * step + 1.06, 1.5, "kept activations" if i < stages - 1 else "error", fontsize=6.5, va="center")
        if i < stages - 1:
            for y, sign in ((0.5, 1), (2.5, -1)):
                middle = i * step + 2.0 + (step - 2.0) / 2
                axes.add_patch(_box(middle - 0.15, y - 0.5, 0.3, "#555555", "white"))
                left, right = (i * step + 2.0, y), ((i + 1) * step, y)
                arrow(*((left, right) if sign > 0 else (right, left)), zorder=0)
                text = f"$x^{{(l_{i + 1})}}$" if sign > 0 else rf"$\delta^{{(l_{i + 1}+1)}}$"
                above = "bottom" if sign > 0 else "top"
                axes.text(middle, y - 0.55 * sign, text, ha="center", va=above, fontsize=7)
    arrow((-0.9, 0.5), (0, 0.5))
    axes.text(-0.45, 0.36, "minibatch", ha="center", va="bottom", fontsize=6.5)
    axes.set_xlim(-1.4, (stages - 1) * step + 2.4)
    axes.set_ylim(3.5, -0.6)
    axes.axis("off")
    return fig
