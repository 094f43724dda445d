"""Figures 10 and 11 and the headline on throughput: six networks on 2 and 4 GPUs, timed."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Bars
from pipelag.report.tables import Col, table
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import agreed
from pipelag.results.plans import PRINTED_WORDS, SPEED_WORDS
from pipelag.results.spectrain.timing import (
    CHARGED,
    CNN,
    COLOURS,
    DATA,
    DENSE,
    DUAL,
    DUAL_FREE,
    FREE,
    GPUS,
    MODELS,
    PIPED,
    PIPED_FREE,
    READINGS,
    RING,
    SCHEMES,
    average,
    communicating,
    found,
    gains,
    imbalance,
    mean_share,
    over,
    shares,
    speedups,
    timed,
    within,
)
from pipelag.results.verdict import Finding, NotLogged, judge

PAPER = "spectrain"
SECOND = {DATA: RING, PIPED: PIPED_FREE, DUAL: DUAL_FREE}
FASTER = 1.005  # half a unit of the last printed digit of a factor such as 1.21
FASTER_WORDS = f"{PRINTED_WORDS}, hundredths"
MEAN_WORDS = f"geometric mean, {SPEED_WORDS}"
TITLES = {  # of groups of bars, which are narrow
    "ResNet-152": "ResNet-\n152",
    "Inception v4": "Inception\nv4",
    "Transformer": "Trans-\nformer",
    "Residual LSTM": "Residual\nLSTM",
}
PARTS = {
    "computing": "computing",
    "transfer": "P2P transfer",
    "transfer_idle": "idle for transfers",
    "imbalance_idle": "idle for imbalance",
}

PARTS_COLOURS = dict(zip(PARTS.values(), (6, 5, 7, 3), strict=True))  # none of a scheme's


@drawing(PAPER, "figure_10")
def figure_10(context: Context) -> Drawn:
    """A panel per number of GPUs; second readings are in the table of the headline."""
    rows = []
    for gpus in GPUS:
        for model in MODELS:
            for scheme in SCHEMES:
                row = found(context, model, scheme, gpus)
                if row is not None:
                    place = {"gpus": f"{gpus} GPUs", "model": TITLES.get(model, model)}
                    rows.append(place | {"scheme": scheme, "throughput": row["speedup"]})
    y = Axis("throughput", "throughput (single GPU = 1)")
    chart = Bars(
        y, "model", "scheme", panel="gpus", number="{:.1f}", levels={"single GPU": 1.0}, colours=COLOURS, height=2.6
    )
    return Drawn.of(chart, rows)


def beside(context: Context, scheme: str, models: tuple[str, ...] = MODELS, gpus: int = 4) -> str:
    """A scheme's speedups in words, its second reading in brackets."""
    first, second = speedups(context, scheme, models, gpus), speedups(context, SECOND[scheme], models, gpus)
    return ", ".join(f"{model} {first[model]:.2f}x ({second[model]:.2f}x)" for model in models)


@judge(PAPER, "figure_10", "dualpipe_highest")
def dualpipe_highest(context: Context) -> Finding:
    """Every model on 4 GPUs, against the better of the others."""
    lead = {model: min(gains(context, DUAL, other, (model,))[model] for other in (DATA, PIPED)) for model in MODELS}
    second = {m: min(gains(context, DUAL_FREE, other, (m,))[m] for other in (RING, PIPED_FREE)) for m in MODELS}
    why = f"DualPipe over the better of the others: {over(lead)}; by a ring and without a common clock {over(second)}"
    return timed(context, min(lead.values()) >= FASTER, why, FASTER_WORDS)


@judge(PAPER, "figure_10", "cnn_data_above_pipedream")
def cnn_data_above_pipedream(context: Context) -> Finding:
    """Each CNN on 4 GPUs."""
    lead, second = gains(context, DATA, PIPED, CNN), gains(context, RING, PIPED, CNN)
    why = f"Data P. over PipeDream: {over(lead)}; by a ring {over(second)}"
    return timed(context, min(lead.values()) >= FASTER, why, FASTER_WORDS)


@judge(PAPER, "figure_10", "cnn_scale")
def cnn_scale(context: Context) -> Finding:
    """From 2 to 4 GPUs, every scheme on every CNN."""
    texts, scales = [], {}
    for scheme in (*SCHEMES, RING):
        two, four = speedups(context, scheme, CNN, 2), speedups(context, scheme, CNN, 4)
        scales[scheme] = all(four[model] >= FASTER * two[model] for model in CNN)
        texts.append(f"{scheme} " + ", ".join(f"{two[model]:.2f} to {four[model]:.2f}" for model in CNN))
    holds = all(scales[scheme] for scheme in SCHEMES if scheme != DATA)
    return timed(context, agreed(holds and scales[DATA], holds and scales[RING]), "; ".join(texts), FASTER_WORDS)


