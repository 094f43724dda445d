"""Claims about speed: table 5's times, the bound on hybrid speedups, GPipe, the early layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from pipelag.results.context import Context
from pipelag.results.judging import all_above, all_of, exact, measured, on_gpus
from pipelag.results.plans import SPEED_WORDS, near
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
    numbers,
    ranges,
    speed_when_full,
)
from pipelag.results.verdict import Finding, Judge, judge, log_of, need

# -- table 5: time -----------------------------------------------------------------------------------------------------

EVERY_BLOCK = "none: every timed block counts; where they lie on both sides, the claim cannot be judged"
COMPOSED = "hybrid speedups are put together from the times of their two halves"


@judge(PAPER, "table_5", "faster_at_every_depth")
def faster(context: Context) -> Finding:
    """Holds if every timed block of every depth has a pipelined speedup above 1."""
    by_depth = blocks_by_depth(context)
    holds = all_of(above(each, 1.0) for each in by_depth.values())
    return measured(context, holds, f"pipelined speedups: {ranges(by_depth)}", EVERY_BLOCK, kind="speed")


def grows(arm: str) -> Judge:
    """A judge that decides whether the speedup grows from each depth to the next.

    Every timed block of a depth must have a larger speedup than every block of the depth before; overlap leaves the
    claim open. Only neighbouring depths are compared, since the first and the last may be timed with minibatches of
    different sizes.
    """

    def judged(context: Context) -> Finding:
        by_depth = blocks_by_depth(context, arm)
        steps = [all_above(deeper, shallower) for shallower, deeper in pairwise(by_depth.values())]
        composed = f"; {COMPOSED}" if arm == "hybrid" else ""
        tolerance = "none: a depth's slowest block against the fastest of the depth before; overlap cannot be judged"
        return measured(
            context, all_of(steps), f"{arm} speedups: {ranges(by_depth)}{composed}", tolerance, kind="speed"
        )

    return judged


judge(PAPER, "table_5", "speedup_grows_with_depth")(grows("pipelined"))
judge(PAPER, "table_5", "hybrid_speedup_grows_with_depth")(grows("hybrid"))


def as_printed(arm: str) -> Judge:
    """A judge that decides whether the median speedup of every depth is the printed one, within a factor of 1.2."""

    def judged(context: Context) -> Finding:
        printed = {line["model"]: line[f"speedup_{arm}"] for line in context.result.reported}
        by_depth = blocks_by_depth(context, arm)
        holds = all(near(median(each), printed[model]) for model, each in by_depth.items())
        words = ", ".join(
            f"{model} {median(each):.2f} (printed {printed[model]:.2f})" for model, each in by_depth.items()
        )
        composed = f"; {COMPOSED}" if arm == "hybrid" else ""
        why = f"{arm} speedups: {words}{composed}"
        return on_gpus(context, holds, why, f"medians of blocks, {SPEED_WORDS}", kind="speed")

    return judged


judge(PAPER, "table_5", "speedups_as_printed")(as_printed("pipelined"))
judge(PAPER, "table_5", "hybrid_speedups_as_printed")(as_printed("hybrid"))


@judge(PAPER, "table_5", "ratio_grows_with_depth")
def ratio_grows(context: Context) -> Finding:
    """Holds if the ratio of computation to communication grows with depth.

    The ratio is one worker's seconds per minibatch over the bytes that two workers send each other for it, both as
    medians over blocks.
    """
    ratios = {}
    for model in DEPTHS:
        rows = [row for log in context.logs(model=model, kind="speed") for row in log.rows]
        seconds = [row["seconds"] / row["steps"] for row in rows if row["arm"] == BASELINE]
        ratios[model] = middle(seconds, model) / sent(context, model=model, kind="speed") * 1e9
    words = ", ".join(f"{model} {ratio:.0f}" for model, ratio in ratios.items())
    why = f"seconds of computing per gigabyte between two workers: {words}"
    return measured(
        context, all(a < b for a, b in pairwise(ratios.values())), why, "none: medians of blocks", kind="speed"
    )


def sent(context: Context, **labels: str) -> float:
    """The bytes that the workers of a pipeline send each other per minibatch; the median over blocks."""
    rows = [row for log in context.logs(**labels) for row in log.rows if "sent_bytes_per_step" in row]
    return middle([float(sum(row["sent_bytes_per_step"])) for row in rows], ", ".join(labels.values()))


def middle(values: Sequence[float], what: str) -> float:
    """The median over blocks. Raises `NotLogged` if there are none."""
    return median(values) if values else need(None, f"a block of {what}")


def bounded(arm: str, bound: float) -> Judge:
    """A judge that decides whether every timed block's speedup is at most a bound."""

    def judged(context: Context) -> Finding:
        by_depth = blocks_by_depth(context, arm)
        holds = all_of(below(each, bound) for each in by_depth.values())
        composed = f"; {COMPOSED}" if arm == "hybrid" else ""
        why = f"{arm} speedups: {ranges(by_depth)}; bound {bound:.2f}{composed}"
        return measured(context, holds, why, EVERY_BLOCK, kind="speed")

    return judged


