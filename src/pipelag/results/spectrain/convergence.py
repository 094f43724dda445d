"""Figure 13 and the headline on time: trained iterations to a common accuracy times simulated time per iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from statistics import geometric_mean
from typing import Any

from pipelag.report.frames import Axis, Bars
from pipelag.report.tables import Col
from pipelag.results.arrivals import BETWEEN, Arrival, Arrivals, Gain
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, all_of, over_models, sized, trend, with_spread
from pipelag.results.plans import SPEED, SPEED_WORDS
from pipelag.results.spectrain import timing, training
from pipelag.results.spectrain.below import below_figures, below_tables
from pipelag.results.spectrain.learning_curves import STYLES
from pipelag.results.spectrain.throughput import TITLES
from pipelag.results.spectrain.timing import (
    CNN,
    DATA,
    DENSE,
    DUAL,
    FIRST,
    MODELS,
    PIPED,
    READ_AS,
    SECOND,
    Arms,
    disagreeing,
    share,
)
from pipelag.results.spectrain.training import SPECTRAIN, STASHED
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

PAPER = "spectrain"
# By scheme of figure 13, the arm that is trained.
TRAINED = {DATA: training.DATA, PIPED: training.PIPED, DUAL: SPECTRAIN}
GROUPS = {"CNN": CNN, "FCN/RNN": DENSE, "all": MODELS}
ORDER = (DATA, PIPED, STASHED, DUAL)  # the order of bars
VERSIONS = {training.PIPED: "one version on all GPUs", STASHED: "stashing"}  # of PipeDream, as it is trained
# By column of the headline's table: the scheme that DualPipe is compared with, and the key of the printed share.
OTHERS = {"data": (DATA, "vs_data_percent"), "piped": (PIPED, "vs_pipedream_percent")}
OVER = f"{BETWEEN}; {SEEDS}"
BySeed = dict[int, float]


def steps_to(context: Context, model: str, target: float, arm: str, seed: int) -> Arrival:
    """When a run reaches an accuracy, in iterations. Raises `NotLogged` if it never does."""
    for item in context.select(what="training", model=model, arm=arm):
        if item.arm.seed == seed and item.log is not None:
            arrival = Arrival.of(item.log.evaluations("accuracy"), lambda row: bool(row["accuracy"] >= target), "step")
            if not arrival.never:
                return arrival
    raise NotLogged(f"{arm} of {model} does not reach {target:.2f} % with seed {seed}")


def times(context: Context, model: str, piped: str = training.PIPED, timed: Arms = FIRST) -> dict[str, Arrivals]:
    """The seconds to "the lowest value among the best accuracy the three schemes can achieve", by scheme and seed.

    For the seeds that all three schemes have.

    Args:
        piped: the trained arm of PipeDream. Its time per iteration is always that of one version on all GPUs.
        timed: the schemes' timed arms in one reading of the paper.
    """
    trained = TRAINED | {PIPED: piped}
    reached = {scheme: training.as_trained(context, model, arm) for scheme, arm in trained.items()}
    seeds = sorted(set.intersection(*map(set, reached.values())))
    if not seeds:
        raise NotLogged(f"the three schemes of {model} have no seed in common")
    seconds: dict[str, Arrivals] = {scheme: {} for scheme in trained}
    for scheme, arm in trained.items():
        row = timing.needed(context, model, timed[scheme])
        for seed in seeds:
            target = min(by_seed[seed] for by_seed in reached.values())
            seconds[scheme][seed] = steps_to(context, model, target, arm, seed).times(row["seconds"])
    return seconds


def ratio(context: Context, other: str, models: Sequence[str], scheme: str = DUAL, **reading: Any) -> BySeed:
    """A scheme's time over another's by seed, as evaluated, as a geometric mean over models."""
    per_model = [times(context, model, **reading) for model in models]
    shares = ({seed: one.by / each[other][seed].by for seed, one in each[scheme].items()} for each in per_model)
    return over_models(shares, geometric_mean)


def against(context: Context, other: str, models: Sequence[str], scheme: str = DUAL, **reading: Any) -> Gain:
    """A scheme's time over another's in percent, over seeds and with the bounds that evaluations leave (`Gain`)."""
    per_model = [times(context, model, **reading) for model in models]
    return Gain.over_models([(each[other], each[scheme]) for each in per_model], 100.0)


def beside(context: Context, models: Sequence[str]) -> str:
    """DualPipe's share of the time of PipeDream with stashing, in both readings, in words."""
    first, second = (
        against(context, PIPED, models, piped=STASHED, timed=timed).evaluated.mean for timed in (FIRST, SECOND)
    )
    return f"{first:.0f} % ({second:.0f} %) of PipeDream with stashing; in brackets: {READ_AS[1]}"


