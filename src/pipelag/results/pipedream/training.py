"""Figures 10, 11 and 13, and what the text says of time to accuracy: epochs as trained, time per epoch as timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Col, table
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import SEEDS, Difference, all_of, learned, measured, sized, trend
from pipelag.results.logs import Context, Item, RunLog
from pipelag.results.pipedream.planning import LANGUAGE, TRAINED_ON, entries
from pipelag.results.pipedream.targets import (
    ALIKE,
    ALIKE_WORDS,
    ALONE,
    METRICS,
    PIPED,
    UNITS,
    Efficiency,
    against_data_parallelism,
    compared,
    curve,
    goal_of,
    said,
)
from pipelag.results.plans import ALONE as PLAN_ALONE
from pipelag.results.plans import PRINTED_WORDS, SPEED, SPEED_WORDS, plan_in, samples_per_second
from pipelag.results.verdict import Finding, NotLogged, judge, log_of, need

PAPER = "pipedream"
CLUSTERS = ("4x4 (A)", "2x8 (B)")
IMAGES = 1_281_167  # of ImageNet's training set: an epoch of the hours of figure 10
VGG = "VGG-16"
TITLES = {"accuracy": "top-1 accuracy (%)", "bleu": "BLEU"}
LARS = {"LARS 1024": 1024, "LARS 4096": 4096, "LARS 8192": 8192}


def data_of(item: Item) -> str:
    """The title of a run's data set."""
    assert item.log is not None
    data = item.log.summary.get("data") or {}
    return str(data.get("title", data.get("name", "?")))


def level(context: Context, model: str, /, **runs: str) -> dict[str, float]:
    """The target of a model as a line of a chart, by name; none where the runs that it rests on have no log."""
    try:
        goal = goal_of(context, model, runs)
    except NotLogged:
        return {}
    return {f"target of {model}: {goal.value:.3g} {UNITS[goal.metric]}": goal.value}


def points_of(item: Item, metric: str, panel: str) -> list[dict[str, Any]]:
    """A run's evaluations as rows of a chart."""
    return [
        {"panel": panel, "arm": item.arm.labels["arm"], "seed": item.arm.seed, "epoch": epoch, "value": value}
        for epoch, value in curve(item.log, metric)
    ]


@drawing(PAPER, "figure_11")
def figure_11(context: Context) -> Drawn:
    """A panel per model, a line per arm."""
    rows, axes = [], {}
    for model in context.values("model"):
        metric = METRICS[model]
        for item in context.select(model=model):
            if item.log is not None:
                panel = f"{model}, {data_of(item)}"
                axes[panel] = Axis("value", TITLES[metric], levels=level(context, model, model=model, arm=ALONE))
                rows += points_of(item, metric, panel)
    return Drawn.of(Lines(Axis("epoch", "epoch"), axes, line="arm", panel="panel"), rows)


@drawing(PAPER, "figure_13")
def figure_13(context: Context) -> Drawn:
    """A line per minibatch size under LARS, and PipeDream."""
    rows = []
    for item in context.select(what="training"):
        if item.log is not None:
            arm, batch = item.arm.labels["arm"], item.arm.spec.batch
            labels = dict(item.arm.labels) | ({"arm": f"{arm} (here {batch})"} if LARS.get(arm, batch) != batch else {})
            named = Item(replace(item.arm, labels=labels), item.log)
            rows += points_of(named, "accuracy", f"{VGG}, {data_of(item)}")
    y = Axis("value", TITLES["accuracy"], levels=level(context, VGG, what="training", arm=PIPED))
    return Drawn.of(Lines(Axis("epoch", "epoch"), y, line="arm", panel="panel"), rows)


def alike(model: str) -> Any:
    """A judge: whether PipeDream needs about as many epochs to the model's target as data parallelism."""

    def judged(context: Context) -> Finding:
        efficiency = against_data_parallelism(context, model)
        gain = efficiency.difference()
        holds = all_of((gain.above(1 / ALIKE), gain.below(ALIKE)))
        why = f"{efficiency.text()}; data parallelism's over PipeDream's {gain.text().lstrip('+')}"
        return sized(context, holds, why, ALIKE_WORDS, model=model)

    return judged


judge(PAPER, "figure_11", "same_epochs_vgg16")(alike(VGG))
judge(PAPER, "figure_11", "same_epochs_gnmt16")(alike("GNMT-16"))


def plan_name(arm: str, pipeline: str = "15-1") -> str:
    """The plan by which an arm is timed: that which is trained."""
    return pipeline if arm == PIPED else PLAN_ALONE


def hours(context: Context, servers: str, arm: str) -> float | None:
    """Timed hours of an epoch of ImageNet's images."""
    rate = samples_per_second(context.log(what="plan", model=VGG, servers=servers), plan_name(arm))
    return IMAGES / rate / 3600 if rate else None


