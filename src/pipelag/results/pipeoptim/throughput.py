"""Figures 6 and 8, and section V-C on throughput: the approaches over one straight plan, simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Bars
from pipelag.report.tables import Col
from pipelag.results import colours
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import agreed, all_of, measured
from pipelag.results.logs import RunLog
from pipelag.results.plans import SPEED_WORDS, by_model, near
from pipelag.results.verdict import Finding, Judge, NotLogged, judge, log_of, need

PAPER = "pipeoptim"
GPIPE, PIPEDREAM, TWO_BW, SPECTRAIN, XPIPE, OPTIM = ARMS = (
    *("GPipe", "PipeDream", "PipeDream-2BW", "SpecTrain", "XPipe", "PipeOptim"),
)
VANILLA = "Vanilla-1F1B"
STASHING = (PIPEDREAM, TWO_BW)
COLOURS = {
    GPIPE: colours.BASELINE,
    PIPEDREAM: colours.PIPEDREAM,
    TWO_BW: colours.TWO_BW,
    SPECTRAIN: colours.SPECTRAIN,
    XPIPE: colours.XPIPE,
    OPTIM: colours.PIPEOPTIM,
    VANILLA: colours.UNMENDED,
}
FIGURES = tuple(f"figure_6{letter}" for letter in "abcdefgh")
ORDER = (GPIPE, PIPEDREAM, OPTIM, TWO_BW, VANILLA)  # figure 8's order, from the slowest
LARGEST = ", largest"
STASHED = {PIPEDREAM: "below_PipeDream_percent", TWO_BW: "below_2BW_percent"}  # keys of the printed percents
HALF_A_TENTH = 0.05  # percent: half a unit of their last digit
SIGN = "the sign: all are simulated over the same profile and plan, without noise"
TIE = 0.1  # percent: far below the accuracy of data sheets
NO_DIFFERENCE = f"less than {TIE} % is no difference"
MOST = f"more than half of the models, each by its sign; {NO_DIFFERENCE}, and where these decide it cannot be judged"
# An error of a profile is in the speeds of both approaches that are simulated over it. So, although each speed may be a
# tenth off, the few percent between them hardly change, and they can be compared.
SHARE = 2.0
SHARE_WORDS = "each within a factor of two of the printed percents"


def arm_rows(log: RunLog | None) -> dict[str, dict[str, Any]]:
    """The rows of a plan's log that are about an arm, by its name."""
    return {row["arm"]: row for row in log.rows if row["what"] == "arm"} if log else {}


def rates(log: RunLog | None) -> dict[str, float]:
    """Samples per second by arm; an arm without a time is left out."""
    speeds = {name: row.get("samples_per_second") for name, row in arm_rows(log).items()}
    return {name: rate for name, rate in speeds.items() if rate}


def rates_of(context: Context, **labels: str) -> dict[str, float]:
    """`rates` of one run, for a judge.

    Raises:
        NotLogged: an arm that the config asks for has no rate.
    """
    speeds = rates(log_of(context, **labels))
    arms = context.select(**labels)[0].arm.spec.options["arms"]
    missing = [name for name in arms if name not in speeds]
    if missing:
        raise NotLogged(f"{missing[0]} has no logged throughput")
    return speeds


@drawing(PAPER, *FIGURES)
def figure_6(context: Context) -> Drawn:
    """A bar per approach, which has the same colour and place in every figure."""
    (model,), (optimizer,) = context.values("model"), context.values("optimizer")
    logged = arm_rows(context.log())
    rows = [
        {"panel": f"{model}, {optimizer}", "gpus": f"{row['workers']} GPUs", "approach": name, "throughput": rate}
        for name in ARMS
        if (row := logged.get(name)) and (rate := row.get("samples_per_second"))
    ]
    if not rows:
        return not_logged("no plan is logged")
    y = Axis("throughput", "simulated throughput (samples/s)")
    bars = Bars(y, "gpus", "approach", panel="panel", number="{:,.0f}", colours=COLOURS)
    return Drawn.of(bars, rows, note=" ".join(misfits(context)))


