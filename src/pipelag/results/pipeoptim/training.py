"""Reading PipeOptim's trainings: accuracies and BLEU by seed, and how approaches are compared by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, not_logged
from pipelag.results.judging import SEEDS, Difference, all_of, asked_for, over_models
from pipelag.results.learning import learned
from pipelag.results.logs import Item, curve
from pipelag.results.pipeoptim.throughput import OPTIM
from pipelag.results.verdict import NotLogged

# "About" as good is within a point on the paper's data: rows that the paper calls comparable, PipeOptim and SpecTrain
# with SGDM, are 0.03 to 0.91 apart. On data that a network learns in seconds, approaches lie tens of points apart.
ABOUT, ABOUT_ELSEWHERE = 1.0, 5.0
ROUNDED = 0.005  # half a unit of the last digit of a printed mean or difference
SCATTERED = 1 / 3  # seeds are named whose standard deviation is a larger share of their mean
Values = dict[int, float]  # by seed
How = Callable[[Sequence[float]], float]  # reduces a run's evaluations to one number


def last(values: Sequence[float]) -> float:
    """The last value of a curve."""
    return values[-1]


def begin(share: float) -> How:
    """A function that gives the mean of the evaluations in the first part of a run; one evaluation at least.

    Args:
        share: that part, of the whole run.
    """
    return lambda values: fmean(values[: max(1, round(share * len(values)))])


def metric_of(model: str) -> str:
    """The column of the evaluations that a model is tested by."""
    return "bleu" if model.startswith("GNMT") else "accuracy"


def title_of(model: str) -> str:
    """The title of an axis with what a model is tested by."""
    return "BLEU" if model.startswith("GNMT") else "top-1 accuracy (%)"


def one_number(item: Item, how: How, metric: str) -> float | None:
    """The number that `how` makes of a run's evaluations; None without a log, or where the run diverged.

    What a diverged run reached before says nothing.
    """
    if item.log is None or diverged(item):
        return None
    rows = item.log.evaluations(metric)
    if not rows:
        return None
    if how not in (max, last) or metric not in ("accuracy", "top5", "bleu"):
        return how([row[metric] for row in rows])
    row = rows[-1] if how is last else max(rows, key=lambda row: row[metric])
    return item.log.bleu(row) if metric == "bleu" else item.log.share(row[metric])


def scores(context: Context, how: How = max, metric: str = "", **labels: str) -> Values:
    """The number that `how` makes of each run with these labels, by seed, for a judge.

    Args:
        metric: a column of the evaluations; by default what the model is tested by.

    Raises:
        NotLogged: unless all seeds that were asked for have a number, and the network learned.
    """
    chosen, values = asked_for(context.select(**labels)), {}
    what = ", ".join(value for key, value in labels.items() if key != "what")
    for item in chosen:
        value = one_number(item, how, metric or metric_of(item.arm.labels["model"]))
        if value is None:
            raise NotLogged(f"{what}: {missing(item)}")
        values[item.arm.seed] = value
    if not values:
        raise NotLogged(f"{what} has no logged value")
    learned(context, what, **labels)
    return values


def diverged(item: Item) -> bool:
    """Whether a run has a log that ends in divergence."""
    return item.log is not None and item.log.diverged_at is not None


def missing(item: Item) -> str:
    """Why a run has no number."""
    if item.log is None and item.why:
        return item.why
    return f"seed {item.arm.seed} " + ("diverged" if diverged(item) else "has no log")


def about(context: Context, **labels: str) -> tuple[float, str]:
    """How far apart scores of these runs may be that are about the same; and the same in words."""
    near = ABOUT_ELSEWHERE if context.shortfall(**labels) else ABOUT
    return near, f"about is within {near:g} point{'s' if near > 1 else ''}; {SEEDS}"


def other_arms(context: Context, besides: Sequence[str] = (OPTIM,), **labels: str) -> list[str]:
    """The approaches of these runs, without some (`besides`)."""
    return [arm for arm in context.values("arm", **labels) if arm not in besides]


def above(
    context: Context,
    others: Iterable[str],
    arm: str = OPTIM,
    how: How = max,
    metric: str = "",
    margin: float = 0.0,
    **labels: str,
) -> tuple[bool | None, str]:
    """Whether an approach is above each of the others, and how far, in words.

    Where another has no number, that comparison cannot be told, and so the approach is not above all.

    Args:
        how: makes one number of a run's evaluations.
        metric: a column of the evaluations; by default what the model is tested by.
        margin: how far above; it may be negative.
    """
    values, words = scores(context, how, metric, arm=arm, **labels), []
    outcomes: list[bool | None] = []
    for other in others:
        try:
            step = Difference.of(values, scores(context, how, metric, arm=other, **labels))
        except NotLogged as error:  # another approach that is above it makes the answer "no" all the same
            outcomes.append(None)
            words.append(f"{other} unknown ({error})")
        else:
            outcomes.append(step.above(margin))
            words.append(f"{other} {step.text()}")
    return all_of(outcomes), f"{arm} {fmean(values.values()):.2f}, over {', '.join(words)}"


@dataclass(frozen=True)
class Uneven(Difference):
    """A mean over models that have different seeds. No seed has it, so that it has no interval and decides nothing."""

    def text(self, digits: int = 2) -> str:
        """The mean in words."""
        return f"{self.mean:+.{digits}f} (models of different seeds, no interval)"


def over_all(each: Iterable[tuple[Values, Values]]) -> Difference:
    """How far the first is above the second, averaged over models; `each` has both sides of a model, by seed.

    Of a model those seeds count that both sides have.
    """
    pairs = [({seed: a[seed] for seed in a if seed in b}, {seed: b[seed] for seed in b if seed in a}) for a, b in each]
    if len({frozenset(side) for pair in pairs for side in pair}) == 1:
        return Difference.of(*(over_models(side) for side in zip(*pairs, strict=True)))
    by_model = [Difference.of(*pair) for pair in pairs]
    return Uneven(fmean(one.mean for one in by_model), None, min(one.seeds for one in by_model))


def by_words(items: Iterable[Item], words: Callable[[Item], str]) -> str:
    """What is said of approaches, in words; those of which the same is said stand together."""
    arms: dict[str, dict[str, None]] = {}
    for item in items:
        arms.setdefault(words(item), {})[item.arm.labels["arm"]] = None
    return "; ".join(f"{', '.join(names)} {text}" for text, names in arms.items())


def samples_of(item: Item) -> str:
    """The samples of an update: "64" of one pass, "4 x 16" of several microbatches."""
    many = item.arm.spec.phases[-1].microbatches
    return str(item.arm.spec.batch) if many == 1 else f"{many} x {item.arm.spec.batch // many}"


def per_model(context: Context, describe: Callable[[list[Item]], str]) -> str:
    """What `describe` says of each model's logged trainings, in words.

    Models of which the same is said stand together, without their names if these are all.
    """
    by_text: dict[str, list[str]] = {}
    for model in context.values("model"):
        runs = [item for item in context.logged(model=model) if item.arm.spec.kind == "train"]
        if runs:
            by_text.setdefault(describe(runs), []).append(model)
    return ". ".join(f"{', '.join(models)}: {text}" if len(by_text) > 1 else text for text, models in by_text.items())


def splits(context: Context) -> list[str]:
    """A sentence on the samples of an update, where some approaches sum several microbatches; none otherwise."""

    def describe(runs: list[Item]) -> str:
        summed = [item for item in runs if item.arm.spec.phases[-1].microbatches > 1]
        others = dict.fromkeys(samples_of(item) for item in runs if item not in summed)
        return f"{by_words(summed, samples_of)}; the others {' or '.join(others)}" if summed else ""

    words = per_model(context, describe)
    return [f"Samples of an update: {words}."] if words else []


def updates_of(item: Item) -> str:
    """The number of a run's updates and their samples, in words."""
    return f"{item.arm.spec.steps:,} of {samples_of(item)} samples"