judge(PAPER, "table_5", "speedup_below_2")(bounded("pipelined", 2.0))
judge(PAPER, "text_headline_speedup", "below_2")(bounded("pipelined", 2.0))
judge(PAPER, "table_5", "hybrid_speedup_below_4_3")(bounded("hybrid", 4 / 3))


@judge(PAPER, "table_5", "deepest_uses_90_percent")
def utilisation(context: Context) -> Finding:
    """Holds if half of ResNet-362's speedup, the two workers' utilisation, is 87.5 to 92.5 % in every block.

    The paper prints 91 % and calls it about 90, so it rounds to fives.
    """
    used = [50 * speedup for speedup in blocks(context, model="ResNet-362", kind="speed")]
    holds = all_of((above(used, 87.5), below(used, 92.5)))
    why = f"speedup over the two workers, in percent: {ranges({'ResNet-362': used})}"
    tolerance = "2.5 points: 91 % is called about 90, which rounds to fives; every timed block counts"
    return on_gpus(context, holds, why, tolerance, model="ResNet-362", kind="speed")


@judge(PAPER, "text_headline_speedup", "at_least_1_8")
def headline(context: Context) -> Finding:
    """Holds if every block is at least 1.8 times as fast, at the depth with the largest median speedup."""
    by_depth = blocks_by_depth(context)
    best = max(by_depth, key=lambda model: median(by_depth[model]))
    why = f"largest speedup {ranges({best: by_depth[best]})}"
    tolerance = "none; of the depth with the largest median every timed block counts"
    return on_gpus(context, above(by_depth[best], 1.8 - 1e-9), why, tolerance, kind="speed")


# -- hybrid speedup ----------------------------------------------------------------------------------------------------

SHARES = (0.25, 0.5, 0.75, 1.0)  # shares of the iterations that are pipelined


def hybrid_by_schedule(context: Context, k: int, share: float) -> float:
    """The speedup of hybrid training with a share of pipelined iterations, in cycles of the logged schedules.

    Without fill and drain.
    """
    alone, together = cycles_each(by_k(context)[k])
    return alone / (share * together + (1 - share) * alone)


@judge(PAPER, "text_hybrid_speedup_bound", "formula")
def formula(context: Context) -> Finding:
    """Holds if the formula gives the speedups of the logged schedules, for four shares of pipelined iterations."""
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
    """Holds if the speedup with half the iterations pipelined approaches 2 from below as K grows.

    It must rise with K and stay below 2, and its gap to 2 must shrink at least as fast as 1/(K + 1).
    """
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
    """Holds if a simulated hybrid with two equal stages has a speedup of 1.33, within half a unit of the last digit.

    Half of its minibatches, a hundred, run without pipelining and a hundred with it.
    """
    alone, pipelined = (
        log_of(context, kind="two workers", arm=arm).summary["makespan"] for arm in (BASELINE, "pipelined")
    )
    speedup = 2 * alone / (alone + pipelined)
    why = f"time units for 100 minibatches: {alone:g} and {pipelined:g}; half and half {speedup:.3f}, bound {4 / 3:.3f}"
    return exact(abs(speedup - 1.33) <= 0.005, why, "half a unit of the last printed digit, 0.005")


# -- GPipe -------------------------------------------------------------------------------------------------------------


