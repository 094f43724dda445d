"""Figures 3, 4 and 7: bytes per minibatch, their share of the time, and backward against forward times."""

from __future__ import annotations

from statistics import fmean

from pipelag.report.frames import Axis, Bars
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import agreed, all_of, exact
from pipelag.results.plans import SPEED_WORDS, in_words, near
from pipelag.results.spectrain.timing import (
    CNN,
    DATA,
    DENSE,
    LSTM,
    MODELS,
    PIPED,
    RING,
    average,
    backward_over_forward,
    communicating,
    logged_row,
    mean_share,
    needed,
    timed,
)
from pipelag.results.verdict import Finding, judge, need

PAPER = "spectrain"
BYTES = 1.5  # a factor of tolerance, as VGG16's head, the cuts and the LSTM's number of words are not printed
BYTES_WORDS = "within a factor of 1.5: the heads, the cuts and the words of a review that it rests on are not printed"
LITTLE = 0.1  # "almost no communication": at most this share of data parallelism's bytes
ONE_WAY = 0.5  # the share of data parallelism's bytes if only one way of 2(N-1) is counted (ambiguity E15)
LONGER = 200  # words of a review for the LSTM, about as many as IMDb's have; the paper gives no number
SUMMED = {"server": DATA, "ring": RING}
NAMES = {"server": "parameter server on a GPU", "ring": "ring"}


@drawing(PAPER, "figure_3")
def figure_3(context: Context) -> Drawn:
    """The bytes per minibatch of data and model parallelism, on a logarithmic scale."""
    rows = []
    for model in MODELS:
        for scheme, arm in (("Data P.", DATA), ("Model P.", PIPED)):
            row = logged_row(context, model, arm)
            if row is not None:
                rows.append({"model": model, "scheme": scheme, "megabytes": row["bytes"] / 1e6})
    y = Axis("megabytes", "MB per minibatch", log=True, limits=(1, None))
    chart = Bars(y, "model", "scheme", number="{:,.0f}", colours={"Data P.": 0, "Model P.": 5})
    return Drawn.of(chart, rows, note=chosen(context))


def words_of(context: Context) -> int | None:
    """The number of words of a review that the counted LSTM reads; None without a log."""
    specs = [item.arm.spec for item in context.logged(what="plan", model=LSTM)]
    return int(specs[0].options["profile"]["inputs"][0]["shape"][0]) if specs else None


def chosen(context: Context) -> str:
    """A note on the choices behind the bytes that the paper leaves open; empty without logs."""
    data, piped, words = logged_row(context, LSTM, DATA), logged_row(context, LSTM, PIPED), words_of(context)
    if data is None or piped is None or words is None:
        return ""
    more = 100 * piped["bytes"] / data["bytes"] * LONGER / words
    return (
        "Bytes are counted from the networks' layers, over all GPUs: 2(N-1) times the weights, as a ring and a server "
        "on one of the GPUs send, and what crosses the cuts, there and back. Two settings were taken because the "
        "paper's words come out with them (ambiguity E15): that count, of which one way alone is half and one GPU's "
        f"share a quarter; and {words} words of a review for the LSTM, which of {LONGER} would send {more:.0f} % of "
        "data parallelism's bytes."
    )


def ratios(context: Context) -> dict[str, float]:
    """Data parallelism's bytes over model parallelism's, by model. Raises `NotLogged` if one is missing."""
    pairs = {model: [needed(context, model, arm)["bytes"] for arm in (DATA, PIPED)] for model in MODELS}
    return {model: data / piped for model, (data, piped) in pairs.items()}


@judge(PAPER, "figure_3", "more_but_inception")
def more_but_inception(context: Context) -> Finding:
    """Holds if data parallelism sends more for every model but Inception v4, and less for that.

    A ratio within a factor of 1.5 of 1 leaves the claim open.
    """
    sent = ratios(context)
    more = {model: True if ratio >= BYTES else False if ratio <= 1 / BYTES else None for model, ratio in sent.items()}
    outcomes = [one if one is None else one == (model != "Inception v4") for model, one in more.items()]
    even = [model for model, one in more.items() if one is None]
    why = "data over model parallelism: " + ", ".join(f"{model} {ratio:.3f}x" for model, ratio in sent.items())
    why += f"; {', '.join(even)} may be on either side of 1" if even else ""
    return exact(all_of(outcomes), why, BYTES_WORDS)


