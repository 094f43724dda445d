"""Figure 1 and table 1: delays, utilisation and weight copies of the three pipelines, derived from their schedules."""

from __future__ import annotations

from math import ceil
from typing import Any

import pandas as pd

from pipelag.report.tables import Col, table
from pipelag.report.timelines import stacked
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import exact, listing
from pipelag.results.logs import Item, RunLog
from pipelag.results.timelines import busy_once_full
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "pipemare"


@drawing(PAPER, "figure_1")
def figure_1(context: Context) -> Drawn:
    """The timelines of the three pipelines on one axis."""
    panels = {}
    frames = []
    for arm in context.values("arm"):
        for log in context.logs(arm=arm):
            panels[arm] = (log.rows, [f"stage {stage}" for stage in range(1, 4)])
            frames.append(pd.DataFrame(log.rows).assign(method=arm))
    if not panels:
        return not_logged("the schedules have no logs")
    figure = stacked(panels, lambda row: str(1 + row["microbatch"]), "time (one pass of a microbatch = 1)")
    return Drawn(figure=figure, data=pd.concat(frames))


def steady(log: RunLog) -> bool:
    """Whether no worker idles while the pipeline is full, before it drains."""
    return busy_once_full(log)[0]


def log_of_method(context: Context, word: str) -> RunLog:
    """The log of the arm whose name begins with this word."""
    return log_of(context, arm=next(arm for arm in context.values("arm") if arm.startswith(word)))


def copies_held(log: RunLog) -> list[int]:
    """Per stage, the most weight versions that are needed at one time, counted over the logged passes.

    These are the live version, and those that a forward has read and that its backward will read again.
    """
    most = []
    for stage in range(1, log.summary["stages"] + 1):
        rows = [row for row in log.rows if row["kind"] in "FB" and row["stage"] == stage]
        ends = {number_of(row): row for row in rows if row["kind"] == "B"}
        spans = [
            (row["start"], ends[number_of(row)]["end"], row["reads"])
            for row in rows
            if row["kind"] == "F" and ends[number_of(row)]["stashed"]
        ]
        moments = sorted({row["start"] for row in rows})
        live = {now: sum(bool(row["writes"]) and row["end"] <= now for row in ends.values()) for now in moments}
        most.append(max(len({live[now], *(version for a, b, version in spans if a <= now < b)}) for now in moments))
    return most


def number_of(row: dict[str, Any]) -> int:
    """The number of a pass's microbatch, or of its minibatch where this goes through whole."""
    return int(row.get("microbatch", row["minibatch"]))


def held(log: RunLog) -> tuple[list[int], str]:
    """The copies that are counted, and a sentence with them, which names other counts that the method states."""
    counted, stated = copies_held(log), log.summary["weight_copies"]
    return counted, f"copies per stage {listing(counted)}" + (
        "" if counted == stated else f", of which the method says {listing(stated)}"
    )


@judge(PAPER, "figure_1", "gpipe_bubbles_one_copy")
def gpipe_bubbles(context: Context) -> Finding:
    """Holds if a worker of GPipe is idle while the pipeline is full, and each stage needs one weight copy."""
    log = log_of_method(context, "GPipe")
    copies, text = held(log)
    return exact(not steady(log) and set(copies) == {1}, f"idle {100 * log.summary['bubble']:.0f} %, {text}")


@judge(PAPER, "figure_1", "pipedream_copies_no_bubbles")
def pipedream_copies(context: Context) -> Finding:
    """Holds if no worker of PipeDream is idle once the pipeline is full, and some stage needs several weight copies."""
    log = log_of_method(context, "PipeDream")
    copies, text = held(log)
    return exact(steady(log) and max(copies) > 1, f"idle once full: {'no' if steady(log) else 'yes'}, {text}")


@judge(PAPER, "figure_1", "pipemare_neither")
def pipemare_neither(context: Context) -> Finding:
    """Holds if no worker of PipeMare is idle once the pipeline is full, and each stage needs one weight copy."""
    log = log_of_method(context, "PipeMare")
    copies, text = held(log)
    return exact(steady(log) and set(copies) == {1}, f"idle once full: {'no' if steady(log) else 'yes'}, {text}")


def formula(P: int, N: int) -> list[int]:
    """The delays ceil((2(P-i)+1)/N) of stages i = 1..P, in updates (appendix A.1)."""
    return [ceil((2 * (P - i) + 1) / N) for i in range(1, P + 1)]


def expected(item: Item) -> dict[str, Any]:
    """What appendix A.1's formulas give for an arm of table 1; `more_copies` are those besides the live weights."""
    P, N, arm = int(item.arm.labels["P"]), int(item.arm.labels["N"]), item.arm.labels["arm"]
    tau, none = formula(P, N), [0] * P
    return {
        "forward": none if arm == "GPipe" else tau,
        "backward": tau if arm == "PipeDream" else none,
        "utilisation": N / (N + P - 1) if arm == "GPipe" else 1.0,
        "more_copies": tau if arm == "PipeDream" else none,
    }


def utilisation(log: RunLog) -> float:
    """Utilisation in the steady state: 1 where no worker waits once the pipeline is full, else the whole run's."""
    return 1.0 if steady(log) else float(log.summary["utilisation"])