def misfits(context: Context) -> list[str]:
    """A sentence per model for which passes of some approach take more memory than a GPU has, as the logs count it."""
    sentences = []
    for model, log in by_model(context).items():
        arms = arm_rows(log)
        some = [name for name, row in arms.items() if row.get("fits") is False]
        if some:
            named = "any approach" if len(some) == len(arms) else ", ".join(some)
            sentences.append(f"{model}: as large as table V's, passes do not fit into a GPU's memory under {named}.")
    return sentences


def in_words(speeds: Mapping[str, float], names: tuple[str, ...]) -> str:
    """The rates of some arms, in words."""
    return ", ".join(f"{name} {speeds[name]:,.1f}" for name in names if name in speeds) + " samples/s"


def gpipe_lowest(context: Context) -> Finding:
    """Holds if GPipe's throughput is below that of every asynchronous approach."""
    speeds = rates_of(context)
    holds = all_of(faster(percent(rate, speeds[GPIPE])) for name, rate in speeds.items() if name != GPIPE)
    return measured(context, holds, in_words(speeds, ARMS), f"{SIGN}; {NO_DIFFERENCE}")


for _name in FIGURES:
    judge(PAPER, _name, "gpipe_lowest")(gpipe_lowest)


def percent(rate: float, other: float) -> float:
    """By how many percent a rate is above another."""
    return 100 * (rate / other - 1)


def faster(percents: float) -> bool | None:
    """Whether a lead in percent is above 0; None where it is so small that it is no difference (`TIE`)."""
    return None if abs(percents) <= TIE else percents > 0


@drawing(PAPER, "text_throughput")
def text_throughput(context: Context) -> Drawn:
    """A row per model; below them means, extremes and the printed numbers."""
    others = (GPIPE, PIPEDREAM, TWO_BW, SPECTRAIN, XPIPE)
    models: list[dict[str, Any]] = []
    for model, log in by_model(context).items():
        speeds = rates(log)
        against = {o: percent(speeds[OPTIM], speeds[o]) for o in others if o in speeds and OPTIM in speeds}
        models.append({"model": model, "optimizer": context.select(model=model)[0].arm.labels["optimizer"], **against})
    rows, reported = list(models), context.result.reported
    below = {key: [-value for value in reported[f"below_{key}_percent"]] for key in ("PipeDream", "2BW")}
    printed = {PIPEDREAM: below["PipeDream"], TWO_BW: below["2BW"]}
    words = {"mean": "mean", "extreme": "farthest from 0"}
    if models:
        for place, what in enumerate(("mean", "extreme")):
            ours: dict[str, Any] = {"model": f"all, {words[what]}"}
            for other in others:
                values = [row[other] for row in models if other in row]
                if values:
                    ours[other] = fmean(values) if what == "mean" else max(values, key=abs)
            rows += [
                ours,
                {"model": f"all, {words[what]}, paper"} | {other: printed[other][place] for other in printed},
            ]
            adamw = [row[GPIPE] for row in models if row["optimizer"] == "AdamW" and GPIPE in row]
            value = (fmean(adamw) if what == "mean" else max(adamw)) if adamw else None
            rows.append({"model": f"AdamW, {words[what]}", GPIPE: value})
            rows.append({"model": f"AdamW, {words[what]}, paper", GPIPE: reported["over_GPipe_AdamW_percent"][place]})
    cols = [Col("model", "model"), Col("optimizer", "optimizer")]
    cols += [Col(f"over {other}", other, "{:+z.2f} %", "throughput of PipeOptim") for other in others]
    return Drawn.tabled(context, rows, cols, misfits(context))


def gains(context: Context, other: str, optimizer: str = "") -> dict[str, float]:
    """By how many percent PipeOptim's throughput is above another approach's, by model; for a judge."""
    labels = {"optimizer": optimizer} if optimizer else {}
    models = [m for m in context.values("model") if context.select(model=m, **labels)]
    speeds = {model: rates_of(context, model=model) for model in models}
    return {model: percent(rate[OPTIM], rate[other]) for model, rate in speeds.items() if other in rate}


