"""Claims about speed and memory: tables 5 to 7 and the text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from pipelag.results.judging import SEEDS, Difference, all_of, by_seed, exact, measured, on_gpus, sized, trend
from pipelag.results.logs import Context
from pipelag.results.stale_weights.memory import savings
from pipelag.results.stale_weights.reading import (
    BASELINE,
    DEPTHS,
    PAPER,
    above,
    below,
    blocks,
    blocks_by_depth,
    by_k,
    cycles_each,
    early_share,
    listed,
    lost,
    mean_gain,
    memory_of,
    near,
    numbers,
    ranges,
)
from pipelag.results.verdict import Finding, Judge, NotLogged, judge, log_of, need

# -- table 5: time -----------------------------------------------------------------------------------------------------

EVERY_BLOCK = "none: every timed block counts; where some are on one side and some on the other it cannot be told"
COMPOSED = "hybrid speedups are put together from the times of their two halves"


@judge(PAPER, "table_5", "faster_at_every_depth")
def faster(context: Context) -> Finding:
    """Above 1 in every block."""
    by_depth = blocks_by_depth(context)
    holds = all_of(above(each, 1.0) for each in by_depth.values())
    return measured(context, holds, f"pipelined speedups: {ranges(by_depth)}", EVERY_BLOCK, kind="speed")


def grows(arm: str) -> Judge:
    """A judge: every block of a depth is faster than every block of the depth before."""

    def judged(context: Context) -> Finding:
        by_depth = blocks_by_depth(context, arm)
        steps = [
            True if min(deeper) > max(shallower) else False if max(deeper) <= min(shallower) else None
            for shallower, deeper in pairwise(by_depth.values())
        ]
        said = f"; {COMPOSED}" if arm == "hybrid" else ""
        tolerance = "none: a depth's slowest block against the fastest of the depth before; overlap cannot be told"
        return measured(context, all_of(steps), f"{arm} speedups: {ranges(by_depth)}{said}", tolerance, kind="speed")

    return judged


judge(PAPER, "table_5", "speedup_grows_with_depth")(grows("pipelined"))
judge(PAPER, "table_5", "hybrid_speedup_grows_with_depth")(grows("hybrid"))


def bounded(arm: str, bound: float) -> Judge:
    """A judge: no block is above a bound."""

    def judged(context: Context) -> Finding:
        by_depth = blocks_by_depth(context, arm)
        holds = all_of(below(each, bound) for each in by_depth.values())
        said = f"; {COMPOSED}" if arm == "hybrid" else ""
        why = f"{arm} speedups: {ranges(by_depth)}; bound {bound:.2f}{said}"
        return measured(context, holds, why, EVERY_BLOCK, kind="speed")

    return judged


judge(PAPER, "table_5", "speedup_below_2")(bounded("pipelined", 2.0))
judge(PAPER, "text_headline_speedup", "below_2")(bounded("pipelined", 2.0))
judge(PAPER, "table_5", "hybrid_speedup_below_4_3")(bounded("hybrid", 4 / 3))


@judge(PAPER, "table_5", "deepest_uses_90_percent")
def utilisation(context: Context) -> Finding:
    """Half the speedup of ResNet-362."""
    used = [50 * speedup for speedup in blocks(context, model="ResNet-362", kind="speed")]
    holds = all_of((above(used, 87.5), below(used, 92.5)))
    why = f"use of each worker in percent: {ranges({'ResNet-362': used})}"
    tolerance = "2.5 points: 91 % is called about 90, which rounds to fives; every timed block counts"
    return on_gpus(context, holds, why, tolerance, model="ResNet-362", kind="speed")


@judge(PAPER, "text_headline_speedup", "at_least_1_8")
def headline(context: Context) -> Finding:
    """The depth with the largest median."""
    by_depth = blocks_by_depth(context)
    best = max(by_depth, key=lambda model: median(by_depth[model]))
    why = f"largest speedup {ranges({best: by_depth[best]})}"
    tolerance = "none; of the depth with the largest median every timed block counts"
    return on_gpus(context, above(by_depth[best], 1.8 - 1e-9), why, tolerance, kind="speed")


# -- table 5: accuracy -------------------------------------------------------------------------------------------------


def gains(context: Context, arm: str) -> dict[str, Difference]:
    """Points by which an arm ends above the baseline, by depth."""
    by_depth = {}
    for model in DEPTHS:
        ends = [by_seed(context, model=model, kind="train", arm=each) for each in (arm, BASELINE)]
        by_depth[model] = Difference.of(*ends)
    return by_depth


@judge(PAPER, "table_5", "hybrid_within_0_3")
def hybrid_kept(context: Context) -> Finding:
    """Each at most 0.3 below the baseline (0.28 by the table)."""
    by_depth = gains(context, "hybrid")
    holds = all_of(gain.above(-0.3) for gain in by_depth.values())
    return sized(
        context, holds, f"hybrid minus baseline: {listed(by_depth)}", f"none below -0.3; {SEEDS}", kind="train"
    )


@judge(PAPER, "table_5", "hybrid_mean_not_below")
@judge(PAPER, "text_hybrid_average_gain", "positive_gain")
def hybrid_mean(context: Context) -> Finding:
    """The mean over depths above 0."""
    gain = mean_gain(context)
    return sized(context, gain.above(), f"mean over the five depths {gain.text()} points", SEEDS, kind="train")


@judge(PAPER, "text_hybrid_average_gain", "about_0_18")
def average_gain(context: Context) -> Finding:
    """0.176 by table 5, which the conclusion calls 0.19."""
    gain = mean_gain(context)
    why = f"mean over the five depths {gain.text()} points; printed 0.19, by the printed table 0.176"
    return sized(context, gain.matches(0.18, 0.01), why, near(0.01), kind="train")


@judge(PAPER, "table_5", "pipelined_within_3_points")
def within_3(context: Context) -> Finding:
    """At most 3 below (2.93 by the table)."""
    by_depth = {model: lost(context, "pipelined", model=model, kind="train") for model in DEPTHS}
    holds = all_of(loss.below(3) for loss in by_depth.values())
    return sized(
        context, holds, f"baseline minus pipelined: {listed(by_depth)}", f"none above 3; {SEEDS}", kind="train"
    )


@judge(PAPER, "table_5", "gap_widest_for_the_deepest")
def widest_gap(context: Context) -> Finding:
    """ResNet-362 loses more than every other depth."""
    losses = {}
    for model in DEPTHS:
        base, pipe = (by_seed(context, model=model, kind="train", arm=arm) for arm in (BASELINE, "pipelined"))
        losses[model] = {seed: base[seed] - pipe[seed] for seed in base if seed in pipe}
    more = {f"than {model}": Difference.of(losses[DEPTHS[-1]], losses[model]) for model in DEPTHS[:-1]}
    why = f"ResNet-362 loses {fmean(losses[DEPTHS[-1]].values()):.2f} points; more {listed(more)}"
    return trend(context, all_of(each.above() for each in more.values()), why, SEEDS, kind="train")


# -- table 6 -----------------------------------------------------------------------------------------------------------

COLUMNS = {  # of the count: the printed key, unit, decimals
    "weight_mb": ("MB", 2),
    "activations_mb_per_sample": ("MB per sample", 2),
    "increase_mb_per_sample": ("MB per sample", 2),
    "increase_percent": ("%", 0),
}


def memory(context: Context) -> dict[str, dict[str, float]]:
    """Counted memory of every depth."""
    counts = {model: memory_of(context, model) for model in DEPTHS}
    missing = [model for model, counted in counts.items() if counted is None]
    if missing:
        raise NotLogged(f"{', '.join(missing)}: no count is logged")
    return {model: counted for model, counted in counts.items() if counted is not None}


def as_printed(key: str, models: Sequence[str] = DEPTHS) -> Judge:
    """A judge: a column's counted values, rounded as the paper does, equal the printed ones."""
    unit, decimals = COLUMNS[key]
    half = 0.5 * 10**-decimals

    def judged(context: Context) -> Finding:
        counted = memory(context)
        printed = {line["model"]: float(line[key]) for line in context.result.reported}
        apart = {model: counted[model][key] - printed[model] for model in models}
        equal = [model for model in models if abs(apart[model]) <= half + 1e-9]
        words = ", ".join(
            f"{model} {counted[model][key]:.{max(2, decimals)}f} for {printed[model]:.{decimals}f}"
            + ("" if model in equal else f" ({100 * apart[model] / printed[model]:+.1f} %)")
            for model in models
        )
        off = [model for model in models if model not in equal]
        said = f"equal in print: {', '.join(equal) or 'none'}" + (f"; not: {', '.join(off)}" if off else "")
        why = f"{unit}, ours for the printed: {words}. {said}"
        if models == ("ResNet-20",) and off:
            why += f"; {off_the_line(context.result.reported)}"
        return exact(not off, why, f"half a unit of the last printed digit, {half:g} {unit}")

    return judged