@drawing(PAPER, "table_1")
def table_1(context: Context) -> Drawn:
    """Delays, utilisation and copies, derived from schedules and by formula, a row per method and size."""

    def derived(key: str) -> Any:
        return lambda item: ", ".join(map(str, item.log.summary[key])) if item.log else None

    def by_formula(key: str) -> Any:
        return lambda item: ", ".join(map(str, expected(item)[key]))

    def more(item: Item) -> str | None:
        return ", ".join(str(n - 1) for n in item.log.summary["weight_copies"]) if item.log else None

    cols = [
        Col("P", lambda item: int(item.arm.labels["P"])),
        Col("N", lambda item: int(item.arm.labels["N"])),
        Col("method", lambda item: item.arm.labels["arm"]),
        Col("derived", derived("forward_delays"), "{}", "tau_fwd"),
        Col("formula", by_formula("forward"), "{}", "tau_fwd"),
        Col("derived", derived("backward_delays"), "{}", "tau_bkwd"),
        Col("formula", by_formula("backward"), "{}", "tau_bkwd"),
        Col("derived", lambda item: utilisation(item.log) if item.log else None, "{:.3f}", "utilisation"),
        Col("formula", lambda item: expected(item)["utilisation"], "{:.3f}", "utilisation"),
        Col("derived", more, "{}", "weight copies besides W"),
        Col("formula", by_formula("more_copies"), "{}", "weight copies besides W"),
    ]
    notes = [
        "Per stage, from the first. PipeDream runs on PipeMare's schedule here (2(P-i)+1 cycles between the two "
        "passes), as appendix A.1 has it; its own 1F1B has P-i microbatches between."
    ]
    size = Col("size", lambda item: f"{item.arm.labels['P']} {item.arm.labels['N']}")
    grouped = table(context.items, [size, *cols], context.result.caption, notes, rule_by="size")
    grouped.columns = grouped.columns[1:]
    return Drawn(table=grouped)


@judge(PAPER, "table_1", "delays_as_formula")
def delays_as_formula(context: Context) -> Finding:
    """Holds if the delays derived from the schedules are those of the formulas, forward and backward, at every size."""
    checked = 0
    for item in context.items:
        log, formulas = log_of(context, **dict(item.arm.labels)), expected(item)
        delays = log.summary["forward_delays"], log.summary["backward_delays"]
        if delays != (formulas["forward"], formulas["backward"]):
            labels = ", ".join(f"{key} {value}" for key, value in item.arm.labels.items())
            return exact(False, f"{labels}: derived tau_fwd {listing(delays[0])}, tau_bkwd {listing(delays[1])}")
        checked += len(delays[0])
    return exact(True, f"{checked} stages in {len(context.items)} schedules")


def sizes(context: Context) -> list[tuple[str, str]]:
    """The table's pairs (P, N)."""
    return list(dict.fromkeys((item.arm.labels["P"], item.arm.labels["N"]) for item in context.items))


@judge(PAPER, "table_1", "utilisation_order")
def utilisation_order(context: Context) -> Finding:
    """Holds if PipeMare and PipeDream have utilisation 1 and GPipe has that of its formula, at every size."""
    texts = []
    for P, N in sizes(context):
        used = {arm: utilisation(log_of(context, P=P, N=N, arm=arm)) for arm in context.values("arm")}
        by_formula = int(N) / (int(N) + int(P) - 1)
        if used["PipeMare"] != 1 or used["PipeDream"] != 1 or abs(used["GPipe"] - by_formula) > 1e-9:
            return exact(False, f"P = {P}, N = {N}: " + ", ".join(f"{arm} {value:.3f}" for arm, value in used.items()))
        texts.append(f"{used['GPipe']:.3f}")
    return exact(True, f"GPipe {', '.join(texts)}, as the formula and below 1; the others 1 once full")


@judge(PAPER, "table_1", "memory_order")
def memory_order(context: Context) -> Finding:
    """Holds if PipeMare holds as many weight copies as GPipe, and PipeDream at least as many, summed over the stages.

    The copies are those that the methods state; the logged passes, ten minibatches, must not need more.
    """
    texts = []
    for P, N in sizes(context):
        logs = {arm: log_of(context, P=P, N=N, arm=arm) for arm in context.values("arm")}
        total = {arm: sum(log.summary["weight_copies"]) for arm, log in logs.items()}
        enough = all(
            need <= have
            for log in logs.values()
            for need, have in zip(copies_held(log), log.summary["weight_copies"], strict=True)
        )
        if not enough or not total["PipeMare"] == total["GPipe"] <= total["PipeDream"]:
            return exact(False, f"P = {P}, N = {N}: copies {total}" + ("" if enough else ", which the passes exceed"))
        texts.append(f"{total['GPipe']} and {total['PipeDream']}")
    return exact(True, f"copies over all stages, GPipe or PipeMare and PipeDream: {'; '.join(texts)}")


@judge(PAPER, "table_1", "memory_as_formula")
def memory_as_formula(context: Context) -> Finding:
    """Holds if the weight copies that the methods state, besides the live weights, are those of the formulas."""
    for item in context.items:
        log, formula_copies = log_of(context, **dict(item.arm.labels)), expected(item)["more_copies"]
        copies = [count - 1 for count in log.summary["weight_copies"]]
        if copies != formula_copies:
            labels = ", ".join(f"{key} {value}" for key, value in item.arm.labels.items())
            return exact(
                False, f"{labels}: besides the live weights {listing(copies)}, by the formula {listing(formula_copies)}"
            )
    return exact(True, f"all stages of {len(context.items)} schedules")
