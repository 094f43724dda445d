"""How each claim of PipeDream is made true and false."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from pipelag.results.plans import READINGS
from tests.results.made_up import OFFICIAL, Make, Pair, altered, both, carried_out, case, context, log, with_rows

PAPER = "pipedream"
Row = dict[str, Any]


def real(
    result: str, holds: Callable[[Arm, RunLog], RunLog | None], fails: Callable[[Arm, RunLog], RunLog | None]
) -> Pair:
    """Two alterations of the real logs of runs that need no training."""
    return both(PAPER, result, altered(holds), altered(fails), scale="quick")


def as_it_is(arm: Arm, run: RunLog) -> RunLog:
    """The real log."""
    return run


def rows(change: Callable[[Row], Row | None]) -> Callable[[Arm, RunLog], RunLog]:
    """A change of every row."""
    return with_rows(change)


def only(meant: Callable[[Row], bool], **entries: Any) -> Callable[[Arm, RunLog], RunLog]:
    """Entries of some rows changed; a function gets the row."""

    def change(row: Row) -> Row:
        if not meant(row):
            return row
        return row | {key: value(row) if callable(value) else value for key, value in entries.items()}

    return rows(change)


def named(*names: str) -> Callable[[Row], bool]:
    """Rows of these plans."""
    return lambda row: row.get("plan") in names


# Schedules


@case(PAPER, "figure_2", "one_worker_at_a_time")
def one_worker_at_a_time() -> Pair:
    """A pass that runs on into the next worker's."""
    longer = only(lambda row: row["kind"] == "F" and row["stage"] == 2, end=lambda row: row["end"] + 0.5)
    return real("figure_2", as_it_is, longer)


@case(PAPER, "figure_2", "a_quarter_used")
def a_quarter_used() -> Pair:
    """The last backward takes longer."""
    longer = only(lambda row: row["kind"] == "B" and row["stage"] == 1, end=lambda row: row["end"] + 1)
    return real("figure_2", as_it_is, longer)


@case(PAPER, "figure_3", "idle_at_flush")
def idle_at_flush() -> Pair:
    """Worker 4 begins the next minibatch as soon as it is done with one."""

    def earlier(arm: Arm, run: RunLog) -> RunLog:
        last = [row for row in run.rows if row["worker"] == 3]
        gap = min(r["start"] for r in last if r["minibatch"] == 1) - max(r["end"] for r in last if r["minibatch"] == 0)
        moved = {"start": lambda row: row["start"] - gap, "end": lambda row: row["end"] - gap}
        return only(lambda row: row["worker"] == 3 and row["minibatch"] == 1, **moved)(arm, run)

    return real("figure_3", as_it_is, earlier)


@case(PAPER, "figure_3", "bubble_falls_with_m")
def bubble_falls_with_m() -> Pair:
    """With 16 microbatches the last backward takes so long that all wait."""

    def slower(arm: Arm, run: RunLog) -> RunLog:
        last = max(row["end"] for row in run.rows)
        late = only(lambda row: row["end"] == last, end=lambda row: row["end"] + 60)
        return late(arm, run) if arm.labels["arm"] == "16" else run

    return real("figure_3", as_it_is, slower)


def stage_one(kind: str, minibatch: int | None = None) -> Callable[[Row], bool]:
    return lambda row: (row["kind"], row["stage"]) == (kind, 1) and minibatch in (None, row["minibatch"])


@case(PAPER, "figure_4", "noam")
def noam() -> Pair:
    """The fourth enters after the first came back."""
    late = only(stage_one("F", 3), start=15.0, end=16.0)
    return real("figure_4", as_it_is, late)


@case(PAPER, "figure_4", "all_busy")
def all_busy() -> Pair:
    """One forward of worker 2 is half as long."""
    short = only(
        lambda row: (row["kind"], row["stage"], row["minibatch"]) == ("F", 2, 5), end=lambda row: row["end"] - 0.5
    )
    return real("figure_4", as_it_is, short)


@case(PAPER, "figure_4", "updates_between")
def updates_between() -> Pair:
    """The update of minibatch 2 comes before the forward of minibatch 5, though the log says that it is not read."""
    early = only(stage_one("B", 1), start=10.0, end=11.0)
    return real("figure_4", as_it_is, early)


@case(PAPER, "figure_4", "versions_by_stage")
def versions_by_stage() -> Pair:
    """Every pass reads an update less."""
    return real("figure_4", as_it_is, rows(lambda row: row | {"reads": row["reads"] - 1}))


@case(PAPER, "figure_4", "vertical_sync")
def vertical_sync() -> Pair:
    """The last stage's forward of minibatch 5 reads what is current."""
    current = only(lambda row: (row["kind"], row["stage"], row["minibatch"]) == ("F", 4, 4), reads=4)
    return real("figure_4", as_it_is, current)


@case(PAPER, "figure_4", "staleness")
def staleness() -> Pair:
    """Stage 2 reads an update less in the backward of one minibatch."""
    older = only(
        lambda row: (row["kind"], row["stage"], row["minibatch"]) == ("B", 2, 6), reads=lambda row: row["reads"] - 1
    )
    return real("figure_4", as_it_is, older)


@case(PAPER, "figure_5", "overlap")
def overlap() -> Pair:
    """Worker 3 waits while it sends: each of its passes ends when its message has arrived."""

    def sends_first(arm: Arm, run: RunLog) -> RunLog:
        late = {"start": lambda row: row["start"] + 0.5}
        return only(lambda row: row["worker"] == 2 and row["kind"] in "FB", **late)(arm, run)

    return real("figure_5", as_it_is, sends_first)


@case(PAPER, "figure_8", "round_robin")
def round_robin() -> Pair:
    """The replicas' turns are exchanged."""
    swapped = only(lambda row: row["worker"] < 2, worker=lambda row: 1 - row["worker"])
    return real("figure_8", as_it_is, swapped)


@case(PAPER, "figure_8", "same_replica")
def same_replica() -> Pair:
    """One backward runs on the other replica."""
    return real("figure_8", as_it_is, only(stage_one("B", 3), worker=0))