@drawing(PAPER, "figure_10")
def figure_10(context: Context) -> Drawn:
    """A panel per cluster: both arms' curves over the hours that their epochs would take."""
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
    x = Axis("hours", "time (hours; an epoch as timed for ImageNet)")
    y = Axis("value", TITLES["accuracy"], levels=level(context, VGG, model=VGG, arm=ALONE))
    return Drawn.of(Lines(x, y, line="arm", panel="panel", shared_y=True), rows)


def gains_of_vgg(context: Context) -> tuple[Efficiency, dict[str, float]]:
    """Epochs to the target, and per cluster the timed speedup of an epoch of 15-1; for a judge."""
    efficiency = against_data_parallelism(context, VGG)
    speeds = {}
    for servers in CLUSTERS:
        pair = [need(hours(context, servers, arm), f"{arm} on {servers}") for arm in (ALONE, PIPED)]
        speeds[servers] = pair[0] / pair[1]
    return efficiency, speeds


@judge(PAPER, "figure_10", "earlier")
def earlier(context: Context) -> Finding:
    """Both clusters."""
    efficiency, speeds = gains_of_vgg(context)
    gains = {servers: efficiency.difference(speed) for servers, speed in speeds.items()}
    texts = [
        f"{servers} {gain.text().lstrip('+')} (an epoch {speeds[servers]:.2f}x)" for servers, gain in gains.items()
    ]
    why = f"times as early: {', '.join(texts)}; {efficiency.text()}"
    holds = all_of(gain.above(1.0) for gain in gains.values())
    return sized(context, holds, why, SEEDS, model=VGG)


@judge(PAPER, "figure_10", "faster_on_B")
def faster_on_b(context: Context) -> Finding:
    """Hours of an epoch on A over those on B; both clusters train in the same epochs, having as many workers."""
    ratios = {}
    for arm in (PIPED, ALONE):
        slow, fast = (need(hours(context, servers, arm), f"{arm} on {servers}") for servers in CLUSTERS)
        ratios[arm] = slow / fast
    why = ", ".join(f"{arm} {ratio:.2f}x" for arm, ratio in ratios.items()) + " as fast on B as on A"
    return measured(context, min(ratios.values()) >= 1.005, why, f"{PRINTED_WORDS}: more than 1.00x", what="plan")


def lars_seconds(context: Context, arm: str) -> float:
    """Timed seconds per sample on 8 GPUs of Cluster-C: of a minibatch of data parallelism, or of PipeDream's 7-1."""
    log = log_of(context, what="time", arm=arm)
    if arm == PIPED:
        return 1 / plan_in(log, "7-1", "PipeDream's 7-1")["samples_per_second"]
    row = plan_in(log, "data parallel over 8", arm)
    return float(row["timed"]) / float(log.summary["batch"])


def lars(context: Context) -> dict[str, Efficiency]:
    """PipeDream's epochs to the target and those under LARS, by minibatch."""
    goal = goal_of(context, VGG, {"what": "training", "arm": PIPED})
    labels: dict[str, Mapping[str, str]] = {arm: {"arm": arm, "what": "training"} for arm in (PIPED, *LARS)}
    return {arm: compared(context, goal, labels[PIPED], labels[arm]) for arm in LARS}


def lars_in_words(by_arm: Mapping[str, Efficiency]) -> str:
    """Epochs of all arms."""
    first = next(iter(by_arm.values()))
    arms = {PIPED: first.first} | {arm: one.second for arm, one in by_arm.items()}
    return f"epochs to {first.goal.text}: " + "; ".join(f"{arm} {said(epochs)}" for arm, epochs in arms.items())


def reached(epochs: Mapping[int, float | None]) -> bool | None:
    """Whether the target is reached with every seed, with none, or (None) with some."""
    values = [epoch is not None for epoch in epochs.values()]
    return all(values) if len(set(values)) == 1 else None


def seconds_to(context: Context, by_arm: Mapping[str, Efficiency], arm: str) -> dict[int, float]:
    """Seconds per training sample times epochs, by seed; of a LARS arm that reaches the target."""
    seconds = lars_seconds(context, arm)
    return {seed: epochs * seconds for seed, epochs in by_arm[arm].second.items() if epochs is not None}


@judge(PAPER, "figure_13", "reaches_1024")
def reaches_1024(context: Context) -> Finding:
    """1024 does, and before the others in time."""
    by_arm = lars(context)
    holds = reached(by_arm["LARS 1024"].second)
    if holds:
        seconds = seconds_to(context, by_arm, "LARS 1024")
        others = [seconds_to(context, by_arm, arm) for arm in LARS if arm != "LARS 1024"]
        rest = [Difference.of(other, seconds) for other in others if set(other) & set(seconds)]
        holds = all_of([True, *(difference.above() for difference in rest)])
    return sized(context, holds, lars_in_words(by_arm), "every seed", what="training")