def in_readings(of: Callable[[Arms], bool | None]) -> tuple[bool | None, str]:
    """The common outcome of both readings of the schemes' times; None with an explanation if they differ."""
    outcomes = of(FIRST), of(SECOND)
    return (outcomes[0], "") if outcomes[0] is outcomes[1] else (None, f"; {disagreeing(outcomes)}")


@drawing(PAPER, "figure_13")
def figure_13(context: Context) -> Drawn:
    """Time to a common accuracy: a panel per version of PipeDream, with a group per model and the groups' means."""
    rows: list[dict[str, Any]] = []
    drawn: dict[str, set[str]] = {piped: set() for piped in VERSIONS}
    for piped, version in VERSIONS.items():
        for name, models in [*((model, (model,)) for model in MODELS), *GROUPS.items()]:
            title = TITLES.get(name, f"mean,\n{name}" if name in GROUPS else name)
            with suppress(NotLogged):
                place = {"pipedream": f"PipeDream: {version}", "model": title}
                shares = {scheme: ratio(context, DATA, models, scheme, piped=piped) for scheme in TRAINED}
                drawn[piped] |= {name, *models}
                rows += [
                    place | {"scheme": piped if scheme == PIPED else scheme, "seed": seed, "time": value}
                    for scheme, by_seed in shares.items()
                    for seed, value in by_seed.items()
                ]
    rows.sort(key=lambda row: ORDER.index(row["scheme"]))
    trained = set.union(*drawn.values())
    items = [item for item in context.items if item.log is None or item.arm.labels.get("model") in trained]
    y = Axis("time", "time to a common accuracy\n(Data P. = 1)")
    of_schemes = timing.COLOURS | {STASHED: STYLES[STASHED][0]}
    chart = Bars(y, "model", "scheme", panel="pipedream", colours=of_schemes, shared_y=True, height=2.7)
    return Drawn.of(chart, rows, items, " ".join(below_figure_13(context, drawn)))


def below_figure_13(context: Context, drawn: dict[str, set[str]]) -> list[str]:
    """The notes below figure 13. drawn: the models and groups of models in each panel."""
    lost = [model for model in MODELS if model in drawn[STASHED] - drawn[training.PIPED]]
    sentences = [f"PipeDream's one version diverges or does not learn on {', '.join(lost)}."] if lost else []
    if drawn[STASHED]:
        sentences.append("Both are timed as one version on all GPUs.")
    if any(drawn.values()):
        sentences.append("Times with a server and a common clock; the headline's table has others.")
    if GROUPS.keys() & set.union(*drawn.values()):
        sentences.append("Means over models are geometric.")
    return [*sentences, *below_figures(context)]


def fastest(models: Sequence[str]) -> Judge:
    """A judge that decides whether DualPipe needs less time than both others, on average over a group of models.

    Its share of their time must be below 100 % over seeds, wherever between two evaluations the runs arrive. Both
    readings of the schemes' times must agree.
    """

    def judged(context: Context) -> Finding:
        shares = {
            timed is SECOND: {other: against(context, other, models, timed=timed) for other in (DATA, PIPED)}
            for timed in (FIRST, SECOND)
        }
        holds, words = in_readings(lambda timed: all_of(one.below(100.0) for one in shares[timed is SECOND].values()))
        texts = [
            f"{share(one.evaluated)} ({shares[True][other].evaluated.mean:.0f} %) of {other}'s time"
            for other, one in shares[False].items()
        ]
        return trend(context, holds, f"{', '.join(texts)}, {beside(context, models)}{words}", OVER, what="training")

    return judged


