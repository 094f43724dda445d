"""Tables III and IV: the groups of trainings, and each approach's highest accuracy or BLEU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from statistics import fmean
from typing import Any

from pipelag.report.tables import Col
from pipelag.results import titles
from pipelag.results.context import Accuracy, Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import ONE_MORE, SEEDS, Difference, all_of, over_models, sized, trend
from pipelag.results.logs import Item
from pipelag.results.pipeoptim.throughput import ARMS, GPIPE, OPTIM, PIPEDREAM, SPECTRAIN, STASHING, TWO_BW, XPIPE
from pipelag.results.pipeoptim.training import (
    ROUNDED,
    Values,
    about,
    above,
    layers_of,
    metric_of,
    one_number,
    other_arms,
    over_all,
    samples_of,
    scattered,
    scores,
    splits,
)
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

PAPER = "pipeoptim"
BEST = (
    *(("SGDM", "ResNet-101"), ("SGDM", "Inception-V3"), ("AdamW", "VGG-16"), ("AdamW", "Residual LSTM")),
    *(("Adam", "GNMT-8"), ("Adam", "GNMT-16")),
)
# The gains that the text states, by optimizer and approach: mean and maximum over models.
SGDM_GAINS = {PIPEDREAM: (1.95, 5.24), TWO_BW: (1.66, 4.23)}
ADAMW_GAINS = {GPIPE: (0.80, 0.86), PIPEDREAM: (1.0, 1.56), TWO_BW: (0.86, 1.25)}


def rows_of(context: Context) -> Iterator[tuple[str, str]]:
    """(optimizer, model) of every row of table IV that has runs, in the paper's order."""
    for row in context.paper.results["table_4"].reported:
        if context.select(optimizer=row["optimizer"], model=row["model"]):
            yield row["optimizer"], row["model"]


@drawing(PAPER, "table_3")
def table_3(context: Context) -> Drawn:
    """A row per optimizer and model: the paper's data, and the settings of our training runs."""
    rows = []
    for group in context.result.reported:
        for model in group["models"]:
            item = context.select(model=model, optimizer=group["optimizer"], arm=GPIPE)[0]
            here = settings(item) if item.log is not None else {"network": "not trained"}
            if item.log is not None:
                summed = context.select(model=model, optimizer=group["optimizer"], arm=TWO_BW)[0]
                here["summed"] = samples_of(summed)
            rows.append({"group": group["group"], "model": model, "dataset": group["dataset"]} | here)
    cols = [
        Col("group", "group"),
        Col("model", "model"),
        Col("data (paper)", "dataset"),
        *(Col(name, name, group="here") for name in ("optimizer", "network", "data", "minibatch")),
        Col(f"{TWO_BW}'s minibatch", "summed", group="here"),
        Col("updates", "updates", group="here"),
        Col("rate", "rate", "{:g}", "here"),
        Col("course of the rate", "course", group="here"),
        Col("last layers of stages 1 to 3", "cuts", group="here"),
    ]
    return Drawn.tabled(context, rows, cols, rule_by="group")


def settings(item: Item) -> dict[str, Any]:
    """A training run's settings, from its spec, for table III."""
    spec = item.arm.spec
    assert spec.model is not None and spec.data is not None and spec.optimizer is not None
    optimizer, course = spec.optimizer, spec.lr_schedule
    title = {"sgd": f"SGD, momentum {optimizer.momentum:g}", "adamw": "AdamW", "adam": "Adam"}[optimizer.name]
    decay = f", decay {optimizer.weight_decay:g}" if optimizer.weight_decay else ""
    shares = " and ".join(f"{100 * share:.0f} %" for share in course.milestones)
    warmup = f", after a warm-up over {course.warmup} updates" if course.warmup else ""
    courses = {"milestones": f"x {course.gamma:g} at {shares}", "polynomial": f"polynomial, power {course.power:g}"}
    options = ", ".join(f"{key} {value}" for key, value in spec.model.options.items())
    return {
        "optimizer": title + decay,
        "network": titles.network(spec.model.name) + (f" ({options})" if options else ""),
        "data": item.log.data.get("title", spec.data.name) if item.log is not None else None,
        "minibatch": spec.batch,
        "updates": spec.steps,
        "rate": optimizer.lr,
        "course": courses.get(course.name, course.name) + warmup,
        "cuts": ", ".join(map(str, spec.phases[0].cuts)),
    }


