"""Figures 16, 17, 18a and 18b and the text's claims about memory, communicated bytes and minibatches in flight."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pipelag.report.frames import Axis, Bars
from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import listing, measured
from pipelag.results.logs import RunLog
from pipelag.results.pipedream.entries import Entry, entries, unpublished
from pipelag.results.pipedream.targets import COLOURS, FOUR
from pipelag.results.plans import (
    ALONE,
    PRINTED,
    PRINTED_WORDS,
    READINGS,
    RING,
    SEVERAL,
    Row,
    by_model,
    config_of,
    plan_in,
    planned,
    saved,
)
from pipelag.results.verdict import Finding, Judge, NotLogged, judge, log_of, need

PAPER = "pipedream"
GNMT = f"GNMT-8, {FOUR}"
NOAM = 4  # for four stages
DEPTHS = (1, 2, 4, 7)  # pipeline depths of figure 18; 1 is no pipelining
PAR = 1.1
PAR_WORDS = "on par: at most a tenth more, about what a bar chart without numbers shows"


def footprints(log: RunLog, model: str) -> tuple[list[float], float]:
    """The GB per worker: of each stage of the straight pipeline, and of data parallelism."""
    line, alone = (plan_in(log, name, f"{model}, {name}") for name in ("straight", ALONE))
    return [size / 1e9 for size in line["memory"]], alone["memory"][0] / 1e9


@drawing(PAPER, "figure_16")
def figure_16(context: Context) -> Drawn:
    """A group of bars per model: the memory of four stages and of data parallelism."""
    rows = []
    for model, log in by_model(context).items():
        stages, alone = footprints(log, model)
        bars = {f"stage {i}": size for i, size in enumerate(stages)} | {"data parallelism": alone}
        rows += [{"model": model, "worker": bar, "gigabytes": size, "where": FOUR} for bar, size in bars.items()]
    if not rows:
        return not_logged("no plan is logged")
    y = Axis("gigabytes", "memory per GPU (GB)")
    return Drawn.of(Bars(y, "model", "worker", panel="where", number="{:.1f}", colours=COLOURS), rows)


def worst_over_alone(context: Context) -> tuple[float, str]:
    """The greatest ratio over models of the worst stage's memory to data parallelism's; and all ratios in words."""
    worst = {}
    for model in context.values("model"):
        stages, alone = footprints(log_of(context, model=model), model)
        worst[model] = (max(stages) / alone, max(stages), alone)
    texts = [f"{m} {share:.2f} ({gb:.2f} GB against {alone:.2f} GB)" for m, (share, gb, alone) in worst.items()]
    return max(share for share, _, _ in worst.values()), "worst stage over data parallelism: " + ", ".join(texts)


@judge(PAPER, "figure_16", "on_par")
def on_par(context: Context) -> Finding:
    """Holds if for all models the worst stage needs at most a tenth more memory than data parallelism."""
    most, why = worst_over_alone(context)
    return measured(context, most <= PAR, why, PAR_WORDS)


@drawing(PAPER, "text_memory_bound")
def memory_bound(context: Context) -> Drawn:
    """Figure 16's numbers as a table, with the number of versions that each stage's worker holds."""

    def footprint(pair: Any) -> tuple[list[float], float]:
        return footprints(pair[1], pair[0])

    cols = [
        Col("Model", lambda pair: pair[0]),
        Col("versions by stage", lambda pair: ", ".join(map(str, versions(pair[1])))),
        Col("worst stage (GB)", lambda pair: max(footprint(pair)[0]), "{:.2f}"),
        Col("data parallelism (GB)", lambda pair: footprint(pair)[1], "{:.2f}"),
        Col("factor", lambda pair: max(footprint(pair)[0]) / footprint(pair)[1], "{:.2f}"),
    ]
    return Drawn.tabled(context, by_model(context).items(), cols)


def versions(log: RunLog) -> list[int]:
    """The number of versions that the worker of each stage of the straight pipeline holds."""
    return [stage["versions"] for stage in plan_in(log, "straight", "the straight plan")["stages"]]


@judge(PAPER, "text_memory_bound", "about_one")
def about_one(context: Context) -> Finding:
    """Holds if each of n stages holds at most n versions, and the worst needs at most a tenth more memory than data
    parallelism. The bytes are checked too, because stages with equal times have unequal memory.
    """
    most, why = worst_over_alone(context)
    held = {model: versions(log_of(context, model=model)) for model in context.values("model")}
    within = all(max(counts) <= len(counts) for counts in held.values())
    why += f"; versions by stage {listing(next(iter(held.values())))}"
    return measured(context, within and most <= PAR, why, PAR_WORDS)


def over_alone(context: Context) -> dict[str, dict[str, tuple[int, float, float]]]:
    """By model and servers: stages of the straight pipeline, its worst memory over data parallelism's, and in GB."""
    factors: dict[str, dict[str, tuple[int, float, float]]] = {model: {} for model in context.values("model")}
    for item in context.items:
        model, servers = (item.arm.labels[key] for key in ("model", "servers"))
        if item.log is not None and planned(item.log, "straight"):
            stages, alone = footprints(item.log, model)
            factors[model][servers] = (len(stages), max(stages) / alone, max(stages))
    return factors


