"""Figures 1 and 2: the bytes that data and model parallelism send per batch, by a model's layers; and SGD's loop."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pandas as pd

from pipelag.report.style import COLOURS, PAGE, figure
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import exact
from pipelag.results.logs import RunLog
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "spectrain"
FLOAT = 4  # bytes


def gpus_of(log: RunLog) -> int:
    """The number of GPUs, one per stage of the counted cut."""
    return len(log.summary["cuts"]) + 1


def data_parallel_bytes(log: RunLog) -> int:
    """The bytes per batch over all GPUs, 2 (N-1) |w|.

    They are the same for a ring and for a parameter server on one of the GPUs. The plans of figure 3 count them alike
    (`summed_bytes`; ambiguity E15).
    """
    return 2 * (gpus_of(log) - 1) * int(log.summary["parameters"]) * FLOAT


def crossing(log: RunLog) -> list[int]:
    """The bytes per batch at each cut: the output of the layer before it, and a gradient of the same size back."""
    outputs = {row["layer"]: row["output"] for row in log.rows}
    return [2 * outputs[cut] * log.summary["batch"] * FLOAT for cut in log.summary["cuts"]]


def megabytes(size: float) -> str:
    """A number of bytes as a label in MB of 10^6 bytes, as in figure 3."""
    return f"{size / 1e6:,.1f} MB"


def table_of(context: Context) -> pd.DataFrame:
    """The counted bytes, a row per model."""
    lines = []
    for arm in context.values("arm"):
        for log in (log for log in context.logs(arm=arm) if log.summary["kind"] == "count"):
            row = {"model": arm, "gpus": gpus_of(log), "batch": log.summary["batch"]}
            row |= {"parameters": log.summary["parameters"], "data_parallel_bytes": data_parallel_bytes(log)}
            lines.append(row | {"model_parallel_bytes": sum(crossing(log))})
    return pd.DataFrame(lines)


def box(axes: Any, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    """Draw a labelled box."""
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0.02,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=colour, edgecolor="none"))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color="white", fontsize=7, weight="bold")


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], two_headed: bool = False) -> None:
    """Draw an arrow between two points."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "<->" if two_headed else "->", "linewidth": 0.9})


@drawing(PAPER, "figure_1a")
def figure_1a(context: Context) -> Drawn:
    """Data parallelism: full copies of the network, whose gradients are gathered on one of the GPUs."""
    data = table_of(context)
    log = context.log(arm="VGG16")
    if log is None:
        return not_logged("no model has been counted")
    gpus, layers = gpus_of(log), len(log.rows)
    fig, axes = figure(PAGE * 0.8, 1.9)
    each = megabytes(log.summary["parameters"] * FLOAT)
    text = f"on GPU 0: gather gradients, broadcast weights, {each} each way"
    box(axes, 0.6, 0.0, 2 * gpus - 1.6, 0.5, text, COLOURS[0])
    for gpu in range(gpus):
        box(axes, 2 * gpu, 1.3, 1.6, 0.6, f"GPU {gpu}\nlayers 1-{layers}", COLOURS[1])
        axes.text(2 * gpu + 0.8, 2.15, f"1/{gpus} of a batch", ha="center", fontsize=6.5)
        if gpu:
            arrow(axes, (2 * gpu + 0.8, 1.28), (0.6 + (gpu + 0.5) * (2 * gpus - 1.6) / gpus, 0.52), two_headed=True)
    axes.set_xlim(-0.1, 2 * gpus - 0.3)
    axes.set_ylim(-0.1, 2.4)
    axes.axis("off")
    return Drawn(figure=fig, data=data, items=context.select(arm="VGG16"))


@drawing(PAPER, "figure_1b")
def figure_1b(context: Context) -> Drawn:
    """Model parallelism: layers divided over the GPUs, with the bytes that cross each boundary."""
    data = table_of(context)
    log = context.log(arm="VGG16")
    if log is None:
        return not_logged("no model has been counted")
    cuts = [0, *log.summary["cuts"], len(log.rows)]
    fig, axes = figure(PAGE * 0.9, 1.1)
    for gpu, (a, b) in enumerate(pairwise(cuts)):
        box(axes, 3 * gpu, 0, 1.6, 0.7, f"GPU {gpu}\nlayers {a + 1}-{b}", COLOURS[1])
        if gpu < len(cuts) - 2:
            arrow(axes, (3 * gpu + 1.65, 0.5), (3 * gpu + 2.95, 0.5))
            arrow(axes, (3 * gpu + 2.95, 0.2), (3 * gpu + 1.65, 0.2))
            half = megabytes(crossing(log)[gpu] / 2)
            axes.text(3 * gpu + 2.3, 0.62, f"activations\n{half}", ha="center", va="bottom", fontsize=6.5)
            axes.text(3 * gpu + 2.3, 0.08, f"gradients\n{half}", ha="center", va="top", fontsize=6.5)
    axes.set_xlim(-0.1, 3 * len(cuts) - 4.2)
    axes.set_ylim(-0.45, 1.15)
    axes.axis("off")
    return Drawn(figure=fig, data=data, items=context.select(arm="VGG16"))


@drawing(PAPER, "figure_2")
def figure_2(context: Context) -> Drawn:
    """The loop of SGD, unrolled over the minibatches of a one-GPU run."""
    log = context.log()
    if log is None:
        return not_logged("the run has no log")
    fig, axes = figure(PAGE, 0.9)
    x = 0.0
    rows = [row for row in log.rows if row["minibatch"] < 2]
    for row in rows:
        if row["kind"] == "F":
            box(axes, x, 0, 1.1, 0.6, f"$W_{{{row['reads']}}}$", COLOURS[0])
            arrow(axes, (x + 1.15, 0.3), (x + 1.55, 0.3))
            box(axes, x + 1.6, 0, 1.6, 0.6, f"forward\nbatch {row['minibatch']}", COLOURS[1])
            x += 3.2
        else:
            arrow(axes, (x + 0.05, 0.3), (x + 0.45, 0.3))
            box(axes, x + 0.5, 0, 1.6, 0.6, f"backward\nbatch {row['minibatch']}", COLOURS[3])
            arrow(axes, (x + 2.15, 0.3), (x + 3.35, 0.3))
            axes.text(x + 2.75, 0.38, r"$-\eta g$", ha="center", va="bottom", fontsize=7)
            x += 3.4
    box(axes, x, 0, 1.1, 0.6, f"$W_{{{rows[-1]['writes']}}}$", COLOURS[0])
    axes.set_xlim(-0.1, x + 1.2)
    axes.set_ylim(-0.15, 0.85)
    axes.axis("off")
    return Drawn(figure=fig, data=pd.DataFrame(log.rows))


@judge(PAPER, "figure_1b", "activations_at_cuts")
def activations_at_cuts(context: Context) -> Finding:
    """Holds if two real workers send exactly the bytes counted for the layer at their cut."""
    real = log_of(context, arm="two real workers")
    counted = log_of(context, arm="the same, counted")
    steps = real.summary["steps"]
    sent = sum(worker["sent_bytes"] for worker in real.summary["workers"]) / steps
    expected = sum(crossing(counted))
    return exact(sent == expected, f"{sent:,.0f} bytes sent per batch, {expected:,} counted")
