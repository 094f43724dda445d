"""What makes every claim about SpecTrain true, and what makes it false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from tests.results.made_up import OFFICIAL, Make, Pair, altered, both, carried_out, case, log, with_rows, with_summary

PAPER = "spectrain"
Change = Callable[[Arm, RunLog], RunLog | None]


def changed(result: str, change: Change, make: Make = carried_out) -> Pair:
    """Runs without training as they are, and changed."""
    return both(PAPER, result, make, altered(change, make), scale="quick")


def rows(result: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Pair:
    """The same with every row changed."""
    return changed(result, with_rows(change))


# Figure 1


@case(PAPER, "figure_1a", "proportional_to_model")
def proportional_to_model() -> Pair:
    def all_alike(arm: Arm, found: RunLog) -> RunLog:
        """Models that differ in what crosses their cuts as in their weights: nothing sets the two schemes apart."""
        size = found.summary["parameters"]
        same = [{**row, "output": size} for row in found.rows]
        return replace(found, rows=same)

    return changed("figure_1a", all_alike)


def with_workers(surplus: int) -> Make:
    """Two real workers that send what LeNet-5's layers say, and so many bytes more."""

    def make(arm: Arm) -> RunLog | None:
        if arm.spec.kind != "train":
            return carried_out(arm)
        counted = next(a for a in _figure_1b() if a.labels["arm"] == "the same, counted")
        found = carried_out(counted)
        assert found is not None
        (output,) = [row["output"] for row in found.rows if row["layer"] == 2]
        sent = 4 * output * arm.spec.batch * arm.spec.steps
        return log(steps=arm.spec.steps, workers=[{"sent_bytes": sent}, {"sent_bytes": sent + surplus}])

    return make


def _figure_1b() -> list[Arm]:
    from pipelag.experiments import arms, load_paper, load_scale

    return list(arms(load_paper(PAPER), "figure_1b", load_scale("quick")))


@case(PAPER, "figure_1b", "activations_at_cuts")
def activations_at_cuts() -> Pair:
    return both(PAPER, "figure_1b", with_workers(0), with_workers(4), scale="quick")


# Figures 6 and 8


@case(PAPER, "figure_6a", "one_task")
def one_task() -> Pair:
    return rows("figure_6a", lambda row: row | {"end": row["end"] + 0.5})


@case(PAPER, "figure_6a", "padded_forwards")
def padded_forwards() -> Pair:
    return rows("figure_6a", lambda row: row | {"end": row["start"] + 2})


@case(PAPER, "figure_6b", "unit_cost")
def unit_cost() -> Pair:
    return rows("figure_6b", lambda row: row | {"start": 1.5 * row["start"], "end": 1.5 * row["start"] + 1})


@case(PAPER, "figure_6b", "batch_per_unit")
def batch_per_unit() -> Pair:
    return rows("figure_6b", lambda row: row | {"start": 2 * row["start"], "end": 2 * row["end"]})


@case(PAPER, "figure_6b", "two_tasks")
def two_tasks() -> Pair:
    return rows("figure_6b", lambda row: row if row["kind"] == "F" or row["stage"] != 2 else None)


def reads_later(row: dict[str, Any]) -> dict[str, Any]:
    """As if the weights were a time unit newer."""
    return row | {"unit": row["unit"] + 1}


for _figure in ("figure_8a", "figure_8b", "figure_8c", "figure_8d"):
    case(PAPER, _figure, "versions")(lambda figure=_figure: rows(figure, reads_later))


@case(PAPER, "figure_8b", "round_trip")
def round_trip() -> Pair:
    return rows("figure_8b", lambda row: row | {"end": row["end"] + (row["kind"] == "B")})


@case(PAPER, "figure_8c", "stale")
def stale() -> Pair:
    return changed("figure_8c", with_summary(weight_copies=lambda copies: [1] * len(copies)))


@case(PAPER, "figure_8d", "first_s")
def first_s() -> Pair:
    return rows("figure_8d", lambda row: row | {"ahead": row["ahead"] - 1})


@case(PAPER, "figure_8d", "s_falls")
def s_falls() -> Pair:
    return rows("figure_8d", lambda row: row | {"ahead": 4})


# Algorithm 1


@case(PAPER, "algorithm_1", "together")
def together() -> Pair:
    return rows("algorithm_1", lambda row: row | {"reads": row["reads"] - (row["kind"] == "F")})


@case(PAPER, "algorithm_1", "distances")
def program_distances() -> Pair:
    return rows("algorithm_1", lambda row: row | {"ahead": row["ahead"] - (row["kind"] == "B")})


@case(PAPER, "algorithm_1", "update_after_both")
def update_after_both() -> Pair:
    return rows("algorithm_1", lambda row: row | {"reads": row["reads"] + (row["kind"] == "F")})


# Figure 9


def distances(predicted: float, stale: Callable[[int], float], spike: float = 1.0) -> Make:
    """Runs whose predicted weights are off by so much at every s, stale ones by a function of s; a spike among them."""

    def make(arm: Arm) -> RunLog:
        found = []
        for number in range(40):
            row: dict[str, Any] = {"step": 20 * (number + 1)}
            for s in (1, 2, 3):
                off = stale(s) * (1 + 0.01 * arm.seed)
                row |= {f"rmse_predicted_{s}": predicted, f"rmse_stale_{s}": off}
                row |= {f"rmse_stale_{s}_most": off * (spike if number == 20 else 1)}
            found.append(row)
        return log(found, data=OFFICIAL, final={"accuracy": 50.0})

    return make


@case(PAPER, "figure_9", "predicted_below_stale")
def predicted_below_stale() -> Pair:
    return both(PAPER, "figure_9", distances(1.0, lambda s: 1.0 + s), distances(3.0, lambda s: 1.0 + s))


@case(PAPER, "figure_9", "grows_with_s")
def grows_with_s() -> Pair:
    return both(PAPER, "figure_9", distances(1.0, lambda s: 1.0 + s), distances(1.0, lambda s: 5.0 - s))


@case(PAPER, "figure_9", "spikes")
def spikes() -> Pair:
    return both(PAPER, "figure_9", distances(1.0, float, spike=1500), distances(1.0, float, spike=500))


@case(PAPER, "figure_9", "small_ratio")
def small_ratio() -> Pair:
    return both(PAPER, "figure_9", distances(0.015, lambda s: s / 3), distances(0.25, lambda s: s / 3))


@case(PAPER, "text_prediction_rmse", "far_below")
def far_below() -> Pair:
    return both(PAPER, "text_prediction_rmse", distances(1.0, float), distances(2.0, float))
