"""Epochs and hours to a target accuracy (figures 9 and 10, table VI): trained epochs, times a simulated epoch."""

from __future__ import annotations

from dataclasses import dataclass

from pipelag.results.arrivals import Arrival, Arrivals, later
from pipelag.results.context import Context
from pipelag.results.judging import Difference, all_of
from pipelag.results.logs import Item
from pipelag.results.pipeoptim.throughput import GPIPE, OPTIM, rates
from pipelag.results.pipeoptim.training import diverged, missing, other_arms, scores
from pipelag.results.verdict import NotLogged, need

IMAGES = 100_000  # images of Tiny-ImageNet's training set, which an epoch of table VI goes through
TARGETS = {"ResNet-101": 66.0, "Inception-V3": 55.5}
# Where the runs are not the paper's, the target is this share of the lowest of the approaches' best accuracies, so that
# all approaches reach it. It is as near below as the paper's targets are (66 % of 66.12 %, 55.5 % of 55.55 %).
SHARE = 0.998
TRAINING = "training"


def seconds_of_epoch(context: Context, model: str, arm: str) -> float | None:
    """Simulated seconds of an epoch of the paper's training set; None without a log."""
    rate = rates(context.log(what="plan", model=model)).get(arm)
    return IMAGES / rate if rate else None


def hours_of_epoch(context: Context, model: str, arm: str) -> float:
    """Simulated hours of an epoch of the paper's training set, for a judge.

    Raises:
        NotLogged: the approach has no logged throughput.
    """
    return need(seconds_of_epoch(context, model, arm), f"the simulated epoch of {model} under {arm}") / 3600


@dataclass(frozen=True)
class Goal:
    """A target accuracy in percent, and how sentences name it."""

    value: float
    text: str

    def arrivals(self, context: Context, **labels: str) -> Arrivals:
        """When the runs with these labels reach the target, by seed.

        Raises:
            NotLogged: a seed has no log, or diverged.
        """
        named = ", ".join(labels.values())
        arrivals = {item.arm.seed: self.arrival(item, named) for item in trainings(context, **labels)}
        if not arrivals:
            raise NotLogged(f"{named} has no logged value")
        return arrivals

    def arrival(self, item: Item, named: str) -> Arrival:
        """When a run reaches the target.

        Args:
            named: what sentences call the run.

        Raises:
            NotLogged: it has no log or no evaluation, or diverged.
        """
        rows = item.log.evaluations("accuracy") if item.log is not None else []
        if diverged(item) or not rows:
            raise NotLogged(f"{named}: {missing(item)}")
        return Arrival.of(rows, lambda row: row["accuracy"] >= self.value)


def trainings(context: Context, **labels: str) -> list[Item]:
    """The training runs with these labels."""
    return context.select(what=TRAINING, **labels)


def goal_of(context: Context, model: str) -> Goal:
    """The paper's target in the paper's runs; in others a target just below the best accuracy of the worst approach.

    Raises:
        NotLogged: an approach has no log, diverged or does not learn.
    """
    if not context.shortfall(what=TRAINING, model=model):
        return Goal(TARGETS[model], f"{TARGETS[model]:g} %")
    lowest: dict[str, float] = {}
    for arm in other_arms(context, (), what=TRAINING, model=model):
        lowest[arm] = min(scores(context, what=TRAINING, model=model, arm=arm).values())
    if not lowest:
        raise NotLogged(f"{model} has no log")
    worst = min(lowest, key=lowest.__getitem__)
    value = SHARE * lowest[worst]
    how = f"{100 * SHARE:.1f} % of {worst}'s best, the lowest"
    return Goal(value, f"{value:.1f} % ({how}; the paper's target is {TARGETS[model]:g} %)")


def in_words(arrivals: Arrivals) -> str:
    """Arrivals by seed, in words."""
    return " ".join("never" if arrival.never else f"{arrival.by:.3g}" for arrival in arrivals.values())


def first_to_target(context: Context, model: str, hours: bool) -> tuple[bool | None, bool | None, str]:
    """Whether PipeOptim is the first at the target, whether GPipe is the last, and when each arrives, in words.

    Args:
        hours: compare times; epochs otherwise.
    """
    goal, by_arm = goal_of(context, model), {}
    for arm in other_arms(context, (), what=TRAINING, model=model):
        unit = hours_of_epoch(context, model, arm) if hours else 1.0
        arrivals = goal.arrivals(context, model=model, arm=arm)
        by_arm[arm] = {seed: arrival.times(unit) for seed, arrival in arrivals.items()}
    first = all_of(later(by_arm[arm], by_arm[OPTIM]) for arm in by_arm if arm != OPTIM)
    slow = all_of(later(by_arm[GPIPE], by_arm[arm]) for arm in by_arm if arm != GPIPE)
    texts = ", ".join(f"{arm} {in_words(arrivals)}" for arm, arrivals in by_arm.items())
    return first, slow, f"{'hours' if hours else 'epochs'} to {goal.text}, as evaluated: {texts}"


def speedups(context: Context, model: str) -> tuple[dict[str, Difference], str]:
    """How many times as fast as each other approach PipeOptim reaches the target, over seeds; and the same in words.

    Raises:
        NotLogged: an approach does not reach it with some seed.
    """
    goal, hours = goal_of(context, model), {}
    for arm in other_arms(context, (), what=TRAINING, model=model):
        arrivals = goal.arrivals(context, model=model, arm=arm)
        if any(arrival.never for arrival in arrivals.values()):
            raise NotLogged(f"{model} under {arm} does not reach {goal.text} with every seed, so there is no speedup")
        unit = hours_of_epoch(context, model, arm)
        hours[arm] = {seed: unit * arrival.by for seed, arrival in arrivals.items()}
    by_arm = {}
    for arm, values in hours.items():
        if arm != OPTIM:
            ratios = {seed: values[seed] / optim for seed, optim in hours[OPTIM].items() if seed in values}
            by_arm[arm] = Difference.from_zero(ratios)
    return by_arm, f"PipeOptim's speedup to {goal.text}, over " + ", ".join(
        f"{arm} {d.text().lstrip('+')}" for arm, d in by_arm.items()
    )


def printed_speedups(context: Context, model: str) -> dict[str, float]:
    """The speedups that follow from table VI's total times, rounded to two decimals as in the text."""
    total = {
        row["approach"]: row["total_h"] for row in context.paper.results["table_6"].reported if row["model"] == model
    }
    return {arm: round(hours / total[OPTIM], 2) for arm, hours in total.items() if arm != OPTIM}
