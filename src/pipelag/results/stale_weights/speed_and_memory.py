"""Tables 5 and 6, and the tables for the text's claims about speed, memory and schedules."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

from pipelag.report.tables import Col, table
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import ahead, text_of
from pipelag.results.stale_weights.accuracy import Row, notes, vector, vector_of
from pipelag.results.stale_weights.memory import megabytes
from pipelag.results.stale_weights.reading import (
    BASELINE,
    DEPTHS,
    PAPER,
    blocks,
    cycles_each,
    early_share,
    mean_gain,
    memory_of,
    milliseconds,
    speed_when_full,
    whole_blocks,
)
from pipelag.results.verdict import if_logged
from pipelag.runs.speedup import spread

ARMS = {"non_pipelined": BASELINE, "pipelined": "pipelined", "hybrid": "hybrid"}
SIMULATED = (
    "The paper's accuracies are of its 2-GPU runs. Ours are of the simulated pipeline: one process that computes the "
    "same stale updates, with no parallelism."
)


def range_text(context: Context, arm: str = "pipelined", **labels: str) -> str | None:
    """The median speedup over blocks with its range; None without a log."""
    return if_logged(lambda: spread(blocks(context, arm, **labels)))


def timed_on(context: Context, ranges: bool = True) -> list[str]:
    """A note on how and on which machine our speed runs were timed. ranges: whether the table has [min, max]."""
    logs = [
        log
        for log in context.logs()
        if "threads_per_worker" in log.summary and log.summary.get("kind", "speed") == "speed"
    ]
    if not logs:
        return []
    machines = sorted({f"{log.summary['device']}: {log.environment.get('device')}" for log in logs})
    batches = sorted({log.summary["batch"] for log in logs}, reverse=True)
    through = " and ".join(sorted({log.summary.get("messages", "gloo") for log in logs}))  # older logs say nothing
    return [
        f"Ours: 2 worker processes on {'; '.join(machines)}, minibatches of {', '.join(map(str, batches))}, messages "
        f"through {through}; the non-pipelined arm is one worker with the same threads. Speedups are medians over "
        f"interleaved blocks{', with [min, max]; times are of the steady state' if ranges else ''}."
    ]


@drawing(PAPER, "table_5")
def table_5(context: Context) -> Drawn:
    """Accuracy, time and speedup of pipelined and hybrid training on two workers."""
    rows: list[Row] = []
    for line in context.result.reported:
        model = line["model"]
        log = context.log(model=model, kind="speed")
        paper: Row = {"model": model, "source": "paper", "ppv": vector(line["ppv"]), "batch": 128}
        ours: Row = {"model": model, "source": "ours", "ppv": timed_vector(context, model)}
        ours["batch"] = log.summary["batch"] if log else None
        for key, arm in ARMS.items():
            paper |= {f"acc_{key}": line[f"acc_{key}"], f"seconds_{key}": line[f"time_{key}"]}
            ours[f"acc_{key}"] = context.accuracy(model=model, kind="train", arm=arm).text()
            ours[f"ms_{key}"] = milliseconds(log, arm) if log else None
            if key != "non_pipelined":
                paper[f"speedup_{key}"] = line[f"speedup_{key}"]
                ours[f"speedup_{key}"] = range_text(context, arm, model=model, kind="speed")
        rows += [paper, ours]
    cols = [Col("ResNet", "model"), Col("", "source"), Col("PPV", "ppv")]
    cols += [Col(arm, f"acc_{key}", "{:.2f}", "accuracy % (ours simulated)") for key, arm in ARMS.items()]
    cols += [Col(arm, f"seconds_{key}", "{:,.0f}", "seconds for 200 epochs") for key, arm in ARMS.items()]
    cols += [Col("minibatch", "batch", "{}", "timed")]
    cols += [Col(arm, f"ms_{key}", "{:.1f}", "timed, ms per minibatch") for key, arm in ARMS.items()]
    cols += [Col(arm, f"speedup_{key}", "{:.2f}", "speedup") for key, arm in list(ARMS.items())[1:]]
    composed = (
        "Our hybrid times and speedups are put together from the times per minibatch of a pipelined and of a "
        "non-pipelined block, without the hand-over between them."
    )
    sentences = notes(context, SIMULATED, *timed_on(context), composed)
    return Drawn.tabled(context, rows, cols, sentences, rule_by="ResNet")


def timed_vector(context: Context, model: str) -> str | None:
    """The placement vector of a depth's logged runs."""
    trained = vector_of(context, model=model, kind="train", arm="pipelined")
    timed = next(iter(context.logged(model=model, kind="speed")), None)
    return trained or (vector(timed.arm.spec.phases[0].cuts) if timed else None)


