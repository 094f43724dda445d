"""Figures 13 and 14, table 8: which K of T1 and which D of T2 work best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

from pipelag.results.context import Context
from pipelag.results.judging import SEEDS, Difference, all_of, any_of, over_models, sized, trend
from pipelag.results.pipemare.arms import below_sync, grid, number
from pipelag.results.pipemare.quality import (
    EQUAL_POINTS,
    POINTS,
    BySeed,
    area,
    at_the_end,
    below,
    best,
    diverging,
    equal,
    final,
    outcomes,
    outcomes_of,
)
from pipelag.results.verdict import Finding, judge

PAPER = "pipemare"


def ends_of_grid(context: Context, key: str, task: str, many: int) -> tuple[Difference, str]:
    """How far the mean best score of a grid's smallest values is above that of its largest; and a sentence with it.

    The sentence also has the outcome of every value, and how the last evaluations compare.

    Args:
        key: the parameter of the grid.
        many: how many values at each end are averaged.
    """
    arms = grid(context, key, task)

    def apart(measure: Callable[..., BySeed]) -> Difference:
        scores = {arm: measure(context, task=task, arm=arm) for arm in arms}
        return Difference.of(*(over_models(scores[arm] for arm in some) for some in (arms[:many], arms[-many:])))

    step, end = apart(best), apart(final)
    which = (
        "the smallest above the largest"
        if many == 1
        else f"the mean of the {many} smallest above that of the {many} largest"
    )
    text = f"{which} by {step.text()}, at the last evaluation {end.text()}"
    return step, f"{outcomes_of(context, *arms, task=task)}; {text}"


@judge(PAPER, "figure_13", "resnet_small_k")
def resnet_small_k(context: Context) -> Finding:
    """Holds if the two smallest of the five K have a higher mean best accuracy than the two largest."""
    step, text = ends_of_grid(context, "K", "images", 2)
    return trend(
        context,
        step.above(),
        text,
        f"the mean of the two smallest K against that of the two largest; {SEEDS}",
        task="images",
    )


@judge(PAPER, "figure_13", "transformer_large_k")
def transformer_large_k(context: Context) -> Finding:
    """Holds if the smallest of the three K has a lower best BLEU than the largest."""
    step, text = ends_of_grid(context, "K", "translation", 1)
    holds = Difference(-step.mean, step.error, step.seeds).above()
    return trend(context, holds, text, f"the smallest K against the largest; {SEEDS}", task="translation")


@judge(PAPER, "table_8", "t2_mends_short_annealing_here")
def t2_mends_short_annealing(context: Context) -> Finding:
    """Holds if the smallest K that both grids have gives a higher best BLEU with T2 than without."""
    short, mended = "K = 15/60", "K with T2 = 15/60"
    alone, both = (best(context, task="translation", arm=arm) for arm in (short, mended))
    step = Difference.of(both, alone)
    text = f"{outcomes_of(context, short, mended, task='translation')}; with T2 above it by {step.text()}"
    end = at_the_end(context, mended, short, task="translation")
    return trend(context, step.above(), f"{text}, {end}", SEEDS, task="translation")


def some_k_matches(context: Context, task: str) -> Finding:
    """Holds if the best score of some K of the grid is as good as Sync's, within what the paper calls equal."""
    bound, words = equal(task)
    gaps = {arm: below(context, arm, task=task) for arm in grid(context, "K", task)}
    text = f"Sync {outcomes(context, task=task, arm='Sync')}; below it " + ", ".join(
        f"{arm} {gap.text()}, {at_the_end(context, 'Sync', arm, task=task)}" for arm, gap in gaps.items()
    )
    return sized(
        context, any_of(gap.below(bound) for gap in gaps.values()), text, f"below by at most {words}", task=task
    )


for _task in ("images", "translation"):
    judge(PAPER, "figure_13", f"some_k_matches_{_task}")(partial(some_k_matches, task=_task))


def sooner(context: Context, task: str, arms: Sequence[str]) -> tuple[list[Difference], str]:
    """How far each arm's mean score over the epochs is above that without correction; and the same in words."""
    plain = area(context, task=task, arm="no correction")
    steps = {arm: Difference.of(area(context, task=task, arm=arm), plain) for arm in arms}
    text = ", ".join(f"{arm} {step.text()} above" for arm, step in steps.items())
    text += diverging(context, "no correction", *arms, task=task)
    return list(steps.values()), f"mean score over the epochs {fmean(plain.values()):.1f} without correction, {text}"


@judge(PAPER, "figure_14", "small_d_converges")
def small_d_converges(context: Context) -> Finding:
    """Holds if every D up to 0.2 has a higher mean BLEU over the epochs than no correction."""
    arms = [arm for arm in grid(context, "D", "translation") if number(arm) <= 0.2]
    steps, text = sooner(context, "translation", arms)
    return trend(context, all_of(step.above() for step in steps), text, SEEDS, task="translation")


@judge(PAPER, "figure_14", "small_d_converges_images")
def small_d_converges_images(context: Context) -> Finding:
    """Holds if D = 0.1 has a higher mean accuracy over the epochs than no correction."""
    (step,), text = sooner(context, "images", ["D = 0.1"])
    return trend(context, step.above(), text, SEEDS, task="images")


def half_not_faster(context: Context, task: str) -> Finding:
    """Holds if the mean score over the epochs is no higher with D = 0.5 than with no correction."""
    (step,), text = sooner(context, task, ["D = 0.5"])
    return trend(context, step.below(), text, SEEDS, task=task)


def improper_d_worse(context: Context, task: str) -> Finding:
    """Holds if the best score of some D of the grid is below that without correction."""
    plain = best(context, task=task, arm="no correction")
    arms = grid(context, "D", task)
    steps = {arm: Difference.of(plain, best(context, task=task, arm=arm)) for arm in arms}
    text = f"{outcomes_of(context, 'no correction', *arms, task=task)}; below it " + ", ".join(
        f"{arm} {step.text()}, {at_the_end(context, 'no correction', arm, task=task)}" for arm, step in steps.items()
    )
    return trend(context, any_of(step.above() for step in steps.values()), text, SEEDS, task=task)


for _task in ("images", "translation"):
    judge(PAPER, "figure_14", f"half_not_faster_{_task}")(partial(half_not_faster, task=_task))
    judge(PAPER, "figure_14", f"improper_d_worse_{_task}")(partial(improper_d_worse, task=_task))


@judge(PAPER, "figure_14", "half_matches")
def half_matches(context: Context) -> Finding:
    """Holds if the best accuracy with D = 0.5 is at most 0.1 points below Sync's."""
    gap, text = below_sync(context, "D = 0.5", "images")
    return sized(context, gap.below(POINTS), text, f"below by at most {EQUAL_POINTS}", task="images")
