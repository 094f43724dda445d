"""Figures 10, 11 and 13, and what the text says of time to accuracy: epochs as trained, time per epoch as timed."""

from __future__ import annotations

import pandas as pd

from pipelag.report.charts import lines
from pipelag.report.tables import Cell, Column, Table
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.logs import Context, RunLog
from pipelag.results.plans import READINGS, planned_gains, timed
from pipelag.results.verdict import Finding, NotLogged, judge, log_of, need

PAPER = "pipedream"
CLUSTERS = ("4x4 (A)", "2x8 (B)")
ALONE = "data parallelism"


def accuracies(log: RunLog | None) -> list[tuple[float, float]]:
    """(epoch, accuracy) of every evaluation; empty without a log."""
    return [(row["epoch"], row["accuracy"]) for row in log.rows if "accuracy" in row] if log else []


def target(context: Context) -> float:
    """What the paper's 68 % (of the 72 % that VGG-16 reaches) is here: 95 % of data parallelism's best accuracy."""
    return 0.95 * max(accuracy for _, accuracy in accuracies(log_of(context, arm=ALONE, task="images")))


def epochs_to(log: RunLog | None, accuracy: float) -> float | None:
    """The epoch of the first evaluation that reaches an accuracy; None where none does."""
    return next((epoch for epoch, reached in accuracies(log) if reached >= accuracy), None)


def epoch_time(context: Context, servers: str, pipelined: bool) -> float | None:
    """Timed seconds per minibatch of 64 on a cluster: of the better of PipeDream's plans, or of data parallelism."""
    log = context.log(servers=servers, model="VGG-16")
    names = READINGS if pipelined else ("data parallel",)
    return min((value for name in names if (value := timed(log, name)) is not None), default=None)


@drawing(PAPER, "figure_11")
def figure_11(context: Context) -> Drawn:
    """A line per arm."""
    return by_epoch(context)


@drawing(PAPER, "figure_13")
def figure_13(context: Context) -> Drawn:
    """A line per minibatch size, and PipeDream."""
    return by_epoch(context)


def by_epoch(context: Context) -> Drawn:
    """Accuracy against epochs."""
    series = {}
    for item in context.items:
        arm, batch = item.arm.labels["arm"], item.arm.spec.batch
        shrunk = arm.startswith("LARS") and str(batch) not in arm
        series[f"{arm} (here {batch})" if shrunk else arm] = accuracies(item.log)
    series = {arm: points for arm, points in series.items() if points}
    data = [(arm, epoch, accuracy) for arm, points in series.items() for epoch, accuracy in points]
    figure = lines({"VGG-16": series}, "epoch", "accuracy (%)", marker="")
    return Drawn(figure=figure, data=pd.DataFrame(data, columns=["arm", "epoch", "accuracy"]))


@judge(PAPER, "figure_11", "same_epochs")
def same_epochs(context: Context) -> Finding:
    """Epochs to the target, within a factor of 1.5 of data parallelism's (or fewer)."""
    goal = target(context)
    own, other = (epochs_to(log_of(context, arm=arm, task="images"), goal) for arm in ("PipeDream", ALONE))
    text = f"epochs to {goal:.1f} %: PipeDream {said(own)}, data parallelism {said(other)}"
    return own is not None and own <= 1.5 * need(other, "the target"), text


def said(value: float | None, unit: str = "") -> str:
    """A number, or that it was not reached."""
    return "never" if value is None else f"{value:.2f}{unit}"


@judge(PAPER, "figure_13", "large_fail")
def large_fail(context: Context) -> Finding:
    """Against 95 % of PipeDream's best accuracy."""
    goal = 0.95 * max(accuracy for _, accuracy in accuracies(log_of(context, arm="PipeDream", task="images")))
    reached = {arm: epochs_to(log_of(context, arm=arm), goal) for arm in ("LARS 1024", "LARS 4096", "LARS 8192")}
    batches = {item.arm.labels["arm"]: item.arm.spec.batch for item in context.items}
    text = ", ".join(f"{arm} (here {batches[arm]}) {said(epoch)}" for arm, epoch in reached.items())
    holds = reached["LARS 1024"] is not None and reached["LARS 4096"] is None and reached["LARS 8192"] is None
    return holds, f"epochs to {goal:.1f} %: {text}"


