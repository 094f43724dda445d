"""Claims about accuracy: figures 5 to 7, tables 2 to 4, the abstract's drops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from statistics import fmean

from pipelag.results.judging import ONE_MORE, SEEDS, Difference, all_of, by_seed, exact, ordered, sized, trend
from pipelag.results.logs import Context, RunLog
from pipelag.results.stale_weights.reading import (
    BASELINE,
    PAPER,
    arms_of,
    drops,
    every_log,
    listed,
    lost,
    phase_of,
)
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

# -- how much is lost --------------------------------------------------------------------------------------------------


def at_most(model: str, bound: float, arms: Sequence[str] = (), half: float = 0.05) -> Judge:
    """A judge: arms (default: all) lose no more than a printed bound, `half` a unit of whose last digit is granted."""

    def judged(context: Context) -> Finding:
        by_arm = drops(context, model, arms)
        holds = all_of(d.below(bound + half) for d in by_arm.values())
        tolerance = f"half a unit of the last printed digit, {half:g} points; {SEEDS}"
        return sized(context, holds, f"{model} drops: {listed(by_arm)}", tolerance, model=model)

    return judged


def at_least(model: str, bound: float, arms: Sequence[str]) -> Judge:
    """A judge: arms lose at least so much."""

    def judged(context: Context) -> Finding:
        by_arm = drops(context, model, arms)
        holds = all_of(d.above(bound) for d in by_arm.values())
        return sized(context, holds, f"{model} drops: {listed(by_arm)}", f"none below {bound:g}; {SEEDS}", model=model)

    return judged


def about(model: str, printed: float, half: float, arms: Sequence[str] = ()) -> Judge:
    """A judge: arms (default: all) lose what the paper's single runs lost, as near as seeds let one say."""

    def judged(context: Context) -> Finding:
        by_arm = drops(context, model, arms)
        holds = all_of(d.matches(printed, half) for d in by_arm.values())
        return sized(context, holds, f"{model} drops: {listed(by_arm)}; printed {printed:g}", near(half), model=model)

    return judged


def near(half: float) -> str:
    """The tolerance of a claim that a difference is about a printed one."""
    return f"{ONE_MORE}; and half a unit of the last printed digit, {half:g} points"


judge(PAPER, "figure_5a", "drop_at_most_0_55")(at_most("LeNet-5", 0.5))
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
    """At most 1.45 points for three networks, more for AlexNet."""
    by_model = {model: lost(context, "4-stage", model=model) for model in ("LeNet-5", "VGG-16", "ResNet-20", "AlexNet")}
    bound = 1.45 + 0.005
    holds = all_of(d.above(bound) if model == "AlexNet" else d.below(bound) for model, d in by_model.items())
    tolerance = f"half a unit of the last printed digit, 0.005 points; {SEEDS}"
    return sized(context, holds, f"4-stage drops: {listed(by_model)}", tolerance)


HALF_A_POINT = 0.5


@judge(PAPER, "figure_5b", "spread_below_half_a_point")
@judge(PAPER, "table_2", "alexnet_independent_of_stages")
def alexnet_flat(context: Context) -> Finding:
    """Any two of AlexNet's pipelined arms end within half a point of one another."""
    arms = [arm for arm in arms_of(context, model="AlexNet") if arm.endswith("-stage")]
    ends = {arm: by_seed(context, model="AlexNet", arm=arm) for arm in arms}
    gaps = {f"{a} - {b}": Difference.of(ends[a], ends[b]) for a, b in combinations(arms, 2)}
    holds = all_of(gap.within(-HALF_A_POINT, HALF_A_POINT) for gap in gaps.values())
    tolerance = f"{HALF_A_POINT} points between any two (three times the 0.15 that the printed ones differ by); {SEEDS}"
    return sized(context, holds, f"AlexNet, in points: {listed(gaps)}", tolerance, model="AlexNet")


def falling(model: str) -> Judge:
    """A judge: accuracy falls from the baseline with every further stage."""

    def judged(context: Context) -> Finding:
        arms = [BASELINE, *(arm for arm in arms_of(context, model=model) if arm.endswith("-stage"))]
        holds, steps = ordered([by_seed(context, model=model, arm=arm) for arm in arms])
        return trend(context, holds, f"{model}, steps down from {' over '.join(arms)}: {steps}", SEEDS, model=model)

    return judged


judge(PAPER, "figure_5c", "order")(falling("VGG-16"))
judge(PAPER, "figure_5d", "order")(falling("ResNet-20"))
judge(PAPER, "table_2", "vgg16_monotone")(falling("VGG-16"))
judge(PAPER, "table_2", "resnet20_monotone")(falling("ResNet-20"))