@case(PAPER, "figure_8", "two_units_each")
def two_units_each() -> Pair:
    """Everything takes a tenth longer."""
    slower = rows(lambda row: row | {"start": 1.1 * row["start"], "end": 1.1 * row["end"]})
    return real("figure_8", as_it_is, slower)


@case(PAPER, "figure_8", "noam_two")
def noam_two() -> Pair:
    """A third minibatch enters on worker 1."""
    return real("figure_8", as_it_is, only(stage_one("F", 4), start=3.0, end=4.0))


@case(PAPER, "figure_9", "same_within_stage")
def same_within_stage() -> Pair:
    """Backwards read the live weights."""
    live = only(lambda row: row["kind"] == "B", reads=lambda row: row["reads"] + row["delay"])
    return real("figure_9", as_it_is, live)


@case(PAPER, "figure_9", "different_across")
def different_across() -> Pair:
    """Vertical sync: all stages read what the first one does."""
    return real("figure_9", as_it_is, rows(lambda row: row | {"reads": max(0, row["minibatch"] - 3)}))


# Communication of data parallelism. Its rows are written here as `partition` runs log them.

GPUS = (1, 2, 4, 8, 16, 32)
SERVERS = {"8x 1080Ti, PCIe, 25 Gbps": 8, "4x V100, PCIe, 10 Gbps": 4, "8x V100, NVLink, 25 Gbps": 8}
Share = Callable[[str, str, int], float]  # of (model or precision, servers, GPUs): the overhead


def waiting(share: Share, label: str = "model") -> Make:
    """Logs with these overheads."""

    def make(arm: Arm) -> RunLog:
        name, servers = arm.labels[label], arm.labels["arm"]
        one = [{"what": "plan", "plan": f"data parallel over {n}", "workers": n} for n in GPUS]
        return log([row | {"overhead": share(name, servers, row["workers"])} for row in one])

    return make


