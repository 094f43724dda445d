"""Claims about schedules: figures 1 to 4, table 1, and the potential speedup. All are exact: nothing may be off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from pipelag.results.context import Context
from pipelag.results.judging import all_of, exact, extent, listing
from pipelag.results.stale_weights.reading import (
    PAPER,
    STAGES,
    accelerator_names,
    busy_per_cycle,
    by_k,
    cycles_each,
    finished_in,
    numbers,
    staleness,
    steady,
)
from pipelag.results.verdict import Finding, NotLogged, judge, log_of


@judge(PAPER, "figure_1", "mapped_in_order")
def mapped_in_order(context: Context) -> Finding:
    """Holds if accelerator i does both passes of partition i, for four partitions."""
    log = log_of(context)
    owners = {stage: {r["worker"] for r in log.rows if r["stage"] == stage} for stage in {r["stage"] for r in log.rows}}
    words = ", ".join(f"P{stage - 1} on {listing(sorted(owners[stage]))}" for stage in sorted(owners))
    holds = len(owners) == 4 and all(owners[stage] == {stage - 1} for stage in owners)
    return exact(holds, f"accelerators of the partitions: {words}")


@judge(PAPER, "figure_1", "contiguous")
def contiguous(context: Context) -> Finding:
    """Holds if each minibatch visits every accelerator once, in order forward and in reverse order backward.

    A second visit would mean that a partition is not contiguous.
    """
    log = log_of(context)
    ways = {
        (kind, minibatch): [r["worker"] for r in sorted(log.rows, key=lambda r: r["start"]) if _is(r, kind, minibatch)]
        for kind in "FB"
        for minibatch in {r["minibatch"] for r in log.rows}
    }
    along = list(range(log.summary["workers"]))
    holds = all(way == (along if kind == "F" else along[::-1]) for (kind, _), way in ways.items())
    return exact(
        holds,
        f"accelerators that a minibatch passes, forward {listing(ways['F', 0])}; backward {listing(ways['B', 0])}",
    )


def _is(row: dict[str, object], kind: str, minibatch: int) -> bool:
    return row["kind"] == kind and row["minibatch"] == minibatch


@judge(PAPER, "figure_2", "one_busy")
def one_busy(context: Context) -> Finding:
    """Holds if exactly one accelerator is busy in every cycle."""
    busy = busy_per_cycle(log_of(context))
    why = f"busy accelerators in each of {len(busy)} cycles: {extent(min(busy), max(busy))}"
    return exact(set(busy) == {1}, why)


@judge(PAPER, "figure_2", "utilisation")
def utilisation(context: Context) -> Finding:
    """Holds if the share of busy accelerator cycles is one over the number of accelerators."""
    log = log_of(context)
    workers = log.summary["workers"]
    busy = busy_per_cycle(log)
    share = sum(busy) / (workers * len(busy))
    return exact(abs(share * workers - 1) < 1e-9, f"{100 * share:.1f} % of {workers} accelerators are used")


@judge(PAPER, "figure_3", "stages")
def four_stages(context: Context) -> Finding:
    """Holds if the schedule has 2(K + 1) = 4 different forward and backward stages."""
    done = {(row["kind"], row["stage"]) for row in log_of(context).rows}
    return exact(len(done) == 4, f"{len(done)} stages for K = 1")


@judge(PAPER, "figure_3", "accelerators")
def three_accelerators(context: Context) -> Finding:
    """Holds if 2K + 1 = 3 accelerators do any work."""
    workers = {row["worker"] for row in log_of(context).rows}
    return exact(len(workers) == 3, f"{len(workers)} accelerators for K = 1")


@judge(PAPER, "figure_3", "mapping")
def mapping(context: Context) -> Finding:
    """Holds if FS1, FS2, BKS1 and BKS2 run on the printed accelerators."""
    ours = accelerator_names(log_of(context))
    printed = [f"{name}: {'+'.join(each)}" for name, each in context.result.reported["accelerator_mapping"].items()]
    return exact(ours == printed, f"ours {', '.join(ours)}; printed {', '.join(printed)}")


@judge(PAPER, "figure_4", "no_idle_in_steady_state")
def no_idle(context: Context) -> Finding:
    """Holds if every accelerator is busy in every cycle in which the pipeline is full (`steady`)."""
    log = log_of(context, minibatches="5")
    busy, full = busy_per_cycle(log), steady(log)
    least = min(busy[cycle] for cycle in full)
    workers = log.summary["workers"]
    return exact(
        least == workers, f"cycles {full[0]} to {full[-1]}: {least} of {workers} accelerators are busy at least"
    )


@judge(PAPER, "figure_4", "m_plus_2_cycles")
def m_plus_2(context: Context) -> Finding:
    """Holds if M minibatches take M + 2 cycles (K = 1), for M = 5 and M = 100."""
    logs = [log_of(context, minibatches=each) for each in ("5", "100")]
    lengths = {len({row["minibatch"] for row in log.rows}): len(busy_per_cycle(log)) for log in logs}
    why = ", ".join(f"{m} minibatches take {cycles} cycles" for m, cycles in lengths.items())
    return exact(set(lengths) == {5, 100} and all(cycles == m + 2 for m, cycles in lengths.items()), why)


@judge(PAPER, "figure_4", "fs1_two_cycles_stale")
def fs1_stale(context: Context) -> Finding:
    """Holds if the first forward stage misses two updates. One update is made per cycle, so this is two cycles."""
    missed = staleness(log_of(context, minibatches="5"), 1)
    return exact(
        missed == {2}, f"updates that FS1 misses in steady state: {listing(sorted(missed))}, one being made per cycle"
    )


@judge(PAPER, "figure_4", "last_stage_up_to_date")
def last_fresh(context: Context) -> Finding:
    """Holds if the last stage's forwards miss no update."""
    missed = staleness(log_of(context, minibatches="5"), 2)
    return exact(missed == {0}, f"updates that FS2 misses in steady state: {listing(sorted(missed))}")


