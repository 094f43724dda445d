"""Figures 10 and 11 and the headline on throughput: six networks on 2 and 4 GPUs, by simulated times.

A claim for which the two readings of the schemes (ambiguity E16) differ must hold in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Bars
from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.plans import PRINTED_WORDS, SPEED, SPEED_WORDS, in_words, near
from pipelag.results.spectrain.timing import (
    CHARGED,
    CNN,
    COLOURS,
    DATA,
    DENSE,
    DUAL,
    DUAL_FREE,
    FIRST,
    FREE,
    GPUS,
    MODELS,
    PIPED,
    PIPED_FREE,
    READ_AS,
    READINGS,
    RING,
    SCHEMES,
    SECOND,
    Arms,
    average,
    communicating,
    gains,
    imbalance,
    in_both,
    logged_row,
    mean_share,
    methods_timed,
    needed,
    shares,
    speedups,
    timed,
)
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

PAPER = "spectrain"
FASTER = 1.005  # half a unit of the last printed digit of a factor such as 1.21
FASTER_WORDS = f"{PRINTED_WORDS}, hundredths"
MEAN_WORDS = f"geometric mean, {SPEED_WORDS}"
TITLES = {  # of groups of bars, which are narrow
    "ResNet-152": "ResNet-\n152",
    "Inception v4": "Inception\nv4",
    "Transformer": "Trans-\nformer",
    "Residual LSTM": "Residual\nLSTM",
}
LOW = 0.1  # figure 11's bars below this height are also given in words below it
PARTS = {
    "computing": "computing",
    "transfer": "P2P transfer",
    "transfer_idle": "idle for transfers",
    "imbalance_idle": "idle for imbalance",
}

PARTS_COLOURS = dict(zip(PARTS.values(), (6, 5, 7, 2), strict=True))  # different from the schemes' colours


@drawing(PAPER, "figure_10")
def figure_10(context: Context) -> Drawn:
    """Throughput by model and scheme, a panel per number of GPUs. The headline's table has the other readings."""
    rows = []
    for gpus in GPUS:
        for model in MODELS:
            for scheme in SCHEMES:
                row = logged_row(context, model, scheme, gpus)
                if row is not None:
                    place = {"gpus": f"{gpus} GPUs", "model": TITLES.get(model, model)}
                    rows.append(place | {"scheme": scheme, "throughput": row["speedup"]})
    y = Axis("throughput", "throughput (single GPU = 1)")
    alone = {"single GPU": 1.0}
    # One y axis, since claims compare the panels.
    chart = Bars(y, "model", "scheme", panel="gpus", levels=alone, colours=COLOURS, shared_y=True, height=3.0)
    return Drawn.of(chart, rows, note=methods_timed(context))


def ahead_everywhere(context: Context, what: str, leads: Callable[[Arms, int], Mapping[str, float]]) -> Finding:
    """Judge whether all leads are above 1 by more than rounding, on 2 and on 4 GPUs.

    what: whose leads they are. leads: by model, of the schemes' arms in a reading and a number of GPUs.
    """
    holds = in_both(lambda arms: all(min(leads(arms, gpus).values()) >= FASTER for gpus in GPUS))
    texts = [f"on {gpus} GPUs {in_words(leads(FIRST, gpus))} ({in_words(leads(SECOND, gpus))})" for gpus in GPUS]
    return timed(context, holds, f"{what} {'; '.join(texts)}; in brackets: {READ_AS[1]}", FASTER_WORDS)


@judge(PAPER, "figure_10", "dualpipe_highest")
def dualpipe_highest(context: Context) -> Finding:
    """Holds if DualPipe is faster than both others by more than rounding, for every model on 2 and on 4 GPUs."""

    def leads(arms: Arms, gpus: int) -> dict[str, float]:
        others = [gains(context, arms[DUAL], arms[other], gpus=gpus) for other in (DATA, PIPED)]
        return {model: min(each[model] for each in others) for model in MODELS}

    return ahead_everywhere(context, "DualPipe over the better of the others", leads)


@judge(PAPER, "figure_10", "cnn_data_above_pipedream")
def cnn_data_above_pipedream(context: Context) -> Finding:
    """Holds if data parallelism is faster than PipeDream by more than rounding, for each CNN on 2 and on 4 GPUs."""

    def leads(arms: Arms, gpus: int) -> dict[str, float]:
        return gains(context, arms[DATA], arms[PIPED], CNN, gpus=gpus)

    return ahead_everywhere(context, "Data P. over PipeDream", leads)


