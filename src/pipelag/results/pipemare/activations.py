"""Figure 9, tables 4 and 5, and the costs of T2 and of recomputation: counted over schedules and in training steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log2
from typing import Any

from pipelag.report.frames import Axis, Bars
from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import exact, listing
from pipelag.results.pipemare.costs import step_memory
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "pipemare"


@drawing(PAPER, "figure_9")
def figure_9(context: Context) -> Drawn:
    """A bar per stage: the activations that it caches with recomputation, and how many more it caches without."""
    log = context.log()
    if log is None:
        return not_logged("the counts have no log")
    (row,) = log.rows
    counts = enumerate(zip(row["with"], row["without"], strict=True), start=1)
    rows = [
        {"stage": stage, "kind": kind, "activations": number}
        for stage, (mended, plain) in counts
        for kind, number in (("with recomputation", mended), ("added where nothing is recomputed", plain - mended))
    ]
    y = Axis("activations", "cached activations (microbatches)")
    return Drawn.of(Bars(y, group="stage", stack="kind", number="{:.0f}", x_title="stage"), rows)


def heads(row: dict[str, Any]) -> list[bool]:
    """For each stage, whether it is the head of a segment: its first stage."""
    return [stage % row["segment"] == 0 for stage in range(row["stages"])]


@judge(PAPER, "figure_9", "heads_only")
def heads_only(context: Context) -> Finding:
    """Holds if segment heads cache as many activations with recomputation as without, and all other stages few.

    Few is below twice the stages of a segment, its round trip: such a queue does not grow with the pipeline.
    """
    (row,) = log_of(context).rows
    first = [held for held, head in zip(row["with"], heads(row), strict=True) if head]
    inner = [held for held, head in zip(row["with"], heads(row), strict=True) if not head]
    plain = [held for held, head in zip(row["without"], heads(row), strict=True) if head]
    text = f"segment heads {', '.join(map(str, first))}; the others at most {max(inner)}"
    why = "long: as without recomputation; not long: below twice the stages of a segment"
    return exact(first == plain and max(inner) < 2 * row["segment"], text, why)


@judge(PAPER, "figure_9", "sum_far_below")
def sum_far_below(context: Context) -> Finding:
    """Holds if all stages together cache at most half as many activations with recomputation as without."""
    (row,) = log_of(context).rows
    text = f"{sum(row['with'])} against {sum(row['without'])}"
    return exact(sum(row["with"]) <= sum(row["without"]) / 2, text, "far below: at most half")


@judge(PAPER, "figure_9", "as_appendix")
def as_appendix(context: Context) -> Finding:
    """Holds if every stage caches exactly as many activations as the appendix prints.

    The j-th stage of a segment of S recomputes 2(S-j) cycles before its gradient arrives. It holds the activations in
    the first and in the last of these cycles, so that 2(S-j)+1 are cached.
    """
    (row,) = log_of(context).rows
    P, S = row["stages"], row["segment"]
    plain = [2 * (P - i) + 1 for i in range(1, P + 1)]
    mended = [count if i % S == 0 else 2 * (S - 1 - i % S) + 1 for i, count in enumerate(plain)]
    holds = row["without"] == plain and row["with"] == mended
    return exact(holds, f"without {listing(row['without'])}; with {listing(row['with'])}")


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent by which values grow at large sizes: the slope of the last step in log-log coordinates."""
    return log2(values[-1] / values[-2]) / log2(sizes[-1] / sizes[-2])


def exponents(context: Context, what: str) -> tuple[float, float]:
    """Growth exponents of the cached activations over P or over N: (without, with) recomputation."""
    rows = log_of(context, what=what).rows
    sizes = [row["microbatches"] or row["stages"] for row in rows]
    without, mended = (exponent(sizes, [sum(row[key]) for row in rows]) for key in ("without", "with"))
    return without, mended


@drawing(PAPER, "table_4")
def table_4(context: Context) -> Drawn:
    """The paper's exponents beside those of our counts."""

    def counted(which: int) -> Any:
        return lambda row: exponents(context, row["mode"])[which] if context.log(what=row["mode"]) else None

    cols = [
        Col("Pipeline", "mode"),
        Col("grows with", "in"),
        Col("paper", "without", "{:g}", "exponent without recomputation"),
        Col("counted", counted(0), "{:.2f}", "exponent without recomputation"),
        Col("paper", "with", "{:g}", "exponent with"),
        Col("counted", counted(1), "{:.2f}", "exponent with"),
    ]
    return Drawn.tabled(context, context.result.reported, cols)


def exponents_of(context: Context, mode: str) -> Finding:
    """Judge whether the counts grow with the printed exponents, to 0.05.

    The tolerance is for terms of lower order, which counts at finite sizes still contain.
    """
    row = next(row for row in context.result.reported if row["mode"] == mode)
    ours = exponents(context, mode)
    holds = abs(ours[0] - row["without"]) <= 0.05 and abs(ours[1] - row["with"]) <= 0.05
    text = f"{row['in']}^{ours[0]:.3f} without, {row['in']}^{ours[1]:.3f} with"
    return exact(holds, text, "0.05, of a fit to the last fourfold step, where lower orders are left")


