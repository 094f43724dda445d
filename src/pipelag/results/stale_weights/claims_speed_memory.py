"""Claims about speed and memory: tables 5 to 7 and the text."""

from __future__ import annotations

from itertools import pairwise

from pipelag.results.logs import Context
from pipelag.results.stale_weights.judging import (
    BASELINE,
    PAPER,
    absolute,
    accuracy,
    text,
    trend,
)
from pipelag.results.stale_weights.speed_and_memory import (
    early_share,
    end_to_end,
    ideal,
    memory_of,
    saving_of,
    speed_of,
)
from pipelag.results.verdict import Finding, NotLogged, judge, need
from pipelag.runs.speedup import speedups

MODELS = ("ResNet-20", "ResNet-56", "ResNet-110", "ResNet-224", "ResNet-362")


def all_speedups(context: Context, arm: str) -> list[float]:
    """Median speedup per depth."""
    return [need(speed_of(context, model, arm), f"the {arm} speedup of {model}") for model in MODELS]


def grows_with_depth(context: Context, arm: str, bound: float) -> Finding:
    """Above 1 and below the bound everywhere; grows: every block of the deepest above every block of the shallowest.

    Where the blocks' ranges overlap, the difference of two medians is noise and growth cannot be judged.
    """
    values = all_speedups(context, arm)
    shallow, deep = (
        [s for log in context.logs(model=model, kind="speed") for s in speedups(log.rows, arm)]
        for model in (MODELS[0], MODELS[-1])
    )
    why = (
        f"{arm} speedups by depth: {text(*values)}, bound {bound:.2f}; blocks of {MODELS[0]} {min(shallow):.2f} to "
        f"{max(shallow):.2f}, of {MODELS[-1]} {min(deep):.2f} to {max(deep):.2f}"
    )
    if not all(1 < value < bound for value in values) or max(deep) < min(shallow):
        return trend(context, False, why, kind="speed")
    if min(deep) > max(shallow):
        return trend(context, True, why, kind="speed")
    return None, trend(context, True, f"{why}: they overlap, so no growth can be told", kind="speed")[1]


@judge(PAPER, "table_5", "speedup_grows_with_depth")
def speedup_grows(context: Context) -> Finding:
    """Between 1 and 2, and growing."""
    return grows_with_depth(context, "pipelined", 2.0)


@judge(PAPER, "table_5", "hybrid_speedup_towards_4_3")
def hybrid_speedup(context: Context) -> Finding:
    """Between 1 and 4/3, and growing."""
    return grows_with_depth(context, "hybrid", 4 / 3)


@judge(PAPER, "table_5", "deepest_uses_90_percent")
def utilisation(context: Context) -> Finding:
    """Half the speedup of ResNet-362; about 90 %: at least 85."""
    value = need(speed_of(context, "ResNet-362", "pipelined"), "ResNet-362's speedup")
    why = f"speedup {value:.2f}: {100 * value / 2:.0f} % of each worker (about 90: at least 85)"
    return trend(context, 100 * value / 2 >= 85, why, model="ResNet-362", kind="speed")


def table_5_accuracies(context: Context) -> list[tuple[str, float, float, float]]:
    """(model, non-pipelined, pipelined, hybrid) of every depth."""
    found = []
    for model in MODELS:
        base, pipe, hybrid = (
            accuracy(context, arm, model=model, kind="train") for arm in (BASELINE, "pipelined", "hybrid")
        )
        found.append((model, base, pipe, hybrid))
    return found


@judge(PAPER, "table_5", "hybrid_accuracy_kept")
def hybrid_kept(context: Context) -> Finding:
    """Each at most 0.3 below the baseline, the mean not below."""
    gains = [hybrid - base for _, base, _, hybrid in table_5_accuracies(context)]
    holds = min(gains) >= -0.3 and sum(gains) >= 0
    return absolute(context, holds, f"hybrid minus baseline by depth: {text(*gains)}", kind="train")


@judge(PAPER, "table_5", "pipelined_within_3_points")
def within_3(context: Context) -> Finding:
    """At most 3 points below, the most for the deepest."""
    losses = [base - pipe for _, base, pipe, _ in table_5_accuracies(context)]
    holds = max(losses) <= 3 and losses[-1] == max(losses)
    return absolute(context, holds, f"baseline minus pipelined by depth: {text(*losses)}", kind="train")


