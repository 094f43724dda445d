"""Figures 17 and 18: the cost in quality of recomputing activations, by the number of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean

from pipelag.report.frames import Axis, Lines
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, Difference, all_of, gaps, listing, over_models, sized, trend
from pipelag.results.logs import Item
from pipelag.results.pipemare.curves import learning, nothing
from pipelag.results.pipemare.quality import (
    best,
    diverging,
    equal,
    final,
    log_in,
    mean_text,
    metric,
    outcomes,
    runs_of,
    scored,
    title,
    value_of,
)
from pipelag.results.verdict import Finding, judge

PAPER = "pipemare"
NONE = "no recomputation"


def segments(item: Item) -> str:
    """How many segments of stages a run recomputes, in words."""
    number = item.arm.spec.phases[-1].segments
    return f"{number} segments" if number else NONE


def checkpoints(context: Context) -> list[str]:
    """The labels of the numbers of checkpoints that are compared with no recomputation."""
    return [count for count in context.values("checkpoints") if count != "none"]


@drawing(PAPER, "figure_17", "figure_18")
def by_checkpoints(context: Context) -> Drawn:
    """Score against epochs: a panel per method, a line per number of segments."""
    task = "images" if context.name == "figure_17" else "translation"
    network = title(context, task)
    panels = {arm: f"{arm}: {network}" for arm in context.values("arm")}
    rows = [row | {"panel": panel} for arm, panel in panels.items() for row in learning(context, segments, arm=arm)]
    order = list(dict.fromkeys(row["line"] for row in rows))
    if order == [NONE]:
        return nothing(context)
    rows.sort(key=lambda row: (row["line"] != NONE, order.index(row["line"])))
    rows.sort(key=lambda row: list(panels.values()).index(row["panel"]))
    chart = Lines(Axis("epoch", "epochs"), Axis("score", metric(task)), line="line", panel="panel", shared_y=True)
    return Drawn.of(chart, rows, note=segmented(context))


def segmented(context: Context) -> str:
    """A sentence on how many segments stand for the paper's numbers of checkpoints; empty where logs are missing.

    They differ, because segments are of one length and there are fewer stages here.
    """
    logged = [context.logged(checkpoints=count) for count in checkpoints(context)]
    if not logged or not all(logged):
        return ""
    phases = [items[0].arm.spec.phases[-1] for items in logged]
    theirs, ours = listing(context.result.reported["checkpoints"]), listing(phase.segments for phase in phases)
    return (
        f"For the paper's {theirs} checkpoints the {phases[0].stages} stages here have {ours} segments of one length."
    )


def lost(context: Context, arm: str, task: str) -> tuple[dict[str, Difference], str]:
    """What recomputation costs an arm in its best score, by the number of checkpoints; and the same in words."""
    plain = best(context, arm=arm, task=task, checkpoints="none")
    counts = checkpoints(context)
    steps = {c: Difference.of(plain, best(context, arm=arm, task=task, checkpoints=c)) for c in counts}
    last = final(context, arm=arm, task=task, checkpoints="none")
    ends = {c: Difference.of(last, final(context, arm=arm, task=task, checkpoints=c)) for c in counts}
    names = {c: segments(next(iter(runs_of(context, arm=arm, task=task, checkpoints=c).values()))) for c in counts}
    text = f"{arm} {outcomes(context, arm=arm, task=task, checkpoints='none')} without; below that by " + ", ".join(
        f"{step.text()} with {names[c]}, at the last evaluation {ends[c].text()}" for c, step in steps.items()
    )
    return steps, text


def matches(context: Context, arm: str, task: str) -> Finding:
    """Judge whether an arm's best score is the same with recomputation as without, for every number of checkpoints.

    The same is what the paper calls equal (`equal`).
    """
    steps, text = lost(context, arm, task)
    bound, words = equal(task)
    holds = all_of(step.within(-bound, bound) for step in steps.values())
    return sized(context, holds, text, f"a match: within {words}", arm=arm)


for _figure, _claim, _arm, _task in (
    ("figure_17", "t1_matches", "T1", "images"),
    ("figure_17", "t2_matches", "T1+T2", "images"),
    ("figure_18", "t2_matches", "T1+T2", "translation"),
    ("figure_18", "w_matches", "T1+T2+W", "translation"),
):
    judge(PAPER, _figure, _claim)(partial(matches, arm=_arm, task=_task))


@judge(PAPER, "figure_18", "t1_two_stay_low")
def t1_two_stay_low(context: Context) -> Finding:
    """Holds if no seed's best BLEU exceeds the bound that the paper prints."""
    scores = best(context, arm="T1", task="translation", checkpoints="few")
    most = context.result.reported["T1_2_checkpoints"]
    text = f"best BLEU {mean_text(list(scores.values()))}"
    return sized(context, max(scores.values()) <= most, text, f"at most {most:g}, every seed", arm="T1")


@judge(PAPER, "figure_18", "t1_twelve_diverge")
def t1_twelve_diverge(context: Context) -> Finding:
    """Holds if every seed diverges in the middle of its run.

    It does where a loss is not finite after a tenth of the run and before its end, or where the run ends with less
    than half of its best BLEU.
    """
    texts, holds = [], True
    for item in runs_of(context, arm="T1", task="translation", checkpoints="some").values():
        log, steps = log_in(item), item.arm.spec.steps
        values = [value_of(row) for row in scored(item)]
        top = max(values, default=0.0)
        after = log.diverged_at
        middle = after is not None and steps / 10 < after < steps
        fallen = after is None and values[-1] < top / 2
        holds &= middle or fallen
        texts.append(
            f"best {top:.1f}, " + (f"diverged at step {after:,}" if after is not None else f"last {values[-1]:.1f}")
        )
    why = (
        "diverges: after a tenth of the run a loss that is no number, or at the end under half of the best; every seed"
    )
    return sized(context, holds, "; ".join(texts), why, arm="T1")


@judge(PAPER, "figure_18", "correction_matters")
def correction_matters(context: Context) -> Finding:
    """Holds if recomputation costs T1 more BLEU than T1+T2, on average over the numbers of checkpoints."""

    def cost(arm: str, measure: Callable[..., dict[int, float]] = best) -> dict[int, float]:
        plain = measure(context, arm=arm, task="translation", checkpoints="none")
        counts = checkpoints(context)
        mean = over_models(measure(context, arm=arm, task="translation", checkpoints=count) for count in counts)
        return gaps(plain, mean)

    without, with_t2 = cost("T1"), cost("T1+T2")
    step, end = Difference.of(without, with_t2), Difference.of(cost("T1", final), cost("T1+T2", final))
    text = (
        f"recomputation costs T1 {fmean(without.values()):.1f} BLEU on average, T1+T2 {fmean(with_t2.values()):.1f}: "
        f"{step.text()} more, at the last evaluation {end.text()}"
        + diverging(context, "T1", "T1+T2", task="translation")
    )
    return trend(context, step.above(), text, SEEDS)