def usual(model: str, servers: str, gpus: int) -> float:
    """Overheads as the paper has them: they grow, jump behind the first server, and flatten."""
    size = SERVERS[servers]
    base = 0.1 if model == "ResNet-50" else 0.55
    grown = 0.02 * min(gpus, size).bit_length() - 0.02 + (0.2 if gpus > size else 0.0)
    beyond = 0.015 * (gpus // size).bit_length() if gpus > size else 0.0
    return 0.0 if gpus == 1 else base + grown + beyond + (0.05 if "V100" in servers else 0.0)


def figure_1(share: Share) -> Pair:
    """The usual overheads, and others."""
    return both(PAPER, "figure_1", waiting(usual), waiting(share), scale="quick")


NVLINK = "8x V100, NVLink, 25 Gbps"


@case(PAPER, "figure_1", "grows")
def grows() -> Pair:
    """One model's overhead is as good as none on one kind of server: it rises by a thousandth of a point."""
    tiny: Share = lambda m, s, n: 1e-5 * n if (m, s) == ("ResNet-50", NVLINK) else usual(m, s, n)  # noqa: E731
    return figure_1(tiny)


@case(PAPER, "figure_1", "grows_inside")
def grows_inside() -> Pair:
    """NVLink hides one model's communication inside a server."""
    hidden: Share = lambda m, s, n: 0.0 if (m, s) == ("GNMT-8", NVLINK) and n <= 8 else usual(m, s, n)  # noqa: E731
    return figure_1(hidden)


@case(PAPER, "figure_1", "jumps_between_servers")
def jumps_between_servers() -> Pair:
    """One line grows evenly."""

    def even(model: str, servers: str, gpus: int) -> float:
        return 0.1 * gpus.bit_length() if (model, servers) == ("AWD-LM", NVLINK) else usual(model, servers, gpus)

    return figure_1(even)


@case(PAPER, "figure_1", "dense_worse")
def dense_worse() -> Pair:
    """ResNet-50 waits as long as the others on one kind of server."""

    def equal(model: str, servers: str, gpus: int) -> float:
        return usual("VGG-16" if servers == NVLINK else model, servers, gpus)

    return figure_1(equal)


@case(PAPER, "figure_1", "faster_gpus_worse")
def faster_gpus_worse() -> Pair:
    """One model waits as long on either GPU."""

    def same(model: str, servers: str, gpus: int) -> float:
        return usual(model, next(iter(SERVERS)) if model == "AlexNet" and servers == NVLINK else servers, gpus)

    return figure_1(same)


@case(PAPER, "figure_1", "as_high_as_90")
def as_high_as_90() -> Pair:
    """Eight points less at the top."""
    return figure_1(lambda model, servers, gpus: min(0.82, usual(model, servers, gpus)))


@case(PAPER, "figure_12", "half_precision_worse")
def half_precision_worse() -> Pair:
    """On two GPUs half precision waits less."""

    def share(precision: str, servers: str, gpus: int) -> float:
        return usual("GNMT-8", servers, gpus) + (0.02 if precision == "fp16" else 0.0)

    def less(precision: str, servers: str, gpus: int) -> float:
        return share(precision, servers, gpus) - (0.03 if (precision, gpus) == ("fp16", 2) else 0.0)

    return both(PAPER, "figure_12", waiting(share, "precision"), waiting(less, "precision"), scale="quick")


CLOUD = {"GNMT-8": 1.94, "SSD": 3.29, "Mask R-CNN": 2.32}


def cloud(ratios: Mapping[str, float]) -> Make:
    """Logs of table 3 with such ratios of times."""

    def make(arm: Arm) -> RunLog:
        seconds = ratios[arm.labels["model"]] if arm.labels["arm"] == "Cluster-B" else 1.0
        return log([{"what": "plan", "plan": f"data parallel over {n}", "timed": seconds} for n in (64, 256)])

    return make


@case(PAPER, "table_3", "cloud_slower")
def cloud_slower() -> Pair:
    """SSD is as fast on the public cloud."""
    return both(PAPER, "table_3", cloud(CLOUD), cloud(CLOUD | {"SSD": 1.004}), scale="quick")


@case(PAPER, "table_3", "ratios")
def cloud_ratios() -> Pair:
    """Mask R-CNN loses more than a fifth more."""
    return both(PAPER, "table_3", cloud(CLOUD), cloud(CLOUD | {"Mask R-CNN": 2.9}), scale="quick")


# Plans. Real ones, of the quick scale's profiles, with the entries changed that a claim is about.

PRINTED, RING = "PipeDream", "PipeDream, ring"
TABLE_1 = {
    ("VGG-16", "4x4 (A)"): ("15-1", 5.28),
    ("VGG-16", "2x8 (B)"): ("15-1", 2.98),
    ("ResNet-50", "4x4 (A)"): ("16", 1.0),
    ("ResNet-50", "2x8 (B)"): ("16", 1.0),
    ("AlexNet", "4x4 (A)"): ("15-1", 4.92),
    ("AlexNet", "2x8 (B)"): ("15-1", 2.04),
    ("GNMT-16", "1x4 (A)"): ("straight", 1.46),
    ("GNMT-16", "4x4 (A)"): ("straight", 2.34),
    ("GNMT-16", "2x8 (B)"): ("straight", 3.14),
    ("GNMT-8", "1x4 (A)"): ("straight", 1.5),
    ("GNMT-8", "3x4 (A)"): ("straight", 2.95),
    ("GNMT-8", "2x8 (B)"): ("16", 1.0),
    ("AWD-LM", "1x4 (A)"): ("straight", 4.25),
    ("S2VT", "4x1 (C)"): ("2-1-1", 3.01),
}
Cells = Mapping[tuple[str, str], tuple[str, float]]


def as_planned(cells: Cells) -> Callable[[Arm, RunLog], RunLog]:
    """Real logs of table 1 in which the plans of both costs, and the paper's own, are so and so much faster."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        config, speedup = cells[arm.labels["model"], arm.labels["servers"]]
        # the language model is searched for with 20 on each GPU, and its pipeline timed with 80
        alone = next(row for row in run.rows if row.get("plan") == "data parallel")["samples_per_second"]
        if arm.labels.get("batch") == "80":
            alone = alone_of_20()
        new = {"samples_per_second": alone * speedup, "config": config}
        pipelines = {PRINTED, RING, "straight", "15-1", "2-1-1"}
        changed = only(lambda row: row.get("plan") in pipelines, **new)(arm, run)
        return only(named("data parallel"), samples_per_second=alone)(arm, changed)

    return change


@functools.cache
def alone_of_20() -> float:
    """Samples per second of the language model's data parallelism with 20 on each GPU."""
    run = context(PAPER, "text_weight_size_lm", carried_out, scale="quick").log(batch="20")
    assert run is not None
    return float(next(row for row in run.rows if row.get("plan") == "data parallel")["samples_per_second"])


def table_1(change: Mapping[tuple[str, str], tuple[str, float]], result: str = "table_1") -> Pair:
    """The paper's own plans and speedups; and some of them changed."""
    return real(result, as_planned(TABLE_1), as_planned(TABLE_1 | dict(change)))


@case(PAPER, "table_1", "at_least_one")
def at_least_one() -> Pair:
    """One plan loses a hundredth."""
    return table_1({("S2VT", "4x1 (C)"): ("2-1-1", 0.99)})


@case(PAPER, "table_1", "one_where_data_parallel")
def one_where_data_parallel() -> Pair:
    """GNMT-8 gains on Cluster-B."""
    return table_1({("GNMT-8", "2x8 (B)"): ("8-8", 1.3)})


def _plan(claim: str, model: str, servers: str, other: str) -> None:
    @case(PAPER, "table_1", claim)
    def planned() -> Pair:
        """Another plan in one row."""
        return table_1({(model, servers): (other, TABLE_1[model, servers][1])})


for _claim, _model, _servers, _other in (
    ("plan_vgg16", "VGG-16", "2x8 (B)", "14-1-1"),
    ("plan_alexnet", "AlexNet", "4x4 (A)", "12-1-2-1"),
    ("plan_resnet50", "ResNet-50", "4x4 (A)", "12-4"),
    ("plan_gnmt16", "GNMT-16", "2x8 (B)", "8-8"),
    ("plan_gnmt8", "GNMT-8", "2x8 (B)", "straight"),
    ("plan_awd_lm", "AWD-LM", "1x4 (A)", "2-2"),
    ("plan_s2vt", "S2VT", "4x1 (C)", "1-3"),
):
    _plan(_claim, _model, _servers, _other)


@case(PAPER, "table_1", "epoch_speedups")
def epoch_speedups() -> Pair:
    """VGG-16 gains less than half as much on Cluster-A; GNMT-8 can be straight."""

    def long(cells: Cells) -> Callable[[Arm, RunLog], RunLog]:
        def change(arm: Arm, run: RunLog) -> RunLog:
            changed = as_planned(cells)(arm, run)
            if any(row.get("plan") == "straight" for row in changed.rows):
                return changed
            found_plan = next(row for row in changed.rows if row.get("plan") == PRINTED)
            return replace(changed, rows=[*changed.rows, found_plan | {"plan": "straight"}])

        return change

    return real("table_1", long(TABLE_1), long(TABLE_1 | {("VGG-16", "4x4 (A)"): ("15-1", 2.25)}))


@case(PAPER, "table_1", "vgg16_gains_more_here")
def slower_links_gain_more() -> Pair:
    """As much on B as on A."""
    return table_1({("VGG-16", "2x8 (B)"): ("15-1", 5.28)})


@case(PAPER, "text_optimizer_time", "under_8_s")
def under_8_s() -> Pair:
    """One search takes as long as the paper's longest."""

    def slow(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels["model"] != "ResNet-50":
            return run
        return only(named(RING), search_seconds=8.0)(arm, run)

    return real("text_optimizer_time", as_it_is, slow)


@case(PAPER, "figure_6", "profile_to_plan")
def profile_to_plan() -> Pair:
    """The plan leaves the last profiled layer out."""

    def shorter(row: Row) -> list[Row]:
        return [*row["stages"][:-1], row["stages"][-1] | {"last": row["stages"][-1]["last"] - 1}]

    return real("figure_6", as_it_is, only(named(PRINTED), stages=shorter))


def timed_as(model: str, plan: str, over: str, factor: float) -> Callable[[Arm, RunLog], RunLog]:
    """Real logs in which a plan of a model is so many times as fast as another of it."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels.get("model") != model:
            return run
        slow = next(row for row in run.rows if row.get("plan") == over)["timed"]
        return only(named(plan), timed=slow / factor)(arm, run)

    return change


def after(*changes: Callable[[Arm, RunLog], RunLog]) -> Callable[[Arm, RunLog], RunLog]:
    """One change after the other."""

    def all_of_them(arm: Arm, run: RunLog) -> RunLog:
        for change in changes:
            run = change(arm, run)
        return run

    return all_of_them


MODEL = "model parallel"


@case(PAPER, "figure_14a", "pipelining_doubles")
def pipelining_doubles() -> Pair:
    """1.9x for one of the four."""
    return real("figure_14a", as_it_is, timed_as("AlexNet", "straight", MODEL, 1.9))


def replicated(model: str, replicas: int) -> Callable[[Arm, RunLog], RunLog]:
    """The first stage of PipeDream's plan of a model has so many workers."""

    def stages(row: Row) -> list[Row]:
        return [row["stages"][0] | {"replicas": replicas}, *row["stages"][1:]]

    def change(arm: Arm, run: RunLog) -> RunLog:
        return only(named(PRINTED), stages=stages)(arm, run) if arm.labels["model"] == model else run

    return change


def one_plan(arm: Arm, run: RunLog) -> RunLog:
    """A ring's cost gives the printed cost's plan."""
    row = next(row for row in run.rows if row.get("plan") == PRINTED)
    return only(named(RING), stages=row["stages"], config=row["config"])(arm, run)


@case(PAPER, "figure_14a", "gnmt_not_replicated")
def gnmt_not_replicated() -> Pair:
    """GNMT-16's first stage is replicated, though the plan calls itself straight."""
    return real("figure_14a", one_plan, lambda arm, run: one_plan(arm, replicated("GNMT-16", 2)(arm, run)))


@case(PAPER, "figure_14a", "first_replicated")
def first_replicated() -> Pair:
    """VGG-16's first stage is not."""
    return real("figure_14a", one_plan, lambda arm, run: one_plan(arm, replicated("VGG-16", 1)(arm, run)))


@case(PAPER, "figure_14a", "vgg16_14_9")
def vgg16_14_9() -> Pair:
    """12x is too far from 14.9x."""
    return real("figure_14a", timed_as("VGG-16", PRINTED, MODEL, 13.0), timed_as("VGG-16", PRINTED, MODEL, 12.0))


@case(PAPER, "figure_14a", "alexnet_6_5")
def alexnet_6_5() -> Pair:
    """8x is too far from 6.5x."""
    return real("figure_14a", timed_as("AlexNet", PRINTED, MODEL, 6.0), timed_as("AlexNet", PRINTED, MODEL, 8.0))


SEVERAL, HYBRID = "several stages", "several stages, not pipelined"


@case(PAPER, "figure_14b", "pipelining_gains")
def pipelining_gains() -> Pair:
    """AlexNet gains nothing."""
    return real("figure_14b", as_it_is, timed_as("AlexNet", SEVERAL, HYBRID, 1.0))


@case(PAPER, "figure_14b", "as_much_as_80")
def as_much_as_80() -> Pair:
    """99 %."""
    return real("figure_14b", timed_as("VGG-16", SEVERAL, HYBRID, 1.8), timed_as("VGG-16", SEVERAL, HYBRID, 1.99))


def swept(real_rate: Callable[[int, float], float], chosen: float = 1e9) -> Callable[[Arm, RunLog], RunLog]:
    """The real partitions, timed by their number and predicted rate; the chosen plan so much faster than they."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        batch = run.summary["batch"]

        def timed(row: Row) -> float:
            number = int(row["plan"].split()[1]) if row["plan"].startswith("partition") else 0
            return batch / real_rate(number, batch / row["predicted"]["paper"])

        run = only(lambda row: row["what"] == "plan", timed=timed)(arm, run)
        best = min(row["timed"] for row in run.rows if row["what"] == "plan" and row["plan"] != PRINTED)
        return only(named(PRINTED), timed=best / chosen)(arm, run) if chosen < 1e9 else run

    return change


@case(PAPER, "figure_15", "correlated")
def correlated() -> Pair:
    """How fast a partition is has nothing to do with the prediction."""
    return real(
        "figure_15",
        swept(lambda number, predicted: 0.9 * predicted),
        swept(lambda number, predicted: 1000.0 + 100 * (7 * number % 13)),
    )


@case(PAPER, "figure_15", "best_chosen")
def best_chosen() -> Pair:
    """One of the others is a hundredth faster."""
    return real("figure_15", swept(lambda number, p: p, chosen=1.01), swept(lambda number, p: p, chosen=1 / 1.01))


def on_two_workers(rate: Callable[[float], float]) -> Make:
    """Logs of a profile of equal layers and of pipelines that are so fast, by the larger stage's milliseconds."""

    def make(arm: Arm) -> RunLog | None:
        if arm.spec.kind == "profile":
            return log([{"layer": i, "forward_ms": 1.0, "backward_ms": 2.0} for i in range(1, 17)])
        if arm.spec.kind != "speed":
            return None
        cut = int(arm.labels["cut"])
        slowest = 3.0 * max(cut, 16 - cut)
        blocks = [{"arm": "pipelined", "block": b, "samples_per_second": rate(slowest) + b} for b in range(2)]
        return log([*blocks, {"arm": "non-pipelined", "block": 0, "samples_per_second": 1.0}], batch=32)

    return make


@case(PAPER, "figure_15", "correlated_here")
def correlated_here() -> Pair:
    """The measured rates hardly depend on the slower stage."""
    return both(
        PAPER,
        "figure_15",
        on_two_workers(lambda slowest: 30_000 / slowest),
        on_two_workers(lambda slowest: 1000 + 40 * (slowest % 4)),
        scale="quick",
    )


def held(factor: float) -> Callable[[Arm, RunLog], RunLog]:
    """The straight pipeline's worst stage holds so many times what data parallelism does; the others half."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        alone = next(row for row in run.rows if row.get("plan") == "data parallel")["memory"][0]
        worst = alone * (factor if arm.labels["model"] == "GNMT-8" else 1.0)
        return only(named("straight"), memory=[worst, alone / 2, alone / 2, alone / 2])(arm, run)

    return change


@case(PAPER, "figure_16", "on_par")
def on_par() -> Pair:
    """A fifth more is not on par."""
    return real("figure_16", held(1.05), held(1.2))


@case(PAPER, "text_memory_bound", "about_one")
def about_one() -> Pair:
    """The same."""
    return real("text_memory_bound", held(1.05), held(1.2))


def grown(most: float) -> Make:
    """Straight pipelines whose worst stage holds what data parallelism does; AlexNet's over 16 GPUs more."""

    def make(arm: Arm) -> RunLog:
        stages = math.prod(level["workers"] for level in arm.spec.options["cluster"]["levels"])
        share = most if stages > 4 and arm.labels["model"] == "AlexNet" else 1.0
        straight = {"what": "plan", "plan": "straight", "stages": [{}] * stages, "memory": [share * 1e9] * stages}
        return log([straight, {"what": "plan", "plan": "data parallel", "memory": [1e9]}])

    return make


@case(PAPER, "text_memory_over_stages", "stays")
def stays() -> Pair:
    """One model's grows by half."""
    return both(PAPER, "text_memory_over_stages", grown(1.05), grown(1.5), scale="quick")


def sped_up(half: float) -> Callable[[Arm, RunLog], RunLog]:
    """Plans that are twice as fast as data parallelism in single precision, and so many times in half."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        alone = next(row for row in run.rows if row.get("plan") == "data parallel")["timed"]
        gain = half if arm.labels["precision"] == "fp16" else 2.0
        return only(named("PipeDream", "PipeDream, ring"), timed=alone / gain)(arm, run)

    return change


@case(PAPER, "figure_12", "speedup_carries_over")
def speedup_carries_over() -> Pair:
    """A little less is less."""
    return real("figure_12", sped_up(2.5), sped_up(1.9))


@case(PAPER, "table_1", "gnmt8_less_overhead")
def gnmt8_less_overhead() -> Pair:
    """Data parallelism of one of the two waits for most of its time."""

    def slow(model: str) -> Callable[[Arm, RunLog], RunLog | None]:
        def change(arm: Arm, run: RunLog) -> RunLog | None:
            if arm.labels["what"] != "plan":
                return None
            waits = only(named("data parallel"), timed=lambda row: 100 * row["timed"])
            return waits(arm, run) if arm.labels["model"] == model else run

        return change

    return real("table_1", slow("GNMT-16"), slow("GNMT-8"))


@case(PAPER, "table_1", "gnmt8_too_few_layers")
def gnmt8_too_few_layers() -> Pair:
    """A straight plan whose stages all have work; the data sheet's profile has ten layers."""

    def planned(arm: Arm, run: RunLog) -> RunLog | None:
        if arm.labels["what"] != "plan":
            return None
        stages = [{"forward_ms": 1.0, "backward_ms": 2.0}] * 16
        straight = {"what": "plan", "plan": "straight", "stages": stages, "samples_per_second": 99.0}
        return log([*run.rows, straight], **run.summary)

    return real("table_1", as_it_is, planned)


def sent(model: str, share: float) -> Callable[[Arm, RunLog], RunLog]:
    """The best plan of several stages sends such a share of data parallelism's bytes."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels["model"] != model:
            return run
        alone = next(row for row in run.rows if row.get("plan") == "data parallel")["bytes_per_sample"]
        return only(named(SEVERAL), bytes_per_sample=share * alone)(arm, run)

    return change


@case(PAPER, "figure_17", "far_less")
def far_less() -> Pair:
    """GNMT-8 saves a third only."""
    return real("figure_17", as_it_is, sent("GNMT-8", 0.67))


@case(PAPER, "figure_17", "resnet_more")
def resnet_more() -> Pair:
    """A little less than data parallelism."""
    return real("figure_17", as_it_is, sent("ResNet-50", 0.99))


def rates(by_depth: Mapping[int, float]) -> Callable[[Arm, RunLog], RunLog]:
    """Throughputs by depth."""
    return only(lambda row: "depth" in row, samples_per_second=lambda row: by_depth[row["depth"]])


@case(PAPER, "figure_18a", "grows_to_noam")
def grows_to_noam() -> Pair:
    """Depth 2 is no faster than no pipelining."""
    return real("figure_18a", rates({1: 100, 2: 180, 4: 400, 7: 410}), rates({1: 100, 2: 102, 4: 400, 7: 410}))


@case(PAPER, "figure_18a", "saturates")
def saturates() -> Pair:
    """Depth 7 is a quarter faster than NOAM."""
    return real("figure_18a", rates({1: 100, 2: 180, 4: 400, 7: 410}), rates({1: 100, 2: 180, 4: 400, 7: 500}))


@case(PAPER, "figure_18b", "memory_grows")
def memory_grows() -> Pair:
    """At depth 7 the first stage holds no more than at 4."""

    def capped(arm: Arm, run: RunLog) -> RunLog:
        four = next(row for row in run.rows if row.get("depth") == 4)["memory"]
        return only(lambda row: row.get("depth") == 7, memory=four)(arm, run)

    return real("figure_18b", as_it_is, capped)


@case(PAPER, "figure_18b", "stages_differ")
def stages_differ() -> Pair:
    """All stages alike without pipelining."""
    return real("figure_18b", as_it_is, only(lambda row: row.get("depth") == 1, memory=[1e9] * 4))


def gpipe(slowdowns: Mapping[tuple[str, str], float]) -> Callable[[Arm, RunLog], RunLog]:
    """GPipe loses such percentages, by (plan, cluster)."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels["arm"] not in ("Cluster-A", "Cluster-B"):
            return run
        line = next(row for row in run.rows if row.get("plan") == "straight")["timed"]
        for plan in ("GPipe, NOAM", "GPipe, most that fit"):
            run = only(named(plan), timed=line / (1 - slowdowns[plan, arm.labels["arm"]] / 100))(arm, run)
        return run

    return change


PRINTED_SLOWDOWNS = {
    ("GPipe, NOAM", "Cluster-A"): 55.0,
    ("GPipe, NOAM", "Cluster-B"): 71.0,
    ("GPipe, most that fit", "Cluster-A"): 35.0,
    ("GPipe, most that fit", "Cluster-B"): 42.0,
}


@case(PAPER, "text_gpipe_comparison", "slower_shallow")
def slower_shallow() -> Pair:
    """On Cluster-A the deeper one loses as much."""
    deep = PRINTED_SLOWDOWNS | {("GPipe, most that fit", "Cluster-A"): 55.0}
    return real("text_gpipe_comparison", gpipe(PRINTED_SLOWDOWNS), gpipe(deep))


@case(PAPER, "text_gpipe_comparison", "as_slow_as_printed")
def as_slow_as_printed() -> Pair:
    """On Cluster-B it loses 60 % where the paper has 71."""
    less = PRINTED_SLOWDOWNS | {("GPipe, NOAM", "Cluster-B"): 60.0}
    return real("text_gpipe_comparison", gpipe(PRINTED_SLOWDOWNS), gpipe(less))


@case(PAPER, "text_headline_other", "over_model_parallelism")
def over_model_parallelism() -> Pair:
    """From 2.6x, but to 8x only."""

    def gains(most: float) -> Callable[[Arm, RunLog], RunLog]:
        each = {"VGG-16": most, "AlexNet": 6.5, "GNMT-8": 2.6, "GNMT-16": 3.0}
        changes = [timed_as(model, PRINTED, MODEL, gain) for model, gain in each.items()]
        return lambda arm, run: after(*changes)(arm, run) if "servers" not in arm.labels else run

    return real("text_headline_other", gains(14.9), gains(8.0))


@case(PAPER, "text_headline_other", "over_gpipe")
def over_gpipe() -> Pair:
    """28 % is 1.39x."""
    less = PRINTED_SLOWDOWNS | {("GPipe, most that fit", "Cluster-B"): 28.0}
    return real("text_headline_other", gpipe(PRINTED_SLOWDOWNS), gpipe(less))


def saving(model: str, percent: float) -> Callable[[Arm, RunLog], RunLog]:
    """The paper's plan of a model saves so much of data parallelism's bytes."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels["model"] != model:
            return run
        alone = next(row for row in run.rows if row.get("plan") == "data parallel")["bytes_per_sample"]
        papers_plan = lambda row: row.get("plan") in ("15-1", "straight", "2-1-1")  # noqa: E731
        return only(papers_plan, bytes_per_sample=alone * (1 - percent / 100))(arm, run)

    return change


def _saves(claim: str, model: str, holds: float, fails: float) -> None:
    @case(PAPER, "text_communication_reduction", claim)
    def saves() -> Pair:
        """More bytes are sent."""
        return real("text_communication_reduction", saving(model, holds), saving(model, fails))


for _claim, _model, _holds, _fails in (
    ("vgg16_85", "VGG-16", 85.1, 84.9),
    ("awd_lm_85", "AWD-LM", 85.1, 84.9),
    ("awd_lm_88", "AWD-LM", 88.3, 93.1),
    ("s2vt_85", "S2VT", 85.2, 83.9),
):
    _saves(_claim, _model, _holds, _fails)


# Training. Curves that reach the paper's target in so many epochs; times as made up.


def learns(
    epochs: float | None, target: float, key: str = "accuracy", length: float = 90.0, early: float = 0.0
) -> RunLog:
    """A run that reaches a target after so many epochs (none: never): an evaluation per epoch."""
    falling = key == "perplexity"
    lines = []
    for epoch in range(1, int(length) + 1):
        there = epochs is not None and epoch >= epochs
        value = target if there else target * (1.5 if falling else 0.6)
        lines.append({"step": 100 * epoch, "epoch": float(epoch), key: value, "accuracy": value, "loss": 1.0})
    return log(lines, final=lines[-1], best=lines[-1], diverged_at=None, data=OFFICIAL, phases=[{"stages": 1}])


METRICS = {"VGG-16": ("accuracy", 68.0), "GNMT-16": ("bleu", 21.8), "AWD-LM": ("perplexity", 98.0)}
Epochs = Mapping[tuple[str, str], float | None]  # by (model, arm)


def training(epochs: Epochs, plans: Make | None = None) -> Make:
    """Runs of the paper's length that need so many epochs to the target; seeds 0, 1, 2 a bit more or less."""

    def make(arm: Arm) -> RunLog | None:
        if arm.spec.kind != "train":
            return plans(arm) if plans else None
        model = arm.labels.get("model", "VGG-16")
        needed = epochs[model, arm.labels["arm"]]
        key, target = METRICS[model]
        return learns(None if needed is None else needed + arm.seed - 1, target, key)

    return make


ALIKE: Epochs = {
    (model, arm): epochs
    for model, epochs in (("VGG-16", 40), ("GNMT-16", 20), ("AWD-LM", 30))
    for arm in ("PipeDream", "data parallelism")
}


def paper_scale(result: str, holds: Make, fails: Make) -> Pair:
    """At the paper's own scale, with three seeds."""
    return both(PAPER, result, holds, fails)


def ends_otherwise(result: str, model: str, change: Callable[[float], float]) -> Pair:
    """Alike, and a model of PipeDream's that ends otherwise; its data are not the paper's, which cannot be fetched."""
    key, _ = METRICS[model]

    def otherwise(arm: Arm) -> RunLog | None:
        run = training(ALIKE)(arm)
        if run is None or (arm.labels["model"], arm.labels["arm"]) != (model, "PipeDream"):
            return run
        end = run.rows[-1] | {key: change(run.rows[-1][key])}
        return replace(run, rows=[*run.rows[:-1], end], summary=run.summary | {"final": end})

    return both(PAPER, result, training(ALIKE), otherwise, scale="standard")


@case(PAPER, "figure_11", "same_epochs_vgg16")
def same_epochs_vgg16() -> Pair:
    """Twice as many."""
    late = ALIKE | {("VGG-16", "PipeDream"): 80}
    return paper_scale("figure_11", training(ALIKE), training(late))


@case(PAPER, "figure_11", "as_many_epochs_here")
def as_many_epochs_here() -> Pair:
    """Twice as many."""
    return paper_scale("figure_11", training(ALIKE), training(ALIKE | {("VGG-16", "PipeDream"): 80}))


@case(PAPER, "figure_11", "ends_alike_here")
def ends_alike_here() -> Pair:
    """Five points below."""
    return ends_otherwise("figure_11", "VGG-16", lambda accuracy: accuracy - 5)


@case(PAPER, "figure_11", "same_epochs_gnmt16")
def same_epochs_gnmt16() -> Pair:
    """Never."""
    late = ALIKE | {("GNMT-16", "PipeDream"): None}
    return paper_scale("figure_11", training(ALIKE), training(late))


@case(PAPER, "table_1", "same_epochs")
def same_epochs() -> Pair:
    """Two of three need twice as many."""
    late = ALIKE | {("VGG-16", "PipeDream"): 80, ("GNMT-16", "PipeDream"): 40}
    return paper_scale("table_1", training(ALIKE), training(late))


def plans_as(rates: Mapping[tuple[str, str], Mapping[str, float]]) -> Make:
    """Logs of plans by (model, servers): samples per second by plan."""

    def make(arm: Arm) -> RunLog | None:
        each = rates.get((arm.labels.get("model", "VGG-16"), arm.labels.get("servers", "")))
        if each is None:
            return None
        plans = [{"what": "plan", "plan": name, "samples_per_second": rate} for name, rate in each.items()]
        return log(plans, workers=4 if arm.labels["servers"].startswith("1x4") else 16)

    return make


def vgg(slow: float, fast: float) -> Make:
    """VGG-16's rates under 15-1 on A and B, of data parallelism's 1000 and 2000."""
    return plans_as(
        {
            ("VGG-16", "4x4 (A)"): {"15-1": slow, "data parallel": 1000.0},
            ("VGG-16", "2x8 (B)"): {"15-1": fast, "data parallel": 2000.0},
        }
    )


@case(PAPER, "figure_10", "earlier")
def earlier() -> Pair:
    """On B an epoch is as fast as data parallelism's, and takes longer to the target."""
    late = ALIKE | {("VGG-16", "PipeDream"): 42}
    return paper_scale("figure_10", training(ALIKE, vgg(5280, 5960)), training(late, vgg(5280, 2000)))


@case(PAPER, "figure_10", "earlier_here")
def earlier_here() -> Pair:
    """On B an epoch takes as long as data parallelism's two."""
    good, bad = training(ALIKE, vgg(5280, 5960)), training(ALIKE, vgg(5280, 1000))
    return paper_scale("figure_10", good, bad)


@case(PAPER, "figure_10", "faster_on_B")
def faster_on_b() -> Pair:
    """PipeDream is as fast on A."""
    return paper_scale("figure_10", training(ALIKE, vgg(5280, 5960)), training(ALIKE, vgg(5280, 5280)))


def eight_gpus(piped: float) -> Make:
    """Figure 13's times: samples per second of 7-1, of LARS 1000 at every minibatch."""

    def make(arm: Arm) -> RunLog | None:
        if arm.labels["arm"] == "PipeDream":
            return log([{"what": "plan", "plan": "7-1", "samples_per_second": piped}], batch=64)
        batch = arm.spec.batch
        return log([{"what": "plan", "plan": "data parallel over 8", "timed": batch / 1000}], batch=batch)

    return make


LARGE: Epochs = {
    ("VGG-16", "PipeDream"): 40,
    ("VGG-16", "LARS 1024"): 45,
    ("VGG-16", "LARS 4096"): None,
    ("VGG-16", "LARS 8192"): None,
}


@case(PAPER, "figure_13", "reaches_1024")
def reaches_1024() -> Pair:
    """4096 is there first."""
    other = LARGE | {("VGG-16", "LARS 4096"): 35}
    return paper_scale("figure_13", training(LARGE, eight_gpus(2400)), training(other, eight_gpus(2400)))


@case(PAPER, "figure_13", "large_fail")
def large_fail() -> Pair:
    """8192 reaches it, late."""
    other = LARGE | {("VGG-16", "LARS 8192"): 85}
    return paper_scale("figure_13", training(LARGE, eight_gpus(2400)), training(other, eight_gpus(2400)))


@case(PAPER, "figure_13", "larger_end_lower_here")
def larger_end_lower_here() -> Pair:
    """4096 ends as high as 1024."""
    make = training(LARGE, eight_gpus(2400))

    def raised(arm: Arm) -> RunLog | None:
        if (arm.labels["what"], arm.labels["arm"]) != ("training", "LARS 4096"):
            return make(arm)
        return make(replace(arm, labels=dict(arm.labels) | {"arm": "LARS 1024"}))

    return both(PAPER, "figure_13", make, raised, scale="standard")


@case(PAPER, "figure_13", "over_fastest")
def over_fastest() -> Pair:
    """1.5x in all."""
    return paper_scale("figure_13", training(LARGE, eight_gpus(2400)), training(LARGE, eight_gpus(1300)))


def with_asp(epochs: float | None, period: float = 1.0) -> Make:
    """PipeDream comes to 48 % in 10 epochs, ASP in so many; an epoch of PipeDream takes `period` times one of ASP."""

    def make(arm: Arm) -> RunLog | None:
        if arm.spec.kind == "partition":
            plan = {"what": "plan", "plan": "31-1", "timed": period}
            return log([plan], forward_ms=12_000.0, backward_ms=20_000.0, workers=32)
        needed = {"PipeDream": 10, "ASP": epochs}.get(arm.labels["arm"])
        run = learns(None if needed is None else needed + (arm.seed - 1) * (needed > 10), 72.0)
        return replace(run, rows=[row | {"accuracy": min(row["accuracy"], 72.0)} for row in run.rows])

    return make


@case(PAPER, "text_asp", "less_efficient")
def less_efficient() -> Pair:
    """Half as many epochs again."""
    return paper_scale("text_asp", with_asp(70), with_asp(15))


@case(PAPER, "text_asp", "seven_times")
def seven_times() -> Pair:
    """Eleven times as long."""
    return paper_scale("text_asp", with_asp(74), with_asp(74, period=1 / 1.5))


def headline(images: float = 5.28, translation: float = 3.14, language: float = 4.25) -> Make:
    """Epochs alike, and an epoch so many times as fast."""
    plans = plans_as(
        {
            ("VGG-16", "4x4 (A)"): {"15-1": images, "data parallel": 1.0},
            ("VGG-16", "2x8 (B)"): {"15-1": min(images, 2.98), "data parallel": 1.0},
            ("GNMT-16", "1x4 (A)"): {"straight": 9.0, "data parallel": 1.0},  # of 4 GPUs, not those of the training
            ("GNMT-16", "4x4 (A)"): {"straight": min(translation, 2.34), "data parallel": 1.0},
            ("GNMT-16", "2x8 (B)"): {"straight": translation, "data parallel": 1.0},
            ("AWD-LM", "1x4 (A)"): {"straight": language, "data parallel": 1.0},
        }
    )
    return training(ALIKE, plans)


@case(PAPER, "text_headline_tta", "images")
def images() -> Pair:
    """3x for 5.3x."""
    return paper_scale("text_headline_tta", headline(), headline(images=3.0))


@case(PAPER, "text_headline_tta", "translation")
def translation() -> Pair:
    """2x for 3.1x."""
    return paper_scale("text_headline_tta", headline(), headline(translation=2.0))


@case(PAPER, "text_headline_tta", "language")
def language() -> Pair:
    """An epoch no faster."""
    return paper_scale("text_headline_tta", headline(), headline(language=1.0))


@case(PAPER, "text_headline_tta", "language_ends_alike_here")
def language_ends_alike_here() -> Pair:
    """Three percent above."""
    return ends_otherwise("text_headline_tta", "AWD-LM", lambda perplexity: perplexity * 1.03)


# Links: two workers measured


def linked(
    pipe: Mapping[float, float], parallel: Mapping[float, float], foreseen: float = 1.0
) -> Callable[[Arm], RunLog]:
    """Measured rates by Gbit/s; the timed ones are so many times the pipeline's, and equal data parallelism's."""

    def make(arm: Arm) -> RunLog:
        lines = []
        for name, series, factor in (("pipeline", pipe, foreseen), ("data parallelism", parallel, 1.0)):
            for gbit, rate in series.items():
                lines.append({"arm": name, "measured": True, "gbit": gbit, "samples_per_second": rate})
                lines.append({"arm": name, "measured": False, "gbit": gbit, "samples_per_second": factor * rate})
        return log(lines, workers=2)

    return make


WEAK, STRONG = {0.1: 90.0, 2.0: 100.0}, {0.1: 30.0, 2.0: 110.0}


@case(PAPER, "links", "loses_less")
def loses_less() -> Pair:
    """It loses more."""
    return both(PAPER, "links", linked(WEAK, STRONG), linked(STRONG, WEAK), scale="quick")


@case(PAPER, "links", "ahead_when_slow")
def ahead_when_slow() -> Pair:
    """It is behind."""
    return both(PAPER, "links", linked(WEAK, STRONG), linked(STRONG, WEAK), scale="quick")


@case(PAPER, "links", "few_weights")
def few_weights() -> Pair:
    """It is ahead."""
    return both(PAPER, "links", linked(STRONG, WEAK), linked(WEAK, STRONG), scale="quick")


@case(PAPER, "links", "predicted")
def predicted() -> Pair:
    """The timed pipeline is four times as fast as the measured one."""
    return both(PAPER, "links", linked(WEAK, STRONG), linked(WEAK, STRONG, 0.25), scale="quick")


def of_profiles(other: Mapping[str, tuple[str, float]] | None = None) -> Make:
    """Every profile's plan: a pipeline, twice as fast as data parallelism, of some; else the same.

    By the recurrence as printed eight of fourteen are slower than data parallelism.
    """

    def make(arm: Arm) -> RunLog:
        model = arm.labels["model"]
        piped = model.startswith(("AlexNet", "VGG", "GNMT"))
        ring = (other or {}).get(model, ("15-1", 2.0) if piped else ("16", 1.0))
        printed = ring if piped or model in (other or {}) or model.startswith("NASNet") else ("12-4", 0.8)
        plans = [{"what": "plan", "plan": "data parallel", "config": "16", "timed": 1.0}]
        for name, (config, gain) in zip(READINGS, (printed, ring), strict=True):
            plans.append({"what": "plan", "plan": name, "config": config, "timed": 1 / gain})
        return log(plans, workers=16)

    return make


for _claim, _changed in (
    ("at_least_one_here", {"DenseNet-121": ("8-8", 0.9)}),
    ("slower_as_printed_here", {"ResNet-50": ("16", 1.0)}),
    ("compact_weights_here", {"ResNet-18": ("15-1", 1.1)}),
    ("translation_pipelined_here", {"GNMT-8": ("16", 1.0)}),
):
    case(PAPER, "profiles", _claim)(functools.partial(both, PAPER, "profiles", of_profiles(), of_profiles(_changed)))