@judge(PAPER, "figure_4", "cells")
def cells(context: Context) -> Finding:
    """Holds if every pass is in the figure's cycle: FS1 at once, FS2 and BKS1 one cycle later, BKS2 two later."""
    log = log_of(context, minibatches="5")
    after = {("F", 1): 0, ("F", 2): 1, ("B", 2): 1, ("B", 1): 2}
    wrong = [r for r in log.rows if r["start"] != r["minibatch"] + after[r["kind"], r["stage"]]]
    asked = 4 * len({r["minibatch"] for r in log.rows})
    first = f"; the first is {wrong[0]['kind']}{wrong[0]['minibatch']} in cycle {wrong[0]['start']}" if wrong else ""
    return exact(
        not wrong and len(log.rows) == asked,
        f"{len(log.rows) - len(wrong)} of {asked} passes in the figure's cycle{first}",
    )


Entry = Callable[[list[int], int, Mapping[str, Any]], bool]  # printed vector, stages, the run's first phase


@judge(PAPER, "table_1", "two_stages_per_register")
def two_per_register(context: Context) -> Finding:
    """Holds if each run has as many stages (forward and backward) as its column says and as its registers make."""

    def right(printed: list[int], stages: int, phase: Mapping[str, Any]) -> bool:
        return 2 * int(phase["stages"]) == stages == 2 * (len(phase["cuts"]) + 1)

    return entries(context, right, "have as many stages as the column says and their registers make")


@judge(PAPER, "table_1", "vectors_as_printed")
def vectors(context: Context) -> Finding:
    """Holds if each run is cut after the layers of the printed vector."""
    return entries(context, lambda printed, stages, phase: list(phase["cuts"]) == printed, "are cut as printed")


