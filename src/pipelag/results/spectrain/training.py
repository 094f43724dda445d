"""Table 1 and the headline on accuracy: six networks under four schemes, as trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from statistics import fmean

from pipelag.report.tables import Col, table
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import (
    ONE_MORE,
    SEEDS,
    Difference,
    all_of,
    asked_for,
    half_a_unit,
    learned,
    over_models,
    sized,
    trend,
    with_spread,
)
from pipelag.results.logs import RunLog
from pipelag.results.spectrain.below import below_tables, not_learning
from pipelag.results.spectrain.leads import Leads, decided, every, told
from pipelag.results.spectrain.timing import CNN, DENSE, LSTM, MODELS
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

PAPER = "spectrain"
DATA, VANILLA, PIPED, STASHED, SPECTRAIN = ARMS = (
    "Data P.",
    "Vanilla DualPipe",
    "PipeDream",
    "PipeDream, stashing",
    "SpecTrain",
)
# PipeDream keeps "the earliest version of weights throughout the entire round trip" (section 3.3): on all GPUs, which
# is PipeDream's vertical sync; its plain stashing, each GPU's own version, is the second reading.
READINGS = {"": PIPED, "_stashed": STASHED}
METRICS = {"min. train loss": "loss", "min. val. loss": "test_loss", "max. val. accuracy (%)": "accuracy"}
SIMILAR = 0.5  # points of accuracy
ROUNDED = 0.005  # of an accuracy printed to a hundredth: "at least" holds of two that are printed alike
TENTHS = 0.05  # half a unit of a mean drop, which is printed to a tenth
BySeed = dict[int, float]


def points(log: RunLog, metric: str) -> list[float]:
    """A metric of every evaluation of a run."""
    return [row[metric] for row in log.rows if row.get(metric) is not None]


def best(context: Context, model: str, arm: str, metric: str = "accuracy") -> BySeed:
    """The greatest accuracy or the least loss of a run, by seed; raises `NotLogged` unless all seeds have one."""
    better = min if "loss" in metric else max
    items = asked_for(context.select(what="training", model=model, arm=arm))
    values = {
        i.arm.seed: i.log.share(better(p)) if metric == "accuracy" else better(p)
        for i in items
        if i.log is not None and (p := points(i.log, metric))
    }
    if not values or len(values) < len(items):
        why = next((f" ({i.why})" for i in items if i.why), "")
        raise NotLogged(f"{arm} of {model} has no logged value" + (" of every seed" if values else "") + why)
    return values


def as_trained(context: Context, model: str, arm: str, metric: str = "accuracy") -> BySeed:
    """`best`, for a judge: of no run that diverged or, whatever the arm, does not learn, for in the paper all do."""
    whole(context, model, arm)
    learned(context, f"{arm} of {model}", what="training", model=model, arm=arm)
    return best(context, model, arm, metric)


def whole(context: Context, model: str, arm: str) -> None:
    """Raise `NotLogged` where a run diverged: what it reached before says nothing."""
    for item in context.select(what="training", model=model, arm=arm):
        if item.log is not None and item.log.diverged_at is not None:
            raise NotLogged(f"{arm} of {model} diverged with seed {item.arm.seed}, at step {item.log.diverged_at:,}")


def mean_best(context: Context, arm: str, models: Sequence[str] = MODELS) -> BySeed:
    """The greatest accuracies of an arm, mean over models, by seed; for a judge."""
    return over_models(as_trained(context, model, arm) for model in models)


def ahead(context: Context, first: str, second: str, models: Sequence[str] = MODELS) -> Difference:
    """By how much the first arm's mean over models is above the second's; for a judge."""
    return Difference.of(mean_best(context, first, models), mean_best(context, second, models))


def above(
    context: Context, first: str, second: str, models: Sequence[str] = MODELS, metric: str = "accuracy"
) -> dict[str, Difference]:
    """By how much the first arm's best accuracy, or least loss, is above the second's, by model; for a judge."""
    return {
        m: Difference.of(as_trained(context, m, first, metric), as_trained(context, m, second, metric)) for m in models
    }


def in_words(differences: Mapping[str, Difference], digits: int = 2) -> str:
    """Differences by name in words."""
    return ", ".join(f"{name} {one.text(digits)}" for name, one in differences.items())


def leads_of(
    context: Context, first: str, second: str, models: Sequence[str] = MODELS, metric: str = "accuracy"
) -> Leads:
    """By model, by how much the first arm's best accuracy, or least loss, is above the second's."""

    def lead(model: str) -> Difference:
        return above(context, first, second, [model], metric)[model]

    return {model: partial(lead, model) for model in models}


def each_above(context: Context, words: str, leads: Leads, bound: float = 0.0, digits: int = 2) -> Finding:
    """Whether all of these leads are above a bound. words: a format for what can be told."""
    known, reasons = told(leads)
    holds = every((one.above(bound) for one in known.values()), reasons)
    return decided(context, holds, words.format(in_words(known, digits)), reasons)


# Table 1


@drawing(PAPER, "table_1")
def table_1(context: Context) -> Drawn:
    """A row per model and arm: losses and accuracy, the paper's and ours."""
    rows = [(model, arm) for model in MODELS for arm in ARMS]

    def ours(metric: str) -> Callable[[tuple[str, str]], str | None]:
        def cell(row: tuple[str, str]) -> str | None:
            items = context.select(what="training", model=row[0], arm=row[1])
            if items and all(i.log is not None and i.log.diverged_at is not None for i in items):
                return "diverged"  # what they reached before says nothing
            try:
                values = list(best(context, *row, metric).values())
            except NotLogged:
                return None
            learns = not_learning(context, *row) if metric == "accuracy" else ""
            return with_spread(values, digits(metric)) + learns

        return cell

    def paper(number: int) -> Callable[[tuple[str, str]], float | None]:
        return lambda row: context.result.reported[row[0]].get(row[1], (None,) * 3)[number]

    def digits(metric: str) -> str:
        return "{:.2f}" if metric == "accuracy" else "{:.4f}"

    cols = [Col("Model", lambda row: row[0]), Col("Scheme", lambda row: row[1])]
    for number, (title, metric) in enumerate(METRICS.items()):
        cols += [Col("paper", paper(number), digits(metric), title), Col("ours", ours(metric), group=title)]
    seeds = {item.arm.seed for item in context.items}
    notes = [
        "PipeDream reads one version of the weights on all GPUs (vertical sync), as section 3.3 describes it; with "
        "stashing each GPU its own.",
        "Every accuracy printed is a multiple of 1/9,984: the paper evaluated 78 minibatches of 128.",
        "Ours: mean ± one standard deviation over seeds." if len(seeds) > 1 else "Ours: one seed.",
        "A run that ends near chance does not learn; no claim is judged by an arm with such a run.",
        *below_tables(context),
    ]
    return Drawn(table=table(rows, cols, context.result.caption, notes, rule_by="Model"))


