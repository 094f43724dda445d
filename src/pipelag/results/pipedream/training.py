"""Figures 10 and 11 and the text's times to accuracy: trained epochs times timed seconds per epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Cell, Col
from pipelag.results.arrivals import BETWEEN, Gain
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import SEEDS, Difference, ahead, all_of, measured, sized, trend, whole_runs
from pipelag.results.learning import learned
from pipelag.results.logs import Item, curve
from pipelag.results.pipedream.entries import LANGUAGE, entries
from pipelag.results.pipedream.targets import (
    ALIKE,
    ALIKE_WORDS,
    ALONE,
    METRICS,
    PIPED,
    STYLES,
    Efficiency,
    against_data_parallelism,
    arrivals,
    goal_of,
)
from pipelag.results.plans import ALONE as PLAN_ALONE
from pipelag.results.plans import PRINTED_WORDS, SPEED, SPEED_WORDS, in_words, samples_per_second
from pipelag.results.verdict import Finding, Judge, NotLogged, if_logged, judge, need

PAPER = "pipedream"
CLUSTERS = ("4x4 (A)", "2x8 (B)")
IMAGES = 1_281_167  # in ImageNet's training set, which is an epoch in figure 10's hours
VGG = "VGG-16"
TITLES = {"accuracy": "top-1 accuracy (%)", "bleu": "BLEU"}


def data_of(item: Item) -> str:
    """The title of a run's data set."""
    assert item.log is not None
    return str(item.log.data.get("title", item.log.data.get("name", "?")))


def panel_of(model: str, items: Sequence[Item]) -> str:
    """The title of a panel: the model, its data, and the number of GPUs of its pipeline."""
    gpus = max((sum(phase.replicas) for item in items for phase in item.arm.spec.phases), default=0)
    data = next((data_of(item) for item in items if item.log is not None), "?")
    return f"{model}, {data}" + (f", {gpus} GPUs" if gpus else "")


def level(context: Context, model: str, /, **runs: str) -> dict[str, float]:
    """A model's target as a horizontal line of a chart, by name; empty if the runs that it rests on have no log."""
    goal = if_logged(lambda: goal_of(context, model, runs))
    if goal is None:
        return {}
    return {f"target of {model}: {goal.text}".replace(" (", "\n("): goal.value}  # two lines: a column is narrow


