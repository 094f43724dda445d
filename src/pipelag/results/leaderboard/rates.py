"""Tables 4, 10 and 13, figure 2: every method at its own learning rate, chosen by a search.

The search takes the rate with the lowest mean training loss between the last two evaluations, of the rates that a
method is trained with. It uses the seeds that the method has at each rate, and no test accuracies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Col
from pipelag.results.context import Accuracy, Context, ended_at
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import all_of, listing, trend
from pipelag.results.leaderboard.board import BOTH_UNREMEDIED
from pipelag.results.leaderboard.scores import (
    BASELINE,
    LAST,
    PAIRED,
    PAPER,
    STYLES,
    UNREMEDIED,
    WITH,
    above,
    base_of,
    dashes,
    diverging,
    loss_of,
    mean_text,
    meanings,
    place,
    priced,
    ranked,
    rate_of,
    score,
    shared_seeds,
    spread,
    unlearned,
    with_momentum,
)
from pipelag.results.logs import Item
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

NOTES = [
    "A method's own rate: of the rates tried for it, the one with the lowest mean final training loss over the seeds "
    "trained at each of them. Test accuracy plays no part in the choice.",
    "Cost: points of accuracy below sequential training, each at its own rate, over the seeds that both have.",
]

BOUNDS = "≤, ≥: the smallest or the greatest rate tried for the method; a better one may lie beyond it."


def searched_of(context: Context, arm: str) -> list[Item]:
    """A method's runs that the search uses: those that the scale does not leave out."""
    return [item for item in context.select(arm=arm) if not (item.log is None and item.arm.left_out)]


def searched(context: Context, arm: str) -> dict[str, dict[int, float]]:
    """A method's training losses by rate (its label) and seed, for the seeds that it has at every rate.

    Raises:
        NotLogged: a run has no log, there is only one rate, no seed has them all, or all runs of these seeds diverge.
    """
    items = searched_of(context, arm)
    missing = dict.fromkeys(f"{rate_of(item):g}" for item in items if item.log is None)
    if missing or not items:
        raise NotLogged(f"{arm} has no log at a rate of {', '.join(missing)}" if missing else f"{arm} has no log")
    losses: dict[str, dict[int, float]] = {}
    for item in items:
        losses.setdefault(item.arm.labels["rate"], {})[item.arm.seed] = loss_of(item)
    if len(losses) == 1:
        raise NotLogged(f"{arm} is trained at one rate, of which nothing is chosen")
    shared = set.intersection(*map(set, losses.values()))
    if not shared:
        raise NotLogged(f"{arm} has no seed that is trained at each of its rates")
    if all(of_seed[seed] == inf for of_seed in losses.values() for seed in shared):
        raise NotLogged(f"{arm} diverges at each of its rates, so that none is chosen")
    return {rate: {seed: of_seed[seed] for seed in sorted(shared)} for rate, of_seed in losses.items()}


def chosen(context: Context, arm: str) -> str:
    """The label of the rate that the search finds for a method.

    If a seed diverges at each rate, it is one of the rates at which the fewest seeds diverge (`ranked`).
    """
    losses = searched(context, arm)
    return min(losses, key=lambda rate: ranked(losses[rate].values()))


def by_seed(context: Context, arm: str) -> dict[int, float]:
    """The rate that the search would find from each seed alone; raises `NotLogged` if a seed diverges at each rate."""
    losses = searched(context, arm)
    for seed in next(iter(losses.values())):
        if all(of_seed[seed] == inf for of_seed in losses.values()):
            raise NotLogged(f"{arm} diverges with seed {seed} at each of its rates, so that none is chosen")
    rates = {label: rate_of(context.select(arm=arm, rate=label)[0]) for label in losses}
    seeds = next(iter(losses.values()))
    return {seed: rates[min(losses, key=lambda rate: losses[rate][seed])] for seed in seeds}


def own_rate(context: Context, arm: str) -> float:
    """The rate that the search finds for a method."""
    return rate_of(context.select(arm=arm, rate=chosen(context, arm))[0])


def at_its_own(context: Context, arm: str) -> dict[int, float]:
    """An arm's accuracies by seed at the rate that the search finds for it."""
    return score(context, arm, rate=chosen(context, arm))


