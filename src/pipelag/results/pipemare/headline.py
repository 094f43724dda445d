"""What the abstract says: utilisation and memory against other pipelines, quality against synchronous training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean

from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import Difference, all_of, exact, sized, text_of
from pipelag.results.pipemare.costs import held, memory_of, pipeline, pipelines
from pipelag.results.pipemare.quality import (
    BLEU,
    CHOSEN,
    DATASET_OF,
    EQUAL_BLEU,
    EQUAL_POINTS,
    IMAGES,
    POINTS,
    TASK_OF,
    BySeed,
    at_the_end,
    below,
    best,
    best_of,
    cell,
    final,
    last_cell,
    reasons,
    trained_as,
)
from pipelag.results.verdict import Finding, if_logged, judge

PAPER = "pipemare"


@drawing(PAPER, "text_headline")
def headline(context: Context) -> Drawn:
    """Ratios of utilisation and memory on CIFAR-10."""

    def gain_() -> float:
        alone = pipeline(context, "GPipe")["utilisation"]
        return float(pipeline(context, "PipeMare")["utilisation"] / alone)

    printed = context.result.reported
    rows = [
        ("utilisation, PipeMare over GPipe", printed["utilisation"], if_logged(gain_)),
        ("memory, PipeDream over PipeMare with T1", printed["memory"], if_logged(lambda: pipedream_over(context, 0.0))),
        ("memory, PipeDream over PipeMare with T1 and T2", None, if_logged(lambda: pipedream_over(context, 1.0))),
    ]
    cols = [
        Col("Ratio", lambda row: row[0]),
        Col("paper", lambda row: row[1], "{:.1f}x"),
        Col("ours", lambda row: row[2], "{:.2f}x"),
    ]
    notes = ["the paper's 2.7 is over PipeMare without T2's buffer, and not what its formula gives (ambiguity B3)"]
    return Drawn.tabled(context, rows, cols, notes)


def pipedream_over(context: Context, average: float) -> float:
    """PipeDream's memory on CIFAR-10 over PipeMare's.

    Args:
        average: how many of T2's running averages PipeMare holds: 0 with T1 alone, 1 with T1 and T2.
    """
    base, extra = held(context, "images")
    return memory_of(context, "CIFAR10", "PipeDream") * base / (base + average * extra)


@judge(PAPER, "text_headline", "utilisation")
def headline_utilisation(context: Context) -> Finding:
    """Holds if the schedules' utilisations have the ratio that the formula gives, and this is the printed 14.25."""
    rows = {row["method"]: row for row in pipelines(context)}
    P, N = rows["GPipe"]["stages"], rows["GPipe"]["microbatches"]
    value, formula = rows["PipeMare"]["utilisation"] / rows["GPipe"]["utilisation"], (N + P - 1) / N
    text = f"{value:.3f} times at P = {P}, N = {N}, where the formula gives {formula:.3f}"
    holds = abs(value - 14.25) <= 0.005 and abs(value - formula) < 1e-9
    return exact(holds, text, "14.25 to half a unit of its last digit, which rounds to 14.3")


@judge(PAPER, "text_headline", "memory")
def headline_memory(context: Context) -> Finding:
    """Holds if the counted ratio is the printed 2.7 with T1 alone or with T1 and T2.

    "Up to" a number is met where one form of the method has that number (ambiguity B3).
    """
    ratios = [pipedream_over(context, average) for average in (0.0, 1.0)]
    text = f"{ratios[0]:.2f} times PipeMare's memory with T1 alone, {ratios[1]:.2f} times that with T1 and T2"
    holds = any(abs(value - context.result.reported["memory"]) <= 0.05 for value in ratios)
    return exact(holds, text, "2.7 to half a unit of its last digit, with or without T2's buffer")


VARIANTS = ("T1", "T1+T2", "T1+T2+W")
PAPERS_LENGTHS = "T1+T2+W, the paper's W and K"


def variants(context: Context, task: str) -> list[str]:
    """The variants of PipeMare that a task is trained with.

    Where a scale's T1+T2+W has other lengths of warm-up and annealing than the paper's, figure 15's run with the
    paper's joins them.
    """
    arms = [arm for arm in VARIANTS if context.select(task=task, arm=arm)]
    ids = {item.arm.spec.id for item in context.select(task=task) if item.arm.labels["arm"] in arms}
    as_long = context.logged(task=task, arm=PAPERS_LENGTHS)
    return arms + ([PAPERS_LENGTHS] if as_long and not {item.arm.spec.id for item in as_long} & ids else [])


def best_variant(context: Context, task: str) -> tuple[str, Difference]:
    """The variant with the highest best score, averaged over seeds, and how far it stays below Sync."""
    means = {arm: fmean(best(context, task=task, arm=arm).values()) for arm in variants(context, task)}
    arm = max(means, key=lambda name: means[name])
    return arm, below(context, arm, task=task)


def bound(context: Context, tasks: tuple[str, ...], most: float, words: str) -> Finding:
    """Judge whether, on each task, the best variant's best score is at most a bound below Sync's.

    Args:
        most: the bound.
        words: the same in the tolerance's words.
    """
    texts, holds = [], []
    for task in tasks:
        arm, gap = best_variant(context, task)
        holds.append(gap.below(most))
        end = at_the_end(context, "Sync", arm, task=task)
        texts.append(f"{DATASET_OF[task]}: {arm} {gap.text()} below Sync, {end}")
    return sized(context, all_of(holds), "; ".join(texts), words)


for _claim, _tasks, _most, _words in (
    ("within", IMAGES, POINTS, f"below by at most {EQUAL_POINTS}"),
    ("translation_matches", ("translation", "WMT17"), BLEU, f"below by {EQUAL_BLEU}"),
):
    judge(PAPER, "text_quality_bound", _claim)(partial(bound, tasks=_tasks, most=_most, words=_words))


@drawing(PAPER, "text_quality_bound")
def quality_bound(context: Context) -> Drawn:
    """Best and final scores and their gaps to Sync, a row per task and variant."""
    rows = [(task, arm) for task in TASK_OF.values() for arm in variants(context, task)]

    def gap(row: tuple[str, str], measure: Callable[..., BySeed]) -> str | None:
        scores = (measure(context, task=row[0], arm=arm) for arm in ("Sync", row[1]))
        return text_of(lambda: Difference.of(*scores))

    cols = [
        Col("Task", lambda row: DATASET_OF[row[0]]),
        Col("Method", lambda row: row[1]),
        Col(best_of(context), lambda row: cell(context, task=row[0], arm=row[1]), "{}", "accuracy (%) or BLEU"),
        Col("last", lambda row: last_cell(context, task=row[0], arm=row[1]), "{}", "accuracy (%) or BLEU"),
        Col("best", lambda row: gap(row, best), "{}", "below Sync"),
        Col("last", lambda row: gap(row, final), "{}", "below Sync"),
    ]
    notes = [CHOSEN, f"the paper: at most {context.result.reported['max_top1_difference']} points below on images"]
    notes += trained_as(context, "trained here") + reasons(context)
    return Drawn.tabled(context, rows, cols, notes, rule_by="Task")