@judge(PAPER, "figure_13", "large_fail")
def large_fail(context: Context) -> Finding:
    """Neither 4096 nor 8192, with any seed."""
    by_arm = lars(context)
    outcomes = [reached(by_arm[arm].second) for arm in ("LARS 4096", "LARS 8192")]
    holds = all_of(None if outcome is None else not outcome for outcome in outcomes)
    return sized(context, holds, lars_in_words(by_arm), "every seed", what="training")


@judge(PAPER, "figure_13", "over_fastest")
def over_fastest(context: Context) -> Finding:
    """Against the minibatch under LARS that comes first, by seed."""
    by_arm, printed = lars(context), context.result.reported["pipedream_speedup_over_fastest"]
    epochs = {s: e for s, e in next(iter(by_arm.values())).first.items() if e is not None}
    rivals = {arm: seconds_to(context, by_arm, arm) for arm in LARS}
    seeds = [seed for seed in epochs if any(seed in rival for rival in rivals.values())]
    if not seeds:
        raise NotLogged("neither PipeDream nor LARS reaches the target")
    mine = lars_seconds(context, PIPED)
    gains = {seed: min(r[seed] for r in rivals.values() if seed in r) / (epochs[seed] * mine) for seed in seeds}
    gain = Difference.of(gains, dict.fromkeys(gains, 0.0))
    speeds = ", ".join(f"{arm} {1 / lars_seconds(context, arm):.0f} samples/s" for arm in (PIPED, *LARS))
    why = f"{gain.text().lstrip('+')} times as fast for over {printed}x; {lars_in_words(by_arm)}; {speeds}"
    return sized(context, gain.above(printed / SPEED), why, f"{printed}x or more, {SPEED_WORDS}")


def asp(context: Context) -> Efficiency:
    """PipeDream's epochs and ASP's to 48 %, elsewhere to two thirds of PipeDream's best (48 of the 72 % of VGG-16)."""
    printed = float(context.result.reported["accuracy_percent"])
    piped = {"model": VGG, "arm": PIPED}
    goal = goal_of(context, VGG, piped, printed, share=2 / 3)
    return compared(context, goal, piped, {"model": VGG, "arm": "ASP"})


def asp_speed(context: Context) -> float:
    """How many times as long an epoch of PipeDream takes as one of ASP, which only computes, on all 32 GPUs."""
    log = log_of(context, what="plan")
    computing = (log.summary["forward_ms"] + log.summary["backward_ms"]) / 1e3 / log.summary["workers"]
    return float(plan_in(log, "31-1", "PipeDream's 31-1")["timed"]) / computing


def asp_ratio(context: Context) -> Difference:
    """Time of ASP over that of PipeDream, over seeds."""
    efficiency = asp(context)
    slower = {
        seed: other / ours / asp_speed(context)
        for seed, ours in efficiency.first.items()
        if ours is not None and (other := efficiency.second.get(seed)) is not None
    }
    if not slower:
        raise NotLogged(f"{efficiency.text(PIPED, 'ASP')}: not reached by both")
    return Difference.of(slower, dict.fromkeys(slower, 0.0))


@drawing(PAPER, "text_asp")
def text_asp(context: Context) -> Drawn:
    """Epochs and time to an accuracy."""
    row: dict[str, Any] = {"paper": context.result.reported["ratio"]}
    try:
        efficiency = asp(context)
        row |= {"goal": efficiency.goal.value, "own": said(efficiency.first), "asp": said(efficiency.second)}
        row["ratio"] = asp_ratio(context).mean
    except NotLogged:
        pass
    cols = [
        Col("accuracy (%)", "goal", "{:.1f}"),
        Col("PipeDream", "own", group="epochs by seed"),
        Col("ASP", "asp", group="epochs by seed"),
        Col("paper", "paper", "{:.1f}x", "time, ASP over PipeDream"),
        Col("ours", "ratio", "{:.1f}x", "time, ASP over PipeDream"),
    ]
    short = context.shortfall(model=VGG)
    notes = [
        "ASP is simulated with 16 of the 32 workers; its time per epoch is that of computing alone on 32 GPUs, without "
        "any communication; PipeDream is trained as 15-1 and timed as 31-1"
    ]
    notes += [f"trained not as in the paper: {short}"] if short else []
    return Drawn(table=table([row], cols, context.result.caption, notes))