@judge(PAPER, "figure_10", "dense_gain_four")
def dense_gain_four(context: Context) -> Finding:
    """Both pipelines on 4 GPUs, each of the three models."""
    data = speedups(context, DATA, DENSE, 4)
    piped = {scheme: speedups(context, scheme, DENSE, 4) for scheme in (PIPED, DUAL)}
    holds = all(four[model] >= FASTER * max(1.0, data[model]) for four in piped.values() for model in DENSE)
    texts = [f"{name} " + ", ".join(f"{m} {by[m]:.2f}x" for m in DENSE) for name, by in (piped | {DATA: data}).items()]
    return timed(context, holds, "; ".join(texts), FASTER_WORDS)


@judge(PAPER, "figure_10", "dense_falls")
def dense_falls(context: Context) -> Finding:
    """Data parallelism from 2 to 4 GPUs, each of the three models."""
    two, four = speedups(context, DATA, DENSE, 2), speedups(context, DATA, DENSE, 4)
    rings = [speedups(context, RING, DENSE, gpus) for gpus in GPUS]
    texts = [f"{m} {two[m]:.2f}x to {four[m]:.2f}x (by a ring {rings[0][m]:.2f}x to {rings[1][m]:.2f}x)" for m in DENSE]
    falls = (all(a[m] >= FASTER * b[m] for m in DENSE) for a, b in ((two, four), rings))
    return timed(context, agreed(*falls), ", ".join(texts), FASTER_WORDS)


@judge(PAPER, "figure_10", "dense_below_one")
def dense_below_one(context: Context) -> Finding:
    """The mean on 4 GPUs, against one GPU."""
    by_model, printed = speedups(context, DATA, DENSE), context.result.reported["FCN_RNN_4gpu"]
    ring = average(speedups(context, RING, DENSE))
    why = f"{100 * average(by_model):.1f} % of a single GPU's throughput (by a ring {100 * ring:.0f} %) for "
    why += f"{printed['data_parallel_vs_single_percent']} %: {over(by_model)}"
    holds = agreed(average(by_model) <= 1 / FASTER, ring <= 1 / FASTER)
    return timed(context, holds, why, f"geometric mean, {FASTER_WORDS}")


def gain_as_printed(group: str, models: tuple[str, ...]) -> Any:
    """A judge: DualPipe over both others, mean over a group of models."""

    def judged(context: Context) -> Finding:
        printed, texts, holds = context.result.reported[group], [], True
        for other, key in ((DATA, "over_data_percent"), (PIPED, "over_pipedream_percent")):
            by_model = gains(context, DUAL, other, models)
            second = average(gains(context, SECOND[DUAL], SECOND[other], models))
            holds &= within(average(by_model), 1 + printed[key] / 100)
            texts.append(f"{average(by_model):.2f}x for {1 + printed[key] / 100:.2f}x over {other} ({second:.2f}x)")
        return timed(context, holds, f"{', '.join(texts)}; second readings in brackets", MEAN_WORDS)

    return judged


judge(PAPER, "figure_10", "cnn_gains")(gain_as_printed("CNN_4gpu", CNN))
judge(PAPER, "figure_10", "dense_gains")(gain_as_printed("FCN_RNN_4gpu", DENSE))


@drawing(PAPER, "figure_11")
def figure_11(context: Context) -> Drawn:
    """A panel per model, a stack per scheme, as shares of data parallelism's time."""
    rows = []
    for model in MODELS:
        base = found(context, model, DATA)
        for scheme in SCHEMES:
            row = found(context, model, scheme)
            if row is None or base is None:
                continue
            name = f"\n{scheme}" if scheme == PIPED else scheme  # in two rows, the panels being narrow
            for part, share in shares(row).items():
                time = share * row["seconds"] / base["seconds"]
                rows.append({"model": model, "scheme": name, "part": PARTS[part], "time": time})
    y = Axis("time", "time (Data P. = 1)", limits=(0, 1.2))
    return Drawn.of(
        Bars(y, "scheme", stack="part", panel="model", colours=PARTS_COLOURS, shared_y=True, height=2.5), rows
    )


@judge(PAPER, "figure_11", "imbalance_order")
def imbalance_order(context: Context) -> Finding:
    """Means over the six models; nothing is told where the two readings of a schedule's clock disagree."""
    idle = {arm: mean_share(context, arm, imbalance) for arm in (PIPED, DUAL, PIPED_FREE, DUAL_FREE)}
    why = ", ".join(f"{arm} {share:.1f} %" for arm, share in idle.items())
    holds = agreed(*(idle[piped] > idle[dual] + 1 for piped, dual in ((PIPED, DUAL), (PIPED_FREE, DUAL_FREE))))
    why += "; the two readings do not agree" if holds is None else ""
    return timed(context, holds, why, "a percentage point, in both readings")


@judge(PAPER, "figure_11", "imbalance_as_printed")
def imbalance_as_printed(context: Context) -> Finding:
    """Both means."""
    printed, texts, holds = context.result.reported["imbalance_idle_percent"], [], True
    for arm in (PIPED, DUAL):
        idle = mean_share(context, arm, imbalance)
        holds &= within(idle, printed[arm])
        texts.append(f"{arm} {idle:.1f} % for {printed[arm]} %")
    return timed(context, holds, ", ".join(texts), SPEED_WORDS)