def best_of(items: Iterable[Item], model: str) -> str | None:
    """The mean of the seeds' best evaluations, with their spread and number.

    A seed that diverged has no value, as what it reached before says nothing.
    """
    return Accuracy.of(items, partial(one_number, how=max, metric=metric_of(model))).text()


@drawing(PAPER, "table_4")
def table_4(context: Context) -> Drawn:
    """Two rows per training, ours and the paper's; below them PipeOptim's gains, averaged over models."""
    printed = {(row["optimizer"], row["model"]): row for row in context.result.reported}
    rows: list[dict[str, Any]] = []
    for optimizer, model in rows_of(context):
        named = {"optimizer": optimizer, "model": model}
        ours = {arm: best_of(context.select(arm=arm, **named), model) for arm in ARMS}
        paper = printed[optimizer, model]
        rows += [named | {"whose": "ours"} | ours]
        rows += [named | {"whose": "paper"} | {arm: f"{paper[arm]:.2f}" for arm in ARMS if arm in paper}]
    for optimizer in ("SGDM", "AdamW"):
        rows += list(average_rows(context, optimizer))
    cols = [Col("optimizer", "optimizer"), Col("model", "model"), Col("", "whose"), *(Col(arm, arm) for arm in ARMS)]
    notes = [
        "GNMT: BLEU; the others: top-1 accuracy in %. SpecTrain predicts with SGD's velocity: no other runs.",
        "Gains: of PipeOptim, in points: the mean over an optimizer's models of the differences in the rows above, in "
        "brackets the largest of these.",
        "±: standard deviation over seeds; where there is none, ours is of one seed.",
        *splits(context),
        *scattered(context),
    ]
    layers = {model: layers_of(context, model) for model in context.values("model")}
    if any(layers.values()):
        counts = ", ".join(f"{model} {count}" for model, count in layers.items() if count)
        notes.append(f"Layers here: {counts}; GNMT's names count those of the paper's.")
    return Drawn.tabled(context, rows, cols, notes, rule_by="model")


def average_rows(context: Context, optimizer: str) -> Iterator[dict[str, Any]]:
    """Two rows on what PipeOptim gains over each approach with an optimizer: ours, and the paper's where it says so."""
    ours: dict[str, str] = {}
    for arm in ARMS[:-1]:
        with suppress(NotLogged):
            mean, most = gains_of(context, optimizer, arm)
            ours[arm] = f"{mean.mean:+.2f} ({most.mean:+.2f})"
    gains = SGDM_GAINS if optimizer == "SGDM" else ADAMW_GAINS
    printed = {arm: f"{mean:+.2f} ({most:+.2f})" for arm, (mean, most) in gains.items()}
    yield {"optimizer": optimizer, "model": "gain", "whose": "ours"} | ours
    yield {"optimizer": optimizer, "model": "gain", "whose": "paper"} | printed


def in_all(context: Context, rows: Iterable[tuple[str, str]], others: Any, margin: float = 0.0) -> Finding:
    """Judge whether PipeOptim's best evaluation is above other approaches' in all of these rows.

    Args:
        rows: optimizer and model of each.
        others: the other approaches, or a function from a row's labels to them.
        margin: how far above; it may be negative.
    """
    outcomes = []
    for optimizer, model in rows:
        named = {"optimizer": optimizer, "model": model}
        arms = others(named) if callable(others) else others
        try:
            holds, why = above(context, arms, OPTIM, max, "", margin, **named)
        except NotLogged as error:  # another row in which it is not above makes the claim fail all the same
            holds, why = None, f"unknown ({error})"
        outcomes.append((holds, f"{model} with {optimizer}: {why}"))
    return trend(context, all_of(holds for holds, _ in outcomes), "; ".join(why for _, why in outcomes), SEEDS)