@judge(PAPER, "text_hybrid_average_gain", "positive_gain")
def average_gain(context: Context) -> Finding:
    """Mean gain about 0.18: between 0 and 0.5."""
    gains = [hybrid - base for _, base, _, hybrid in table_5_accuracies(context)]
    mean = sum(gains) / len(gains)
    return absolute(context, 0 < mean <= 0.5, f"mean gain {mean:+.2f} (about 0.18: above 0, at most 0.5)")


def memory(context: Context) -> list[dict[str, float]]:
    """Counted memory of every depth."""
    found = [memory_of(context, model) for model in MODELS]
    if any(each is None for each in found):
        raise NotLogged("a depth has no count log")
    return [each for each in found if each is not None]


@judge(PAPER, "table_6", "near_60_percent")
def near_60(context: Context) -> Finding:
    """Ours rounded equal the printed percentages, ResNet-20's included."""
    ours = [round(each["increase_percent"]) for each in memory(context)]
    printed = [line["increase_percent"] for line in context.result.reported]
    words = f"increase in percent: ours {ours}, printed {printed}"
    if ours != printed:
        # The printed increases of the deeper networks lie on a line over depth; does the first one lie on it too?
        depths = [int(line["model"].split("-")[1]) for line in context.result.reported]
        increases = [line["increase_mb_per_sample"] for line in context.result.reported]
        slope = (increases[-1] - increases[1]) / (depths[-1] - depths[1])
        on_line = increases[1] - slope * (depths[1] - depths[0])
        percent = 100 * on_line / context.result.reported[0]["activations_mb_per_sample"]
        words += f" (the printed {increases[0]} MB of {context.result.reported[0]['model']} is off the line of the "
        words += f"printed others, which gives {on_line:.2f} MB, {percent:.0f} %)"
    return ours == printed, words


@judge(PAPER, "table_6", "falls_towards_4_7")
def falls_towards(context: Context) -> Finding:
    """Falling with depth, and within half a point of 57.1 at the deepest."""
    ours = [each["increase_percent"] for each in memory(context)]
    holds = all(a > b for a, b in pairwise(ours)) and abs(ours[-1] - 400 / 7) < 0.5
    return holds, f"{text(*ours)} %, limit 57.14"


@judge(PAPER, "table_6", "weights_are_small")
def weights_small(context: Context) -> Finding:
    """Weights under a tenth of the activations at a minibatch of 128."""
    shares = [100 * each["weight_mb"] / (each["activations_mb_per_sample"] * 128) for each in memory(context)]
    return max(shares) < 10, f"weights are at most {max(shares):.2f} % of the activations (small: below 10)"


@judge(PAPER, "table_7", "deeper_needs_smaller_rate")
def smaller_rate(context: Context) -> Finding:
    """Never judged: the runs take the printed rates, as multiples of the other partition's, and no others."""
    used, printed = [], [round(line["bks2_lr"] / line["baseline_lr"], 6) for line in context.result.reported]
    for line in context.result.reported:
        spec = context.select(model=line["model"])[0].arm.spec
        assert spec.optimizer is not None
        used.append(round(spec.phases[0].stage_lr.get(1, spec.optimizer.lr) / spec.optimizer.lr, 6))
    given = "as printed" if used == printed else f"where {printed} are printed"
    return None, (
        f"BKS2's rate over the other partition's is {used} here, {given}: given to the runs, not found by them; that "
        "deeper networks need it would take runs at other rates"
    )


@judge(PAPER, "text_headline_speedup", "at_least_1_8_below_2")
def headline(context: Context) -> Finding:
    """The largest speedup."""
    best = max(all_speedups(context, "pipelined"))
    return trend(context, 1.8 <= best < 2, f"largest speedup {best:.2f}")


@judge(PAPER, "text_hybrid_speedup_bound", "formula")
def formula(context: Context) -> Finding:
    """The formula, with the measured pipelined speedup for 2K + 1, beside hybrid blocks timed from end to end.

    The logged hybrid times are put together from the two halves' times per minibatch, as the formula does: they agree
    by construction. The blocks timed whole are too short to judge by, hand-over, fill and drain being much of them.
    """
    predicted = [1 / (0.5 / pipe + 0.5) for pipe in all_speedups(context, "pipelined")]
    whole = [need(end_to_end(context, model), f"the whole hybrid blocks of {model}") for model in MODELS]
    pairs = "; ".join(f"{model} {a:.2f}, {b:.2f}" for model, a, b in zip(MODELS, predicted, whole, strict=True))
    return None, (
        f"formula, and short blocks from end to end (hand-over, fill and drain included): {pairs}; the table's hybrid "
        "speedups are put together from the two halves as the formula is, so they cannot test it"
    )