def bounded(rate: float, tried: set[float]) -> str:
    """A found rate as text, with ≤ or ≥ if it is the smallest or the greatest that was tried."""
    return {min(tried): "≤ ", max(tried): "≥ "}.get(rate, "") + f"{rate:g}"


def row_of(context: Context, arm: str) -> dict[str, Any]:
    """One method's row of the table, and its `place`."""
    row: dict[str, Any] = {"method": with_momentum(context, arm), "place": place([])}
    for label in context.values("rate"):
        items = context.select(arm=arm, rate=label)
        text = Accuracy.of(items, usual=context.usual_seeds).text()
        row[f"at {label}"] = text if any(item.log is not None for item in items) else None
    try:
        best = chosen(context, arm)
        _, cost = above(at_its_own(context, base_of(arm)), at_its_own(context, arm))
    except NotLogged:
        return row
    runs = context.select(arm=arm, rate=best)
    row |= {
        "rate": bounded(rate_of(runs[0]), {rate_of(item) for item in searched_of(context, arm)}),
        "accuracy": Accuracy.of(runs, usual=context.usual_seeds).text(),
        "place": place(runs),
    }
    return row | ({"cost": cost} if arm != base_of(arm) else {})


@drawing(PAPER, "table_4", "table_10", "table_13")
def table(context: Context) -> Drawn:
    """A row per method, the most accurate at its own rate first; methods that diverge there come last."""
    rows = [row_of(context, arm) for arm in context.values("arm")]
    rows.sort(key=lambda row: row["place"])
    columns = [
        Col("method", "method"),
        Col("its rate", "rate"),
        Col("accuracy at it, %", "accuracy"),
        Col("cost, points", "cost"),
    ]
    rates = {rate_of(context.select(rate=label)[0]): label for label in context.values("rate")}
    for rate, label in sorted(rates.items()):
        columns.append(Col(f"{rate:g}", f"at {label}", group="accuracy at a rate of, %"))
    columns = [column for column in columns if any(column.of(row) is not None for row in rows)]
    notes = [spread(context), *NOTES] + [LAST] * any(0 < row["place"][0] <= 1 for row in rows)
    notes += [BOUNDS] * any(str(row.get("rate", ""))[:1] in ("≤", "≥") for row in rows)
    notes += meanings(context.values("arm")) + unlearned(context) + dashes(context) + untried(context)
    return Drawn.tabled(context, rows, columns, notes)


def untried(context: Context) -> list[str]:
    """A note on the rates that the searches of some methods do not include at any scale."""
    lacking: dict[str, list[str]] = {}
    for label in context.values("rate"):
        arms = [with_momentum(context, arm) for arm in context.values("arm") if not context.select(arm=arm, rate=label)]
        if arms:
            lacking[f"{rate_of(context.select(rate=label)[0]):g}"] = arms
    words = "; ".join(f"{rate}: {', '.join(arms)}" for rate, arms in lacking.items())
    return [f"Rates that took no part in the choice: {words}."] if words else []


@drawing(PAPER, "figure_2")
def over_rates(context: Context) -> Drawn:
    """Accuracy against the learning rate: a line per method that has several rates, over the seeds it has at each.

    Runs that diverge are left out of the means and make their points hollow; counting them as 0 would give a mean that
    no run has.
    """
    rows: list[dict[str, Any]] = []
    for arm in context.values("arm"):
        items = context.logged(arm=arm)
        shared = shared_seeds(items, rate_of)
        rows += [
            {"method": arm, "rate": rate_of(item), "accuracy": ended_at(item), "seed": item.arm.seed}
            for item in items
            if item.arm.seed in shared
        ]
    methods = [arm for arm in context.values("arm") if len({row["rate"] for row in rows if row["method"] == arm}) > 1]
    rows = [row for row in rows if row["method"] in methods]
    rows.sort(key=lambda row: (methods.index(row["method"]), row["rate"]))
    ticks = tuple(sorted({row["rate"] for row in rows}))
    x = Axis("rate", "learning rate at the beginning", log=True, ticks=ticks)
    y = Axis("accuracy", "accuracy (%)")
    chart = Lines(x, y, line="method", styles=STYLES, hollow=True, height=2.8)
    return Drawn.of(chart, rows, note=" ".join(meanings(methods)))


