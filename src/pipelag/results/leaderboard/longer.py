"""Table 7: whether the price of staleness falls with time: eight stages, trained three times as long."""

from __future__ import annotations

from functools import partial

from pipelag.report.tables import Cell, Col
from pipelag.report.tables import table as tabulated
from pipelag.results.context import Accuracy, Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import trend
from pipelag.results.leaderboard.depth import BASELINE, UNREMEDIED
from pipelag.results.leaderboard.scores import PAIRED, PAPER, above, cheaper, diverging, judged, score
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

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
            items = context.select(arm=arm, length=length)
            row[length] = Accuracy.of(items).text() if any(item.log is not None for item in items) else None
            if arm != BASELINE:
                row[f"lost {length}"] = lost(context, arm, length)
        rows.append(row)
    columns = [Col("method", "method")]
    columns += [Col(title, length, group="accuracy %, trained") for length, title in TITLES.items()]
    columns += [Col(title, f"lost {length}", group="below sequential, points") for length, title in TITLES.items()]
    why = context.left_out()
    notes = ["Below sequential training of the same length: mean ± half the 95 % interval over seeds, paired."]
    notes += [f"–: not run here; {why}."] if why else []
    return Drawn(table=tabulated(rows, columns, context.result.caption, notes))


def lost(context: Context, arm: str, length: str) -> str | None:
    """How far an arm ends below sequential training of the same length; None without the logs."""
    try:
        return above(*(score(context, each, length=length) for each in (BASELINE, arm)))[1]
    except NotLogged:
        return None


def falling(arm: str) -> Judge:
    """A judge: what an arm costs against sequential training is less after the longer training."""

    def told(context: Context) -> Finding:
        ends = {(each, length): score(context, each, length=length) for length in TITLES for each in (BASELINE, arm)}
        pairs = [(ends[BASELINE, length], ends[arm, length]) for length in TITLES]
        holds, prices, less = cheaper(pairs[0], pairs[1])
        words = " and ".join(f"{price:.2f} {title}" for price, title in zip(prices, TITLES.values(), strict=True))
        gone = diverging({f"{each} ({TITLES[length]})": values for (each, length), values in ends.items()})
        return trend(context, holds, f"{arm} costs, in points, {words}: less by {less}{gone}", PAIRED, what="learning")

    return told


judge(PAPER, "table_7", "price_of_none_falls")(falling(UNREMEDIED))
judge(PAPER, "table_7", "price_of_spectrain_falls")(falling(SPECTRAIN))


for _claim, _pair in (
    ("spectrain_still_pays", (BASELINE, SPECTRAIN)),
    ("spectrain_still_ahead", (SPECTRAIN, UNREMEDIED)),
    ("spectrain_still_over_stashing", (SPECTRAIN, "PipeDream")),
):
    judge(PAPER, "table_7", _claim)(partial(judged, pairs=[_pair], length=LONG))