def off_the_line(reported: Sequence[dict[str, Any]]) -> str:
    """What the printed increases of the deeper networks, which lie on a line over depth, say of the first."""
    depths = [int(line["model"].split("-")[1]) for line in reported]
    increases = [line["increase_mb_per_sample"] for line in reported]
    slope = (increases[-1] - increases[1]) / (depths[-1] - depths[1])
    on_line = increases[1] - slope * (depths[1] - depths[0])
    percent = 100 * on_line / reported[0]["activations_mb_per_sample"]
    return (
        f"the printed {increases[0]:.2f} MB is off the line of the other printed increases, which gives {on_line:.2f} "
        f"MB, {percent:.0f} %"
    )


judge(PAPER, "table_6", "weights_as_printed")(as_printed("weight_mb"))
judge(PAPER, "table_6", "activations_as_printed")(as_printed("activations_mb_per_sample"))
judge(PAPER, "table_6", "increases_as_printed")(as_printed("increase_mb_per_sample"))
judge(PAPER, "table_6", "deeper_percents_as_printed")(as_printed("increase_percent", DEPTHS[1:]))
judge(PAPER, "table_6", "resnet20_is_the_exception")(as_printed("increase_percent", DEPTHS[:1]))


@judge(PAPER, "table_6", "deeper_near_60_percent")
def near_60(context: Context) -> Finding:
    """The four deeper networks; the exception is a claim of its own."""
    ours = {model: counted["increase_percent"] for model, counted in memory(context).items()}
    words = ", ".join(f"{model} {percent:.1f}" for model, percent in ours.items())
    holds = all(abs(ours[model] - 60) <= 5 for model in DEPTHS[1:])
    return exact(holds, f"increase in %: {words}", "5 points: the printed 57 and 58 are called close to 60, to the ten")


