"""Of claims about PipeOptim that rest on several conditions, each that their case leaves alone."""

from __future__ import annotations

from pipelag.experiments import Arm, load_paper
from pipelag.results.logs import RunLog
from tests.results.cases.pipeoptim import (
    BATCHES,
    COPIES,
    GOOD,
    PAPER,
    TABLE_4,
    arms_of,
    changed,
    of_table_6,
    only,
    passes,
    plan_log,
    planned,
    printed,
    training,
)
from tests.results.made_up import Pair, both, context, curve, part, with_rows


@part(PAPER, "algorithm_1", "workflow")
def makes_the_next() -> Pair:
    """The last backward of minibatch 5 makes an update too many."""
    last = passes("B", 1, 5)
    return changed("algorithm_1", with_rows(lambda row: row | ({"writes": row["writes"] + 1} if last(row) else {})))


@part(PAPER, "algorithm_1", "workflow")
def always_as_far() -> Pair:
    """Another minibatch's forward is predicted further."""
    return changed("algorithm_1", only(passes("F", 1, 4), ahead=lambda ahead: ahead + 1))


@part(PAPER, "algorithm_1", "workflow")
def backwards_without_delay() -> Pair:
    """Another minibatch's backward misses an update."""
    return changed("algorithm_1", only(passes("B", 1, 4), delay=1))


@part(PAPER, "algorithm_1", "workflow")
def backwards_not_predicted() -> Pair:
    return changed("algorithm_1", only(passes("B", 1, 4), ahead=1))


@part(PAPER, "table_4", "alexnet_drops")
def all_drop() -> Pair:
    """SpecTrain, of which the text has no number, is above GPipe."""
    return both(PAPER, "table_4", training(printed()), training(printed("SGDM", SpecTrain=-20.0)))


@part(PAPER, "table_4", "xpipe_fluctuates")
def lower_too() -> Pair:
    """With SGDM XPipe's lead spans as much, and is greater by five points."""
    return both(PAPER, "table_4", training(printed()), training(printed("SGDM", XPipe=-5.0)))


for _figure in ("3a", "3b", "3c"):

    @part(PAPER, f"figure_{_figure}", "close_to_gpipe")
    def close_all_the_way(figure: str = _figure) -> Pair:
        """PipeOptim ends where it did, and takes four times as long to come near."""
        return arms_of(f"figure_{figure}", {"PipeOptim": curve(GOOD["PipeOptim"], 0.0, half=12.0)})


@part(PAPER, "text_overall_accuracy", "as_printed")
def largest_as_printed() -> Pair:
    """The mean gain over PipeDream is the printed one, of more on one network and less than nothing on the other."""
    return of_table_6({("ResNet-101", "PipeDream"): 66.79, ("Inception-V3", "PipeDream"): 55.57})


@part(PAPER, "figure_5a", "order")
def alike() -> Pair:
    """The order holds, and PipeOptim is six points above PipeDream."""
    good = {arm: TABLE_4["Adam", "Residual LSTM"][arm] for arm in GOOD if arm in TABLE_4["Adam", "Residual LSTM"]}
    apart = {"XPipe": 88.0, "GPipe": 87.0, "PipeOptim": 86.0, "PipeDream": 80.0, "PipeDream-2BW": 75.0}
    return arms_of("figure_5a", apart, good)


@part(PAPER, "figure_8", "order", becomes=None)
def either_size_of_a_pass() -> Pair:
    """The order holds with passes of 8 sequences, and not with the largest: the paper names neither."""
    right = {"PipeDream": 150.5}
    return planned("figure_8", right, right | {"PipeOptim, largest": 150.0})


@part(PAPER, "figure_6a", "gpipe_lowest", becomes=None)
def visibly_lowest() -> Pair:
    """GPipe is below XPipe by less than data sheets know."""
    return planned("figure_6a", {}, {"GPipe": 148.95})


@part(PAPER, "text_throughput", "above_gpipe", becomes=None)
def visibly_above() -> Pair:
    return planned("text_throughput", {}, {"GPipe": 150.95})


@part(PAPER, "table_5", "weight_memory")
def more_than_predicted() -> Pair:
    """PipeOptim keeps more than PipeDream does."""
    return planned("table_5", {}, {}, copied=COPIES | {"PipeOptim": [4, 4, 4, 4]})


@part(PAPER, "table_5", "weight_memory")
def of_every_model() -> Pair:
    """Of one model PipeDream-2BW keeps more."""
    (first, *_) = (row["model"] for row in load_paper(PAPER).results["table_5"].reported)

    def make(arm: Arm) -> RunLog:
        more = COPIES | ({"PipeDream-2BW": [4, 4, 4, 4]} if arm.labels["model"] == first else {})
        return plan_log(arm, {}, BATCHES, more)

    return both(PAPER, "table_5", lambda arm: plan_log(arm, {}, BATCHES, COPIES), make, scale="quick")


# Of one model alone, where the case changes all


def of_one_model(result: str, rates: dict[str, float], changed: dict[str, float], worse: dict[str, int]) -> Pair:
    """Plans with these throughputs; and those of the first model otherwise, with other largest passes."""
    first = context(PAPER, result, lambda arm: None, scale="quick").values("model")[0]

    def make(arm: Arm) -> RunLog:
        one = arm.labels["model"] == first
        return plan_log(arm, rates | (changed if one else {}), BATCHES | (worse if one else {}), COPIES)

    return both(PAPER, result, lambda arm: plan_log(arm, rates, BATCHES, COPIES), make, scale="quick")


@part(PAPER, "table_5", "above_pipedream")
def above_pipedream_in_each() -> Pair:
    return of_one_model("table_5", {}, {}, {"PipeOptim": 109})


@part(PAPER, "text_throughput", "above_gpipe")
def above_gpipe_in_each() -> Pair:
    return of_one_model("text_throughput", {}, {"GPipe": 151.5}, {})


@part(PAPER, "figure_5c", "gains")
def over_both() -> Pair:
    """Over PipeDream two BLEU more than printed."""
    paper = TABLE_4["Adam", "GNMT-16"]
    good = {arm: paper[arm] for arm in GOOD if arm in paper}
    return arms_of("figure_5c", {"PipeDream": paper["PipeDream"] - 2.0}, good)


@part(PAPER, "table_4", "sgdm_predicts")
def not_far_above_spectrain() -> Pair:
    return both(PAPER, "table_4", training(printed()), training(printed("SGDM", PipeOptim=-5.0)))


@part(PAPER, "table_4", "sgdm_predicts")
def not_far_below_spectrain() -> Pair:
    return both(PAPER, "table_4", training(printed()), training(printed("SGDM", SpecTrain=-5.0)))