@judge(PAPER, "figure_10", "cnn_scale")
def cnn_scale(context: Context) -> Finding:
    """Holds if every scheme is faster on 4 GPUs than on 2 by more than rounding, for every CNN, in both readings."""
    texts, scales = [], {}
    for arm in (*SCHEMES, *SECOND.values()):
        two, four = speedups(context, arm, CNN, 2), speedups(context, arm, CNN, 4)
        scales[arm] = all(four[model] >= FASTER * two[model] for model in CNN)
        texts.append(f"{arm} " + ", ".join(f"{two[model]:.2f} to {four[model]:.2f}" for model in CNN))
    why = f"{', '.join(CNN)}, from 2 to 4 GPUs: {'; '.join(texts)}"
    return timed(context, in_both(lambda arms: all(scales[arm] for arm in arms.values())), why, FASTER_WORDS)


@judge(PAPER, "figure_10", "dense_gain_four")
def dense_gain_four(context: Context) -> Finding:
    """Holds if on 4 GPUs both pipelines beat one GPU and data parallelism by more than rounding, on each model."""
    four = {arm: speedups(context, arm, DENSE, 4) for arm in (*SCHEMES, *SECOND.values())}
    holds = in_both(
        lambda arms: all(
            four[arms[scheme]][model] >= FASTER * max(1.0, four[arms[DATA]][model])
            for scheme in (PIPED, DUAL)
            for model in DENSE
        )
    )
    return timed(context, holds, "; ".join(f"{arm} {in_words(by)}" for arm, by in four.items()), FASTER_WORDS)


@judge(PAPER, "figure_10", "dense_falls")
def dense_falls(context: Context) -> Finding:
    """Holds if data parallelism is slower on 4 GPUs than on 2 for each of three models, with a server and by a ring."""
    two, four = speedups(context, DATA, DENSE, 2), speedups(context, DATA, DENSE, 4)
    rings = [speedups(context, RING, DENSE, gpus) for gpus in GPUS]
    texts = [f"{m} {two[m]:.2f}x to {four[m]:.2f}x (by a ring {rings[0][m]:.2f}x to {rings[1][m]:.2f}x)" for m in DENSE]
    falls = [all(a[m] >= FASTER * b[m] for m in DENSE) for a, b in ((two, four), rings)]
    return timed(context, falls, ", ".join(texts), FASTER_WORDS)


def over_one_gpu(context: Context) -> tuple[list[float], float, str]:
    """Data parallelism's mean speedups over FCN and RNN models: with a server and by a ring; as printed; in words."""
    by_model, printed = speedups(context, DATA, DENSE), context.result.reported["FCN_RNN_4gpu"]
    means = [average(by_model), average(speedups(context, RING, DENSE))]
    share = printed["data_parallel_vs_single_percent"]
    why = f"{100 * means[0]:.1f} % of a single GPU's throughput (by a ring {100 * means[1]:.0f} %), printed {share} %; "
    return means, share / 100, why + in_words(by_model)


@judge(PAPER, "figure_10", "dense_below_one")
def dense_below_one(context: Context) -> Finding:
    """Holds if data parallelism's mean speedup on 4 GPUs is below 1 by more than rounding, in both readings."""
    means, _, why = over_one_gpu(context)
    return timed(context, [mean <= 1 / FASTER for mean in means], why, f"geometric mean, {FASTER_WORDS}")


@judge(PAPER, "figure_10", "dense_below_one_as_printed")
def dense_below_one_as_printed(context: Context) -> Finding:
    """Holds if data parallelism's mean speedup on 4 GPUs is as printed within a factor of 1.2, in both readings."""
    means, printed, why = over_one_gpu(context)
    return timed(context, [near(mean, printed) for mean in means], why, MEAN_WORDS)


def gain_as_printed(group: str, models: tuple[str, ...]) -> Judge:
    """A judge that decides whether DualPipe's geometric mean gains are the printed ones within a factor of 1.2."""

    def judged(context: Context) -> Finding:
        printed, keys = context.result.reported[group], {DATA: "over_data_percent", PIPED: "over_pipedream_percent"}
        factors = {other: 1 + printed[key] / 100 for other, key in keys.items()}

        def mean(arms: Arms, other: str) -> float:
            return average(gains(context, arms[DUAL], arms[other], models))

        holds = in_both(lambda arms: all(near(mean(arms, other), factor) for other, factor in factors.items()))
        texts = [
            f"over {other} {mean(FIRST, other):.2f}x ({mean(SECOND, other):.2f}x), printed {factor:.2f}x"
            for other, factor in factors.items()
        ]
        return timed(context, holds, f"{'; '.join(texts)}; in brackets: {READ_AS[1]}", MEAN_WORDS)

    return judged


