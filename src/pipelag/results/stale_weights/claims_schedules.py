"""Claims about the schedules: figures 1 to 4, table 1."""

from __future__ import annotations

from itertools import pairwise

from pipelag.results.logs import Context
from pipelag.results.stale_weights.judging import (
    PAPER,
)
from pipelag.results.verdict import Finding, judge, log_of


@judge(PAPER, "figure_1", "contiguous_balanced")
def contiguous(context: Context) -> Finding:
    """Partition i on accelerator i, contiguous, equal."""
    owner = {row["stage"]: row["worker"] for row in log_of(context).rows if row["kind"] == "F"}
    sizes = [b - a for a, b in pairwise([0, *context.items[0].arm.spec.phases[0].cuts, 8])]
    holds = all(owner[s] == s - 1 for s in owner) and len(set(sizes)) == 1
    return holds, f"partitions of {sizes} layers on accelerators {[owner[s] for s in sorted(owner)]}"


@judge(PAPER, "figure_2", "one_busy")
def one_busy(context: Context) -> Finding:
    """One busy accelerator in every cycle."""
    log = log_of(context)
    busy = [len({r["worker"] for r in log.rows if r["start"] == c}) for c in range(log.summary["cycles"])]
    return set(busy) == {1}, f"busy accelerators over {len(busy)} cycles: between {min(busy)} and {max(busy)}"


@judge(PAPER, "figure_3", "stages_and_accelerators")
def stages_and_accelerators(context: Context) -> Finding:
    """2(K+1) stages on 2K+1 accelerators."""
    log = log_of(context)
    stages, workers = 2 * log.summary["stages"], log.summary["workers"]
    return stages == 4 and workers == 3, f"{stages} stages on {workers} accelerators for K = 1"


@judge(PAPER, "figure_4", "no_idle_in_steady_state")
def no_idle(context: Context) -> Finding:
    """After the fill and before the drain every accelerator is busy."""
    log = log_of(context)
    k, cycles, workers = log.summary["stages"] - 1, log.summary["cycles"], log.summary["workers"]
    steady = range(2 * k, cycles - 2 * k)
    busy = [len({r["worker"] for r in log.rows if r["start"] == c}) for c in steady]
    return set(busy) == {
        workers
    }, f"cycles {steady[0]}-{steady[-1]}: {min(busy)} of {workers} accelerators busy at least"


@judge(PAPER, "figure_4", "m_plus_2_cycles")
def m_plus_2(context: Context) -> Finding:
    """M + 2 cycles for K = 1."""
    summary = log_of(context).summary
    return summary["cycles"] == summary[
        "minibatches"
    ] + 2, f"{summary['minibatches']} minibatches take {summary['cycles']} cycles"


@judge(PAPER, "figure_4", "fs1_two_cycles_stale")
def fs1_stale(context: Context) -> Finding:
    """FS1 two updates behind, the last stage none."""
    lags = log_of(context).summary["forward_delays"]
    return lags == [2, 0], f"delays derived from the schedule: {lags}"


@judge(PAPER, "table_1", "two_stages_per_register")
def two_per_register(context: Context) -> Finding:
    """Stages = 2 (len(PPV) + 1), and our runs use the printed vectors."""
    wrong = []
    for line in context.result.reported:
        for arm, key in (("4-stage", "s4"), ("6-stage", "s6"), ("8-stage", "s8"), ("10-stage", "s10")):
            printed = line[key]
            ours = [list(i.arm.spec.phases[0].cuts) for i in context.select(model=line["model"], arm=arm)]
            if printed and (2 * (len(printed) + 1) != int(key[1:]) or any(cuts != printed for cuts in ours)):
                wrong.append(f"{line['model']} {arm}")
    return not wrong, "every entry fits, and the runs here use it" if not wrong else f"does not fit: {wrong}"
