"""Longer training: whether PipeMare's ResNet-50 loses less to synchronous training the longer it is trained."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from pipelag.report.tables import Cell, Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, Difference, all_of, gaps, text_of, trend, whole_runs
from pipelag.results.learning import learned
from pipelag.results.pipemare.quality import BySeed, final, last_cell, mean_text
from pipelag.results.verdict import Finding, judge

PAPER = "pipemare"
TASK, SYNC, MARE = "images", "Sync", "T1+T2"
ONCE, THREE, NINE = LENGTHS = ("once", "three times", "nine times")
TITLES = {ONCE: "as in table 3", THREE: "three times as long", NINE: "nine times as long"}
SLACK = 2.0  # points below Sync that count as reaching it


def ends(context: Context, arm: str, length: str) -> BySeed:
    """The final accuracies of an arm after training of a length, by seed; raises `NotLogged` if a run diverged."""
    whole_runs(context, f"{arm}, trained {length},", task=TASK, arm=arm, length=length)
    return final(context, task=TASK, arm=arm, length=length)


def price(context: Context, arm: str, length: str) -> BySeed:
    """By how many points an arm ends below synchronous training of the same length, by seed."""
    sync, own = (ends(context, name, length) for name in (SYNC, arm))
    return gaps(sync, own)


def above(context: Context, arm: str, other: str, length: str = NINE) -> Difference:
    """By how much an arm ends above another after training of a length, paired over seeds."""
    return Difference.of(ends(context, arm, length), ends(context, other, length))


@drawing(PAPER, "length")
def length(context: Context) -> Drawn:
    """A row per arm: its final accuracy after each length, and how far it is below synchronous training."""
    rows: list[dict[str, Cell]] = []
    for arm in context.values("arm"):
        row: dict[str, Cell] = {"arm": arm}
        for each in LENGTHS:
            where = {"task": TASK, "arm": arm, "length": each}
            row[each] = last_cell(context, **where)
            logs = context.logs(**where)
            gone = sum(log.diverged_at is not None for log in logs)
            if 0 < gone < len(logs):
                row[each] = f"{row[each]}, {gone} of {len(logs)} diverged"
            if arm != SYNC:
                row[f"below {each}"] = text_of(partial(above, context, SYNC, arm, each))
        rows.append(row)
    cols = [Col("arm", "arm")]
    cols += [Col(TITLES[each], each, group="final accuracy %, trained") for each in LENGTHS]
    cols += [Col(TITLES[each], f"below {each}", group="below Sync, points") for each in LENGTHS]
    notes = ["Below Sync of the same length: mean ± half the 95 % interval over seeds, paired."]
    notes += [context.releases()] if context.releases() else []
    return Drawn.tabled(context, rows, cols, notes)


@judge(PAPER, "length", "longer_is_better_here")
def longer_is_better(context: Context) -> Finding:
    """Holds if Sync and T1+T2 both end higher at each step to the next length, paired over seeds."""
    steps = {
        arm: [Difference.of(ends(context, arm, more), ends(context, arm, less)) for less, more in pairwise(LENGTHS)]
        for arm in (SYNC, MARE)
    }
    texts = [f"{arm} {', '.join(step.text() for step in of_arm)}" for arm, of_arm in steps.items()]
    why = f"gained by three times the length, and by three times that, in points: {'; '.join(texts)}"
    return trend(context, all_of(step.above() for of_arm in steps.values() for step in of_arm), why, SEEDS)


@judge(PAPER, "length", "price_falls_here")
def price_falls(context: Context) -> Finding:
    """Holds if T1+T2 ends fewer points below Sync at each step to the next length, paired over seeds."""
    prices = [price(context, MARE, each) for each in LENGTHS]
    falls = [Difference.of(less, more) for less, more in pairwise(prices)]
    means = [f"{each} {mean_text(list(values.values()))}" for each, values in zip(LENGTHS, prices, strict=True)]
    why = f"points below Sync, trained {', '.join(means)}; less by {', '.join(fall.text() for fall in falls)}"
    return trend(context, all_of(fall.above() for fall in falls), why, SEEDS)


@judge(PAPER, "length", "reaches_sync_here")
def reaches_sync(context: Context) -> Finding:
    """Holds if after the longest training T1+T2 ends at most two points below Sync, by the whole interval."""
    learned(context, SYNC, task=TASK, arm=SYNC, length=NINE)
    gap = above(context, SYNC, MARE)
    why = f"{MARE} ends {gap.text()} points below {SYNC}"
    return trend(context, gap.below(SLACK), why, f"{SLACK:g} points; {SEEDS}", length=NINE)


def ahead(context: Context, arm: str, other: str, length: str) -> Finding:
    """Whether an arm ends above another after training of a length, paired over seeds."""
    gap = above(context, arm, other, length)
    means = ", ".join(f"{each} {mean_text(list(ends(context, each, length).values()))}" for each in (arm, other))
    return trend(context, gap.above(), f"{means}; above by {gap.text()} points", SEEDS, length=length)


for _claim, _arm, _other, _length in (
    ("remedies_help_here", MARE, "neither", NINE),
    ("remedies_help_sooner_here", MARE, "neither", THREE),
    ("t1_helps_here", "T1", "neither", NINE),
    ("t2_helps_here", MARE, "T1", NINE),
):
    judge(PAPER, "length", _claim)(partial(ahead, arm=_arm, other=_other, length=_length))
