"""Figures 1 and 12, table 3: the communication overhead of data parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import agreed, all_of, measured
from pipelag.results.plans import ALONE, PRINTED_WORDS, READINGS, SPEED_WORDS, near, needed, planned
from pipelag.results.verdict import Finding, judge, log_of, need

PAPER = "pipedream"
MOST = 32  # GPUs
VISIBLE = 1.0  # the smallest difference that counts, in percentage points
VISIBLE_WORDS = "a percentage point: less cannot be read off the figure"
SLOW, FAST = (
    "8x 1080Ti, PCIe, 25 Gbps",
    "8x V100, NVLink, 25 Gbps",
)  # two kinds of servers in figure 1 that differ only in their GPUs and the links inside


def overheads(context: Context, **labels: str) -> dict[int, float]:
    """Data parallelism's overhead by number of GPUs: the percentage of its time spent waiting for gradients."""
    rows = [row for row in log_of(context, **labels).rows if row.get("overhead") is not None]
    return {row["workers"]: percent(row) for row in rows}


def percent(row: Mapping[str, float]) -> float:
    """A row's overhead in percent, at least 0: rounding of summed times can make it slightly negative."""
    return max(0.0, 100 * row["overhead"])


def at(points: Mapping[int, float], gpus: int, what: str) -> float:
    """The overhead on this many GPUs. Raises `NotLogged` if it is missing."""
    return need(points.get(gpus), f"{what} on {gpus} GPUs")


def overhead_lines(context: Context, key: str, height: float, of: str = "") -> Drawn:
    """Overhead against GPUs: a panel per kind of server, a line per value of a label.

    key: the label. of: a prefix of the lines' names.
    """
    rows = [
        {
            "servers": item.arm.labels["arm"],
            key: of + item.arm.labels[key],
            "gpus": row["workers"],
            "percent": percent(row),
        }
        for item in context.items
        if item.log is not None
        for row in item.log.rows
        if row.get("overhead") is not None
    ]
    x = Axis("gpus", "GPUs", log=True, ticks=(1, 2, 4, 8, 16, 32))
    y = Axis("percent", "overhead (% of time)", limits=(0, 100))
    order = context.values("arm")
    rows.sort(key=lambda row: order.index(row["servers"]))
    return Drawn.of(Lines(x, y, line=key, panel="servers", shared_y=True, height=height), rows)


@drawing(PAPER, "figure_1")
def figure_1(context: Context) -> Drawn:
    """Overhead against GPUs: a panel per kind of server, a line per model."""
    return overhead_lines(context, "model", 2.5)


@drawing(PAPER, "figure_12")
def figure_12(context: Context) -> Drawn:
    """GNMT-8's overhead against GPUs: a panel per kind of server, a line per precision."""
    return overhead_lines(context, "precision", 2.3, "GNMT-8, ")


def growth(context: Context, servers: str, up_to: int) -> tuple[list[str], list[str]]:
    """The models whose overhead grows on these servers, and the others, in words.

    Growing means never falling, and rising by at least a percentage point from 1 to `up_to` GPUs.
    """
    growing: list[str] = []
    others: list[str] = []
    for model in context.values("model"):
        points = {n: share for n, share in overheads(context, model=model, arm=servers).items() if n <= up_to}
        values = [points[n] for n in sorted(points)]
        rises = at(points, up_to, model) - at(points, 1, model) >= VISIBLE
        falls = any(b < a - 1e-9 for a, b in pairwise(values))
        where = f"{model} ({values[0]:.1f} to {values[-1]:.1f} %)"
        (growing if rises and not falls else others).append(where)
    return growing, others


@judge(PAPER, "figure_1", "grows")
def grows(context: Context) -> Finding:
    """Holds if the overhead of every model grows up to 32 GPUs, on every kind of server (`growth`)."""
    count, flat = 0, []
    for servers in context.values("arm"):
        growing, others = growth(context, servers, MOST)
        count += len(growing)
        flat += [f"{other} on {servers}" for other in others]
    why = f"{count} of {count + len(flat)} lines grow" + (f"; not: {', '.join(flat)}" if flat else "")
    return measured(context, not flat, why, VISIBLE_WORDS)


@judge(PAPER, "figure_1", "grows_inside")
def grows_inside(context: Context) -> Finding:
    """Holds if the overhead of every model grows from 1 to 8 GPUs inside a server with NVLink (`growth`)."""
    growing, others = growth(context, FAST, 8)
    why = f"1 to 8 GPUs, growing: {', '.join(growing) or 'none'}; not: {', '.join(others) or 'none'}"
    return measured(context, not others, why, VISIBLE_WORDS, arm=FAST)


