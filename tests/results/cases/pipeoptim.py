"""What makes every claim about PipeOptim true, and what makes it false."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from tests.results.made_up import Pair, altered, both, carried_out, case, with_rows, with_summary

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
