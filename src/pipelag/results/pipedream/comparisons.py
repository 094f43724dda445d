"""Figures 1, 12, 14, 16, 17, 18 and what the text says of other schemes: plans against data and model parallelism."""

from __future__ import annotations

import pandas as pd

from pipelag.report.charts import bars, lines
from pipelag.report.tables import Cell, Column, Table
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.logs import Context, RunLog
from pipelag.results.plans import READINGS, Row, by_model, needed, planned, ratio
from pipelag.results.verdict import Finding, NotLogged, judge, log_of, need

PAPER = "pipedream"


def overheads(log: RunLog | None) -> list[tuple[int, float]]:
    """(GPUs, percent of the time that data parallelism waits for gradients)."""
    rows = log.rows if log else []
    return [(row["workers"], 100 * row["overhead"]) for row in rows if row.get("overhead") is not None]


@drawing(PAPER, "figure_1")
def figure_1(context: Context) -> Drawn:
    """A panel per kind of server, a line per model."""
    return overhead_lines(context, "model")


def overhead_lines(context: Context, key: str) -> Drawn:
    """A panel per kind of server, a line per value of a label."""
    panels, data = {}, []
    for servers in context.values("arm"):
        series = {value: overheads(context.log(**{key: value, "arm": servers})) for value in context.values(key)}
        panels[servers] = {value: points for value, points in series.items() if points}
        data += [(servers, value, n, share) for value, points in series.items() for n, share in points]
    if not data:
        return not_logged("no overhead is logged")
    return Drawn(
        figure=lines(panels, "GPUs", "communication overhead (%)", ticks=[1, 2, 4, 8, 16, 32], log=True),
        data=pd.DataFrame(data, columns=["servers", key, "gpus", "overhead_percent"]),
    )


def overhead(context: Context, model: str, servers: str, gpus: int) -> float:
    """One point of the figure, for a judge."""
    found = dict(overheads(context.log(model=model, arm=servers)))
    return need(found.get(gpus), f"{model} on {gpus} GPUs of {servers}")


@judge(PAPER, "figure_1", "grows")
def grows(context: Context) -> Finding:
    """Along every line, up to 0.05 points; how many lines."""
    falling, total = [], 0
    for servers in context.values("arm"):
        for model in context.values("model"):
            points = [share for _, share in overheads(context.log(model=model, arm=servers))]
            if not points:
                raise NotLogged(f"{model} on {servers} has no log")
            total += 1
            if any(b < a - 0.05 for a, b in zip(points[:-1], points[1:], strict=True)):
                falling.append(f"{model} on {servers}")
    worst = max(share for log in context.logs() for _, share in overheads(log))
    return not falling, f"{total - len(falling)} of {total} lines grow; the highest overhead is {worst:.0f} %" + (
        f"; not: {', '.join(falling)}" if falling else ""
    )


@judge(PAPER, "figure_1", "jumps_between_servers")
def jumps(context: Context) -> Finding:
    """From a full server to two, against from there to 32 GPUs, of the models that wait at all."""
    texts, holds = [], True
    for servers in context.values("arm"):
        size = int(servers.split("x")[0])
        for model in ("VGG-16", "GNMT-8"):
            inside, two, most = (overhead(context, model, servers, n) for n in (size, 2 * size, 32))
            holds &= two - inside > most - two
            texts.append(f"{model} on {servers}: {inside:.0f}, {two:.0f}, {most:.0f} %")
    return holds, "one server, two, 32 GPUs: " + "; ".join(texts)


@judge(PAPER, "figure_1", "dense_worse")
def dense_worse(context: Context) -> Finding:
    """At 32 GPUs, on every kind of server."""
    texts, holds = [], True
    for servers in context.values("arm"):
        conv = overhead(context, "ResNet-50", servers, 32)
        others = {m: overhead(context, m, servers, 32) for m in context.values("model") if m != "ResNet-50"}
        holds &= min(others.values()) > conv
        texts.append(f"{servers}: ResNet-50 {conv:.0f}, " + ", ".join(f"{m} {v:.0f}" for m, v in others.items()))
    return holds, "; ".join(texts)


@judge(PAPER, "figure_1", "faster_gpus_worse")
def faster_worse(context: Context) -> Finding:
    """The two kinds with 25 Gbps between servers of eight, at 32 GPUs."""
    slow, fast = "8x 1080Ti, PCIe, 25 Gbps", "8x V100, NVLink, 25 Gbps"
    pairs = {m: (overhead(context, m, slow, 32), overhead(context, m, fast, 32)) for m in context.values("model")}
    text = ", ".join(f"{model} {a:.0f} and {b:.0f} %" for model, (a, b) in pairs.items())
    return all(b >= a - 0.05 for a, b in pairs.values()), f"1080Ti and V100: {text}"


