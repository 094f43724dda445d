"""Claims about accuracy: figures 5 to 7, tables 2 to 4."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from pipelag.results.logs import Context
from pipelag.results.stale_weights.judging import (
    BASELINE,
    PAPER,
    absolute,
    accuracy,
    drops,
    listed,
    text,
    trend,
)
from pipelag.results.verdict import Finding, NotLogged, judge, need


@judge(PAPER, "figure_5a", "converges_alike")
def converges_alike(context: Context) -> Finding:
    """Iterations to within a point of the *baseline's* final accuracy; alike: at most 2.5 times the baseline's own.

    Against its own final accuracy an arm that never learns would converge at once.
    """
    goal = accuracy(context, BASELINE) - 1.0

    def reached(arm: str) -> int | None:
        logs = context.logs(arm=arm)
        if not logs:
            raise NotLogged(f"{arm} has no log")
        return next((int(row["step"]) for row in logs[0].rows if row["accuracy"] >= goal), None)

    steps = {arm: reached(arm) for arm in context.values("arm")}
    base = need(steps[BASELINE], "the baseline's way to its final accuracy")
    holds = all(step is not None and step <= 2.5 * base for step in steps.values())
    listed_steps = ", ".join(f"{arm} {step if step is not None else 'never'}" for arm, step in steps.items())
    return trend(
        context,
        holds,
        f"iterations to within a point of the baseline's final accuracy: {listed_steps} (alike: at most 2.5 times the "
        "baseline's)",
    )


@judge(PAPER, "figure_5a", "drop_at_most_0_55")
def lenet_drop(context: Context) -> Finding:
    """Every drop at most 0.55."""
    found = drops(context, "LeNet-5")
    return absolute(context, max(found.values()) <= 0.55, f"drops: {listed(found)}", model="LeNet-5")


@judge(PAPER, "figure_5b", "four_points_lower")
def alexnet_lower(context: Context) -> Finding:
    """About four points: 2 to 6."""
    found = drops(context, "AlexNet")
    return absolute(context, all(2 <= d <= 6 for d in found.values()), f"drops: {listed(found)} (about 4: 2 to 6)")


@judge(PAPER, "figure_5b", "spread_below_half_a_point")
def alexnet_spread(context: Context) -> Finding:
    """The pipelined arms within half a point."""
    found = drops(context, "AlexNet")
    spread = max(found.values()) - min(found.values())
    return absolute(context, spread < 0.5, f"spread {spread:.2f} points ({listed(found)})")


def ordered(model: str) -> Callable[[Context], Finding]:
    """A judge: accuracy falls from the baseline with every further stage."""

    def judged(context: Context) -> Finding:
        found = drops(context, model)
        values = [0.0, *found.values()]
        return trend(
            context, all(a < b for a, b in pairwise(values)), f"{model}, drops from the baseline: {listed(found)}"
        )

    return judged


judge(PAPER, "figure_5c", "order")(ordered("VGG-16"))
judge(PAPER, "figure_5d", "order")(ordered("ResNet-20"))


@judge(PAPER, "figure_5c", "drops")
def vgg_drops(context: Context) -> Finding:
    """At most 2.4 for 4 and 6 stages, 12 +- 3 for 10."""
    found = drops(context, "VGG-16")
    holds = max(found["4-stage"], found["6-stage"]) <= 2.4 and 9 <= found["10-stage"] <= 15
    return absolute(context, holds, f"drops: {listed(found)} (about 12: 9 to 15)")


@judge(PAPER, "figure_5d", "drops")
def resnet_drops(context: Context) -> Finding:
    """At most 3.5 for 4 and 6 stages, 8.5 +- 2.5 for 8."""
    found = drops(context, "ResNet-20")
    holds = max(found["4-stage"], found["6-stage"]) <= 3.5 and 6 <= found["8-stage"] <= 11
    return absolute(context, holds, f"drops: {listed(found)} (about 8.5: 6 to 11)")


def four_stage_drops(context: Context) -> Finding:
    """Within a point of 0.4, 4, 0.83, 1.45."""
    printed = {"LeNet-5": 0.4, "AlexNet": 4.0, "VGG-16": 0.83, "ResNet-20": 1.45}
    found, missing = {}, []
    for model in printed:
        try:
            found[model] = accuracy(context, BASELINE, model=model) - accuracy(context, "4-stage", model=model)
        except NotLogged:
            missing.append(model)
    if missing:
        return None, f"no logs of {', '.join(missing)}; measured drops: {listed(found) or 'none'}"
    holds = all(abs(found[m] - printed[m]) <= 1 for m in printed)
    return absolute(context, holds, f"drops: {listed(found)} (tolerance: 1 point)")


judge(PAPER, "table_2", "four_stage_drops")(four_stage_drops)
judge(PAPER, "text_headline_accuracy_drop", "four_stage_drops")(four_stage_drops)


@judge(PAPER, "table_2", "monotone_in_stages")
def monotone(context: Context) -> Finding:
    """VGG-16 and ResNet-20 fall with every further stage."""
    found = {model: drops(context, model) for model in ("VGG-16", "ResNet-20")}
    holds = all(all(a < b for a, b in pairwise([0.0, *d.values()])) for d in found.values())
    return trend(context, holds, "; ".join(f"{m}: {listed(d)}" for m, d in found.items()))


judge(PAPER, "table_2", "lenet_within_half_a_point")(lenet_drop)


@judge(PAPER, "table_2", "alexnet_independent_of_stages")
def alexnet_flat(context: Context) -> Finding:
    """About 4 points (2 to 6), spread below 1."""
    found = drops(context, "AlexNet")
    holds = all(2 <= d <= 6 for d in found.values()) and max(found.values()) - min(found.values()) < 1
    return absolute(context, holds, f"drops: {listed(found)} (about 4: 2 to 6; nearly independent: within 1)")


@judge(PAPER, "table_2", "deep_pipelines_cost_dearly")
def deep_cost(context: Context) -> Finding:
    """7 points for VGG-16, 8 for ResNet-20 at 8 stages."""
    vgg, resnet = drops(context, "VGG-16"), drops(context, "ResNet-20")
    holds = min(vgg["8-stage"], vgg["10-stage"]) >= 7 and resnet["8-stage"] >= 8
    return absolute(context, holds, f"VGG-16: {listed(vgg)}; ResNet-20: {listed(resnet)}")


STAGES = ("8", "10", "12", "14", "16", "18", "20")


@judge(PAPER, "table_3", "accuracy_falls")
def falls(context: Context) -> Finding:
    """A downward trend: rank correlation of stages and accuracy below -0.7."""
    values = [accuracy(context, arm) for arm in STAGES]
    rho = rank_correlation([float(s) for s in STAGES], values)
    return trend(context, rho < -0.7, f"accuracies {text(*values)}; rank correlation {rho:.2f} (a trend: below -0.7)")


@judge(PAPER, "table_3", "last_step_is_largest")
def last_step(context: Context) -> Finding:
    """18 to 20 stages is the largest fall."""
    values = [accuracy(context, arm) for arm in STAGES]
    falls = [a - b for a, b in pairwise(values)]
    return trend(context, falls[-1] == max(falls), f"falls between neighbours: {text(*falls)}")


@judge(PAPER, "table_3", "early_registers_beat_late_ones")
def early_beats_late(context: Context) -> Finding:
    """Eight stages early in the network against eight stages through it."""
    early, late = accuracy(context, "8"), accuracy(context, "8-stage")
    why = f"PPV (3,5,7): {early:.2f}, PPV (7,13,19): {late:.2f}"
    if context.shortfall() or early <= late:
        return trend(context, early > late, f"{why} (only the order is judged)")
    return absolute(context, 4 <= early - late <= 10, f"{why} (about 7: 4 to 10)")


def rank_correlation(x: list[float], y: list[float]) -> float:
    """Spearman's."""
    import pandas as pd

    return float(pd.Series(x).rank().corr(pd.Series(y).rank()))