@judge(PAPER, "figure_3", "ratios_as_printed")
def ratios_as_printed(context: Context) -> Finding:
    """Holds if the ratios' mean and maximum are the printed ones within a factor of 1.5, in three readings.

    Our count uses two settings that were chosen because the paper's statements come out with them: the LSTM's number of
    words, and gradients counted both ways (ambiguity E15). The other readings change one of them each. If the readings
    disagree, the claim cannot be judged.
    """
    sent, printed = ratios(context), context.result.reported
    words = need(words_of(context), f"how many words {LSTM} reads")
    longer = average(sent | {LSTM: sent[LSTM] * words / LONGER})
    mean, most = average(sent), max(sent.values())
    readings = ((mean, most), (longer, most), (ONE_WAY * mean, ONE_WAY * most))
    holds = agreed(
        *(
            near(one, printed["ratio_avg_x"], BYTES) and near(top, printed["ratio_max_x"], BYTES)
            for one, top in readings
        )
    )
    why = (
        f"{mean:.1f}x on (geometric) average, printed {printed['ratio_avg_x']}x ({longer:.1f}x with {LONGER} words of "
    )
    why += f"a review instead of {words} for the LSTM), at most {most:.0f}x, printed {printed['ratio_max_x']}x; "
    why += (
        f"{in_words(sent)}; with gradients counted one way alone {ONE_WAY * mean:.1f}x, at most {ONE_WAY * most:.0f}x"
    )
    why += "; the readings do not agree, and ours was taken because the paper's words come out with it" * (
        holds is None
    )
    return exact(holds, why, BYTES_WORDS)


@judge(PAPER, "figure_3", "almost_nothing")
def almost_nothing(context: Context) -> Finding:
    """Holds if the three models send at most a tenth of data parallelism's bytes, our reading of "almost nothing".

    The LSTM's number of words is not printed. If longer reviews would turn the verdict, the claim cannot be judged.
    """
    sent = {model: 1 / ratio for model, ratio in ratios(context).items() if model in DENSE}
    words = need(words_of(context), f"how many words {LSTM} reads")
    more = sent[LSTM] * LONGER / words
    why = ", ".join(f"{model} {100 * share:.1f} %" for model, share in sent.items())
    why += f" of data parallelism's bytes, {LSTM} of {words} words of a review, a number that the paper does not give; "
    why += f"of {LONGER} it would be {100 * more:.0f} %"
    holds = None if max(sent.values()) <= LITTLE < more else max(sent.values()) <= LITTLE
    return exact(holds, why, "'almost no' is read as at most a tenth of data parallelism's")


@drawing(PAPER, "figure_4")
def figure_4(context: Context) -> Drawn:
    """The share of time that communication takes under data parallelism, with a server and by a ring."""
    rows = []
    for model in MODELS:
        for gather, arm in SUMMED.items():
            row = logged_row(context, model, arm)
            if row is not None:
                place = {"model": model, "gradients summed by": NAMES[gather]}
                rows.append(place | {"percent": 100 * communicating(row)})
    y = Axis("percent", "time of communication (%)")
    colours = {NAMES["server"]: 0, NAMES["ring"]: 7}  # data parallelism's, and no scheme's
    return Drawn.of(Bars(y, "model", "gradients summed by", number="{:.0f}", colours=colours), rows)


def by_reading(context: Context, models: tuple[str, ...] = MODELS) -> dict[str, float]:
    """The mean share of communication over models in percent, by the way of summing gradients."""
    return {gather: mean_share(context, arm, communicating, models) for gather, arm in SUMMED.items()}


