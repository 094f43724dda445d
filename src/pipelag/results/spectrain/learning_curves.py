"""Figures 5 and 12: the Transformer's learning curves, their fluctuation and their distance from one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.results import colours
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, Difference, all_of, trend
from pipelag.results.logs import RunLog
from pipelag.results.spectrain.below import below_figures
from pipelag.results.spectrain.training import (
    ARMS,
    DATA,
    PIPED,
    READINGS,
    SPECTRAIN,
    VANILLA,
    BySeed,
    as_trained,
    points,
)
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

PAPER = "spectrain"
# PipeDream with stashing has the colour of PipeDream-2BW, which is not drawn here.
COLOURS = (colours.BASELINE, colours.UNMENDED, colours.PIPEDREAM, colours.TWO_BW, colours.SPECTRAIN)
STYLES = {arm: (colour, number) for number, (arm, colour) in enumerate(zip(ARMS, COLOURS, strict=True))}
WINDOW = 20  # evaluations of the moving averages
RECORDED = 250  # evaluations of the paper's curves: every 20th of 5,000 iterations


def curves(context: Context, arms: Sequence[str], panels: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The evaluations of the Transformer's runs, a row per point. panels: the metric of each panel, by its title."""
    items = [(arm, item) for arm in arms for item in context.select(what="training", model="Transformer", arm=arm)]
    titles = {arm: named(arm, [item.log for other, item in items if other == arm and item.log]) for arm in arms}
    for panel, metric in panels.items():
        for arm, item in items:
            if item.log is None or ("loss" in metric and arm in lost(context)):
                continue
            for row in item.log.evaluations(metric):
                point = {"panel": panel, "arm": titles[arm], "seed": item.arm.seed, "step": row["step"]}
                yield point | {"value": row[metric], "diverged": item.log.diverged_at is not None}


def lost(context: Context) -> list[str]:
    """The arms that diverge with every seed. Their losses are not drawn, since they soon leave any axis."""
    logs = {arm: context.logs(what="training", model="Transformer", arm=arm) for arm in ARMS}
    return [arm for arm, each in logs.items() if each and all(log.diverged_at is not None for log in each)]


def named(arm: str, logs: Sequence[RunLog]) -> str:
    """An arm's name in a legend, with the number of its runs that diverged."""
    diverged = sum(log.diverged_at is not None for log in logs)
    of = f"{diverged} of {len(logs)} " if len(logs) > 1 else ""
    return f"{arm} ({of}diverged)" if diverged else arm


def styles_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """The styles of lines by their names in the legend. An arm's style does not depend on whether its runs diverge."""
    titles = dict.fromkeys(row["arm"] for row in rows)
    return {title: STYLES[arm] for title in titles for arm in ARMS if title.split(" (")[0] == arm}


def limits(rows: Sequence[Mapping[str, Any]], panel: str) -> tuple[float | None, float | None]:
    """The limits of a panel's axis: the range of the means over seeds of runs that did not diverge.

    A diverging run, or one evaluation of one seed, would otherwise flatten the curves.
    """
    values = [row["value"] for row in rows if row["panel"] == panel]
    seeds: dict[tuple[str, int], list[float]] = {}  # of every evaluation
    for row in rows:
        if row["panel"] == panel and not row["diverged"]:
            seeds.setdefault((row["arm"], row["step"]), []).append(row["value"])
    means = [fmean(each) for each in seeds.values()]
    if not means or max(values) <= max(means):
        return None, None
    margin = 0.05 * (max(means) - min(means))
    return min(means) - margin, max(means) + margin


def window(rows: Sequence[Mapping[str, Any]]) -> int:
    """The number of evaluations in a moving average: the paper's share of a curve, so that a short one lags no more."""
    steps = len({row["step"] for row in rows})
    return min(WINDOW, max(2, round(steps * WINDOW / RECORDED)))


@drawing(PAPER, "figure_5")
def figure_5(context: Context) -> Drawn:
    """Accuracy against iterations, with single evaluations as faint and moving averages as strong lines."""
    y = Axis("value", "validation accuracy (%)")
    rows = list(curves(context, (DATA, VANILLA), {"": "accuracy"}))
    chart = Lines(Axis("step", "iteration"), y, line="arm", styles=STYLES | styles_of(rows), trailing=window(rows))
    return Drawn.of(chart, rows, note=below_curves(context, rows))


def below_curves(context: Context, rows: Sequence[Mapping[str, Any]]) -> str:
    """The notes below curves: the meaning of lines and bands, the losses that are not drawn, and the training."""
    if not rows:
        return ""
    several = len({row["seed"] for row in rows}) > 1
    sentences = [
        f"Faint lines: single evaluations{', mean over seeds' if several else ''}; strong lines"
        f"{' and bands' if several else ''}: means over the latest {window(rows)} of "
        + ("these means and of their standard deviations." if several else "these.")
    ]
    gone = [arm for arm in lost(context) if any(row["panel"] for row in rows)]
    sentences += [f"No loss is drawn of what diverges with every seed: {', '.join(gone)}."] if gone else []
    return " ".join([*sentences, *below_figures(context)])