@drawing(PAPER, "text_headline_speedup")
def headline_speedup(context: Context) -> Drawn:
    """Pipelined speedup by depth."""
    printed = {line["model"]: line["speedup_pipelined"] for line in context.paper.results["table_5"].reported}
    rows: list[Row] = []
    for model in DEPTHS:
        times = if_logged(partial(blocks, context, model=model, kind="speed"))
        used = 50 * median(times) if times else None
        ours = range_text(context, model=model, kind="speed")
        rows.append(
            {"model": model, "paper": printed[model], "ours": ours, "theirs": 50 * printed[model], "used": used}
        )
    cols = [
        Col("ResNet", "model"),
        Col("paper", "paper", "{:.2f}", "speedup"),
        Col("ours", "ours", "{}", "speedup"),
        Col("paper", "theirs", "{:.0f}", "speedup / 2, %"),
        Col("ours", "used", "{:.0f}", "speedup / 2, %"),
    ]
    return Drawn.tabled(context, rows, cols, notes(context, *timed_on(context)))


@drawing(PAPER, "text_hybrid_average_gain")
def average_gain(context: Context) -> Drawn:
    """What hybrid training gains over the baseline, by depth."""
    rows: list[Row] = []
    for line in context.paper.results["table_5"].reported:
        model = line["model"]
        arms = [context.accuracy(model=model, arm=arm).text() for arm in (BASELINE, "hybrid")]
        rows.append(
            {
                "model": model,
                "base": line["acc_non_pipelined"],
                "hybrid": line["acc_hybrid"],
                "gain": line["acc_hybrid"] - line["acc_non_pipelined"],
                "own_base": arms[0],
                "own_hybrid": arms[1],
                "own_gain": text_of(partial(ahead, context, "hybrid", BASELINE, model=model)),
            }
        )
    mean = sum(float(row["gain"]) for row in rows if isinstance(row["gain"], float)) / len(rows)
    rows.append({"model": "mean", "gain": mean, "own_gain": text_of(partial(mean_gain, context))})
    cols = [Col("ResNet", "model")]
    for group, first in (("paper, accuracy %", ""), ("ours, accuracy %", "own_")):
        cols += [Col(BASELINE, f"{first}base", "{:.2f}", group), Col("hybrid", f"{first}hybrid", "{:.2f}", group)]
        cols += [Col("gain", f"{first}gain", "{:+.2f}", group)]
    gains = table(rows, cols, context.result.caption, notes(context, SIMULATED))
    gains.rules = [len(rows) - 1]
    return Drawn(gains)


