"""The plans for every profile that PipeDream's authors published. This is our result; it is not in the paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipelag.report.tables import Cell, Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import agreed, measured
from pipelag.results.plans import ALONE, PRINTED, PRINTED_WORDS, READINGS, RING, config_of, needed, plan_in, ratio
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "pipedream"
RESULT = "profiles"
LARGE_LAYERS = ("AlexNet", "VGG-16")  # networks whose fully connected layers hold most of the weights
TRANSLATION = ("GNMT-8", "GNMT-16")
SLOW = "4x4 (A)"
SAME = 0.995
SAME_WORDS = f"{PRINTED_WORDS}: a speedup of {SAME:g} is 1"
NAMES = {PRINTED: "recurrence as printed", RING: "a ring's cost"}


@drawing(PAPER, RESULT)
def profiles(context: Context) -> Drawn:
    """A row per profile: on each cluster the plan by either form of the cost, and its speedup."""
    rows: list[dict[str, Cell]] = []
    for model in context.values("model"):
        row: dict[str, Cell] = {"model": model, "batch": context.select(model=model)[0].arm.spec.batch}
        for servers in context.values("servers"):
            log = context.log(model=model, servers=servers)
            for reading in READINGS:
                row[f"{servers} {reading}"] = config_of(log, reading)
                row[f"{servers} {reading} gain"] = ratio(log, ALONE, reading)
        rows.append(row)
    cols = [Col("profile", "model"), Col("minibatch per GPU", "batch")]
    for servers in context.values("servers"):
        for reading in READINGS:
            group = f"{servers}, {NAMES[reading]}"
            cols.append(Col("config", f"{servers} {reading}", group=group))
            cols.append(Col("speedup", f"{servers} {reading} gain", "{:.2f}x", group))
    notes = [
        "speedup: of an epoch, over data parallelism; both simulated by discrete events, gradients sent when ready",
        "config: workers of each stage; 16 is data parallelism over all of them, straight a stage on each",
        "the minibatch is the one that the profile was made with; GNMT's do not say theirs and are read as in table 1",
    ]
    return Drawn.tabled(context, rows, cols, notes)


def plans(context: Context, models: Iterable[str], reading: str) -> dict[str, tuple[str, float]]:
    """By profile and cluster, the plan by this form of the cost and its speedup over data parallelism."""
    by_place = {}
    for model in models:
        for servers in context.values("servers"):
            name = f"{model} on {servers}"
            log = log_of(context, model=model, servers=servers)
            config = str(plan_in(log, reading, f"the plan of {name}")["config"])
            by_place[name] = config, needed(log, ALONE, reading, f"the plan of {name}")
    return by_place


def verdict_on(
    context: Context, holds: bool | None, count: int, others: Sequence[str], otherwise: str, tolerance: str = "exact"
) -> Finding:
    """The finding on this many plans; its sentence names the exceptions (`others`), described by `otherwise`."""
    why = f"of {count} plans {otherwise}: {', '.join(others) or 'none'}"
    return measured(context, holds, why, tolerance, what="plan")


@judge(PAPER, RESULT, "at_least_one_here")
def at_least_one(context: Context) -> Finding:
    """Holds if no plan by a ring's cost is slower than data parallelism, rounded to hundredths."""
    every = plans(context, context.values("model"), RING)
    slower = [f"{name} {gain:.2f}x" for name, (_, gain) in every.items() if gain < SAME]
    return verdict_on(context, not slower, len(every), slower, "slower", SAME_WORDS)


@judge(PAPER, RESULT, "slower_as_printed_here")
def slower_as_printed(context: Context) -> Finding:
    """Holds if more than half of the plans by the printed recurrence on Cluster-A are slower than data parallelism."""
    every = plans(context, context.values("model"), PRINTED)
    slow = {name: gain for name, (_, gain) in every.items() if name.endswith(SLOW)}
    slower = [f"{name} {gain:.2f}x" for name, gain in slow.items() if gain < SAME]
    return verdict_on(context, 2 * len(slower) > len(slow), len(slow), slower, "slower", SAME_WORDS)


@judge(PAPER, RESULT, "compact_weights_here")
def compact_weights(context: Context) -> Finding:
    """Holds if a ring's cost gives data parallelism for every convolutional network without large dense layers.

    Section 5.2 gives the reason for ResNet-50: its weights are compact and its outputs large.
    """
    compact = [model for model in context.values("model") if model not in (*LARGE_LAYERS, *TRANSLATION)]
    every = plans(context, compact, RING)
    others = [f"{name} {config}" for name, (config, _) in every.items() if not config.isdigit()]
    return verdict_on(context, not others, len(every), others, "otherwise")


@judge(PAPER, RESULT, "translation_pipelined_here")
def translation_pipelined(context: Context) -> Finding:
    """Holds if both translation models get a plan of several stages on every cluster, by both forms of the cost."""
    by_reading = [plans(context, TRANSLATION, reading) for reading in READINGS]
    alone = [[name for name, (config, _) in every.items() if config.isdigit()] for every in by_reading]
    others = [f"{name} ({NAMES[reading]})" for reading, names in zip(READINGS, alone, strict=True) for name in names]
    holds = agreed(*(not names for names in alone))
    return verdict_on(context, holds, sum(map(len, by_reading)), others, "data parallel")