@judge(PAPER, "table_6", "falls_with_depth")
def falls_with_depth(context: Context) -> Finding:
    """Each depth below the one before."""
    ours = [counted["increase_percent"] for counted in memory(context).values()]
    return exact(all(a > b for a, b in pairwise(ours)), f"increase in %, by depth: {numbers(ours)}")


@judge(PAPER, "table_6", "towards_4_7")
def towards(context: Context) -> Finding:
    """The deepest network's increase, and the share of activations in its first group, beside 4/7."""
    model = DEPTHS[-1]
    ours = memory(context)[model]["increase_percent"]
    log = log_of(context, model=model)
    cut = log.summary["cuts"][0]
    first = sum(row["activations"] for row in log.rows if row["layer"] <= cut)
    share = 100 * first / sum(row["activations"] for row in log.rows)
    holds = all(abs(value - 400 / 7) < 0.5 for value in (ours, share))
    why = f"{model}: increase {ours:.2f} %, activations up to layer {cut} {share:.2f} %, limit 57.14 %"
    return exact(holds, why, "half a unit of the last printed digit, 0.5 points")


@judge(PAPER, "table_6", "weights_are_small")
def weights_small(context: Context) -> Finding:
    """Weights against the activations of a minibatch of 128."""
    shares = [100 * each["weight_mb"] / (each["activations_mb_per_sample"] * 128) for each in memory(context).values()]
    why = f"weights are at most {max(shares):.2f} % of the activations"
    return exact(max(shares) < 10, why, "a tenth: much smaller is read as an order of magnitude")


# -- table 7 -----------------------------------------------------------------------------------------------------------


@judge(PAPER, "table_7", "deeper_needs_smaller_rate")
def smaller_rate(context: Context) -> Finding:
    """With the printed rate in the first partition above the same network with one rate in both."""
    by_depth: dict[str, Difference | None] = {}
    for model in DEPTHS[1:]:
        if any(log.diverged_at is not None for log in context.logs(model=model, arm="one rate")):
            by_seed(context, model=model, arm="pipelined")
            by_depth[model] = None  # it diverges: the smaller rate is needed
            continue
        by_depth[model] = Difference.of(
            by_seed(context, model=model, arm="pipelined"), by_seed(context, model=model, arm="one rate")
        )
    words = ", ".join(f"{model} {'diverges' if d is None else d.text()}" for model, d in by_depth.items())
    holds = all_of(True if d is None else d.above() for d in by_depth.values())
    why = f"points gained by the smaller rate over one rate in both partitions: {words}"
    return trend(context, holds, why, SEEDS, kind="train")