@judge(PAPER, "table_4", "staleness_wants_less")
@judge(PAPER, "table_13", "staleness_wants_less")
def staleness_wants_less(context: Context) -> Finding:
    """Holds if each pipeline without a remedy has a smaller rate than sequential training, from each seed alone.

    The search is repeated for each seed. Several seeds must agree, since one says nothing about the next.
    """
    rates = {arm: by_seed(context, arm) for arm in (BASELINE, *BOTH_UNREMEDIED)}
    outcomes = []
    for arm in BOTH_UNREMEDIED:
        smaller = [rates[arm][seed] < rates[BASELINE][seed] for seed in rates[arm] if seed in rates[BASELINE]]
        outcomes.append(smaller[0] if len(smaller) > 1 and len(set(smaller)) == 1 else None)
    words = "; ".join(
        f"{arm} {', '.join(f'{rate:g} (seed {seed})' for seed, rate in of_seed.items())}"
        for arm, of_seed in rates.items()
    )
    return trend(context, all_of(outcomes), f"rates found: {words}", "all of several seeds agree")


def beyond(context: Context, arms: Sequence[str]) -> dict[str, str]:
    """The methods whose rate is at an end of their search, with a remark for the verdict."""
    words = {}
    for arm in arms:
        tried = [rate_of(item) for item in searched_of(context, arm)]
        rate = own_rate(context, arm)
        if rate in (min(tried), max(tried)):
            end = "below the smallest" if rate == min(tried) else "above the greatest"
            words[arm] = f"; the best rate for {arm} may be {end} tried"
    return words


def unless_beyond(context: Context, finding: Finding, turning: Sequence[str]) -> Finding:
    """The finding, or "cannot be judged" if the best rate of a method that could turn it may lie beyond its search.

    turning: the methods whose better rate could turn the finding.
    """
    ends = beyond(context, turning)
    return replace(finding, holds=None if ends else finding.holds, why=finding.why + "".join(ends.values()))


def ahead_at_own(firsts: Sequence[str], others: Sequence[str], judged_at_common: str = "") -> Judge:
    """A judge that decides whether each of the methods `firsts` ends above each of `others`, all at their own rates.

    A method whose rate is at an end of its search may have a better one beyond, so it is never told to be below.

    judged_at_common: the table that judges the same claim at the common rate. If that is every method's own rate, the
    runs are the same, and the claim is not judged twice.
    """

    def judged(context: Context) -> Finding:
        scores = {arm: at_its_own(context, arm) for arm in (*firsts, *others)}
        if judged_at_common and all(chosen(context, arm) == COMMON for arm in scores):
            raise NotLogged(f"each one's own rate is the common rate, so {judged_at_common} already judges these runs")
        rates = {arm: own_rate(context, arm) for arm in scores}
        ends = beyond(context, tuple(scores))
        told = len(set(map(len, scores.values()))) > 1
        words: list[str] = []
        outcomes: list[bool | None] = []
        for first in firsts:
            costs = {arm: above(scores[first], scores[arm]) for arm in others}
            gains = ", ".join(f"minus {arm} (at {rates[arm]:g}): {cost}" for arm, (_, cost) in costs.items())
            words.append(f"{mean_text(first, scores[first], told)} at {rates[first]:g}; {gains}")
            outcomes += [
                None if (first in ends if holds is False else arm in ends) else holds
                for arm, (holds, _) in costs.items()
            ]
        text = "; ".join(words) + "".join(ends.values()) + diverging(scores)
        return trend(context, all_of(outcomes), text, PAIRED)

    return judged


for result in ("table_4", "table_13"):
    judge(PAPER, result, "cost_remains")(ahead_at_own((BASELINE,), BOTH_UNREMEDIED))
judge(PAPER, "table_4", "spectrain_ahead_at_own_rate")(ahead_at_own(("SpecTrain on 1F1B",), (UNREMEDIED, "PipeDream")))
judge(PAPER, "table_4", "spectrain_pays_at_own_rate")(ahead_at_own((BASELINE,), ("SpecTrain on 1F1B",)))

ADAMW, NADAM = (f"PipeDream{WITH}{optimizer}" for optimizer in ("AdamW", "NAdam"))
judge(PAPER, "table_10", "look_ahead_ahead_own")(ahead_at_own((NADAM,), (ADAMW,)))
judge(PAPER, "table_10", "look_ahead_pays_own")(ahead_at_own((base_of(NADAM),), (NADAM,)))

