"""Reading the plans of the six networks: what each scheme takes per minibatch on 2 and 4 GPUs (sections 2.3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Any

from pipelag.results.context import Context
from pipelag.results.judging import Difference, measured
from pipelag.results.plans import SPEED
from pipelag.results.verdict import Finding, NotLogged, log_of

Row = dict[str, Any]
CNN = ("VGG16", "ResNet-152", "Inception v4")
DENSE = ("SNN", "Transformer", "Residual LSTM")  # the paper's FCN and RNN models
MODELS = CNN + DENSE
DATA, PIPED, DUAL = SCHEMES = ("Data P.", "PipeDream", "DualPipe")
COLOURS = {DATA: 0, PIPED: 2, DUAL: 4}  # of their bars: those that the arms have in curves, SpecTrain's for DualPipe
# Second readings: gradients summed in a ring; GPUs that go on as soon as they can. Verdicts go by the first, the
# parameter server and the common clock that the paper describes, and tell what the second gives.
RING, PIPED_FREE, DUAL_FREE = "Data P., ring", "PipeDream, free clock", "DualPipe, free clock"
CHARGED, FREE = "weights moved", "weights for free"  # whether copying and predicting weights takes time
READINGS = (CHARGED, FREE)
GPUS = (2, 4)


def arms_of(context: Context, model: str, reading: str = CHARGED) -> list[Row]:
    """The rows of a model's plan; empty without a log."""
    log = context.log(what="plan", model=model, arm=reading)
    return [row for row in log.rows if row["what"] == "arm"] if log else []


def found(context: Context, model: str, arm: str, gpus: int = 4, reading: str = CHARGED) -> Row | None:
    """An arm's row; None where it is not logged."""
    rows = arms_of(context, model, reading)
    return next((row for row in rows if row["arm"] == arm and row["workers"] == gpus), None)


def needed(context: Context, model: str, arm: str, gpus: int = 4, reading: str = CHARGED) -> Row:
    """`found`, for a judge."""
    row = found(context, model, arm, gpus, reading)
    if row is None:
        raise NotLogged(f"{arm} of {model} on {gpus} GPUs has no log")
    return row


def speedups(context: Context, arm: str, models: Sequence[str] = MODELS, gpus: int = 4) -> dict[str, float]:
    """Throughput over that of one GPU, by model; for a judge."""
    return {model: float(needed(context, model, arm, gpus)["speedup"]) for model in models}


def gains(
    context: Context, first: str, second: str, models: Sequence[str] = MODELS, reading: str = CHARGED
) -> dict[str, float]:
    """Throughput of the first over that of the second on 4 GPUs, by model; for a judge."""
    pairs = {
        model: [float(needed(context, model, arm, reading=reading)["samples_per_second"]) for arm in (first, second)]
        for model in models
    }
    return {model: rate / other for model, (rate, other) in pairs.items()}


def shares(row: Row) -> dict[str, float]:
    """Where a minibatch's time goes, as shares of it, mean over the GPUs."""
    each = row.get("gpus") or [stage["shares"] for stage in row["stages"]]
    return {key: fmean(one[key] for one in each) for key in each[0]}


def communicating(row: Row) -> float:
    """The share of the time that goes into transfers and waiting for them."""
    return sum(shares(row)[key] for key in ("transfer", "transfer_idle"))


def mean_share(context: Context, arm: str, of: Callable[[Row], float], models: Iterable[str] = MODELS) -> float:
    """A share on 4 GPUs, mean over models, in percent; for a judge."""
    return 100 * fmean(of(needed(context, model, arm)) for model in models)


def imbalance(row: Row) -> float:
    """The share of the time that GPUs wait for others that have more to do."""
    return shares(row)["imbalance_idle"]


def backward_over_forward(context: Context, model: str) -> float | None:
    """Of the whole network's profile; None where it is not logged."""
    log = context.log(what="plan", model=model, arm=CHARGED)
    return log.summary["backward_ms"] / log.summary["forward_ms"] if log else None


def over(values: Mapping[str, float]) -> str:
    """Ratios by model in words."""
    return ", ".join(f"{model} {value:.2f}x" for model, value in values.items())


def average(values: Mapping[str, float]) -> float:
    """The geometric mean, as the paper's means are (ambiguities E9 and E13)."""
    return geometric_mean(values.values())


def within(value: float, printed: float, factor: float = SPEED) -> bool:
    """Whether a number is a printed one, within a factor."""
    return printed / factor <= value <= printed * factor


def share(value: Difference) -> str:
    """A percentage over seeds in words."""
    return value.text().lstrip("+").replace(" (", " % (", 1)


def timed(context: Context, holds: bool | None, why: str, tolerance: str) -> Finding:
    """A finding about timed plans, all of which are there."""
    log_of(context, what="plan")
    return measured(context, holds, f"simulated from data sheets: {why}", tolerance, what="plan")