@drawing(PAPER, "table_6")
def table_6(context: Context) -> Drawn:
    """Activation and weight memory, counted on our models."""
    rows: list[Row] = []
    keys = ("activations_mb_per_sample", "weight_mb", "increase_mb_per_sample", "increase_percent")
    for line in context.result.reported:
        model = line["model"]
        rows.append({"model": model, "source": "paper", "ppv": vector(line["ppv"])} | {key: line[key] for key in keys})
        log, counted = context.log(model=model), memory_of(context, model) or {}
        ours: Row = {"model": model, "source": "ours", "ppv": vector(log.summary["cuts"]) if log else None}
        rows.append(ours | {key: counted.get(key) for key in keys})
    cols = [Col("ResNet", "model"), Col("", "source"), Col("PPV", "ppv")]
    cols += [Col("activations (MB/sample)", keys[0], "{:.2f}"), Col("weights (MB)", keys[1], "{:.2f}")]
    cols += [Col("increase (MB/sample)", keys[2], "{:.2f}"), Col("increase (%)", keys[3], "{:.0f}")]
    counting = (
        "Ours: float32, MB = 2^20 bytes; every newly written tensor of the forward pass counts, twice in the "
        "activations (with its gradient, as torchsummary does) and once per kept copy; the percentage is at a "
        "minibatch of 128, weights included."
    )
    # 66.5 % at n = 3 needs a >= 0.665 (b + 21) - 12, and that a gives more than 58.5 % at n = 9 for every b >= 0.
    outlier = (
        "No count of a fixed number of tensors per block gives 67 % at depth 20 and 58 % at depth 56: it has the form "
        "(a + 4n)/(b + 7n) for n blocks per group, b >= 0, and the printed values need b < 0."
    )
    return Drawn.tabled(context, rows, cols, [counting, outlier], rule_by="ResNet")


def quantities(
    context: Context, lines: list[tuple[str, Any, Any]], sentences: list[str], theirs: str = "paper"
) -> Drawn:
    """A small table for a claim in the text; each line is a quantity, the paper's value and ours."""
    rows = [{"quantity": q, "paper": p, "ours": o} for q, p, o in lines]
    cols = [Col("quantity", "quantity"), Col(theirs, "paper", "{:.2f}"), Col("ours", "ours", "{:.2f}")]
    return Drawn.tabled(context, rows, cols, sentences)


@drawing(PAPER, "text_hybrid_speedup_bound")
def hybrid_bound(context: Context) -> Drawn:
    """The speedup with half of the iterations pipelined: by the formula, the schedules, and short timed blocks."""
    lines: list[tuple[str, Any, Any]] = []
    for k in context.values("K"):
        log, number = context.log(K=k), int(k)
        each = cycles_each(log) if log else None
        ours = 2 * each[0] / (each[0] + each[1]) if each else None
        lines.append((f"by the schedule, K = {k}", 2 / (1 + 1 / (2 * number + 1)), ours))
    lines.append(("by the schedule, large K", 2.0, None))
    spans = {arm: context.log(kind="two workers", arm=arm) for arm in (BASELINE, "pipelined")}
    alone, pipelined = (log.summary["makespan"] if log else None for log in spans.values())
    lines.append(("2 GPUs", 1.33, 2 * alone / (alone + pipelined) if alone and pipelined else None))
    for model in DEPTHS:
        times = if_logged(partial(blocks, context, model=model, kind="speed"))
        predicted = 2 / (1 + 1 / median(times)) if times else None
        lines.append((f"{model}, short blocks timed from end to end", predicted, whole_blocks(context, model)))
    sentences = [
        "Half of the iterations are pipelined. By the schedule: cycles of the full pipeline, without fill and drain.",
        "2 GPUs: 100 minibatches without and 100 with pipelining on two equal stages, fill and drain included.",
        "Timed blocks: the formula takes the measured pipelined speedup for 2K + 1; hand-over, fill and drain, which "
        "vanish in a long run, are much of such short blocks.",
    ]
    return quantities(context, lines, sentences + timed_on(context, ranges=False), "formula")


@drawing(PAPER, "text_memory_vs_pipedream")
def memory_vs_pipedream(context: Context) -> Drawn:
    """The memory that weight stashing would add for VGG-16, in several readings."""
    sizes = if_logged(lambda: megabytes(context)) or {}
    rows: list[Row] = []
    for line in context.result.reported:
        data = f"{line['dataset']}, minibatch {line['batch']}"
        rows.append({"data": data, "what": "paper (model not stated)", "saving": float(line["saving_percent"])})
        for (reading, dataset), (ours, theirs) in sizes.items():
            if dataset == line["dataset"]:
                saved = 100 * (theirs - ours) / theirs
                rows.append({"data": data, "what": reading, "ours": ours, "theirs": theirs, "saving": saved})
        if not sizes:
            rows.append({"data": data, "what": "ours"})
    cols = [
        Col("VGG-16 on", "data"),
        Col("what PipeDream adds, and what both hold", "what"),
        Col("stale weights (MB)", "ours", "{:,.0f}"),
        Col("PipeDream (MB)", "theirs", "{:,.0f}"),
        Col("saving (%)", "saving", "{:.2f}"),
    ]
    sentences = [
        "VGG-16 with its original 4096-wide classifier, one register pair after layer 2. The first reading was chosen "
        "among these because it comes near the printed savings."
    ]
    return Drawn.tabled(context, rows, cols, sentences, rule_by="VGG-16 on")


