"""Tables 1-3, figures 6, 7 and 15: the partitioner's plans, and how well they are predicted."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import correlation
from typing import Any

import pandas as pd

from pipelag.report.charts import equality
from pipelag.report.diagrams import cluster_levels, workflow
from pipelag.report.tables import Cell, Column, Table
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.logs import Context, RunLog
from pipelag.results.plans import READINGS, planned, planned_gains, ratio, saved
from pipelag.results.verdict import Finding, NotLogged, judge, log_of, need

PAPER = "pipedream"


def reported(context: Context, **keys: str) -> dict[str, Any]:
    """The paper's row with these keys; empty where it has none."""
    rows = [row for row in context.result.reported if all(row.get(key) == value for key, value in keys.items())]
    return rows[0] if rows else {}


def logs_by_row(context: Context) -> list[tuple[str, str, RunLog | None]]:
    """(model, servers, log) of every run."""
    return [(item.arm.labels["model"], item.arm.labels["servers"], item.log) for item in context.items]


@drawing(PAPER, "table_1")
def table_1(context: Context) -> Drawn:
    """A row per model and cluster: the paper's plan and speedup, and ours by both forms of the cost."""
    rows: list[dict[str, Cell]] = []
    for model, servers, log in logs_by_row(context):
        paper = reported(context, model=model, servers=servers)
        row: dict[str, Cell] = {
            "model": model,
            "servers": servers,
            "config": paper.get("config"),
            "epoch": paper.get("epoch"),
            "tta": paper.get("tta"),
        }
        for key, name in zip(("own", "ring"), READINGS, strict=True):
            plan = planned(log, name)
            row |= {
                f"{key}_config": plan["config"] if plan else None,
                f"{key}_speedup": ratio(log, "data parallel", name),
            }
        rows.append(row)
    columns = [
        Column("model", "Model"),
        Column("servers", "Servers"),
        Column("config", "config", "paper"),
        Column("epoch", "epoch", "paper", "{:.2f}x"),
        Column("tta", "to target", "paper", "{:.2f}x"),
        Column("own_config", "config", "ours, the paper's cost"),
        Column("own_speedup", "epoch", "ours, the paper's cost", "{:.2f}x"),
        Column("ring_config", "config", "ours, a ring's cost"),
        Column("ring_speedup", "epoch", "ours, a ring's cost", "{:.2f}x"),
    ]
    notes = [
        "ours: plans by our partitioner, timed by discrete events with gradients sent as they become ready "
        f"({profile_note(context)}); nothing was trained for the speedups to a target",
        "the paper's cost of summing gradients, 2(m-1)|w|/B, is m times a ring's (ambiguity C4); both are shown",
        "15-1 on 4x4 cannot come from the recurrence by levels, which replicates whole servers: our partitioner also "
        "searches over all workers on one level",
    ]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))


def profile_note(context: Context) -> str:
    """Which profiles the plans rest on."""
    sources = {"published" in item.arm.spec.options.get("profile", {}) for item in context.items}
    words = {True: "the authors' published profiles", False: "rooflines of data sheets"}
    return "profiles: " + " and ".join(words[source] for source in sorted(sources, reverse=True))


@judge(PAPER, "table_1", "never_slower")
def never_slower(context: Context) -> Finding:
    """By the better of both forms of the cost."""
    below, total = [], 0
    for model, servers, log in logs_by_row(context):
        best = max(planned_gains(log, f"{model} on {servers}"))
        total += 1
        if best < 0.995:
            below.append(f"{model} {servers} {best:.2f}")
    ring = {
        (model, servers): (planned(log, READINGS[1]) or {}).get("config")
        for model, servers, log in logs_by_row(context)
    }
    return not below, (
        f"the better plan of the two costs is at least as fast as data parallelism in {total - len(below)} of {total} "
        f"rows{'; slower: ' + ', '.join(below) if below else ''}; a ring's cost chooses data parallelism in "
        f"{sum(str(config).isdigit() for config in ring.values())}"
    )


