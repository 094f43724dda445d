"""The headline on accuracy: the drops below data parallelism, averaged over the networks of Table 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from pipelag.report.tables import Col, table
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import ONE_MORE, SEEDS, half_a_unit, sized
from pipelag.results.spectrain.below import below_tables
from pipelag.results.spectrain.leads import decided, every, told
from pipelag.results.spectrain.timing import CNN, DENSE, LSTM, MODELS
from pipelag.results.spectrain.training import (
    ARMS,
    DATA,
    PIPED,
    ROUNDED,
    SPECTRAIN,
    STASHED,
    VANILLA,
    ahead,
    in_words,
    leads_of,
)
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

PAPER = "spectrain"
TENTHS = 0.05  # half a unit of the last digit of a mean drop, which is printed to a tenth


@drawing(PAPER, "text_headline_accuracy")
def headline_accuracy(context: Context) -> Drawn:
    """The drops in accuracy below data parallelism, averaged over groups of models, the paper's beside ours."""
    groups = {"CNN": CNN, "FCN/RNN": DENSE, "all six": MODELS}
    printed = context.paper.results["table_1"].reported

    def paper(models: Sequence[str]) -> Callable[[str], float | None]:
        def cell(arm: str) -> float | None:
            if any(arm not in printed[model] for model in models):
                return None
            return fmean(printed[model][DATA][2] - printed[model][arm][2] for model in models)

        return cell

    lacking: dict[str, None] = {}

    def ours(models: Sequence[str]) -> Callable[[str], str | None]:
        def cell(arm: str) -> str | None:
            try:
                return ahead(context, DATA, arm, models).text()
            except NotLogged as why:
                lacking[str(why)] = None
                return None

        return cell

    rows = [arm for arm in ARMS if arm != DATA]
    cols = [Col("Scheme", lambda arm: arm)]
    for title, models in groups.items():
        cols.append(Col("paper", paper(models), "{:+.2f}", f"drop, {title} (points)"))
        cols.append(Col("ours", ours(models), group=f"drop, {title} (points)"))
    short = context.shortfall(what="training")
    notes = [f"ours, different from the paper: {short}"] if short else []
    drops = table(rows, cols, context.result.caption)  # computing its cells fills `lacking`
    notes += [f"–: {'; '.join(lacking)}"] if lacking else []
    return Drawn(table=replace(drops, notes=[*notes, *below_tables(context)]))


def drop(arm: str, key: str) -> Judge:
    """A judge that decides whether one more set of runs could give the printed mean drop (`Difference.matches`)."""

    def judged(context: Context) -> Finding:
        difference = ahead(context, DATA, arm)
        printed = context.result.reported[key]
        holds, why = difference.matches(printed, TENTHS), f"{difference.text()} points (printed {printed})"
        return sized(context, holds, why, f"{ONE_MORE}; {half_a_unit(TENTHS)}", what="training")

    return judged


judge(PAPER, "text_headline_accuracy", "pipedream_drop")(drop(PIPED, "PipeDream_drop"))
judge(PAPER, "text_headline_accuracy", "pipedream_drop_stashed")(drop(STASHED, "PipeDream_drop"))
judge(PAPER, "text_headline_accuracy", "vanilla_drop")(drop(VANILLA, "Vanilla_drop"))


@judge(PAPER, "text_headline_accuracy", "spectrain_none")
def spectrain_none(context: Context) -> Finding:
    """Holds if SpecTrain is at least as accurate as data parallelism on more than half of the six models.

    Sections 1 and 6. Fails if it is told to be below on at least half of them.
    """
    lead, reasons = told(leads_of(context, SPECTRAIN, DATA))
    outcomes = [one.above(-ROUNDED) for one in lead.values()]
    holds: bool | None = None
    if sum(outcome is True for outcome in outcomes) > len(MODELS) // 2:
        holds = True
    elif sum(outcome is False for outcome in outcomes) >= len(MODELS) // 2:
        holds = False
    return decided(context, holds, in_words(lead), reasons, f"'most' is more than half of the six; {SEEDS}")


@judge(PAPER, "text_headline_accuracy", "spectrain_none_but_lstm")
def spectrain_none_but_lstm(context: Context) -> Finding:
    """Holds if SpecTrain is below data parallelism only on Residual LSTM, "the only exception" (section 4.4)."""
    lead, reasons = told(leads_of(context, SPECTRAIN, DATA))
    outcomes = [one.below(-ROUNDED) if model == LSTM else one.above(-ROUNDED) for model, one in lead.items()]
    return decided(context, every(outcomes, reasons), in_words(lead), reasons)
