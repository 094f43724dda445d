"""Figures 9 and 10, table VI and the text on them: trained epochs, times the simulated time of an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import (
    ONE_MORE,
    SEEDS,
    Difference,
    all_of,
    half_a_unit,
    measured,
    over_models,
    sized,
    trend,
)
from pipelag.results.logs import curve
from pipelag.results.pipeoptim.curves import STYLES
from pipelag.results.pipeoptim.targets import (
    IMAGES,
    TARGETS,
    TRAINING,
    first_to_target,
    goal_of,
    hours_of_epoch,
    printed_speedups,
    seconds_of_epoch,
    speedups,
    trainings,
)
from pipelag.results.pipeoptim.throughput import ARMS, GPIPE, OPTIM, PIPEDREAM, SPECTRAIN, TWO_BW
from pipelag.results.pipeoptim.training import (
    ROUNDED,
    How,
    about,
    above,
    curve_rows,
    diverged,
    last,
    other_arms,
    over_epochs,
    panel_of,
    scores,
    splits,
    updates,
)
from pipelag.results.plans import SPEED, SPEED_WORDS
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

PAPER = "pipeoptim"
OTHERS = (PIPEDREAM, TWO_BW, SPECTRAIN)
HEIGHT = 3.0  # inches: six approaches that are near one another, over a legend of four lines
NOTABLE = 10.0  # %: figures show chance above it; five guesses among ten classes reach 50 %, among 200 2.5 %
EPOCHS, EPOCHS_WORDS = 1.04, "asynchronous epochs within 4 %, GPipe's 1.6 to 1.8 times as long"


def model_of(context: Context) -> str:
    """The only model of a figure."""
    (model,) = context.values("model")
    return model


def chance(context: Context) -> float:
    """How often five guesses among a data set's classes are right, in %; 0 where no log has the number of classes."""
    classes = [int(count) for log in context.logs(what=TRAINING) if (count := log.data.get("classes"))]
    return 100 * min(1.0, 5 / min(classes)) if classes else 0.0


@drawing(PAPER, "figure_9a", "figure_10a")
def top1_over_epochs(context: Context) -> Drawn:
    """Top-1 accuracy over epochs, a line per approach."""
    settings: dict[str, Any] = {"styles": STYLES, "height": HEIGHT, "note": " ".join(updates(context))}
    return over_epochs(context, trainings(context), "accuracy", "top-1 accuracy (%)", **settings)


@drawing(PAPER, "figure_9b", "figure_10b")
def top5_over_epochs(context: Context) -> Drawn:
    """Top-5 accuracy over epochs, a line per approach, and what guesses would reach."""
    guessed = chance(context)
    levels = {f"chance, {guessed:.0f} %": guessed} if guessed > NOTABLE else {}
    settings: dict[str, Any] = {
        "styles": STYLES,
        "height": HEIGHT,
        "levels": levels,
        "note": " ".join(updates(context)),
    }
    return over_epochs(context, trainings(context), "top5", "top-5 accuracy (%)", **settings)


@drawing(PAPER, "figure_9c", "figure_10c")
def top1_over_time(context: Context) -> Drawn:
    """Top-1 accuracy over time: epochs times the simulated hours of an epoch of the paper's training set.

    A thin line is at the target; without one the note says why.
    """
    model = model_of(context)
    rows: list[dict[str, Any]] = []
    for arm in ARMS:
        seconds = seconds_of_epoch(context, model, arm)
        if seconds is not None:
            points_of = curve_rows(trainings(context, arm=arm), "accuracy")
            rows += [row | {"hours": row["epoch"] * seconds / 3600} for row in points_of]
    if not rows:
        return not_logged("no training or no plan is logged")
    panel = panel_of(context, model, trainings(context))
    rows = [row | {"panel": panel} for row in rows]
    try:
        goal = goal_of(context, model)
        levels, note = {f"target {goal.value:.1f} %": goal.value}, f"Target: {goal.text}."
    except NotLogged as error:
        levels, note = {}, f"No target: {error}."
    x = Axis("hours", "time (hours; an epoch as simulated for the paper's data)")
    y = Axis("value", "top-1 accuracy (%)")
    lines = Lines(x, y, line="approach", panel="panel", styles=STYLES, levels=levels, height=HEIGHT)
    return Drawn.of(lines, rows, note=" ".join([*updates(context), note]))


