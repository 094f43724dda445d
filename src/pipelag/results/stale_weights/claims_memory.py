"""Claims about memory: table 6, and how much less it is than PipeDream's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pipelag.results.context import Context
from pipelag.results.judging import agreed, exact, listing
from pipelag.results.stale_weights.memory import SCHEDULED, savings
from pipelag.results.stale_weights.reading import DEPTHS, PAPER, memory_of, numbers
from pipelag.results.verdict import Finding, Judge, NotLogged, judge, log_of

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
            f"{model} {counted[model][key]:.{max(2, decimals)}f} (printed {printed[model]:.{decimals}f}"
            + (")" if model in equal else f", {100 * apart[model] / printed[model]:+.1f} %)")
            for model in models
        )
        off = [model for model in models if model not in equal]
        names = f"equal to the printed digits: {', '.join(equal) or 'none'}"
        names += f"; not equal: {', '.join(off)}" if off else ""
        why = f"ours, in {unit}: {words}; {names}"
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
        f"the printed {increases[0]:.2f} MB is off the straight line through the other printed increases, which gives "
        f"{on_line:.2f} MB, {percent:.0f} %"
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


@judge(PAPER, "table_6", "falls_with_depth_here")
def falls_with_depth(context: Context) -> Finding:
    """Each depth below the one before."""
    ours = [counted["increase_percent"] for counted in memory(context).values()]
    return exact(all(a > b for a, b in pairwise(ours)), f"increase in %, by depth: {numbers(ours)}")


@judge(PAPER, "table_6", "towards_4_7_here")
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


# -- memory against PipeDream ------------------------------------------------------------------------------------------


@judge(PAPER, "text_memory_vs_pipedream", "less_than_pipedream")
def less_memory(context: Context) -> Finding:
    """Two readings: with the same activations on both sides, as the paper has it, copies of weights decide; or each
    keeps the activations that its own schedule has to."""
    copies = {arm: log_of(context, arm=arm).summary["weight_copies"] for arm in ("stale weights", "PipeDream")}
    saved = savings(context)
    as_scheduled = [each > 0 for (reading, _), each in saved.items() if reading == SCHEDULED]
    holds = agreed(sum(copies["stale weights"]) < sum(copies["PipeDream"]), *as_scheduled)
    words = "; ".join(f"{reading}, {dataset} {each:.2f} %" for (reading, dataset), each in saved.items())
    why = "copies per stage: " + "; ".join(
        f"{name} {listing(copies[arm])}" for name, arm in (("ours", "stale weights"), ("PipeDream", "PipeDream"))
    )
    why += f"; memory saved, by reading: {words}"
    return exact(holds, why, "exact; by copies alone, and with each schedule's own activations")


@judge(PAPER, "text_memory_vs_pipedream", "shrinks_with_activations")
def shrinks(context: Context) -> Finding:
    """ImageNet's activations weigh more: every reading saves less there."""
    saved = savings(context)
    pairs = {reading: (saved[reading, "CIFAR-10"], saved[reading, "ImageNet"]) for reading, _ in saved}
    words = "; ".join(f"{reading}: {small:.2f} and {large:.2f} %" for reading, (small, large) in pairs.items())
    why = f"memory saved on CIFAR-10 and ImageNet, by reading: {words}"
    return exact(all(small > large for small, large in pairs.values()), why)
