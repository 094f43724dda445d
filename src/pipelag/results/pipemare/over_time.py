"""Figures 11 and 15: scores against epochs and against time, on the large data sets and by length of warm-up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.results.arrivals import BETWEEN, Arrivals, in_words, later
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, Difference, all_of, sized, trend
from pipelag.results.pipemare.arms import about_zero, below_sync, grid, number
from pipelag.results.pipemare.costs import amortised, arrivals, goal, gpipe, normalised, reach
from pipelag.results.pipemare.curves import STYLES, compared, nothing, task_of
from pipelag.results.pipemare.end_to_end import ARMS, imagenet_pipedream_below
from pipelag.results.pipemare.quality import (
    DATASET_OF,
    EQUAL_POINTS,
    POINTS,
    area,
    at_the_end,
    below,
    best,
    last_evaluation,
    log_in,
    metric,
    outcomes_of,
    runs_of,
    scored,
    title,
    value_of,
)
from pipelag.results.verdict import Finding, NotLogged, if_logged, judge

PAPER = "pipemare"


ALONG = {"epochs": "epochs", "time": "time (epochs of a fully used pipeline)"}


def epochs_and_time(context: Context, tasks: tuple[str, ...], order: Callable[[str], Any]) -> Drawn:
    """Score against epochs and against normalised time, two panels per task.

    Args:
        order: the key by which arms are sorted.
    """
    rows: list[dict[str, Any]] = []
    x: dict[str, Axis] = {}
    y: dict[str, Axis] = {}
    items = compared(context)
    for task in tasks:
        alone = if_logged(lambda task=task: gpipe(context, DATASET_OF[task])["utilisation"])  # type: ignore[misc]
        where = title(context, task, stages=False)
        runs = [item for item in items if item.log is not None and task_of(item) == task]
        for item in sorted(runs, key=lambda item: order(item.arm.labels["arm"])):
            times = [time for time, _ in normalised(item, alone)] if alone else []
            line = {"line": item.arm.labels["arm"], "seed": item.arm.seed}
            for i, row in enumerate(scored(item)):
                rows.append(line | {"panel": f"{where}: epochs", "x": row["epoch"], "score": value_of(row)})
                if alone:
                    rows.append(line | {"panel": f"{where}: time", "x": times[i], "score": value_of(row)})
        y |= {f"{where}: {what}": Axis("score", metric(task)) for what in ALONG}
        x |= {f"{where}: {what}": Axis("x", along) for what, along in ALONG.items()}
    if not rows:
        return nothing(context)
    rows.sort(key=lambda row: list(y).index(row["panel"]))
    return Drawn.of(Lines(x, y, line="line", panel="panel", styles=STYLES), rows, items)


@drawing(PAPER, "figure_11")
def figure_11(context: Context) -> Drawn:
    """ImageNet and WMT17."""
    arms = list(ARMS.values())
    return epochs_and_time(context, ("ImageNet", "WMT17"), arms.index)


@drawing(PAPER, "figure_15")
def figure_15(context: Context) -> Drawn:
    """IWSLT14 by the number of warm-up epochs; the synchronous baseline, all warm-up, comes first."""
    return epochs_and_time(context, ("translation",), lambda arm: -1 if arm == "Sync" else number(arm))


judge(PAPER, "figure_11", "imagenet_accuracy")(imagenet_pipedream_below)  # as in table 2
judge(PAPER, "figure_11", "pipedream_near_zero")(partial(about_zero, arm="PipeDream", task="WMT17"))


@judge(PAPER, "figure_11", "imagenet_speed")
def imagenet_speed(context: Context) -> Finding:
    """Holds if PipeMare's mean accuracy over the epochs is above PipeDream's.

    Epochs stand for time here, as both methods run at full utilisation.
    """
    gap = Difference.of(*(area(context, task="ImageNet", arm=arm) for arm in ("T1+T2", "PipeDream")))
    text = f"mean accuracy over the epochs: PipeMare above PipeDream by {gap.text()}"
    return sized(context, gap.above(), text, SEEDS, task="ImageNet")


@judge(PAPER, "figure_11", "imagenet_warmup")
def imagenet_warmup(context: Context) -> Finding:
    """Holds if PipeMareW's best accuracy is at most 0.1 points below GPipe's after the same number of epochs."""
    gap = below(context, "T1+T2+W", task="ImageNet")
    ends = {
        arm: {last_evaluation(log_in(item))["epoch"] for item in runs_of(context, task="ImageNet", arm=arm).values()}
        for arm in ("Sync", "T1+T2+W")
    }
    text = f"{outcomes_of(context, 'Sync', 'T1+T2+W', task='ImageNet')}; {gap.text()} below after as many epochs"
    text += f", {at_the_end(context, 'Sync', 'T1+T2+W', task='ImageNet')}"
    holds = all_of((gap.below(POINTS), ends["Sync"] == ends["T1+T2+W"]))
    return sized(context, holds, text, f"below by at most {EQUAL_POINTS}", task="ImageNet")


@judge(PAPER, "figure_11", "wmt_warmup")
def wmt_warmup(context: Context) -> Finding:
    """Holds if PipeMareW's best BLEU is not below GPipe's."""
    gap, text = below_sync(context, "T1+T2+W", "WMT17")
    return sized(context, gap.below(1e-9), text, SEEDS, task="WMT17")


def epochs_by_warmup(context: Context) -> tuple[list[str], dict[str, Arrivals], float]:
    """The arms by W, when the runs of each reach the target score, and this score.

    Raises:
        NotLogged: no run of any arm reaches it, so that nothing can be told.
    """
    arms, target = grid(context, "W", "translation"), goal(context, "translation")
    by_arm = {arm: arrivals(context, target, task="translation", arm=arm) for arm in arms}
    if all(one.never for epochs in by_arm.values() for one in epochs.values()):
        raise NotLogged(f"no warmed-up run reaches a BLEU of {reach(context, 'translation', target)}")
    return arms, by_arm, target


@judge(PAPER, "figure_15", "fewer_epochs")
def fewer_epochs(context: Context) -> Finding:
    """Holds if the largest W takes fewer epochs than the smallest, and no W is told to take more than the one before.

    Neighbouring W need not be told apart. A run reaches the target score at some time between two evaluations, so that
    a comparison counts only if it holds whenever that is.
    """
    arms, by_arm, target = epochs_by_warmup(context)
    more = [later(by_arm[b], by_arm[a]) for a, b in pairwise(arms)]
    holds = False if any(more) else later(by_arm[arms[0]], by_arm[arms[-1]])
    text = f"epochs to {target:.1f} BLEU: " + "; ".join(f"{arm} {in_words(by_arm[arm])}" for arm in arms)
    words = f"a good BLEU: the target of table 2, as a share of Sync's best; {BETWEEN}; {SEEDS}"
    return trend(context, holds, text, words)


@judge(PAPER, "figure_15", "better_here")
def better_here(context: Context) -> Finding:
    """Holds if the largest W's best BLEU is above the smallest W's."""
    arms = grid(context, "W", "translation")
    gain = Difference.of(*[best(context, task="translation", arm=arm) for arm in (arms[-1], arms[0])])
    text = f"{outcomes_of(context, *arms, task='translation')}; the last {gain.text()} above the first"
    text += f", {at_the_end(context, arms[-1], arms[0], task='translation')}"
    return trend(context, gain.above(), text, f"the largest W against the smallest; {SEEDS}")


@judge(PAPER, "figure_15", "lower_utilisation")
def lower_utilisation(context: Context) -> Finding:
    """Holds if each W's utilisation is below that of the next smaller one, at the paper's P and N.

    Utilisation is amortised until the same BLEU for all.
    """
    arms, _, target = epochs_by_warmup(context)
    alone = gpipe(context, "IWSLT14")["utilisation"]
    utilisations = [amortised(context, alone, target, task="translation", arm=arm) for arm in arms]
    steps = [Difference.of(a, b) for a, b in pairwise(utilisations)]
    text = f"until {target:.1f} BLEU: " + ", ".join(
        f"{arm} {100 * fmean(value.values()):.0f} %" for arm, value in zip(arms, utilisations, strict=True)
    )
    return trend(context, all_of(step.above() for step in steps), text, f"amortised as in section 4; {SEEDS}")
