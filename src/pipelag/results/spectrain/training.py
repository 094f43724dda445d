"""Table 1: six networks trained under four schemes. Other results are judged by its values, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from statistics import fmean

from pipelag.report.tables import Col
from pipelag.results.context import Context, seeds_in_words
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import (
    ONE_MORE,
    SEEDS,
    Difference,
    all_of,
    asked_for,
    half_a_unit,
    over_models,
    sized,
    spread_over,
    trend,
    with_spread,
)
from pipelag.results.learning import learned
from pipelag.results.logs import RunLog
from pipelag.results.spectrain.below import below_tables, not_learning
from pipelag.results.spectrain.leads import Leads, decided, every, told
from pipelag.results.spectrain.timing import LSTM, MODELS
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

PAPER = "spectrain"
DATA, VANILLA, PIPED, STASHED, SPECTRAIN = ARMS = (
    "Data P.",
    "Vanilla DualPipe",
    "PipeDream",
    "PipeDream, stashing",
    "SpecTrain",
)
# PipeDream keeps "the earliest version of weights throughout the entire round trip" (section 3.3). The first reading is
# one version on all GPUs, PipeDream's vertical sync; the second is its plain stashing, each GPU's own version.
READINGS = {"": PIPED, "_stashed": STASHED}
METRICS = {"min. train loss": "loss", "min. val. loss": "test_loss", "max. val. accuracy (%)": "accuracy"}
SIMILAR = 0.5  # points of accuracy that count as similar
ROUNDED = 0.005  # points; "at least" holds for two accuracies that are equal as printed, to a hundredth
BySeed = dict[int, float]


def points(log: RunLog, metric: str) -> list[float]:
    """A metric's values at the evaluations of a run."""
    return [row[metric] for row in log.evaluations(metric)]


def best(context: Context, model: str, arm: str, metric: str = "accuracy") -> BySeed:
    """The best value of a run, greatest accuracy or least loss, by seed; raises `NotLogged` if a seed has none."""
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
    """`best` for a judge. Raises `NotLogged` if a run diverged or does not learn, since in the paper all arms learn."""
    whole(context, model, arm)
    learned(context, f"{arm} of {model}", what="training", model=model, arm=arm)
    return best(context, model, arm, metric)


def whole(context: Context, model: str, arm: str) -> None:
    """Raise `NotLogged` if a run diverged, since the best value before that says nothing."""
    for item in context.select(what="training", model=model, arm=arm):
        if item.log is not None and item.log.diverged_at is not None:
            raise NotLogged(f"{arm} of {model} diverged with seed {item.arm.seed}, at step {item.log.diverged_at:,}")


def mean_best(context: Context, arm: str, models: Sequence[str] = MODELS) -> BySeed:
    """An arm's greatest accuracies by seed, averaged over models (`as_trained`)."""
    return over_models(as_trained(context, model, arm) for model in models)


def ahead(context: Context, first: str, second: str, models: Sequence[str] = MODELS) -> Difference:
    """By how much the first arm's mean accuracy over models is above the second's, paired over seeds."""
    return Difference.of(mean_best(context, first, models), mean_best(context, second, models))


def above(
    context: Context, first: str, second: str, models: Sequence[str] = MODELS, metric: str = "accuracy"
) -> dict[str, Difference]:
    """By how much the first arm's best value is above the second's, by model and paired over seeds."""
    return {
        m: Difference.of(as_trained(context, m, first, metric), as_trained(context, m, second, metric)) for m in models
    }


def in_words(differences: Mapping[str, Difference], digits: int = 2) -> str:
    """Differences by name in words."""
    return ", ".join(f"{name} {one.text(digits)}" for name, one in differences.items())


def leads_of(
    context: Context, first: str, second: str, models: Sequence[str] = MODELS, metric: str = "accuracy"
) -> Leads:
    """`above` by model, each computed when it is asked for, since some models may not be logged."""

    def lead(model: str) -> Difference:
        return above(context, first, second, [model], metric)[model]

    return {model: partial(lead, model) for model in models}


def each_above(context: Context, words: str, leads: Leads, bound: float = 0.0) -> Finding:
    """Whether all of these leads are above a bound. words: the sentence's format, with {} for the known leads."""
    known, reasons = told(leads)
    holds = every((one.above(bound) for one in known.values()), reasons)
    return decided(context, holds, words.format(in_words(known)), reasons)


