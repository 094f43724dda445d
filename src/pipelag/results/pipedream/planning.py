"""From a profile to a plan: table 2, figures 6 and 7, the partitioner's time and the language model's size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipelag.report.diagrams import cluster_levels, workflow
from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import exact, measured
from pipelag.results.pipedream.entries import Entry, entries
from pipelag.results.plans import PRINTED, READINGS, plan_in, planned
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "pipedream"


@drawing(PAPER, "table_2")
def table_2(context: Context) -> Drawn:
    """The levels of each cluster: the paper's, and those in the specs of the logged runs."""

    def levels(row: Mapping[str, Any]) -> list[dict[str, float]]:
        name = f"({row['cluster']})"
        item = next((i for i in context.items if i.arm.labels["servers"].endswith(name) and i.log), None)
        return item.arm.spec.options["cluster"]["levels"] if item else []

    def inner(row: Mapping[str, Any], key: str, alone: float | None = None) -> float | None:
        tiers = levels(row)
        return tiers[0][key] if len(tiers) > 1 else alone if tiers else None

    def gigabytes(bandwidth: float | None, times: float = 1) -> float | None:
        return None if bandwidth is None else bandwidth * times / 1e9

    cols = [
        Col("Cluster", "cluster"),
        Col("server", "sku", group="paper"),
        Col("GPUs", "gpus", group="paper"),
        Col("inside", "intra", group="paper"),
        Col("between (Gbps)", "inter_gbps", group="paper"),
        Col("GPUs per server", lambda row: inner(row, "workers", 1), "{:g}", "planned for"),
        Col("inside (GB/s)", lambda row: gigabytes(inner(row, "bandwidth")), "{:g}", "planned for"),
        Col(
            "between (Gbps)",
            lambda row: gigabytes(levels(row)[-1]["bandwidth"], 8) if levels(row) else None,
            "{:g}",
            "planned for",
        ),
    ]
    notes = [
        "inside a server: NVLink's 30 GB/s and a quarter of a PCIe tree's 12 GB/s, by section 2.3 (10 to 15, shared)"
    ]
    return Drawn.tabled(context, context.result.reported, cols, notes)


@drawing(PAPER, "figure_6")
def figure_6(context: Context) -> Drawn:
    """The workflow as three boxes: the profile, the optimiser and the runtime, with the logged plan's numbers."""
    log = context.log()
    plan = planned(log, PRINTED)
    if log is None or plan is None:
        return not_logged("the plan has no log")
    summary, stages = log.summary, plan["stages"]
    compute = summary["forward_ms"] + summary["backward_ms"]
    steps = [
        (
            "profile",
            f"{summary['layers']} layers, {compute:.0f} ms\n{summary['weight_bytes'] / 1e6:.0f} MB of weights",
        ),
        (
            "optimiser",
            f"{len(stages)} stages on {plan['config']} workers\nfound in {1e3 * plan['search_seconds']:.0f} ms",
        ),
        (
            "runtime",
            f"{stages[0]['versions']} minibatches in flight\nper input replica,\n"
            f"{1e3 * plan['timed']:.1f} ms per minibatch",
        ),
    ]
    return Drawn(figure=workflow(steps), data=pd.DataFrame(steps, columns=["step", "gave"]))


@judge(PAPER, "figure_6", "profile_to_plan")
def profile_to_plan(context: Context) -> Finding:
    """Holds if every layer is in one stage, the replicas add up to the workers, and NOAM minibatches are in flight."""
    log = log_of(context)
    plan = plan_in(log, PRINTED, "the plan")
    stages, layers = plan["stages"], [row["layer"] for row in log.rows if row["what"] == "layer"]
    if not stages or not layers:
        return exact(False, f"{len(layers)} layers profiled, {len(stages)} stages planned")
    covered = [number for stage in stages for number in range(stage["first"], stage["last"] + 1)]
    workers = sum(stage["replicas"] for stage in stages)
    noam = -(-workers // stages[0]["replicas"])
    holds = covered == layers and workers == log.summary["workers"] and stages[0]["versions"] == noam
    why = (
        f"{len(layers)} layers in {len(stages)} stages, replicas {plan['config']} of {log.summary['workers']} workers, "
    )
    return exact(holds, why + f"{stages[0]['versions']} minibatches in flight per input replica (NOAM is {noam})")


def levels_of(context: Context) -> list[dict[str, Any]]:
    """The cluster's levels in a run's spec. Raises `NotLogged` if the run has no log."""
    log_of(context)
    levels: list[dict[str, Any]] = context.items[0].arm.spec.options["cluster"]["levels"]
    return levels


@drawing(PAPER, "figure_7")
def figure_7(context: Context) -> Drawn:
    """The cluster's levels: servers with their workers."""
    if context.log() is None:
        return not_logged("the plan has no log")
    levels = levels_of(context)
    return Drawn(figure=cluster_levels(levels), data=pd.DataFrame(levels))


@drawing(PAPER, "text_optimizer_time")
def optimizer_time(context: Context) -> Drawn:
    """The seconds of the slower of the two searches, for each row of table 1."""

    def seconds(entry: Entry) -> float | None:
        times = [plan["search_seconds"] for name in READINGS if (plan := planned(entry.log, name))]
        return max(times, default=None)

    cols = [
        Col("Model", lambda e: e.paper["model"]),
        Col("Servers", lambda e: e.paper["servers"]),
        Col("layers", lambda e: e.log.summary["layers"] if e.log else None),
        Col("search (s)", seconds, "{:.3f}"),
    ]
    return Drawn.tabled(context, entries(context), cols)


@judge(PAPER, "text_optimizer_time", "under_8_s")
def under_8_s(context: Context) -> Finding:
    """Holds if the slowest search over all models and clusters takes less than the printed 8 seconds."""
    seconds = {
        entry.name: max(plan_in(entry.log, name, f"the search of {entry.name}")["search_seconds"] for name in READINGS)
        for entry in entries(context)
    }
    slowest = max(seconds, key=lambda name: seconds[name])
    most = context.result.reported["seconds_max"]
    why = f"at most {seconds[slowest]:.3f} s over {len(seconds)} rows of table 1 ({slowest})"
    return measured(context, seconds[slowest] < most, why, f"none: less than {most} s", what="plan")


@drawing(PAPER, "text_weight_size_lm")
def size_of_lm(context: Context) -> Drawn:
    """The language model's bytes and LSTM layers, from its profile, beside the paper's."""
    log, paper = context.log(), context.result.reported
    lstms = sum(row["what"] == "layer" and row["name"].startswith("lstm") for row in log.rows) if log else None
    size = log.summary["weight_bytes"] / 1e9 if log else None
    rows = [("parameters (GB)", paper["parameters_gb"], size), ("LSTM layers", paper["lstm_layers"], lstms)]
    cols = [
        Col("Language model", lambda row: row[0]),
        Col("paper", lambda row: row[1], "{:g}"),
        Col("ours", lambda row: row[2], "{:.3g}"),
    ]
    notes = ["the paper gives no width; ours was chosen so that the size is the paper's"]
    return Drawn.tabled(context, rows, cols, notes)
