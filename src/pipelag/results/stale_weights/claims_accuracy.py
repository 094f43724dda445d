"""Claims about how much accuracy is lost: figure 5, table 2, the abstract's drops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from statistics import fmean

from pipelag.results.context import Context
from pipelag.results.judging import (
    SEEDS,
    Difference,
    ahead,
    all_of,
    average,
    by_seed,
    gaps,
    ordered,
    paired_means,
    sized,
    trend,
    whole_runs,
)
from pipelag.results.learning import learned
from pipelag.results.stale_weights.reading import (
    BASELINE,
    CONTROL,
    PAPER,
    drops,
    listed,
    lost,
    near,
    pipelined,
)
from pipelag.results.verdict import Finding, Judge, judge


def at_most(model: str, bound: float, arms: Sequence[str] = ()) -> Judge:
    """A judge that decides whether each arm (default: all) loses at most a number of points, printed to a tenth.

    It holds if each drop, paired over seeds, is at most the bound plus half a unit of its last printed digit.
    """
    half = 0.05

    def judged(context: Context) -> Finding:
        learned(context, f"{BASELINE} {model}", model=model, arm=BASELINE)  # otherwise there is nothing to lose
        by_arm = drops(context, model, arms)
        holds = all_of(d.below(bound + half) for d in by_arm.values())
        tolerance = f"half a unit of the last printed digit, {half:g} points; {SEEDS}"
        return sized(context, holds, f"{model} drops: {listed(by_arm)}", tolerance, model=model)

    return judged


def at_least(model: str, bound: float, arms: Sequence[str]) -> Judge:
    """A judge that decides whether each arm's drop, paired over seeds, is above a bound in points."""

    def judged(context: Context) -> Finding:
        by_arm = drops(context, model, arms)
        holds = all_of(d.above(bound) for d in by_arm.values())
        return sized(context, holds, f"{model} drops: {listed(by_arm)}", f"none below {bound:g}; {SEEDS}", model=model)

    return judged


def about(model: str, printed: float, half: float, arms: Sequence[str] = ()) -> Judge:
    """A judge that decides whether each arm (default: all) loses about the printed number of points.

    The paper has one run per arm, so each drop must be one that a further pair of our runs could give
    (`Difference.matches`), with half a unit of the last printed digit as slack.
    """

    def judged(context: Context) -> Finding:
        by_arm = drops(context, model, arms)
        holds = all_of(d.matches(printed, half) for d in by_arm.values())
        return sized(context, holds, f"{model} drops: {listed(by_arm)}; printed {printed:g}", near(half), model=model)

    return judged


judge(PAPER, "figure_5a", "drop_within_0_5")(at_most("LeNet-5", 0.5))
judge(PAPER, "table_2", "lenet_within_half_a_point")(at_most("LeNet-5", 0.5))
judge(PAPER, "figure_5c", "four_and_six_within_2_4")(at_most("VGG-16", 2.4, ("4-stage", "6-stage")))
judge(PAPER, "figure_5d", "four_and_six_within_3_5")(at_most("ResNet-20", 3.5, ("4-stage", "6-stage")))

judge(PAPER, "figure_5b", "four_points_lower")(about("AlexNet", 4, 0.5))
judge(PAPER, "table_2", "alexnet_about_4")(about("AlexNet", 4, 0.5))
judge(PAPER, "figure_5c", "ten_about_12")(about("VGG-16", 12, 0.5, ("10-stage",)))
judge(PAPER, "figure_5d", "eight_about_8_5")(about("ResNet-20", 8.5, 0.05, ("8-stage",)))
for _model, _id, _printed, _half in (
    ("LeNet-5", "lenet5", 0.4, 0.05),
    ("AlexNet", "alexnet", 4.0, 0.5),
    ("VGG-16", "vgg16", 0.83, 0.005),
    ("ResNet-20", "resnet20", 1.45, 0.005),
):
    judge(PAPER, "table_2", f"{_id}_4_stage_drop")(about(_model, _printed, _half, ("4-stage",)))
    judge(PAPER, "text_headline_accuracy_drop", _id)(about(_model, _printed, _half, ("4-stage",)))

judge(PAPER, "table_2", "vgg16_deep_costs_7")(at_least("VGG-16", 7, ("8-stage", "10-stage")))
judge(PAPER, "table_2", "resnet20_deep_costs_8")(at_least("ResNet-20", 8, ("8-stage",)))