judge(PAPER, "figure_10", "cnn_gains")(gain_as_printed("CNN_4gpu", CNN))
judge(PAPER, "figure_10", "dense_gains")(gain_as_printed("FCN_RNN_4gpu", DENSE))


@drawing(PAPER, "figure_11")
def figure_11(context: Context) -> Drawn:
    """The parts of each scheme's time over data parallelism's: a panel per model, a stack per scheme."""
    rows = []
    for model in MODELS:
        base = logged_row(context, model, DATA)
        for scheme in SCHEMES:
            row = logged_row(context, model, scheme)
            if row is None or base is None:
                continue
            name = f"\n{scheme}" if scheme == PIPED else scheme  # in two rows, the panels being narrow
            for part, share in shares(row).items():
                time = share * row["seconds"] / base["seconds"]
                rows.append({"model": model, "scheme": name, "part": PARTS[part], "time": time})
    y = Axis("time", "time (Data P. = 1)", limits=(0, None))
    chart = Bars(y, "scheme", stack="part", panel="model", colours=PARTS_COLOURS, shared_y=True, height=2.5)
    return Drawn.of(chart, rows, note=f"{methods_timed(context)} {least_drawn(rows)}".strip())


def least_drawn(rows: Sequence[Mapping[str, Any]]) -> str:
    """The parts of the bars that are too low to be read, in words; or empty."""
    bars: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        bars.setdefault((row["model"], row["scheme"].strip()), {})[row["part"]] = row["time"]
    lowest = [
        f"{model} under {scheme}: " + ", ".join(f"{part} {time:.3f}" for part, time in parts.items() if time >= 5e-4)
        for (model, scheme), parts in bars.items()
        if sum(parts.values()) < LOW
    ]
    return f"Of the lowest bars, {'; '.join(lowest)}." if lowest else ""


def idle_shares(context: Context) -> dict[str, float]:
    """The percentage of the time that both pipelines wait for GPUs with more work, in both readings; over models."""
    return {arm: mean_share(context, arm, imbalance) for arm in (PIPED, DUAL, PIPED_FREE, DUAL_FREE)}


@judge(PAPER, "figure_11", "imbalance_order")
def imbalance_order(context: Context) -> Finding:
    """Holds if PipeDream idles for imbalance more than DualPipe by over a percentage point, on average over models."""
    idle = idle_shares(context)
    why = ", ".join(f"{arm} {share:.1f} %" for arm, share in idle.items())
    return timed(context, in_both(lambda arms: idle[arms[PIPED]] > idle[arms[DUAL]] + 1), why, "a percentage point")


@judge(PAPER, "figure_11", "imbalance_as_printed")
def imbalance_as_printed(context: Context) -> Finding:
    """Holds if both mean idle shares are the printed ones within a factor of 1.2, in both readings of the schemes."""
    printed = context.result.reported["imbalance_idle_percent"]
    idle = idle_shares(context)
    holds = in_both(lambda arms: all(near(idle[arms[scheme]], printed[scheme]) for scheme in (PIPED, DUAL)))
    texts = [f"{s} {idle[s]:.1f} % ({idle[SECOND[s]]:.1f} %) for {printed[s]} %" for s in (PIPED, DUAL)]
    return timed(context, holds, f"{', '.join(texts)}; in brackets: {READ_AS[1]}", SPEED_WORDS)


@judge(PAPER, "figure_11", "transfers_order")
def transfers_order(context: Context) -> Finding:
    """Holds if data parallelism's mean share of transfers is at least twice either pipeline's, read as "far more"."""
    share = {arm: mean_share(context, arm, communicating) for arm in (*SCHEMES, *SECOND.values())}
    why = ", ".join(f"{arm} {percent:.1f} %" for arm, percent in share.items())
    holds = in_both(lambda arms: share[arms[DATA]] >= 2 * max(share[arms[PIPED]], share[arms[DUAL]]))
    return timed(context, holds, why, "'far more' is read as at least twice as much")


@judge(PAPER, "figure_11", "transfers_as_printed")
def transfers_as_printed(context: Context) -> Finding:
    """Holds if the mean shares of transfers are the printed ones within a factor of 1.2, in both readings.

    Of each scheme over all models, and of data parallelism over FCN and RNN models.
    """
    printed = context.result.reported["p2p_related_percent"]
    of = {scheme: (scheme, MODELS) for scheme in SCHEMES} | {f"{DATA} FCN/RNN": (DATA, DENSE)}

    def percent(arms: Arms, name: str) -> float:
        scheme, models = of[name]
        return mean_share(context, arms[scheme], communicating, models)

    holds = in_both(lambda arms: all(near(percent(arms, name), printed[name]) for name in of))
    texts = [
        f"{name} {percent(FIRST, name):.1f} % ({percent(SECOND, name):.1f} %) for {printed[name]} %" for name in of
    ]
    return timed(context, holds, f"{', '.join(texts)}; in brackets: {READ_AS[1]}", SPEED_WORDS)