PREDICTING, ALONE, COMMON = ("XPipe", "PipeOptim"), f"1F1B{WITH}NAdam", "1"
judge(PAPER, "table_13", "stashing_helps_own")(ahead_at_own(("PipeDream",), (UNREMEDIED,)))
judge(PAPER, "table_13", "prediction_over_none_own")(ahead_at_own(PREDICTING, (UNREMEDIED,), "table 3"))
judge(PAPER, "table_13", "prediction_over_stashing_own")(ahead_at_own(PREDICTING, ("PipeDream",), "table 3"))
judge(PAPER, "table_13", "prediction_pays_own")(ahead_at_own((BASELINE,), ("PipeOptim",)))
judge(PAPER, "table_13", "look_ahead_alone_own")(ahead_at_own((ALONE,), (UNREMEDIED, "PipeOptim")))


def cheaper_at_own(before: str, after: str) -> Judge:
    """A judge that decides whether the arm `after` costs fewer points than `before`, all at their own rates.

    Points below sequential training with the arm's optimizer. The claim cannot be judged if a rate beyond those tried
    could turn it, by raising an arm or a baseline.
    """

    def judged(context: Context) -> Finding:
        prices = {arm: (at_its_own(context, base_of(arm)), at_its_own(context, arm)) for arm in (before, after)}
        finding = priced(context, {"8 stages": prices})
        turning = (after, base_of(before)) if finding.holds is False else (before, base_of(after))
        return unless_beyond(context, finding, turning)

    return judged


judge(PAPER, "table_10", "look_ahead_hides_delay_own")(cheaper_at_own(ADAMW, NADAM))
judge(PAPER, "table_13", "look_ahead_cheaper_own")(cheaper_at_own(UNREMEDIED, ALONE))


@judge(PAPER, "table_13", "costs_more_at_own")
def costs_more_at_own(context: Context) -> Finding:
    """Holds if each pipeline costs fewer points at the common rate than with every method at its own rate.

    For pipelines whose own rate is the common one, the two costs differ only by what sequential training gains. That is
    the same comparison for all of them, so it is made once.
    """
    arms = (UNREMEDIED, *PREDICTING)
    base_at_own, base_at_common = at_its_own(context, BASELINE), score(context, BASELINE, rate=COMMON)
    ends = {arm: score(context, arm, rate=COMMON) for arm in arms}
    still = [arm for arm in arms if chosen(context, arm) == COMMON and all(end > 0 for end in ends[arm].values())]
    finding = priced(
        context,
        {
            arm: {
                "at their own rates": (base_at_own, at_its_own(context, arm)),
                "at the common rate": (base_at_common, ends[arm]),
            }
            for arm in arms
            if arm not in still[1:]
        },
    )
    rates = ", ".join(f"{arm} {own_rate(context, arm):g}" for arm in (BASELINE, *arms))
    why = f"{finding.why}; own rates: {rates}"
    if len(still) > 1:
        alike = f"the own rate of {listing(still)} is the common rate"
        why = f"{alike}, so only {BASELINE} training changes and one comparison stands for all; {why}"
    finding = replace(finding, why=why)
    return unless_beyond(context, finding, (BASELINE,) if finding.holds is False else arms)


@judge(PAPER, "figure_2", "ahead_at_every_rate")
def ahead_at_every_rate(context: Context) -> Finding:
    """Holds if at every rate sequential training ends above both pipelines without a remedy."""
    words, outcomes = [], []
    rates = {rate_of(item): item.arm.labels["rate"] for item in context.select(arm=BASELINE) if not item.arm.left_out}
    for rate, label in sorted(rates.items()):
        base = score(context, BASELINE, rate=label)
        ends = {arm: score(context, arm, rate=label) for arm in BOTH_UNREMEDIED}
        costs = {arm: above(base, end) for arm, end in ends.items()}
        outcomes += [holds for holds, _ in costs.values()]
        gains = ", ".join(f"{arm} {cost}" for arm, (_, cost) in costs.items())
        words.append(f"at {rate:g} of {gains}{diverging(ends)}")
    return trend(context, all_of(outcomes), f"{BASELINE} training ahead, in points: " + "; ".join(words), PAIRED)