def shortest(context: Context, model: str = "", hours: bool = True) -> Finding:
    """Holds if PipeOptim reaches a model's target in less time than every other approach (`first_to_target`).

    hours: compare times; epochs otherwise.
    """
    first, _, why = first_to_target(context, model or model_of(context), hours)
    return trend(context, first, why, SEEDS, what=TRAINING)


judge(PAPER, "figure_9a", "fewest_epochs_here")(partial(shortest, hours=False))
judge(PAPER, "figure_9c", "shortest")(shortest)
judge(PAPER, "figure_10c", "shortest")(shortest)
judge(PAPER, "text_headline_speedup", "faster")(partial(shortest, model="ResNet-101"))


@judge(PAPER, "figure_9c", "gpipe_longest")
def gpipe_longest(context: Context) -> Finding:
    """Holds if GPipe reaches the target later than every other approach (`first_to_target`)."""
    _, slow, why = first_to_target(context, model_of(context), hours=True)
    return trend(context, slow, why, SEEDS, what=TRAINING)


def ahead(context: Context, others: Sequence[str] = (), how: How = max, metric: str = "") -> Finding:
    """Holds if PipeOptim is above the others (default: all) in a number that `how` makes of the evaluations."""
    arms = others or other_arms(context, what=TRAINING)
    holds, why = above(context, arms, how=how, metric=metric, what=TRAINING)
    return trend(context, holds, why, SEEDS, what=TRAINING)


judge(PAPER, "figure_9b", "highest")(partial(ahead, metric="top5"))
judge(PAPER, "figure_10a", "above_stashing")(partial(ahead, others=OTHERS, how=last))
judge(PAPER, "figure_10b", "above_stashing")(partial(ahead, others=OTHERS, metric="top5"))


@drawing(PAPER, "table_6")
def table_6(context: Context) -> Drawn:
    """Accuracies, time per epoch and time to the target, a row per model and approach."""
    rows, targets = [], []
    for printed in context.result.reported:
        model, arm = printed["model"], printed["approach"]
        runs = trainings(context, model=model, arm=arm)
        row: dict[str, Any] = dict(printed)
        row["updates"] = next((item.arm.spec.steps for item in runs if item.log is not None), None)
        for key, metric in (("own1", "accuracy"), ("own5", "top5")):
            best = [max(value for _, value in line) for item in runs if (line := curve(item.log, metric))]
            whole = fmean(best) if best and len(best) == len(runs) else None
            row[key] = "diverged" if any(map(diverged, runs)) else whole
        row["seconds"] = seconds_of_epoch(context, model, arm)
        try:
            goal = goal_of(context, model)
            epochs = [arrival.by for arrival in goal.arrivals(context, model=model, arm=arm).values()]
            targets.append(f"{model}: {goal.text}")
            row["epochs"] = fmean(epochs) if all(map(math.isfinite, epochs)) else "never"
            if row["seconds"] and isinstance(row["epochs"], float):
                row["hours"] = row["epochs"] * row["seconds"] / 3600
        except NotLogged as error:
            targets.append(f"{model}: none; {error}")
        rows.append(row)
    cols = [Col("model", "model"), Col("approach", "approach"), Col("updates", "updates", "{:,d}")]
    for title, ours, theirs, form in (
        ("top-1 (%)", "own1", "top1", "{:.2f}"),
        ("top-5 (%)", "own5", "top5", "{:.2f}"),
        ("epoch (s)", "seconds", "epoch_s", "{:.0f}"),
        ("to the target (h)", "hours", "total_h", "{:.2f}"),
    ):
        our_form = "{:.2g}" if ours == "hours" else form
        whose = "ours, simulated" if ours in ("seconds", "hours") else "ours"
        cols += [Col(whose, ours, our_form, title), Col("paper", theirs, form, title)]
    cols.append(Col("epochs", "epochs", "{:.2f}", "to the target"))
    notes = [f"Target, {text}." for text in dict.fromkeys(targets)]
    notes.append(
        f"Seconds of an epoch: simulated for the paper's network and {IMAGES:,} images; hours: these times our epochs."
    )
    if shares := [row["seconds"] / row["epoch_s"] for row in rows if row["seconds"]]:
        notes.append(
            f"Simulated epochs take {min(shares):.2f} to {max(shares):.2f} of the paper's seconds: only their ratios "
            "are compared."
        )
    notes += splits(context)
    if (guessed := chance(context)) > NOTABLE:
        notes.append(f"Of so few classes five guesses are right {guessed:.0f} % of the time (ours, top-5).")
    return Drawn.tabled(context, rows, cols, notes, rule_by="model")


