"""Of claims about PipeDream that rest on several conditions, each that their case leaves alone."""

from __future__ import annotations

from typing import Any

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from tests.results.cases.pipedream import (
    ALIKE,
    MODEL,
    NVLINK,
    PAPER,
    PRINTED,
    SERVERS,
    Row,
    after,
    as_it_is,
    ends_otherwise,
    figure_1,
    linked,
    named,
    one_plan,
    only,
    paper_scale,
    rates,
    real,
    rows,
    sped_up,
    stage_one,
    timed_as,
    training,
    usual,
    waiting,
    with_asp,
)
from tests.results.made_up import Make, Pair, both, context, log, part, with_summary


def of_fifth(kind: str, stage: int, **entries: Any) -> Any:
    """A change of minibatch 5's pass through a stage."""
    return only(lambda row: (row["kind"], row["stage"], row["minibatch"]) == (kind, stage, 4), **entries)


@part(PAPER, "figure_2", "one_worker_at_a_time")
def all_compute() -> Pair:
    """Worker 4 computes nothing."""
    return real("figure_2", as_it_is, rows(lambda row: None if row["worker"] == 3 else row))


@part(PAPER, "figure_4", "updates_between")
def backward_reads_third() -> Pair:
    """Minibatch 5's backward begins before the update of minibatch 4, and does not read it."""
    return real("figure_4", as_it_is, of_fifth("B", 1, start=lambda row: row["start"] - 2, reads=3))


@part(PAPER, "figure_4", "versions_by_stage")
def versions_as_printed() -> Pair:
    """Minibatch 5 enters an update later, and reads it."""
    return real("figure_4", as_it_is, of_fifth("F", 1, start=lambda row: row["start"] + 3, reads=2))


@part(PAPER, "figure_4", "versions_by_stage")
def versions_as_made() -> Pair:
    """An update that the log does not say is read was made by then."""
    return real("figure_4", as_it_is, only(stage_one("B", 1), start=0.0, end=1.0))


@part(PAPER, "figure_4", "staleness")
def staleness_of_stashing() -> Pair:
    """Of weight stashing alone; the other arm is as it should be."""
    older = of_fifth("B", 2, reads=lambda row: row["reads"] - 1)
    return real("figure_4", as_it_is, lambda arm, run: older(arm, run) if arm.labels["arm"] != "vertical sync" else run)


@part(PAPER, "figure_5", "overlap")
def overlap_of_half() -> Pair:
    """In either direction some, together less than half."""
    late = only(lambda row: row["worker"] == 2 and row["kind"] in "FB", start=lambda row: row["start"] + 0.3)
    return real("figure_5", as_it_is, late)


@part(PAPER, "figure_5", "overlap")
def overlap_of_either() -> Pair:
    """None of the gradients', which are short: a forward waits until they are sent."""

    def waits(arm: Arm, run: RunLog) -> RunLog:
        ends = {row["minibatch"]: row["end"] for row in run.rows if (row["worker"], row["kind"]) == (2, "B")}
        sent = lambda row: (row["worker"], row["kind"]) == (2, "send") and row["start"] == ends.get(row["minibatch"])  # noqa: E731
        short = only(sent, end=lambda row: row["start"] + 0.1)
        late = only(lambda row: (row["worker"], row["kind"]) == (2, "F"), start=lambda row: row["start"] + 0.5)
        return after(short, late)(arm, run)

    return real("figure_5", as_it_is, waits)


@part(PAPER, "figure_6", "profile_to_plan")
def every_worker() -> Pair:
    """One is in no stage."""
    return real("figure_6", as_it_is, with_summary(workers=lambda count: count + 1))


@part(PAPER, "figure_6", "profile_to_plan")
def noam_in_flight() -> Pair:
    """One more than NOAM."""

    def more(row: Row) -> list[Row]:
        return [row["stages"][0] | {"versions": row["stages"][0]["versions"] + 1}, *row["stages"][1:]]

    return real("figure_6", as_it_is, only(named(PRINTED), stages=more))


@part(PAPER, "figure_8", "same_replica")
def both_passes() -> Pair:
    """A backward is not there."""
    return real("figure_8", as_it_is, rows(lambda row: None if stage_one("B", 3)(row) else row))


@part(PAPER, "figure_9", "same_within_stage")
def versions_made() -> Pair:
    """Both passes read an update less than was made."""
    return real("figure_9", as_it_is, rows(lambda row: row | {"reads": row["reads"] - (row["minibatch"] == 4)}))


@part(PAPER, "figure_9", "different_across")
def all_different() -> Pair:
    """Stages 3 and 4 read alike."""
    return real("figure_9", as_it_is, of_fifth("F", 3, reads=4))


@part(PAPER, "figure_9", "different_across")
def as_printed_on_two() -> Pair:
    """All read an update less."""
    return real("figure_9", as_it_is, rows(lambda row: row | {"reads": row["reads"] - 1}))


