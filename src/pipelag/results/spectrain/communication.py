"""Figures 3, 4 and 7: bytes per minibatch, the share of time that they take, and backward against forward time."""

from __future__ import annotations

from statistics import fmean

from pipelag.report.frames import Axis, Bars
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact
from pipelag.results.plans import SPEED_WORDS
from pipelag.results.spectrain.timing import (
    CNN,
    DATA,
    DENSE,
    MODELS,
    PIPED,
    RING,
    average,
    backward_over_forward,
    communicating,
    found,
    mean_share,
    needed,
    over,
    timed,
    within,
)
from pipelag.results.verdict import Finding, judge, need

PAPER = "spectrain"
BYTES = 1.5  # a factor: neither VGG16's head nor the cuts nor the LSTM's words are printed
BYTES_WORDS = "within a factor of 1.5: the heads, the cuts and the words of a review that it rests on are not printed"
LITTLE = 0.1  # "almost no communication": at most so much of data parallelism's
SUMMED = {"server": DATA, "ring": RING}


@drawing(PAPER, "figure_3")
def figure_3(context: Context) -> Drawn:
    """Both ways of parallelism, on a logarithmic scale."""
    rows = []
    for model in MODELS:
        for scheme, arm in (("Data P.", DATA), ("Model P.", PIPED)):
            row = found(context, model, arm)
            if row is not None:
                rows.append({"model": model, "scheme": scheme, "megabytes": row["bytes"] / 1e6})
    y = Axis("megabytes", "MB per minibatch", log=True, limits=(1, None))
    return Drawn.of(Bars(y, "model", "scheme", number="{:,.0f}", colours={"Data P.": 0, "Model P.": 5}), rows)


def ratios(context: Context) -> dict[str, float]:
    """Bytes of data parallelism over those of model parallelism; for a judge."""
    pairs = {model: [needed(context, model, arm)["bytes"] for arm in (DATA, PIPED)] for model in MODELS}
    return {model: data / piped for model, (data, piped) in pairs.items()}


@judge(PAPER, "figure_3", "more_but_inception")
def more_but_inception(context: Context) -> Finding:
    """Every model, and the one exception."""
    sent = ratios(context)
    holds = all((ratio > 1) == (model != "Inception v4") for model, ratio in sent.items())
    return exact(holds, f"data over model parallelism: {over(sent)}")


@judge(PAPER, "figure_3", "ratios_as_printed")
def ratios_as_printed(context: Context) -> Finding:
    """Mean and maximum."""
    sent, printed = ratios(context), context.result.reported
    mean, most = average(sent), max(sent.values())
    holds = within(mean, printed["ratio_avg_x"], BYTES) and within(most, printed["ratio_max_x"], BYTES)
    why = f"{mean:.1f}x on (geometric) average for {printed['ratio_avg_x']}x, at most {most:.0f}x for "
    return exact(holds, f"{why}{printed['ratio_max_x']}x; {over(sent)}", BYTES_WORDS)


@judge(PAPER, "figure_3", "almost_nothing")
def almost_nothing(context: Context) -> Finding:
    """The three models, against what data parallelism sends."""
    sent = {model: 1 / ratio for model, ratio in ratios(context).items() if model in DENSE}
    why = ", ".join(f"{model} {100 * share:.1f} %" for model, share in sent.items())
    words = "'almost no' is read as at most a tenth of data parallelism's"
    return exact(max(sent.values()) <= LITTLE, f"{why} of data parallelism's bytes", words)


@drawing(PAPER, "figure_4")
def figure_4(context: Context) -> Drawn:
    """Both ways of summing gradients."""
    rows = []
    for model in MODELS:
        for gather, arm in SUMMED.items():
            row = found(context, model, arm)
            if row is not None:
                name = "parameter server on a GPU" if gather == "server" else gather
                rows.append({"model": model, "gradients summed by": name, "percent": 100 * communicating(row)})
    y = Axis("percent", "time of communication (%)")
    return Drawn.of(Bars(y, "model", "gradients summed by", number="{:.0f}"), rows)


def by_reading(context: Context, models: tuple[str, ...] = MODELS) -> dict[str, float]:
    """The mean share of communication over models, in percent, by how gradients are summed."""
    return {gather: mean_share(context, arm, communicating, models) for gather, arm in SUMMED.items()}


@judge(PAPER, "figure_4", "dense_larger")
def dense_larger(context: Context) -> Finding:
    """Means over the two groups."""
    dense, cnn = by_reading(context, DENSE), by_reading(context, CNN)
    texts = [f"by a {gather} {dense[gather]:.0f} % against {cnn[gather]:.0f} %" for gather in SUMMED]
    why = f"FCN/RNN against CNN models: {', '.join(texts)}"
    return timed(context, dense["server"] > cnn["server"] + 1, why, "a percentage point")


@judge(PAPER, "figure_4", "as_printed")
def share_as_printed(context: Context) -> Finding:
    """Mean and maximum."""
    printed = context.result.reported
    most = {g: max(100 * communicating(needed(context, m, arm)) for m in MODELS) for g, arm in SUMMED.items()}
    mean = by_reading(context)
    holds = within(mean["server"], printed["avg_percent"]) and within(most["server"], printed["max_percent"])
    texts = [f"by a {gather} {mean[gather]:.1f} % on average and {most[gather]:.1f} % at most" for gather in SUMMED]
    why = f"{', '.join(texts)}, for {printed['avg_percent']} and {printed['max_percent']} %"
    return timed(context, holds, why, SPEED_WORDS)


def measured_ratio(context: Context, model: str) -> float | None:
    """Backward over forward as measured on the machine of the runs; None where it is not logged."""
    log = context.log(what="profile", model=model)
    if log is None:
        return None
    return sum(float(row["backward_ms"]) for row in log.rows) / sum(float(row["forward_ms"]) for row in log.rows)


@drawing(PAPER, "figure_7")
def figure_7(context: Context) -> Drawn:
    """Forward 1, backward as a multiple of it, both ways."""
    rows = []
    for model in MODELS:
        times = {"forward": 1.0, "backward, roofline of a P40": backward_over_forward(context, model)}
        times["backward, measured here"] = measured_ratio(context, model)
        rows += [{"model": model, "pass": name, "time": time} for name, time in times.items() if time is not None]
    return Drawn.of(Bars(Axis("time", "time (forward = 1)"), "model", "pass"), rows)


def passes(context: Context) -> dict[str, float]:
    """Backward over forward by model; for a judge."""
    return {model: need(backward_over_forward(context, model), model) for model in MODELS}


def measured_words(context: Context) -> str:
    """What was measured on the machine of the runs, beside the roofline; empty where nothing was."""
    by_model = {model: ratio for model in MODELS if (ratio := measured_ratio(context, model)) is not None}
    short = context.shortfall(what="profile")
    return f"; measured here {over(by_model)}{f' ({short})' if short else ''}" if by_model else ""


@judge(PAPER, "figure_7", "backward_longer")
def backward_longer(context: Context) -> Finding:
    """Every model."""
    times = passes(context)
    why = over(times) + measured_words(context)
    return timed(context, min(times.values()) >= 1.05, why, "half a unit of the last printed digit, 3.3")


@judge(PAPER, "figure_7", "as_printed")
def longest_as_printed(context: Context) -> Finding:
    """The greatest."""
    times, printed = passes(context), context.result.reported["backward_over_forward_max"]
    why = f"at most {max(times.values()):.2f}x for {printed}x, mean {fmean(times.values()):.2f}x"
    why += f"; {over(times)}{measured_words(context)}"
    return timed(context, within(max(times.values()), printed), why, SPEED_WORDS)