@judge(PAPER, "table_6", "total_time")
def total_time(context: Context) -> Finding:
    """Holds if, for both models, PipeOptim is the first at the target and GPipe the last (`first_to_target`)."""
    outcomes = {model: first_to_target(context, model, hours=True) for model in TARGETS}
    holds = all_of(part for first, slow, _ in outcomes.values() for part in (first, slow))
    return trend(context, holds, "; ".join(f"{m}: {why}" for m, (_, _, why) in outcomes.items()), SEEDS, what=TRAINING)


@judge(PAPER, "table_6", "gpipe_comparable")
def gpipe_comparable(context: Context) -> Finding:
    """Holds if GPipe's and PipeOptim's best accuracies are about the same for both models (`about`)."""
    outcomes, texts, words = [], [], ""
    for model in TARGETS:
        near, words = about(context, what=TRAINING, model=model)
        gap = Difference.of(*(scores(context, what=TRAINING, model=model, arm=arm) for arm in (GPIPE, OPTIM)))
        outcomes.append(gap.within(-near, near))
        texts.append(f"{model}: {GPIPE} over {OPTIM} {gap.text()}")
    return trend(context, all_of(outcomes), "; ".join(texts), f"comparable: {words}", what=TRAINING)


@judge(PAPER, "table_6", "epoch_times")
def epoch_times(context: Context) -> Finding:
    """Holds if simulated epochs of asynchronous approaches are within 4 %, GPipe's 1.6 to 1.8 times PipeOptim's.

    Both must be so for both models.
    """
    outcomes, texts = [], []
    for model in TARGETS:
        hours = {arm: hours_of_epoch(context, model, arm) for arm in ARMS}
        alone = [value for arm, value in hours.items() if arm != GPIPE]
        apart, slower = max(alone) / min(alone), hours[GPIPE] / hours[OPTIM]
        outcomes += [apart <= EPOCHS, 1.6 <= slower <= 1.8]
        texts.append(f"{model}: asynchronous epochs {100 * (apart - 1):.2f} % apart, GPipe's {slower:.2f}x PipeOptim's")
    return measured(context, all(outcomes), "; ".join(texts), EPOCHS_WORDS, what="plan")


@judge(PAPER, "table_6", "top1")
def top1(context: Context) -> Finding:
    """Holds if, for both models, PipeOptim's best accuracy is above those of PipeDream, PipeDream-2BW and SpecTrain."""
    outcomes = {model: above(context, OTHERS, what=TRAINING, model=model) for model in TARGETS}
    why = "; ".join(f"{model}: {why}" for model, (_, why) in outcomes.items())
    return trend(context, all_of(holds for holds, _ in outcomes.values()), why, SEEDS, what=TRAINING)


def as_fast(model: str) -> Judge:
    """A judge: whether PipeOptim's speedups to a model's target are the printed ones.

    Each must be above 1 and within a factor of `SPEED` of the printed one.
    """

    def judged(context: Context) -> Finding:
        by_arm, why = speedups(context, model)
        printed = printed_speedups(context, model)
        near = [by_arm[arm].within(value / SPEED, value * SPEED) for arm, value in printed.items()]
        faster = [by_arm[arm].above(1.0) for arm in printed]
        return sized(context, all_of(near + faster), why, f"above one, {SPEED_WORDS}; over seeds", what=TRAINING)

    return judged


judge(PAPER, "table_6", "speedups")(as_fast("Inception-V3"))
judge(PAPER, "text_headline_speedup", "as_printed")(as_fast("ResNet-101"))


