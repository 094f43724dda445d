"""Table 7: whether the price of staleness falls with time: eight stages, trained three times as long."""

from __future__ import annotations

from functools import partial

from pipelag.report.tables import Cell, Col
from pipelag.report.tables import table as tabulated
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.leaderboard.scores import (
    BASELINE,
    PAPER,
    SPREAD,
    UNREMEDIED,
    Price,
    end_text,
    judged,
    lost,
    priced,
    score,
)
from pipelag.results.verdict import Judge, judge

SPECTRAIN = "SpecTrain on 1F1B"
ONCE, LONG = "once", "three times"
TITLES = {ONCE: "as in table 6", LONG: "three times as long"}


@drawing(PAPER, "table_7")
def table(context: Context) -> Drawn:
    """A line per method: where it ends after either length, and how far below sequential training."""
    rows: list[dict[str, Cell]] = []
    for arm in context.values("arm"):
        row: dict[str, Cell] = {"method": arm}
        for length in TITLES:
            row[length] = end_text(context, arm=arm, length=length)
            if arm != BASELINE:
                row[f"lost {length}"] = lost(partial(price, context, arm, length))
        rows.append(row)
    columns = [Col("method", "method")]
    columns += [Col(title, length, group="accuracy %, trained") for length, title in TITLES.items()]
    columns += [Col(title, f"lost {length}", group="below sequential, points") for length, title in TITLES.items()]
    why = context.left_out()
    notes = [
        SPREAD,
        "Below sequential training of the same length: mean ± half the 95 % interval over seeds, paired.",
    ]
    notes += [f"–: not run here; {why}."] if why else []
    return Drawn(table=tabulated(rows, columns, context.result.caption, notes))


def price(context: Context, arm: str, length: str) -> Price:
    """Accuracies by seed of sequential training of this length, and of the arm."""
    return score(context, BASELINE, length=length), score(context, arm, length=length)


def falling(arm: str) -> Judge:
    """A judge: what an arm costs against sequential training is less after the longer training."""
    lengths = {"at table 6's length": ONCE, "at three times it": LONG}
    return lambda context: priced(context, {arm: {named: price(context, arm, each) for named, each in lengths.items()}})


judge(PAPER, "table_7", "price_of_none_falls")(falling(UNREMEDIED))
judge(PAPER, "table_7", "price_of_spectrain_falls")(falling(SPECTRAIN))


for _claim, _pair in (
    ("spectrain_still_pays", (BASELINE, SPECTRAIN)),
    ("spectrain_still_ahead", (SPECTRAIN, UNREMEDIED)),
    ("spectrain_still_over_stashing", (SPECTRAIN, "PipeDream")),
):
    judge(PAPER, "table_7", _claim)(partial(judged, pairs=[_pair], length=LONG))
