"""Tables 7 and 12: whether staleness costs less after longer training: eight stages, trained three times as long."""

from __future__ import annotations

from functools import partial

from pipelag.report.tables import Cell, Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.leaderboard.scores import (
    BASELINE,
    PAPER,
    UNREMEDIED,
    Price,
    base_of,
    dashes,
    end_text,
    judged,
    lost,
    priced,
    score,
    spread,
    unlearned,
)
from pipelag.results.verdict import Finding, Judge, judge

SPECTRAIN = "SpecTrain on 1F1B"
ONCE, LONG = "once", "three times"
TITLES = {ONCE: "original length", LONG: "three times as long"}
ADAMW, NADAM = "1F1B with AdamW", "1F1B with NAdam"  # arms without a remedy


@drawing(PAPER, "table_7", "table_12")
def table(context: Context) -> Drawn:
    """A row per method: its final accuracy after either length, and how far it is below sequential training."""
    rows: list[dict[str, Cell]] = []
    for arm in context.values("arm"):
        row: dict[str, Cell] = {"method": arm}
        for length in TITLES:
            row[length] = end_text(context, arm=arm, length=length)
            if arm != base_of(arm):
                row[f"lost {length}"] = lost(partial(price, context, arm, length))
        rows.append(row)
    columns = [Col("method", "method")]
    columns += [Col(title, length, group="accuracy %, trained") for length, title in TITLES.items()]
    columns += [Col(title, f"lost {length}", group="below sequential, points") for length, title in TITLES.items()]
    notes = [
        spread(context),
        "Below sequential training of the same length: mean ± half the 95 % interval over seeds, paired.",
    ]
    notes += unlearned(context) + dashes(context)
    return Drawn.tabled(context, rows, columns, notes)


def price(context: Context, arm: str, length: str) -> Price:
    """The accuracies by seed of sequential training of this length with the arm's optimizer, and those of the arm."""
    return score(context, base_of(arm), length=length), score(context, arm, length=length)


def falling(arm: str) -> Judge:
    """A judge that decides whether an arm loses fewer points below sequential training after the longer training."""
    return lambda context: priced(
        context, {arm: {title: price(context, arm, length) for length, title in TITLES.items()}}
    )


judge(PAPER, "table_7", "price_of_none_falls")(falling(UNREMEDIED))
judge(PAPER, "table_7", "price_of_spectrain_falls")(falling(SPECTRAIN))
judge(PAPER, "table_12", "price_of_none_falls")(falling(ADAMW))
judge(PAPER, "table_12", "price_of_look_ahead_falls")(falling(NADAM))


for _table, _claim, _pair in (
    ("table_7", "spectrain_still_pays", (BASELINE, SPECTRAIN)),
    ("table_7", "spectrain_still_ahead", (SPECTRAIN, UNREMEDIED)),
    ("table_7", "spectrain_still_over_stashing", (SPECTRAIN, "PipeDream")),
    ("table_12", "look_ahead_still_ahead", (NADAM, ADAMW)),
    ("table_12", "look_ahead_still_over_pipeoptim", (NADAM, "PipeOptim with AdamW")),
    ("table_12", "look_ahead_still_pays", (base_of(NADAM), NADAM)),
):
    judge(PAPER, _table, _claim)(partial(judged, pairs=[_pair], length=LONG))


@judge(PAPER, "table_12", "none_still_cheaper")
def none_still_cheaper(context: Context) -> Finding:
    """Holds if after the longer training 1F1B with NAdam costs fewer points than with AdamW.

    Each is compared with sequential training with its own optimizer.
    """
    return priced(context, {TITLES[LONG]: {arm: price(context, arm, LONG) for arm in (ADAMW, NADAM)}})
