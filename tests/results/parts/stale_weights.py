"""Of the stale-weights paper's claims that rest on several conditions, each that their case leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from tests.results.cases.stale_weights import (
    AT_A_TENTH,
    CONTROL,
    CONTROLLED,
    DEPTHS,
    PAPER,
    PRINTED,
    RATES,
    USUAL,
    coarse,
    counts,
    ends,
    gpipe_summary,
    later,
    lines,
    more,
    moved,
    real,
    rising,
    rows,
    sized_as,
    speeds,
    switched,
)
from tests.results.made_up import Make, Pair, altered, both, part, trained, with_rows


def pair(result: str, holds: Callable[[], Make], fails: Callable[[], Make]) -> Pair:
    """Two makers of logs."""
    return both(PAPER, result, holds(), fails())


@part(PAPER, "figure_1", "mapped_in_order")
def four_partitions() -> Pair:
    """The last is not there."""
    return pair("figure_1", real, rows(lambda row: None if row["stage"] == 4 else row))


@part(PAPER, "figure_4", "m_plus_2_cycles")
def of_100_minibatches() -> Pair:
    """99 take 101 cycles, as they should, and 100 are claimed."""
    return pair("figure_4", real, rows(lambda row: None if row["minibatch"] == 99 else row))


@part(PAPER, "figure_4", "cells")
def every_pass() -> Pair:
    """A forward is not there."""
    third = ("F", 2, 3)
    return pair(
        "figure_4", real, rows(lambda row: None if (row["kind"], row["stage"], row["minibatch"]) == third else row)
    )


@part(PAPER, "text_potential_speedup", "one_minibatch_per_cycle")
def one_in_every_cycle() -> Pair:
    """One comes a cycle later, and another with it."""
    late = moved(lambda row: (row["kind"], row["stage"], row["minibatch"]) == ("B", 1, 60), **later())
    return pair("text_potential_speedup", real, rows(late))


@part(PAPER, "text_potential_speedup", "one_minibatch_per_cycle")
def twice_k_cycles() -> Pair:
    """All come a cycle later."""
    return pair(
        "text_potential_speedup", real, rows(moved(lambda row: (row["kind"], row["stage"]) == ("B", 1), **later()))
    )


@part(PAPER, "text_potential_speedup", "ideal_speedup")
def on_as_many_accelerators() -> Pair:
    """One minibatch runs on accelerators of its own."""
    more = moved(lambda row: row["minibatch"] == 60, worker=lambda worker: worker + 100)
    return pair("text_potential_speedup", real, rows(more))


@part(PAPER, "table_5", "deepest_uses_90_percent")
def about_90() -> Pair:
    """97 %."""
    return pair("table_5", speeds, lambda: speeds(ResNet_362=(1.93, 1.95)))


@part(PAPER, "control", "mostly_the_rate_here")
def below_the_baseline() -> Pair:
    """The pipelines end above the baseline; so half of what they lose is less than nothing."""
    above = dict.fromkeys(AT_A_TENTH, 95.0) | {CONTROL: 86.5}
    return pair("control", lambda: ends(AT_A_TENTH, 91.5), lambda: ends(above, 91.5))


@part(PAPER, "hybrid_control", "mostly_the_rate_here")
def hybrid_gains() -> Pair:
    """The hybrid ends below the pipelined run."""
    lower = CONTROLLED | {"20k+10k hybrid": 79.0}
    return pair("hybrid_control", lambda: ends(CONTROLLED), lambda: ends(lower))


# One of all that a claim is about, where its case changes all


def of_label(key: str, value: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Callable[[], Make]:
    """The real logs, every row changed of those whose label has this value."""
    row_by_row = with_rows(change)
    return lambda: altered(lambda arm, run: row_by_row(arm, run) if arm.labels.get(key) == value else run)


@part(PAPER, "figure_1", "mapped_in_order")
def each_in_order() -> Pair:
    return pair("figure_1", real, rows(moved(lambda row: row["stage"] == 2, worker=0)))


@part(PAPER, "figure_1", "contiguous")
def each_minibatch() -> Pair:
    """One minibatch passes the first accelerator twice."""
    return pair("figure_1", real, rows(moved(lambda row: (row["stage"], row["minibatch"]) == (3, 0), worker=0)))


@part(PAPER, "figure_4", "m_plus_2_cycles")
def of_5_minibatches() -> Pair:
    """Those of 100 are as they should be."""
    return pair("figure_4", real, of_label("minibatches", "5", moved(lambda row: row["worker"] == 2, **later())))


@part(PAPER, "text_potential_speedup", "one_minibatch_per_cycle")
def in_every_cycle_for_each_k() -> Pair:
    late = moved(lambda row: (row["kind"], row["stage"], row["minibatch"]) == ("B", 1, 60), **later())
    return pair("text_potential_speedup", real, of_label("K", "1", late))


@part(PAPER, "text_potential_speedup", "one_minibatch_per_cycle")
def twice_k_for_each_k() -> Pair:
    late = moved(lambda row: (row["kind"], row["stage"]) == ("B", 1), **later())
    return pair("text_potential_speedup", real, of_label("K", "1", late))


@part(PAPER, "text_potential_speedup", "ideal_speedup")
def ideal_for_each_k() -> Pair:
    more = moved(lambda row: row["minibatch"] == 60, worker=lambda worker: worker + 100)
    return pair("text_potential_speedup", real, of_label("K", "1", more))


@part(PAPER, "text_potential_speedup", "all_busy")
def busy_for_each_k() -> Pair:
    gone = lambda row: None if (row["worker"], row["minibatch"]) == (0, 60) else row  # noqa: E731
    return pair("text_potential_speedup", real, of_label("K", "1", gone))


@part(PAPER, "figure_5b", "all_converge")
def each_comes_to_rest() -> Pair:
    """One rises to the end."""
    usual = {"otherwise": USUAL}
    steady = [10.0 + 80.0 * step / 299 for step in range(300)]
    return pair("figure_5b", lambda: lines(usual), lambda: lines(usual | {"6-stage": steady}))


@part(PAPER, "table_6", "weights_are_small")
def weights_of_each() -> Pair:
    return pair("table_6", real, counts(more("parameters", 100, "ResNet-20")))


@part(PAPER, "text_vs_gpipe_speedup", "bubble_doubles")
def not_less_than_doubles() -> Pair:
    """It is the same."""
    double = gpipe_summary(bubble=lambda arm, old: 0.4 if arm.labels["arm"].startswith("4") else 0.2)
    return pair("text_vs_gpipe_speedup", double, gpipe_summary(bubble=lambda arm, old: 0.2))


# Alike is so both ways: each where its case has the numbers apart the other way


def deepest_above(result: str) -> Pair:
    """AlexNet's deepest pipeline ends above the shallower ones."""
    return pair(result, lambda: ends(PRINTED), lambda: ends(PRINTED | {("AlexNet", "8-stage"): 80.5}))


