"""Figures 6 and 8, and what section V-C says of throughput: the approaches over one straight plan, timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Bars
from pipelag.report.tables import Col, table
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import measured
from pipelag.results.logs import RunLog
from pipelag.results.plans import SPEED_WORDS, by_model, near
from pipelag.results.verdict import Finding, NotLogged, judge, log_of, need

PAPER = "pipeoptim"
GPIPE, PIPEDREAM, TWO_BW, SPECTRAIN, XPIPE, OPTIM = ARMS = (
    *("GPipe", "PipeDream", "PipeDream-2BW", "SpecTrain", "XPipe", "PipeOptim"),
)
VANILLA = "Vanilla-1F1B"
COLOURS = {name: number for number, name in enumerate((*ARMS, VANILLA))}
FIGURES = tuple(f"figure_6{letter}" for letter in "abcdefgh")
ORDER = (GPIPE, PIPEDREAM, OPTIM, TWO_BW, VANILLA)  # of figure 8, from the slowest
LARGEST = ", largest"
ALIKE, ALIKE_WORDS = 1.05, "within 5 %: a few percent"
SIGN = "the sign: all are timed over the same profile and plan, without noise"
TIE = 0.1  # percent: far less than data sheets know
MOST = f"more than half of the models, each by its sign; less than {TIE} % is no difference"


def arm_rows(log: RunLog | None) -> dict[str, dict[str, Any]]:
    """The arms of a plan's log by name."""
    return {row["arm"]: row for row in log.rows if row["what"] == "arm"} if log else {}


def rates(log: RunLog | None) -> dict[str, float]:
    """Samples per second by arm; without those that have no time."""
    speeds = {name: row.get("samples_per_second") for name, row in arm_rows(log).items()}
    return {name: rate for name, rate in speeds.items() if rate}


def rates_of(context: Context, **labels: str) -> dict[str, float]:
    """`rates` of one run, for a judge; every arm that the config asks for has one."""
    speeds = rates(log_of(context, **labels))
    wanted = context.select(**labels)[0].arm.spec.options["arms"]
    missing = [name for name in wanted if name not in speeds]
    if missing:
        raise NotLogged(f"{missing[0]} has no logged throughput")
    return speeds


@drawing(PAPER, *FIGURES)
def figure_6(context: Context) -> Drawn:
    """A bar per approach; PipeDream-2BW, beside PipeDream, by its last name."""
    speeds = rates(context.log())
    (model,) = context.values("model")
    rows = [
        {"panel": model, "approach": "2BW" if name == TWO_BW else name, "throughput": rate}
        for name, rate in speeds.items()
    ]
    if not rows:
        return not_logged("no plan is logged")
    y = Axis("throughput", "throughput (samples/s)")
    return Drawn.of(Bars(y, "approach", panel="panel", number="{:,.0f}", colours={"": 7}), rows)


def said(speeds: Mapping[str, float], names: tuple[str, ...]) -> str:
    """Rates in words."""
    return ", ".join(f"{name} {speeds[name]:,.1f}" for name in names if name in speeds) + " samples/s"


def gpipe_lowest(context: Context) -> Finding:
    """GPipe below every asynchronous approach."""
    speeds = rates_of(context)
    return measured(context, speeds[GPIPE] < min(v for k, v in speeds.items() if k != GPIPE), said(speeds, ARMS), SIGN)


for name in FIGURES:
    judge(PAPER, name, "gpipe_lowest")(gpipe_lowest)


@judge(PAPER, "figure_6a", "above_xpipe")
def above_xpipe(context: Context) -> Finding:
    """At the batches of table V."""
    speeds = rates_of(context)
    return measured(context, speeds[OPTIM] >= speeds[XPIPE], said(speeds, (OPTIM, XPIPE)), SIGN)


def alike(context: Context) -> Finding:
    """The fastest asynchronous approach over the slowest."""
    speeds = {name: rate for name, rate in rates_of(context).items() if name != GPIPE}
    ratio = max(speeds.values()) / min(speeds.values())
    why = f"{said(speeds, ARMS)}; the fastest is {100 * (ratio - 1):.2f} % faster than the slowest"
    return measured(context, ratio <= ALIKE, why, ALIKE_WORDS)


for name in ("figure_6b", "figure_6c"):
    judge(PAPER, name, "alike")(alike)


def percent(rate: float, other: float) -> float:
    """How much faster, in percent."""
    return 100 * (rate / other - 1)


@drawing(PAPER, "text_throughput")
def text_throughput(context: Context) -> Drawn:
    """A row per model; means, extremes and the printed numbers below."""
    others = (GPIPE, PIPEDREAM, TWO_BW, SPECTRAIN, XPIPE)
    models: list[dict[str, Any]] = []
    for model, log in by_model(context).items():
        speeds = rates(log)
        against = {o: percent(speeds[OPTIM], speeds[o]) for o in others if o in speeds and OPTIM in speeds}
        models.append({"model": model, "optimizer": context.select(model=model)[0].arm.labels["optimizer"], **against})
    rows, reported = list(models), context.result.reported
    below = {key: [-value for value in reported[f"below_{key}_percent"]] for key in ("PipeDream", "2BW")}
    printed = {PIPEDREAM: below["PipeDream"], TWO_BW: below["2BW"]}
    words = {"mean": "mean", "extreme": "farthest from 0"}
    if models:
        for place, what in enumerate(("mean", "extreme")):
            mine: dict[str, Any] = {"model": f"all, {words[what]}"}
            for other in others:
                values = [row[other] for row in models if other in row]
                mine[other] = fmean(values) if what == "mean" else max(values, key=abs) if values else None
            rows += [
                mine,
                {"model": f"all, {words[what]}, paper"} | {other: printed[other][place] for other in printed},
            ]
            adamw = [row[GPIPE] for row in models if row["optimizer"] == "AdamW" and GPIPE in row]
            value = (fmean(adamw) if what == "mean" else max(adamw)) if adamw else None
            rows.append({"model": f"AdamW, {words[what]}", GPIPE: value})
            rows.append({"model": f"AdamW, {words[what]}, paper", GPIPE: reported["over_GPipe_AdamW_percent"][place]})
    cols = [Col("model", "model"), Col("optimizer", "optimizer")]
    cols += [Col(f"over {other}", other, "{:+.2f} %", "throughput of PipeOptim") for other in others]
    return Drawn(table=table(rows, cols, context.result.caption))