@judge(PAPER, "figure_11", "transfers_order")
def transfers_order(context: Context) -> Finding:
    """Means over the six models."""
    share = {arm: mean_share(context, arm, communicating) for arm in (DATA, RING, PIPED, DUAL)}
    why = ", ".join(f"{arm} {percent:.1f} %" for arm, percent in share.items())
    holds = share[DATA] >= 2 * max(share[PIPED], share[DUAL])
    return timed(context, holds, why, "'only' is read as at most half of data parallelism's")


@judge(PAPER, "figure_11", "transfers_as_printed")
def transfers_as_printed(context: Context) -> Finding:
    """Means of the schemes, and of data parallelism over the FCN and RNN models."""
    printed, texts, holds = context.result.reported["p2p_related_percent"], [], True
    for name, arm, models in (*((arm, arm, MODELS) for arm in SCHEMES), (f"{DATA} FCN/RNN", DATA, DENSE)):
        percent = mean_share(context, arm, communicating, models)
        holds &= within(percent, printed[name])
        texts.append(f"{name} {percent:.1f} % for {printed[name]} %")
    ring = mean_share(context, RING, communicating)
    return timed(context, holds, f"{', '.join(texts)}; by a ring {ring:.1f} %", SPEED_WORDS)


def headline(context: Context, other: str, reading: str, second: bool) -> Mapping[str, float]:
    """DualPipe over another scheme, in one of four readings; for a judge."""
    pair = (SECOND[DUAL], SECOND[other]) if second else (DUAL, other)
    return gains(context, *pair, reading=reading)


@drawing(PAPER, "text_headline_throughput")
def headline_throughput(context: Context) -> Drawn:
    """A row per comparison and reading."""
    paper = context.result.reported
    rows: list[dict[str, Any]] = []
    for other, key in ((DATA, "data"), (PIPED, "pipedream")):
        printed = {"avg": paper[f"{key}_avg"], "max": paper[f"{key}_max"]}
        rows.append({"over": other, "reading": "paper", "mean": printed["avg"], "most": printed["max"]})
        for reading in READINGS:
            for second in (False, True):
                clock = ("a ring" if second else "a server") if other == DATA else ""
                clock = clock or ("every GPU by itself" if second else "one clock for all GPUs")
                row: dict[str, Any] = {"over": other, "reading": f"ours: {clock}, {reading}"}
                try:
                    by_model = headline(context, other, reading, second)
                    row |= {
                        "mean": average(by_model),
                        "arithmetic": fmean(by_model.values()),
                        "most": max(by_model.values()),
                    }
                except NotLogged:
                    pass
                rows.append(row)
    cols = [
        Col("DualPipe over", "over"),
        Col("Reading", "reading"),
        Col("geometric mean", "mean", "{:.2f}x"),
        Col("arithmetic mean", "arithmetic", "{:.2f}x"),
        Col("at most", "most", "{:.2f}x"),
    ]
    notes = [
        "rooflines of a P40 and links of 12 GB/s; the paper's mean over data parallelism fits a geometric one only",
        f"{CHARGED}: copies and predictions take the memory's bandwidth, a kernel per step; {FREE}: they take no time",
        "without a common clock 1F1B leaves nothing idle that DualPipe could use",
    ]
    return Drawn(table=table(rows, cols, context.result.caption, notes, rule_by="DualPipe over"))


def in_readings(context: Context, other: str) -> str:
    """The means of all readings but the first."""
    means = {
        (reading, second): average(headline(context, other, reading, second))
        for reading in READINGS
        for second in (False, True)
    }
    names = {DATA: ("a server", "a ring"), PIPED: ("one clock", "no common clock")}[other]
    texts = [f"{names[second]}, {reading} {mean:.2f}x" for (reading, second), mean in means.items()]
    return ", ".join(texts)


@judge(PAPER, "text_headline_throughput", "above_1_5_here")
def above_one_and_a_half(context: Context) -> Finding:
    """The mean of the six models."""
    by_model = headline(context, PIPED, CHARGED, False)
    why = f"{average(by_model):.2f}x (arithmetic {fmean(by_model.values()):.2f}x): {over(by_model)}; "
    why += in_readings(context, PIPED)
    return timed(context, average(by_model) > 1.5, why, "more than 1.5 as it stands")


def headline_as_printed(other: str, key: str) -> Any:
    """A judge: mean and greatest, as printed."""

    def judged(context: Context) -> Finding:
        printed = [context.result.reported[f"{key}_{which}"] for which in ("avg", "max")]
        by_model = headline(context, other, CHARGED, False)
        holds = within(average(by_model), printed[0]) and within(max(by_model.values()), printed[1])
        why = f"{average(by_model):.2f}x for {printed[0]}x, at most {max(by_model.values()):.2f}x for {printed[1]}x; "
        return timed(context, holds, why + in_readings(context, other), MEAN_WORDS)

    return judged


judge(PAPER, "text_headline_throughput", "over_data")(headline_as_printed(DATA, "data"))
judge(PAPER, "text_headline_throughput", "over_pipedream")(headline_as_printed(PIPED, "pipedream"))
