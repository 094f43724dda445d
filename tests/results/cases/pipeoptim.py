"""What makes every claim about PipeOptim true, and what makes it false."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from tests.results.made_up import Pair, altered, both, carried_out, case, log, with_rows, with_summary

PAPER = "pipeoptim"
Row = dict[str, Any]
Change = Callable[[Arm, RunLog], RunLog | None]


def changed(result: str, change: Change) -> Pair:
    """Runs that need no training as they are, and changed."""
    return both(PAPER, result, carried_out, altered(change), scale="quick")


def only(wanted: Callable[[Row], bool], **entries: Any) -> Change:
    """Entries of some rows changed; a function gets the old value."""

    def change(row: Row) -> Row:
        new = {key: value(row[key]) if callable(value) else value for key, value in entries.items()}
        return row | new if wanted(row) else row

    return with_rows(change)


def of_arm(word: str, change: Change) -> Change:
    """A change of the runs of one arm."""
    return lambda arm, found: change(arm, found) if arm.labels["arm"] == word else found


def passes(kind: str, stage: int | None = None, minibatch: int | None = None) -> Callable[[Row], bool]:
    """Passes of a kind, of one stage and of one minibatch (from 1) where they are given."""
    return lambda row: (
        row["kind"] == kind and stage in (None, row["stage"]) and minibatch in (None, row["minibatch"] + 1)
    )


# Figures 1 and 2, tables I and II, algorithm 1


@case(PAPER, "figure_1a", "reads_own_version")
def reads_own_version() -> Pair:
    return changed("figure_1a", only(passes("B", minibatch=3), reads=lambda version: version - 1))


@case(PAPER, "figure_1b", "bubbles")
def bubbles() -> Pair:
    return changed("figure_1b", with_summary(bubble=0.0))


@case(PAPER, "figure_1b", "microbatches_of_5")
def microbatches_of_5() -> Pair:
    return changed("figure_1b", with_rows(lambda row: row | {"microbatch": row["microbatch"] + 1}))


@case(PAPER, "figure_1c", "one_at_a_time")
def one_at_a_time() -> Pair:
    return changed("figure_1c", only(passes("F", stage=2), end=lambda end: end + 0.5))


@case(PAPER, "figure_1d", "no_bubble")
def no_bubble() -> Pair:
    return changed("figure_1d", of_arm("weight stashing", only(passes("F", 2, 5), end=lambda end: end - 0.5)))


@case(PAPER, "figure_1d", "forward_versions")
def forward_versions() -> Pair:
    return changed("figure_1d", of_arm("weight stashing", only(passes("F", 2), reads=lambda version: version - 1)))


@case(PAPER, "figure_1d", "backward_without_stashing")
def backward_without_stashing() -> Pair:
    return changed("figure_1d", of_arm("no stashing", only(passes("B", 1), reads=lambda version: version - 3)))


@case(PAPER, "figure_1d", "stashed_versions")
def stashed_versions() -> Pair:
    return changed("figure_1d", of_arm("weight stashing", with_summary(weight_copies=[4, 4, 4, 4])))


@case(PAPER, "figure_2", "distances")
def distances() -> Pair:
    return changed("figure_2", only(passes("F"), ahead=lambda ahead: ahead + 1))


@case(PAPER, "figure_2", "backward_reads_w5")
def backward_reads_w5() -> Pair:
    return changed("figure_2", only(passes("B", 1), reads=lambda version: version - 3))


@case(PAPER, "table_2", "versions_per_gpu")
def versions_per_gpu() -> Pair:
    return changed("table_2", of_arm("PipeOptim", with_summary(weight_copies=[2, 2, 2, 2])))


@case(PAPER, "table_2", "stashing_consistent")
def stashing_consistent() -> Pair:
    return changed("table_2", of_arm("PipeDream-2BW", with_summary(backward_delays=[0, 0, 0, 0])))


@case(PAPER, "table_2", "stashing_stale")
def stashing_stale() -> Pair:
    return changed("table_2", of_arm("PipeDream", with_summary(forward_delays=[0, 0, 0, 0])))


@case(PAPER, "table_2", "prediction_bridges")
def prediction_bridges() -> Pair:
    return changed("table_2", of_arm("PipeOptim", only(passes("F", 1), ahead=2)))


@case(PAPER, "algorithm_1", "workflow")
def workflow() -> Pair:
    return changed("algorithm_1", only(passes("F", 4), ahead=1))


@case(PAPER, "text_two_versions", "two_but_for_the_last")
def two_but_for_the_last() -> Pair:
    return changed("text_two_versions", with_summary(weight_copies=[2, 2, 2, 2]))


@case(PAPER, "table_1", "own_step_repeated")
def own_step_repeated() -> Pair:
    off = of_arm("Adam", with_rows(lambda row: row | {"predicted": 0.1 * row["stale"], "share": 0.1}))
    return changed("table_1", off)


@case(PAPER, "table_2", "bytes_per_gpu")
def bytes_per_gpu() -> Pair:
    def one_more(stage: Row) -> None:
        stage["memory"]["versions"] += stage["memory"]["weights"]

    return planned("table_2", {}, {"PipeOptim": 1.0}, stages=one_more)


# Figures 6 and 8, table V, text_throughput


BATCHES = {"GPipe": 100, "PipeDream": 110, "PipeDream-2BW": 120, "SpecTrain": 120, "XPipe": 120, "PipeOptim": 120}
RATES = {
    "GPipe": 100.0,
    "PipeDream": 152.0,
    "PipeDream-2BW": 153.0,
    "SpecTrain": 150.0,
    "XPipe": 149.0,
    "PipeOptim": 151.0,
}
COPIES = {"PipeDream": [4, 3, 2, 1], "GPipe": [1, 1, 1, 1], "PipeOptim": [2, 2, 2, 1]}


def plan_log(
    arm: Arm,
    rates: dict[str, float],
    batches: dict[str, int],
    copies: dict[str, list[int]],
    stages: Callable[[Row], None] | None = None,
) -> RunLog:
    """A plan's log with these throughputs, largest passes and versions, by arm."""
    rows = []
    for name in arm.spec.options["arms"]:
        held = [
            {"stage": i + 1, "memory": {"weights": 1e6, "versions": (n - 1) * 1e6}}
            for i, n in enumerate(copies.get(name, [2, 2, 2, 2]))
        ]
        for stage in held:
            if stages is not None and name in rates:
                stages(stage)
        alike = name.removesuffix(", largest")
        rate = rates.get(name, rates.get(alike, RATES.get(alike, 160.0)))
        most = batches.get(name, 120)
        largest = {"batch": most, "samples": most, "stage": 1, "part": "activations"}
        rows.append({"what": "arm", "arm": name, "samples_per_second": rate, "largest": largest, "stages": held})
    return log(rows)