@judge(PAPER, "text_hybrid_speedup_bound", "bound_4_3")
def bound(context: Context) -> Finding:
    """No measured hybrid speedup above t / (t/2 + t/4)."""
    values = all_speedups(context, "hybrid")
    why = f"largest hybrid speedup {max(values):.3f} (from its two halves' times), bound {4 / 3:.3f}"
    return trend(context, max(values) <= 4 / 3, why)


def savings(context: Context) -> dict[str, float]:
    """Saving in percent per data set."""
    found = {}
    for line in context.result.reported:
        counted = saving_of(context, line["dataset"])
        found[line["dataset"]] = need(
            counted["saving_percent"] if counted else None, f"VGG-16's count for {line['dataset']}"
        )
    return found


@judge(PAPER, "text_memory_vs_pipedream", "savings")
def saving(context: Context) -> Finding:
    """Never judged: the paper's memory model is not stated, and ours was chosen for coming near the printed values."""
    printed = [float(line["saving_percent"]) for line in context.result.reported]
    return None, (
        f"savings {text(*savings(context).values())} %, printed {text(*printed)}; the paper does not state its memory "
        "model, and ours was chosen among several readings because it comes near these numbers: agreeing is no evidence"
    )


@judge(PAPER, "text_memory_vs_pipedream", "shrinks_with_activations")
def shrinks(context: Context) -> Finding:
    """Less saving where activations dominate."""
    found = savings(context)
    return found["CIFAR-10"] > found[
        "ImageNet"
    ], f"CIFAR-10 {found['CIFAR-10']:.1f} %, ImageNet {found['ImageNet']:.1f} %"


@judge(PAPER, "text_vs_gpipe_speedup", "ahead_of_gpipe")
def ahead(context: Context) -> Finding:
    """Our ResNet-110 speedup above GPipe's reported 1.3."""
    value = need(speed_of(context, "ResNet-110", "pipelined"), "ResNet-110's speedup")
    gpipe = float(context.result.reported["gpipe_resnet101_2tpu"])
    why = f"ResNet-110 {value:.2f}, GPipe's reported {gpipe:.2f} (another network on other hardware, as in the paper)"
    return trend(context, value > gpipe, why)


@judge(PAPER, "text_vs_gpipe_speedup", "bubble_doubles")
def bubble(context: Context) -> Finding:
    """From GPipe's schedule over equal stages, for several numbers of microbatches; about double: 1.5 to 2.5 times."""
    words, ratios = [], []
    for m in context.values("microbatches"):
        shares = []
        for arm in ("2 partitions", "4 partitions"):
            log = context.log(microbatches=m, arm=arm)
            shares.append(need(log.summary["bubble"] if log else None, f"GPipe on {arm}"))
        ratios.append(shares[1] / shares[0])
        words.append(f"{m} microbatches: {100 * shares[0]:.0f} % and {100 * shares[1]:.0f} %")
    return all(1.5 <= ratio <= 2.5 for ratio in ratios), "idle share, 2 and 4 partitions: " + "; ".join(words)


@judge(PAPER, "text_early_layers_runtime", "over_half")
def over_half(context: Context) -> Finding:
    """The share from the layer profile."""
    share = need(early_share(context), "ResNet-20's profile")
    return trend(context, share > 50, f"layers 1-7 take {share:.1f} % of forward and backward time")


@judge(PAPER, "text_potential_speedup", "one_minibatch_per_cycle")
def per_cycle(context: Context) -> Finding:
    """Cycles of M minibatches are M plus a constant, and the speedup comes near 2K + 1."""
    cycles, near = [], []
    for item in context.items:
        if item.log is None:
            raise NotLogged("a schedule has no log")
        k = int(item.arm.labels["K"])
        cycles.append(item.log.summary["cycles"] - item.log.summary["minibatches"] == 2 * k)
        near.append((ideal(item.log) or 0.0) / (2 * k + 1))
    return all(cycles) and min(
        near
    ) > 0.8, f"M + 2K cycles at every K; share of 2K+1 reached with 100 minibatches: {text(*near)}"