judge(PAPER, "figure_13", "cnn_fastest")(fastest(CNN))
judge(PAPER, "figure_13", "dense_fastest")(fastest(DENSE))


def faster_here(other: str) -> Judge:
    """A judge that decides whether DualPipe needs less time than another scheme on each model that is trained here.

    PipeDream is taken with stashing, because its one version does not learn on all models. Both readings of the
    schemes' times must agree.
    """

    def judged(context: Context) -> Finding:
        models = training.trained_here(context)
        percents: dict[tuple[str, bool], Gain] = {}
        unknown: dict[str, str] = {}
        for model in models:
            try:
                for timed in (FIRST, SECOND):
                    percents[model, timed is SECOND] = against(context, other, (model,), piped=STASHED, timed=timed)
            except NotLogged as error:
                unknown[model] = f"{model} unknown ({error})"
        holds, words = in_readings(
            lambda timed: all_of(None if m in unknown else percents[m, timed is SECOND].below(100.0) for m in models)
        )
        named = STASHED if other == PIPED else other
        texts = [
            unknown.get(model)
            or in_percent(context, model, other, *(percents[model, second] for second in (False, True)))
            for model in models
        ]
        why = f"time over that of {named}: {'; '.join(texts)}; in brackets: {READ_AS[1]}"
        why += f"{simulated(context, other)}{words}"
        return trend(context, holds, why, OVER, what="training")

    return judged


def in_percent(context: Context, model: str, other: str, first: Gain, second: Gain) -> str:
    """DualPipe's share of another scheme's time on a model, in both readings, and the share per iteration, in words."""
    alone = [
        100
        * timing.needed(context, model, arms[DUAL])["seconds"]
        / timing.needed(context, model, arms[other])["seconds"]
        for arms in (FIRST, SECOND)
    ]
    shares = [share(gain.evaluated) for gain in (first, second)]
    text = f"{model} {shares[0]}, per iteration {alone[0]:.0f} % ({shares[1]}, per iteration {alone[1]:.0f} %)"
    if other == PIPED:
        with suppress(NotLogged):
            text += f", over its one version {share(against(context, PIPED, (model,)).evaluated)}"
    return text


def simulated(context: Context, other: str) -> str:
    """The simulated gain in iterations per second beside the paper's, in words; empty without all models' plans."""
    printed = context.paper.results["text_headline_throughput"].reported
    with suppress(NotLogged):
        gain = timing.average(timing.gains(context, DUAL, other))
        of = printed["data_avg" if other == DATA else "pipedream_avg"]
        return (
            f"; iterations are simulated: on the six networks {gain:.2f}x as many per second as {other} ({of}x printed)"
        )
    return ""


judge(PAPER, "figure_13", "faster_than_data_here")(faster_here(DATA))
judge(PAPER, "figure_13", "faster_than_pipedream_here")(faster_here(PIPED))


def piped_against_data(models: Sequence[str], slower: bool) -> Judge:
    """A judge that decides whether PipeDream needs more time than data parallelism, or less if not `slower`.

    On average over a group of models; both readings of the schemes' times must agree.
    """

    def judged(context: Context) -> Finding:
        percents = [against(context, DATA, models, PIPED, timed=timed) for timed in (FIRST, SECOND)]

        def holds(timed: Arms) -> bool | None:
            percent = percents[timed is SECOND]
            return percent.above(100.0) if slower else percent.below(100.0)

        outcome, words = in_readings(holds)
        first, second = (share(percent.evaluated) for percent in percents)
        return trend(
            context, outcome, f"{first} of Data P.'s time, {READ_AS[1]} {second}{words}", OVER, what="training"
        )

    return judged


judge(PAPER, "figure_13", "cnn_pipedream_slower")(piped_against_data(CNN, slower=True))
judge(PAPER, "figure_13", "dense_pipedream_faster")(piped_against_data(DENSE, slower=False))


