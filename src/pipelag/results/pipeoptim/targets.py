"""Epochs and hours to a target accuracy, for figures 9 and 10 and table VI: as trained, times an epoch as timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from pipelag.results.context import Context
from pipelag.results.judging import Difference, all_of
from pipelag.results.pipeoptim.throughput import GPIPE, OPTIM, rates
from pipelag.results.pipeoptim.training import later, missing, points, rest
from pipelag.results.verdict import NotLogged, need

IMAGES = 100_000  # of Tiny-ImageNet's training set: an epoch of the hours and of table VI
TARGETS = {"ResNet-101": 66.0, "Inception-V3": 55.5}
SHARE = 0.95  # of GPipe's best, where the runs are not the paper's
TRAINING = "training"


def seconds_of_epoch(context: Context, model: str, arm: str) -> float | None:
    """Timed seconds of an epoch of the paper's training set."""
    rate = rates(context.log(what="plan", model=model)).get(arm)
    return IMAGES / rate if rate else None


def hours_of_epoch(context: Context, model: str, arm: str) -> float:
    """The same in hours, for a judge."""
    return need(seconds_of_epoch(context, model, arm), f"the timed epoch of {model} under {arm}") / 3600


@dataclass(frozen=True)
class Goal:
    """An accuracy to be reached, and how the text calls it."""

    value: float
    text: str

    def epochs(self, context: Context, **labels: str) -> dict[int, float | None]:
        """The epoch of the first evaluation that reaches it, by seed; None where none does.

        Raises:
            NotLogged: a seed that was asked for has no log.
        """
        by_seed: dict[int, float | None] = {}
        for item in context.select(what=TRAINING, **labels):
            if item.log is None:
                raise NotLogged(f"{', '.join(labels.values())}: {missing(item)}")
            line = points(item.log, "accuracy")
            by_seed[item.arm.seed] = next((epoch for epoch, value in line if value >= self.value), None)
        if not by_seed:
            raise NotLogged(f"{', '.join(labels.values())} has no logged value")
        return by_seed


def goal_of(context: Context, model: str) -> Goal:
    """The paper's target where the runs are the paper's; elsewhere a share of what GPipe reaches at best."""
    if not context.shortfall(what=TRAINING, model=model):
        return Goal(TARGETS[model], f"{TARGETS[model]:g} %")
    lines = [points(item.log, "accuracy") for item in context.select(what=TRAINING, model=model, arm=GPIPE)]
    best = [max(value for _, value in line) for line in lines if line]
    if not best:
        raise NotLogged(f"{model} under {GPIPE} has no log")
    value = SHARE * fmean(best)
    return Goal(value, f"{value:.1f} % ({100 * SHARE:.0f} % of GPipe's best)")


def told(epochs: Mapping[int, float | None], unit: float = 1.0) -> str:
    """Epochs (or, times a unit, hours) by seed."""
    return " ".join("never" if value is None else f"{unit * value:.3g}" for value in epochs.values())


def first_to_target(context: Context, model: str, hours: bool) -> tuple[bool | None, bool | None, str]:
    """Whether PipeOptim is the first at the target, whether GPipe is the last, and when each comes, in words."""
    goal, times, texts, length = goal_of(context, model), {}, [], {}
    arms = rest(context, (), what=TRAINING, model=model)
    for arm in arms:
        unit = hours_of_epoch(context, model, arm) if hours else 1.0
        epochs = goal.epochs(context, model=model, arm=arm)
        times[arm] = {seed: None if value is None else unit * value for seed, value in epochs.items()}
        runs = context.select(what=TRAINING, model=model, arm=arm)
        length[arm] = unit * min(points(item.log, "accuracy")[-1][0] for item in runs)
        texts.append(f"{arm} {told(times[arm])}")
    first = all_of(later(times[arm], times[OPTIM], length[arm]) for arm in arms if arm != OPTIM)
    slow = all_of(later(times[GPIPE], times[arm], length[GPIPE]) for arm in arms if arm != GPIPE)
    return first, slow, f"{'hours' if hours else 'epochs'} to {goal.text}: {', '.join(texts)}"


def speedups(context: Context, model: str) -> tuple[dict[str, Difference], str]:
    """How many times as soon PipeOptim is at the target as each of the others, over seeds; and that in words.

    Raises:
        NotLogged: one of them never is.
    """
    goal, hours = goal_of(context, model), {}
    for arm in rest(context, (), what=TRAINING, model=model):
        epochs = goal.epochs(context, model=model, arm=arm)
        if any(value is None for value in epochs.values()):
            raise NotLogged(f"{model} under {arm} does not reach {goal.text} with every seed, so there is no speedup")
        unit = hours_of_epoch(context, model, arm)
        hours[arm] = {seed: unit * value for seed, value in epochs.items() if value is not None}
    by_arm = {}
    for arm, values in hours.items():
        ratios = {seed: values[seed] / optim for seed, optim in hours[OPTIM].items() if seed in values}
        if arm != OPTIM:
            by_arm[arm] = Difference.of(ratios, dict.fromkeys(ratios, 0.0))
    return by_arm, f"to {goal.text}: " + ", ".join(f"{arm} {d.text().lstrip('+')}x" for arm, d in by_arm.items())


def printed_speedups(context: Context, model: str) -> dict[str, float]:
    """Of table VI's total times, to two digits as the text has them."""
    total = {
        row["approach"]: row["total_h"] for row in context.paper.results["table_6"].reported if row["model"] == model
    }
    return {arm: round(hours / total[OPTIM], 2) for arm, hours in total.items() if arm != OPTIM}