@judge(PAPER, "text_vs_gpipe_speedup", "ahead_by_schedule")
def ahead_by_schedule(context: Context) -> Finding:
    """Holds if the full pipeline on two equal stages is faster than GPipe's for any number of microbatches."""
    log = log_of(context, kind="two workers", arm="pipelined")
    ours = speed_when_full(log)
    gpipe = {}
    for m in context.values("microbatches", kind="schedule"):
        schedule = log_of(context, kind="schedule", microbatches=m, arm="2 partitions")
        gpipe[m] = schedule.summary["workers"] * schedule.summary["utilisation"]
    words = ", ".join(f"{speedup:.2f} with {m}" for m, speedup in gpipe.items())
    return exact(ours > max(gpipe.values()), f"without bubbles {ours:.2f}; GPipe by microbatches: {words}")


@judge(PAPER, "text_vs_gpipe_speedup", "ahead_of_gpipe")
def ahead_of_gpipe(context: Context) -> Finding:
    """Holds if every block of our ResNet-110 has a larger speedup than every one of GPipe's, with its best number of
    microbatches. Both run on two workers of this machine.
    """
    ours = blocks(context, model="ResNet-110", kind="speed")
    gpipe = {
        f"{m} microbatches": blocks(context, kind="GPipe", microbatches=m)
        for m in context.values("microbatches", kind="GPipe")
    }
    holds = all_above(ours, max(gpipe.values(), key=median))
    why = f"{ranges({'ours': ours})}; GPipe with {ranges(gpipe)}"
    tolerance = (
        "none: our slowest block against the fastest of GPipe's best; where they overlap, the claim cannot be judged"
    )
    return on_gpus(context, holds, why, tolerance, model="ResNet-110")


@judge(PAPER, "text_vs_gpipe_speedup", "ahead_of_reported_gpipe")
def ahead_of_reported(context: Context) -> Finding:
    """Holds if every block of our ResNet-110 is above GPipe's reported speedup.

    As in the paper, that speedup is of another network on other hardware.
    """
    ours = blocks(context, model="ResNet-110", kind="speed")
    reported = float(context.result.reported["gpipe_resnet101_2tpu"])
    why = f"ours {ranges({'ResNet-110': ours})}, GPipe's reported {reported} (another network on other hardware)"
    return on_gpus(context, above(ours, reported), why, EVERY_BLOCK, model="ResNet-110", kind="speed")


@judge(PAPER, "text_vs_gpipe_speedup", "bubble_doubles")
def bubble(context: Context) -> Finding:
    """Holds if GPipe's idle share about doubles (1.5 to 2.5 times) from 2 to 4 equal partitions.

    The paper does not name a number of microbatches, so all have to agree; otherwise the claim cannot be judged.
    """
    shares = {
        m: [
            need(log_of(context, kind="schedule", microbatches=m, arm=arm).summary["bubble"], "an idle share")
            for arm in ("2 partitions", "4 partitions")
        ]
        for m in context.values("microbatches", kind="schedule")
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
    """Holds if layers 2 to 7 take more than half of the time in ResNet-20's layer profile."""
    share = need(early_share(context), "ResNet-20's profile")
    why = f"layers 2 to 7 take {share:.1f} % of forward and backward time"
    return on_gpus(context, share > 50, why, "none: one profile, medians over its rounds")


EARLY = (3, 5, 7)  # the cuts of figure 6 and table 3
BALANCED = 1.5  # the greatest ratio of the largest stage's time to the mean


@judge(PAPER, "text_early_layers_runtime", "balanced")
def balanced(context: Context) -> Finding:
    """Holds if no stage of PPV (3,5,7) takes more than 1.5 times the mean stage's time, by the layer profile."""
    times = [row["forward_ms"] + row["backward_ms"] for row in log_of(context).rows]
    edges = (0, *EARLY, len(times))
    shares = [100 * sum(times[a:b]) / sum(times) for a, b in pairwise(edges)]
    words = ", ".join(f"{share:.0f}" for share in shares)
    why = f"shares of the time in %, by stage: {words}; the largest over the mean {max(shares) * len(shares) / 100:.2f}"
    return on_gpus(
        context, max(shares) * len(shares) <= 100 * BALANCED, why, "the largest at most one and a half times the mean"
    )
