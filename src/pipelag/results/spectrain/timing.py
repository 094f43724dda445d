"""Read the plans of the six networks: each scheme's time per minibatch on 2 and 4 GPUs (sections 2.3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Any

from pipelag.results import colours
from pipelag.results.context import Context
from pipelag.results.judging import Difference, agreed, measured
from pipelag.results.verdict import Finding, NotLogged, log_of

Row = dict[str, Any]
CNN = ("VGG16", "ResNet-152", "Inception v4")
LSTM = "Residual LSTM"
DENSE = ("SNN", "Transformer", LSTM)  # the paper's FCN and RNN models
MODELS = CNN + DENSE
DATA, PIPED, DUAL = SCHEMES = ("Data P.", "PipeDream", "DualPipe")
# The colours of their bars; DualPipe has SpecTrain's.
COLOURS = {DATA: colours.BASELINE, PIPED: colours.PIPEDREAM, DUAL: colours.SPECTRAIN}
# Two readings (ambiguity E16): the parameter server and the common clock that the paper describes, or a ring and GPUs
# that go on as soon as they can. A verdict needs both: what holds in one and fails in the other cannot be judged.
RING, PIPED_FREE, DUAL_FREE = "Data P., ring", "PipeDream, free clock", "DualPipe, free clock"
Arms = Mapping[str, str]  # of the schemes, in a reading
FIRST: Arms = {scheme: scheme for scheme in SCHEMES}
SECOND: Arms = {DATA: RING, PIPED: PIPED_FREE, DUAL: DUAL_FREE}
READ_AS = ("with a server and a common clock", "with a ring and without a common clock")
CHARGED, FREE = "weights moved", "weights for free"  # whether copying and predicting weights takes time
READINGS = (CHARGED, FREE)
GPUS = (2, 4)


def arms_of(context: Context, model: str, reading: str = CHARGED) -> list[Row]:
    """The rows of a model's plan; empty without a log."""
    log = context.log(what="plan", model=model, arm=reading)
    return [row for row in log.rows if row["what"] == "arm"] if log else []


def logged_row(context: Context, model: str, arm: str, gpus: int = 4, reading: str = CHARGED) -> Row | None:
    """An arm's row; None if it is not logged."""
    rows = arms_of(context, model, reading)
    return next((row for row in rows if row["arm"] == arm and row["workers"] == gpus), None)


def needed(context: Context, model: str, arm: str, gpus: int = 4, reading: str = CHARGED) -> Row:
    """`logged_row` for a judge. Raises `NotLogged` if there is none."""
    row = logged_row(context, model, arm, gpus, reading)
    if row is None:
        raise NotLogged(f"{arm} of {model} on {gpus} GPUs has no log")
    return row


def speedups(context: Context, arm: str, models: Sequence[str] = MODELS, gpus: int = 4) -> dict[str, float]:
    """An arm's throughput over that of one GPU, by model."""
    return {model: float(needed(context, model, arm, gpus)["speedup"]) for model in models}


def gains(
    context: Context,
    first: str,
    second: str,
    models: Sequence[str] = MODELS,
    reading: str = CHARGED,
    gpus: int = 4,
) -> dict[str, float]:
    """The first arm's throughput over the second's, by model."""
    pairs = {
        model: [float(needed(context, model, arm, gpus, reading)["samples_per_second"]) for arm in (first, second)]
        for model in models
    }
    return {model: rate / other for model, (rate, other) in pairs.items()}


def shares(row: Row) -> dict[str, float]:
    """The shares of a minibatch's time that its parts take, averaged over the GPUs."""
    each = row.get("gpus") or [stage["shares"] for stage in row["stages"]]
    return {key: fmean(one[key] for one in each) for key in each[0]}


def communicating(row: Row) -> float:
    """The share of the time spent on transfers and on waiting for them."""
    return sum(shares(row)[key] for key in ("transfer", "transfer_idle"))


def mean_share(context: Context, arm: str, of: Callable[[Row], float], models: Iterable[str] = MODELS) -> float:
    """A share of an arm's time on 4 GPUs, averaged over models, in percent."""
    return 100 * fmean(of(needed(context, model, arm)) for model in models)


def imbalance(row: Row) -> float:
    """The share of the time that GPUs wait for others with more work."""
    return shares(row)["imbalance_idle"]


def backward_over_forward(context: Context, model: str) -> float | None:
    """The whole network's backward time over its forward time, by its profile; None without a log."""
    log = context.log(what="plan", model=model, arm=CHARGED)
    return log.summary["backward_ms"] / log.summary["forward_ms"] if log else None


def average(values: Mapping[str, float]) -> float:
    """The geometric mean, which the paper's means are (ambiguities E9 and E13)."""
    return geometric_mean(values.values())


def share(value: Difference) -> str:
    """A percentage over seeds in words."""
    return value.text().lstrip("+").replace(" (", " % (", 1)


def timed(context: Context, readings: Sequence[bool], why: str, tolerance: str) -> Finding:
    """A finding about timed plans, which must all be logged. Readings that disagree leave the claim open.

    Args:
        readings: whether the claim holds with a server and a common clock, and whether it holds by a ring and without
            a common clock; a single value if both are the same.
    """
    log_of(context, what="plan")
    holds = agreed(*readings)
    why = f"simulated from data sheets: {why}" + (f"; {disagreeing(readings)}" if holds is None else "")
    return measured(context, holds, why, tolerance, what="plan")


def in_both(of: Callable[[Arms], bool]) -> tuple[bool, bool]:
    """Whether a statement about the schemes' arms holds in each of the two readings."""
    return of(FIRST), of(SECOND)


def disagreeing(outcomes: Sequence[bool | None]) -> str:
    """Why a claim cannot be judged whose two readings disagree, in words."""
    words = {True: "holds", False: "fails", None: "cannot be judged"}
    readings = ", ".join(f"{how} it {words[outcome]}" for how, outcome in zip(READ_AS, outcomes, strict=True))
    return f"the two readings do not agree: {readings}"


def methods_timed(context: Context) -> str:
    """A note on the methods that are timed under the schemes' names; empty without a log."""
    rows = {(scheme, model): logged_row(context, model, scheme) for scheme in SCHEMES for model in MODELS}
    methods = {scheme: row["method"] for (scheme, _), row in rows.items() if row is not None}
    words = [
        f"{scheme} is {method}" + (" (one version of the weights on all GPUs)" if scheme == PIPED else "")
        for scheme, method in methods.items()
    ]
    return f"Methods: {', '.join(words)}." if words else ""