@drawing(PAPER, "figure_12")
def figure_12(context: Context) -> Drawn:
    """Three panels: training loss, validation loss and validation accuracy."""
    panels = {"Training loss": "loss", "Validation loss": "test_loss", "Validation accuracy": "accuracy"}
    rows = list(curves(context, ARMS, panels))
    axes = {
        title: Axis("value", "validation accuracy (%)")
        if metric == "accuracy"
        else Axis("value", "loss", limits=limits(rows, title))
        for title, metric in panels.items()
    }
    styles = styles_of(rows)
    chart = Lines(Axis("step", "iteration"), axes, line="arm", panel="panel", styles=styles, trailing=window(rows))
    return Drawn.of(chart, rows, note=below_curves(context, rows))


def spread(values: Sequence[float]) -> float:
    """How much a curve fluctuates: the root mean square of the steps between evaluations, over the square root of two.

    In the second half of a run. A slow rise hardly counts, while it would count around a lagging average.
    """
    late = values[len(values) // 2 :]
    return (fmean((after - before) ** 2 for before, after in pairwise(late)) / 2) ** 0.5


def spreads(context: Context, arm: str) -> BySeed:
    """The `spread` of the Transformer's validation accuracy by seed. Raises `NotLogged` if an arm does not learn."""
    as_trained(context, "Transformer", arm)  # a curve that stays at chance does not fluctuate
    curves_of = evaluated(context, arm)
    if any(len(values) < 2 * WINDOW for values in curves_of.values()):
        raise NotLogged(f"{arm} of the Transformer has no {2 * WINDOW} logged evaluations")
    return {seed: spread(values) for seed, values in curves_of.items()}


def evaluated(context: Context, arm: str) -> dict[int, list[float]]:
    """The Transformer's validation accuracies by seed, for the runs that have a log."""
    items = context.select(what="training", model="Transformer", arm=arm)
    return {item.arm.seed: points(item.log, "accuracy") for item in items if item.log is not None}


def least_stable(context: Context, pairs: Sequence[tuple[str, str]]) -> Finding:
    """Whether in each pair of arms the first fluctuates more than the second (`spread`), paired over seeds."""
    arms = dict.fromkeys(arm for pair in pairs for arm in pair)
    by_arm = {arm: spreads(context, arm) for arm in arms}
    wider = [Difference.of(by_arm[a], by_arm[b]).above() for a, b in pairs]
    values = ", ".join(f"{arm} {fmean(by_seed.values()):.2f}" for arm, by_seed in by_arm.items())
    why = f"points from one evaluation to the next, over the root of two, in the second half: {values}"
    return trend(context, all_of(wider), why, SEEDS, what="training", model="Transformer")


def rise(values: Sequence[float]) -> float:
    """By how much the mean of a curve's second half is above that of its first."""
    half = len(values) // 2
    return fmean(values[half:]) - fmean(values[:half])


@judge(PAPER, "figure_5", "fluctuates")
def fluctuates(context: Context) -> Finding:
    """Holds if vanilla DualPipe fluctuates more than data parallelism, and data parallelism's curve rises."""
    wider = least_stable(context, [(VANILLA, DATA)])
    rises = {seed: rise(values) for seed, values in evaluated(context, DATA).items()}
    up = Difference.from_zero(rises)
    why = f"{DATA}'s second half is above its first by {up.text().lstrip('+')} points; {wider.why}"
    return replace(wider, holds=all_of((wider.holds, up.above())), why=why)


@judge(PAPER, "figure_12", "vanilla_least_stable")
def vanilla_least_stable(context: Context) -> Finding:
    """Holds if vanilla DualPipe fluctuates more than each other arm."""
    return least_stable(context, [(VANILLA, other) for other in (PIPED, SPECTRAIN, DATA)])


def pipedream_between(piped: str) -> Judge:
    """A judge that decides whether PipeDream fluctuates less than vanilla DualPipe and more than SpecTrain."""
    return lambda context: least_stable(context, [(VANILLA, piped), (piped, SPECTRAIN)])


for _suffix, _piped in READINGS.items():
    judge(PAPER, "figure_12", f"pipedream_between{_suffix}")(pipedream_between(_piped))


def apart(a: Sequence[float], b: Sequence[float]) -> float:
    """The mean distance of two curves, evaluation by evaluation."""
    return fmean(abs(x - y) for x, y in zip(a, b, strict=True))


@judge(PAPER, "figure_12", "spectrain_near_data")
def spectrain_near_data(context: Context) -> Finding:
    """Holds if SpecTrain's curve is no further from data parallelism's than two seeds of data parallelism are apart.

    This is our reading of "similar". Distances are means over evaluations, paired over the seeds that both have.
    """
    for arm in (SPECTRAIN, DATA):
        as_trained(context, "Transformer", arm)
    predicted, data = (evaluated(context, arm) for arm in (SPECTRAIN, DATA))
    if len(data) < 2:
        raise NotLogged(f"how near counts as similar takes several seeds of {DATA} on the Transformer")
    near = {seed: apart(predicted[seed], data[seed]) for seed in predicted if seed in data}
    if not near:
        raise NotLogged(f"{SPECTRAIN} and {DATA} have no seed of the Transformer in common")
    among = {seed: fmean(apart(data[seed], data[other]) for other in data if other != seed) for seed in data}
    further = Difference.of(near, among)
    words = f"points between accuracies, on average: {SPECTRAIN} and {DATA} {fmean(near.values()):.2f}, {DATA} with "
    words += f"two seeds {fmean(among.values()):.2f}; further by {further.text()}"
    why = f"similar: no further apart than two seeds of {DATA}; {SEEDS}"
    return trend(context, further.below(), words, why, what="training", model="Transformer")