def figure_6_points(context: Context, curve: str) -> list[tuple[float, float]]:
    """(stale percent, accuracy) of a curve."""
    points = []
    for arm in dict.fromkeys(i.arm.labels["arm"] for i in context.select(curve=curve)):
        value = accuracy(context, arm, curve=curve)
        points.append((context.logs(curve=curve, arm=arm)[0].summary["phases"][0]["stale_percent"], value))
    return sorted(points)


@judge(PAPER, "figure_6", "falls_with_stale_percent")
def falls_with_percent(context: Context) -> Finding:
    """Rank correlation below -0.7 on both curves."""
    rho = {}
    for curve in ("Increasing Stages", "Sliding Stage"):
        points = figure_6_points(context, curve)
        rho[curve] = rank_correlation([p[0] for p in points], [p[1] for p in points])
    holds = all(value < -0.7 for value in rho.values())
    return trend(
        context, holds, ", ".join(f"{c}: rank correlation {v:.2f}" for c, v in rho.items()) + " (needed: below -0.7)"
    )


def gaps(context: Context) -> list[float]:
    """Sliding minus increasing at equal percentage, in points."""
    sliding = dict(figure_6_points(context, "Sliding Stage"))
    found = [sliding[p] - a for p, a in figure_6_points(context, "Increasing Stages") if p in sliding]
    if not found:
        raise NotLogged("no percentage that both curves have")
    return found