@judge(PAPER, "table_1", "same_configurations")
def same_configurations(context: Context) -> Finding:
    """Rows whose plan is the paper's, by either form of the cost."""
    same, other = 0, []
    for model, servers, log in logs_by_row(context):
        configs = [str(plan["config"]) for name in READINGS if (plan := planned(log, name))]
        if not configs:
            raise NotLogged(f"the plan of {model} on {servers} has no log")
        wanted = reported(context, model=model, servers=servers)["config"]
        if wanted in configs:
            same += 1
        else:
            other.append(f"{model} {servers}: {' or '.join(dict.fromkeys(configs))} for {wanted}")
    return not other, f"{same} of {same + len(other)} as in the paper; {'; '.join(other)}"


@judge(PAPER, "table_1", "slower_links_gain_more")
def slower_links(context: Context) -> Finding:
    """VGG-16 on A and B."""
    gains = [
        max(planned_gains(context.log(model="VGG-16", servers=s), f"VGG-16 on {s}")) for s in ("4x4 (A)", "2x8 (B)")
    ]
    return gains[0] > gains[1], f"{gains[0]:.2f}x on A, {gains[1]:.2f}x on B"


@judge(PAPER, "table_1", "same_epochs")
def same_epochs(context: Context) -> Finding:
    """In the paper's own rows; ours have no time to a target."""
    rows = [row for row in context.result.reported if row.get("tta")]
    equal = sum(abs(row["tta"] - row["epoch"]) < 0.005 for row in rows)
    return None, (
        "nothing was trained to these targets here (figure 11 compares epochs); "
        f"in the paper's table {equal} of {len(rows)} rows are equal"
    )


@drawing(PAPER, "table_2")
def table_2(context: Context) -> Drawn:
    """Levels of each cluster, from the specs that the logged runs record."""
    rows: list[dict[str, Cell]] = []
    for paper in context.result.reported:
        name = paper["cluster"]
        item = next((i for i in context.items if i.arm.labels["servers"].endswith(f"({name})") and i.log), None)
        levels = item.arm.spec.options["cluster"]["levels"] if item else []
        inner = levels[0] if len(levels) > 1 else None
        outer = levels[-1] if levels else None
        rows.append(
            {
                "cluster": name,
                "sku": paper["sku"],
                "gpus": paper["gpus"],
                "intra": paper["intra"],
                "inter": paper["inter_gbps"],
                "own_gpus": inner["workers"] if inner else (1 if outer else None),
                "own_intra": inner["bandwidth"] / 1e9 if inner else None,
                "own_inter": outer["bandwidth"] * 8 / 1e9 if outer else None,
            }
        )
    columns = [
        Column("cluster", "Cluster"),
        Column("sku", "server", "paper"),
        Column("gpus", "GPUs", "paper"),
        Column("intra", "inside", "paper"),
        Column("inter", "between (Gbps)", "paper"),
        Column("own_gpus", "GPUs per server", "planned for"),
        Column("own_intra", "inside (GB/s)", "planned for", "{:g}"),
        Column("own_inter", "between (Gbps)", "planned for", "{:g}"),
    ]
    notes = ["the paper gives no rate inside a server: NVLink's is the data sheet's, PCIe's is an assumption (config)"]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))


def cloud_ratio(context: Context, row: dict[str, Any], precision: str) -> float | None:
    """Timed epoch on Cluster-B over that on the dedicated cluster."""
    name = f"data parallel over {row['v100s']}"
    labels = {"model": row["model"], "precision": precision}
    here, there = (planned(context.log(**labels, arm=arm), name) for arm in ("Cluster-B", "MLPerf"))
    return here["timed"] / there["timed"] if here and there else None