@drawing(PAPER, "figure_12")
def figure_12(context: Context) -> Drawn:
    """A panel per kind of server, a line per precision."""
    return overhead_lines(context, "precision")


@judge(PAPER, "figure_12", "half_precision_worse")
def half_worse(context: Context) -> Finding:
    """At every number of GPUs above one, on both kinds of server."""
    texts, holds = [], True
    for servers in context.values("arm"):
        single, half = (dict(overheads(context.log(precision=p, arm=servers))) for p in ("fp32", "fp16"))
        if not single or not half:
            raise NotLogged(f"{servers} has no log")
        holds &= all(half[n] > single[n] for n in single if n > 1)
        texts.append(f"{servers}: {half[32]:.0f} against {single[32]:.0f} % at 32")
    return holds, "; ".join(texts)


@drawing(PAPER, "figure_14a")
def figure_14a(context: Context) -> Drawn:
    """Per model: model parallelism, straight, PipeDream's plan."""
    groups, data = {}, []
    for model, log in by_model(context).items():
        values = {
            "model parallelism": 1.0,
            "straight pipeline": ratio(log, "model parallel", "straight"),
            "PipeDream": fastest(log)[0],
        }
        groups[model] = values
        data.append({"model": model, "plan": fastest(log)[1], **values})
    if not groups:
        return not_logged("no plan is logged")
    return Drawn(figure=bars(groups, "throughput over model parallelism", "{:.1f}x"), data=pd.DataFrame(data))


def fastest(log: RunLog | None) -> tuple[float | None, str]:
    """The better of the partitioner's two plans, over model parallelism; and its config."""
    found = [
        (gain, str((planned(log, name) or {}).get("config")))
        for name in READINGS
        if (gain := ratio(log, "model parallel", name)) is not None
    ]
    return max(found, default=(None, ""))


@judge(PAPER, "figure_14a", "pipelining_doubles")
def pipelining_doubles(context: Context) -> Finding:
    """Straight over model parallelism."""
    gains = {
        m: needed(context.log(model=m), "model parallel", "straight", m)
        for m in context.values("model")
        if m != "ResNet-50"
    }
    return min(gains.values()) >= 2, ", ".join(f"{model} {gain:.1f}x" for model, gain in gains.items())


@judge(PAPER, "figure_14a", "gnmt_not_replicated")
def gnmt_straight(context: Context) -> Finding:
    """By the paper's form of the cost, or by a ring's."""
    configs = {
        model: [(planned(log_of(context, model=model), name) or {}).get("config") for name in READINGS]
        for model in ("GNMT-8", "GNMT-16")
    }
    text = "; ".join(f"{model}: {a} by the paper's cost, {b} by a ring's" for model, (a, b) in configs.items())
    return all("straight" in pair for pair in configs.values()), text


@judge(PAPER, "figure_14a", "replication_pays")
def replication_pays(context: Context) -> Finding:
    """PipeDream's plan against straight."""
    gains = {}
    for model in ("VGG-16", "AlexNet"):
        log = context.log(model=model)
        gains[model] = (needed(log, "model parallel", "straight", model), need(fastest(log)[0], model))
    text = ", ".join(f"{model} {a:.1f}x straight, {b:.1f}x planned" for model, (a, b) in gains.items())
    return all(
        b > 1.1 * a for a, b in gains.values()
    ), f"{text}; 4 GPUs cannot give the paper's 14.9x over one at a time"


def hybrids(context: Context) -> dict[str, tuple[float, str]]:
    """Per model and cluster: pipelined over not pipelined, and the plan."""
    found = {}
    for item in context.items:
        if "servers" not in item.arm.labels:
            continue
        gain, plan = (
            ratio(item.log, "several stages, not pipelined", "several stages"),
            planned(item.log, "several stages"),
        )
        if gain is not None and plan is not None:
            found[f"{item.arm.labels['model']}\n{item.arm.labels['servers']}"] = (gain, plan["config"])
    return found


@drawing(PAPER, "figure_14b")
def figure_14b(context: Context) -> Drawn:
    """Per model and cluster: without and with pipelining."""
    found = hybrids(context)
    if not found:
        return not_logged("no plan is logged")
    groups = {
        f"{name}\n{config}": {"without pipelining": 1.0, "with pipelining": gain}
        for name, (gain, config) in found.items()
    }
    data = pd.DataFrame(
        [(name, config, gain) for name, (gain, config) in found.items()], columns=["model", "plan", "gain"]
    )
    return Drawn(figure=bars(groups, "throughput over no pipelining", "{:.2f}x"), data=data)


