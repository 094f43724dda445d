"""Of claims about SpecTrain that rest on several conditions, each that their case leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from tests.results.cases.spectrain import (
    CNN,
    LSTM,
    PAPER,
    Entry,
    World,
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


@part(PAPER, "figure_11", "imbalance_as_printed")
def imbalance_of_dualpipe() -> Pair:
    return plans("figure_11", but(times("imbalance", 0.5), "DualPipe"))


# Of comparisons with several bounds, each


@part(PAPER, "figure_10", "dense_gain_four")
def faster_than_one_gpu() -> Pair:
    """DualPipe is ahead of data parallelism, at 0.63 times a GPU, and not of that GPU."""
    return plans("figure_10", but(lambda entry: {"speedup": 0.9}, "DualPipe", ("Transformer",), gpus=(4,)))


@part(PAPER, "figure_10", "dense_gain_four")
def faster_than_data_parallelism() -> Pair:
    """Data parallelism is ahead of one GPU and of the pipelines, too."""
    return plans("figure_10", but(lambda entry: {"speedup": 9.0}, "Data P.", ("Transformer",), gpus=(4,)))


@part(PAPER, "figure_10", "dense_below_one")
def visibly_below_one() -> Pair:
    """0.998 is 1.00, as printed."""
    return plans("figure_10", but(lambda entry: {"speedup": 0.998}, "Data P."))


@part(PAPER, "figure_11", "imbalance_order")
def visibly_more_imbalance() -> Pair:
    """By half a percentage point."""
    return plans("figure_11", but(lambda entry: {"imbalance": 38.1}, "DualPipe"))


def computing(data: float, dual: float) -> Pair:
    """Data parallelism computes 1.5 times as long as both pipelines; and otherwise."""

    def world(data: float, dual: float) -> World:
        busy = {"transfers": 0.0, "imbalance": 0.0}

        def of(model: str, arm: str, gpus: int) -> dict[str, Any]:
            longer = data if "Data" in arm else dual if "DualPipe" in arm else 1.0
            return as_printed(model, arm, gpus) | busy | {"speedup": 1 / longer}

        return of

    return both(PAPER, "figure_11", timed(world(1.5, 1.0)), timed(world(data, dual)))


@part(PAPER, "figure_11", "computing_longer", becomes=None)
def than_dualpipe_too() -> Pair:
    """DualPipe computes as long as data parallelism."""
    return computing(1.5, 1.5)


@part(PAPER, "figure_11", "computing_longer")
def not_far_longer() -> Pair:
    """2.7 times as long as PipeDream, 1.5 times as long as DualPipe."""
    return computing(2.7, 1.8)


@part(PAPER, "text_headline_throughput", "over_pipedream")
def where_moving_weights_takes_time() -> Pair:
    """Weights for free change nothing; where moving them takes time PipeDream is as fast as DualPipe."""

    def slower(reading: str) -> Any:
        faster = timed(but(lambda entry: {"speedup": 3.0}, "PipeDream"))
        return lambda arm: (faster if arm.labels.get("arm") == reading else timed())(arm)

    return both(PAPER, "text_headline_throughput", slower("weights for free"), slower("weights moved"))


@part(PAPER, "figure_3", "more_but_inception", becomes=None)
def more_by_the_tolerance() -> Pair:
    """ResNet-152 sends 1.4 times as much under data parallelism, and the heads and cuts may be others."""

    def ratios(resnet: float) -> World:
        sent = {"Inception v4": 0.5, "ResNet-152": resnet}
        as_sent = lambda model: {"bytes": sent[model]} if model in sent else {}  # noqa: E731
        return lambda model, arm, gpus: as_printed(model, arm, gpus) | (as_sent(model) if "Data" in arm else {})

    return both(PAPER, "figure_3", timed(ratios(4.4)), timed(ratios(1.4)))


@part(PAPER, "figure_3", "almost_nothing", becomes=None)
def of_longer_reviews_too() -> Pair:
    """The LSTM sends 9 % of data parallelism's bytes, and of reviews of 200 words more than a tenth."""
    many, few = (
        timed(but(lambda entry, times=times: {"bytes": times}, "Data P.", (LSTM,)))  # type: ignore[misc]
        for times in (1000.0, 1 / 0.09)
    )
    return both(PAPER, "figure_3", many, few)


@part(PAPER, "figure_4", "dense_larger")
def visibly_larger() -> Pair:
    """FCN and RNN models wait for 50 % of their time, CNNs for half a point less."""
    return plans("figure_4", lambda m, arm, gpus: as_printed(m, arm, gpus) | {"transfers": 49.5 if m in CNN else 50.0})


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