# -- hybrid speedup ----------------------------------------------------------------------------------------------------

SHARES = (0.25, 0.5, 0.75, 1.0)  # of the iterations that are pipelined


def hybrid_by_schedule(context: Context, k: int, share: float) -> float:
    """Speedup of hybrid training in cycles of the logged schedules, without fill and drain."""
    alone, together = cycles_each(by_k(context)[k])
    return alone / (share * together + (1 - share) * alone)


@judge(PAPER, "text_hybrid_speedup_bound", "formula")
def formula(context: Context) -> Finding:
    """The formula, for four shares of pipelined iterations, against cycles of the logged schedules."""
    worst, words = 0.0, []
    for k in by_k(context):
        ours = [hybrid_by_schedule(context, k, share) for share in SHARES]
        printed = [1 / (share / (2 * k + 1) + (1 - share)) for share in SHARES]
        worst = max(worst, *(abs(a - b) for a, b in zip(ours, printed, strict=True)))
        words.append(f"K = {k}: {numbers(ours)} (formula {numbers(printed)})")
    why = f"a quarter, half, three quarters and all iterations pipelined, by the schedules: {'; '.join(words)}"
    return exact(worst < 1e-9, why, "exact, fill and drain of the pipeline left out, as in the formula")


@judge(PAPER, "text_hybrid_speedup_bound", "large_k")
def large_k(context: Context) -> Finding:
    """Half the iterations pipelined: below 2, rising with K, and the gap to 2 goes as 1/K or faster."""
    speedups = {k: hybrid_by_schedule(context, k, 0.5) for k in by_k(context)}
    gaps = {k: (2 - speedup) * (k + 1) for k, speedup in speedups.items()}
    holds = all(a < b < 2 for a, b in pairwise(speedups.values())) and all(
        b <= a + 1e-9 for a, b in pairwise(gaps.values())
    )
    words = ", ".join(f"K = {k}: {speedup:.3f}" for k, speedup in speedups.items())
    why = f"speedup with half of the iterations pipelined: {words}; bound 2"
    return exact(holds, why, "exact: below the bound, and the gap times K + 1 does not grow")


@judge(PAPER, "text_hybrid_speedup_bound", "bound_4_3")
def bound_4_3(context: Context) -> Finding:
    """A hundred minibatches on two workers without and with pipelining, timed with equal stages."""
    alone, pipelined = (
        log_of(context, kind="two workers", arm=arm).summary["makespan"] for arm in (BASELINE, "pipelined")
    )
    speedup = 2 * alone / (alone + pipelined)
    why = f"time units for 100 minibatches: {alone:g} and {pipelined:g}; half and half {speedup:.3f}, bound {4 / 3:.3f}"
    return exact(abs(speedup - 1.33) <= 0.005, why, "half a unit of the last printed digit, 0.005")


# -- memory against PipeDream ------------------------------------------------------------------------------------------


@judge(PAPER, "text_memory_vs_pipedream", "less_than_pipedream")
def less_memory(context: Context) -> Finding:
    """Copies of weights by the schedules, and what each reading of PipeDream's memory then saves."""
    copies = {arm: log_of(context, arm=arm).summary["weight_copies"] for arm in ("stale weights", "PipeDream")}
    saved = savings(context)
    holds = sum(copies["stale weights"]) < sum(copies["PipeDream"]) and all(each > 0 for each in saved.values())
    words = "; ".join(f"{reading}, {dataset} {each:.2f} %" for (reading, dataset), each in saved.items())
    why = f"copies per stage: ours {copies['stale weights']}, PipeDream {copies['PipeDream']}; saved with {words}"
    return exact(holds, why)


@judge(PAPER, "text_memory_vs_pipedream", "shrinks_with_activations")
def shrinks(context: Context) -> Finding:
    """ImageNet's activations weigh more: every reading saves less there."""
    saved = savings(context)
    pairs = {reading: (saved[reading, "CIFAR-10"], saved[reading, "ImageNet"]) for reading, _ in saved}
    words = "; ".join(f"{reading}: {small:.2f} and {large:.2f} %" for reading, (small, large) in pairs.items())
    return exact(all(small > large for small, large in pairs.values()), f"saved on CIFAR-10 and ImageNet with {words}")


