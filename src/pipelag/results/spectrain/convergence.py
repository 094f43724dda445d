"""Figure 13 and the headline on time: iterations to a common accuracy, as trained, times those that plans take."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean, geometric_mean
from typing import Any

from pipelag.report.frames import Axis, Bars
from pipelag.report.tables import Col, table
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, Difference, all_of, over_models, sized, trend
from pipelag.results.plans import SPEED, SPEED_WORDS
from pipelag.results.spectrain import timing, training
from pipelag.results.spectrain.throughput import TITLES
from pipelag.results.spectrain.timing import CNN, DENSE, DUAL, MODELS, PIPED, RING, share
from pipelag.results.spectrain.training import OWN, STASHED
from pipelag.results.verdict import Finding, NotLogged, judge

PAPER = "spectrain"
DATA = timing.DATA
TRAINED = {DATA: training.DATA, PIPED: training.PIPED, DUAL: OWN}  # a scheme of figure 13 -> the arm that is trained
GROUPS = {"CNN": CNN, "FCN/RNN": DENSE, "all": MODELS}
ORDER = (DATA, PIPED, STASHED, DUAL)  # of the bars
BySeed = dict[int, float]


def steps_to(context: Context, model: str, target: float, arm: str, seed: int) -> int:
    """The iteration of the first evaluation that reaches an accuracy; for a judge."""
    for item in context.select(what="training", model=model, arm=arm):
        if item.arm.seed == seed and item.log is not None:
            for row in item.log.rows:
                if row.get("accuracy") is not None and row["accuracy"] >= target:
                    return int(row["step"])
    raise NotLogged(f"{arm} of {model} does not reach {target:.2f} % with seed {seed}")


def times(context: Context, model: str, data: str = DATA, piped: str = training.PIPED) -> dict[str, BySeed]:
    """Seconds to "the lowest value among the best accuracy the three schemes can achieve", by scheme and seed.

    Args:
        data: which timed data parallelism; piped: which trained PipeDream.
    """
    arms = TRAINED | {PIPED: piped}
    reached = {scheme: training.as_trained(context, model, arm) for scheme, arm in arms.items()}
    seconds: dict[str, BySeed] = {scheme: {} for scheme in arms}
    for scheme, arm in arms.items():
        row = timing.needed(context, model, data if scheme == DATA else scheme)
        for seed in reached[DATA]:
            target = min(by_seed[seed] for by_seed in reached.values())
            seconds[scheme][seed] = steps_to(context, model, target, arm, seed) * row["seconds"]
    return seconds


def ratio(context: Context, other: str, models: Sequence[str], scheme: str = DUAL, **reading: str) -> BySeed:
    """A scheme's time over another's, geometric mean over models, by seed; for a judge."""
    per_model = [times(context, model, **reading) for model in models]
    shares = ({seed: value / one[other][seed] for seed, value in one[scheme].items()} for one in per_model)
    return over_models(shares, geometric_mean)


def against(context: Context, other: str, models: Sequence[str], scheme: str = DUAL, **reading: str) -> Difference:
    """The same as a value over seeds, in percent."""
    percents = {seed: 100 * value for seed, value in ratio(context, other, models, scheme, **reading).items()}
    return Difference.of(percents, dict.fromkeys(percents, 0.0))


def beside(context: Context, models: Sequence[str]) -> str:
    """What the second readings give."""
    ring = fmean(ratio(context, DATA, models, data=RING).values())
    stashed = fmean(ratio(context, PIPED, models, piped=STASHED).values())
    return f"by a ring {100 * ring:.0f} % of Data P., {100 * stashed:.0f} % of PipeDream with stashing"


def learning(context: Context, models: Sequence[str]) -> tuple[str, dict[str, BySeed]]:
    """The PipeDream that learns these models, with stashing where its one version does not; and each scheme's time over
    data parallelism's, by seed.

    Raises:
        NotLogged: neither does, or another scheme does not.
    """
    for piped in (training.PIPED, STASHED):
        try:
            return piped, {scheme: ratio(context, DATA, models, scheme, piped=piped) for scheme in TRAINED}
        except NotLogged as why:
            last = why
    raise last


@drawing(PAPER, "figure_13")
def figure_13(context: Context) -> Drawn:
    """A group per model, then the geometric means of the groups; with stashing where PipeDream's one version does not
    learn."""
    rows = []
    drawn: set[str] = set()
    stashed: list[str] = []
    for name, models in [*((model, (model,)) for model in MODELS), *GROUPS.items()]:
        title = TITLES.get(name, f"mean,\n{name}" if name in GROUPS else name)
        with suppress(NotLogged):
            piped, shares = learning(context, models)
            drawn |= set(models)
            stashed += [name] if piped == STASHED and name in MODELS else []
            rows += [
                {"model": title, "scheme": piped if scheme == PIPED else scheme, "seed": seed, "time": value}
                for scheme, by_seed in shares.items()
                for seed, value in by_seed.items()
            ]
    rows.sort(key=lambda row: ORDER.index(row["scheme"]))
    items = [item for item in context.items if item.log is None or item.arm.labels.get("model") in drawn]
    y = Axis("time", "time to a common accuracy\n(Data P. = 1)")
    colours = timing.COLOURS | {STASHED: training.ARMS.index(STASHED)}
    note = (
        f"PipeDream with stashing alone where its one version does not learn: {', '.join(stashed)}." if stashed else ""
    )
    return Drawn.of(Bars(y, "model", "scheme", colours=colours, height=2.7), rows, items, note)


def fastest(models: Sequence[str]) -> Any:
    """A judge: DualPipe needs least time in a group of models."""

    def judged(context: Context) -> Finding:
        shares = {other: against(context, other, models) for other in (DATA, PIPED)}
        texts = [f"{share(value)} of {other}'s time" for other, value in shares.items()]
        holds = all_of(value.below(100.0) for value in shares.values())
        return trend(context, holds, f"{', '.join(texts)}; {beside(context, models)}", SEEDS, what="training")

    return judged


judge(PAPER, "figure_13", "cnn_fastest")(fastest(CNN))
judge(PAPER, "figure_13", "dense_fastest")(fastest(DENSE))


def with_what_learns(context: Context, other: str, model: str) -> tuple[str, Difference]:
    """DualPipe's time against another scheme's, and which of PipeDream's readings is PipeDream: that which learns."""
    try:
        return training.PIPED, against(context, other, (model,), piped=training.PIPED)
    except NotLogged:
        return STASHED, against(context, other, (model,), piped=STASHED)