@part(PAPER, "figure_1", "grows")
def never_falls() -> Pair:
    """One line is lower on 16 GPUs than on 8, and higher again on 32."""

    def dented(model: str, servers: str, gpus: int) -> float:
        return usual(model, servers, gpus) - (0.3 if (model, servers, gpus) == ("AWD-LM", NVLINK, 16) else 0.0)

    return figure_1(dented)


@part(PAPER, "figure_1", "grows")
def never_falls_by_a_point() -> Pair:
    """One line rises by three points from 8 to 16 GPUs, and falls by one point to 32."""
    end = {16: 0.73, 32: 0.72}
    return figure_1(lambda m, s, n: end.get(n, 0.7) if (m, s) == ("AWD-LM", NVLINK) and n > 4 else usual(m, s, n))


@part(PAPER, "figure_1", "grows")
def more_than_on_one() -> Pair:
    """One model waits half of its time on any number of GPUs."""
    return figure_1(lambda m, s, n: 0.5 if (m, s) == ("AWD-LM", NVLINK) else usual(m, s, n))


def four_gpus(*beyond: float) -> Pair:
    """Overheads of one model on servers of four GPUs: a half inside, then these on 8, 16 and 32 GPUs."""
    later = dict(zip((8, 16, 32), beyond, strict=True))
    place = ("AWD-LM", "4x V100, PCIe, 10 Gbps")
    return figure_1(lambda m, s, n: later.get(n, 0.5 if n > 1 else 0.0) if (m, s) == place else usual(m, s, n))


@part(PAPER, "figure_1", "jumps_between_servers")
def twice_the_next_doubling() -> Pair:
    """By 10 points, then by 6 and 1."""
    return four_gpus(0.6, 0.66, 0.67)


@part(PAPER, "figure_1", "jumps_between_servers")
def twice_the_last_doubling() -> Pair:
    """By 10 points, then by 1 and 6."""
    return four_gpus(0.6, 0.61, 0.67)


@part(PAPER, "figure_1", "dense_worse")
def visibly_above_resnet() -> Pair:
    """One model waits for half a point more than ResNet-50, on one kind of server."""
    resnet = usual("ResNet-50", NVLINK, 32)
    return figure_1(lambda m, s, n: resnet + 0.005 if (m, s, n) == ("GNMT-8", NVLINK, 32) else usual(m, s, n))


@part(PAPER, "figure_1", "faster_gpus_worse")
def visibly_above_1080ti() -> Pair:
    """One model waits for half a point more with V100s."""
    slow = usual("GNMT-8", next(iter(SERVERS)), 32)
    return figure_1(lambda m, s, n: slow + 0.005 if (m, s, n) == ("GNMT-8", NVLINK, 32) else usual(m, s, n))


@part(PAPER, "figure_1", "as_high_as_90")
def not_as_high_as_96() -> Pair:
    """One model waits for 96 % of its time."""
    return figure_1(lambda m, s, n: 0.96 if (m, s, n) == ("GNMT-8", NVLINK, 32) else usual(m, s, n))


@part(PAPER, "figure_1", "jumps_between_servers")
def visible_jump() -> Pair:
    """By half a point, and then by nothing."""

    def half(model: str, servers: str, gpus: int) -> float:
        return 0.005 * (gpus > 8) if (model, servers) == ("AWD-LM", NVLINK) else usual(model, servers, gpus)

    return figure_1(half)


def higher_by(gap: float) -> Make:
    """Half precision's overheads so much above single precision's."""

    def share(precision: str, servers: str, gpus: int) -> float:
        return usual("GNMT-8", servers, gpus) + (gap if precision == "fp16" else 0.0)

    return waiting(share, "precision")


@part(PAPER, "figure_12", "half_precision_worse")
def visibly_worse() -> Pair:
    """Higher everywhere, by half a point."""
    return both(PAPER, "figure_12", higher_by(0.02), higher_by(0.005), scale="quick")


@part(PAPER, "figure_14a", "gnmt_not_replicated")
def straight_stages() -> Pair:
    """GNMT-16's plan is cut elsewhere than the straight one."""

    def cut(row: Row) -> list[Row]:
        return [row["stages"][0] | {"last": row["stages"][0]["last"] + 1}, *row["stages"][1:]]

    def elsewhere(arm: Arm, run: RunLog) -> RunLog:
        other = only(named(PRINTED), stages=cut)(arm, run) if arm.labels["model"] == "GNMT-16" else run
        return one_plan(arm, other)

    return real("figure_14a", one_plan, elsewhere)


