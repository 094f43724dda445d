"""Questions that claims ask of arms: whether one diverged, is above another or about zero; and the arms of a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from pipelag.results.context import Context
from pipelag.results.judging import SEEDS, Difference, all_of, paired_means, sized, trend
from pipelag.results.pipemare.quality import (
    CHANCE,
    at_the_end,
    below,
    best,
    diverged,
    diverging,
    outcomes,
    outcomes_of,
    runs_of,
)
from pipelag.results.verdict import Finding

DIVERGED = f"diverged: a loss that is no number, or an accuracy of at most {CHANCE:g} % at the end; every seed"
ABOUT = "about: from a half to one and a half times as much"


def all_diverged(context: Context, **labels: str) -> bool:
    """Whether every seed of an arm on images diverged."""
    return all(diverged(item) for item in runs_of(context, **labels).values())


def none_diverged(context: Context, **labels: str) -> bool:
    """Whether no seed of an arm on images diverged."""
    return not any(diverged(item) for item in runs_of(context, **labels).values())


def higher(
    context: Context,
    arm: str,
    than: str,
    measure: Callable[..., dict[int, float]] = best,
    what: str = "best score",
    tasks: Sequence[str] = ("images", "translation"),
    **labels: str,
) -> Finding:
    """Judge a trend: one arm is above another on every task, over the runs with these labels.

    Args:
        arm: the arm that should be above.
        than: the arm that should be below.
        measure: gives an arm's scores by seed.
        what: what the sentence calls the measure.
        tasks: those to compare on.
    """
    texts, holds = [], []
    for task in tasks:
        scores = [measure(context, task=task, arm=name, **labels) for name in (arm, than)]
        step = Difference.of(*scores)
        holds.append(step.above())
        means = paired_means(*scores)
        text = f"{task}: {arm} {means[0]:.1f}, {than} {means[1]:.1f}, a difference of {step.text()}"
        # A mean over the epochs already counts every evaluation.
        end = f", {at_the_end(context, arm, than, task=task, **labels)}" if measure is best else ""
        texts.append(text + end + diverging(context, arm, than, task=task, **labels))
    labels |= {"task": tasks[0]} if len(tasks) == 1 else {}
    return trend(context, all_of(holds), f"{what}: {'; '.join(texts)}", SEEDS, **labels)


def grid(context: Context, key: str, task: str) -> list[str]:
    """The arms that vary one parameter (`key`, such as "D") on a task, in the order of its values."""
    arms = [arm for arm in context.values("arm") if arm.startswith(f"{key} =") and context.select(arm=arm, task=task)]
    return sorted(arms, key=number)


def number(arm: str) -> float:
    """The value in an arm's name: 0.1 for "D = 0.1", 10 for "K = 10/200"."""
    return float(arm.split("= ")[1].split("/")[0])


def below_sync(context: Context, arm: str, task: str) -> tuple[Difference, str]:
    """How far an arm's best score is below synchronous training's; and a sentence with it.

    The sentence also has the outcomes of both, and how their last evaluations compare.
    """
    gap = below(context, arm, task=task)
    text = f"{outcomes_of(context, 'Sync', arm, task=task)}; {gap.text()} below"
    return gap, f"{text}, {at_the_end(context, 'Sync', arm, task=task)}"


def best_below(context: Context, arm: str, than: str, words: str, task: str) -> tuple[Difference, str]:
    """How far an arm's best score is below another's; and a sentence as that of `below_sync`.

    words: what the sentence says of the gap, which stands for {}.
    """
    step = below(context, arm, than, task=task)
    text = f"{outcomes_of(context, arm, than, task=task)}; {words.format(step.text())}"
    return step, f"{text}, {at_the_end(context, than, arm, task=task)}"


def about_zero(context: Context, arm: str, task: str) -> Finding:
    """Judge whether an arm's best BLEU, averaged over seeds, rounds to 0."""
    scores = best(context, task=task, arm=arm)
    text = f"best BLEU {outcomes(context, task=task, arm=arm)}"
    return sized(context, fmean(scores.values()) < 0.5, text, "about 0: rounds to 0 BLEU", task=task)