# -- GPipe -------------------------------------------------------------------------------------------------------------


@judge(PAPER, "text_vs_gpipe_speedup", "ahead_by_schedule")
def ahead_by_schedule(context: Context) -> Finding:
    """Two equal stages: the full pipeline's period against GPipe's minibatch, for every number of microbatches."""
    log = log_of(context, kind="two workers", arm="pipelined")
    ours = work(log.rows) / log.summary["period"]
    gpipe = {}
    for m in schedules(context):
        schedule = log_of(context, kind="schedule", microbatches=m, arm="2 partitions")
        gpipe[m] = schedule.summary["workers"] * schedule.summary["utilisation"]
    words = ", ".join(f"{speedup:.2f} with {m}" for m, speedup in gpipe.items())
    return exact(ours > max(gpipe.values()), f"without bubbles {ours:.2f}; GPipe by microbatches: {words}")


def work(rows: Sequence[dict[str, Any]]) -> float:
    """Time of one minibatch's passes, all on one worker."""
    mine = [row for row in rows if row["minibatch"] == 0 and row["kind"] in ("F", "B")]
    return float(sum(row["end"] - row["start"] for row in mine))


def schedules(context: Context) -> list[str]:
    """The numbers of microbatches of GPipe's schedules."""
    return list(dict.fromkeys(item.arm.labels["microbatches"] for item in context.select(kind="schedule")))


@judge(PAPER, "text_vs_gpipe_speedup", "ahead_of_gpipe")
def ahead_of_gpipe(context: Context) -> Finding:
    """ResNet-110 on two workers of this machine: every block against the best number of GPipe's microbatches."""
    ours = blocks(context, model="ResNet-110", kind="speed")
    each = list(dict.fromkeys(item.arm.labels["microbatches"] for item in context.select(kind="GPipe")))
    gpipe = {f"{m} microbatches": blocks(context, kind="GPipe", microbatches=m) for m in each}
    best = max(gpipe.values(), key=median)
    holds = True if min(ours) > max(best) else False if max(ours) <= min(best) else None
    why = f"{ranges({'ours': ours})}; GPipe with {ranges(gpipe)}"
    tolerance = "none: our slowest block against the fastest of GPipe's best; overlap cannot be told"
    return on_gpus(context, holds, why, tolerance, model="ResNet-110")


@judge(PAPER, "text_vs_gpipe_speedup", "ahead_of_reported_gpipe")
def ahead_of_reported(context: Context) -> Finding:
    """Another network on other hardware, as in the paper."""
    ours = blocks(context, model="ResNet-110", kind="speed")
    reported = float(context.result.reported["gpipe_resnet101_2tpu"])
    why = f"ours {ranges({'ResNet-110': ours})}, GPipe's reported {reported} (another network on other hardware)"
    return measured(context, above(ours, reported), why, EVERY_BLOCK, model="ResNet-110", kind="speed")


@judge(PAPER, "text_vs_gpipe_speedup", "bubble_doubles")
def bubble(context: Context) -> Finding:
    """Idle shares of GPipe's schedules over equal stages. The paper does not say with how many microbatches."""
    shares = {
        m: [
            need(log_of(context, kind="schedule", microbatches=m, arm=arm).summary["bubble"], "an idle share")
            for arm in ("2 partitions", "4 partitions")
        ]
        for m in schedules(context)
    }
    double = [1.5 <= four / two <= 2.5 for two, four in shares.values()]
    words = "; ".join(
        f"{m} microbatches {100 * two:.0f} and {100 * four:.0f} %, {four / two:.2f} times"
        for m, (two, four) in shares.items()
    )
    why = f"idle share of 2 and 4 partitions: {words}"
    why += "; how many microbatches is meant is not said" if len(set(double)) > 1 else ""
    holds = None if len(set(double)) > 1 else double[0]
    return exact(holds, why, "1.5 to 2.5 times, what rounds to two, for every number of microbatches")


@judge(PAPER, "text_early_layers_runtime", "over_half")
def over_half(context: Context) -> Finding:
    """The share from the layer profile."""
    share = need(early_share(context), "ResNet-20's profile")
    why = f"layers 1 to 7 take {share:.1f} % of forward and backward time"
    return on_gpus(context, share > 50, why, "none: one profile, medians over its rounds")