@judge(PAPER, "table_4", "above_stashing")
def above_stashing(context: Context) -> Finding:
    """Holds if PipeOptim's best is at least PipeDream's and PipeDream-2BW's in every row.

    It may be lower by half a hundredth, since the table prints hundredths.
    """
    return in_all(context, rows_of(context), STASHING, -ROUNDED)


@judge(PAPER, "table_4", "adamw_above_gpipe")
def adamw_above_gpipe(context: Context) -> Finding:
    """Holds if PipeOptim's best is above GPipe's in each of the three rows with AdamW."""
    return in_all(context, [row for row in rows_of(context) if row[0] == "AdamW"], (GPIPE,))


def on_average(context: Context, rows: Iterable[tuple[str, str]], other: str) -> Difference:
    """How far PipeOptim's best is above another approach's, averaged over rows."""
    named = [{"optimizer": optimizer, "model": model} for optimizer, model in rows]
    sides = ([scores(context, max, "", arm=arm, **labels) for labels in named] for arm in (OPTIM, other))
    return over_all(zip(*sides, strict=True))


def gains_of(context: Context, optimizer: str, other: str) -> tuple[Difference, Difference]:
    """What PipeOptim gains over another approach with an optimizer: the mean over its models, and the largest gain."""
    rows = [row for row in rows_of(context) if row[0] == optimizer]
    each = [on_average(context, [row], other) for row in rows]
    return on_average(context, rows, other), max(each, key=lambda gain: gain.mean)


@judge(PAPER, "table_4", "adamw_over_xpipe")
def adamw_over_xpipe(context: Context) -> Finding:
    """Holds if PipeOptim's best is above XPipe's, averaged over the three rows with AdamW (ambiguity D7)."""
    lead = on_average(context, [row for row in rows_of(context) if row[0] == "AdamW"], XPIPE)
    return trend(context, lead.above(), f"over {XPIPE} {lead.text()} points on average", SEEDS, optimizer="AdamW")


@judge(PAPER, "table_4", "on_par_with_gpipe")
def on_par_with_gpipe(context: Context) -> Finding:
    """Holds if PipeOptim's best, averaged over all rows, is not below GPipe's by more than what is about the same.

    Points of accuracy and of BLEU count alike. There is no upper bound, as the claim allows "slightly better".
    """
    near, words = about(context)
    lead = on_average(context, rows_of(context), GPIPE)
    return trend(context, lead.above(-near), f"over {GPIPE} {lead.text()} points on average", f"on par: {words}")


@judge(PAPER, "table_4", "best_of_all")
def best_of_all(context: Context) -> Finding:
    """Holds if PipeOptim's best is above every other approach's in each of the six rows that the claim names."""
    return in_all(context, BEST, lambda named: other_arms(context, **named))


@judge(PAPER, "table_4", "sgdm_predicts")
def sgdm_predicts(context: Context) -> Finding:
    """Holds if, in every row with SGDM, PipeOptim and SpecTrain are about as good and both above those that stash."""
    outcomes, texts, words = [], [], ""
    for optimizer, model in rows_of(context):
        if optimizer != "SGDM":
            continue
        named = {"optimizer": optimizer, "model": model}
        near, words = about(context, **named)
        gap = Difference.of(*(scores(context, max, "", arm=arm, **named) for arm in (OPTIM, SPECTRAIN)))
        better = [above(context, STASHING, arm, max, "", 0.0, **named) for arm in (OPTIM, SPECTRAIN)]
        outcomes += [gap.within(-near, near), *(holds for holds, _ in better)]
        texts.append(f"{model}: {OPTIM} over {SPECTRAIN} {gap.text()}; {'; '.join(why for _, why in better)}")
    return trend(context, all_of(outcomes), ". ".join(texts), words or SEEDS)