@judge(PAPER, "figure_1", "jumps_between_servers")
def jumps(context: Context) -> Finding:
    """Holds if for every model and kind of server the overhead jumps from one full server to two.

    A jump is at least a percentage point, and at least twice the rise at any later doubling of the GPUs.
    """
    texts, holds = [], True
    for servers in context.values("arm"):
        size = int(servers.split("x")[0])
        for model in context.values("model"):
            points = overheads(context, model=model, arm=servers)
            values = [at(points, n, model) for n in (size, 2 * size, 4 * size, 8 * size) if n <= MOST]
            jump, *later = (b - a for a, b in pairwise(values))
            spikes = jump >= VISIBLE and jump >= 2 * max(later)
            holds &= spikes
            texts += [] if spikes else [f"{model} on {servers} (+{jump:.1f}, then +{max(later):.1f})"]
    total = len(context.values("arm")) * len(context.values("model"))
    why = f"{total - len(texts)} of {total} lines jump and flatten" + (f"; not: {', '.join(texts)}" if texts else "")
    words = "the jump is at least a percentage point, and at least twice the rise of any later doubling"
    return measured(context, holds, why, words)


@judge(PAPER, "figure_1", "dense_worse")
def dense_worse(context: Context) -> Finding:
    """Holds if at 32 GPUs, on every kind of server, every other model's overhead is above ResNet-50's.

    By at least a percentage point.
    """
    texts, holds = [], True
    for servers in context.values("arm"):
        shares = {m: at(overheads(context, model=m, arm=servers), MOST, m) for m in context.values("model")}
        conv = shares.pop("ResNet-50")
        holds &= min(shares.values()) >= conv + VISIBLE
        texts.append(f"{servers}: ResNet-50 {conv:.1f}, " + ", ".join(f"{m} {v:.1f} %" for m, v in shares.items()))
    return measured(context, holds, f"{MOST} GPUs, {'; '.join(texts)}", VISIBLE_WORDS)


@judge(PAPER, "figure_1", "faster_gpus_worse")
def faster_worse(context: Context) -> Finding:
    """Holds if at 32 GPUs every model's overhead is larger with V100s than with 1080Tis, by at least a point.

    The servers compared have eight GPUs and 25 Gbps between them.
    """
    pairs = {
        model: tuple(at(overheads(context, model=model, arm=servers), MOST, model) for servers in (SLOW, FAST))
        for model in context.values("model")
    }
    text = ", ".join(f"{model} {a:.1f} and {b:.1f} %" for model, (a, b) in pairs.items())
    holds = all(b >= a + VISIBLE for a, b in pairs.values())
    return measured(context, holds, f"{MOST} GPUs, 1080Ti and V100: {text}", VISIBLE_WORDS)


@judge(PAPER, "figure_1", "as_high_as_90")
def as_high_as_90(context: Context) -> Finding:
    """Holds if the highest overhead at 32 GPUs is within 5 percentage points of the printed 90 %, which is in tens."""
    shares = {
        f"{model} on {servers}": at(overheads(context, model=model, arm=servers), MOST, model)
        for servers in context.values("arm")
        for model in context.values("model")
    }
    highest = max(shares, key=lambda name: shares[name])
    printed = context.result.reported["max_overhead_percent_32_gpus"]
    words = "5 percentage points: the paper's figure is in tens"
    return measured(context, abs(shares[highest] - printed) <= 5, f"{shares[highest]:.1f} %: {highest}", words)


@judge(PAPER, "figure_12", "half_precision_worse")
def half_worse(context: Context) -> Finding:
    """Holds if fp16's overhead is above fp32's at every number of GPUs above one, on both kinds of server.

    At 32 GPUs by at least a percentage point.
    """
    texts, holds = [], True
    for servers in context.values("arm"):
        single, half = (overheads(context, precision=precision, arm=servers) for precision in ("fp32", "fp16"))
        gpus = [n for n in sorted(single) if n > 1]
        most = at(half, MOST, "fp16") - at(single, MOST, "fp32")
        holds &= most >= VISIBLE and all(at(half, n, "fp16") > single[n] for n in gpus)
        texts.append(f"{servers}: " + ", ".join(f"{half[n]:.1f} and {single[n]:.1f} % on {n}" for n in gpus))
    words = f"higher everywhere, and on {MOST} GPUs by {VISIBLE_WORDS}"
    return measured(context, holds, f"fp16 and fp32, {'; '.join(texts)}", words)


