"""Claims about memory: table 6, and the saving against PipeDream."""

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

COLUMNS = {  # by column of table 6: unit, printed decimals
    "weight_mb": ("MB", 2),
    "activations_mb_per_sample": ("MB per sample", 2),
    "increase_mb_per_sample": ("MB per sample", 2),
    "increase_percent": ("%", 0),
}


def memory(context: Context) -> dict[str, dict[str, float]]:
    """The counted memory of every depth; raises `NotLogged` if a count is missing."""
    counts = {model: memory_of(context, model) for model in DEPTHS}
    missing = [model for model, counted in counts.items() if counted is None]
    if missing:
        raise NotLogged(f"{', '.join(missing)}: no count is logged")
    return {model: counted for model, counted in counts.items() if counted is not None}


def as_printed(key: str, models: Sequence[str] = DEPTHS) -> Judge:
    """A judge that decides whether a column's counted values equal the printed ones, within half a unit of their last
    digit. Counts have no noise, so nothing else is granted.
    """
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
    """Compare the first printed increase with the line over depth on which those of the deeper networks lie."""
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
    """Holds if the increase is within 5 points of 60 % for the four deeper networks; ResNet-20 has its own claim."""
    ours = {model: counted["increase_percent"] for model, counted in memory(context).items()}
    words = ", ".join(f"{model} {percent:.1f}" for model, percent in ours.items())
    holds = all(abs(ours[model] - 60) <= 5 for model in DEPTHS[1:])
    return exact(holds, f"increase in %: {words}", "5 points: the printed 57 and 58 are called close to 60, to the ten")


@judge(PAPER, "table_6", "falls_with_depth_here")
def falls_with_depth(context: Context) -> Finding:
    """Holds if the increase in percent is smaller at each greater depth."""
    ours = [counted["increase_percent"] for counted in memory(context).values()]
    return exact(all(a > b for a, b in pairwise(ours)), f"increase in %, by depth: {numbers(ours)}")


@judge(PAPER, "table_6", "towards_4_7_here")
def towards(context: Context) -> Finding:
    """Holds if the deepest network's increase and its share of activations before the cut are within 0.5 points of 4/7.

    4/7 is the limit of both for great depth.
    """
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
    """Holds if weights take less than a tenth of the memory of a minibatch of 128's activations, at every depth."""
    shares = [100 * each["weight_mb"] / (each["activations_mb_per_sample"] * 128) for each in memory(context).values()]
    why = f"weights are at most {max(shares):.2f} % of the activations"
    return exact(max(shares) < 10, why, "a tenth: much smaller is read as an order of magnitude")


# -- memory against PipeDream ------------------------------------------------------------------------------------------


@judge(PAPER, "text_memory_vs_pipedream", "less_than_pipedream")
def less_memory(context: Context) -> Finding:
    """Holds if stale weights need less memory than PipeDream in both readings; cannot be judged if they disagree.

    In the first, both keep the same activations, as the paper says, so the copies of weights decide. In the second,
    each keeps the activations that its own schedule needs.
    """
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
    """Holds if the saving on ImageNet, whose activations are larger, is below that on CIFAR-10 in every reading."""
    saved = savings(context)
    pairs = {reading: (saved[reading, "CIFAR-10"], saved[reading, "ImageNet"]) for reading, _ in saved}
    words = "; ".join(f"{reading}: {small:.2f} and {large:.2f} %" for reading, (small, large) in pairs.items())
    why = f"memory saved on CIFAR-10 and ImageNet, by reading: {words}"
    return exact(all(small > large for small, large in pairs.values()), why)