@judge(PAPER, "figure_14b", "pipelining_gains")
def pipelining_gains(context: Context) -> Finding:
    """Above 1 everywhere; the largest gain beside the paper's 80 %."""
    found = hybrids(context)
    if not found:
        raise NotLogged("no plan is logged")
    gains = [gain for gain, _ in found.values()]
    text = ", ".join(
        f"{name.replace(chr(10), ' ')} ({config}) {100 * (gain - 1):.0f} %" for name, (gain, config) in found.items()
    )
    return min(gains) > 1, f"{text}; the paper says up to {context.result.reported['max_gain_percent']} %"


def footprints(log: RunLog) -> tuple[list[float], float]:
    """GB per stage of the straight pipeline, and of data parallelism."""
    line, alone = planned(log, "straight"), planned(log, "data parallel")
    if line is None or alone is None:
        raise NotLogged("a plan has no log")
    return [size / 1e9 for size in line["memory"]], alone["memory"][0] / 1e9


@drawing(PAPER, "figure_16")
def figure_16(context: Context) -> Drawn:
    """Per model: four stages and data parallelism."""
    groups, data = {}, []
    for model, log in by_model(context).items():
        stages, alone = footprints(log)
        groups[model] = {f"stage {i}": size for i, size in enumerate(stages)} | {"data parallelism": alone}
        data += [{"model": model, "worker": name, "gigabytes": size} for name, size in groups[model].items()]
    if not groups:
        return not_logged("no plan is logged")
    return Drawn(figure=bars(groups, "memory per GPU (GB)", "{:.1f}"), data=pd.DataFrame(data))


@judge(PAPER, "figure_16", "on_par")
def on_par(context: Context) -> Finding:
    """The worst stage within 1.5 times of data parallelism."""
    worst = {}
    for model in context.values("model"):
        stages, alone = footprints(log_of(context, model=model))
        worst[model] = max(stages) / alone
    return max(worst.values()) <= 1.5, "worst stage over data parallelism: " + ", ".join(
        f"{m} {v:.2f}" for m, v in worst.items()
    )


@drawing(PAPER, "text_memory_bound")
def memory_bound(context: Context) -> Drawn:
    """The same numbers as a table."""
    rows: list[dict[str, Cell]] = []
    for model, log in by_model(context).items():
        stages, alone = footprints(log)
        rows.append({"model": model, "worst": max(stages), "alone": alone, "factor": max(stages) / alone})
    columns = [
        Column("model", "Model"),
        Column("worst", "worst stage (GB)", "", "{:.2f}"),
        Column("alone", "data parallelism (GB)", "", "{:.2f}"),
        Column("factor", "factor", "", "{:.2f}"),
    ]
    return Drawn(table=Table(columns, rows, context.result.caption))


@judge(PAPER, "text_memory_bound", "about_one")
def about_one(context: Context) -> Finding:
    """Within 1.5 times; stages are balanced in time, not in bytes."""
    return on_par(context)


def per_sample(log: RunLog | None) -> tuple[float, float, str] | None:
    """Megabytes per sample of data parallelism and of the best plan with several stages; its config."""
    alone, several = planned(log, "data parallel"), planned(log, "several stages")
    if not alone or not several:
        return None
    return alone["bytes_per_sample"] / 1e6, several["bytes_per_sample"] / 1e6, several["config"]


@drawing(PAPER, "figure_17")
def figure_17(context: Context) -> Drawn:
    """Two bars per model."""
    found = {model: per_sample(log) for model, log in by_model(context).items()}
    groups = {
        f"{model}\n{sizes[2]}": {"data parallelism": sizes[0], "best with several stages": sizes[1]}
        for model, sizes in found.items()
        if sizes
    }
    if not groups:
        return not_logged("no plan is logged")
    data = pd.DataFrame(
        [(model, *sizes) for model, sizes in found.items() if sizes], columns=["model", "dp_mb", "several_mb", "plan"]
    )
    return Drawn(figure=bars(groups, "sent per sample (MB)", "{:.1f}"), data=data)


def sizes_of(context: Context, model: str) -> tuple[float, float]:
    """For a judge."""
    found = per_sample(context.log(model=model))
    if found is None:
        raise NotLogged(f"{model} has no log")
    return found[0], found[1]