@part(PAPER, "figure_5b", "spread_below_half_a_point")
def not_above() -> Pair:
    return deepest_above("figure_5b")


@part(PAPER, "table_2", "alexnet_independent_of_stages")
def not_above_either() -> Pair:
    return deepest_above("table_2")


@part(PAPER, "precision", "ends_alike_here")
def coarser_not_above() -> Pair:
    return pair("precision", coarse((91.3, 83.2)), coarse((91.3, 86.0)))


@part(PAPER, "precision", "costs_alike_here")
def coarser_not_cheaper() -> Pair:
    return pair("precision", coarse((91.3, 83.2)), coarse((91.3, 87.0)))


@part(PAPER, "control_curves", "four_run_alike_here")
def four_not_above() -> Pair:
    usual = {"otherwise": rising(86.0, 9.0)}
    return pair("control_curves", lambda: lines({"otherwise": USUAL}), lambda: lines(usual | {"4-stage": USUAL}))


# One arm below two others, where its case has it above both


@part(PAPER, "figure_5b", "deepest_costs_most_here")
def below_the_baseline_too() -> Pair:
    """All pipelines end above the baseline, the deepest above it the least."""
    holds = PRINTED | {("AlexNet", "8-stage"): 75.0}
    return pair("figure_5b", lambda: ends(holds), lambda: ends(holds | {("AlexNet", "non-pipelined"): 70.0}))