@part(PAPER, "figure_14a", "first_replicated")
def of_several_stages() -> Pair:
    """VGG-16's plan is data parallelism: one stage on all workers."""

    def alone(arm: Arm, run: RunLog) -> RunLog:
        one = only(named(PRINTED), stages=lambda row: [row["stages"][0] | {"replicas": 4}])
        return one_plan(arm, one(arm, run) if arm.labels["model"] == "VGG-16" else run)

    return real("figure_14a", one_plan, alone)


@part(PAPER, "figure_18a", "saturates")
def highest_at_noam() -> Pair:
    """Depth 2 is the fastest."""
    return real("figure_18a", rates({1: 100, 2: 180, 4: 400, 7: 410}), rates({1: 100, 2: 450, 4: 400, 7: 410}))


def at_depth(depth: int, **entries: Any) -> Any:
    """A change of a depth's row."""
    return only(lambda row: row.get("depth") == depth, **entries)


@part(PAPER, "figure_18b", "memory_grows")
def a_version_each() -> Pair:
    """At depth 7 the second of the stages holds a version more than its memory has room for."""

    def more(row: Row) -> list[int]:
        return [row["versions"][0], row["versions"][1] + 1, *row["versions"][2:]]

    return real("figure_18b", as_it_is, at_depth(7, versions=more))


def holding(first: list[int], last: list[int]) -> Any:
    """Real rows in which the first and the last stage hold so many versions at depths 2, 4 and 7."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        one = next(row for row in run.rows if row.get("depth") == 1)
        for i, depth in enumerate((2, 4, 7)):
            row = next(row for row in run.rows if row.get("depth") == depth)
            counts = [first[i], *row["versions"][1:-1], last[i]]
            sizes = [
                once + (count - 1) * (once - stage["weight_bytes"])
                for once, count, stage in zip(one["memory"], counts, one["stages"], strict=True)
            ]
            run = at_depth(depth, versions=counts, memory=sizes)(arm, run)
        return run

    return change


@part(PAPER, "figure_18b", "memory_grows")
def never_less() -> Pair:
    """The last stage holds three versions at depth 4, and two at depth 7."""
    return real("figure_18b", holding([2, 4, 7], [1, 1, 1]), holding([2, 4, 7], [1, 3, 2]))


@part(PAPER, "figure_18b", "memory_grows")
def as_many_as_in_flight() -> Pair:
    """The first stage holds six versions at depth 7."""
    return real("figure_18b", holding([2, 4, 7], [1, 1, 1]), holding([2, 4, 6], [1, 1, 1]))


@part(PAPER, "links", "predicted")
def as_measured() -> Pair:
    """Where the two are told apart by a fifth, and not by a tenth, the other one is foreseen."""
    near, apart = {0.1: 110.0, 2.0: 110.0}, {0.1: 120.0, 2.0: 120.0}
    other = {0.1: 100.0, 2.0: 100.0}
    return both(PAPER, "links", linked(near, other, 0.8), linked(apart, other, 0.8), scale="quick")


@part(PAPER, "text_asp", "less_efficient")
def where_asp_never_comes() -> Pair:
    """Trained for nine times as many epochs it is less efficient; in as many as PipeDream's nobody could tell."""
    return paper_scale("text_asp", with_asp(None), with_asp(15))


@part(PAPER, "text_asp", "seven_times", becomes=None)
def less_than_printed() -> Pair:
    """With fewer stale workers than the paper's a smaller ratio refutes nothing."""
    return paper_scale("text_asp", with_asp(74), with_asp(20))


@part(PAPER, "text_headline_other", "over_model_parallelism")
def from_the_least() -> Pair:
    """To 14.9x, but from 4x."""

    def gains(least: float) -> Any:
        each = {"VGG-16": 14.9, "AlexNet": 6.5, "GNMT-8": least, "GNMT-16": 4.0}
        changes = [timed_as(model, PRINTED, MODEL, gain) for model, gain in each.items()]
        return lambda arm, run: after(*changes)(arm, run) if "servers" not in arm.labels else run

    return real("text_headline_other", gains(2.6), gains(4.0))


@part(PAPER, "text_memory_bound", "about_one")
def a_version_a_stage() -> Pair:
    """A stage of VGG-16 holds more versions than there are stages, in as little memory."""

    def held(more: int) -> Any:
        def change(arm: Arm, run: RunLog) -> RunLog:
            alone = next(row for row in run.rows if row.get("plan") == "data parallel")["memory"][0]
            extra = more if arm.labels["model"] == "VGG-16" else 0
            stages = next(row for row in run.rows if row.get("plan") == "straight")["stages"]
            first = stages[0] | {"versions": stages[0]["versions"] + extra}
            return only(named("straight"), memory=[alone] * len(stages), stages=[first, *stages[1:]])(arm, run)

        return change

    return real("text_memory_bound", held(0), held(1))