@drawing(PAPER, "text_memory_over_stages")
def memory_over_stages(context: Context) -> Drawn:
    """The worst worker's memory, with a row per model and columns per cluster."""
    factors = over_alone(context)
    servers = [name for name in context.values("servers") if any(name in row for row in factors.values())]
    rows: list[dict[str, Any]] = []
    for model, by_servers in factors.items():
        row: dict[str, Any] = {"model": model}
        for name, (stages, share, size) in by_servers.items():
            row |= {f"{name} n": stages, f"{name} x": share, f"{name} GB": size}
        rows.append(row)
    cols = [Col("Model", "model")]
    for name in servers:
        cols += [Col("stages", f"{name} n", group=name), Col("GB", f"{name} GB", "{:.1f}", name)]
        cols += [Col("factor", f"{name} x", "{:.2f}", name)]
    room = context.paper.results["figure_18b"].reported["gpu_memory_gb"]
    notes = [
        f"GB: the worst worker's memory; the paper's V100s have {room} GB, so a pipeline of more does not fit them",
        "factor: the worst worker's memory over that of a worker of data parallelism",
        "equally many stages may be cut elsewhere on another cluster, for its links differ",
    ]
    return Drawn.tabled(context, rows, cols, notes)


@judge(PAPER, "text_memory_over_stages", "stays")
def stays(context: Context) -> Finding:
    """Holds if no model's ratio to data parallelism's memory is over a tenth above that with the fewest stages."""
    texts, grown = [], 0
    for model, by_servers in over_alone(context).items():
        if len(by_servers) < 2:
            continue  # the model has too few layers for a longer pipeline
        by_length = sorted(by_servers.items(), key=lambda pair: pair[1])
        few, first, _ = by_length[0][1]
        grown += any(share > PAR * first for _, (stages, share, _) in by_length if stages > few)
        texts.append(f"{model} " + ", ".join(f"{share:.2f} with {n} on {name}" for name, (n, share, _) in by_length))
    if not texts:
        raise NotLogged("no model has straight pipelines of different lengths")
    why = f"the worst worker over data parallelism, by stages and cluster: {'; '.join(texts)}"
    return measured(context, not grown, why, f"at most a tenth more than with the fewest, of {len(texts)} models")


SEVERAL_STAGES = "several stages, least predicted time"


def per_sample(log: RunLog, model: str) -> tuple[float, float]:
    """The MB sent per sample, by data parallelism and by the best plan with several stages."""
    alone, several = (plan_in(log, name, f"{model}, {name}") for name in (ALONE, SEVERAL))
    return alone["bytes_per_sample"] / 1e6, several["bytes_per_sample"] / 1e6


@drawing(PAPER, "figure_17")
def figure_17(context: Context) -> Drawn:
    """Two bars per model: the bytes per sample of data parallelism and of the best plan with several stages."""
    rows = []
    for model, log in by_model(context).items():
        title = f"{model}\n({config_of(log, SEVERAL)})"
        for bar, size in zip(("data parallelism", SEVERAL_STAGES), per_sample(log, model), strict=True):
            rows.append({"model": title, "scheme": bar, "megabytes": size, "where": FOUR})
    if not rows:
        return not_logged("no plan is logged")
    y = Axis("megabytes", "communicated\nper sample (MB)")
    tints = COLOURS | {SEVERAL_STAGES: COLOURS["PipeDream"]}
    bars = Bars(y, "model", "scheme", panel="where", number="{:.1f}", x_title="plan in brackets", colours=tints)
    return Drawn.of(bars, rows)


@judge(PAPER, "figure_17", "far_less")
def far_less(context: Context) -> Finding:
    """Holds if for three models the plan sends at most half of data parallelism's bytes, our reading of "far less"."""
    pairs = {m: per_sample(log_of(context, model=m), m) for m in ("GNMT-8", "GNMT-16", "VGG-16")}
    text = ", ".join(f"{m} {b:.1f} MB against {a:.1f} MB" for m, (a, b) in pairs.items())
    return measured(context, all(b <= 0.5 * a for a, b in pairs.values()), text, "'far less' is read as at most half")


@judge(PAPER, "figure_17", "resnet_more")
def resnet_more(context: Context) -> Finding:
    """Holds if for ResNet-50 the best plan with several stages sends more bytes than data parallelism."""
    alone, several = per_sample(log_of(context, model="ResNet-50"), "ResNet-50")
    why = f"{several:.2f} MB against {alone:.2f} MB"
    return measured(context, several > alone, why, "none: more", model="ResNet-50")