@judge(PAPER, "text_headline_accuracy_drop", "within_1_45_but_alexnet")
def within_1_45(context: Context) -> Finding:
    """Holds if three networks' drops are at most 1.45 points and AlexNet's is above, each paired over seeds."""
    by_model = {model: lost(context, "4-stage", model=model) for model in ("LeNet-5", "VGG-16", "ResNet-20", "AlexNet")}
    bound = 1.45 + 0.005
    holds = all_of(d.above(bound) if model == "AlexNet" else d.below(bound) for model, d in by_model.items())
    tolerance = f"half a unit of the last printed digit, 0.005 points; {SEEDS}"
    return sized(context, holds, f"4-stage drops: {listed(by_model)}", tolerance)


HALF_A_POINT = 0.5


@judge(PAPER, "figure_5b", "spread_below_half_a_point")
@judge(PAPER, "table_2", "alexnet_independent_of_stages")
def alexnet_flat(context: Context) -> Finding:
    """Holds if any two of AlexNet's pipelined arms differ by less than half a point, by the whole interval."""
    learned(context, f"{BASELINE} AlexNet", model="AlexNet", arm=BASELINE)
    arms = pipelined(context, "AlexNet")
    ends = {arm: by_seed(context, model="AlexNet", arm=arm) for arm in arms}
    apart = {f"{a} - {b}": Difference.of(ends[a], ends[b]) for a, b in combinations(arms, 2)}
    holds = all_of(gap.within(-HALF_A_POINT, HALF_A_POINT) for gap in apart.values())
    tolerance = f"{HALF_A_POINT} points between any two (three times the 0.15 that the printed ones differ by); {SEEDS}"
    return sized(context, holds, f"AlexNet, in points: {listed(apart)}", tolerance, model="AlexNet")


def falling(model: str) -> Judge:
    """A judge that decides whether each deeper arm is below the one before, starting from the baseline."""

    def judged(context: Context) -> Finding:
        arms = [BASELINE, *pipelined(context, model)]
        holds, steps = ordered([by_seed(context, model=model, arm=arm) for arm in arms])
        return trend(context, holds, f"{model}, steps down from {' over '.join(arms)}: {steps}", SEEDS, model=model)

    return judged


judge(PAPER, "figure_5c", "order")(falling("VGG-16"))
judge(PAPER, "figure_5d", "order")(falling("ResNet-20"))
judge(PAPER, "table_2", "vgg16_monotone")(falling("VGG-16"))
judge(PAPER, "table_2", "resnet20_monotone")(falling("ResNet-20"))


def deepest(model: str) -> Judge:
    """A judge that decides whether the deepest pipeline is below both the shallowest and the baseline."""

    def judged(context: Context) -> Finding:
        arms = pipelined(context, model)
        below = {
            arms[0]: ahead(context, arms[0], arms[-1], model=model),
            BASELINE: lost(context, arms[-1], model=model),
        }
        why = f"{model}, {arms[-1]} below {', below '.join(f'{arm} by {d.text()}' for arm, d in below.items())}"
        return trend(context, all_of(d.above() for d in below.values()), why, SEEDS, model=model)

    return judged


judge(PAPER, "figure_5b", "deepest_costs_most_here")(deepest("AlexNet"))
judge(PAPER, "figure_5c", "deepest_costs_most_here")(deepest("VGG-16"))


PRECISIONS = ("float32", "bfloat16")


def change(context: Context, arm: str, label: str, kinds: Sequence[str]) -> Difference:
    """The change in an arm's final accuracy from runs with the first of two values of a label to those with the second.

    label: the label that tells the two apart. kinds: its two values.
    """
    before, after = (by_seed(context, arm=arm, **{label: kind}) for kind in kinds)
    return Difference.of(after, before)


rounding = partial(change, label="precision", kinds=PRECISIONS)  # the change by passes in bfloat16


@judge(PAPER, "precision", "ends_alike_here")
def ends_alike(context: Context) -> Finding:
    """Holds if the two precisions of each arm end within two points of one another, by the whole interval."""
    learned(context, BASELINE, arm=BASELINE)
    changes = {arm: rounding(context, arm) for arm in context.values("arm")}
    holds = all_of(change.within(-2, 2) for change in changes.values())
    return trend(context, holds, f"bfloat16 minus float32, in points: {listed(changes)}", f"two points; {SEEDS}")


def costs(context: Context, deep: str, **labels: str) -> dict[int, float]:
    """By how many points a deep arm ends below the baseline, by seed."""
    return gaps(*(by_seed(context, arm=arm, **labels) for arm in (BASELINE, deep)))


Values = Mapping[int, float]  # by seed