@judge(PAPER, "figure_4", "dense_larger")
def dense_larger(context: Context) -> Finding:
    """Holds if the mean share of FCN and RNN models is above that of CNN models by more than a percentage point.

    With a server and by a ring alike.
    """
    dense, cnn = by_reading(context, DENSE), by_reading(context, CNN)
    texts = [f"by a {gather} {dense[gather]:.0f} % against {cnn[gather]:.0f} %" for gather in SUMMED]
    each = {model: 100 * communicating(needed(context, model, DATA)) for model in MODELS}
    why = f"means of FCN/RNN against CNN models: {', '.join(texts)}; by a server, "
    why += ", ".join(f"{model} {share:.0f} %" for model, share in each.items())
    return timed(context, [dense[gather] > cnn[gather] + 1 for gather in SUMMED], why, "a percentage point")


@judge(PAPER, "figure_4", "as_printed")
def share_as_printed(context: Context) -> Finding:
    """Holds if the mean and greatest share are the printed ones within a factor of 1.2, with a server and by a ring."""
    printed = context.result.reported
    most = {g: max(100 * communicating(needed(context, m, arm)) for m in MODELS) for g, arm in SUMMED.items()}
    mean = by_reading(context)
    holds = [near(mean[g], printed["avg_percent"]) and near(most[g], printed["max_percent"]) for g in SUMMED]
    texts = [f"by a {gather} {mean[gather]:.1f} % on average and {most[gather]:.1f} % at most" for gather in SUMMED]
    why = f"{', '.join(texts)}; printed {printed['avg_percent']} and {printed['max_percent']} %"
    return timed(context, holds, why, SPEED_WORDS)


def measured_ratio(context: Context, model: str) -> float | None:
    """The ratio of backward to forward time measured on this machine; None without a log."""
    log = context.log(what="profile", model=model)
    if log is None:
        return None
    return sum(float(row["backward_ms"]) for row in log.rows) / sum(float(row["forward_ms"]) for row in log.rows)


@drawing(PAPER, "figure_7")
def figure_7(context: Context) -> Drawn:
    """The backward's time as a multiple of the forward's, by roofline and as measured, for the logged models."""
    rows = []
    for model in MODELS:
        times = {"backward, roofline of a P40": backward_over_forward(context, model)}
        times["backward, measured here"] = measured_ratio(context, model)
        logged = {name: time for name, time in times.items() if time is not None}
        every = {"forward": 1.0, **logged} if logged else {}
        rows += [{"model": model, "pass": name, "time": time} for name, time in every.items()]
    colours = {"forward": 1, "backward, roofline of a P40": 3, "backward, measured here": 6}  # as timelines have them
    return Drawn.of(Bars(Axis("time", "time (forward = 1)"), "model", "pass", colours=colours), rows)


def backward_ratios(context: Context) -> dict[str, float]:
    """The ratio of backward to forward time by model, by roofline. Raises `NotLogged` if one is missing."""
    return {model: need(backward_over_forward(context, model), model) for model in MODELS}


def measured_words(context: Context) -> str:
    """The ratios measured on this machine, in words to follow the roofline's; empty if nothing was measured."""
    by_model = {model: ratio for model in MODELS if (ratio := measured_ratio(context, model)) is not None}
    short = context.shortfall(what="profile")
    return f"; measured here {in_words(by_model)}{f' ({short})' if short else ''}" if by_model else ""


@judge(PAPER, "figure_7", "backward_longer")
def backward_longer(context: Context) -> Finding:
    """Holds if the backward takes longer than the forward for every model, by more than rounding."""
    times = backward_ratios(context)
    why = in_words(times) + measured_words(context)
    return timed(context, (min(times.values()) >= 1.05,), why, "half a unit of the last printed digit, 3.3")


@judge(PAPER, "figure_7", "as_printed")
def longest_as_printed(context: Context) -> Finding:
    """Holds if the greatest ratio is the printed one within a factor of 1.2."""
    times, printed = backward_ratios(context), context.result.reported["backward_over_forward_max"]
    why = f"at most {max(times.values()):.2f}x (printed {printed}x), mean {fmean(times.values()):.2f}x"
    why += f"; {in_words(times)}{measured_words(context)}"
    return timed(context, (near(max(times.values()), printed),), why, SPEED_WORDS)