def gains(context: Context, other: str, optimizer: str = "") -> dict[str, float]:
    """PipeOptim's throughput over another approach's, in percent, by model; for a judge."""
    labels = {"optimizer": optimizer} if optimizer else {}
    models = [m for m in context.values("model") if context.select(model=m, **labels)]
    speeds = {model: rates_of(context, model=model) for model in models}
    return {model: percent(rate[OPTIM], rate[other]) for model, rate in speeds.items() if other in rate}


def listed(values: Mapping[str, float]) -> str:
    """Percentages by model."""
    return ", ".join(f"{model} {value:+.2f} %" for model, value in values.items())


@judge(PAPER, "text_throughput", "above_gpipe")
def above_gpipe(context: Context) -> Finding:
    """Every model."""
    percents = gains(context, GPIPE)
    return measured(context, min(percents.values()) > 0, listed(percents), SIGN)


@judge(PAPER, "text_throughput", "gain_over_gpipe")
def gain_over_gpipe(context: Context) -> Finding:
    """Mean and maximum over the models with AdamW."""
    percents = gains(context, GPIPE, "AdamW")
    mean, most = fmean(percents.values()), max(percents.values())
    pairs = zip((mean, most), context.result.reported["over_GPipe_AdamW_percent"], strict=True)
    holds = all(near(1 + ours / 100, 1 + theirs / 100) for ours, theirs in pairs)
    return measured(context, holds, f"{mean:.1f} % on average, up to {most:.1f} %: {listed(percents)}", SPEED_WORDS)


def close_to(other: str, key: str) -> Callable[[Context], Finding]:
    """A judge: PipeOptim's mean throughput is at most so many percent lower."""

    def judged(context: Context) -> Finding:
        percents = gains(context, other)
        mean, most = fmean(percents.values()), context.result.reported[key][0]
        return measured(
            context,
            mean >= -most,
            f"{mean:+.2f} % on average: {listed(percents)}",
            f"at most {most} % lower, as printed",
        )

    return judged


judge(PAPER, "text_throughput", "close_to_pipedream")(close_to(PIPEDREAM, "below_PipeDream_percent"))
judge(PAPER, "text_throughput", "close_to_2bw")(close_to(TWO_BW, "below_2BW_percent"))


@judge(PAPER, "text_throughput", "mostly_above_xpipe")
def mostly_above_xpipe(context: Context) -> Finding:
    """More than half of the models."""
    percents = gains(context, XPIPE)
    holds = sum(value >= -TIE for value in percents.values()) > len(percents) / 2
    return measured(context, holds, listed(percents), MOST)


@judge(PAPER, "text_throughput", "below_stashing")
def below_stashing(context: Context) -> Finding:
    """The slower of the two that stash against the faster of the two that predict, by model."""
    speeds = {model: rates_of(context, model=model) for model in context.values("model")}
    margins = {m: percent(min(r[PIPEDREAM], r[TWO_BW]), max(r[OPTIM], r[XPIPE])) for m, r in speeds.items()}
    ahead, level = (sum(value > bound for value in margins.values()) > len(margins) / 2 for bound in (TIE, -TIE))
    holds = True if ahead else None if level else False
    why = f"the slower of PipeDream and 2BW over the faster of PipeOptim and XPipe: {listed(margins)}"
    return measured(context, holds, why, MOST)


PASSES = {"": "passes of 8 sequences", LARGEST: "the largest passes that fit"}


@drawing(PAPER, "figure_8")
def figure_8(context: Context) -> Drawn:
    """A panel per size of a pass, a group of bars per number of nodes."""
    rows = []
    for ending, panel in PASSES.items():
        for nodes in context.values("nodes"):
            speeds = rates(context.log(nodes=nodes))
            for name in ORDER:
                if name + ending in speeds:
                    throughput = speeds[name + ending]
                    rows.append({"panel": panel, "nodes": nodes, "approach": name, "throughput": throughput})
    if not rows:
        return not_logged("no plan is logged")
    y = Axis("throughput", "throughput (sequences/s)")
    return Drawn.of(
        Bars(y, "nodes", "approach", panel="panel", number="{:.0f}", x_title="nodes of 4 GPUs", colours=COLOURS), rows
    )


@judge(PAPER, "figure_8", "order")
def order(context: Context) -> Finding:
    """On every number of nodes; with equal passes or with the largest, since the paper names neither."""
    texts, holds = [], {}
    for ending, panel in PASSES.items():
        right = []
        for nodes in context.values("nodes"):
            speeds = rates_of(context, nodes=nodes)
            line = [need(speeds.get(name + ending), f"{name} on {nodes} nodes") for name in ORDER]
            right.append(all(a < b for a, b in zip(line[:-1], line[1:], strict=True)))
            texts.append(f"{panel}, nodes {nodes}: " + ", ".join(f"{v:.2f}" for v in line))
        holds[panel] = all(right)
    why = f"sequences/s of {', '.join(ORDER)}: " + "; ".join(texts)
    return measured(context, any(holds.values()), why, f"{SIGN}; either reading of the minibatch may have the order")
