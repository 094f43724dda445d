"""Claims about how accuracy falls with stages and with the share of stale weights: table 3 and figure 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from pipelag.results.context import Context
from pipelag.results.judging import SEEDS, Difference, ahead, all_of, by_seed, exact, ordered, sized, trend
from pipelag.results.stale_weights.claims_accuracy import mostly
from pipelag.results.stale_weights.reading import PAPER, every_log, listed, near
from pipelag.results.verdict import Finding, Judge, NotLogged, judge, nothing, resting_on

FINE = ("8", "10", "12", "14", "16", "18", "20")
# Critical values of Spearman's rank correlation at 5 %, one-sided, by the number of values.
CRITICAL = {5: 0.900, 6: 0.829, 7: 0.714, 8: 0.643, 9: 0.600, 10: 0.564}


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    import pandas as pd

    return float(pd.Series(x).rank().corr(pd.Series(y).rank()))


def left_out(context: Context, **labels: str) -> bool:
    """Whether the scale leaves out all runs with these labels."""
    return all(item.arm.left_out for item in context.select(**labels))


def falls(context: Context, points: Sequence[tuple[float, Mapping[int, float]]], what: str, **labels: str) -> Finding:
    """Whether accuracy falls along x.

    With five to ten points, by Spearman's rank correlation of the means over seeds: the claim holds at or below the
    negative 5 % critical value, fails at or above 0, and cannot be judged between. With two to four points chance gives
    any order too often, so the first is tested against the last, paired over seeds; a point between them that is told
    to be above the first or below the last leaves the claim open.

    Args:
        points: pairs of x and the accuracies there by seed.
        what: the words for the points in the verdict.
    """
    x, ends = zip(*points, strict=True) if points else ((), ())
    y = [fmean(accuracies.values()) for accuracies in ends]
    why = f"{what}: {', '.join(f'{value:.2f}' for value in y)}"
    if len(y) in CRITICAL:
        if len(set(y)) == 1:
            raise NotLogged(f"{why}; all are equal, so that they have no ranks")
        rho, bound = rank_correlation(x, y), CRITICAL[len(y)]
        tolerance = (
            f"holds from Spearman's rank correlation of -{bound:g} on, the 5 % point (one-sided) of {len(y)} values; "
            "fails from 0 on; chance could give what is between"
        )
        holds = True if rho <= -bound else False if rho >= 0 else None
        return trend(context, holds, f"{why}; rank correlation {rho:.2f}", tolerance, **labels)
    if not 2 <= len(y) < min(CRITICAL):
        raise NotLogged(f"of {what} {len(y)} values are logged; chance gives so few any order")
    first, *between, last = ends
    fall = Difference.of(first, last)
    with resting_on(nothing):  # these can speak against a fall only
        outside = [Difference.of(*pair).above() for each in between for pair in ((each, first), (last, each))]
    fell = fall.above()
    holds = None if fell and True in outside else fell
    tolerance = f"the first value against the last, with none told to lie above or below both; {SEEDS}"
    return trend(context, holds, f"{why}; the first above the last by {fall.text()}", tolerance, **labels)


@judge(PAPER, "table_3", "accuracy_falls")
def accuracy_falls(context: Context) -> Finding:
    """Holds if accuracy falls with the number of stages (`falls`), over those that the scale trains."""
    arms = [arm for arm in FINE if not left_out(context, arm=arm)]
    points = [(float(arm), by_seed(context, arm=arm)) for arm in arms]
    return falls(context, points, f"accuracy with {', '.join(arms)} stages")


@judge(PAPER, "table_3", "every_step_down")
def every_step_down(context: Context) -> Finding:
    """Holds if each number of stages ends below the one before, paired over seeds."""
    holds, steps = ordered([by_seed(context, arm=arm) for arm in FINE])
    return trend(context, holds, f"steps down over {', '.join(FINE)} stages: {steps}", SEEDS)


def steps_down(context: Context) -> dict[str, dict[int, float]]:
    """The points lost at each step to the next number of stages, by seed."""
    ends = {arm: by_seed(context, arm=arm) for arm in FINE}
    return {
        f"{a} -> {b}": {seed: ends[a][seed] - ends[b][seed] for seed in ends[a] if seed in ends[b]}
        for a, b in pairwise(FINE)
    }


@judge(PAPER, "table_3", "last_step_is_largest")
def last_step(context: Context) -> Finding:
    """Holds if the step from 18 to 20 stages costs more points than each other step, paired over seeds."""
    steps = steps_down(context)
    last = steps.pop("18 -> 20")
    more = {name: Difference.of(last, step) for name, step in steps.items()}
    why = f"18 -> 20 costs {fmean(last.values()):.2f} points; more than the step by: {listed(more)}"
    return trend(context, all_of(d.above() for d in more.values()), why, SEEDS)


@judge(PAPER, "table_3", "last_step_7_14")
def last_step_size(context: Context) -> Finding:
    """Holds if a further pair of runs could give the printed cost of the step from 18 to 20 stages, 7.14 points."""
    cost = ahead(context, "18", "20")
    return sized(context, cost.matches(7.14, 0.005), f"18 -> 20 costs {cost.text()} points; printed 7.14", near(0.005))


def early_and_late(context: Context) -> tuple[Difference, str]:
    """How far eight stages with early registers end above eight stages over the whole network, and that in words."""
    gain = ahead(context, "8", "8-stage")
    return gain, f"PPV (3,5,7) is ahead of (7,13,19) by {gain.text()} points"


@judge(PAPER, "table_3", "early_registers_beat_late_ones")
def early_beats_late(context: Context) -> Finding:
    """Holds if eight stages with early registers end above eight stages over the whole network."""
    gain, why = early_and_late(context)
    return trend(context, gain.above(), why, SEEDS)


@judge(PAPER, "table_3", "early_by_about_7")
def early_by_7(context: Context) -> Finding:
    """Holds if a further pair of runs could give the printed advantage, about 7 points (7.27 in the tables)."""
    gain, why = early_and_late(context)
    return sized(context, gain.matches(7, 0.5), f"{why}; printed about 7", near(0.5))


INCREASING, SLIDING = "Increasing Stages", "Sliding Stage"


def by_last_register(context: Context, curve: str) -> dict[int, tuple[float, int, dict[int, float]]]:
    """The points of a curve in figure 6 that the scale trains, by the layer of their last register.

    Each is (percentage of stale weights, degree of staleness, accuracy by seed).
    """
    by_layer = {}
    for arm in context.values("arm", curve=curve):
        if left_out(context, curve=curve, arm=arm):
            continue
        ends = by_seed(context, curve=curve, arm=arm)
        phase = every_log(context, curve=curve, arm=arm)[0].phase
        by_layer[int(phase["cuts"][-1])] = (float(phase["stale_percent"]), max(phase["forward_delays"]), ends)
    return dict(sorted(by_layer.items()))


def both_curves(context: Context) -> dict[int, tuple[tuple[float, int], tuple[float, int], Difference]]:
    """The last registers at which both curves have a point.

    Each has (percentage, degree) of Increasing and of Sliding, and the accuracy of Sliding minus that of Increasing.
    """
    increasing, sliding = by_last_register(context, INCREASING), by_last_register(context, SLIDING)
    shared = {p: (point, sliding[p]) for p, point in increasing.items() if p in sliding}
    if len(shared) < 2:
        raise NotLogged(f"{SLIDING} has fewer than two registers where {INCREASING} has its last")
    return {p: (one[:2], other[:2], Difference.of(other[2], one[2])) for p, (one, other) in shared.items()}


def falls_along(curve: str) -> Judge:
    """A judge that decides whether accuracy falls with the percentage of stale weights along a curve (`falls`)."""

    def judged(context: Context) -> Finding:
        points = [(percent, ends) for percent, _, ends in by_last_register(context, curve).values()]
        return falls(context, points, f"{curve}, accuracy", curve=curve)

    return judged


judge(PAPER, "figure_6", "increasing_falls")(falls_along(INCREASING))
judge(PAPER, "figure_6", "sliding_falls")(falls_along(SLIDING))


@judge(PAPER, "figure_6", "same_percentages")
def same_percentages(context: Context) -> Finding:
    """Holds if both curves have the same percentage of stale weights at each last register, to two decimals."""
    by_layer = both_curves(context)
    words = ", ".join(
        f"layer {p}: {increasing[0]:.2f} and {sliding[0]:.2f}" for p, (increasing, sliding, _) in by_layer.items()
    )
    holds = all(abs(increasing[0] - sliding[0]) < 0.005 for increasing, sliding, _ in by_layer.values())
    return exact(holds, f"stale weights in %, Increasing and Sliding: {words}", "two decimals of a percent")


@judge(PAPER, "figure_6", "increasing_is_staler")
def increasing_is_staler(context: Context) -> Finding:
    """Holds if Increasing has a greater degree of staleness than Sliding at each last register.

    The degree is the largest delay of a stage.
    """
    by_layer = both_curves(context)
    words = ", ".join(
        f"layer {p}: {increasing[1]} and {sliding[1]}" for p, (increasing, sliding, _) in by_layer.items()
    )
    holds = all(increasing[1] > sliding[1] for increasing, sliding, _ in by_layer.values())
    return exact(holds, f"degree of staleness, Increasing and Sliding: {words}")


@judge(PAPER, "figure_6", "sliding_equals_increasing")
def sliding_equals(context: Context) -> Finding:
    """Holds if the two curves are within a point of each other at every percentage, by the whole interval.

    The paper calls the difference small; a point is about a tenth of the printed fall of Increasing Stages.
    """
    gaps = {f"{sliding[0]:.1f} %": gap for _, sliding, gap in both_curves(context).values()}
    holds = all_of(gap.within(-1, 1) for gap in gaps.values())
    tolerance = f"a point, about a tenth of the 11.19 that the printed Increasing Stages fall; {SEEDS}"
    return sized(context, holds, f"Sliding minus Increasing in points: {listed(gaps)}", tolerance)


@judge(PAPER, "figure_6", "percent_drives_the_drop")
def percent_drives(context: Context) -> Finding:
    """Holds if the percentage of stale weights costs at least four times as much accuracy as the degree of staleness.

    Along Sliding only the percentage changes, and between the curves only the degree. So a quarter of the fall along
    Sliding must be above the mean gap between the curves, paired over seeds.
    """
    increasing, sliding = by_last_register(context, INCREASING), by_last_register(context, SLIDING)
    shared = list(both_curves(context))
    seeds = set.intersection(*(set(curve[p][2]) for curve in (increasing, sliding) for p in shared))
    if not seeds:
        raise NotLogged("the two curves have no seed in common")
    fall = {s: sliding[shared[0]][2][s] - sliding[shared[-1]][2][s] for s in seeds}
    gap = {s: fmean(abs(sliding[p][2][s] - increasing[p][2][s]) for p in shared) for s in seeds}
    left = Difference.of({s: fall[s] / 4 for s in seeds}, gap)
    why = (
        f"fall along Sliding {fmean(fall.values()):.2f} points at one degree of staleness, mean gap to Increasing "
        f"{fmean(gap.values()):.2f} points at one percentage; a quarter of the fall minus the gap {left.text()}"
    )
    return sized(context, left.above(), why, f"the percentage does at least four times what the degree does; {SEEDS}")


@judge(PAPER, "figure_6", "costs_beyond_rate_here")
def costs_beyond_rate(context: Context) -> Finding:
    """Holds if 20 stages end below the control, which trains at their learning rate without a pipeline."""
    control, deepest = by_seed(context, curve="control"), by_seed(context, curve=INCREASING, arm="20")
    cost = Difference.of(control, deepest)
    why = f"without a pipeline at their rate {fmean(control.values()):.2f} %, above 20 stages by {cost.text()} points"
    return trend(context, cost.above(), why, SEEDS)


@judge(PAPER, "figure_6", "mostly_the_rate_here")
def mostly_the_rate(context: Context) -> Finding:
    """Holds if the rate alone explains more than half of the drop with one register after layer 7 (`mostly`)."""
    base, control = by_seed(context, curve="baseline"), by_seed(context, curve="control")
    register = by_seed(context, curve=SLIDING, arm="register after 7")
    return mostly(context, base, control, register, "a register after layer 7")


@judge(PAPER, "figure_6", "degree_counts_here")
def degree_counts(context: Context) -> Finding:
    """Holds if Sliding ends above Increasing at the last register that both have, where only the degree differs."""
    last, (_, _, gap) = max(both_curves(context).items())
    why = f"a register after layer {last} is ahead of one after every second layer up to it by {gap.text()} points"
    return trend(context, gap.above(), why, SEEDS)