# -- how soon ----------------------------------------------------------------------------------------------------------

DISTANCES = (2.0, 1.0, 0.5)  # points from where an arm ends
ALIKE = 1.5  # times as many iterations, or as few


def iterations(logs: Sequence[RunLog], distance: float) -> float:
    """After how many iterations runs first come so near to where they end, the mean over seeds."""
    steps = []
    for log in logs:
        if not log.rows:
            raise NotLogged(f"{log.folder} has no evaluation")
        goal = log.rows[-1]["accuracy"] - distance
        steps.append(next(row["step"] for row in log.rows if row["accuracy"] >= goal))
    return fmean(steps)


def unlearned(arms: Mapping[str, Sequence[RunLog]], baseline: Sequence[RunLog]) -> list[str]:
    """Arms that diverge, or end below half of the baseline: nothing converges there, though it may hold still."""
    goal = fmean(log.accuracy or 0.0 for log in baseline) / 2
    return [arm for arm, logs in arms.items() if any(log.accuracy is None or log.accuracy <= goal for log in logs)]


def alike(context: Context, arms: Sequence[str], to: Sequence[str], baseline: str, **labels: str) -> Finding:
    """Whether arms come near to their own end in about as many iterations as others do to theirs.

    How near is not said: it is asked at three distances. The paper lets arms end at different accuracies.
    """
    logs = {arm: every_log(context, arm=arm, **labels) for arm in dict.fromkeys([*to, *arms])}
    tolerance = f"{ALIKE:g} times as many or as few, at each of three distances; one evaluation more or less"
    lost_arms = unlearned(logs, every_log(context, arm=baseline, **labels))
    if lost_arms:
        why = f"{', '.join(lost_arms)}: diverges or ends below half of {baseline}"
        return sized(context, False, why, tolerance, **labels)
    by_arm = {arm: [iterations(each, distance) for distance in DISTANCES] for arm, each in logs.items()}
    resolution = min(each[0].rows[0]["step"] for each in logs.values())
    outcomes = []
    for arm in arms:
        for other in to:
            same = [
                max(a, b) <= ALIKE * min(a, b) or abs(a - b) <= resolution
                for a, b in zip(by_arm[arm], by_arm[other], strict=True)
            ]
            outcomes.append(True if all(same) else None if any(same) else False)
    words = "; ".join(f"{arm} {', '.join(f'{steps:,.0f}' for steps in each)}" for arm, each in by_arm.items())
    why = f"iterations to within {', '.join(f'{d:g}' for d in DISTANCES)} points of an arm's own end: {words}"
    return sized(context, all_of(outcomes), why, tolerance, **labels)


def converges_alike(model: str) -> Judge:
    """A judge: every pipelined arm of a model is alike to the baseline."""

    def judged(context: Context) -> Finding:
        arms = [arm for arm in arms_of(context, model=model) if arm.endswith("-stage")]
        return alike(context, arms, [BASELINE], BASELINE, model=model)

    return judged


for _figure, _model in (("5a", "LeNet-5"), ("5b", "AlexNet"), ("5c", "VGG-16"), ("5d", "ResNet-20")):
    judge(PAPER, f"figure_{_figure}", "converges_alike")(converges_alike(_model))


@judge(PAPER, "figure_7", "converges_alike")
def hybrid_alike(context: Context) -> Finding:
    """Both hybrids against the baseline and the pipelined run."""
    return alike(context, HYBRIDS, ["Baseline 30k", "Pipelined 30k"], "Baseline 30k")