@judge(PAPER, "figure_17", "far_less")
def far_less(context: Context) -> Finding:
    """At most half."""
    pairs = {model: sizes_of(context, model) for model in ("GNMT-8", "GNMT-16", "VGG-16")}
    text = ", ".join(f"{m} {b:.1f} against {a:.1f} MB" for m, (a, b) in pairs.items())
    return all(b < 0.5 * a for a, b in pairs.values()), text


@judge(PAPER, "figure_17", "resnet_more")
def resnet_more(context: Context) -> Finding:
    """Bytes."""
    alone, several = sizes_of(context, "ResNet-50")
    return several > alone, f"{several:.1f} MB against {alone:.1f} MB"


def at_depths(context: Context) -> list[tuple[int, Row]]:
    """(minibatches in flight, the plan's row)."""
    log = context.log()
    rows = log.rows if log else []
    return [
        (int(row["plan"].split()[1]), row) for row in rows if row["what"] == "plan" and row["plan"].startswith("depth ")
    ]


@drawing(PAPER, "figure_18a")
def figure_18a(context: Context) -> Drawn:
    """A bar per depth."""
    rates = {depth: row["samples_per_second"] for depth, row in at_depths(context)}
    if not rates:
        return not_logged("no depth is logged")
    groups = {("none" if depth == 1 else str(depth)): {"throughput": rate} for depth, rate in rates.items()}
    figure = bars(groups, "samples per second", "{:.0f}", x="minibatches in flight")
    return Drawn(figure=figure, data=pd.DataFrame(rates.items(), columns=["depth", "samples_per_second"]))


@judge(PAPER, "figure_18a", "saturates")
def saturates(context: Context) -> Finding:
    """Up to NOAM it grows; beyond, by less than 5 %."""
    rates = {depth: row["samples_per_second"] for depth, row in at_depths(context)}
    if set(rates) != {1, 2, 4, 7}:
        raise NotLogged("the depths 1, 2, 4 and 7 are not all logged")
    text = ", ".join(f"{depth}: {rate:.0f}" for depth, rate in rates.items())
    return rates[1] < rates[2] < rates[4] and rates[7] < 1.05 * rates[4], f"samples per second by depth {text}"


@drawing(PAPER, "figure_18b")
def figure_18b(context: Context) -> Drawn:
    """Stages side by side, a bar per depth."""
    rows = at_depths(context)
    if not rows:
        return not_logged("no depth is logged")
    groups = {
        f"stage {stage}": {
            f"depth {'none' if depth == 1 else depth}": row["memory"][stage] / 1e9 for depth, row in rows
        }
        for stage in range(len(rows[0][1]["memory"]))
    }
    data = pd.DataFrame(
        [(depth, stage, size) for depth, row in rows for stage, size in enumerate(row["memory"])],
        columns=["depth", "stage", "bytes"],
    )
    return Drawn(figure=bars(groups, "memory per GPU (GB)", "{:.1f}"), data=data)


@judge(PAPER, "figure_18b", "memory_grows")
def memory_grows(context: Context) -> Finding:
    """The first stage, from depth 2 to 7."""
    sizes = {depth: [size / 1e9 for size in row["memory"]] for depth, row in at_depths(context)}
    if not {2, 4, 7} <= set(sizes):
        raise NotLogged("the depths 2, 4 and 7 are not all logged")
    growing = sizes[2][0] < sizes[4][0] < sizes[7][0]
    return growing, "GB of stage 0 by depth " + ", ".join(f"{depth}: {row[0]:.2f}" for depth, row in sizes.items())


@judge(PAPER, "figure_18b", "stages_differ")
def stages_differ(context: Context) -> Finding:
    """At depth 1, beyond 5 %."""
    sizes = dict(at_depths(context)).get(1)
    if sizes is None:
        raise NotLogged("depth 1 is not logged")
    held = [size / 1e9 for size in sizes["memory"]]
    return max(held) > 1.05 * min(held), "GB per stage: " + ", ".join(f"{size:.2f}" for size in held)


DEPTHS = {"NOAM": "GPipe, NOAM", "most that fit": "GPipe, most that fit"}


def slowdown(context: Context, cluster: str, depth: str) -> float | None:
    """Percent of the straight pipeline's throughput that GPipe loses."""
    gain = ratio(context.log(arm=cluster), DEPTHS[depth], "straight")
    return 100 * (1 - 1 / gain) if gain else None


