"""Of claims about SpecTrain that rest on several conditions, each that their case leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from tests.results.cases.spectrain import (
    LSTM,
    PAPER,
    Entry,
    as_printed,
    but,
    changed,
    learnt,
    plans,
    rows,
    schools,
    sending,
    timed,
    times,
)
from tests.results.made_up import Pair, both, part, with_rows


@part(PAPER, "algorithm_1", "together")
def end_together() -> Pair:
    """Forwards end later than the backwards beside them."""
    return rows("algorithm_1", lambda row: row | {"end": row["end"] + 0.5 * (row["kind"] == "F")})


@part(PAPER, "figure_6a", "one_task")
def one_at_a_time() -> Pair:
    """A GPU runs a second task in its first unit."""
    return changed("figure_6a", lambda arm, run: replace(run, rows=[*run.rows, run.rows[0] | {"minibatch": 1}]))


@part(PAPER, "figure_6a", "padded_forwards")
def units_of_backwards() -> Pair:
    """Backwards are over before their units."""
    return rows("figure_6a", lambda row: row | {"end": row["end"] - 0.5 * (row["kind"] == "B")})


@part(PAPER, "figure_6a", "padded_forwards")
def shorter_forwards() -> Pair:
    """One GPU's forwards last as long as backwards."""
    return rows(
        "figure_6a",
        lambda row: row | ({"end": row["start"] + 2} if (row["kind"], row["stage"]) == ("F", 2) else {}),
    )


@part(PAPER, "figure_6b", "two_tasks")
def a_forward_and_a_backward() -> Pair:
    """GPU 1 runs two backwards at once."""
    both_back = with_rows(lambda row: row | ({"kind": "B"} if row["stage"] == 2 else {}))
    return changed("figure_6b", both_back)


@part(PAPER, "figure_6b", "two_tasks")
def of_two_batches() -> Pair:
    """Both tasks are of one batch on all GPUs, not on the last alone."""
    return rows("figure_6b", lambda row: row | {"minibatch": 1})


@part(PAPER, "figure_8c", "stale")
def units_behind() -> Pair:
    """Two copies, of weights a unit newer."""
    return rows("figure_8c", lambda row: row | {"unit": row["unit"] + 1})


@part(PAPER, "figure_8d", "s_falls")
def both_on_the_last_gpu() -> Pair:
    """The last GPU's forward looks further than the backward in its unit."""

    def further(arm: Arm, run: RunLog) -> RunLog:
        last = max(row["stage"] for row in run.rows)
        meant = ("F", last)
        return with_rows(lambda row: row | {"ahead": row["ahead"] + ((row["kind"], row["stage"]) == meant)})(arm, run)

    return changed("figure_8d", further)


@part(PAPER, "figure_3", "ratios_as_printed")
def ratio_at_most() -> Pair:
    """Three times the largest, and the others so much less that the mean is the same."""
    return both(PAPER, "figure_3", timed(sending()), timed(sending(3 * 1.4, 1.2 * 3 ** (-1 / 5))))


@part(PAPER, "figure_3", "ratios_as_printed")
def ratio_on_average() -> Pair:
    """The largest as it is, the others four times theirs."""
    return both(PAPER, "figure_3", timed(sending()), timed(sending(1.4, 4 * 1.2)))


def transferring(most: float, others: float) -> Pair:
    """Percent of the time that data parallelism communicates: of the network where it is most, and more of others."""

    def world(model: str, arm: str, gpus: int) -> Entry:
        entry = as_printed(model, arm, gpus)
        if not arm.startswith("Data"):
            return entry
        return entry | {"transfers": most if model == "SNN" else entry["transfers"] + others}

    return plans("figure_4", world)


@part(PAPER, "figure_4", "as_printed")
def share_at_most() -> Pair:
    """Less of the network where it is most, more of the others."""
    return transferring(50.0, 4.0)


@part(PAPER, "figure_4", "as_printed")
def share_on_average() -> Pair:
    """As much where it is most, more of the others."""
    return transferring(70.0, 20.0)


@part(PAPER, "table_1", "mean_order")
def above_vanilla_too() -> Pair:
    return schools("table_1", {"Vanilla DualPipe": 69.5})


@part(PAPER, "table_1", "mean_order_stashed")
def stashed_above_vanilla_too() -> Pair:
    return schools("table_1", {"Vanilla DualPipe": 69.5})


# One of all that a claim is about, where its case changes all


def in_one_cell(**less: float) -> Pair:
    """One GPU's tasks in one unit of the steady state with such entries less, by kind."""

    def change(row: dict[str, Any]) -> dict[str, Any]:
        key = {"F": "reads", "B": "ahead"}[row["kind"]]
        return row | ({key: row[key] - less.get(row["kind"], 0)} if (row["worker"], row["start"]) == (1, 8) else {})

    return rows("algorithm_1", change)


@part(PAPER, "algorithm_1", "together")
def together_in_each() -> Pair:
    return in_one_cell(F=1)


@part(PAPER, "algorithm_1", "distances")
def distances_in_each() -> Pair:
    return in_one_cell(B=1)


@part(PAPER, "algorithm_1", "update_after_both")
def update_in_each() -> Pair:
    return in_one_cell(F=-1)


@part(PAPER, "figure_10", "dualpipe_highest")
def highest_on_two_gpus() -> Pair:
    return plans("figure_10", but(times("speedup", 2), "PipeDream", ("SNN",), gpus=(2,)))


@part(PAPER, "figure_10", "cnn_data_above_pipedream")
def above_on_two_gpus() -> Pair:
    return plans("figure_10", but(times("speedup", 0.5), "Data P.", ("VGG16",), gpus=(2,)))


@part(PAPER, "figure_11", "imbalance_as_printed")
def imbalance_of_each() -> Pair:
    return plans("figure_11", but(times("imbalance", 0.5), "PipeDream"))


@part(PAPER, "table_1", "below_data_on_two")
def below_on_both() -> Pair:
    """The second of the two is above."""
    as_in_print = {("ResNet-152", "SpecTrain"): 69.05, ("Residual LSTM", "SpecTrain"): 67.78}
    return schools("table_1", {("ResNet-152", "SpecTrain"): 69.05}, {**as_in_print}, apart=0.1)


@part(PAPER, "figure_5", "fluctuates")
def rises_steadily() -> Pair:
    """Data parallelism's accuracy falls, as evenly as it rose."""

    def backwards(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels["arm"] != "Data P.":
            return run
        values = [row["accuracy"] for row in run.rows][::-1]
        rows = [row | {"accuracy": value} for row, value in zip(run.rows, values, strict=True)]
        return replace(run, rows=rows, summary=run.summary | {"final": rows[-1]})

    return changed("figure_5", backwards, learnt({}))


def far_above(piped: str) -> Pair:
    """On the LSTM SpecTrain is far above a pipeline that it is as good as."""
    alike = {(LSTM, "SpecTrain"): 68.29, (LSTM, piped): 68.3}
    return both(PAPER, "table_1", learnt(alike), learnt(alike | {(LSTM, "SpecTrain"): 70.0}))


@part(PAPER, "table_1", "lstm_as_pipedream")
def no_better_than_pipedream() -> Pair:
    return far_above("PipeDream")


@part(PAPER, "table_1", "lstm_as_pipedream_stashed")
def no_better_than_stashing() -> Pair:
    return far_above("PipeDream, stashing")
