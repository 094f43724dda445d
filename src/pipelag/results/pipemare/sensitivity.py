"""Figures 13 and 14: what K of T1 and D of T2 should be."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from pipelag.results.context import Context
from pipelag.results.judging import SEEDS, Difference, all_of, average, sized, trend
from pipelag.results.pipemare.arms import grid, number
from pipelag.results.pipemare.quality import EQUAL_POINTS, POINTS, area, below, best, each
from pipelag.results.verdict import Finding, judge

PAPER = "pipemare"


def ends_of_grid(context: Context, key: str, task: str, many: int) -> tuple[Difference, str]:
    """How much the smallest values of a grid are above the largest, in the mean best score; and all scores."""
    arms = grid(context, key, task)
    scores = {arm: best(context, task=task, arm=arm) for arm in arms}

    def mean(some: Sequence[str]) -> dict[int, float]:
        return {seed: average([scores[arm][seed] for arm in some]) for seed in scores[some[0]]}

    step = Difference.of(mean(arms[:many]), mean(arms[-many:]))
    return step, f"{each(context, *arms, task=task)}; the smallest above the largest by {step.text()}"


@judge(PAPER, "figure_13", "resnet_small_k")
def resnet_small_k(context: Context) -> Finding:
    """The two smallest of the five above the two largest."""
    step, text = ends_of_grid(context, "K", "images", 2)
    return trend(context, step.above(), text, f"the two smallest K against the two largest; {SEEDS}", task="images")


@judge(PAPER, "figure_13", "transformer_large_k")
def transformer_large_k(context: Context) -> Finding:
    """The smallest of the three below the largest."""
    step, text = ends_of_grid(context, "K", "translation", 1)
    holds = Difference(-step.mean, step.error, step.seeds).above()
    return trend(context, holds, text, f"the smallest K against the largest; {SEEDS}", task="translation")


@judge(PAPER, "figure_14", "small_d_converges")
def small_d_converges(context: Context) -> Finding:
    """Mean BLEU over the epochs, every D up to 0.2."""
    plain = area(context, task="translation", arm="no correction")
    arms = [arm for arm in grid(context, "D", "translation") if number(arm) <= 0.2]
    steps = {arm: Difference.of(area(context, task="translation", arm=arm), plain) for arm in arms}
    text = f"mean BLEU over the epochs {fmean(plain.values()):.1f} without correction; " + ", ".join(
        f"{arm} {step.text()}" for arm, step in steps.items()
    )
    return trend(context, all_of(step.above() for step in steps.values()), text, SEEDS, task="translation")


@judge(PAPER, "figure_14", "large_d_worse")
def large_d_worse(context: Context) -> Finding:
    """Mean BLEU over the epochs, D = 0.5, which the caption calls too large to converge faster."""
    plain, large = (area(context, task="translation", arm=arm) for arm in ("no correction", "D = 0.5"))
    step = Difference.of(plain, large)
    text = f"mean BLEU over the epochs {fmean(plain.values()):.1f} without correction, D = 0.5 {step.text()} below"
    return trend(context, step.above(), text, SEEDS, task="translation")


@judge(PAPER, "figure_14", "half_matches")
def half_matches(context: Context) -> Finding:
    """The best accuracies."""
    gap = below(context, "D = 0.5", task="images")
    text = f"{each(context, 'Sync', 'D = 0.5', task='images')}; {gap.text()} below"
    return sized(context, gap.below(POINTS), text, f"below by at most {EQUAL_POINTS}", task="images")