def at_depths(context: Context) -> dict[int, Row]:
    """The straight plan's rows, by pipeline depth (minibatches in flight)."""
    log = context.log()
    rows = log.rows if log else []
    return {row["depth"]: row for row in rows if row["what"] == "plan" and "depth" in row}


def all_depths(context: Context) -> dict[int, Row]:
    """`at_depths` for a judge. Raises `NotLogged` if a depth is missing."""
    rows = at_depths(context)
    missing = [depth for depth in DEPTHS if depth not in rows]
    if missing:
        raise NotLogged(f"the depth {missing[0]} is not logged")
    return rows


def rates_by_depth(context: Context) -> dict[int, float]:
    """GNMT-8's samples per second by pipeline depth. Raises `NotLogged` if a depth is missing."""
    return {depth: row["samples_per_second"] for depth, row in all_depths(context).items()}


def depth_name(depth: int) -> str:
    """A pipeline depth's name in the figures."""
    return "1 (no pipelining)" if depth == 1 else str(depth)


@drawing(PAPER, "figure_18a")
def figure_18a(context: Context) -> Drawn:
    """GNMT-8's throughput, a bar per pipeline depth."""
    rows = [
        {"depth": depth_name(depth), "samples_per_second": row["samples_per_second"], "model": GNMT}
        for depth, row in at_depths(context).items()
    ]
    if not rows:
        return not_logged("no depth is logged")
    y = Axis("samples_per_second", "throughput (samples/s)")
    title = "pipeline depth (minibatches in flight)"
    return Drawn.of(Bars(y, "depth", panel="model", number="{:.0f}", x_title=title), rows)


@judge(PAPER, "figure_18a", "grows_to_noam")
def grows_to_noam(context: Context) -> Finding:
    """Holds if throughput grows by at least 5 % from no pipelining to depth 2, and from 2 to 4."""
    rates = rates_by_depth(context)
    holds = all(rates[b] >= 1.05 * rates[a] for a, b in pairwise((1, 2, NOAM)))
    return measured(context, holds, throughputs(rates), "each step by at least 5 %")


@judge(PAPER, "figure_18a", "saturates")
def saturates(context: Context) -> Finding:
    """Holds if depths 4 and 7 have the highest throughputs and these differ by at most a tenth."""
    rates = rates_by_depth(context)
    highest = min(rates[4], rates[7]) > max(rate for depth, rate in rates.items() if depth not in (4, 7))
    gain = rates[7] / rates[NOAM]
    why = f"{throughputs(rates)}; from 4 to 7 {100 * (gain - 1):+.1f} %"
    words = "4 and 7 are alike within a tenth, as simulated"
    return measured(context, highest and 1 / 1.1 <= gain <= 1.1, why, words)


def throughputs(rates: dict[int, float]) -> str:
    """Throughputs by depth, in words."""
    return "samples per second by depth " + ", ".join(f"{depth_name(d)}: {rate:.0f}" for d, rate in rates.items())


@drawing(PAPER, "figure_18b")
def figure_18b(context: Context) -> Drawn:
    """GNMT-8's memory: a group of bars per stage, a bar per pipeline depth."""
    rows = [
        {
            "stage": f"stage {stage}",
            "depth": "no pipelining" if depth == 1 else f"depth {depth}",
            "gigabytes": size / 1e9,
            "model": GNMT,
        }
        for depth, row in at_depths(context).items()
        for stage, size in enumerate(row["memory"])
    ]
    if not rows:
        return not_logged("no depth is logged")
    y = Axis("gigabytes", "memory per GPU (GB)")
    return Drawn.of(Bars(y, "stage", "depth", panel="model", number="{:.1f}"), rows)


@judge(PAPER, "figure_18b", "memory_grows")
def memory_grows(context: Context) -> Finding:
    """Holds if on every stage each further stashed minibatch adds the memory of one version, weights and activations.

    Without pipelining a stage holds one version and its gradients, which are as large as its weights; so one version is
    that memory minus the weights. The versions counted in this way must be those logged, must not fall with depth, and
    on the first stage must be the minibatches in flight.
    """
    rows = all_depths(context)
    holds, held = True, {}
    for stage, description in enumerate(rows[1]["stages"]):
        once = rows[1]["memory"][stage]
        version = once - description["weight_bytes"]
        counts = [1 + (rows[depth]["memory"][stage] - once) / version for depth in (2, 4, 7)]
        held[stage] = [round(count, 2) for count in counts]
        logged = [rows[depth]["versions"][stage] for depth in (2, 4, 7)]
        holds &= all(abs(a - b) < 0.005 for a, b in zip(counts, logged, strict=True))
        holds &= all(a <= b for a, b in pairwise(counts))
    holds &= held[0] == [2, 4, 7]
    sizes = ", ".join(f"{rows[depth]['memory'][0] / 1e9:.2f}" for depth in DEPTHS)
    versions = "; ".join(f"{stage}: {', '.join(f'{count:g}' for count in held[stage])}" for stage in held)
    why = f"versions held at depths 2, 4, 7 by stage {versions}; GB of stage 0 from none to 7, counted: {sizes}"
    return measured(context, holds, why, "half a hundredth of a version")


