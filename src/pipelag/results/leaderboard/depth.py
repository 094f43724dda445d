"""Figure 1: how accuracy falls with the number of stages, per remedy."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, Difference, all_of, trend
from pipelag.results.leaderboard.board import PAPER, score
from pipelag.results.verdict import Finding, judge

BASELINE, UNREMEDIED, PIPEMARE = "sequential", "1F1B, latest weights", "PipeMare T1+T2"
SHOWN = {UNREMEDIED: "no remedy (1F1B)"}  # as lines are called, where not as the arms are
REMEDIES = ("PipeDream", "SpecTrain on 1F1B", "PipeOptim", "LWP_w + SC")  # on the schedule of the one without


@drawing(PAPER, "figure_1")
def over_stages(context: Context) -> Drawn:
    """A line per remedy over the stages; sequential training is a level. A diverged run counts as 0.

    Of the seeds those that every point has, so that a line does not compare one seed with the mean of three.
    """
    numbers = sorted(int(stages) for stages in context.values("stages"))
    rows: list[dict[str, Any]] = []
    for arm in (UNREMEDIED, *REMEDIES, PIPEMARE):
        for stages in numbers:
            for item in context.select(arm=arm, stages=str(stages)):
                if item.log is not None:
                    reached = item.log.accuracy or 0.0
                    rows.append(
                        {"method": SHOWN.get(arm, arm), "stages": stages, "accuracy": reached, "seed": item.arm.seed}
                    )
    seeds: dict[tuple[str, int], set[int]] = {}
    for row in rows:
        seeds.setdefault((row["method"], row["stages"]), set()).add(row["seed"])
    shared = set.intersection(*seeds.values()) if seeds else set()
    rows = [row for row in rows if row["seed"] in shared or not shared]
    whole = [
        item.log.accuracy or 0.0
        for item in context.select(arm=BASELINE)
        if item.log is not None and (item.arm.seed in shared or not shared)
    ]
    chart = Lines(
        Axis("stages", "stages", log=True, ticks=tuple(numbers)),
        Axis("accuracy", "accuracy (%)"),
        line="method",
        levels={BASELINE: fmean(whole)} if whole else {},
        height=2.8,
    )
    return Drawn.of(chart, rows)


def ends(context: Context) -> tuple[str, str]:
    """The fewest stages and the most, as labels."""
    counted = sorted({int(item.arm.labels["stages"]) for item in context.select(arm=UNREMEDIED)})
    return str(counted[0]), str(counted[-1])


@judge(PAPER, "figure_1", "falls_without_remedy")
def falls_without_remedy(context: Context) -> Finding:
    """The two ends."""
    few, many = ends(context)
    lost = Difference.of(score(context, UNREMEDIED, stages=few), score(context, UNREMEDIED, stages=many))
    return trend(context, lost.above(), f"{few} stages minus {many}: {lost.text()} points", SEEDS, what="learning")


@judge(PAPER, "figure_1", "remedies_keep_more")
def remedies_keep_more(context: Context) -> Finding:
    """Each against the one without."""
    _, many = ends(context)
    none = score(context, UNREMEDIED, stages=many)
    gains = {arm: Difference.of(score(context, arm, stages=many), none) for arm in REMEDIES}
    words = ", ".join(f"{arm} {gain.text()}" for arm, gain in gains.items())
    text = f"{many} stages: {UNREMEDIED} {fmean(none.values()):.2f} %; above it {words} points"
    return trend(context, all_of([gain.above() for gain in gains.values()]), text, SEEDS, what="learning")