@part(PAPER, "figure_5c", "deepest_costs_most_here")
def below_the_shallowest_too() -> Pair:
    """It ends below the baseline, and above the shallowest."""
    return pair("figure_5c", lambda: ends(PRINTED), lambda: ends(PRINTED | {("VGG-16", "4-stage"): 70.0}))


# Runs that diverge


def one_diverges(arm: str) -> Make:
    """Table 7's runs, of which one of ResNet-362's diverges."""
    usual, lost = ends(RATES), ends({("ResNet-362", arm): None})
    meant = ("ResNet-362", arm, 1)
    return lambda run: (lost if (run.labels["model"], run.labels["arm"], run.seed) == meant else usual)(run)


@part(PAPER, "table_7", "deeper_needs_smaller_rate", becomes=None)
def smaller_rate_does_not_diverge() -> Pair:
    """With one rate a run diverges: that says that a smaller one is needed. With the smaller one, too: nothing."""
    both_lost = dict.fromkeys(((DEPTHS[-1], "one rate"), (DEPTHS[-1], "pipelined")))
    return pair("table_7", lambda: one_diverges("one rate"), lambda: ends(RATES | both_lost))


# When runs come to rest


@part(PAPER, "figure_5a", "converges_alike")
def one_evaluation_apart() -> Pair:
    """At the first and at the second evaluation, of 300 and of 600."""

    def at_once(evaluations: int, steps_of_10: int) -> Make:
        late = [10.0] * (steps_of_10 - 1) + [90.0] * (evaluations - steps_of_10 + 1)
        return lines({"otherwise": [90.0] * evaluations, "10-stage": late})

    return pair("figure_5a", lambda: at_once(300, 2), lambda: at_once(600, 3))


@part(PAPER, "figure_5b", "all_converge")
def none_falls() -> Pair:
    """One falls to the end."""
    usual = {"otherwise": USUAL}
    falling = [90.0 - 30.0 * step / 299 for step in range(300)]
    return pair("figure_5b", lambda: lines(usual), lambda: lines(usual | {"6-stage": falling}))


def with_one_seed(arm: str, end: float | None) -> Make:
    """All come to rest alike, but with one seed an arm ends there, where it was from the beginning; None: diverges."""
    usual = lines({"otherwise": USUAL})

    def make(run: Arm) -> RunLog:
        if (run.labels["arm"], run.seed) != (arm, 1):
            return usual(run)  # type: ignore[return-value]
        how = {"diverged_at": 7} if end is None else {"accuracy": end, "line": [end] * 300}
        return trained(**how, steps=30_000, phases=sized_as(run))  # type: ignore[arg-type]

    return make


@part(PAPER, "figure_5c", "converges_alike")
def no_seed_is_lost() -> Pair:
    return pair("figure_5c", lambda: lines({"otherwise": USUAL}), lambda: with_one_seed("10-stage", 10.0))


@part(PAPER, "figure_5d", "converges_alike")
def no_seed_diverges() -> Pair:
    return pair("figure_5d", lambda: lines({"otherwise": USUAL}), lambda: with_one_seed("8-stage", None))


def before_and_after(before: float, after: float, pipelined: float = 0.0) -> Callable[[], Make]:
    """Hybrids so far above pipelined training as it is usually before and after their switch, and pipelined training
    so far above that, too."""

    def make() -> Make:
        usual = switched(0.0)

        def changed(arm: Arm) -> RunLog | None:
            run = usual(arm)
            assert run is not None
            switch = arm.spec.phases[0].steps if "hybrid" in arm.labels["arm"] else 0
            for row in run.rows:
                if "hybrid" in arm.labels["arm"]:
                    row["accuracy"] += before if row["step"] <= switch else after
                elif arm.labels["arm"].startswith("Pipelined"):
                    row["accuracy"] += pipelined
            return run

        return changed

    return make


@part(PAPER, "figure_7", "jumps_to_baseline_here")
def nearer_than_before() -> Pair:
    """As near before the switch."""
    return pair("figure_7", before_and_after(0.0, 8.0), before_and_after(8.0, 8.0))


@part(PAPER, "figure_7", "jumps_to_baseline_here")
def above_the_pipelined() -> Pair:
    """Pipelined training is as good."""
    return pair("figure_7", before_and_after(0.0, 8.0), before_and_after(0.0, 8.0, pipelined=8.0))