@drawing(PAPER, "text_gpipe_comparison")
def gpipe_comparison(context: Context) -> Drawn:
    """Slowdowns by depth and cluster."""
    rows: list[dict[str, Cell]] = []
    for paper in context.result.reported:
        for cluster in context.values("arm"):
            plan = planned(context.log(arm=cluster), DEPTHS[paper["depth"]])
            rows.append(
                {
                    "depth": paper["depth"],
                    "cluster": cluster,
                    "micro": plan["microbatches"] if plan else None,
                    "paper": paper[cluster],
                    "own": slowdown(context, cluster, paper["depth"]),
                }
            )
    columns = [
        Column("depth", "Depth"),
        Column("cluster", "Cluster"),
        Column("micro", "microbatches"),
        Column("paper", "paper (%)", "", "{:.0f}"),
        Column("own", "ours (%)", "", "{:.0f}"),
    ]
    notes = ["GPipe recomputes activations in the backward; memory 16 GB, at most 8 microbatches per stage"]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))


@judge(PAPER, "text_gpipe_comparison", "slower_shallow")
def slower_shallow(context: Context) -> Finding:
    """Both clusters."""
    texts, holds = [], True
    for cluster in context.values("arm"):
        shallow, deep = (need(slowdown(context, cluster, depth), f"{depth} on {cluster}") for depth in DEPTHS)
        holds &= shallow > deep > 0
        texts.append(f"{cluster} {shallow:.0f} % and {deep:.0f} %")
    return holds, "; ".join(texts)


def over_others(context: Context) -> dict[str, list[float]]:
    """PipeDream's speedups over each scheme."""
    over_model = [gain for log in by_model(context).values() if (gain := fastest(log)[0]) is not None]
    over_gpipe = [
        gain
        for cluster in ("Cluster-A", "Cluster-B")
        for name in DEPTHS.values()
        if (gain := ratio(context.log(arm=cluster), name, "straight")) is not None
    ]
    return {
        "model parallelism": over_model,
        "hybrid parallelism": [gain for gain, _ in hybrids(context).values()],
        "GPipe": over_gpipe,
    }


@drawing(PAPER, "text_headline_other")
def headline_other(context: Context) -> Drawn:
    """Ranges of speedups."""
    paper = context.result.reported
    said = dict(zip(("model parallelism", "hybrid parallelism", "GPipe"), (
        f"{paper['over_model_parallelism'][0]}x-{paper['over_model_parallelism'][1]}x",
        f"{paper['over_hybrid']}x",
        f"{paper['over_gpipe']}x",
    ), strict=True))  # fmt: skip
    rows: list[dict[str, Cell]] = [
        {"scheme": scheme, "paper": said[scheme], "least": min(gains, default=None), "most": max(gains, default=None)}
        for scheme, gains in over_others(context).items()
    ]
    columns = [
        Column("scheme", "Over"),
        Column("paper", "paper"),
        Column("least", "least", "ours", "{:.2f}x"),
        Column("most", "most", "ours", "{:.2f}x"),
    ]
    return Drawn(table=Table(columns, rows, context.result.caption))


@judge(PAPER, "text_headline_other", "over_all")
def over_all(context: Context) -> Finding:
    """Every speedup above 1."""
    found = over_others(context)
    if not all(found.values()):
        raise NotLogged("a scheme has no log")
    text = "; ".join(f"{scheme} {min(gains):.2f}x-{max(gains):.2f}x" for scheme, gains in found.items())
    return all(min(gains) > 1 for gains in found.values()), text


@drawing(PAPER, "text_flexflow")
def flexflow(context: Context) -> Drawn:
    """One number."""
    gain = ratio(context.log(), "several stages, not pipelined", "several stages")
    rows: list[dict[str, Cell]] = [
        {"what": "AlexNet, 2x8 (B)", "paper": context.result.reported["speedup"], "own": gain}
    ]
    columns = [
        Column("what", "Pipelined over not pipelined"),
        Column("paper", "paper", "", "{:.1f}x"),
        Column("own", "ours", "", "{:.2f}x"),
    ]
    return Drawn(
        table=Table(
            columns,
            rows,
            context.result.caption,
            ["FlexFlow itself is not run: the same hybrid plan without pipelining is"],
        )
    )


@judge(PAPER, "text_flexflow", "up_to_1_9")
def up_to_1_9(context: Context) -> Finding:
    """Above 1 and not above 2."""
    gain = needed(context.log(), "several stages, not pipelined", "several stages", "AlexNet")
    return 1 < gain <= 2, f"{gain:.2f}x, the paper says {context.result.reported['speedup']}x"