def mean_order(piped: str) -> Judge:
    """A judge: mean accuracies over the six models, data parallelism above PipeDream above vanilla DualPipe."""

    def judged(context: Context) -> Finding:
        means = {arm: mean_best(context, arm) for arm in (DATA, piped, VANILLA)}
        first, second = (Difference.of(means[a], means[b]) for a, b in ((DATA, piped), (piped, VANILLA)))
        values = ", ".join(f"{arm} {fmean(by_seed.values()):.2f} %" for arm, by_seed in means.items())
        why = f"{values}; differences {first.text()} and {second.text()}"
        return trend(context, all_of((first.above(), second.above())), why, SEEDS, what="training")

    return judged


for _suffix, _piped in READINGS.items():
    judge(PAPER, "table_1", f"mean_order{_suffix}")(mean_order(_piped))


@judge(PAPER, "table_1", "spectrain_as_data")
def spectrain_as_data(context: Context) -> Finding:
    """The mean over the six models."""
    lead = ahead(context, SPECTRAIN, DATA)
    return trend(context, lead.above(-ROUNDED), f"{lead.text()} points", SEEDS, what="training")


def best_pipelined(piped: str) -> Judge:
    """A judge: SpecTrain has the best accuracy of the pipelines on every model but the LSTM."""

    def judged(context: Context) -> Finding:
        models = [model for model in MODELS if model != LSTM]
        over = {other: told(leads_of(context, SPECTRAIN, other, models)) for other in (VANILLA, piped)}
        texts = [f"over {other}: {in_words(known)}" for other, (known, _) in over.items()]
        with suppress(NotLogged):
            texts.append(f"beside: {in_words(above(context, SPECTRAIN, piped, [LSTM]))}")
        lacking = list(chain(*(reasons for _, reasons in over.values())))
        holds = every((one.above() for known, _ in over.values() for one in known.values()), lacking)
        return decided(context, holds, "; ".join(texts), lacking)

    return judged


for _suffix, _piped in READINGS.items():
    judge(PAPER, "table_1", f"best_pipelined{_suffix}")(best_pipelined(_piped))


@judge(PAPER, "table_1", "at_least_data_on_four")
def at_least_data_on_four(context: Context) -> Finding:
    """VGG16, Inception v4, SNN and Transformer."""
    models = ("VGG16", "Inception v4", "SNN", "Transformer")
    return each_above(context, "{}", leads_of(context, SPECTRAIN, DATA, models), -ROUNDED)


@judge(PAPER, "table_1", "below_data_on_two")
def below_data_on_two(context: Context) -> Finding:
    """The two sizes, each as one more run would give it."""
    lead = above(context, SPECTRAIN, DATA, ("ResNet-152", LSTM))
    printed = context.result.reported
    holds = all_of(
        lead[model].matches(printed[model][SPECTRAIN][2] - printed[model][DATA][2], ROUNDED) for model in lead
    )
    return sized(context, holds, in_words(lead), f"{ONE_MORE}; {half_a_unit(ROUNDED)}", what="training")


@judge(PAPER, "table_1", "vanilla_below_data")
def vanilla_below_data(context: Context) -> Finding:
    """Every model."""
    return each_above(context, "{}", leads_of(context, DATA, VANILLA))


