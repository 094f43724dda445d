"""Epochs to a target: PipeDream's statistical efficiency compared with data parallelism's, from trained runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from pipelag.results import colours
from pipelag.results.arrivals import Arrival, Arrivals, Gain, by_rate, in_words
from pipelag.results.context import Context
from pipelag.results.logs import Item, RunLog, curve
from pipelag.results.verdict import NotLogged, if_logged

PIPED, ALONE = "PipeDream", "data parallelism"
COLOURS = {ALONE: colours.BASELINE, PIPED: colours.PIPEDREAM}  # in curves and bars
FOUR = "4 GPUs of Cluster-A"  # a title of panels
STYLES = {arm: (number, number) for arm, number in COLOURS.items()}
METRICS = {"VGG-16": "accuracy", "GNMT-16": "bleu", "AWD-LM": "perplexity"}  # of the models that are trained
UNITS = {"accuracy": "%", "bleu": "BLEU", "perplexity": "perplexity"}
# Two numbers of epochs are "about" equal within a quarter. The paper counts rows as alike whose speedups per epoch and
# to the target are that far apart (2.98x and 2.46x, 2.34x and 2.92x).
ALIKE = 1.25
ALIKE_WORDS = "within a quarter, as far as the paper's own speedups per epoch and to the target are apart"


def reaches(value: float, goal: float, metric: str) -> bool:
    """Whether a value is at least as good as a goal. Lower perplexities are better."""
    return value <= goal if metric == "perplexity" else value >= goal


def printed_target(context: Context, model: str) -> float:
    """The model's target in table 1."""
    return float(next(row["target"] for row in context.paper.results["table_1"].reported if row["model"] == model))


def trainings(context: Context, **labels: str) -> list[Item]:
    """The training runs with these labels."""
    return [item for item in context.select(**labels) if item.arm.spec.kind == "train"]


@dataclass(frozen=True)
class Goal:
    """A value that runs have to reach. text: the goal in words, with where it comes from if it is not the paper's."""

    value: float
    metric: str
    text: str

    def arrivals(self, context: Context, **labels: str) -> Arrivals:
        """When runs reach the goal, in epochs, by seed.

        Raises:
            NotLogged: a seed that the scale asks for has no log.
        """
        items = trainings(context, **labels)
        logs = {item.arm.seed: item.log for item in items if item.log is not None}
        missing = [item.arm.seed for item in items if item.log is None and not item.arm.left_out]
        if logs and missing:
            raise NotLogged(f"the run {' '.join(labels.values())}, seed {missing[0]}, has no log")
        return {seed: self.arrival(log) for seed, log in logs.items()}

    def arrival(self, log: RunLog) -> Arrival:
        """When a run reaches the goal, in epochs."""
        rows = log.evaluations(self.metric)
        return Arrival.of(rows, lambda row: reaches(row[self.metric], self.value, self.metric))


def goal_of(
    context: Context, model: str, runs: Mapping[str, str], printed: float | None = None, share: float = 0.95
) -> Goal:
    """The goal for a model: the paper's target, or, at scales that fall short of the paper, a share of the best value.

    The best value is that of the runs with these labels, averaged over seeds.

    Args:
        runs: the labels.
        printed: the paper's target; by default that of table 1.
        share: the share of the best value; a perplexity's goal is 2 - share times the best.

    Raises:
        NotLogged: the runs have no log.
    """
    metric, arm = METRICS[model], runs["arm"]
    better = min if metric == "perplexity" else max
    best = [better(v for _, v in points) for log in context.logs(**runs) if (points := curve(log, metric))]
    if not best:
        raise NotLogged(f"{model} under {arm} has no log, or diverged")
    if not context.shortfall(**runs):
        value = printed_target(context, model) if printed is None else printed
        return Goal(value, metric, f"{value:g} {UNITS[metric]}")
    share = 2 - share if metric == "perplexity" else share
    value = share * fmean(best)
    return Goal(value, metric, f"{value:.1f} {UNITS[metric]} ({100 * share:.0f} % of the best under {arm})")


@dataclass(frozen=True)
class Efficiency:
    """When two arms reach a goal, in epochs."""

    goal: Goal
    first: Arrivals
    second: Arrivals

    @property
    def by_rate(self) -> bool:
        """Whether every run of both arrives right after a fall of the learning rate; then the gain says nothing."""
        return by_rate(self.first, self.second)

    def mean(self) -> float | None:
        """The mean ratio of the second arm's epochs to the first's, as evaluated; None if the second never arrives.

        Over the seeds with which the second arrives. If the first never arrives with one of them, its ratio is 0.
        """
        second = {seed: one for seed, one in self.second.items() if seed in self.first and not one.never}
        return Gain.of(self.first, second).evaluated.mean if second else None

    def gain(self, factor: float = 1.0) -> Gain:
        """The second arm's epochs over the first's, multiplied by a factor, over the seeds that both have.

        Raises:
            NotLogged: with some seed the second arm never arrives, so the ratio is unknown; or they share no seed.
        """
        come = [not self.second[seed].never for seed in self.first if seed in self.second]
        if not all(come):
            seeds = " with every seed" if any(come) else ""
            raise NotLogged(f"{self.goal.text}: not reached by the arm that it is compared with{seeds}")
        return Gain.of(self.first, self.second, factor)

    def text(self, first: str = PIPED, second: str = ALONE) -> str:
        """The epochs of both arms in words."""
        epochs = f"epochs to {self.goal.text}: {first} {in_words(self.first)}, {second} {in_words(self.second)}"
        falls = [one.by_rate for arm in (self.first, self.second) for one in arm.values()]
        many = "all" if self.by_rate else f"{sum(falls)} of {len(falls)}"
        return epochs + (f", {many} at the first evaluation after a fall of the rate" if any(falls) else "")


def compared(context: Context, goal: Goal, first: Mapping[str, str], second: Mapping[str, str]) -> Efficiency:
    """When two arms, given by their labels, reach a goal.

    Raises:
        NotLogged: one of them has no log.
    """
    pair = [goal.arrivals(context, **labels) for labels in (first, second)]
    for arrivals, labels in zip(pair, (first, second), strict=True):
        if not arrivals:
            raise NotLogged(f"the run {' '.join(labels.values())} has no log")
    return Efficiency(goal, *pair)


def against_data_parallelism(context: Context, model: str) -> Efficiency:
    """The epochs of PipeDream and of data parallelism to a model's target.

    Raises:
        NotLogged: a run has no log, or diverged.
    """
    for item in (item for arm in (PIPED, ALONE) for item in trainings(context, model=model, arm=arm)):
        if item.log is not None and item.log.diverged_at is not None:
            where = f"with seed {item.arm.seed}, at step {item.log.diverged_at:,}"
            raise NotLogged(f"{model} under {item.arm.labels['arm']} diverged {where}")
    alone = {"model": model, "arm": ALONE}
    return compared(context, goal_of(context, model, alone), {"model": model, "arm": PIPED}, alone)


def arrivals(context: Context, models: Iterable[str]) -> list[str]:
    """Notes on the columns "to target": the target of each model, and when its runs reach it."""
    sentences = []
    for model in models:
        efficiency = if_logged(partial(against_data_parallelism, context, model))
        if efficiency is None:
            continue
        repeats = "; so 'to target' says no more than the epoch's speedup" if efficiency.by_rate else ""
        sentences.append(f"{model}, {efficiency.text()}{repeats}")
    return sentences