@drawing(PAPER, "figure_10")
def figure_10(context: Context) -> Drawn:
    """A panel per cluster; time in epochs of data parallelism on cluster A."""
    unit = epoch_time(context, CLUSTERS[0], pipelined=False)
    panels, data = {}, []
    for servers in CLUSTERS:
        series = {}
        for arm in ("PipeDream", ALONE):
            seconds = epoch_time(context, servers, arm == "PipeDream")
            if seconds is None or unit is None:
                continue
            series[arm] = [(epoch * seconds / unit, value) for epoch, value in accuracies(context.log(arm=arm))]
            data += [(servers, arm, time, value) for time, value in series[arm]]
        panels[f"Cluster-{servers[-2]}"] = series
    if not data:
        return not_logged("no plan or no training is logged")
    figure = lines(panels, "time (epochs of data parallelism on A)", "accuracy (%)", marker="")
    return Drawn(figure=figure, data=pd.DataFrame(data, columns=["servers", "arm", "time", "accuracy"]))


def time_to_target(context: Context, servers: str, arm: str) -> float:
    """Epochs to the target times the timed seconds of a minibatch."""
    epochs = need(epochs_to(log_of(context, arm=arm, task="images"), target(context)), f"{arm}'s target accuracy")
    return epochs * need(epoch_time(context, servers, arm == "PipeDream"), f"{arm} on {servers}")


def gains(context: Context) -> dict[str, float]:
    """Speedup to the target per cluster."""
    return {
        servers: time_to_target(context, servers, ALONE) / time_to_target(context, servers, "PipeDream")
        for servers in CLUSTERS
    }


@judge(PAPER, "figure_10", "earlier")
def earlier(context: Context) -> Finding:
    """Both clusters."""
    found = gains(context)
    return min(found.values()) > 1, ", ".join(f"{gain:.2f}x on {servers}" for servers, gain in found.items())


@judge(PAPER, "figure_10", "faster_on_B")
def faster_on_b(context: Context) -> Finding:
    """Time to the target, A over B."""
    ratios = {
        arm: time_to_target(context, CLUSTERS[0], arm) / time_to_target(context, CLUSTERS[1], arm)
        for arm in ("PipeDream", ALONE)
    }
    return min(ratios.values()) > 1, ", ".join(f"{arm} {ratio:.2f}x" for arm, ratio in ratios.items())


LANGUAGE = "1x4 (A)"  # where the language model is trained (table 1)


def epochs_to_perplexity(log: RunLog, most: float) -> float | None:
    """The epoch of the first evaluation with so low a perplexity."""
    return next((row["epoch"] for row in log.rows if row.get("perplexity", most + 1) <= most), None)


def language_gain(context: Context) -> tuple[float, str]:
    """Speedup to 1.05 times data parallelism's best perplexity: epochs as trained, time per epoch as timed."""
    logs = {arm: log_of(context, arm=arm, task="language") for arm in ("PipeDream", ALONE)}
    goal = 1.05 * min(row["perplexity"] for row in logs[ALONE].rows)
    epochs = {arm: need(epochs_to_perplexity(log, goal), f"{arm}'s target perplexity") for arm, log in logs.items()}
    plan = log_of(context, model="AWD-LM", servers=LANGUAGE)
    ratio = max(planned_gains(plan, "AWD-LM's plan"))
    text = f"to a perplexity of {goal:.1f}: " + ", ".join(f"{arm} {value:.2f} epochs" for arm, value in epochs.items())
    return epochs[ALONE] / epochs["PipeDream"] * ratio, f"{text}; an epoch is {ratio:.2f}x as fast"