@drawing(PAPER, "text_vs_gpipe_speedup")
def vs_gpipe(context: Context) -> Drawn:
    """Speedups on two workers, measured and by the schedules; and GPipe's idle shares."""
    each = context.values("microbatches", kind="schedule")
    reported = context.result.reported
    lines: list[tuple[str, Any, Any]] = [
        (
            "speedup of ResNet-110, 2 workers, without bubbles",
            reported["ours_resnet110_2gpu"],
            range_text(context, model="ResNet-110", kind="speed"),
        ),
        ("speedup of GPipe, 2 workers (paper: ResNet-101, 2 TPUs)", reported["gpipe_resnet101_2tpu"], None),
    ]
    lines += [
        (f"speedup of GPipe, ResNet-110, 2 workers, {m} microbatches", None, speedup)
        for m in each
        if (speedup := range_text(context, kind="GPipe", microbatches=m)) is not None
    ]
    full = context.log(kind="two workers", arm="pipelined")
    by_schedule = speed_when_full(full) if full is not None else None
    lines.append(("speedup by schedule, 2 equal stages, without bubbles", 2.0, by_schedule))
    two, four = ({m: context.log(kind="schedule", microbatches=m, arm=f"{n} partitions") for m in each} for n in (2, 4))
    lines += [
        (f"speedup by schedule, GPipe, 2 partitions, {m} microbatches", None, 2 * log.summary["utilisation"])
        for m, log in two.items()
        if log is not None
    ]
    for m in each:
        shares = [f"{100 * log.summary['bubble']:.0f}" for log in (two[m], four[m]) if log is not None]
        lines.append((f"idle share (%), GPipe, 2 and 4 partitions, {m} microbatches", None, ", ".join(shares) or None))
    return quantities(context, lines, notes(context, *timed_on(context)))


@drawing(PAPER, "text_early_layers_runtime")
def early_layers(context: Context) -> Drawn:
    """The share of the early layers in ResNet-20's time."""
    share = "share of the runtime (%)"
    three, with_first = f"first three residual functions, {share}", f"the first convolution and these, {share}"
    machines = [f"Ours: {log.environment.get('device')}, minibatch {log.summary['batch']}." for log in context.logs()]
    rows = [(three, "more than 50", early_share(context)), (with_first, None, early_share(context, 1))]
    return quantities(context, rows, machines)


@drawing(PAPER, "text_potential_speedup")
def potential_speedup(context: Context) -> Drawn:
    """The pipeline's speedup over one accelerator, and its cycles, from its schedules."""
    rows: list[Row] = []
    for k in context.values("K"):
        log = context.log(K=k)
        row: Row = {"k": k, "ideal": 2 * int(k) + 1}
        if log is not None:
            alone, together = cycles_each(log)
            cycles, m = log.summary["cycles"], log.summary["minibatches"]
            row |= {"workers": log.summary["workers"], "steady": alone / together, "cycles": cycles}
            row |= {"whole": alone * m / cycles}
        rows.append(row)
    cols = [
        Col("K", "k"),
        Col("2K + 1", "ideal"),
        Col("accelerators", "workers", "{}", "ours"),
        Col("speedup of the full pipeline", "steady", "{:.2f}", "ours"),
        Col("cycles for 100 minibatches", "cycles", "{}", "ours"),
        Col("speedup over these", "whole", "{:.2f}", "ours"),
    ]
    sentences = [
        "Stages take one cycle each; the last forward and the first backward share one. Over one accelerator alone."
    ]
    return Drawn.tabled(context, rows, cols, sentences)
