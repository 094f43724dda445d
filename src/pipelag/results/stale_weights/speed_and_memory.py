"""Tables 5 and 6 and the claims in the text about speed, memory and schedules."""

from __future__ import annotations

from statistics import median
from typing import Any

import pandas as pd

from pipelag.report.tables import Cell, Column, Table
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.logs import Context, RunLog, tidy
from pipelag.results.memory import against_pipedream, increase
from pipelag.results.stale_weights.accuracy import cuts_text, notes
from pipelag.runs.speedup import speedups

PAPER = "stale_weights"
ARMS = {"non_pipelined": "non-pipelined", "pipelined": "pipelined", "hybrid": "hybrid"}


def milliseconds(log: RunLog, arm: str) -> float:
    """Median time per minibatch of an arm of a `speed` run."""
    return median(1000 * row["seconds"] / row["steps"] for row in log.rows if row["arm"] == arm)


def speed_of(context: Context, model: str, arm: str) -> float | None:
    """Median speedup over blocks and logs."""
    values = [s for log in context.logs(model=model, kind="speed") for s in speedups(log.rows, arm)]
    return median(values) if values else None


def end_to_end(context: Context, model: str) -> float | None:
    """Median speedup of whole hybrid blocks, hand-over, fill and drain included; None where they are not logged."""
    values = []
    for item in context.select(model=model, kind="speed"):
        if item.log is None:
            continue
        spec = item.arm.spec
        steps = 2 * int(spec.options.get("block_steps", spec.steps))  # a pipelined block, then a non-pipelined one
        alone = {r["block"]: r["seconds"] / r["steps"] for r in item.log.rows if r["arm"] == "non-pipelined"}
        hybrid = [r for r in item.log.rows if r["arm"] == "hybrid" and "whole_seconds" in r]
        values += [steps * alone[r["block"]] / r["whole_seconds"] for r in hybrid]
    return median(values) if values else None


@drawing(
    PAPER,
    "table_5",
    "text_headline_speedup",
    "text_hybrid_average_gain",
    "text_hybrid_speedup_bound",
    "text_vs_gpipe_speedup",
)
def table_5(context: Context) -> Drawn:
    """Accuracy and speedup of real 2-worker pipelined and hybrid training."""
    reported = context.paper.results["table_5"].reported
    models = context.values("model")
    rows: list[dict[str, Cell]] = []
    for line in reported:
        model = line["model"]
        if model not in models:
            continue
        logs = context.logs(model=model, kind="speed")
        paper: dict[str, Cell] = {"model": model, "source": "paper", "ppv": f"({line['ppv'][0]})"}
        ours: dict[str, Cell] = {"model": model, "source": "ours"}
        item = next(
            iter(context.select(model=model, arm="pipelined") or context.select(model=model, arm="speed")), None
        )
        ours["ppv"] = cuts_text(item)
        for key, arm in ARMS.items():
            paper[f"acc_{key}"], paper[f"time_{key}"] = line[f"acc_{key}"], line[f"time_{key}"]
            ours[f"acc_{key}"] = context.accuracy(model=model, kind="train", arm=arm).text()
            ours[f"time_{key}"] = milliseconds(logs[0], arm) if logs else None
            if key != "non_pipelined":
                paper[f"speedup_{key}"] = line[f"speedup_{key}"]
                values = sorted(s for log in logs for s in speedups(log.rows, arm))
                ours[f"speedup_{key}"] = f"{median(values):.2f} [{values[0]:.2f}, {values[-1]:.2f}]" if values else None
        rows += [paper, ours]
    has_accuracy = any(i.arm.labels.get("kind") == "train" for i in context.items)
    has_speed = any(i.arm.labels.get("kind") == "speed" for i in context.items)
    columns = [Column("model", "ResNet"), Column("source", ""), Column("ppv", "PPV")]
    if has_accuracy:
        columns += [Column(f"acc_{key}", arm, "accuracy %", "{:.2f}") for key, arm in ARMS.items()]
    if has_speed:
        columns += [Column(f"time_{key}", arm, "time", "{:.0f}") for key, arm in ARMS.items()]
        columns += [Column(f"speedup_{key}", arm, "speedup", "{:.2f}") for key, arm in list(ARMS.items())[1:]]
    said = notes(context)
    if has_speed:
        said.append("Time: the paper's in seconds for 200 epochs; ours in milliseconds per minibatch, steady state.")
        devices = sorted(
            {f"{log.summary['device']}: {log.environment.get('device')}" for log in context.logs(kind="speed")}
        )
        batches = sorted({log.summary["batch"] for log in context.logs(kind="speed")})
        if devices:
            said.append(
                f"Ours: 2 worker processes on {'; '.join(devices)}, minibatches of {', '.join(map(str, batches))}; the "
                "non-pipelined arm is one worker with the same threads. Speedups are medians over interleaved blocks, "
                "with [min, max]. Hybrid: put together from the times per minibatch of a pipelined and of a "
                "non-pipelined block, without the hand-over between them."
            )
    left = sorted({i.arm.left_out for i in context.items if i.arm.left_out})
    said += [f"Not run at this scale: {why}." for why in left]
    return Drawn(
        Table(columns, rows, context.result.caption, said, rules=range(2, len(rows), 2)), data=tidy(context.items)
    )