def listed(values: Mapping[str, float]) -> str:
    """Percentages by model, in words."""
    return ", ".join(f"{model} {value:+z.2f} %" for model, value in values.items())


@judge(PAPER, "text_throughput", "above_gpipe")
def above_gpipe(context: Context) -> Finding:
    """Holds if PipeOptim's throughput is above GPipe's for every model."""
    percents = gains(context, GPIPE)
    return measured(context, all_of(map(faster, percents.values())), listed(percents), f"{SIGN}; {NO_DIFFERENCE}")


@judge(PAPER, "text_throughput", "gain_over_gpipe")
def gain_over_gpipe(context: Context) -> Finding:
    """Holds if the mean and the largest gain over GPipe with AdamW are the printed ones.

    Compared are the ratios of rates, which must be within a factor of `plans.SPEED` of the printed ones.
    """
    percents = gains(context, GPIPE, "AdamW")
    mean, most = fmean(percents.values()), max(percents.values())
    pairs = zip((mean, most), context.result.reported["over_GPipe_AdamW_percent"], strict=True)
    holds = all(near(1 + ours / 100, 1 + theirs / 100) for ours, theirs in pairs)
    why = f"{mean:.1f} % on average, up to {most:.1f} %: {listed(percents)}"
    too_large = " ".join(text for text in misfits(context) if text.split(":")[0] in percents)
    return measured(context, holds, f"{why}. {too_large}" if too_large else why, f"the ratios of rates, {SPEED_WORDS}")


@judge(PAPER, "text_throughput", "comparable")
def comparable(context: Context) -> Finding:
    """Holds if PipeOptim's throughput is near that of both approaches that stash, for every model.

    Near is within the largest differences that the paper prints: 16.5 % of PipeDream's and 14.1 % of PipeDream-2BW's.
    """
    percents = {other: gains(context, other) for other in STASHED}
    most = {other: context.result.reported[key][1] for other, key in STASHED.items()}
    holds = all(abs(value) <= most[other] + HALF_A_TENTH for other in STASHED for value in percents[other].values())
    why = "; ".join(f"over {other}: {listed(each)}" for other, each in percents.items())
    words = " and ".join(f"{percent:g} % of {other}'s" for other, percent in most.items())
    return measured(context, holds, why, f"within {words} for every model, as far as the paper's own are apart")


def below(other: str, key: str) -> Judge:
    """A judge: whether PipeOptim's throughput is lower than another's by the printed percents, on average and at most.

    The percents are compared, within a factor of `SHARE`: the tolerance of rates is wider than all of them.
    """

    def judged(context: Context) -> Finding:
        percents = gains(context, other)
        lower = -fmean(percents.values()), -min(percents.values())
        printed = context.result.reported[key]
        holds = all(near(ours, theirs, SHARE) for ours, theirs in zip(lower, printed, strict=True))
        words = "{:.2f} % lower on average, up to {:.2f} %; printed {} and {} %; "
        why = words.format(*lower, *printed) + listed(percents)
        return measured(context, holds, why, SHARE_WORDS)

    return judged


judge(PAPER, "text_throughput", "below_pipedream")(below(PIPEDREAM, STASHED[PIPEDREAM]))
judge(PAPER, "text_throughput", "below_2bw")(below(TWO_BW, STASHED[TWO_BW]))


def mostly_above(percents: Mapping[str, float]) -> tuple[bool | None, str]:
    """Whether more than half of the models are above 0, and how many are, in words.

    None where models with less than `TIE` percent would decide.
    """
    ahead, behind = (sum(sign * value > TIE for value in percents.values()) for sign in (1, -1))
    half, level = len(percents) / 2, len(percents) - ahead - behind
    holds = True if ahead > half else None if ahead + level > half else False
    return holds, f"above in {ahead} of {len(percents)}, no different in {level}: {listed(percents)}"