@judge(PAPER, "table_4", "alexnet_drops")
def alexnet_drops(context: Context) -> Finding:
    """Holds if every approach's best is below GPipe's for AlexNet, and each loss that the paper states is like ours.

    A printed loss is like ours if it could be one more pair of our runs (`Difference.matches`).
    """
    paper = next(row for row in context.result.reported if row["model"] == "AlexNet")
    best = scores(context, model="AlexNet", arm=GPIPE)
    losses = {
        arm: Difference.of(best, scores(context, model="AlexNet", arm=arm))
        for arm in other_arms(context, (GPIPE,), model="AlexNet")
    }
    printed = {arm: paper[GPIPE] - paper[arm] for arm in (*STASHING, XPIPE, OPTIM)}
    holds = all_of(
        [
            *(loss.above() for loss in losses.values()),
            *(losses[arm].matches(value, ROUNDED) for arm, value in printed.items()),
        ]
    )
    why = "lost against GPipe: " + ", ".join(f"{arm} {loss.text()}" for arm, loss in losses.items())
    return sized(context, holds, why, ONE_MORE, model="AlexNet")


def as_printed(optimizer: str, gains: dict[str, tuple[float, float]]) -> Judge:
    """A judge: whether PipeOptim's mean and largest gains with an optimizer are those of the text.

    They are if each could be one more pair of our runs (`Difference.matches`).
    """

    def judged(context: Context) -> Finding:
        outcomes, texts = [], []
        for arm, (mean, most) in gains.items():
            average, largest = gains_of(context, optimizer, arm)
            outcomes += [average.matches(mean, ROUNDED), largest.matches(most, ROUNDED)]
            ours = f"over {arm} {average.text()} on average, up to {largest.text()}"
            texts.append(f"{ours}, printed {mean:g} and {most:g}")
        return sized(context, all_of(outcomes), "; ".join(texts), ONE_MORE, optimizer=optimizer)

    return judged


judge(PAPER, "table_4", "sgdm_gains")(as_printed("SGDM", SGDM_GAINS))
judge(PAPER, "table_4", "adamw_gains")(as_printed("AdamW", ADAMW_GAINS))


@judge(PAPER, "table_4", "xpipe_fluctuates")
def xpipe_fluctuates(context: Context) -> Finding:
    """Holds if, with SGDM, XPipe's gap to PipeOptim varies more over models than with others, and is worse on average.

    The gap is XPipe's best accuracy less PipeOptim's; its range over the models is how much it varies. Models that are
    tested by BLEU are left out.
    """
    gaps: dict[bool, dict[str, Difference]] = {True: {}, False: {}}
    by_seed: dict[bool, list[Values]] = {True: [], False: []}
    for optimizer, model in rows_of(context):
        if metric_of(model) == "bleu":
            continue
        named = {"optimizer": optimizer, "model": model}
        xpipe, optim = (scores(context, max, "", arm=arm, **named) for arm in (XPIPE, OPTIM))
        gaps[optimizer == "SGDM"][f"{model} with {optimizer}"] = Difference.of(xpipe, optim)
        by_seed[optimizer == "SGDM"].append({seed: xpipe[seed] - optim[seed] for seed in xpipe if seed in optim})
    spans = {sgdm: over_models(each, lambda gaps: max(gaps) - min(gaps)) for sgdm, each in by_seed.items()}
    lost = {sgdm: over_models(each, lambda gaps: -fmean(gaps)) for sgdm, each in by_seed.items()}
    wider, lower = (Difference.of(each[True], each[False]) for each in (spans, lost))
    words = ", ".join(f"{name} {gap.mean:+.2f}" for group in gaps.values() for name, gap in group.items())
    why = f"with SGDM XPipe's lead over PipeOptim spans {wider.text()} points more than with others, and it loses "
    why += f"{lower.text()} more: {words}"
    holds = all_of((wider.above(), lower.above()))
    return trend(context, holds, why, f"ranges over models and their means, of those tested by accuracy; {SEEDS}")
