"""Figures 3, 4, 5 and 7, and the gain of weight prediction: accuracy and BLEU over epochs, by approach."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from statistics import fmean
from typing import Any

from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import ONE_MORE, SEEDS, Difference, all_of, gaps, half_a_unit, paired_means, sized, trend
from pipelag.results.logs import Item
from pipelag.results.pipeoptim.throughput import (
    ARMS,
    COLOURS,
    GPIPE,
    OPTIM,
    PIPEDREAM,
    STASHING,
    TWO_BW,
    VANILLA,
    XPIPE,
)
from pipelag.results.pipeoptim.training import (
    ABOUT_ELSEWHERE,
    ROUNDED,
    How,
    about,
    above,
    begin,
    diverged,
    last,
    metric_of,
    one_number,
    other_arms,
    over_all,
    over_epochs,
    scattered,
    scores,
    splits,
    title_of,
)
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

PAPER = "pipeoptim"
LETTERS = ("3a", "3b", "3c", "4a", "4b", "4c", "5a", "5b", "5c")
# Points that count as close: the paper says that AlexNet's curves align closely, and they end 2.7 points apart.
CLOSE = 3.0
STYLES = {name: (COLOURS[name], number) for number, name in enumerate(ARMS)}
GAINS = ("figure_7a", "figure_7b", "figure_7c")
TENTHS = 0.05  # half a unit of VGG-16's gain, which is printed to a tenth
RECOMPUTED, STORED = "recomputed", "kept"


@drawing(PAPER, *(f"figure_{letter}" for letter in LETTERS))
def accuracy_curves(context: Context) -> Drawn:
    """A line per approach, which has the same colour in every figure."""
    (model,) = context.values("model")
    note = " ".join([*splits(context), *scattered(context)])
    settings: dict[str, Any] = {"styles": STYLES, "height": 3.4}
    return over_epochs(context, context.items, metric_of(model), title_of(model), note=note, **settings)


@judge(PAPER, "figure_3a", "close_to_gpipe")
@judge(PAPER, "figure_3b", "close_to_gpipe")
@judge(PAPER, "figure_3c", "close_to_gpipe")
def close_to_gpipe(context: Context) -> Finding:
    """Holds if PipeOptim's and GPipe's curves are close both at their ends and in their means over all evaluations.

    The means count because curves that align do so on their way, too. Close is within `CLOSE` points in the paper's
    runs and within `ABOUT_ELSEWHERE` in others.
    """
    near, steps = ABOUT_ELSEWHERE if context.shortfall() else CLOSE, []
    texts = []
    for place, how in (("end at", last), ("average over all evaluations", fmean)):
        pair = [scores(context, how, arm=arm) for arm in (OPTIM, GPIPE)]
        steps.append(Difference.of(*pair))
        ours, theirs = paired_means(*pair)
        texts.append(f"{place} {ours:.2f} and {theirs:.2f}: {steps[-1].text()} points")
    why = f"{OPTIM} and {GPIPE} {'; they '.join(texts)}"
    return trend(context, all_of(step.within(-near, near) for step in steps), why, f"within {near:g} points; {SEEDS}")


def stashing_below(context: Context, how: How = last, words: str = "") -> Finding:
    """Holds if PipeDream and PipeDream-2BW are below PipeOptim and GPipe.

    how, words: what is compared, and its name in the sentence; by default the ends of the curves.
    """
    outcomes = [above(context, STASHING, arm, how) for arm in (OPTIM, GPIPE)]
    why = words + "; ".join(why for _, why in outcomes)
    return trend(context, all_of(holds for holds, _ in outcomes), why, SEEDS)


judge(PAPER, "figure_3a", "stashing_below")(stashing_below)
for _name in (
    "figure_3b",
    "figure_3c",
):  # in the paper PipeDream ends above GPipe, and its convergence is what is worse
    judge(PAPER, _name, "stashing_below")(partial(stashing_below, how=fmean, words="mean over all evaluations: "))


@judge(PAPER, "figure_3a", "xpipe_lowest")
@judge(PAPER, "figure_3c", "xpipe_lowest")
def xpipe_lowest(context: Context) -> Finding:
    """Holds if XPipe's curve ends below every other one.

    Where XPipe diverges with a seed nothing is told, because it learns in the paper.
    """
    others = {arm: scores(context, last, arm=arm) for arm in other_arms(context, (XPIPE,))}
    runs = context.logged(arm=XPIPE)
    if gone := sum(map(diverged, runs)):
        ends = ", ".join(f"{arm} {fmean(values.values()):.2f}" for arm, values in others.items())
        why = f"{XPIPE} diverges with {gone} of {len(runs)} seeds, where the paper's learns; the others end at {ends}"
        return trend(context, None, why, SEEDS)
    xpipe = scores(context, last, arm=XPIPE)
    steps = {arm: Difference.of(values, xpipe) for arm, values in others.items()}
    why = f"{XPIPE} ends at {fmean(xpipe.values()):.2f}; above it " + ", ".join(
        f"{a} {s.text()}" for a, s in steps.items()
    )
    return trend(context, all_of(step.above() for step in steps.values()), why, SEEDS)


def highest(how: How, others: Callable[[Context], list[str]] = other_arms, margin: float = 0.0) -> Judge:
    """A judge: whether PipeOptim is above the others.

    Args:
        how: makes one number of a run's evaluations, which is compared.
        others: gives the approaches that it is compared with; all by default.
        margin: how far above; it may be negative.
    """

    def judged(context: Context) -> Finding:
        holds, why = above(context, others(context), how=how, margin=margin)
        return trend(context, holds, why, SEEDS)

    return judged


for _name in ("figure_3b", "figure_3c"):  # section V-B gives their best accuracies, not where the curves end
    judge(PAPER, _name, "optim_highest")(highest(max))
for _name in ("figure_4a", "figure_4c", "figure_5b", "figure_5c"):
    judge(PAPER, _name, "optim_highest")(highest(last))
judge(PAPER, "figure_4b", "above_three")(highest(last, lambda context: other_arms(context, (OPTIM, XPIPE)), -0.005))
judge(PAPER, "figure_5b", "over_stashing_here")(highest(last, lambda context: list(STASHING)))
judge(PAPER, "figure_5b", "fast_early")(highest(begin(1 / 8)))


@judge(PAPER, "figure_5a", "order")
def order_with_adam(context: Context) -> Finding:
    """Holds if the best accuracies are in the claim's order, and PipeOptim's and PipeDream's about the same.

    They are the best of all evaluations, as in table IV.
    """
    best = {arm: scores(context, arm=arm) for arm in (XPIPE, GPIPE, OPTIM, PIPEDREAM, TWO_BW)}
    near, words = about(context)
    pairs = ((XPIPE, GPIPE), (GPIPE, OPTIM), (GPIPE, PIPEDREAM), (OPTIM, TWO_BW), (PIPEDREAM, TWO_BW))
    first = {f"{a} over {b}": Difference.of(best[a], best[b]) for a, b in pairs}
    equal = Difference.of(best[OPTIM], best[PIPEDREAM])
    holds = all_of([*(step.above() for step in first.values()), equal.within(-near, near)])
    why = ", ".join(f"{arm} {fmean(values.values()):.2f}" for arm, values in best.items())
    steps = ", ".join(f"{pair} {step.text()}" for pair, step in first.items())
    why = f"best accuracies: {why}; {steps}; {OPTIM} over {PIPEDREAM} {equal.text()}"
    return trend(context, holds, why, f"equal: {words}")


def gains(printed: Callable[[Context], dict[str, float]]) -> Judge:
    """A judge: whether PipeOptim ends above other approaches by the printed gains, which `printed` gives by approach.

    It does if each printed gain could be one more pair of our runs (`Difference.matches`).
    """

    def judged(context: Context) -> Finding:
        end = scores(context, last, arm=OPTIM)
        steps = {arm: Difference.of(end, scores(context, last, arm=arm)) for arm in printed(context)}
        holds = all_of(steps[arm].matches(value, ROUNDED) for arm, value in printed(context).items())
        return sized(context, holds, ", ".join(f"over {arm} {step.text()}" for arm, step in steps.items()), ONE_MORE)

    return judged


def of_gnmt8(context: Context) -> dict[str, float]:
    """The printed gains over all other approaches: the differences between the ends of the printed curves."""
    ends = context.result.reported
    return {arm: ends[OPTIM] - ends[arm] for arm in other_arms(context)}


def of_gnmt16(context: Context) -> dict[str, float]:
    """The printed gains over the approaches that stash, from the text."""
    return {arm: context.result.reported[f"over_{arm}"] for arm in STASHING}


judge(PAPER, "figure_5b", "gains")(gains(of_gnmt8))
judge(PAPER, "figure_5c", "gains")(gains(of_gnmt16))


def line_of(item: Item) -> str:
    """The name of a line: an approach, and whether its activations are recomputed or kept."""
    return f"{item.arm.labels['arm']}, activations {item.arm.labels['activations']}"


@drawing(PAPER, *GAINS)
def figure_7(context: Context) -> Drawn:
    """PipeOptim and Vanilla-1F1B; lines are dashed where activations are kept."""
    (model,) = context.values("model")
    styles = {
        f"{arm}, activations {kind}": (COLOURS[arm], dashes)
        for arm in (OPTIM, VANILLA)
        for kind, dashes in ((RECOMPUTED, 0), (STORED, 1))
    }
    return over_epochs(context, context.items, metric_of(model), title_of(model), line_of, styles=styles)


def gain(context: Context, activations: str, **labels: str) -> Difference:
    """How far PipeOptim's best accuracy is above Vanilla-1F1B's, with activations `RECOMPUTED` or `STORED`."""
    pair = [scores(context, max, "", arm=arm, activations=activations, **labels) for arm in (OPTIM, VANILLA)]
    return Difference.of(*pair)


def in_words(context: Context, **labels: str) -> str:
    """The gain with recomputed activations in words, and with kept ones where a scale trains both.

    Claims are decided with recomputed ones, as in the paper.
    """
    text = f"activations {RECOMPUTED} {gain(context, RECOMPUTED, **labels).text()}"
    if all(item.log is None and item.arm.left_out for item in context.select(activations=STORED, **labels)):
        return text
    try:
        return f"{text}, activations {STORED} {gain(context, STORED, **labels).text()}"
    except NotLogged as error:
        return f"{text}, activations {STORED} unknown ({error})"


def above_vanilla(context: Context) -> Finding:
    """Holds if PipeOptim's best accuracy is above Vanilla-1F1B's with recomputed activations.

    The paper recomputes them with all approaches.
    """
    difference = gain(context, RECOMPUTED)
    return trend(context, difference.above(), f"best accuracy over {VANILLA}: {in_words(context)}", SEEDS)


def converges_better(context: Context) -> Finding:
    """Holds if PipeOptim's mean over all evaluations is above Vanilla-1F1B's with recomputed activations."""
    holds, why = above(context, (VANILLA,), how=fmean, activations=RECOMPUTED)
    return trend(context, holds, f"mean over all evaluations: {why}", SEEDS, activations=RECOMPUTED)


for _name in GAINS:
    judge(PAPER, _name, "above_vanilla")(above_vanilla)
    judge(PAPER, _name, "converges_better")(converges_better)


@judge(PAPER, "figure_7a", "gain")
def gain_of_vgg16(context: Context) -> Finding:
    """Holds if the paper's gain, 1.3 points, could be one more pair of our runs (`Difference.matches`)."""
    difference = gain(context, RECOMPUTED)
    holds = difference.matches(context.result.reported["gain"], TENTHS)
    return sized(context, holds, in_words(context), f"{ONE_MORE}; {half_a_unit(TENTHS)}")