@drawing(PAPER, "text_headline_tta")
def headline_tta(context: Context) -> Drawn:
    """A row per task; images and language are trained here."""
    found: dict[str, float | None] = {}
    for task, gain in (
        ("image_classification", lambda: max(gains(context).values())),
        ("language_modeling", lambda: language_gain(context)[0]),
    ):
        try:
            found[task] = gain()
        except NotLogged:
            found[task] = None
    names = {"image_classification": "image classification", "translation": "translation"}
    names |= {"language_modeling": "language modelling", "video_captioning": "video captioning"}
    rows: list[dict[str, Cell]] = [
        {"task": names[task], "paper": value, "own": found.get(task)} for task, value in context.result.reported.items()
    ]
    columns = [
        Column("task", "Task"),
        Column("paper", "paper", "", "{:.1f}x"),
        Column("own", "ours", "", "{:.2f}x"),
    ]
    notes = ["VGG-16 and the language model are trained to a target here; data parallelism with its larger minibatches"]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))


@judge(PAPER, "text_headline_tta", "faster_to_target")
def faster_to_target(context: Context) -> Finding:
    """Both clusters."""
    return earlier(context)


@judge(PAPER, "text_headline_tta", "faster_to_perplexity")
def faster_to_perplexity(context: Context) -> Finding:
    """The language model on one server."""
    gain, text = language_gain(context)
    return gain > 1, f"{gain:.2f}x; {text}"


def asp_numbers(context: Context) -> tuple[float, float | None, float | None]:
    """(accuracy, PipeDream's and ASP's epochs to it): the paper's 48 %, or ASP's best where that is less."""
    best = max(accuracy for _, accuracy in accuracies(log_of(context, arm="ASP")))
    goal = min(float(context.result.reported["accuracy_percent"]), best)
    own, other = (epochs_to(log_of(context, arm=arm), goal) for arm in ("PipeDream", "ASP"))
    return goal, own, other


@drawing(PAPER, "text_asp")
def text_asp(context: Context) -> Drawn:
    """Epochs and time to an accuracy."""
    rows: list[dict[str, Cell]] = []
    note = "ASP is simulated with 16 workers; its time per epoch is that of computing alone, without any communication"
    try:
        goal, own, other = asp_numbers(context)
        ratio = asp_ratio(context)
        rows.append({"goal": goal, "own": own, "asp": other, "ratio": ratio, "paper": context.result.reported["ratio"]})
    except NotLogged:
        rows.append({"goal": None, "paper": context.result.reported["ratio"]})
    columns = [
        Column("goal", "accuracy (%)", "", "{:.1f}"),
        Column("own", "PipeDream", "epochs", "{:.2f}"),
        Column("asp", "ASP", "epochs", "{:.2f}"),
        Column("paper", "paper", "time, ASP over PipeDream", "{:.1f}x"),
        Column("ratio", "ours", "time, ASP over PipeDream", "{:.1f}x"),
    ]
    return Drawn(table=Table(columns, rows, context.result.caption, [note]))


def asp_ratio(context: Context) -> float:
    """Time of ASP over that of PipeDream."""
    _, own, other = asp_numbers(context)
    log = log_of(context, servers=CLUSTERS[1])
    computing = (log.summary["forward_ms"] + log.summary["backward_ms"]) / 1e3 / log.summary["workers"]
    pipelined = need(epoch_time(context, CLUSTERS[1], pipelined=True), "PipeDream's plan")
    return need(other, "ASP's accuracy") * computing / (need(own, "PipeDream's accuracy") * pipelined)


@judge(PAPER, "text_asp", "asp_slower")
def asp_slower(context: Context) -> Finding:
    """Epochs and time."""
    goal, own, other = asp_numbers(context)
    ratio = asp_ratio(context)
    return ratio > 1.5, f"to {goal:.1f} %: {said(own)} epochs of PipeDream, {said(other)} of ASP; {ratio:.1f}x the time"