def told_over(leads: Mapping[str, Leads]) -> tuple[bool | None, dict[str, dict[str, Difference]], list[str]]:
    """Whether all leads over several arms are above 0, those that are logged by arm, and why others are not."""
    over = {arm: told(each) for arm, each in leads.items()}
    lacking = list(chain(*(reasons for _, reasons in over.values())))
    holds = every((one.above() for known, _ in over.values() for one in known.values()), lacking)
    return holds, {arm: known for arm, (known, _) in over.items()}, lacking


# Table 1


@drawing(PAPER, "table_1")
def table_1(context: Context) -> Drawn:
    """A row per model and arm: losses and accuracy, the paper's and ours."""
    rows = [(model, arm) for model in MODELS for arm in ARMS]

    def ours(metric: str) -> Callable[[tuple[str, str]], str | None]:
        def cell(row: tuple[str, str]) -> str | None:
            items = context.select(what="training", model=row[0], arm=row[1])
            if items and all(i.log is not None and i.log.diverged_at is not None for i in items):
                return "diverged"  # the best value before that says nothing
            try:
                values = list(best(context, *row, metric).values())
            except NotLogged:
                return None
            learns = not_learning(context, *row) if metric == "accuracy" else ""
            other = f" ({seeds_in_words(len(values))})" if len(values) != context.usual_seeds else ""
            return with_spread(values, digits(metric)) + other + learns

        return cell

    def paper(number: int) -> Callable[[tuple[str, str]], float | None]:
        return lambda row: context.result.reported[row[0]].get(row[1], (None,) * 3)[number]

    def digits(metric: str) -> str:
        return "{:.2f}" if metric == "accuracy" else "{:.4f}"

    cols = [Col("Model", lambda row: row[0]), Col("Scheme", lambda row: row[1])]
    for number, (title, metric) in enumerate(METRICS.items()):
        cols += [Col("paper", paper(number), digits(metric), title), Col("ours", ours(metric), group=title)]
    notes = [
        "PipeDream reads one version of the weights on all GPUs (vertical sync), as section 3.3 describes it; with "
        "stashing each GPU its own.",
        "Every accuracy printed is a multiple of 1/9,984: the paper evaluated 78 minibatches of 128.",
        spread_over("Ours", context.over_seeds),
        "A run that ends near chance does not learn; no claim is judged by an arm with such a run.",
        *below_tables(context),
    ]
    return Drawn.tabled(context, rows, cols, notes, rule_by="Model")


def mean_order(piped: str) -> Judge:
    """A judge that decides whether mean accuracies fall from data parallelism to PipeDream to vanilla DualPipe."""

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
    """Holds if SpecTrain's mean accuracy over the six models is at least data parallelism's, as rounded in print."""
    lead = ahead(context, SPECTRAIN, DATA)
    return trend(context, lead.above(-ROUNDED), f"{lead.text()} points", SEEDS, what="training")


def best_pipelined(piped: str) -> Judge:
    """A judge that decides whether SpecTrain is above both other pipelines on every model except the LSTM."""

    def judged(context: Context) -> Finding:
        models = [model for model in MODELS if model != LSTM]
        holds, over, lacking = told_over(
            {other: leads_of(context, SPECTRAIN, other, models) for other in (VANILLA, piped)}
        )
        texts = [f"over {other}: {in_words(known)}" for other, known in over.items()]
        with suppress(NotLogged):
            texts.append(f"beside: {in_words(above(context, SPECTRAIN, piped, [LSTM]))}")
        return decided(context, holds, "; ".join(texts), lacking)

    return judged


for _suffix, _piped in READINGS.items():
    judge(PAPER, "table_1", f"best_pipelined{_suffix}")(best_pipelined(_piped))


@judge(PAPER, "table_1", "at_least_data_on_four")
def at_least_data_on_four(context: Context) -> Finding:
    """Holds if SpecTrain is at least as accurate as data parallelism on each of four models, as rounded in print."""
    models = ("VGG16", "Inception v4", "SNN", "Transformer")
    return each_above(context, "{}", leads_of(context, SPECTRAIN, DATA, models), -ROUNDED)


