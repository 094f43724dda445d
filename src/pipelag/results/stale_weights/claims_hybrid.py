"""Claims about hybrid training: figure 7 and table 4."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import fmean

from pipelag.results.context import Context
from pipelag.results.judging import SEEDS, Difference, ahead, all_of, by_seed, sized, trend, whole_runs
from pipelag.results.stale_weights.claims_accuracy import halfway
from pipelag.results.stale_weights.claims_convergence import alike
from pipelag.results.stale_weights.reading import PAPER, as_run, listed, near
from pipelag.results.verdict import Finding, NotLogged, judge

HYBRIDS = SHORT, LONG = "20k+10k hybrid", "20k+20k hybrid"
WHOLE, PIPELINED = "Baseline 30k", "Pipelined 30k"


@judge(PAPER, "figure_7", "converges_alike")
def hybrid_alike(context: Context) -> Finding:
    """Holds if both hybrids converge as fast as the baseline and as the pipelined run (`alike`)."""
    return alike(context, HYBRIDS, [WHOLE, PIPELINED], WHOLE)


@judge(PAPER, "figure_7", "jumps_to_baseline_here")
def jumps(context: Context) -> Finding:
    """Holds if each hybrid jumps towards the baseline right after its change of phase.

    In the first quarter of its second phase it must be above the pipelined run, and nearer to the baseline than it was
    just before; both averaged over evaluations and paired over seeds.
    """
    baseline, pipelined = (curves(context, arm) for arm in (WHOLE, PIPELINED))
    gains: dict[str, Difference] = {}
    for arm in HYBRIDS:
        switch = context.select(arm=arm)[0].arm.spec.phases[0].steps
        lead, before, after = {}, {}, {}
        hybrid = curves(context, arm)
        seeds = hybrid.keys() & pipelined.keys() & baseline.keys()
        if not seeds:
            raise NotLogged(f"no seed of {arm} has both of its rivals")
        for seed in sorted(seeds):
            curve = hybrid[seed]
            early, late = around(curve, switch)
            lead[seed] = fmean(curve[s] - nearest(pipelined[seed], s) for s in late)
            before[seed], after[seed] = (
                abs(fmean(curve[s] - nearest(baseline[seed], s) for s in steps)) for steps in (early, late)
            )
        name = as_run(context, arm)
        gains[f"{name} above pipelined"] = Difference.from_zero(lead)
        gains[f"{name} nearer to the baseline than before"] = Difference.of(before, after)
    why = f"points, means over the first quarter of the second phase: {listed(gains)}"
    return trend(context, all_of(gain.above() for gain in gains.values()), why, SEEDS)


def curves(context: Context, arm: str) -> dict[int, dict[int, float]]:
    """An arm's accuracy by seed and iteration; raises `NotLogged` if a seed is missing or diverged."""
    logs = whole_runs(context, arm, arm=arm)
    return {seed: {row["step"]: row["accuracy"] for row in log.rows} for seed, log in logs.items()}


def around(curve: Mapping[int, float], switch: int) -> tuple[list[int], list[int]]:
    """The steps of the evaluations just before and after a change of phase.

    After: those in the first quarter of the second phase, at least one. Before: as many.
    """
    later = [step for step in curve if step > switch]
    after = [step for step in later if step <= switch + (max(curve) - switch) / 4] or later[:1]
    before = [step for step in curve if step <= switch][-len(after) :]
    if not before or not after:
        raise NotLogged("a hybrid run has no evaluation on one side of its switch")
    return before, after


def nearest(curve: Mapping[int, float], step: int) -> float:
    """A curve's value at the evaluation nearest to a step."""
    return curve[min(curve, key=lambda at: abs(at - step))]


def ends_above(context: Context, higher: str, lower: str) -> Finding:
    """Whether one arm ends above another, paired over seeds."""
    gain = ahead(context, higher, lower)
    words = f"{as_run(context, higher)} minus {as_run(context, lower)}: {gain.text()} points"
    return trend(context, gain.above(), words, SEEDS)


judge(PAPER, "table_4", "pipelined_below_short_hybrid")(partial(ends_above, higher=SHORT, lower=PIPELINED))
judge(PAPER, "table_4", "short_hybrid_below_baseline")(partial(ends_above, higher=WHOLE, lower=SHORT))


@judge(PAPER, "table_4", "long_hybrid_reaches_baseline")
def long_reaches(context: Context) -> Finding:
    """Holds if the long hybrid ends above the baseline; judged only from runs of the paper's length.

    In shortened runs the learning rate has already fallen before the long hybrid's extra steps.
    """
    gain = ahead(context, LONG, WHOLE)
    words = f"{as_run(context, LONG)} minus {as_run(context, WHOLE)}: {gain.text()} points"
    return sized(context, gain.above(), words, SEEDS)


@judge(PAPER, "table_4", "short_hybrid_within_0_8")
def short_within(context: Context) -> Finding:
    """Holds if the short hybrid is at most 0.8 points below the baseline (the printed table has 0.79)."""
    gap = ahead(context, WHOLE, SHORT)
    return sized(
        context, gap.below(0.8), f"baseline minus short hybrid: {gap.text()} points", f"none above 0.8; {SEEDS}"
    )


@judge(PAPER, "table_4", "long_hybrid_above_baseline")
def long_above(context: Context) -> Finding:
    """Holds if a further pair of runs could give the printed gain of about 0.2 points (the printed table has 0.22)."""
    gain = ahead(context, LONG, WHOLE)
    return sized(context, gain.matches(0.2, 0.05), f"long hybrid minus baseline: {gain.text()} points", near(0.05))


AT_ITS_RATE, AT_BOTH = "hybrid at the pipelined rate", "pipelined at both rates"

for _claim, _higher, _lower in (
    ("rate_alone_gains_here", AT_BOTH, PIPELINED),
    ("no_pipeline_gains_here", AT_ITS_RATE, PIPELINED),
    ("hybrid_over_rate_here", SHORT, AT_BOTH),
):
    judge(PAPER, "hybrid_control", _claim)(partial(ends_above, higher=_higher, lower=_lower))


@judge(PAPER, "hybrid_control", "mostly_the_rate_here")
def mostly_the_rate(context: Context) -> Finding:
    """Holds if the learning rate alone explains more than half of the hybrid's gain over pipelined training.

    Paired over seeds, the pipeline with both rates must end above the middle between pipelined and hybrid, and the
    hybrid above pipelined.
    """
    pipelined, rate, hybrid = (by_seed(context, arm=arm) for arm in (PIPELINED, AT_BOTH, SHORT))
    gain = Difference.of(hybrid, pipelined)
    half = Difference.of(rate, halfway(pipelined, hybrid))
    why = f"gained by the rate alone {Difference.of(rate, pipelined).text()} points, by the hybrid {gain.text()}; "
    holds = all_of((half.above(), gain.above()))
    return trend(context, holds, f"{why}the first minus half of the second {half.text()}", f"more than half; {SEEDS}")