@drawing(PAPER, "table_6")
def table_6(context: Context) -> Drawn:
    """Activation and weight memory, counted on our models."""
    rows: list[dict[str, Cell]] = []
    for line in context.result.reported:
        rows.append(
            {
                "model": line["model"],
                "source": "paper",
                "ppv": f"({line['ppv'][0]})",
                "activations": line["activations_mb_per_sample"],
                "weights": line["weight_mb"],
                "increase": line["increase_mb_per_sample"],
                "percent": float(line["increase_percent"]),
            }
        )
        counted = memory_of(context, line["model"])
        rows.append(
            {"model": line["model"], "source": "ours"} | (row_of(counted, context, line["model"]) if counted else {})
        )
    columns = [
        Column("model", "ResNet"),
        Column("source", ""),
        Column("ppv", "PPV"),
        Column("activations", "activations (MB/sample)", format="{:.2f}"),
        Column("weights", "weights (MB)", format="{:.2f}"),
        Column("increase", "increase (MB/sample)", format="{:.2f}"),
        Column("percent", "increase (%)", format="{:.0f}"),
    ]
    note = (
        "Ours: float32, MB = 2^20 bytes; every newly written tensor of the forward pass counts, twice in the "
        "activations (with its gradient, as torchsummary does) and once per kept copy; the percentage is at a "
        "minibatch of 128, weights included. No count of a fixed number of tensors per block gives 67 % at depth 20 "
        "and 58 % at depth 56: it has the form (a + 4n)/(b + 7n) for n blocks per group, b >= 0, and the printed "
        "values need b < 0."
    )
    return Drawn(Table(columns, rows, context.result.caption, [note], rules=range(2, len(rows), 2)))


def memory_of(context: Context, model: str) -> dict[str, float] | None:
    """`results.memory.increase` over a model's count log."""
    logs = context.logs(model=model)
    return increase(logs[0].rows, logs[0].summary["cuts"], logs[0].summary["batch"]) if logs else None


def row_of(counted: dict[str, float], context: Context, model: str) -> dict[str, Cell]:
    """A table row of counted memory."""
    cuts = context.logs(model=model)[0].summary["cuts"]
    return {
        "ppv": f"({', '.join(map(str, cuts))})",
        "activations": counted["activations_mb_per_sample"],
        "weights": counted["weight_mb"],
        "increase": counted["increase_mb_per_sample"],
        "percent": counted["increase_percent"],
    }


def quantities(context: Context, lines: list[tuple[str, Any, Any]], note: str = "") -> Drawn:
    """A small table for a claim in the text: quantity, the paper's value, ours."""
    rows: list[dict[str, Cell]] = [{"quantity": q, "paper": p, "ours": o} for q, p, o in lines]
    columns = [Column("quantity", "Quantity"), Column("paper", "paper"), Column("ours", "ours", format="{:.2f}")]
    return Drawn(Table(columns, rows, context.result.caption, [note] if note else []), data=pd.DataFrame(rows))


@drawing(PAPER, "text_memory_vs_pipedream")
def memory_vs_pipedream(context: Context) -> Drawn:
    """The memory that weight stashing would add to VGG-16."""
    lines: list[tuple[str, Any, Any]] = []
    for line in context.result.reported:
        counted = saving_of(context, line["dataset"])
        what = f"VGG-16, {line['dataset']}, minibatch {line['batch']}"
        lines.append((f"{what}: saving (%)", line["saving_percent"], counted and counted["saving_percent"]))
        lines.append((f"{what}: stale weights (MB)", None, counted and counted["ours_mb"]))
        lines.append((f"{what}: PipeDream (MB)", None, counted and counted["pipedream_mb"]))
    note = (
        "Our memory model (the paper gives none): both hold the weights and one minibatch's activations; PipeDream "
        "also a copy of the network's weights per stage. VGG-16 with its original 4096-wide classifier. This "
        "reading was chosen among several because it comes near the printed savings."
    )
    return quantities(context, lines, note)


def saving_of(context: Context, dataset: str) -> dict[str, float] | None:
    """`results.memory.against_pipedream` over the count log of a data set's input size."""
    logs = context.logs(dataset=dataset)
    return against_pipedream(logs[0].rows, logs[0].summary["cuts"], logs[0].summary["batch"]) if logs else None


def early_share(context: Context) -> float | None:
    """Percent of ResNet-20's time in the first convolution and the first three residual blocks: layers 1 to 7."""
    logs = context.logs()
    if not logs:
        return None
    total = {row["layer"]: row["forward_ms"] + row["backward_ms"] for row in logs[0].rows}
    return 100 * sum(ms for layer, ms in total.items() if layer <= 7) / sum(total.values())


@drawing(PAPER, "text_early_layers_runtime")
def early_layers(context: Context) -> Drawn:
    """Where ResNet-20's time goes."""
    return quantities(
        context,
        [("first three residual functions, share of the runtime (%)", "more than 50", early_share(context))],
        "; ".join(f"Ours: {log.environment.get('device')}, minibatch {log.summary['batch']}" for log in context.logs()),
    )


@drawing(PAPER, "text_potential_speedup")
def potential_speedup(context: Context) -> Drawn:
    """Cycles that a pipeline takes, from its schedule, against one accelerator that does the same work."""
    lines: list[tuple[str, Any, Any]] = []
    for item in context.items:
        k = int(item.arm.labels["K"])
        lines.append(
            (
                f"K = {k}: speedup over 1 accelerator, {item.arm.spec.steps} minibatches",
                f"{2 * k + 1} (limit)",
                ideal(item.log),
            )
        )
    return quantities(context, lines, "Stages take one cycle each; the last forward and first backward share one.")


def ideal(log: RunLog | None) -> float | None:
    """Cycles of work over cycles taken: busy cells over length."""
    return log.summary["busy_cycles"] / log.summary["cycles"] if log else None