@drawing(PAPER, "table_3")
def table_3(context: Context) -> Drawn:
    """The paper's three models, in the precision of the entries' code and in that of the paper's other experiments."""
    rows: list[dict[str, Cell]] = [
        {
            "model": row["model"],
            "scale": row["v100s"],
            "paper": row["ratio"],
            **{precision: cloud_ratio(context, row, precision) for precision in context.values("precision")},
        }
        for row in context.result.reported
    ]
    columns = [
        Column("model", "Model"),
        Column("scale", "V100s"),
        Column("paper", "paper", "", "{:.2f}x"),
        *(Column(precision, precision, "ours", "{:.2f}x") for precision in context.values("precision")),
    ]
    notes = [
        "the dedicated cluster is taken to have four 100 Gbps links per server; devices are data sheets. The entries' "
        "code is fp16, and SSD's sums gradients after the backward; the others overlap the two",
        "SSD (ResNet-34, 300 x 300) and Mask R-CNN (ResNet-50 with a feature pyramid, 800 x 1088, 512 given regions of "
        "an image) are their parts with weights: anchors, matching, suppression and losses are left out with their "
        "time, which makes our ratios larger; NCCL's rate below a link's and slow servers are left out too, which "
        "makes them smaller",
    ]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))


@judge(PAPER, "table_3", "cloud_slower")
def cloud_slower(context: Context) -> Finding:
    """Every model by at least 1 %, in fp16 as the entries' code; fp32 is told beside it."""
    texts, ratios = [], []
    for row in context.result.reported:
        half = need(cloud_ratio(context, row, "fp16"), f"{row['model']} in fp16")
        ratios.append(half)
        single = cloud_ratio(context, row, "fp32")
        texts.append(f"{row['model']} {half:.2f}x" + (f" ({single:.2f}x in fp32)" if single else ""))
    return min(ratios) > 1.01, ", ".join(texts)


@drawing(PAPER, "figure_6")
def figure_6(context: Context) -> Drawn:
    """Three boxes with what the log says of each step."""
    log = context.log()
    plan = planned(log, READINGS[1])
    if log is None or plan is None:
        return not_logged("the plan has no log")
    summary = log.summary
    fastest = plan["samples_per_second"]
    boxes = [
        (
            "profile",
            f"{summary['layers']} layers\n{summary['forward_ms']:.0f} + {summary['backward_ms']:.0f} ms per minibatch\n"
            f"{summary['weight_bytes'] / 1e6:.0f} MB of weights",
        ),
        (
            "partition",
            f"{summary['workers']} workers in {plan['search_seconds'] * 1e3:.0f} ms\nplan {plan['config']}\n"
            f"{predicted_rate(plan, summary['batch']):.0f} samples/s predicted",
        ),
        (
            "pipeline",
            f"{max(stage['versions'] for stage in plan['stages'])} minibatches in flight\nper input worker\n"
            f"{fastest:.0f} samples/s timed",
        ),
    ]
    return Drawn(figure=workflow(boxes), data=pd.DataFrame(boxes, columns=["step", "result"]))


def predicted_rate(plan: dict[str, Any], batch: int) -> float:
    """Samples per second by the ring's form of the cost."""
    return float(batch / plan["predicted"]["ring"])


@judge(PAPER, "figure_6", "profile_to_plan")
def profile_to_plan(context: Context) -> Finding:
    """What the plan's row holds."""
    plan = planned(log_of(context), READINGS[0])
    if plan is None:
        raise NotLogged("the plan has no log")
    stages = plan["stages"]
    whole = stages[0]["first"] == 1 and all(
        a["last"] + 1 == b["first"] for a, b in zip(stages[:-1], stages[1:], strict=True)
    )
    text = f"{len(stages)} stages, replicas {plan['config']}, versions {[stage['versions'] for stage in stages]}"
    return whole, text


def levels_of(context: Context) -> list[dict[str, Any]]:
    """The cluster's levels, of a run that is logged."""
    log_of(context)
    levels: list[dict[str, Any]] = context.items[0].arm.spec.options["cluster"]["levels"]
    return levels


@drawing(PAPER, "figure_7")
def figure_7(context: Context) -> Drawn:
    """Servers with their workers."""
    if context.log() is None:
        return not_logged("the plan has no log")
    levels = levels_of(context)
    return Drawn(figure=cluster_levels(levels), data=pd.DataFrame(levels))