@judge(PAPER, "figure_11", "computing_longer")
def computing_longer(context: Context) -> Finding:
    """Holds if data parallelism's mean computing time over each pipeline's is the printed one within a factor of 1.2.

    A smaller ratio leaves the claim open, because the simulation does not time one of the paper's two reasons.
    """
    factor = 1 + context.result.reported["data_compute_longer_percent"] / 100

    def computing(model: str, arm: str) -> float:
        row = needed(context, model, arm)
        return shares(row)["computing"] * float(row["seconds"])

    longer = {s: {m: computing(m, DATA) / computing(m, s) for m in MODELS} for s in (PIPED, DUAL)}
    means = {scheme: average(by_model) for scheme, by_model in longer.items()}
    why = "; ".join(f"{means[scheme]:.2f}x {scheme}'s ({in_words(by_model)})" for scheme, by_model in longer.items())
    why = f"Data P.'s computing time is {why}, printed {factor:.2f}x"
    if min(means.values()) < factor / SPEED:
        why += (
            ". Of the paper's two reasons a roofline knows the first in part, that a quarter of a minibatch leaves a "
            "GPU under-used (all weights are read for a quarter of the work), and not the second, kernels that prepare "
            "the weights again on every GPU: it needs the runs on P40s"
        )
        return replace(timed(context, (False,), why, MEAN_WORDS), holds=None)
    return timed(context, (max(means.values()) <= factor * SPEED,), why, MEAN_WORDS)


def headline(context: Context, other: str, reading: str, second: bool) -> Mapping[str, float]:
    """DualPipe's throughput over another scheme's by model, in one of four readings.

    reading: whether moving weights takes time. second: the second reading of the schemes (ambiguity E16).
    """
    pair = (SECOND[DUAL], SECOND[other]) if second else (DUAL, other)
    return gains(context, *pair, reading=reading)


@drawing(PAPER, "text_headline_throughput")
def headline_throughput(context: Context) -> Drawn:
    """DualPipe's mean and greatest gain, a row per comparison and reading."""
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
                with suppress(NotLogged):
                    by_model = headline(context, other, reading, second)
                    row |= {"mean": average(by_model), "arithmetic": fmean(by_model.values())}
                    row["most"] = max(by_model.values())
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
        *left_idle(context),
        *filter(None, [methods_timed(context)]),
    ]
    return Drawn.tabled(context, rows, cols, notes, rule_by="DualPipe over")


def left_idle(context: Context) -> list[str]:
    """A note on the idle time that DualPipe could use; empty without logs."""
    with suppress(NotLogged):
        idle = list(idle_shares(context).values())
        words = "idle for imbalance, mean over the networks: {} {:.1f} %, {} {:.1f} %; without a common clock "
        return [(words + "{:.1f} and {:.1f} %").format(PIPED, idle[0], DUAL, idle[1], *idle[2:])]
    return []


def headline_as_printed(other: str, key: str) -> Judge:
    """A judge that decides whether DualPipe's mean and greatest gain are the printed ones within a factor of 1.2.

    The readings in which moving weights takes time decide.
    """

    def judged(context: Context) -> Finding:
        printed = [context.result.reported[f"{key}_{which}"] for which in ("avg", "max")]
        factors = {
            (reading, second): (average(by_model), max(by_model.values()))
            for reading in READINGS
            for second in (False, True)
            for by_model in [headline(context, other, reading, second)]
        }
        holds = [all(map(near, factors[CHARGED, second], printed)) for second in (False, True)]
        mean, most = factors[CHARGED, False]
        names = {DATA: ("a server", "a ring"), PIPED: ("one clock", "no common clock")}[other]
        texts = [
            f"{names[second]}, {reading} {a:.2f}x, at most {b:.2f}x" for (reading, second), (a, b) in factors.items()
        ]
        why = f"{mean:.2f}x (printed {printed[0]}x), at most {most:.2f}x (printed {printed[1]}x); {'; '.join(texts)}"
        return timed(context, holds, why, MEAN_WORDS)

    return judged


judge(PAPER, "text_headline_throughput", "over_data")(headline_as_printed(DATA, "data"))
judge(PAPER, "text_headline_throughput", "over_pipedream")(headline_as_printed(PIPED, "pipedream"))
