"""Figure 1: how accuracy falls with the number of stages, for each remedy."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.results.context import Context, ended_at
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import all_of, trend
from pipelag.results.leaderboard.scores import (
    BASELINE,
    PAIRED,
    PAPER,
    STYLES,
    UNREMEDIED,
    above,
    diverging,
    meanings,
    score,
    shared_seeds,
)
from pipelag.results.verdict import Finding, judge

PIPEMARE = "PipeMare T1+T2"
REMEDIES = ("PipeDream", "SpecTrain on 1F1B", "PipeOptim", "LWP_w + SC")  # on the unremedied pipeline's schedule


@drawing(PAPER, "figure_1")
def over_stages(context: Context) -> Drawn:
    """Accuracy against the number of stages: a line per remedy, and sequential training as a level.

    Runs that diverge are left out of the means. Only seeds that every point has are shown.
    """
    numbers = sorted(map(int, context.values("stages")))
    arms = (UNREMEDIED, *REMEDIES, PIPEMARE)
    items = [item for arm in arms for stages in numbers for item in context.logged(arm=arm, stages=str(stages))]
    shared = shared_seeds(items, lambda item: (item.arm.labels["arm"], item.arm.labels["stages"]))
    rows: list[dict[str, Any]] = [
        {"method": item.arm.labels["arm"], "stages": int(item.arm.labels["stages"])}
        | {"seed": item.arm.seed, "accuracy": ended_at(item)}
        for item in items
        if item.arm.seed in shared or not shared
    ]
    whole = [ended_at(item) or 0.0 for item in context.logged(arm=BASELINE) if item.arm.seed in shared or not shared]
    chart = Lines(
        Axis("stages", "stages", log=True, ticks=tuple(numbers)),
        Axis("accuracy", "accuracy (%)"),
        line="method",
        levels={BASELINE: fmean(whole)} if whole else {},
        styles=STYLES,
        hollow=True,
        height=2.8,
    )
    return Drawn.of(chart, rows, note=" ".join(meanings(row["method"] for row in rows)))


def ends(context: Context) -> tuple[str, str]:
    """The smallest and the greatest number of stages, as labels."""
    numbers = sorted({int(item.arm.labels["stages"]) for item in context.select(arm=UNREMEDIED)})
    return str(numbers[0]), str(numbers[-1])


@judge(PAPER, "figure_1", "falls_without_remedy")
def falls_without_remedy(context: Context) -> Finding:
    """Holds if without a remedy the fewest stages end above the most, paired over seeds."""
    few, many = ends(context)
    scores = {f"{stages} stages": score(context, UNREMEDIED, stages=stages) for stages in (few, many)}
    holds, lost = above(*scores.values())
    text = f"{few} stages minus {many}: {lost} points{diverging(scores)}"
    return trend(context, holds, text, PAIRED, what="learning")


@judge(PAPER, "figure_1", "spectrain_over_eight")
def spectrain_over_eight(context: Context) -> Finding:
    """Holds if over 8 stages SpecTrain ends above both PipeDream and the pipeline without a remedy."""
    spectrain, others = "SpecTrain on 1F1B", (UNREMEDIED, "PipeDream")
    scores = {arm: score(context, arm, stages="8") for arm in (*others, spectrain)}
    gains = {arm: above(scores[spectrain], scores[arm]) for arm in others}
    text = f"8 stages, {spectrain} above " + ", ".join(f"{arm} {gain}" for arm, (_, gain) in gains.items())
    text += f" points{diverging({arm: scores[arm] for arm in (spectrain, *others)})}"
    return trend(context, all_of([holds for holds, _ in gains.values()]), text, PAIRED, what="learning")


@judge(PAPER, "figure_1", "remedies_keep_more")
def remedies_keep_more(context: Context) -> Finding:
    """Holds if over the most stages every remedy ends above the pipeline without one."""
    _, many = ends(context)
    scores = {arm: score(context, arm, stages=many) for arm in (UNREMEDIED, *REMEDIES)}
    gains = {arm: above(scores[arm], scores[UNREMEDIED]) for arm in REMEDIES}
    words = ", ".join(f"{arm} {gain}" for arm, (_, gain) in gains.items())
    text = f"{many} stages, above {UNREMEDIED}: {words} points{diverging(scores)}"
    return trend(context, all_of([holds for holds, _ in gains.values()]), text, PAIRED, what="learning")