@judge(PAPER, "figure_7", "product")
def product(context: Context) -> Finding:
    """The workers planned for, and the bandwidths."""
    levels, count = levels_of(context), 1
    for level in levels:
        count *= level["workers"]
    falling = all(a["bandwidth"] > b["bandwidth"] for a, b in zip(levels[:-1], levels[1:], strict=True))
    text = f"{' x '.join(str(level['workers']) for level in levels)} = {count}; bandwidths " + " > ".join(
        f"{level['bandwidth'] / 1e9:g} GB/s" for level in levels
    )
    return falling and count == log_of(context).summary["workers"], text


def partitions(context: Context) -> list[tuple[str, float, float]]:
    """(config, predicted, timed samples per second) of every partition and of the plans chosen."""
    log = context.log(panel="timed")
    if log is None:
        return []
    batch = log.summary["batch"]
    return [
        (row["plan"], batch / row["predicted"]["ring"], batch / row["timed"])
        for row in log.rows
        if row["what"] == "plan"
    ]


def measured(context: Context) -> list[tuple[str, float, float]]:
    """(cut, predicted, measured samples per second) of the real two-worker partitions."""
    profile = context.log(panel="measured", arm="profile")
    found = []
    for item in context.select(panel="measured", arm="two workers"):
        if profile is None or item.log is None:
            continue
        cut = int(item.arm.labels["cut"])
        times = [row["forward_ms"] + row["backward_ms"] for row in profile.rows]
        rates = sorted(row["samples_per_second"] for row in item.log.rows if row["arm"] == "pipelined")
        predicted = item.log.summary["batch"] * 1e3 / max(sum(times[:cut]), sum(times[cut:]))
        found.append((f"cut after layer {cut}", predicted, rates[len(rates) // 2]))
    return found


@drawing(PAPER, "figure_15")
def figure_15(context: Context) -> Drawn:
    """Two scatters with the line of equality."""
    left, right = partitions(context), measured(context)
    if not left and not right:
        return not_logged("no partition has a log")
    kinds = {"data parallel": "data parallelism", "PipeDream, ring": "the partitioner's choice"}
    series: dict[str, list[tuple[float, float]]] = {
        "partitions": [],
        "data parallelism": [],
        "the partitioner's choice": [],
    }
    for name, predicted, rate in left:
        series[kinds.get(name, "partitions")].append((predicted, rate))
    panels = {
        "16 workers, Cluster-A": (series, "timed (samples/s)"),
        "two workers, here": ({"partitions": [(p, r) for _, p, r in right]}, "measured (samples/s)"),
    }
    data = [("timed", *row) for row in left] + [("measured", *row) for row in right]
    return Drawn(
        figure=equality(panels, "predicted (samples/s)"),
        data=pd.DataFrame(data, columns=["panel", "partition", "predicted", "real"]),
    )


def linear(points: Sequence[tuple[str, float, float]]) -> float:
    """Pearson's correlation."""
    return correlation([p for _, p, _ in points], [r for _, _, r in points])


@judge(PAPER, "figure_15", "correlated")
def correlated(context: Context) -> Finding:
    """Over the timed and over the measured partitions."""
    left, right = partitions(context), measured(context)
    if len(left) < 8 or len(right) < 8:
        raise NotLogged(f"only {len(left)} timed and {len(right)} measured partitions are logged, of at least 8 each")
    values = [linear(left), linear(right)]
    return min(
        values
    ) > 0.95, f"{values[0]:.3f} over {len(left)} timed, {values[1]:.3f} over {len(right)} measured partitions"


@judge(PAPER, "figure_15", "best_chosen")
def best_chosen(context: Context) -> Finding:
    """Timed throughput of the choice against all others."""
    left = partitions(context)
    chosen = [rate for name, _, rate in left if name in READINGS]
    others = [rate for name, _, rate in left if name not in READINGS]
    if not chosen or not others:
        raise NotLogged("the partitions have no log")
    return max(chosen) >= max(
        others
    ) - 1e-9, f"{max(chosen):.0f} samples/s chosen, {max(others):.0f} the best other of {len(others)}"


@drawing(PAPER, "text_communication_reduction")
def communication(context: Context) -> Drawn:
    """Bytes saved by both plans."""
    rows: list[dict[str, Cell]] = []
    for model, servers, log in logs_by_row(context):
        row: dict[str, Cell] = {"model": model, "servers": servers, "paper": context.result.reported.get(model)}
        for key, name in (("own", "PipeDream"), ("several", "several stages")):
            share = saved(log, name)
            plan = planned(log, name)
            row |= {key: None if share is None else 100 * share, f"{key}_config": plan["config"] if plan else None}
        rows.append(row)
    columns = [
        Column("model", "Model"),
        Column("servers", "Servers"),
        Column("paper", "paper (%)", "", "{:.0f}"),
        Column("own_config", "plan", "ours"),
        Column("own", "saved (%)", "ours", "{:.0f}"),
        Column("several_config", "plan", "best of several stages"),
        Column("several", "saved (%)", "best of several stages", "{:.0f}"),
    ]
    return Drawn(table=Table(columns, rows, context.result.caption))


@judge(PAPER, "text_communication_reduction", "saves_85")
def saves_85(context: Context) -> Finding:
    """The most that one of our plans saves, per model named."""
    best = {}
    for model in context.result.reported:
        shares = [
            share
            for item in context.select(model=model)
            for name in (*READINGS, "several stages")
            if (share := saved(item.log, name)) is not None
        ]
        best[model] = need(max(shares, default=None), model)
    return min(best.values()) >= 0.85, ", ".join(f"{model} {100 * share:.0f} %" for model, share in best.items())


@drawing(PAPER, "text_optimizer_time")
def optimizer_time(context: Context) -> Drawn:
    """Seconds of both searches."""
    rows: list[dict[str, Cell]] = []
    for model, servers, log in logs_by_row(context):
        seconds = [plan["search_seconds"] for name in READINGS if (plan := planned(log, name))]
        rows.append(
            {
                "model": model,
                "servers": servers,
                "layers": log.summary["layers"] if log else None,
                "seconds": max(seconds, default=None),
            }
        )
    columns = [
        Column("model", "Model"),
        Column("servers", "Servers"),
        Column("layers", "layers"),
        Column("seconds", "search (s)", "", "{:.3f}"),
    ]
    return Drawn(table=Table(columns, rows, context.result.caption))


@judge(PAPER, "text_optimizer_time", "under_8_s")
def under_8_s(context: Context) -> Finding:
    """The slowest search logged."""
    seconds = [plan["search_seconds"] for log in context.logs() for name in READINGS if (plan := planned(log, name))]
    slowest = need(max(seconds, default=None), "the search")
    return slowest < context.result.reported["seconds_max"], f"at most {slowest:.3f} s over {len(seconds)} searches"


@drawing(PAPER, "text_weight_size_lm")
def size_of_lm(context: Context) -> Drawn:
    """Bytes and LSTM layers from the profile's rows."""
    log, paper = context.log(), context.result.reported
    lstms = sum(row["what"] == "layer" and row["name"].startswith("lstm") for row in log.rows) if log else None
    size = log.summary["weight_bytes"] / 1e9 if log else None
    rows: list[dict[str, Cell]] = [
        {"what": "parameters (GB)", "paper": paper["parameters_gb"], "own": size},
        {"what": "LSTM layers", "paper": paper["lstm_layers"], "own": lstms},
    ]
    columns = [
        Column("what", "Language model"),
        Column("paper", "paper", "", "{:g}"),
        Column("own", "ours", "", "{:.3g}"),
    ]
    notes = ["the paper gives no width; ours was chosen so that the size is the paper's"]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))


@judge(PAPER, "text_weight_size_lm", "size")
def size_claim(context: Context) -> Finding:
    """To two digits."""
    log, paper = log_of(context), context.result.reported
    size = log.summary["weight_bytes"] / 1e9
    lstms = sum(row["what"] == "layer" and row["name"].startswith("lstm") for row in log.rows)
    return round(size, 2) == paper["parameters_gb"] and lstms == paper[
        "lstm_layers"
    ], f"{size:.3f} GB, {lstms} LSTM layers"