def updates(context: Context) -> list[str]:
    """A sentence on how many updates each approach makes of the same samples, in minibatches of different sizes."""
    words = per_model(context, lambda runs: by_words(runs, updates_of))
    rates = {item.arm.spec.optimizer.lr for item in context.logged() if item.arm.spec.optimizer is not None}
    return [f"Updates{', all at one rate' if len(rates) == 1 else ''}: {words}."] if words else []


def layers_of(context: Context, model: str) -> int | None:
    """How many layers a model has here, where it is smaller than the paper's and its options say so."""
    networks = [item.arm.spec.model for item in context.logged(model=model) if item.arm.spec.kind == "train"]
    return networks[0].options.get("layers") if networks and networks[0] and context.smaller(model=model) else None


def scattered(context: Context) -> list[str]:
    """A sentence for each approach to a model whose seeds are so far apart that their mean says little."""
    sentences = []
    for model, arm, optimizer in dict.fromkeys(
        (item.arm.labels["model"], item.arm.labels["arm"], item.arm.labels["optimizer"]) for item in context.logged()
    ):
        runs = context.select(model=model, arm=arm, optimizer=optimizer)
        best = [value for item in runs if (value := one_number(item, max, metric_of(model))) is not None]
        if len(best) > 1 and stdev(best) > SCATTERED * fmean(best):
            ends = ", ".join(f"{value:.2f}" for value in best)
            sentences.append(f"{arm}'s seeds of {model} lie far apart, their best evaluations at {ends}.")
    return sentences


def curve_rows(items: Iterable[Item], metric: str, line: Callable[[Item], str] | None = None) -> list[dict[str, Any]]:
    """The evaluations of runs as rows of a chart."""
    return [
        {
            "approach": line(item) if line else item.arm.labels["arm"],
            "seed": item.arm.seed,
            "epoch": epoch,
            "value": value,
        }
        for item in items
        for epoch, value in curve(item.log, metric)
    ]


def over_epochs(
    context: Context,
    items: Sequence[Item],
    metric: str,
    title: str,
    line: Callable[[Item], str] | None = None,
    note: str = "",
    **settings: Any,
) -> Drawn:
    """Scores of runs of a model over epochs, a line per approach.

    Args:
        metric: the column of the evaluations.
        title: that of the y axis.
        line: names a run's line; by default its approach.
        settings: further ones of the chart (`frames.Lines`).
    """
    (model,) = context.values("model")
    rows = curve_rows(items, metric, line)
    if not rows:
        return not_logged("no training is logged")
    panel = panel_of(context, model, items)
    chart = Lines(Axis("epoch", "epoch"), Axis("value", title), line="approach", panel="panel", **settings)
    return Drawn.of(chart, [row | {"panel": panel} for row in rows], note=note)


def panel_of(context: Context, model: str, items: Iterable[Item]) -> str:
    """What a panel shows: the model, "small" if it is smaller than the paper's, its optimizer and its data."""
    titles = [item.log.data.get("title", "?") for item in items if item.log is not None]
    layers = layers_of(context, model)
    small = (f" (small, {layers} layers)" if layers else " (small)") if context.smaller(model=model) else ""
    by = next((item.arm.labels.get("optimizer") for item in context.select(model=model)), None)
    return ", ".join(filter(None, (f"{model}{small}", by, titles[0] if titles else "?")))
