"""Figures 4, 8, 12 and 19: uncorrected delays, twice as many stages, a deeper network, and random delays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import ONE_MORE, SEEDS, Difference, gaps, ordered, paired_means, sized, trend
from pipelag.results.learning import learned
from pipelag.results.logs import Item
from pipelag.results.pipemare.arms import DIVERGED, all_diverged, best_below, higher, none_diverged
from pipelag.results.pipemare.curves import compared, curves, learning, task_of
from pipelag.results.pipemare.quality import (
    CHANCE,
    DATASET_OF,
    EQUAL_POINTS,
    POINTS,
    area,
    at_the_end,
    below,
    best,
    diverging,
    final,
    mean_text,
    metric,
    outcomes,
    outcomes_of,
    runs_of,
    scored,
    spec_stages,
    title,
    value_of,
)
from pipelag.results.verdict import Finding, judge

PAPER = "pipemare"
# How far apart the pairs are that the paper calls matching, plus half a unit of the last digit: points, and BLEU.
MATCHED = {"images": 0.2 + 0.05, "translation": 0.7 + 0.05}


@drawing(PAPER, "figure_4")
def figure_4(context: Context) -> Drawn:
    """Training loss and accuracy, a line per pipeline."""

    def name(item: Item) -> str:
        arm = item.arm.labels["arm"]
        if arm == "Sync":
            return "synchronous"
        return f"{spec_stages(item)} stages, tau_fwd {'>' if arm == 'neither' else '='} tau_bkwd"

    lines = learning(context, name)
    where = title(context, "images", stages=False)
    rows = [
        row | {"panel": f"{where}: {what}", "score": row[key]}
        for key, what in (("loss", "loss"), ("score", "accuracy"))
        for row in lines
    ]
    y = {
        f"{where}: loss": Axis("score", "training loss"),
        f"{where}: accuracy": Axis("score", metric("images")),
    }
    return Drawn.of(Lines(Axis("epoch", "epochs"), y, line="line", panel="panel"), rows)


@judge(PAPER, "figure_4", "finest_diverges")
def finest_diverges(context: Context) -> Finding:
    """Holds if no seed has an evaluation above one and a half times chance: diverged from the start."""
    arm = "no discrepancy, many more stages"
    scores = best(context, task="images", arm=arm)
    text = f"best accuracy {outcomes(context, task='images', arm=arm)}"
    why = f"from the start: no evaluation above {CHANCE:g} %, one and a half times chance; every seed"
    return sized(context, max(scores.values()) <= CHANCE, text, why, task="images", arm=arm)


@judge(PAPER, "figure_4", "plain_does_not")
def plain_does_not(context: Context) -> Finding:
    """Holds if no seed diverges: each ends with a finite loss and above one and a half times chance."""
    text = f"best accuracy {outcomes(context, task='images', arm='no discrepancy')}"
    holds = none_diverged(context, task="images", arm="no discrepancy")
    return sized(context, holds, text, DIVERGED, task="images", arm="no discrepancy")


@judge(PAPER, "figure_4", "discrepancy_diverges")
def discrepancy_diverges(context: Context) -> Finding:
    """Holds if every seed with discrepancy diverges, at the learning rate of the arm without discrepancy."""
    text = outcomes_of(context, "neither", "no discrepancy", task="images")
    rates = {
        item.arm.spec.optimizer.lr
        for arm in ("neither", "no discrepancy")
        for item in runs_of(context, task="images", arm=arm).values()
        if item.arm.spec.optimizer is not None
    }
    holds = all_diverged(context, task="images", arm="neither") and len(rates) == 1
    return sized(context, holds, f"best accuracy {text}", DIVERGED, task="images")


@judge(PAPER, "figure_4", "discrepancy_hurts")
def discrepancy_hurts(context: Context) -> Finding:
    """Holds if the best accuracy with discrepancy is below that without, at the same stages and rate."""
    step, text = best_below(context, "neither", "no discrepancy", "a difference of {}", "images")
    return trend(context, step.above(), text, SEEDS, task="images")


@judge(PAPER, "figure_4", "delay_hurts")
def delay_hurts(context: Context) -> Finding:
    """Holds if best accuracies fall from synchronous training to few stages to many more, both without discrepancy."""
    arms = ("Sync", "no discrepancy", "no discrepancy, many more stages")
    holds, steps = ordered([best(context, task="images", arm=arm) for arm in arms])
    _, ends = ordered([final(context, task="images", arm=arm) for arm in arms])
    text = f"{outcomes_of(context, *arms, task='images')}; steps of {steps}, at the last evaluation {ends}"
    return trend(context, holds, text, SEEDS, task="images")


@drawing(PAPER, "figure_8")
def figure_8(context: Context) -> Drawn:
    """Scores of the runs with split weights; each panel names its numbers of stages."""
    rows: list[dict[str, Any]] = []
    items = compared(context, split="2")
    for task in ("images", "translation"):
        runs = [item for item in items if item.log and task_of(item) == task]
        stages = sorted({spec_stages(item) for item in runs if item.arm.labels["arm"] != "Sync"})
        panel = f"{title(context, task, stages=False)}, {' and '.join(map(str, stages))} stages"
        rows += [row | {"panel": panel} for row in learning(replace(context, items=runs))]
    return curves(context, rows, items)


SPLIT = {"split": "2"}


def best_and_last(context: Context, *arms: str, **labels: str) -> str:
    """The best and the final accuracies of arms, in words."""
    last = ", ".join(f"{arm} {mean_text(list(final(context, arm=arm, **labels).values()))}" for arm in arms)
    return f"best accuracy {outcomes_of(context, *arms, **labels)}; at the end {last}"


@judge(PAPER, "figure_8", "resnet_needs_t2")
def resnet_needs_t2(context: Context) -> Finding:
    """Holds if every seed of T1 alone diverges with split weights."""
    text = best_and_last(context, "T1", "T1+T2", task="images", **SPLIT)
    holds = all_diverged(context, task="images", arm="T1", **SPLIT)
    return sized(context, holds, text, DIVERGED, task="images", **SPLIT)


@judge(PAPER, "figure_8", "resnet_t2_trains")
def resnet_t2_trains(context: Context) -> Finding:
    """Holds if no seed of T1+T2 diverges with split weights."""
    text = best_and_last(context, "T1", "T1+T2", task="images", **SPLIT)
    holds = none_diverged(context, task="images", arm="T1+T2", **SPLIT)
    return sized(context, holds, text, DIVERGED, task="images", **SPLIT)


@judge(PAPER, "figure_8", "transformer_needs_t2")
def transformer_needs_t2(context: Context) -> Finding:
    """Holds if T1's best BLEU is at most half of T1+T2's with split weights; this is how "much lower" is read."""
    with_t2, t1_alone = (best(context, task="translation", arm=arm, **SPLIT) for arm in ("T1+T2", "T1"))
    half = Difference.of({seed: value / 2 for seed, value in with_t2.items()}, t1_alone)
    text = outcomes_of(context, "T1", "T1+T2", task="translation", **SPLIT)
    text += f"; T1 below half of T1+T2 by {half.text()}"
    return sized(context, half.above(), text, f"much lower: at most half; {SEEDS}", task="translation", **SPLIT)


def worth(context: Context, task: str, split: str, measure: Callable[..., dict[int, float]] = best) -> dict[int, float]:
    """The points that T2 adds to T1 by seed, in the best score or another measure. split: "2" for twice the stages."""
    with_t2, t1_alone = (measure(context, task=task, arm=arm, split=split) for arm in ("T1+T2", "T1"))
    return gaps(with_t2, t1_alone)


def t2_worth_more(context: Context, task: str) -> Finding:
    """Holds if T2 adds more to T1's best score with split weights than without."""
    here, there = worth(context, task, "2"), worth(context, task, "1")
    step = Difference.of(here, there)
    means = paired_means(here, there)
    text = f"T2 adds {means[0]:.1f} with twice the stages, {means[1]:.1f} without: {step.text()} more"
    end = Difference.of(*(worth(context, task, split, final) for split in ("2", "1")))
    text += f", at the last evaluation {end.text()}{diverging(context, 'T1', 'T1+T2', task=task)}"
    return trend(context, step.above(), text, SEEDS, task=task)