@judge(PAPER, "precision", "costs_alike_here")
def costs_alike(context: Context) -> Finding:
    """Holds if the drop of 8 stages differs by less than three points between precisions, paired over seeds."""
    learned(context, BASELINE, arm=BASELINE)
    full, coarse = (costs(context, "8-stage", precision=name) for name in PRECISIONS)
    change = Difference.of(coarse, full)
    means = paired_means(full, coarse)
    why = "8 stages cost {:.2f} points in float32, {:.2f} in bfloat16".format(*means) + f": more by {change.text()}"
    return trend(context, change.within(-3, 3), why, f"three points; {SEEDS}")


LENGTHS = ("once", "twice")  # as long as table 2's runs


gained = partial(change, label="length", kinds=LENGTHS)  # the change by training twice as long


@judge(PAPER, "length", "longer_is_better_here")
def longer_is_better(context: Context) -> Finding:
    """Holds if every arm ends higher when trained twice as long, paired over seeds."""
    gains = {arm: gained(context, arm) for arm in context.values("arm")}
    why = f"twice as long minus once, in points: {listed(gains)}"
    return trend(context, all_of(gain.above() for gain in gains.values()), why, SEEDS, length="twice")


@judge(PAPER, "length", "price_falls_here")
def price_falls(context: Context) -> Finding:
    """Holds if the drop of 8 stages is smaller after training twice as long, paired over seeds."""
    short, long = (costs(context, "8-stage", length=length) for length in LENGTHS)
    saved = Difference.of(short, long)
    once, twice = paired_means(short, long)
    why = f"8 stages cost {once:.2f} points, trained twice as long {twice:.2f}: less by {saved.text()}"
    return trend(context, saved.above(), why, SEEDS, length="twice")


def halfway(a: Values, b: Values) -> dict[int, float]:
    """The mean of two arms, by seed."""
    return {seed: average((a[seed], b[seed])) for seed in a if seed in b}


def mostly(context: Context, base: Values, control: Values, stale: Values, named: str) -> Finding:
    """Whether the smaller learning rate alone explains more than half of a pipelined arm's drop.

    The control has that rate but no pipeline. The claim holds if, paired over seeds, the control ends below the middle
    between the baseline and the arm, and the arm ends below the baseline.
    """
    rate, drop = Difference.of(base, control), Difference.of(base, stale)
    half = Difference.of(halfway(base, stale), control)
    why = f"lost by the rate alone {rate.text()} points, by the rate and {named} {drop.text()}; "
    why += "the first minus half of the second "
    return trend(context, all_of((half.above(), drop.above())), why + half.text(), f"more than half; {SEEDS}")


def at_equal_rates(context: Context, arm: str) -> Difference:
    """An arm's drop below training without a pipeline at the same learning rate."""
    return ahead(context, CONTROL, arm)


@judge(PAPER, "control", "mostly_the_rate_here")
def rate_of_four(context: Context) -> Finding:
    """Holds if the rate alone explains more than half of the drop of 4 stages (`mostly`)."""
    base, control, four = (by_seed(context, arm=each) for each in (BASELINE, CONTROL, "4-stage"))
    return mostly(context, base, control, four, "4 stages")


@judge(PAPER, "control", "four_cost_little_here")
def four_cost_little(context: Context) -> Finding:
    """Holds if 4 stages end at most two points below the control at their rate, by the whole interval."""
    learned(context, CONTROL, arm=CONTROL)
    cost = at_equal_rates(context, "4-stage")
    return trend(context, cost.below(2), f"4 stages cost {cost.text()} points at their rate", f"two points; {SEEDS}")


@judge(PAPER, "control_curves", "four_run_alike_here")
def four_run_alike(context: Context) -> Finding:
    """Holds if the accuracies of 4 stages and of the control, averaged over all evaluations, are within two points."""
    learned(context, CONTROL, arm=CONTROL)
    runs = [whole_runs(context, arm, arm=arm) for arm in (CONTROL, "4-stage")]
    means = [{seed: fmean(row["accuracy"] for row in log.rows) for seed, log in logs.items()} for logs in runs]
    apart = Difference.of(*means)
    why = f"over all evaluations training without a pipeline is above 4 stages by {apart.text()} points"
    return trend(context, apart.within(-2, 2), why, f"two points; {SEEDS}")


def cost_at_equal_rates(stages: int) -> Judge:
    """A judge that decides whether this many stages end below the control at their learning rate."""

    def judged(context: Context) -> Finding:
        cost = at_equal_rates(context, f"{stages}-stage")
        return trend(context, cost.above(), f"{stages} stages cost {cost.text()} points at their rate", SEEDS)

    return judged


judge(PAPER, "control", "six_cost_here")(cost_at_equal_rates(6))
judge(PAPER, "control", "eight_cost_here")(cost_at_equal_rates(8))