@judge(PAPER, "figure_5b", "all_converge")
def all_converge(context: Context) -> Finding:
    """No arm diverges, is lost, or still moves at its end: the last tenth within a point of the tenth before."""
    arms = [arm for arm in arms_of(context, model="AlexNet") if arm.endswith("-stage")]
    logs = {arm: every_log(context, model="AlexNet", arm=arm) for arm in arms}
    tolerance = "a point between the last tenth of the evaluations and the tenth before; above half of the baseline"
    lost_arms = unlearned(logs, every_log(context, model="AlexNet", arm=BASELINE))
    if lost_arms:
        why = f"{', '.join(lost_arms)}: diverges or ends below half of the baseline"
        return sized(context, False, why, tolerance, model="AlexNet")
    moves = {}
    for arm, each in logs.items():
        values = [fmean(rows) for rows in zip(*([row["accuracy"] for row in log.rows] for log in each), strict=True)]
        tenth = max(1, len(values) // 10)
        moves[arm] = fmean(values[-tenth:]) - fmean(values[-2 * tenth : -tenth])
    why = ", ".join(f"{arm} {move:+.2f}" for arm, move in moves.items())
    holds = all(abs(move) <= 1 for move in moves.values())
    return sized(context, holds, f"points gained in the last tenth: {why}", tolerance, model="AlexNet")


# -- table 3 and figure 6 ----------------------------------------------------------------------------------------------

FINE = ("8", "10", "12", "14", "16", "18", "20")
# Spearman's rank correlation: what chance exceeds in 5 % of cases, one-sided, by the number of values.
CRITICAL = {5: 0.900, 6: 0.829, 7: 0.714, 8: 0.643, 9: 0.600, 10: 0.564}


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's."""
    import pandas as pd

    return float(pd.Series(x).rank().corr(pd.Series(y).rank()))


def falls(context: Context, x: Sequence[float], y: Sequence[float], what: str, **labels: str) -> Finding:
    """Whether values fall with x: ranks that chance would hardly give."""
    rho, bound = rank_correlation(x, y), CRITICAL[len(x)]
    tolerance = (
        f"holds from Spearman's rank correlation of -{bound:g} on, the 5 % point (one-sided) of {len(x)} values; fails "
        "from 0 on; chance could give what is between"
    )
    holds = True if rho <= -bound else False if rho >= 0 else None
    why = f"{what}: {', '.join(f'{value:.2f}' for value in y)}; rank correlation {rho:.2f}"
    return trend(context, holds, why, tolerance, **labels)


@judge(PAPER, "table_3", "accuracy_falls")
def accuracy_falls(context: Context) -> Finding:
    """A downward trend over the number of stages."""
    ends = [fmean(by_seed(context, arm=arm).values()) for arm in FINE]
    return falls(context, [float(arm) for arm in FINE], ends, f"accuracy with {', '.join(FINE)} stages")


@judge(PAPER, "table_3", "every_step_down")
def every_step_down(context: Context) -> Finding:
    """Each number of stages below the one before."""
    holds, steps = ordered([by_seed(context, arm=arm) for arm in FINE])
    return trend(context, holds, f"steps down over {', '.join(FINE)} stages: {steps}", SEEDS)


def steps_down(context: Context) -> dict[str, dict[int, float]]:
    """What each step to the next number of stages costs, by seed."""
    ends = {arm: by_seed(context, arm=arm) for arm in FINE}
    return {
        f"{a} -> {b}": {seed: ends[a][seed] - ends[b][seed] for seed in ends[a] if seed in ends[b]}
        for a, b in pairwise(FINE)
    }


@judge(PAPER, "table_3", "last_step_is_largest")
def last_step(context: Context) -> Finding:
    """18 to 20 stages costs more than every other step."""
    steps = steps_down(context)
    last = steps.pop("18 -> 20")
    more = {name: Difference.of(last, step) for name, step in steps.items()}
    why = f"18 -> 20 costs {fmean(last.values()):.2f} points; more than the step by: {listed(more)}"
    return trend(context, all_of(d.above() for d in more.values()), why, SEEDS)


@judge(PAPER, "table_3", "last_step_7_14")
def last_step_size(context: Context) -> Finding:
    """7.14 points."""
    cost = Difference.of(by_seed(context, arm="18"), by_seed(context, arm="20"))
    return sized(context, cost.matches(7.14, 0.005), f"18 -> 20 costs {cost.text()} points; printed 7.14", near(0.005))


def early_and_late(context: Context) -> tuple[Difference, str]:
    """Eight stages early in the network against eight stages through all of it."""
    gain = Difference.of(by_seed(context, arm="8"), by_seed(context, arm="8-stage"))
    return gain, f"PPV (3,5,7) is ahead of (7,13,19) by {gain.text()} points"


@judge(PAPER, "table_3", "early_registers_beat_late_ones")
def early_beats_late(context: Context) -> Finding:
    """The order alone."""
    gain, why = early_and_late(context)
    return trend(context, gain.above(), why, SEEDS)


@judge(PAPER, "table_3", "early_by_about_7")
def early_by_7(context: Context) -> Finding:
    """About seven points; 7.27 by the tables."""
    gain, why = early_and_late(context)
    return sized(context, gain.matches(7, 0.5), f"{why}; printed about 7", near(0.5))


INCREASING, SLIDING = "Increasing Stages", "Sliding Stage"


def by_last_register(context: Context, curve: str) -> dict[int, tuple[float, int, dict[int, float]]]:
    """By the last register's layer: percentage of stale weights, degree of staleness, accuracy by seed."""
    by_layer = {}
    for arm in arms_of(context, curve=curve):
        ends = by_seed(context, curve=curve, arm=arm)
        phase = phase_of(every_log(context, curve=curve, arm=arm)[0])
        by_layer[int(phase["cuts"][-1])] = (float(phase["stale_percent"]), max(phase["forward_delays"]), ends)
    return dict(sorted(by_layer.items()))


def both_curves(context: Context) -> dict[int, tuple[tuple[float, int], tuple[float, int], Difference]]:
    """Where both curves have a point: (percentage, degree) of Increasing, of Sliding, and Sliding minus Increasing."""
    many, one = by_last_register(context, INCREASING), by_last_register(context, SLIDING)
    if not many or not many.keys() <= one.keys():
        raise NotLogged(f"{SLIDING} has no register where {INCREASING} has its last")
    return {p: (many[p][:2], one[p][:2], Difference.of(one[p][2], many[p][2])) for p in many}


def falls_along(curve: str) -> Judge:
    """A judge: accuracy falls with the percentage of stale weights along a curve of figure 6."""

    def judged(context: Context) -> Finding:
        points = by_last_register(context, curve).values()
        ends = [fmean(accuracies.values()) for _, _, accuracies in points]
        return falls(context, [percent for percent, _, _ in points], ends, f"{curve}, accuracy", curve=curve)

    return judged


judge(PAPER, "figure_6", "increasing_falls")(falls_along(INCREASING))
judge(PAPER, "figure_6", "sliding_falls")(falls_along(SLIDING))


@judge(PAPER, "figure_6", "same_percentages")
def same_percentages(context: Context) -> Finding:
    """The share of stale weights at each last register, from both arms' logs."""
    by_layer = both_curves(context)
    words = ", ".join(f"layer {p}: {many[0]:.2f} and {one[0]:.2f}" for p, (many, one, _) in by_layer.items())
    holds = all(abs(many[0] - one[0]) < 0.005 for many, one, _ in by_layer.values())
    return exact(holds, f"stale weights in %, Increasing and Sliding: {words}", "two decimals of a percent")


@judge(PAPER, "figure_6", "increasing_is_staler")
def increasing_is_staler(context: Context) -> Finding:
    """The largest delay of a stage at each last register, from both arms' logs."""
    by_layer = both_curves(context)
    words = ", ".join(f"layer {p}: {many[1]} and {one[1]}" for p, (many, one, _) in by_layer.items())
    holds = all(many[1] > one[1] for many, one, _ in by_layer.values())
    return exact(holds, f"degree of staleness, Increasing and Sliding: {words}")


@judge(PAPER, "figure_6", "sliding_equals_increasing")
def sliding_equals(context: Context) -> Finding:
    """Small: within a point at every percentage."""
    gaps = {f"{one[0]:.1f} %": gap for _, one, gap in both_curves(context).values()}
    holds = all_of(gap.within(-1, 1) for gap in gaps.values())
    tolerance = f"a point, about a tenth of the 11.19 that the printed Increasing Stages fall; {SEEDS}"
    return sized(context, holds, f"Sliding minus Increasing in points: {listed(gaps)}", tolerance)


@judge(PAPER, "figure_6", "percent_drives_the_drop")
def percent_drives(context: Context) -> Finding:
    """What the percentage does alone, along Sliding, against what the degree does alone, between the curves."""
    many, one = by_last_register(context, INCREASING), by_last_register(context, SLIDING)
    shared = list(both_curves(context))
    seeds = set.intersection(*(set(curve[p][2]) for curve in (many, one) for p in shared))
    if not seeds:
        raise NotLogged("the two curves have no seed in common")
    fall = {s: one[shared[0]][2][s] - one[shared[-1]][2][s] for s in seeds}
    gap = {s: fmean(abs(one[p][2][s] - many[p][2][s]) for p in shared) for s in seeds}
    left = Difference.of({s: fall[s] / 4 for s in seeds}, gap)
    why = (
        f"fall along Sliding {fmean(fall.values()):.2f} points at one degree of staleness, mean gap to Increasing "
        f"{fmean(gap.values()):.2f} points at one percentage; a quarter of the fall minus the gap {left.text()}"
    )
    return sized(context, left.above(), why, f"the percentage does at least four times what the degree does; {SEEDS}")


# -- hybrid training ---------------------------------------------------------------------------------------------------

HYBRIDS = ("20k+10k hybrid", "20k+20k hybrid")


@judge(PAPER, "figure_7", "jumps_to_baseline")
def jumps(context: Context) -> Finding:
    """In the first quarter of its second phase a hybrid is above the pipelined run, and nearer to the baseline."""
    baseline, pipelined = (curves(context, arm) for arm in ("Baseline 30k", "Pipelined 30k"))
    gains: dict[str, Difference] = {}
    for arm in HYBRIDS:
        switch = context.select(arm=arm)[0].arm.spec.phases[0].steps
        ahead, before, after = {}, {}, {}
        for seed, curve in curves(context, arm).items():
            early, late = around(curve, switch)
            ahead[seed] = fmean(curve[s] - nearest(pipelined[seed], s) for s in late)
            before[seed], after[seed] = (
                abs(fmean(curve[s] - nearest(baseline[seed], s) for s in steps)) for steps in (early, late)
            )
        gains[f"{arm} above pipelined"] = Difference.of(ahead, dict.fromkeys(ahead, 0.0))
        gains[f"{arm} nearer to the baseline than before"] = Difference.of(before, after)
    why = f"points, means over the first quarter of the second phase: {listed(gains)}"
    return trend(context, all_of(gain.above() for gain in gains.values()), why, SEEDS)


def curves(context: Context, arm: str) -> dict[int, dict[int, float]]:
    """An arm's accuracy by seed and iteration; raises `NotLogged` where a seed is missing."""
    every_log(context, arm=arm)
    logs = {item.arm.seed: item.log for item in context.select(arm=arm)}
    return {seed: {row["step"]: row["accuracy"] for row in log.rows} for seed, log in logs.items() if log is not None}


def around(curve: Mapping[int, float], switch: int) -> tuple[list[int], list[int]]:
    """The evaluations in the first quarter after a switch (one at least), and as many before it."""
    later = [step for step in curve if step > switch]
    after = [step for step in later if step <= switch + (max(curve) - switch) / 4] or later[:1]
    before = [step for step in curve if step <= switch][-len(after) :]
    if not before or not after:
        raise NotLogged("a hybrid run has no evaluation on one side of its switch")
    return before, after


def nearest(curve: Mapping[int, float], step: int) -> float:
    """A curve's value at the evaluation nearest to a step."""
    return curve[min(curve, key=lambda at: abs(at - step))]


def hybrid_steps(context: Context, higher: str, lower: str) -> Finding:
    """One arm of table 4 above another."""
    gain = Difference.of(by_seed(context, arm=higher), by_seed(context, arm=lower))
    return trend(context, gain.above(), f"{higher} minus {lower}: {gain.text()} points", SEEDS)


@judge(PAPER, "table_4", "pipelined_below_short_hybrid")
def pipelined_below(context: Context) -> Finding:
    """The short hybrid above the pipelined run."""
    return hybrid_steps(context, HYBRIDS[0], "Pipelined 30k")


@judge(PAPER, "table_4", "short_hybrid_below_baseline")
def short_below(context: Context) -> Finding:
    """The baseline above the short hybrid."""
    return hybrid_steps(context, "Baseline 30k", HYBRIDS[0])


@judge(PAPER, "table_4", "long_hybrid_reaches_baseline")
def long_reaches(context: Context) -> Finding:
    """The long hybrid above the baseline. Where a run is shortened its rate has fallen before the extra steps."""
    gain = Difference.of(by_seed(context, arm=HYBRIDS[1]), by_seed(context, arm="Baseline 30k"))
    return sized(context, gain.above(), f"{HYBRIDS[1]} minus Baseline 30k: {gain.text()} points", SEEDS)


@judge(PAPER, "table_4", "short_hybrid_within_0_8")
def short_within(context: Context) -> Finding:
    """At most 0.8 below the baseline (0.79 by the table)."""
    gap = Difference.of(by_seed(context, arm="Baseline 30k"), by_seed(context, arm=HYBRIDS[0]))
    return sized(
        context, gap.below(0.8), f"baseline minus short hybrid: {gap.text()} points", f"none above 0.8; {SEEDS}"
    )


@judge(PAPER, "table_4", "long_hybrid_above_baseline")
def long_above(context: Context) -> Finding:
    """About +0.2 (0.22 by the table)."""
    gain = Difference.of(by_seed(context, arm=HYBRIDS[1]), by_seed(context, arm="Baseline 30k"))
    return sized(context, gain.matches(0.2, 0.05), f"long hybrid minus baseline: {gain.text()} points", near(0.05))
