"""Figure 1 and table 1: the three pipelines, their delays, utilisation and weight copies, derived from schedules."""

from __future__ import annotations

from math import ceil

import pandas as pd

from pipelag.report.tables import Cell, Column, Table
from pipelag.report.timelines import stacked
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.logs import Context, RunLog
from pipelag.results.timelines import busy_once_full
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "pipemare"


@drawing(PAPER, "figure_1")
def figure_1(context: Context) -> Drawn:
    """Three timelines on one axis."""
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
    """Whether no worker is idle once the pipeline is full and before it drains."""
    return busy_once_full(log)[0]


def of(context: Context, word: str) -> RunLog:
    """The log of the arm that begins with a word."""
    return log_of(context, arm=next(arm for arm in context.values("arm") if arm.startswith(word)))


@judge(PAPER, "figure_1", "gpipe_bubbles_one_copy")
def gpipe_bubbles(context: Context) -> Finding:
    """Idle time and copies."""
    log = of(context, "GPipe")
    copies = log.summary["weight_copies"]
    return not steady(log) and set(copies) == {1}, f"idle {100 * log.summary['bubble']:.0f} %, copies {copies}"


@judge(PAPER, "figure_1", "pipedream_copies_no_bubbles")
def pipedream_copies(context: Context) -> Finding:
    """Steady state and copies."""
    log = of(context, "PipeDream")
    copies = log.summary["weight_copies"]
    return steady(log) and max(copies) > 1, f"idle once full: {'no' if steady(log) else 'yes'}, copies {copies}"


@judge(PAPER, "figure_1", "pipemare_neither")
def pipemare_neither(context: Context) -> Finding:
    """Steady state and copies."""
    log = of(context, "PipeMare")
    copies = log.summary["weight_copies"]
    return steady(log) and set(copies) == {1}, f"idle once full: {'no' if steady(log) else 'yes'}, copies {copies}"


def formula(P: int, N: int) -> list[int]:
    """ceil((2(P-i)+1)/N) for i = 1..P (appendix A.1)."""
    return [ceil((2 * (P - i) + 1) / N) for i in range(1, P + 1)]


def in_papers_count(log: RunLog, backward: bool = False) -> list[int]:
    """Delays as the paper counts them: 0 where a method is never stale, else with the minibatch's own update."""
    lags = log.summary["backward_delays" if backward else "forward_delays"]
    return [0] * len(lags) if not any(lags) else log.summary["tau"]


def utilisation(log: RunLog) -> float:
    """Of the steady state: 1 where no worker waits once the pipeline is full, else over all the run's minibatches."""
    return 1.0 if steady(log) else log.summary["utilisation"]


@drawing(PAPER, "table_1")
def table_1(context: Context) -> Drawn:
    """A row per method and size."""
    rows: list[dict[str, Cell]] = []
    rules = []
    sizes = list(dict.fromkeys((i.arm.labels["P"], i.arm.labels["N"]) for i in context.items))
    for P, N in sizes:
        rules.append(len(rows))
        for arm in context.values("arm"):
            row: dict[str, Cell] = {"P": int(P), "N": int(N), "method": arm}
            expected = [0] * int(P) if arm == "GPipe" else formula(int(P), int(N))
            row["formula"] = ", ".join(map(str, expected))
            row["formula_util"] = int(N) / (int(N) + int(P) - 1) if arm == "GPipe" else 1.0
            for log in context.logs(P=P, N=N, arm=arm):
                row |= {
                    "forward": ", ".join(map(str, in_papers_count(log))),
                    "backward": ", ".join(map(str, in_papers_count(log, backward=True))),
                    "util": utilisation(log),
                    "copies": ", ".join(map(str, log.summary["weight_copies"])),
                }
            rows.append(row)
    columns = [
        Column("P", "P"),
        Column("N", "N"),
        Column("method", "method"),
        Column("forward", "derived", "tau_fwd"),
        Column("formula", "formula", "tau_fwd"),
        Column("backward", "derived", "tau_bkwd"),
        Column("util", "derived", "utilisation", "{:.3f}"),
        Column("formula_util", "formula", "utilisation", "{:.3f}"),
        Column("copies", "weight copies per stage"),
    ]
    notes = [
        "PipeDream runs on PipeMare's schedule here (2(P-i) microbatches between the two passes), as appendix A.1 "
        "has it; its own 1F1B has P-i.",
        "Weight copies include the live one. The paper charges PipeDream tau_fwd copies besides W.",
    ]
    return Drawn(table=Table(columns, rows, context.result.caption, notes, rules[1:]))


@judge(PAPER, "table_1", "delays_as_formula")
def delays_as_formula(context: Context) -> Finding:
    """All sizes."""
    checked = 0
    for item in context.items:
        labels = dict(item.arm.labels)
        log = log_of(context, **labels)
        expected = formula(int(labels["P"]), int(labels["N"]))
        none = [0] * int(labels["P"])
        forward = none if labels["arm"] == "GPipe" else expected
        backward = expected if labels["arm"] == "PipeDream" else none
        if in_papers_count(log) != forward or in_papers_count(log, backward=True) != backward:
            return False, f"{labels}: derived {in_papers_count(log)}, {in_papers_count(log, backward=True)}"
        checked += len(forward)
    return True, f"{checked} stages in {len(context.items)} schedules"


@judge(PAPER, "table_1", "utilisation_order")
def utilisation_order(context: Context) -> Finding:
    """All sizes; GPipe's against its formula."""
    found = []
    for P, N in dict.fromkeys((i.arm.labels["P"], i.arm.labels["N"]) for i in context.items):
        used = {arm: utilisation(log_of(context, P=P, N=N, arm=arm)) for arm in context.values("arm")}
        expected = int(N) / (int(N) + int(P) - 1)
        if used["PipeMare"] != 1 or used["PipeDream"] != 1 or abs(used["GPipe"] - expected) > 1e-9:
            return False, f"P = {P}, N = {N}: {used}"
        found.append(f"{used['GPipe']:.3f}")
    return True, f"GPipe {', '.join(found)}, as the formula; the others 1"


@judge(PAPER, "table_1", "memory_order")
def memory_order(context: Context) -> Finding:
    """Copies summed over the stages."""
    found = []
    for P, N in dict.fromkeys((i.arm.labels["P"], i.arm.labels["N"]) for i in context.items):
        held = {arm: sum(log_of(context, P=P, N=N, arm=arm).summary["weight_copies"]) for arm in context.values("arm")}
        if not held["PipeMare"] == held["GPipe"] <= held["PipeDream"]:
            return False, f"P = {P}, N = {N}: {held}"
        found.append(f"{held['GPipe']} and {held['PipeDream']}")
    return True, f"copies over all stages, GPipe or PipeMare and PipeDream: {'; '.join(found)}"