@drawing(PAPER, "text_headline_speedup")
def text_headline_speedup(context: Context) -> Drawn:
    """PipeOptim's speedups to ResNet-101's target, a row per approach."""
    try:
        by_arm, _ = speedups(context, "ResNet-101")
        note = f"To {goal_of(context, 'ResNet-101').text}."
    except NotLogged as error:
        by_arm, note = {}, f"No speedups of ours: {error}."
    rows = [
        {"approach": arm, "paper": value, "ours": by_arm[arm].mean if arm in by_arm else None}
        for arm, value in context.result.reported.items()
    ]
    cols = [Col("over", "approach"), Col("ours", "ours", "{:.2f}x"), Col("paper", "paper", "{:.2f}x")]
    return Drawn.tabled(context, rows, cols, [note, *updates(context)])


def mean_gains(context: Context, models: Iterable[str] = TARGETS) -> dict[str, Difference]:
    """How far PipeOptim's best top-1 accuracy is above each of the three others', averaged over models."""
    sides = {
        arm: over_models(scores(context, what=TRAINING, model=model, arm=arm) for model in models)
        for arm in (OPTIM, *OTHERS)
    }
    return {arm: Difference.of(sides[OPTIM], sides[arm]) for arm in OTHERS}


@drawing(PAPER, "text_overall_accuracy")
def text_overall_accuracy(context: Context) -> Drawn:
    """PipeOptim's gains in accuracy, a row per approach."""
    try:
        gains, each = mean_gains(context), [mean_gains(context, [model]) for model in TARGETS]
        lacking = []
    except NotLogged as error:
        gains, each, lacking = {}, [], [f"No gains of ours: {error}."]
    rows = [
        {"approach": arm, "paper": mean, "most": most}
        | ({"ours": gains[arm].mean, "ours_most": max(one[arm].mean for one in each)} if gains else {})
        for arm, (mean, most) in context.result.reported.items()
    ]
    cols = [
        Col("over", "approach"),
        Col("ours", "ours", "{:+.2f}", "mean gain (points)"),
        Col("paper", "paper", "{:+.2f}", "mean gain (points)"),
        Col("ours", "ours_most", "{:+.2f}", "the larger of two (points)"),
        Col("paper", "most", "{:+.2f}", "the larger of two (points)"),
    ]
    notes = ["Of table VI the mean gain over PipeDream-2BW is 0.235 (D8).", *lacking, *updates(context)]
    return Drawn.tabled(context, rows, cols, notes)


def gains_in_words(gains: Mapping[str, Difference]) -> str:
    """Gains by approach, in words."""
    return ", ".join(f"over {arm} {step.text()}" for arm, step in gains.items())


@judge(PAPER, "text_overall_accuracy", "positive")
def positive(context: Context) -> Finding:
    """Holds if PipeOptim's mean gain over each of the three approaches is above 0."""
    gains = mean_gains(context)
    return trend(context, all_of(step.above() for step in gains.values()), gains_in_words(gains), SEEDS, what=TRAINING)


@judge(PAPER, "text_overall_accuracy", "as_printed")
def gains_as_printed(context: Context) -> Finding:
    """Holds if each printed gain, mean or larger of two models', could be one more pair of our runs.

    The mean over PipeDream-2BW is taken from table VI, which the text contradicts (ambiguity D8).
    """
    gains, reported = mean_gains(context), context.result.reported
    each = [mean_gains(context, [model]) for model in TARGETS]
    larger = {arm: max((one[arm] for one in each), key=lambda gain: gain.mean) for arm in OTHERS}
    printed = {arm: mean for arm, (mean, _) in reported.items()}
    top = {(row["model"], row["approach"]): row["top1"] for row in context.paper.results["table_6"].reported}
    printed[TWO_BW] = fmean(top[model, OPTIM] - top[model, TWO_BW] for model in TARGETS)
    holds = all_of(
        [
            *(step.matches(printed[arm], ROUNDED) for arm, step in gains.items()),
            *(step.matches(reported[arm][1], ROUNDED) for arm, step in larger.items()),
        ]
    )
    why = f"{gains_in_words(gains)}; the larger of two {gains_in_words(larger)}"
    return sized(context, holds, why, f"{ONE_MORE}; {half_a_unit(ROUNDED)}", what=TRAINING)