@judge(PAPER, "text_asp", "less_efficient")
def less_efficient(context: Context) -> Finding:
    """ASP needs at least twice the epochs; where it never comes, at least those that it was trained for."""
    learned(context, "ASP", arm="ASP", model=VGG)
    efficiency = asp(context)
    factors = {}
    for seed, ours in efficiency.first.items():
        last = max((row["epoch"] for log in logs_of(context, "ASP", seed) for row in log.rows), default=0.0)
        if ours is not None and seed in efficiency.second:
            factors[seed] = (efficiency.second[seed] or last) / ours
    if not factors:
        raise NotLogged(efficiency.text(PIPED, "ASP"))
    factor = Difference.of(factors, dict.fromkeys(factors, 0.0))
    never = any(epochs is None for epochs in efficiency.second.values())
    holds = factor.above(2.0)
    if never and not holds:
        holds = None  # it ends before it could be told
    why = f"{efficiency.text(PIPED, 'ASP')}; {'at least ' if never else ''}{factor.text().lstrip('+')} times as many"
    return trend(context, holds, why, "'far below' is read as at least twice the epochs; over seeds", model=VGG)


def logs_of(context: Context, arm: str, seed: int) -> list[RunLog]:
    """The log of an arm with a seed."""
    return [i.log for i in context.select(model=VGG, arm=arm) if i.arm.seed == seed and i.log is not None]


@judge(PAPER, "text_asp", "seven_times")
def seven_times(context: Context) -> Finding:
    """With 16 of 32 workers ASP is less stale than the paper's: a ratio below the printed one refutes nothing."""
    ratio, printed = asp_ratio(context), context.result.reported["ratio"]
    above, below = ratio.above(printed / SPEED), ratio.below(printed * SPEED)
    holds = False if below is False else True if above and below else None
    why = f"{ratio.text().lstrip('+')} for {printed}x; {asp(context).text(PIPED, 'ASP')}; ASP with 16 of 32 workers"
    return sized(context, holds, why, f"{SPEED_WORDS}; below that it cannot be told", model=VGG)


TASKS = {"image_classification": (VGG,), "translation": ("GNMT-16",), "language_modeling": (LANGUAGE,)}


def headline(context: Context, task: str) -> tuple[Difference, str]:
    """The largest speedup to a target among a task's rows of table 1 that are trained; and how it comes about.

    Raises:
        NotLogged: none of them is trained and timed.
    """
    speedups: list[tuple[Difference, str]] = []
    for entry in entries(context):
        model = entry.paper["model"]
        trained = model == LANGUAGE or (entry.log is not None and entry.log.summary["workers"] == TRAINED_ON)
        speed = entry.papers_plan()
        if model in TASKS[task] and trained and speed is not None:
            epochs = against_data_parallelism(context, model)
            gain = epochs.difference(speed)
            text = (
                f"{entry.name} {gain.text().lstrip('+')}x: an epoch of {entry.paper['config']} is {speed:.2f}x as fast"
            )
            speedups.append((gain, f"{text}; {epochs.text()}"))
    if not speedups:
        raise NotLogged(f"no plan for {' or '.join(TASKS[task])} is logged")
    return max(speedups, key=lambda one: one[0].mean)


@drawing(PAPER, "text_headline_tta")
def headline_tta(context: Context) -> Drawn:
    """A row per task."""
    names = {"image_classification": "image classification", "translation": "translation"}
    names |= {"language_modeling": "language modelling", "video_captioning": "video captioning"}

    def ours(row: tuple[str, float]) -> float | None:
        try:
            return headline(context, row[0])[0].mean if row[0] in TASKS else None
        except NotLogged:
            return None

    cols = [
        Col("Task", lambda row: names[row[0]]),
        Col("paper", lambda row: row[1], "{:.1f}x"),
        Col("ours", ours, "{:.2f}x"),
    ]
    short = context.shortfall(what="training")
    notes = ["the paper's configurations: epochs as trained, time per epoch as timed; S2VT is not trained"]
    notes += [f"trained not as in the paper: {short}"] if short else []
    return Drawn(table=table(context.result.reported.items(), cols, context.result.caption, notes))


def as_fast(task: str) -> Any:
    """A judge: whether the largest speedup of a task is the headline's."""

    def judged(context: Context) -> Finding:
        gain, why = headline(context, task)
        printed = context.result.reported[task]
        holds = all_of((gain.above(printed / SPEED), gain.below(printed * SPEED)))
        model = TASKS[task][0]
        return sized(
            context, holds, f"{why}; for {printed}x", f"over seeds, {SPEED_WORDS}", what="training", model=model
        )

    return judged


for _claim, _task in (
    ("images", "image_classification"),
    ("translation", "translation"),
    ("language", "language_modeling"),
):
    judge(PAPER, "text_headline_tta", _claim)(as_fast(_task))