@drawing(PAPER, "text_weight_prediction_gain")
def text_weight_prediction_gain(context: Context) -> Drawn:
    """The gains of weight prediction, a row per model."""

    def best_of(model: str, arm: str, kind: str) -> dict[int, float]:
        items = context.select(model=model, arm=arm, activations=kind)
        numbers = {item.arm.seed: one_number(item, max, metric_of(model)) for item in items}
        return {seed: value for seed, value in numbers.items() if value is not None}

    def mean(model: str, arm: str, kind: str) -> float | str | None:
        if any(map(diverged, context.select(model=model, arm=arm, activations=kind))):
            return "diverged"  # the best value before that says nothing
        best = best_of(model, arm, kind)
        return fmean(best.values()) if best else None

    rows = []
    for model in context.values("model"):
        row: dict[str, str | float | None] = {
            "model": model,
            "optimizer": context.select(model=model)[0].arm.labels["optimizer"],
        }
        for kind in (RECOMPUTED, STORED):
            predicted, other = (mean(model, arm, kind) for arm in (OPTIM, VANILLA))
            row |= {f"{kind} {OPTIM}": predicted, f"{kind} {VANILLA}": other}
            paired = gaps(*(best_of(model, arm, kind) for arm in (OPTIM, VANILLA)))
            if isinstance(predicted, float) and isinstance(other, float) and paired:
                row[f"{kind} gain"] = fmean(paired.values())
        rows.append(row | {"paper": context.result.reported.get(model)})
    rows.append({"model": "mean", "paper": context.result.reported["average"]})
    for kind in (RECOMPUTED, STORED):
        with suppress(NotLogged):
            rows[-1][f"{kind} gain"] = mean_gain(context, kind).mean
    cols = [Col("model", "model"), Col("optimizer", "optimizer")]
    for kind in (RECOMPUTED, STORED):
        group = f"activations {kind}"
        cols += [Col(name, f"{kind} {name}", "{:.2f}", group) for name in (OPTIM, VANILLA)]
        cols.append(Col("gain", f"{kind} gain", "{:+.2f}", group))
    cols.append(Col("gain, paper", "paper", "{:+.2f}"))
    notes = [
        "Best test accuracies (%), means over a model's seeds; gains, over those that both have; below, the mean of "
        "the models' gains. Recomputing, a second forward reads the weights of the backward (ambiguity D18)."
    ]
    return Drawn.tabled(context, rows, cols, notes)


def mean_gain(context: Context, activations: str = RECOMPUTED) -> Difference:
    """PipeOptim's gain over Vanilla-1F1B in best accuracy, averaged over the three models."""
    models = context.values("model")
    sides = ([scores(context, model=m, arm=arm, activations=activations) for m in models] for arm in (OPTIM, VANILLA))
    return over_all(zip(*sides, strict=True))


@judge(PAPER, "text_weight_prediction_gain", "positive")
def positive(context: Context) -> Finding:
    """Holds if PipeOptim's gain, averaged over the three models, is above 0."""
    difference = mean_gain(context)
    texts = [f"{model}: {in_words(context, model=model)}" for model in context.values("model")]
    return trend(context, difference.above(), f"mean {difference.text()} with recomputation; {'; '.join(texts)}", SEEDS)


@judge(PAPER, "text_weight_prediction_gain", "two_thirds")
def two_thirds(context: Context) -> Finding:
    """Holds if the paper's mean gain, 0.67 points, could be one more pair of our runs (`Difference.matches`)."""
    difference = mean_gain(context)
    holds = difference.matches(context.result.reported["average"], ROUNDED)
    return sized(context, holds, f"mean {difference.text()}", f"{ONE_MORE}; {half_a_unit(ROUNDED)}")