@judge(PAPER, "table_1", "below_data_on_two")
def below_data_on_two(context: Context) -> Finding:
    """Holds if one more pair of runs could give each of the two printed differences (`Difference.matches`)."""
    lead = above(context, SPECTRAIN, DATA, ("ResNet-152", LSTM))
    printed = context.result.reported
    holds = all_of(
        lead[model].matches(printed[model][SPECTRAIN][2] - printed[model][DATA][2], ROUNDED) for model in lead
    )
    return sized(context, holds, in_words(lead), f"{ONE_MORE}; {half_a_unit(ROUNDED)}", what="training")


@judge(PAPER, "table_1", "vanilla_below_data")
def vanilla_below_data(context: Context) -> Finding:
    """Holds if data parallelism is above vanilla DualPipe on every model."""
    return each_above(context, "{}", leads_of(context, DATA, VANILLA))


def as_pipedream(piped: str) -> Judge:
    """A judge that decides whether SpecTrain is within half a point of PipeDream on the LSTM, by the whole interval."""

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
    """Holds if SpecTrain is above vanilla DualPipe on the LSTM."""
    lead = above(context, SPECTRAIN, VANILLA, [LSTM])[LSTM]
    return trend(context, lead.above(), f"SpecTrain above {VANILLA} by {lead.text()} points", SEEDS, model=LSTM)


def least_loss(metric: str, excepted: Sequence[str], piped: str) -> Judge:
    """A judge that decides whether SpecTrain's least loss is below both other pipelines' on all models not excepted."""

    def judged(context: Context) -> Finding:
        models = [model for model in MODELS if model not in excepted]
        holds, less, lacking = told_over(
            {arm: leads_of(context, arm, SPECTRAIN, models, metric) for arm in (VANILLA, piped)}
        )
        why = "; ".join(f"{arm} above SpecTrain {in_words(known, digits=4)}" for arm, known in less.items())
        return decided(context, holds, why, lacking)

    return judged


for _suffix, _piped in READINGS.items():
    judge(PAPER, "table_1", f"lstm_as_pipedream{_suffix}")(as_pipedream(_piped))
    judge(PAPER, "table_1", f"least_validation_loss{_suffix}")(least_loss("test_loss", (LSTM,), _piped))
    judge(PAPER, "table_1", f"least_training_loss{_suffix}")(least_loss("loss", ("SNN", LSTM), _piped))


def trained_here(context: Context) -> list[str]:
    """The models of which the scale has some logs, if not all, so that claims about all of them wait for the others."""

    def logged(model: str) -> bool:
        return any(i.log for arm in ARMS for i in context.select(what="training", model=model, arm=arm))

    models = [model for model in MODELS if logged(model)]
    if not models:
        raise NotLogged("no model is trained under every scheme here")
    return models


def above_stale(context: Context, arm: str) -> Finding:
    """Holds if an arm is above vanilla DualPipe and PipeDream with stashing, on average over these models."""
    models = trained_here(context)
    leads = {other: partial(ahead, context, arm, other, models) for other in (VANILLA, STASHED)}
    return each_above(context, f"{arm} over {{}} points, mean over {', '.join(models)}", leads)


judge(PAPER, "table_1", "stale_below_here")(partial(above_stale, arm=DATA))
judge(PAPER, "table_1", "above_stale_here")(partial(above_stale, arm=SPECTRAIN))


@judge(PAPER, "table_1", "above_vanilla_here")
def above_vanilla_here(context: Context) -> Finding:
    """Holds if SpecTrain is above vanilla DualPipe on each of these models."""
    leads = {model: partial(ahead, context, SPECTRAIN, VANILLA, (model,)) for model in trained_here(context)}
    return each_above(context, "{} points", leads)


@judge(PAPER, "table_1", "as_data_here")
def as_data_here(context: Context) -> Finding:
    """Holds if SpecTrain is at least as accurate as data parallelism, on average over these models."""
    models = trained_here(context)
    lead = ahead(context, SPECTRAIN, DATA, models)
    why = f"SpecTrain over Data P. {lead.text()} points, mean over {', '.join(models)}"
    return trend(context, lead.above(-ROUNDED), why, SEEDS, what="training")