@part(PAPER, "figure_18b", "memory_grows")
def as_many_as_in_flight_at_four() -> Pair:
    """The first stage holds three versions at depth 4."""
    return real("figure_18b", holding([2, 4, 7], [1, 1, 1]), holding([2, 3, 7], [1, 1, 1]))


# One of all that a claim is about, where its case changes all of them or the last


FIRST = next(iter(SERVERS))


@part(PAPER, "figure_1", "dense_worse")
def dense_worse_each() -> Pair:
    """One model waits as long as ResNet-50 does, on the first kind of server."""
    return figure_1(lambda m, s, n: usual("ResNet-50" if (m, s) == ("AlexNet", FIRST) else m, s, n))


@part(PAPER, "figure_1", "jumps_between_servers")
def jumps_each() -> Pair:
    """One line on the first kind of server grows evenly."""
    return figure_1(lambda m, s, n: 0.1 * n.bit_length() if (m, s) == ("AlexNet", FIRST) else usual(m, s, n))


@part(PAPER, "figure_12", "half_precision_worse")
def half_worse_on_each() -> Pair:
    """On the first kind of server half precision waits less, on two GPUs."""

    def less(precision: str, servers: str, gpus: int) -> float:
        lower = (precision, servers, gpus) == ("fp16", next(iter(named_servers)), 2)
        return usual("GNMT-8", servers, gpus) + (0.02 if precision == "fp16" else 0.0) - (0.03 if lower else 0.0)

    named_servers = dict.fromkeys(
        item.arm.labels["arm"] for item in context(PAPER, "figure_12", lambda arm: None, scale="quick").items
    )
    return both(PAPER, "figure_12", higher_by(0.02), waiting(less, "precision"), scale="quick")


@part(PAPER, "figure_12", "speedup_carries_over")
def carries_over_on_each() -> Pair:
    """On the first kind of server it does not."""
    first = context(PAPER, "figure_12", lambda arm: None, scale="quick").values("arm")[0]
    whole, less = sped_up(2.5), sped_up(1.9)
    return real("figure_12", whole, lambda arm, run: (less if arm.labels["arm"] == first else whole)(arm, run))


@part(PAPER, "figure_8", "two_units_each")
def two_units_always() -> Pair:
    """One backward ends later."""
    return real("figure_8", as_it_is, only(stage_one("B", 4), end=lambda row: row["end"] + 0.5))


@part(PAPER, "table_1", "same_epochs", becomes=None)
def of_three_one_each_way() -> Pair:
    """One of three needs twice as many, and of another it is open whether a quarter more."""
    late = ALIKE | {("VGG-16", "PipeDream"): 80, ("AWD-LM", "PipeDream"): 37}
    return paper_scale("table_1", training(ALIKE), training(late))


def waits(*percents: float) -> Make:
    """So much of data parallelism's time on 2x8 GNMT-8 and GNMT-16 wait, of which a minibatch takes a second."""
    shares = dict(zip(("GNMT-8", "GNMT-16"), percents, strict=True))

    def make(arm: Arm) -> RunLog | None:
        share = shares.get(arm.labels.get("model", ""))
        if share is None or arm.labels["what"] != "plan":
            return None
        alone = {"what": "plan", "plan": "data parallel", "timed": 1 / 16 / (1 - share / 100)}
        return log([alone], forward_ms=400.0, backward_ms=600.0, workers=16)

    return make


@part(PAPER, "table_1", "gnmt8_less_overhead")
def visibly_less() -> Pair:
    """By 1.1 points of the time of all GPUs, and by 0.9."""
    return both(PAPER, "table_1", waits(10.0, 11.1), waits(10.0, 10.9))


def half_the_epochs(result: str) -> Pair:
    """Two models need half as many under PipeDream."""
    early = {("VGG-16", "PipeDream"): 20, ("GNMT-16", "PipeDream"): 10}
    return paper_scale(result, training(ALIKE), training(ALIKE | early))


@part(PAPER, "table_1", "same_epochs")
def two_of_three_not_fewer() -> Pair:
    return half_the_epochs("table_1")


@part(PAPER, "figure_11", "same_epochs_vgg16")
def not_fewer() -> Pair:
    return half_the_epochs("figure_11")


@part(PAPER, "figure_11", "same_epochs_gnmt16")
def not_fewer_of_gnmt() -> Pair:
    return half_the_epochs("figure_11")


@part(PAPER, "figure_11", "as_many_epochs_here")
def not_fewer_here() -> Pair:
    return half_the_epochs("figure_11")


@part(PAPER, "figure_11", "ends_alike_here")
def not_above() -> Pair:
    return ends_otherwise("figure_11", "VGG-16", lambda accuracy: accuracy + 5)


@part(PAPER, "text_headline_tta", "language_ends_alike_here")
def perplexity_not_below() -> Pair:
    return ends_otherwise("text_headline_tta", "AWD-LM", lambda perplexity: perplexity / 1.03)