def t1_weakens(context: Context, task: str) -> Finding:
    """Holds if the best score of T1 alone is lower with split weights than without.

    The paper concludes from this comparison that T1 weakens (section 4.3). What T1 adds to training without remedies
    cannot be compared: no arm without T1 is trained with split weights.
    """
    words = [outcomes(context, task=task, arm="T1", split=split) for split in ("2", "1")]
    here, there = (best(context, task=task, arm="T1", split=split) for split in ("2", "1"))
    step = Difference.of(there, here)
    text = f"best score: T1 {words[0]} with twice the stages, {words[1]} without: {step.text()} less"
    end = Difference.of(*(final(context, task=task, arm="T1", split=split) for split in ("1", "2")))
    text += (
        f", at the last evaluation {end.text()}; what T1 adds is unknown: with twice the stages no arm is without it"
    )
    return trend(context, step.above(), text, SEEDS, task=task)


def t2_speeds_up(context: Context, task: str) -> Finding:
    """Holds if T1+T2's mean score over the epochs is above T1's with split weights."""
    return higher(context, "T1+T2", "T1", area, "mean score over the epochs", [task], **SPLIT)


for _task in ("images", "translation"):
    judge(PAPER, "figure_8", f"t2_worth_more_{_task}_here")(partial(t2_worth_more, task=_task))
    judge(PAPER, "figure_8", f"t1_weakens_{_task}")(partial(t1_weakens, task=_task))
    judge(PAPER, "figure_8", f"t2_speeds_up_{_task}")(partial(t2_speeds_up, task=_task))