def styles_of(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """The colours and dashes of the arms; PipeDream and data parallelism have the same ones in all figures."""
    others = [arm for arm in dict.fromkeys(row["arm"] for row in rows) if arm not in STYLES]
    return STYLES | {arm: (number, number) for number, arm in enumerate(others, len(STYLES))}


def points_of(item: Item, metric: str, panel: str) -> list[dict[str, Any]]:
    """A run's evaluations as rows of a chart."""
    return [
        {"panel": panel, "arm": item.arm.labels["arm"], "seed": item.arm.seed, "epoch": epoch, "value": value}
        for epoch, value in curve(item.log, metric)
    ]


@drawing(PAPER, "figure_11")
def figure_11(context: Context) -> Drawn:
    """Accuracy or BLEU against epochs: a panel per model, a line per arm."""
    rows, axes = [], {}
    for model in context.values("model"):
        metric, items = METRICS[model], context.select(model=model)
        panel = panel_of(model, items)
        for item in items:
            if item.log is not None:
                axes[panel] = Axis("value", TITLES[metric], levels=level(context, model, model=model, arm=ALONE))
                rows += points_of(item, metric, panel)
    return Drawn.of(Lines(Axis("epoch", "epoch"), axes, line="arm", panel="panel", styles=styles_of(rows)), rows)


def alike(model: str, judging: Callable[..., Finding] = sized) -> Judge:
    """A judge that decides whether PipeDream needs about as many epochs to a model's target as data parallelism.

    About is within a quarter (`ALIKE`), wherever between two evaluations the runs arrive. The claim cannot be judged if
    a fall of the learning rate decides the arrivals.

    judging: `sized` for the paper's target, `trend` for a target of the scale's own.
    """

    def judged(context: Context) -> Finding:
        efficiency = against_data_parallelism(context, model)
        gain = efficiency.gain()
        holds = None if efficiency.by_rate else gain.within(1 / ALIKE, ALIKE)
        why = f"{efficiency.text()}; data parallelism's over PipeDream's {gain.text()}"
        return judging(context, holds, why, f"{ALIKE_WORDS}; {BETWEEN}", model=model)

    return judged


judge(PAPER, "figure_11", "same_epochs_vgg16")(alike(VGG))
judge(PAPER, "figure_11", "same_epochs_gnmt16")(alike("GNMT-16"))
judge(PAPER, "figure_11", "as_many_epochs_here")(alike(VGG, trend))


@judge(PAPER, "figure_11", "ends_alike_here")
def ends_alike(context: Context) -> Finding:
    """Holds if the final accuracies of PipeDream and data parallelism are within two points, by the whole interval."""
    learned(context, ALONE, arm=ALONE, model=VGG)
    gap = ahead(context, PIPED, ALONE, model=VGG)
    return trend(
        context, gap.within(-2, 2), f"PipeDream ends {gap.text()} points above", f"two points; {SEEDS}", model=VGG
    )


def hours(context: Context, servers: str, arm: str) -> float | None:
    """The timed hours of an epoch of ImageNet; None without a log."""
    plan = "15-1" if arm == PIPED else PLAN_ALONE  # the one that is trained
    rate = samples_per_second(context.log(what="plan", model=VGG, servers=servers), plan)
    return IMAGES / rate / 3600 if rate else None


@drawing(PAPER, "figure_10")
def figure_10(context: Context) -> Drawn:
    """A panel per cluster: accuracy of both arms against the hours that their epochs would take."""
    rows = []
    for servers in CLUSTERS:
        for arm in (PIPED, ALONE):
            epoch_hours = hours(context, servers, arm)
            for item in context.select(model=VGG, arm=arm):
                if item.log is None or epoch_hours is None:
                    continue
                panel = f"Cluster-{servers[-2]}: {VGG}, {data_of(item)}"
                rows += [row | {"hours": row["epoch"] * epoch_hours} for row in points_of(item, "accuracy", panel)]
    if not rows:
        return not_logged("no plan or no training is logged")
    longest = max(row["hours"] for row in rows)  # both panels have the same axis, to compare the clusters
    x = Axis("hours", "time (hours; an epoch as simulated for ImageNet)", limits=(0, 1.03 * longest))
    y = Axis("value", TITLES["accuracy"], levels=level(context, VGG, model=VGG, arm=ALONE))
    return Drawn.of(Lines(x, y, line="arm", panel="panel", styles=styles_of(rows), shared_y=True), rows)


def gains_of_vgg(context: Context) -> tuple[Efficiency, dict[str, float]]:
    """VGG-16's epochs to the target, and the timed speedup per epoch of 15-1 by cluster."""
    efficiency = against_data_parallelism(context, VGG)
    speeds = {}
    for servers in CLUSTERS:
        pair = [need(hours(context, servers, arm), f"{arm} on {servers}") for arm in (ALONE, PIPED)]
        speeds[servers] = pair[0] / pair[1]
    return efficiency, speeds


def earlier(judging: Callable[..., Finding]) -> Judge:
    """A judge that decides whether PipeDream reaches the target earlier than data parallelism on both clusters.

    Its gain, epochs times timed seconds per epoch, must be above 1, wherever between two evaluations the runs arrive.
    The claim cannot be judged if a fall of the learning rate decides the arrivals.
    """

    def judged(context: Context) -> Finding:
        efficiency, speeds = gains_of_vgg(context)
        gains = {servers: efficiency.gain(speed) for servers, speed in speeds.items()}
        texts = [f"{servers} {gain.text()} (an epoch {speeds[servers]:.2f}x)" for servers, gain in gains.items()]
        why = f"times as early: {', '.join(texts)}; {efficiency.text()}"
        holds = None if efficiency.by_rate else all_of(gain.above(1.0) for gain in gains.values())
        return judging(context, holds, why, f"{BETWEEN}; {SEEDS}", model=VGG)

    return judged


judge(PAPER, "figure_10", "earlier")(earlier(sized))
judge(PAPER, "figure_10", "earlier_here")(earlier(trend))


@judge(PAPER, "figure_10", "faster_on_B")
def faster_on_b(context: Context) -> Finding:
    """Holds if an epoch of either arm takes less time on Cluster-B than on Cluster-A, by more than rounding.

    Both clusters have as many workers, so they need the same epochs.
    """
    ratios = {}
    for arm in (PIPED, ALONE):
        slow, fast = (need(hours(context, servers, arm), f"{arm} on {servers}") for servers in CLUSTERS)
        ratios[arm] = slow / fast
    why = f"{in_words(ratios)} as fast on B as on A"
    return measured(context, min(ratios.values()) >= 1.005, why, f"{PRINTED_WORDS}: more than 1.00x", what="plan")


TASKS = {"image_classification": (VGG,), "translation": ("GNMT-16",), "language_modeling": (LANGUAGE,)}


def headline(context: Context, task: str) -> tuple[Gain, str]:
    """The largest speedup to a target among the trained rows of a task in table 1, and its parts in words.

    Raises:
        NotLogged: no row is trained and timed.
    """
    speedups: list[tuple[Gain, str]] = []
    for entry in entries(context):
        model = entry.paper["model"]
        speed = entry.papers_plan()
        if model in TASKS[task] and entry.trained and speed is not None:
            epochs = against_data_parallelism(context, model)
            gain = epochs.gain(speed)
            text = f"{entry.name} {gain.text()} times as fast"
            speedups.append((gain, f"{text}, an epoch by {entry.paper['config']} {speed:.2f}x; {epochs.text()}"))
    if not speedups:
        raise NotLogged(f"no plan for {' or '.join(TASKS[task])} is logged")
    return max(speedups, key=lambda pair: pair[0].evaluated.mean)


@drawing(PAPER, "text_headline_tta")
def headline_tta(context: Context) -> Drawn:
    """The largest speedup to a target per task, the paper's beside ours."""
    names = {"image_classification": "image classification", "translation": "translation"}
    names |= {"language_modeling": "language modelling", "video_captioning": "video captioning"}

    def ours(row: tuple[str, float]) -> Cell:
        gain = if_logged(lambda: headline(context, row[0])[0].evaluated.mean) if row[0] in TASKS else None
        return "never" if gain == 0 else gain

    cols = [
        Col("Task", lambda row: names[row[0]]),
        Col("paper", lambda row: row[1], "{:.1f}x"),
        Col("ours", ours, "{:.2f}x"),
    ]
    short = context.shortfall(what="training")
    notes = ["the paper's configurations: epochs as trained, time per epoch as simulated; S2VT is not trained"]
    notes += [f"trained differently from the paper: {short}"] if short else []
    notes += arrivals(context, [model for models in TASKS.values() for model in models])
    return Drawn.tabled(context, context.result.reported.items(), cols, notes)


def as_fast(task: str) -> Judge:
    """A judge that decides whether the largest speedup of a task is the headline's, within a factor of 1.2."""

    def judged(context: Context) -> Finding:
        gain, why = headline(context, task)
        printed = context.result.reported[task]
        holds = gain.within(printed / SPEED, printed * SPEED)
        labels = {"what": "training", "model": TASKS[task][0]}
        return sized(context, holds, f"{why}; printed {printed}x", f"over seeds, {SPEED_WORDS}; {BETWEEN}", **labels)

    return judged


for _claim, _task in (
    ("images", "image_classification"),
    ("translation", "translation"),
    ("language", "language_modeling"),
):
    judge(PAPER, "text_headline_tta", _claim)(as_fast(_task))


@judge(PAPER, "text_headline_tta", "language_ends_alike_here")
def language_ends_alike(context: Context) -> Finding:
    """Holds if PipeDream's final perplexity is within two percent of data parallelism's, by the whole interval."""
    ends = []
    for arm in (PIPED, ALONE):
        logs = whole_runs(context, f"{LANGUAGE} under {arm}", what="training", model=LANGUAGE, arm=arm)
        ends.append({seed: log.summary["final"]["perplexity"] for seed, log in logs.items()})
    piped, alone = ends
    more = Difference.from_zero({seed: 100 * (piped[seed] / alone[seed] - 1) for seed in piped if seed in alone})
    why = f"PipeDream's final perplexity is {more.text()} % above"
    return trend(context, more.within(-2, 2), why, f"two percent; {SEEDS}", what="training", model=LANGUAGE)