def as_printed(context: Context, group: str) -> Finding:
    """Holds if DualPipe's shares of both others' time are the printed ones, within a factor of 1.2.

    As geometric means over a group of models; both readings of the schemes' times must agree.
    """
    models, reported = GROUPS[group], context.result.reported
    printed = reported.get(group.replace("/", "_"), reported)  # figure 13's are by group

    def holds(timed: Arms) -> bool | None:
        outcomes = []
        for other, key in OTHERS.values():
            percent = against(context, other, models, timed=timed)
            outcomes.append(percent.within(printed[key] / SPEED, printed[key] * SPEED))
        return all_of(outcomes)

    outcome, words = in_readings(holds)
    texts = []
    for other, key in OTHERS.values():
        first, second = (against(context, other, models, timed=timed).evaluated for timed in (FIRST, SECOND))
        texts.append(f"{share(first)} ({second.mean:.0f} %) of {other}'s time, printed {printed[key]} %")
    why = f"{', '.join(texts)}, {beside(context, models)}{words}"
    return sized(
        context, outcome, why, f"geometric means over models, {SPEED_WORDS}; over seeds, {BETWEEN}", what="training"
    )


judge(PAPER, "figure_13", "cnn_as_printed")(partial(as_printed, group="CNN"))
judge(PAPER, "figure_13", "dense_as_printed")(partial(as_printed, group="FCN/RNN"))
judge(PAPER, "text_headline_time", "as_printed")(partial(as_printed, group="all"))
judge(PAPER, "text_headline_time", "fastest")(fastest(MODELS))


def in_cell(by_seed: BySeed) -> str:
    """Ratios by seed as percentages in a table's cell."""
    return with_spread([100 * value for value in by_seed.values()])


@drawing(PAPER, "text_headline_time")
def headline_time(context: Context) -> Drawn:
    """DualPipe's share of the others' time, a row per group of models and reading."""
    printed = context.paper.results["figure_13"].reported
    readings: dict[str, dict[str, Any]] = {
        f"{clock}; {version}": {"piped": piped, "timed": timed}
        for piped, version in VERSIONS.items()
        for clock, timed in (("a server, a common clock", FIRST), ("a ring, no common clock", SECOND))
    }
    rows: list[dict[str, Any]] = []
    lacking: dict[str, None] = {}
    for group, models in GROUPS.items():
        paper = printed[group.replace("/", "_")]
        row = {"group": group, "data": f"{paper['vs_data_percent']}", "piped": f"{paper['vs_pipedream_percent']}"}
        rows.append(row | {"reading": "paper"})
        for reading, how in readings.items():
            row = {"group": group, "reading": f"ours: {reading}"}
            for key, (other, _) in OTHERS.items():
                try:
                    row[key] = in_cell(ratio(context, other, models, **how))
                except NotLogged as why:
                    lacking[str(why)] = None
            rows.append(row)
    cols = [
        Col("Models", "group"),
        Col("Reading", "reading"),
        Col("Data P.", "data", group="DualPipe's time in % of that of"),
        Col("PipeDream", "piped", group="DualPipe's time in % of that of"),
    ]
    short = context.shortfall(what="training")
    notes = [
        "iterations as trained, times per iteration as simulated for the paper's networks; geometric means over models"
    ]
    notes += ["ours: mean ± one standard deviation over seeds; PipeDream is timed with one version on all GPUs alone"]
    notes += by_network(context, readings)
    notes += [f"trained differently from the paper: {short}"] if short else []
    notes += [f"–: {'; '.join(lacking)}"] if lacking else []
    return Drawn.tabled(context, rows, cols, [*notes, *below_tables(context)], rule_by="Models")


def by_network(context: Context, readings: dict[str, dict[str, Any]]) -> list[str]:
    """A note per reading with DualPipe's share of PipeDream's time by model, where there is one."""
    notes = []
    for reading, how in readings.items():
        cells = []
        for model in MODELS:
            with suppress(NotLogged):
                cells.append(f"{model} {in_cell(ratio(context, PIPED, (model,), **how))}")
        notes += [f"in % of PipeDream's time, {reading}: {', '.join(cells)}"] if cells else []
    return notes