def planned(
    result: str,
    holds: dict[str, float],
    fails: dict[str, float],
    batches: dict[str, int] = BATCHES,
    worse: dict[str, int] | None = None,
    copies: dict[str, list[int]] = COPIES,
    copied: dict[str, list[int]] | None = None,
    stages: Callable[[Row], None] | None = None,
) -> Pair:
    """Two sets of plans' logs; other runs as they are."""

    def make(*what: Any) -> Callable[[Arm], RunLog | None]:
        return lambda arm: plan_log(arm, *what) if arm.spec.kind == "plan" else carried_out(arm)

    return both(
        PAPER,
        result,
        make(holds, batches, copies),
        make(fails, worse or batches, copied or copies, stages),
        scale="quick",
    )


for letter in "abcdefgh":
    case(PAPER, f"figure_6{letter}", "gpipe_lowest")(
        lambda letter=letter: planned(f"figure_6{letter}", {}, {"XPipe": 99.0})  # type: ignore[misc]
    )
for letter in "bc":
    case(PAPER, f"figure_6{letter}", "alike")(
        lambda letter=letter: planned(f"figure_6{letter}", {}, {"SpecTrain": 130.0})  # type: ignore[misc]
    )


@case(PAPER, "figure_6a", "above_xpipe")
def above_xpipe() -> Pair:
    return planned("figure_6a", {}, {"PipeOptim": 148.0})


@case(PAPER, "text_throughput", "above_gpipe")
def above_gpipe() -> Pair:
    return planned("text_throughput", {}, {"GPipe": 151.5})


@case(PAPER, "text_throughput", "gain_over_gpipe")
def gain_over_gpipe() -> Pair:
    return planned("text_throughput", {"GPipe": 90.0}, {"GPipe": 120.0})


@case(PAPER, "text_throughput", "close_to_pipedream")
def close_to_pipedream() -> Pair:
    return planned("text_throughput", {}, {"PipeDream": 160.0})


@case(PAPER, "text_throughput", "close_to_2bw")
def close_to_2bw() -> Pair:
    return planned("text_throughput", {}, {"PipeDream-2BW": 157.0})


@case(PAPER, "text_throughput", "mostly_above_xpipe")
def mostly_above_xpipe() -> Pair:
    return planned("text_throughput", {}, {"XPipe": 151.5})


@case(PAPER, "text_throughput", "below_stashing")
def below_stashing() -> Pair:
    return planned("text_throughput", {}, {"PipeDream": 150.0})


@case(PAPER, "figure_8", "order")
def order() -> Pair:
    right = {"PipeDream": 150.5}
    return planned("figure_8", right, right | {"PipeOptim": 150.0})


@case(PAPER, "table_5", "above_pipedream")
def above_pipedream() -> Pair:
    return planned("table_5", {}, {}, worse=BATCHES | {"PipeOptim": 109})


@case(PAPER, "table_5", "gpipe_smaller")
def gpipe_smaller() -> Pair:
    return planned("table_5", {}, {}, worse=BATCHES | {"GPipe": 121})


@case(PAPER, "table_5", "gnmt16_excepted")
def gnmt16_excepted() -> Pair:
    return planned("table_5", {}, {}, batches=BATCHES | {"GPipe": 124}, worse=BATCHES)


@case(PAPER, "table_5", "weight_memory")
def weight_memory() -> Pair:
    return planned("table_5", {}, {}, copied=COPIES | {"PipeDream-2BW": [3, 3, 2, 2]})