def as_pipedream(piped: str) -> Judge:
    """A judge: on the LSTM SpecTrain's accuracy is about PipeDream's."""

    def judged(context: Context) -> Finding:
        lead = above(context, SPECTRAIN, piped, [LSTM])[LSTM]
        scores = context.result.reported[LSTM]
        printed = scores[SPECTRAIN][2] - scores[PIPED][2]
        why = f"SpecTrain above {piped} by {lead.text()} points"
        tolerance = f"'similar' is within half a point, as the printed {printed:+.2f} is; {SEEDS}"
        return trend(context, lead.within(-SIMILAR, SIMILAR), why, tolerance, model=LSTM)

    return judged


@judge(PAPER, "table_1", "lstm_above_vanilla")
def lstm_above_vanilla(context: Context) -> Finding:
    """The one model."""
    lead = above(context, SPECTRAIN, VANILLA, [LSTM])[LSTM]
    return trend(context, lead.above(), f"SpecTrain above {VANILLA} by {lead.text()} points", SEEDS, model=LSTM)


def least_loss(metric: str, excepted: Sequence[str], piped: str) -> Judge:
    """A judge: on all other models SpecTrain's least loss is below that of the other pipelines."""

    def judged(context: Context) -> Finding:
        models = [model for model in MODELS if model not in excepted]
        less = {arm: told(leads_of(context, arm, SPECTRAIN, models, metric)) for arm in (VANILLA, piped)}
        why = "; ".join(f"{arm} above SpecTrain {in_words(known, digits=4)}" for arm, (known, _) in less.items())
        lacking = list(chain(*(reasons for _, reasons in less.values())))
        holds = every((one.above() for known, _ in less.values() for one in known.values()), lacking)
        return decided(context, holds, why, lacking)

    return judged


for _suffix, _piped in READINGS.items():
    judge(PAPER, "table_1", f"lstm_as_pipedream{_suffix}")(as_pipedream(_piped))
    judge(PAPER, "table_1", f"least_validation_loss{_suffix}")(least_loss("test_loss", (LSTM,), _piped))
    judge(PAPER, "table_1", f"least_training_loss{_suffix}")(least_loss("loss", ("SNN", LSTM), _piped))


def trained_here(context: Context) -> list[str]:
    """The models that a scale trains, which may be some of the six; for a judge.

    One that lacks the logs of some runs is among them: a sentence about all of them waits for these.
    """

    def logged(model: str) -> bool:
        return any(i.log for arm in ARMS for i in context.select(what="training", model=model, arm=arm))

    models = [model for model in MODELS if logged(model)]
    if not models:
        raise NotLogged("no model is trained under every scheme here")
    return models


@judge(PAPER, "table_1", "stale_below_here")
def stale_below_here(context: Context) -> Finding:
    """Vanilla DualPipe and PipeDream with stashing, means over those models."""
    models = trained_here(context)
    leads = {arm: partial(ahead, context, DATA, arm, models) for arm in (VANILLA, STASHED)}
    return each_above(context, f"Data P. over {{}} points, mean over {', '.join(models)}", leads)


@judge(PAPER, "table_1", "above_vanilla_here")
def above_vanilla_here(context: Context) -> Finding:
    """Each of those models."""
    leads = {model: partial(ahead, context, SPECTRAIN, VANILLA, (model,)) for model in trained_here(context)}
    return each_above(context, "{} points", leads)


@judge(PAPER, "table_1", "above_stale_here")
def above_stale_here(context: Context) -> Finding:
    """Against both, means over those models."""
    models = trained_here(context)
    leads = {arm: partial(ahead, context, SPECTRAIN, arm, models) for arm in (VANILLA, STASHED)}
    return each_above(context, f"SpecTrain over {{}} points, mean over {', '.join(models)}", leads)


@judge(PAPER, "table_1", "as_data_here")
def as_data_here(context: Context) -> Finding:
    """The mean over those models."""
    models = trained_here(context)
    lead = ahead(context, SPECTRAIN, DATA, models)
    why = f"SpecTrain over Data P. {lead.text()} points, mean over {', '.join(models)}"
    return trend(context, lead.above(-ROUNDED), why, SEEDS, what="training")


# The headline on accuracy


@drawing(PAPER, "text_headline_accuracy")
def headline_accuracy(context: Context) -> Drawn:
    """Drops against data parallelism, mean over groups of models."""
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
    drops = table(rows, cols, context.result.caption)  # whose cells say what is lacking
    notes += [f"–: {'; '.join(lacking)}"] if lacking else []
    return Drawn(table=replace(drops, notes=[*notes, *below_tables(context)]))


def drop(arm: str, key: str) -> Judge:
    """A judge: the mean drop of an arm, against the printed one."""

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
    """On more than half of the six models: sections 1 and 6."""
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
    """Section 4.4: "almost all", of which Residual LSTM is "the only exception"."""
    lead, reasons = told(leads_of(context, SPECTRAIN, DATA))
    outcomes = [one.below(-ROUNDED) if model == LSTM else one.above(-ROUNDED) for model, one in lead.items()]
    return decided(context, every(outcomes, reasons), in_words(lead), reasons)