@judge(PAPER, "figure_18b", "stages_differ")
def stages_differ(context: Context) -> Finding:
    """Holds if without pipelining the largest stage needs at least a tenth more memory than the smallest."""
    held = [size / 1e9 for size in all_depths(context)[1]["memory"]]
    why = "GB per stage: " + ", ".join(f"{size:.2f}" for size in held)
    return measured(context, max(held) >= PAR * min(held), why, "the largest is at least a tenth above the smallest")


PAPERS_PLAN = "ours, the paper's plan"


@drawing(PAPER, "text_communication_reduction")
def communication(context: Context) -> Drawn:
    """The percentage of data parallelism's bytes that the paper's plan and our plans save."""

    def percent(entry: Entry, reading: str) -> float | None:
        share = saved(entry.log, reading)
        return None if share is None else 100 * share

    cols = [
        Col("Model", lambda e: e.paper["model"] + (f" ({e.note})" if e.note else "")),
        Col("Servers", lambda e: e.paper["servers"]),
        Col("paper (%)", lambda e: context.result.reported.get(e.paper["model"]), "{:.0f}"),
        Col("plan", lambda e: e.paper["config"], group=PAPERS_PLAN),
        Col("saved (%)", lambda e: percent(e, e.papers), "{:.0f}", PAPERS_PLAN),
        Col("plan", lambda e: e.config(PRINTED), group="ours, recurrence as printed"),
        Col("saved (%)", lambda e: percent(e, PRINTED), "{:.0f}", "ours, recurrence as printed"),
        Col("plan", lambda e: e.config(RING), group="ours, a ring's cost"),
        Col("saved (%)", lambda e: percent(e, RING), "{:.0f}", "ours, a ring's cost"),
        Col("plan", lambda e: e.config(SEVERAL), group=SEVERAL_STAGES),
        Col("saved (%)", lambda e: percent(e, SEVERAL), "{:.0f}", SEVERAL_STAGES),
    ]
    notes = [note for entry in entries(context) for note in entry.small_minibatches((PRINTED, RING, SEVERAL))]
    return Drawn.tabled(context, entries(context, extra=True), cols, notes)


def savings(context: Context, model: str) -> tuple[list[float], str]:
    """The shares that the paper's plan saves in all rows of a model; and in words, with those of our plans."""
    rows = [entry for entry in entries(context) if entry.paper["model"] == model]
    shares = [need(saved(entry.log, entry.papers), entry.name) for entry in rows]
    texts = [
        f"{100 * share:.1f} % by {entry.paper['config']} on {entry.paper['servers']} ({ours(entry)})"
        for entry, share in zip(rows, shares, strict=True)
    ]
    return shares, ", ".join(texts) + unpublished(context, model)


def ours(entry: Entry) -> str:
    """The shares that the plans of our searches save, in words."""
    shares = {entry.config(reading): saved(entry.log, reading) for reading in READINGS}
    return "our plans: " + ", ".join(
        f"{config} {100 * share:.1f} %" for config, share in shares.items() if share is not None
    )


def saves_more(model: str) -> Judge:
    """A judge that decides whether the paper's plan saves more than 85 % of the bytes in every row of a model."""

    def judged(context: Context) -> Finding:
        shares, text = savings(context, model)
        return measured(context, min(shares) > 0.85, text, "none: more", what="plan", model=model)

    return judged


def saves_about(model: str) -> Judge:
    """A judge that decides whether the paper's plan saves the printed share in every row of a model, as rounded."""

    def judged(context: Context) -> Finding:
        shares, text = savings(context, model)
        printed = context.result.reported[model]
        holds = all(abs(100 * share - printed) <= 0.5 for share in shares)
        return measured(context, holds, f"printed {printed} %; ours: {text}", PRINTED_WORDS, what="plan", model=model)

    return judged


judge(PAPER, "text_communication_reduction", "vgg16_85")(saves_more("VGG-16"))
judge(PAPER, "text_communication_reduction", "awd_lm_85")(saves_more("AWD-LM"))
judge(PAPER, "text_communication_reduction", "awd_lm_88")(saves_about("AWD-LM"))
judge(PAPER, "text_communication_reduction", "s2vt_85")(saves_about("S2VT"))