@judge(PAPER, "text_throughput", "mostly_above_xpipe")
def mostly_above_xpipe(context: Context) -> Finding:
    """Holds if PipeOptim's throughput is above XPipe's for more than half of the models."""
    return measured(context, *mostly_above(gains(context, XPIPE)), MOST)


@judge(PAPER, "text_throughput", "below_stashing")
def below_stashing(context: Context) -> Finding:
    """Holds if both approaches that stash are faster than both that predict, for more than half of the models.

    For each model the slower of those that stash is compared with the faster of those that predict.
    """
    speeds = {model: rates_of(context, model=model) for model in context.values("model")}
    margins = {m: percent(min(r[PIPEDREAM], r[TWO_BW]), max(r[OPTIM], r[XPIPE])) for m, r in speeds.items()}
    holds, why = mostly_above(margins)
    why = f"the slower of {PIPEDREAM} and 2BW over the faster of {OPTIM} and {XPIPE}, {why}"
    return measured(context, holds, why, MOST)


PASSES = {"": "passes of 8 sequences", LARGEST: "the largest passes that fit"}


@drawing(PAPER, "figure_8")
def figure_8(context: Context) -> Drawn:
    """Simulated throughput: a panel per size of a pass, a group of bars per number of nodes."""
    rows = []
    for ending, panel in PASSES.items():
        for nodes in context.values("nodes"):
            speeds = rates(context.log(nodes=nodes))
            for name in ORDER:
                if name + ending in speeds:
                    throughput = speeds[name + ending]
                    rows.append({"panel": panel, "nodes": nodes, "approach": name, "throughput": throughput})
    if not rows:
        return not_logged("no plan is logged")
    y = Axis("throughput", "simulated throughput (sequences/s)")
    bars = Bars(y, "nodes", "approach", panel="panel", number="{:.0f}", x_title="nodes of 4 GPUs", colours=COLOURS)
    return Drawn.of(bars, rows, note=" ".join(minibatches(context)))


def minibatches(context: Context) -> Iterator[str]:
    """Sentences on figure 8: how many sequences each approach's update has, in passes of 8 and in the largest."""
    nodes = ", ".join(context.values("nodes"))
    for ending, panel in PASSES.items():
        arms: dict[str, list[str]] = {}
        for name in ORDER:
            rows = [arm_rows(log).get(name + ending) for log in context.logs()]
            sizes = [(row["batch"] // row["microbatches"], row["microbatches"]) for row in rows if row is not None]
            words = ", ".join(f"{size}" if many == 1 else f"{many} x {size}" for size, many in dict.fromkeys(sizes))
            arms.setdefault(words, []).append(name)
        each = "; ".join(f"{', '.join(names)} {words}" for words, names in arms.items())
        yield f"Sequences per update on {nodes} nodes, {panel}: {each}."


@judge(PAPER, "figure_8", "order")
def order(context: Context) -> Finding:
    """Holds if throughputs are in the claim's order on every number of nodes, with passes of 8 and with the largest.

    The paper does not say which passes it takes, so both are judged. Where they disagree nothing is told.
    """
    texts: list[str] = []
    holds = []
    for ending, panel in PASSES.items():
        right: list[bool | None] = []
        for nodes in context.values("nodes"):
            speeds = rates_of(context, nodes=nodes)
            line = [need(speeds.get(name + ending), f"{name} on {nodes} nodes") for name in ORDER]
            steps = [percent(after, before) for before, after in pairwise(line)]
            right += map(faster, steps)
            texts.append(f"{panel}, nodes {nodes}: " + ", ".join(f"{v:.2f}" for v in line))
        holds.append(all_of(right))
    why = f"sequences/s of {', '.join(ORDER)}: " + "; ".join(texts)
    words = (
        f"{SIGN}; {NO_DIFFERENCE}; where passes of 8 and the largest give different answers, the claim cannot be judged"
    )
    return measured(context, agreed(*holds), why, words)