def entries(context: Context, right: Entry, words: str) -> Finding:
    """Check every printed entry of table 1 against the summary of its run.

    Fails if one entry is wrong; cannot be judged if none is wrong but a run is not logged.
    """
    wrong, missing, fine = [], [], 0
    for line in context.result.reported:
        for key, arm in STAGES.items():
            if not line[key]:
                continue
            name, log = f"{line['model']} {arm}", context.log(model=line["model"], arm=arm)
            if log is None:
                missing.append(name)
            elif right(line[key], int(key[1:]), log.phase):
                fine += 1
            else:
                wrong.append(name)
    if not fine and not wrong:
        raise NotLogged("no entry has a run that is logged")
    why = f"{fine} of {fine + len(wrong)} logged runs {words}"
    why += f"; not {', '.join(wrong)}" if wrong else ""
    why += f"; not logged: {', '.join(missing)}" if missing else ""
    return exact(False if wrong else None if missing else True, why)


@judge(PAPER, "table_1", "number_of_layers")
def layers(context: Context) -> Finding:
    """Holds if our models have the printed numbers of layers."""
    printed = {line["model"]: line["layers"] for line in context.result.reported}
    ours = {model: log_of(context, model=model, arm="count").summary["layers"] for model in printed}
    return exact(ours == printed, ", ".join(f"{model} {ours[model]} (printed {printed[model]})" for model in printed))


@judge(PAPER, "text_potential_speedup", "one_minibatch_per_cycle")
def per_cycle(context: Context) -> Finding:
    """Holds if a minibatch finishes in every cycle after the first one, and M minibatches take M + 2K cycles."""
    logs = by_k(context)
    each = {k: {b - a for a, b in pairwise(finished_in(log))} for k, log in logs.items()}
    more = {k: len(busy_per_cycle(log)) - len(finished_in(log)) for k, log in logs.items()}
    holds = all(gaps == {1} for gaps in each.values()) and all(extra == 2 * k for k, extra in more.items())
    words = ", ".join(f"K = {k}: M + {more[k]}" for k in logs)
    spread = sorted({gap for gaps in each.values() for gap in gaps})
    return exact(
        holds, f"cycles for M = {len(finished_in(logs[1]))} minibatches: {words}; between two ends {listing(spread)}"
    )


@judge(PAPER, "text_potential_speedup", "ideal_speedup")
def ideal(context: Context) -> Finding:
    """Holds if the full pipeline's speedup over one accelerator is 2K + 1, with 2K + 1 accelerators.

    The speedup is the ratio of their cycles per minibatch.
    """
    speedups = {}
    for k, log in by_k(context).items():
        alone, together = cycles_each(log)
        speedups[k] = (alone / together, len({row["worker"] for row in log.rows}))
    holds = all(
        abs(speedup - (2 * k + 1)) < 1e-9 and workers == 2 * k + 1 for k, (speedup, workers) in speedups.items()
    )
    words = ", ".join(f"K = {k}: {speedup:.2f} on {workers}" for k, (speedup, workers) in speedups.items())
    return exact(holds, f"speedup in the full pipeline and accelerators: {words}")


@judge(PAPER, "text_potential_speedup", "all_busy")
def all_busy(context: Context) -> Finding:
    """Holds if all 2K + 1 accelerators are busy in every cycle of the full pipeline."""
    busy = {k: (busy_per_cycle(log), steady(log)) for k, log in by_k(context).items()}
    least = {k: min(workers[full.start : full.stop]) for k, (workers, full) in busy.items()}
    words = ", ".join(f"K = {k}: {busy} of {2 * k + 1}" for k, busy in least.items())
    return exact(all_of(busy == 2 * k + 1 for k, busy in least.items()), f"busy at least in steady state: {words}")


@judge(PAPER, "text_potential_speedup", "degree_of_staleness")
def degree(context: Context) -> Finding:
    """Holds if the forwards of each stage i miss 2(K - i + 1) updates in the full pipeline, the paper's formula."""
    ours = {k: [sorted(staleness(log, stage)) for stage in range(1, k + 2)] for k, log in by_k(context).items()}
    formula = {k: [[2 * (k - i + 1)] for i in range(1, k + 2)] for k in ours}
    words = "; ".join(f"K = {k}: {numbers([max(s) for s in each], '{}')}" for k, each in ours.items())
    return exact(ours == formula, f"updates missed by FS_1 to FS_(K+1) in steady state: {words}")