@judge(PAPER, "figure_6", "sliding_equals_increasing")
def sliding_equals(context: Context) -> Finding:
    """Small: at most 2 points at every percentage."""
    found = gaps(context)
    return trend(
        context, max(map(abs, found)) <= 2, f"sliding minus increasing: {text(*found)} points (small: within 2)"
    )


@judge(PAPER, "figure_6", "percent_drives_the_drop")
def percent_drives(context: Context) -> Finding:
    """The mean gap between the curves is under a quarter of the fall along them."""
    found, points = gaps(context), figure_6_points(context, "Increasing Stages")
    fall = max(a for _, a in points) - min(a for _, a in points)
    mean = sum(map(abs, found)) / len(found)
    return trend(
        context, mean < fall / 4, f"mean gap at equal percentage {mean:.2f}, fall along the curve {fall:.2f} points"
    )


@judge(PAPER, "figure_7", "jumps_to_baseline")
def jumps(context: Context) -> Finding:
    """Three evaluations after the switch a hybrid is above the pipelined run at the same step."""
    pipelined = context.logs(arm="Pipelined 30k")
    found = {}
    for arm in ("20k+10k hybrid", "20k+20k hybrid"):
        logs = context.logs(arm=arm)
        if not (logs and pipelined):
            raise NotLogged(f"{arm} or the pipelined run has no log")
        after = [row for row in logs[0].rows if row["phase"] == 1]
        row = after[min(2, len(after) - 1)]
        same = min(pipelined[0].rows, key=lambda other: abs(other["step"] - row["step"]))
        found[arm] = row["accuracy"] - same["accuracy"]
    return trend(
        context, min(found.values()) > 0, f"hybrid minus pipelined soon after the switch: {listed(found)} points"
    )


HYBRIDS = ("Baseline 30k", "Pipelined 30k", "20k+10k hybrid", "20k+20k hybrid")


@judge(PAPER, "table_4", "order")
def hybrid_order(context: Context) -> Finding:
    """pipelined < short hybrid < baseline <= long hybrid."""
    base, pipe, short, long = (accuracy(context, arm) for arm in HYBRIDS)
    return trend(
        context,
        pipe < short < base <= long,
        f"pipelined {pipe:.2f}, short {short:.2f}, baseline {base:.2f}, long {long:.2f}",
    )


@judge(PAPER, "table_4", "short_hybrid_within_0_8")
def short_hybrid(context: Context) -> Finding:
    """At most 0.8 below the baseline."""
    base, _, short, _ = (accuracy(context, arm) for arm in HYBRIDS)
    return absolute(context, short >= base - 0.8, f"short hybrid {short:.2f}, baseline {base:.2f}")


@judge(PAPER, "table_4", "long_hybrid_above_baseline")
def long_hybrid(context: Context) -> Finding:
    """About +0.2: between -0.3 and +0.7."""
    base, _, _, long = (accuracy(context, arm) for arm in HYBRIDS)
    return absolute(
        context, -0.3 <= long - base <= 0.7, f"long hybrid minus baseline {long - base:+.2f} (-0.3 to +0.7)"
    )
