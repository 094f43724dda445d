"""Pipelines and data parallelism measured on real workers over links of chosen speeds.

It asks the question of Figures 1 and 12, but is not a result of the paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import all_above, measured
from pipelag.results.logs import RunLog
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipedream"
ARMS = ("pipeline", "data parallelism")
HOW = ("measured", "simulated by discrete events")
BLOCKS = "none: every timed block counts; where they lie on both sides, the claim cannot be judged"
STYLES = {f"{arm}, {how}": (1 - i, j) for i, arm in enumerate(ARMS) for j, how in enumerate(HOW)}


def blocks(log: RunLog | None, arm: str, measured: bool) -> dict[float, list[float]]:
    """The samples per second of every block, by the link's Gbit/s.

    measured: the blocks measured, or else those simulated.
    """
    by_gbit: dict[float, list[float]] = {}
    for row in log.rows if log else []:
        if row["arm"] == arm and row["measured"] == measured:
            by_gbit.setdefault(row["gbit"], []).append(row["samples_per_second"])
    return dict(sorted(by_gbit.items()))


def rates(log: RunLog | None, arm: str, measured: bool) -> dict[float, float]:
    """The median of `blocks`, in samples per second by Gbit/s."""
    return {gbit: median(values) for gbit, values in blocks(log, arm, measured).items()}


@drawing(PAPER, "links")
def links(context: Context) -> Drawn:
    """Throughput against the link's speed, a panel per model: both methods, measured and simulated."""
    rows: list[dict[str, Any]] = []
    reasons: list[str] = []
    for model in context.values("model"):
        log = context.log(model=model)
        if log is None:
            continue
        reason = log.summary.get("why_not")
        reasons += [reason] if reason else []
        widths = {i.arm.spec.model.options.get("width", 1) for i in context.select(model=model) if i.arm.spec.model}
        wide = "".join(f" of width {width:g}" for width in widths if width != 1)
        panel = f"{model}{wide}, {log.summary['workers']} workers" + (" (simulated only)" if reason else "")
        rows += [
            {"panel": panel, "method": f"{arm}, {how}", "gbit": gbit, "samples_per_second": rate}
            for arm in ARMS
            for how in HOW
            for gbit, block_rates in blocks(log, arm, how == "measured").items()
            for rate in block_rates
        ]
    if not rows:
        return not_logged("no link has a log")
    ticks = tuple(sorted({row["gbit"] for row in rows}))
    x = Axis("gbit", "link (Gbit/s)", log=True, ticks=ticks)
    y = Axis("samples_per_second", "throughput (samples/s)", limits=(0, None))
    drawn = Drawn.of(Lines(x, y, line="method", panel="panel", styles=STYLES), rows, note=spread_of(rows))
    if reasons:
        drawn.figure.suptitle(f"Not measured: {reasons[0]}", fontsize=6, color="#7F7F7F")
    return drawn


def spread_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """How the figure shows the blocks of a link, in a sentence; empty if no link has several."""
    counts = Counter((row["panel"], row["method"], row["gbit"]) for row in rows)
    many = sorted({count for count in counts.values() if count > 1})
    number = " to ".join(f"{count}" for count in dict.fromkeys((many[0], many[-1]))) if many else ""
    return f"Lines are means of {number} timed blocks, bands one standard deviation." if many else ""


def measured_blocks(context: Context, model: str) -> tuple[dict[float, list[float]], dict[float, list[float]]]:
    """A model's measured blocks: the pipeline's and data parallelism's."""
    log = log_of(context, model=model)
    return blocks(log, ARMS[0], True), blocks(log, ARMS[1], True)


def measured_rates(context: Context, model: str) -> tuple[dict[float, float], dict[float, float]]:
    """A model's measured rates: the pipeline's and data parallelism's. Raises `NotLogged` if nothing was measured."""
    log = log_of(context, model=model)
    pair = rates(log, ARMS[0], True), rates(log, ARMS[1], True)
    if not all(pair):
        raise NotLogged(f"nothing was measured: {log.summary.get('why_not')}")
    return pair


def listed(pipe: dict[float, float], parallel: dict[float, float]) -> str:
    """The pipeline's speedup over data parallelism by link, in words."""
    return ", ".join(f"{pipe[gbit] / parallel[gbit]:.2f}x at {gbit:g} Gbit/s" for gbit in pipe)


@judge(PAPER, "links", "loses_less")
def loses_less(context: Context) -> Finding:
    """Holds if VGG-16's pipeline keeps a larger share of its rate on the slowest link than data parallelism.

    The share is the rate on the slowest link over that on the fastest. Every pair of the pipeline's blocks must keep
    more than every pair of data parallelism's; overlap leaves the claim open.
    """
    pipe, parallel = measured_rates(context, "VGG-16")
    left = [rate[min(rate)] / rate[max(rate)] for rate in (pipe, parallel)]
    text = f"of the rate at {max(pipe):g} Gbit/s, at {min(pipe):g} the pipeline keeps {100 * left[0]:.0f} %, "
    why = text + f"data parallelism {100 * left[1]:.0f} %"
    shares = [
        [slow / fast for slow in by_gbit[min(by_gbit)] for fast in by_gbit[max(by_gbit)]]
        for by_gbit in measured_blocks(context, "VGG-16")
    ]
    return measured(context, all_above(*shares), why, BLOCKS, model="VGG-16")


def at_the_slowest(context: Context, model: str) -> tuple[list[float], list[float], str]:
    """The blocks on the slowest link, the pipeline's and data parallelism's; and all speedups in words."""
    words = f"the pipeline has {listed(*measured_rates(context, model))}"
    pipe, parallel = measured_blocks(context, model)
    return pipe[min(pipe)], parallel[min(parallel)], words


@judge(PAPER, "links", "ahead_when_slow")
def ahead_when_slow(context: Context) -> Finding:
    """Holds if on the slowest link every block of VGG-16's pipeline is faster than every one of data parallelism's."""
    pipe, parallel, words = at_the_slowest(context, "VGG-16")
    return measured(context, all_above(pipe, parallel), words, BLOCKS, model="VGG-16")


@judge(PAPER, "links", "few_weights")
def few_weights(context: Context) -> Finding:
    """Holds if on the slowest link every block of ResNet-20's data parallelism is faster than every pipelined one."""
    pipe, parallel, words = at_the_slowest(context, "ResNet-20")
    return measured(context, all_above(parallel, pipe), words, BLOCKS, model="ResNet-20")


@judge(PAPER, "links", "predicted")
def predicted(context: Context) -> Finding:
    """Holds if the simulation names the faster method on every link where measured rates differ by more than 15 %.

    The verdict also gives the relative errors of the simulated rates.
    """
    wrong, errors = [], []
    for model in context.values("model"):
        real = measured_rates(context, model)
        foreseen = [rates(log_of(context, model=model), arm, False) for arm in ARMS]
        for gbit in real[0]:
            a, b = (rate[gbit] for rate in real)
            c, d = (rate[gbit] for rate in foreseen)
            errors += [abs(c / a - 1), abs(d / b - 1)]
            if max(a, b) > 1.15 * min(a, b) and (a > b) != (c > d):
                wrong.append(f"{model} at {gbit:g} Gbit/s")
    text = f"the timed rates are off by {100 * median(errors):.0f} % (median), at most {100 * max(errors):.0f} %"
    why = text + (f"; the wrong one is foreseen for {', '.join(wrong)}" if wrong else "")
    return measured(context, not wrong, why, "rates within 15 % of one another count as equal")