@judge(PAPER, "figure_12", "speedup_carries_over")
def carries_over(context: Context) -> Finding:
    """Holds if the found plans' speedups in fp16 are at least those in fp32, on both kinds of server.

    Both forms of the cost must agree. If a plan is not faster than data parallelism in fp32, there is no speedup that
    could carry over, which leaves the claim open.
    """
    texts, nothing = [], []
    carries: dict[str, list[bool | None]] = {reading: [] for reading in READINGS}
    for servers in context.values("arm"):
        gains = {}
        for precision in ("fp32", "fp16"):
            log = log_of(context, precision=precision, arm=servers)
            gains[precision] = [needed(log, ALONE, plan, f"{plan}, {servers}") for plan in READINGS]
        for reading, single, half in zip(READINGS, gains["fp32"], gains["fp16"], strict=True):
            faster = single >= 1.005
            carries[reading].append(half >= single - 0.005 if faster else None)
            nothing += [] if faster else [f"{servers} {single:.2f}x"]
        texts.append(f"{servers}: " + ", ".join(f"{name} {a:.2f}x ({b:.2f}x)" for name, (a, b) in gains.items()))
    why = f"over data parallelism (by a ring's cost): {'; '.join(texts)}"
    why += f"; no speedup in fp32 that could carry over: {', '.join(nothing)}" if nothing else ""
    return measured(context, agreed(*map(all_of, carries.values())), why, PRINTED_WORDS)


def cloud_ratio(context: Context, row: Mapping[str, Any], precision: str) -> float | None:
    """The timed epoch on Cluster-B over that on the dedicated cluster; None without logs."""
    name = f"data parallel over {row['v100s']}"
    labels = {"model": row["model"], "precision": precision}
    here, there = (planned(context.log(**labels, arm=arm), name) for arm in ("Cluster-B", "MLPerf"))
    return here["timed"] / there["timed"] if here and there else None


@drawing(PAPER, "table_3")
def table_3(context: Context) -> Drawn:
    """The cloud's slowdown for the paper's three models.

    In fp16, as in the code of the MLPerf entries, and in fp32, as in the paper's other experiments.
    """

    def ours(precision: str) -> Any:
        return lambda row: cloud_ratio(context, row, precision)

    cols = [
        Col("Model", "model"),
        Col("V100s", "v100s"),
        Col("paper", "ratio", "{:.2f}x"),
        *(Col(precision, ours(precision), "{:.2f}x", "ours") for precision in context.values("precision")),
    ]
    notes = [
        "the dedicated cluster is taken to have four 100 Gbps links per server; devices are data sheets. The entries' "
        "code is fp16, and SSD's sums gradients after the backward; the others overlap the two",
        "SSD (ResNet-34, 300 x 300) and Mask R-CNN (ResNet-50 with a feature pyramid, 800 x 1088, 512 given regions of "
        "an image) are their parts with weights: anchors, matching, suppression and losses are left out with their "
        "time, which makes our ratios larger; NCCL's rate below a link's and slow servers are left out too, which "
        "makes them smaller",
    ]
    return Drawn.tabled(context, context.result.reported, cols, notes)


@judge(PAPER, "table_3", "cloud_slower")
def cloud_slower(context: Context) -> Finding:
    """Holds if every model is slower on the cloud by more than rounding, in fp16 as in the MLPerf entries' code."""
    texts, ratios = [], []
    for row in context.result.reported:
        half = need(cloud_ratio(context, row, "fp16"), f"{row['model']} in fp16")
        single = cloud_ratio(context, row, "fp32")
        ratios.append(half)
        texts.append(f"{row['model']} {half:.2f}x" + (f" ({single:.2f}x in fp32)" if single else ""))
    return measured(context, min(ratios) >= 1.005, ", ".join(texts), f"{PRINTED_WORDS}: more than 1.00x")


@judge(PAPER, "table_3", "ratios")
def cloud_ratios(context: Context) -> Finding:
    """Holds if every model's ratio is the printed one within a factor of 1.2, in fp16 like the MLPerf entries' code."""
    pairs = [
        (row, need(cloud_ratio(context, row, "fp16"), f"{row['model']} in fp16")) for row in context.result.reported
    ]
    inside = sum(near(ratio, row["ratio"]) for row, ratio in pairs)
    words = ", ".join(f"{row['model']} {ratio:.2f}x (printed {row['ratio']:g}x)" for row, ratio in pairs)
    return measured(context, inside == len(pairs), f"{inside} of {len(pairs)}: {words}", SPEED_WORDS)