def faster_here(other: str) -> Any:
    """A judge: DualPipe needs less time than another scheme, on each model that is trained here."""

    def judged(context: Context) -> Finding:
        outcomes: list[bool | None] = []
        texts: list[str] = []
        for model in training.trained_here(context):
            try:
                piped, percent = with_what_learns(context, other, model)
            except NotLogged as why:
                outcomes.append(None)
                texts.append(f"{model} unknown ({why})")
                continue
            outcomes.append(percent.below(100.0))
            seconds = [timing.needed(context, model, scheme)["seconds"] for scheme in (DUAL, other)]
            alone = f"{100 * seconds[0] / seconds[1]:.0f} % for an iteration"
            texts.append(f"{model} {share(percent)} of that of {piped if other == PIPED else other}, {alone}")
        return trend(context, all_of(outcomes), "; ".join(texts), SEEDS, what="training")

    return judged


judge(PAPER, "figure_13", "faster_than_data_here")(faster_here(DATA))
judge(PAPER, "figure_13", "faster_than_pipedream_here")(faster_here(PIPED))


@judge(PAPER, "figure_13", "cnn_pipedream_slower")
def cnn_pipedream_slower(context: Context) -> Finding:
    """PipeDream against data parallelism."""
    percent = against(context, DATA, CNN, PIPED)
    return trend(context, percent.above(100.0), f"{share(percent)} of Data P.'s time", SEEDS, what="training")


@judge(PAPER, "figure_13", "dense_pipedream_faster")
def dense_pipedream_faster(context: Context) -> Finding:
    """PipeDream against data parallelism."""
    percent = against(context, DATA, DENSE, PIPED)
    return trend(context, percent.below(100.0), f"{share(percent)} of Data P.'s time", SEEDS, what="training")


def as_printed(group: str, printed: dict[str, float], context: Context) -> Finding:
    """DualPipe's shares of both others' time, against printed ones."""
    models = GROUPS[group]
    holds, texts = [], []
    for other, key in ((DATA, "vs_data_percent"), (PIPED, "vs_pipedream_percent")):
        percent = against(context, other, models)
        holds.append(percent.within(printed[key] / SPEED, printed[key] * SPEED))
        texts.append(f"{share(percent)} of {other}'s time for {printed[key]} %")
    words = f"geometric means over models, {SPEED_WORDS}; over seeds"
    return sized(context, all_of(holds), f"{', '.join(texts)}; {beside(context, models)}", words, what="training")


@judge(PAPER, "figure_13", "cnn_as_printed")
def cnn_as_printed(context: Context) -> Finding:
    """Both means."""
    return as_printed("CNN", context.result.reported["CNN"], context)


@judge(PAPER, "figure_13", "dense_as_printed")
def dense_as_printed(context: Context) -> Finding:
    """Both means."""
    return as_printed("FCN/RNN", context.result.reported["FCN_RNN"], context)


@drawing(PAPER, "text_headline_time")
def headline_time(context: Context) -> Drawn:
    """A row per group of models and reading."""
    printed = context.paper.results["figure_13"].reported
    readings: dict[str, dict[str, str]] = {
        "a server; one version on all GPUs": {},
        "a server; stashing": {"piped": STASHED},
        "a ring; stashing": {"data": RING, "piped": STASHED},
    }
    rows: list[dict[str, Any]] = []
    lacking: dict[str, None] = {}
    for group, models in GROUPS.items():
        paper = printed[group.replace("/", "_")]
        row = {"group": group, "data": paper["vs_data_percent"], "piped": paper["vs_pipedream_percent"]}
        rows.append(row | {"reading": "paper"})
        for reading, how in readings.items():
            row = {"group": group, "reading": f"ours: {reading}"}
            for key, other in (("data", DATA), ("piped", PIPED)):
                try:
                    row[key] = fmean(ratio(context, other, models, **how).values()) * 100
                except NotLogged as why:
                    lacking[str(why)] = None
            rows.append(row)
    cols = [
        Col("Models", "group"),
        Col("Reading", "reading"),
        Col("Data P.", "data", "{:.1f}", "DualPipe's time in % of that of"),
        Col("PipeDream", "piped", "{:.1f}", "DualPipe's time in % of that of"),
    ]
    short = context.shortfall(what="training")
    notes = ["iterations as trained, times per iteration as timed for the paper's networks on P40s; geometric means"]
    notes += [f"trained not as in the paper: {short}"] if short else []
    notes += [f"–: {'; '.join(lacking)}"] if lacking else []
    return Drawn(table=table(rows, cols, context.result.caption, notes, rule_by="Models"))


@judge(PAPER, "text_headline_time", "as_printed")
def headline_as_printed(context: Context) -> Finding:
    """Means over all six models."""
    return as_printed("all", context.result.reported, context)


@judge(PAPER, "text_headline_time", "fastest")
def headline_fastest(context: Context) -> Finding:
    """Means over all six models."""
    return fastest(MODELS)(context)  # type: ignore[no-any-return]