@judge(PAPER, "figure_12", "t1_diverges")
def t1_diverges(context: Context) -> Finding:
    """Holds if every seed of T1 alone diverges."""
    text = f"best accuracy {outcomes_of(context, 'Sync', 'T1', 'T1+T2', task='images')}"
    return sized(context, all_diverged(context, task="images", arm="T1"), text, DIVERGED)


@judge(PAPER, "figure_12", "t2_reaches_sync")
def t2_reaches_sync(context: Context) -> Finding:
    """Holds if T1+T2's best accuracy after the first drop of the rate is at most 0.1 points below Sync's."""

    def after(item: Item) -> float:
        schedule = item.arm.spec.lr_schedule
        drop = schedule.milestones[0] * (schedule.horizon or item.arm.spec.steps)
        return max((value_of(row) for row in scored(item) if row["step"] > drop), default=0.0)

    sync, with_t2 = (
        {seed: after(item) for seed, item in runs_of(context, task="images", arm=arm).items()}
        for arm in ("Sync", "T1+T2")
    )
    step = Difference.of(sync, with_t2)
    text = f"after the first drop of the rate Sync {fmean(sync.values()):.1f}, T1+T2 {step.text()} below"
    return sized(context, step.below(POINTS), text, f"below by at most {EQUAL_POINTS}")


@judge(PAPER, "figure_12", "t2_needed")
def t2_needed(context: Context) -> Finding:
    """Holds if T1+T2's best accuracy is above T1's."""
    return higher(context, "T1+T2", "T1", tasks=["images"])


def t1_under_random_delays(context: Context, task: str) -> tuple[Difference, str]:
    """What T1 adds to Hogwild's best score, and the same in words.

    Raises:
        NotLogged: the network does not learn with T1 (`learning.learned`), so its gain says nothing.
    """
    learned(context, "Hogwild+T1", task=task, arm="Hogwild+T1")
    step = below(context, "Hogwild", "Hogwild+T1", task=task)
    end = at_the_end(context, "Hogwild+T1", "Hogwild", task=task)
    return step, f"{outcomes_of(context, 'Sync', 'Hogwild', 'Hogwild+T1', task=task)}; T1 adds {step.text()}, {end}"


def printed_gain(context: Context, task: str) -> float:
    """What T1 adds to Hogwild: the difference of the two scores that the paper prints."""
    reported = context.result.reported
    return float(reported["hogwild_T1"][DATASET_OF[task]] - reported["hogwild"][DATASET_OF[task]])


def t1_adds(context: Context, task: str, slack: float) -> Finding:
    """Holds if the paper's gain could be one more pair of our runs (`Difference.matches`)."""
    step, text = t1_under_random_delays(context, task)
    return sized(context, step.matches(printed_gain(context, task), slack), text, ONE_MORE, task=task)


judge(PAPER, "figure_19", "cifar_t1_adds")(partial(t1_adds, task="images", slack=0.01))  # about 0.3 points
judge(PAPER, "figure_19", "iwslt_t1_adds")(partial(t1_adds, task="translation", slack=0.1))  # about 30 BLEU


def t1_reaches_sync(context: Context, task: str) -> Finding:
    """Holds if Hogwild+T1's best score is no further below Sync's than in the pairs that the paper calls matching."""
    step, most = below(context, "Hogwild+T1", task=task), MATCHED[task]
    text = f"{outcomes_of(context, 'Sync', 'Hogwild+T1', task=task)}; T1 {step.text()} below"
    text += f", {at_the_end(context, 'Sync', 'Hogwild+T1', task=task)}"
    why = f"below by at most {most:g}, as the paper's are, and half a unit of the last digit; {SEEDS}"
    return sized(context, step.below(most), text, why, task=task)


def t1_helps(context: Context, task: str) -> Finding:
    """Holds if T1 raises Hogwild's best score, by whatever amount."""
    step, text = t1_under_random_delays(context, task)
    return trend(context, step.above(), text, SEEDS, task=task)


for _task in ("images", "translation"):
    judge(PAPER, "figure_19", f"t1_reaches_sync_{_task}")(partial(t1_reaches_sync, task=_task))
    judge(PAPER, "figure_19", f"t1_helps_{_task}")(partial(t1_helps, task=_task))
