"""The plans for every profile that PipeDream's authors published; not in the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipelag.report.tables import Cell, Col, table
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import agreed, measured
from pipelag.results.plans import ALONE, PRINTED, PRINTED_WORDS, READINGS, RING, config_of, needed, plan_in, ratio
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "pipedream"
RESULT = "profiles"
LARGE_LAYERS = ("AlexNet", "VGG-16")  # fully connected layers that hold most of the weights
TRANSLATION = ("GNMT-8", "GNMT-16")
NAMES = {PRINTED: "recurrence as printed", RING: "a ring's cost"}


@drawing(PAPER, RESULT)
def profiles(context: Context) -> Drawn:
    """A row per profile; on each cluster the plan by either form of the cost, and its speedup."""
    rows: list[dict[str, Cell]] = []
    for model in context.values("model"):
        row: dict[str, Cell] = {"model": model}
        for servers in context.values("servers"):
            log = context.log(model=model, servers=servers)
            row["batch"] = context.select(model=model)[0].arm.spec.batch
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
        "speedup: of an epoch, over data parallelism; both timed by discrete events, gradients sent as they are ready",
        "config: workers of each stage; 16 is data parallelism over all of them, straight a stage on each",
        "the minibatch is the one that the profile was made with; GNMT's do not say it and have the paper's",
    ]
    return Drawn(table=table(rows, cols, context.result.caption, notes))


def configs(context: Context, models: Iterable[str]) -> dict[str, list[str]]:
    """By profile and cluster, the plans by both forms of the cost."""
    found = {}
    for model in models:
        for servers in context.values("servers"):
            name = f"{model} on {servers}"
            log = log_of(context, model=model, servers=servers)
            found[name] = [str(plan_in(log, reading, f"the plan of {name}")["config"]) for reading in READINGS]
    return found


def all_are(context: Context, models: Iterable[str], wanted: Callable[[str], bool]) -> Finding:
    """Whether the plans of these models are all as wanted, by both forms of the cost; those that are not, in words."""
    plans = configs(context, models)
    outcomes = [all(wanted(each[place]) for each in plans.values()) for place in range(len(READINGS))]
    others = [
        f"{name} {NAMES[reading]} {each[place]}"
        for place, reading in enumerate(READINGS)
        for name, each in plans.items()
        if not wanted(each[place])
    ]
    why = f"{len(plans)} plans by each form of the cost" + (f"; otherwise: {', '.join(others)}" if others else "")
    return measured(context, agreed(*outcomes), why, "exact", what="plan")


@judge(PAPER, RESULT, "compact_weights_here")
def compact_weights(context: Context) -> Finding:
    """Section 5.2's reason for ResNet-50: compact weights and large outputs."""
    compact = [model for model in context.values("model") if model not in (*LARGE_LAYERS, *TRANSLATION)]
    return all_are(context, compact, str.isdigit)


@judge(PAPER, RESULT, "translation_pipelined_here")
def translation_pipelined(context: Context) -> Finding:
    """Any plan of several stages."""
    return all_are(context, TRANSLATION, lambda config: not config.isdigit())


@judge(PAPER, RESULT, "at_least_one_here")
def at_least_one(context: Context) -> Finding:
    """By the plans of both forms of the cost, as in table 1."""
    slower: dict[str, list[str]] = {reading: [] for reading in READINGS}
    places = [(model, servers) for model in context.values("model") for servers in context.values("servers")]
    for model, servers in places:
        log = log_of(context, model=model, servers=servers)
        for reading, below in slower.items():
            gain = needed(log, ALONE, reading, f"the plan of {model} on {servers}")
            if gain < 0.995:
                below.append(f"{model} on {servers} {gain:.2f}x")
    words = [f"{NAMES[reading]}: {', '.join(below) or 'none'}" for reading, below in slower.items()]
    why = f"of {len(places)} plans slower by the {'; by '.join(words)}"
    outcome = agreed(*(not below for below in slower.values()))
    return measured(context, outcome, why, f"{PRINTED_WORDS}: 0.995 is 1", what="plan")