judge(PAPER, "table_4", "stages_exponent")(partial(exponents_of, mode="PipeMare"))
judge(PAPER, "table_4", "microbatches_exponent")(partial(exponents_of, mode="GPipe"))


def ratios(context: Context) -> dict[int, float]:
    """Activations cached with recomputation over those without, summed over the stages, by number of stages."""
    return {row["stages"]: sum(row["with"]) / sum(row["without"]) for row in log_of(context).rows}


@drawing(PAPER, "table_5")
def table_5(context: Context) -> Drawn:
    """The printed ratios, 1/sqrt(P) and the counted ratios."""
    counted = ratios(context) if context.log() else {}
    cols = [
        Col("Task", "dataset"),
        Col("P", "stages"),
        Col("paper", "with", "{:.3f}"),
        Col("1/sqrt(P)", lambda row: row["stages"] ** -0.5, "{:.3f}"),
        Col("counted over the schedule", lambda row: counted.get(row["stages"]), "{:.3f}"),
    ]
    notes = [
        "the paper's numbers compare orders of growth; counted, heads and inner stages each hold about P^(3/2) / 2"
    ]
    return Drawn.tabled(context, context.result.reported, cols, notes)


@judge(PAPER, "table_5", "one_over_root")
def one_over_root(context: Context) -> Finding:
    """Holds if each printed ratio is the counted one, to half a unit of its last digit."""
    by_stages = ratios(context)
    right = [row for row in context.result.reported if abs(by_stages[row["stages"]] - row["with"]) <= 5e-4]
    text = "counted " + ", ".join(f"P = {P}: {value:.3f} (1/sqrt(P) {P**-0.5:.3f})" for P, value in by_stages.items())
    return exact(len(right) == len(context.result.reported), text, "half a unit of the last printed digit")


def added(context: Context, arm: str) -> float:
    """How many percent T2's running average adds to weights, gradients and optimizer state."""
    base, average = step_memory(log_of(context, arm=arm))
    return 100 * average / base


@drawing(PAPER, "text_t2_memory")
def t2_buffer(context: Context) -> Drawn:
    """The memory that T2 adds, a row per optimizer."""
    cols = [
        Col("Optimizer", lambda arm: arm),
        Col("paper (%)", lambda arm: context.result.reported[arm]),
        Col("counted (%)", lambda arm: added(context, arm) if context.log(arm=arm) else None, "{:.1f}"),
    ]
    return Drawn.tabled(context, context.values("arm"), cols)


def buffer_of(context: Context, arm: str) -> Finding:
    """Judge whether T2 adds the printed percent, to half a percent."""
    value = added(context, arm)
    text = f"{value:.1f} % of the weights, gradients and state that a training step holds"
    return exact(abs(value - context.result.reported[arm]) <= 0.5, text, "half a unit of the last printed digit")


judge(PAPER, "text_t2_memory", "third")(partial(buffer_of, arm="SGD with momentum"))
judge(PAPER, "text_t2_memory", "quarter")(partial(buffer_of, arm="Adam"))


def share(context: Context, arm: str) -> tuple[float, float]:
    """(percent of all operations that a second forward takes, operations of a backward over those of a forward)."""
    (row,) = log_of(context, arm=arm).rows
    return 100 * row["forward"] / (2 * row["forward"] + row["backward"]), row["backward"] / row["forward"]


@drawing(PAPER, "text_recompute_compute_share")
def compute_share(context: Context) -> Drawn:
    """The share of recomputation in all operations, a row per model."""

    def counted(which: int) -> Any:
        return lambda arm: share(context, arm)[which] if context.log(arm=arm) else None

    cols = [
        Col("Model", lambda arm: arm),
        Col("backward over forward", counted(1), "{:.3f}"),
        Col("paper (%)", lambda arm: context.result.reported["share_percent"], "{}", "share of recomputation"),
        Col("counted (%)", counted(0), "{:.2f}", "share of recomputation"),
    ]
    notes = ["floating-point operations of convolutions and matrix products; recomputation is one more forward"]
    return Drawn.tabled(context, context.values("arm"), cols, notes)


@judge(PAPER, "text_recompute_compute_share", "a_quarter")
def a_quarter(context: Context) -> Finding:
    """Holds if recomputation takes the printed share of the counted operations, to half a percent, for every model."""
    shares = {arm: share(context, arm) for arm in context.values("arm")}
    text = ", ".join(f"{arm} {value:.2f} %, a backward {times:.2f} forwards" for arm, (value, times) in shares.items())
    printed = context.result.reported["share_percent"]
    return exact(all(abs(value - printed) <= 0.5 for value, _ in shares.values()), text, "about: half a percent")
