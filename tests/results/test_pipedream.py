"""PipeDream's verdicts and tables where logs end early, runs never come to their target, or two profiles meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

import pipelag.results.pipedream  # noqa: F401  (registers what draws and judges)
from pipelag.experiments import Arm, load_paper, load_scale
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.logs import RunLog
from pipelag.results.pipedream.entries import entries, unpublished
from pipelag.results.pipedream.targets import goal_of
from pipelag.results.plans import RING
from pipelag.results.verdict import JUDGES, Finding, NotLogged
from tests.results.cases.pipedream import (
    ALIKE,
    LARGE,
    METRICS,
    PAPER,
    PRINTED,
    TABLE_1,
    eight_gpus,
    headline,
    learns,
    training,
    usual,
    vgg,
    waiting,
    with_asp,
)
from tests.results.made_up import CASES, OFFICIAL, Make, altered, context, log, trained, with_rows

pytestmark = pytest.mark.usefixtures("in_project")


def judged(result: str, claim: str, make: Make, scale: str = "paper") -> Finding:
    return JUDGES[PAPER, result, claim](context(PAPER, result, make, scale=scale))


def except_seed(seed: int, arm: str, make: Make, otherwise: RunLog) -> Make:
    """One run is another; of what is trained."""

    def changed(run: Arm) -> RunLog | None:
        other = run.spec.kind == "train" and run.labels["arm"] == arm and run.seed == seed
        return otherwise if other else make(run)

    return changed


@pytest.mark.parametrize(
    ("result", "claim"),
    [
        ("figure_4", "updates_between"),
        ("figure_4", "versions_by_stage"),
        ("figure_4", "vertical_sync"),
        ("figure_9", "same_within_stage"),
        ("figure_9", "different_across"),
    ],
)
def test_of_a_schedule_that_ends_before_minibatch_5_nothing_is_told(result: str, claim: str) -> None:
    early = altered(with_rows(lambda row: row if row["minibatch"] < 4 else None))
    with pytest.raises(NotLogged, match="no minibatch 5"):
        judged(result, claim, early, scale="quick")


def test_a_pipeline_in_which_a_worker_waits_is_not_said_to_have_none() -> None:
    holds, fails = (JUDGES[PAPER, "figure_4", "all_busy"](runs) for runs in CASES[PAPER, "figure_4", "all_busy"]())
    assert holds.why.startswith("no worker waits") and fails.why.startswith("some worker waits")


def test_a_seed_with_which_pipedream_never_comes_is_not_left_out_of_its_speed() -> None:
    never = learns(None, 68.0)
    fast = training(LARGE, eight_gpus(2400))
    assert judged("figure_13", "over_fastest", fast).holds is True
    once = judged("figure_13", "over_fastest", except_seed(0, "PipeDream", fast, never))
    assert once.holds is None and once.why.startswith("1.80 ± 3.87 (3 seeds) ")  # of 0, 2.7 and 2.7 times as fast
    slow = judged("figure_13", "over_fastest", training(LARGE | {("VGG-16", "PipeDream"): None}, eight_gpus(2400)))
    assert slow.holds is False and slow.why.startswith("0.00 ")
    with pytest.raises(NotLogged, match="not reached by PipeDream with every seed"):
        judged("text_asp", "less_efficient", except_seed(0, "PipeDream", with_asp(70), learns(None, 40.0)))
    with pytest.raises(NotLogged, match="ASP never, 74.00, 75.00: not reached by both with every seed"):
        judged("text_asp", "seven_times", except_seed(0, "ASP", with_asp(74), learns(None, 40.0)))


def test_a_target_that_pipedream_never_reaches_is_not_said_to_be_reached_in_no_time() -> None:
    def make(arm: Arm) -> RunLog | None:
        run = headline()(arm)
        if run is None or (arm.labels.get("model"), arm.labels.get("arm")) != ("AWD-LM", "PipeDream"):
            return run
        return replace(run, rows=[row | {"perplexity": 1e3} for row in run.rows]) if arm.spec.kind == "train" else run

    drawn = draw(context(PAPER, "text_headline_tta", make, scale="paper")).table
    assert drawn is not None
    ours = {row["0"]: row["2"] for row in drawn.rows}
    assert ours["language modelling"] == "never" and ours["image classification"] == pytest.approx(5.28)


def test_epochs_that_a_fall_of_the_rate_decides_are_not_counted_as_alike() -> None:
    def at_the_fall(arm: Arm) -> RunLog | None:
        run = training(ALIKE)(arm)
        if run is None:
            return None
        first = next(i for i, row in enumerate(run.rows) if row["accuracy"] == run.rows[-1]["accuracy"])
        return replace(run, rows=[row | {"lr": 0.01 if i < first else 0.001} for i, row in enumerate(run.rows)])

    assert judged("table_1", "same_epochs", training(ALIKE)).holds is True
    finding = judged("table_1", "same_epochs", at_the_fall)
    assert finding.holds is None and "alike for 0 of 3" in finding.why and finding.why.count("all at the first") == 3


def test_no_more_is_told_of_epochs_than_evaluations_tell() -> None:
    """An evaluation an epoch: who comes by the fourth and who by the fifth may have come together."""
    close = training(ALIKE | {("VGG-16", "PipeDream"): 4, ("VGG-16", "data parallelism"): 5}, vgg(1000, 2000))
    for told in (judged("figure_10", "earlier_here", close), judged("text_asp", "less_efficient", with_asp(23))):
        assert told.holds is None and "whenever between two evaluations" in told.tolerance


def test_a_language_model_that_diverged_has_no_end() -> None:
    gone = replace(trained(diverged_at=9), rows=[{"step": 5, "epoch": 1.0, "perplexity": 98.0, "accuracy": 20.0}])
    with pytest.raises(NotLogged, match="AWD-LM under PipeDream diverged"):
        judged("text_headline_tta", "language_ends_alike_here", except_seed(0, "PipeDream", training(ALIKE), gone))


def test_on_other_data_a_goal_is_a_little_worse_than_the_best_of_data_parallelism() -> None:
    """A perplexity above its best, an accuracy below."""
    for result, model, share in (("text_headline_tta", "AWD-LM", 1.05), ("table_1", "VGG-16", 0.95)):
        runs = {"model": model, "arm": "data parallelism"}
        quick = context(PAPER, result, training(ALIKE), scale="quick")
        _, best = METRICS[model]
        assert quick.shortfall(**runs) and goal_of(quick, model, runs).value == pytest.approx(share * best)


def test_the_plan_beside_a_saving_is_the_one_that_saves_it() -> None:
    """The language model has a profile for data parallelism and one for pipelines, whose best plans differ."""
    plans: Mapping[str, tuple[str, float]] = {"20": ("2-2", 31.0), "80": ("3-1", 24.0)}

    def make(arm: Arm) -> RunLog | None:
        if arm.labels["model"] != "AWD-LM":
            return None
        config, saved = plans[arm.labels["batch"]]
        alone = {"what": "plan", "plan": "data parallel", "config": "4", "bytes_per_sample": 100.0}
        other = alone | {"plan": "several stages", "config": config, "bytes_per_sample": 100.0 - saved}
        return log([alone, other], batch=int(arm.labels["batch"]))

    table = draw(context(PAPER, "text_communication_reduction", make)).table
    assert table is not None
    keys = [column.key for column in table.columns[-2:]]
    cells = {row[table.columns[0].key]: tuple(row[key] for key in keys) for row in table.rows}
    assert cells["AWD-LM (80 in all)"] == ("2-2", pytest.approx(31.0))
    assert cells["AWD-LM (80 per GPU)"] == ("3-1", pytest.approx(24.0))


def test_without_the_row_of_most_gpus_half_precision_cannot_be_judged() -> None:
    half = {"fp32": 0.0, "fp16": 0.02}
    whole = waiting(lambda precision, servers, gpus: usual("GNMT-8", servers, gpus) + half[precision], "precision")

    def without(arm: Arm) -> RunLog:
        made = whole(arm)
        return replace(made, rows=[row for row in made.rows if row["workers"] != 32])

    assert judged("figure_12", "half_precision_worse", whole, "quick").holds is True
    with pytest.raises(NotLogged, match="on 32 GPUs has no logged value"):
        judged("figure_12", "half_precision_worse", without, "quick")


def test_no_speedup_carries_over_where_there_is_none() -> None:
    """By a ring's cost the published plan over 10 Gbps is slower than data parallelism in single precision."""
    runs = Context.load(load_paper(PAPER), "figure_12", load_scale("published", "cpu"))
    finding = JUDGES[PAPER, "figure_12", "speedup_carries_over"](runs)
    assert finding.holds is None and finding.why.endswith("could carry over: 4x V100, PCIe, 10 Gbps 0.91x")


def test_how_often_asp_steps_and_at_which_rate_is_said() -> None:
    drawn = draw(Context.load(load_paper(PAPER), "text_asp", load_scale("published", "cpu"))).table
    steps = "steps after each minibatch of 64 at a rate of 0.03, PipeDream's first stage once for 15 of them at 0.03"
    assert drawn is not None and any(steps in note for note in drawn.notes)


def as_printed(but: Mapping[str, float | None]) -> Make:
    """Plans of table 1 as fast as printed, but straight ones of GNMT-8 by servers; None: no layers to lie on."""

    def make(arm: Arm) -> RunLog | None:
        if arm.labels["what"] != "plan":
            return None
        model, servers = arm.labels["model"], arm.labels["servers"]
        speed = TABLE_1[model, servers][1]
        rates = {"data parallel": 1.0, "15-1": speed, "2-1-1": speed, "straight": speed}
        rates |= {"straight": but[servers]} if model == "GNMT-8" and servers in but else {}
        # data parallelism with 20 on each GPU, the pipeline with 80; the others are not compared
        rates |= {"20": {"straight": 1.0}, "80": {"data parallel": 9.0}}.get(arm.labels.get("batch", ""), {})
        return log([{"what": "plan", "plan": name, "samples_per_second": rate} for name, rate in rates.items() if rate])

    return make


@pytest.mark.parametrize(
    ("but", "inside", "holds"),
    [
        ({}, 11, True),
        ({"1x4 (A)": 1.85}, 10, False),  # too fast by more than a factor of 1.2
        ({"3x4 (A)": None}, 10, None),
        ({"3x4 (A)": None, "1x4 (A)": 1.2}, 9, False),  # what can be timed is off
    ],
)
def test_a_plan_without_layers_to_lie_on_leaves_the_printed_speedups_open(
    but: Mapping[str, float | None], inside: int, holds: bool | None
) -> None:
    finding = judged("table_1", "epoch_speedups", as_printed(but))
    assert finding.holds is holds and finding.why.startswith(f"{inside} of 11 of the paper's plans (")
    assert ("; GNMT-8 on 3x4 (A) has too few layers for it" in finding.why) == ("3x4 (A)" in but)


def test_a_pipeline_whose_log_is_missing_is_not_said_to_have_too_few_layers() -> None:
    """The language model's pipeline has a log of its own, with a minibatch of 80."""
    plans = as_printed({})
    with pytest.raises(NotLogged, match=r"^AWD-LM on 1x4 \(A\) has no logged value$"):
        judged("table_1", "epoch_speedups", lambda arm: None if arm.labels.get("batch") == "80" else plans(arm))


Cells = Mapping[tuple[str, str], tuple[str, float]]


def found(cells: Cells, by_ring: Cells | None = None) -> Make:
    """Searches that find table 1's plans by both costs, some of them otherwise, and their speeds.

    by_ring: what the search by a ring's cost finds otherwise; None: the same.
    """

    def make(arm: Arm) -> RunLog | None:
        if arm.labels["what"] != "plan":
            return None
        row = (arm.labels["model"], arm.labels["servers"])
        printed, ring = ({**TABLE_1, **each}[row] for each in (cells, cells if by_ring is None else by_ring))
        by_plan = {"data parallel": ("16", 1.0), PRINTED: printed, RING: ring, "straight": printed}
        plans = [{"plan": name, "config": of[0], "samples_per_second": of[1]} for name, of in by_plan.items()]
        return log([{"what": "plan", **plan} for plan in plans])

    return make


@pytest.mark.parametrize(
    ("claim", "row", "cell", "holds"),
    [
        ("one_where_data_parallel", ("GNMT-8", "2x8 (B)"), ("16", 1.004), True),
        ("one_where_data_parallel", ("GNMT-8", "2x8 (B)"), ("16", 1.3), False),
        ("one_where_data_parallel", ("GNMT-8", "2x8 (B)"), ("8-8", 1.0), False),
        ("one_where_data_parallel", ("GNMT-8", "2x8 (B)"), ("8-8", 1.3), False),
        ("at_least_one", ("S2VT", "4x1 (C)"), ("2-1-1", 0.996), True),  # rounded it is 1.00
        ("at_least_one", ("S2VT", "4x1 (C)"), ("2-1-1", 0.994), False),
        ("vgg16_gains_more_here", ("VGG-16", "2x8 (B)"), ("15-1", 5.27), True),
        ("vgg16_gains_more_here", ("VGG-16", "2x8 (B)"), ("15-1", 5.277), False),  # rounded it is as large
    ],
)
def test_speedups_are_compared_as_the_table_rounds_them(
    claim: str, row: tuple[str, str], cell: tuple[str, float], holds: bool
) -> None:
    finding = judged("table_1", claim, found({row: cell}))
    assert finding.holds is holds, finding.why


@pytest.mark.parametrize(
    ("claim", "printed", "by_ring", "holds"),
    [
        ("at_least_one", {}, {("S2VT", "4x1 (C)"): ("2-1-1", 0.9)}, None),  # a verdict needs both
        ("at_least_one", {("S2VT", "4x1 (C)"): ("2-1-1", 0.9)}, {}, None),
        ("plan_vgg16", {}, {("VGG-16", "4x4 (A)"): ("16", 1.0)}, None),
        ("plan_vgg16", {("VGG-16", "4x4 (A)"): ("16", 1.0)}, {}, None),
        ("one_where_data_parallel", {}, {("GNMT-8", "2x8 (B)"): ("8-8", 1.3)}, True),  # the printed cost decides
        ("one_where_data_parallel", {("GNMT-8", "2x8 (B)"): ("8-8", 1.3)}, {}, False),
        ("vgg16_gains_more_here", {}, {("VGG-16", "2x8 (B)"): ("15-1", 6.0)}, True),
        ("vgg16_gains_more_here", {("VGG-16", "2x8 (B)"): ("15-1", 6.0)}, {}, False),
    ],
)
def test_where_the_two_costs_of_a_sum_differ_each_claim_says_which_decides(
    claim: str, printed: Cells, by_ring: Cells, holds: bool | None
) -> None:
    finding = judged("table_1", claim, found(printed, by_ring))
    assert finding.holds is holds, finding.why


@pytest.mark.parametrize(("idle", "holds"), [((), False), ((3,), True), ((3, 7), True)])
def test_gnmt8_has_too_few_layers_where_one_stage_of_a_straight_plan_has_none(
    idle: tuple[int, ...], holds: bool
) -> None:
    def make(arm: Arm) -> RunLog | None:
        if arm.labels["what"] != "plan":
            return None
        stages = [
            {"forward_ms": 0.0 if n in idle else 1.0, "backward_ms": 0.0 if n in idle else 2.0} for n in range(16)
        ]
        rates = {"straight": 30.0, "data parallel": 50.0}
        plans = [{"what": "plan", "plan": name, "samples_per_second": rate} for name, rate in rates.items()]
        return log([plan | {"stages": stages} for plan in plans], layers=14, workers=16)

    finding = judged("table_1", "gnmt8_too_few_layers", make)
    assert finding.holds is holds
    assert f"has 16 stages, {len(idle)} without work, and 30 samples/s, where data parallelism has 50" in finding.why


def test_what_grows_inside_a_server_may_fall_beyond_it() -> None:
    def dented(model: str, servers: str, gpus: int) -> float:
        return usual(model, servers, gpus) - (0.3 if gpus > 8 else 0.0)

    assert judged("figure_1", "grows_inside", waiting(dented), "quick").holds is True
    assert judged("figure_1", "grows", waiting(dented), "quick").holds is False


def test_the_language_models_pipeline_of_80_is_compared_with_its_data_parallelism_of_20() -> None:
    """A plan found straight is timed with 80, where it does 40 samples a second, against 10 of 20 on each GPU."""
    per_gpu = {
        "data parallel": ("4", 10.0),
        PRINTED: ("straight", 20.0),
        RING: ("2-2", 25.0),
        "straight": ("straight", 18.0),
    }
    in_all = {"data parallel": ("4", 50.0), PRINTED: ("3-1", 60.0), RING: ("4", 50.0), "straight": ("straight", 40.0)}

    def make(arm: Arm) -> RunLog | None:
        if (arm.labels["what"], arm.labels["model"]) != ("plan", "AWD-LM"):
            return None
        plans = per_gpu if arm.labels["batch"] == "20" else in_all
        rows = [{"plan": name, "config": of[0], "samples_per_second": of[1]} for name, of in plans.items()]
        return log([{"what": "plan", **row} for row in rows], workers=4)

    speeds = {
        entry.note: (entry.speedup(PRINTED), entry.speedup(RING), entry.papers_plan())
        for entry in entries(context(PAPER, "table_1", make), extra=True)
        if entry.paper["model"] == "AWD-LM"
    }
    assert speeds == {"80 in all": (4.0, 2.5, 4.0), "80 per GPU": (60 / 50, 1.0, 40 / 50)}


def test_which_models_have_no_published_profile_is_told_of_their_plans() -> None:
    """Trainings read no profile at any scale."""
    plans = context(PAPER, "table_1", lambda arm: log() if arm.labels["what"] == "plan" else None, "published")
    every = context(PAPER, "table_1", lambda arm: log(data=OFFICIAL), "published")
    for runs in (plans, every):
        lacking = [model for model in ("VGG-16", "GNMT-16", "AWD-LM", "S2VT") if unpublished(runs, model)]
        assert lacking == ["AWD-LM", "S2VT"]
    one = context(PAPER, "table_1", lambda arm: log() if arm.labels.get("batch") == "80" else None, "published")
    assert unpublished(one, "AWD-LM")


def test_a_tables_note_says_where_its_profiles_come_from() -> None:
    words = {"quick": "(profiles: rooflines of data sheets)"}
    words["published"] = "(profiles: the authors' published profiles and rooflines of data sheets)"
    for scale, source in words.items():
        drawn = draw(context(PAPER, "table_1", lambda arm: None, scale)).table
        assert drawn is not None and drawn.notes[0].endswith(source)


@pytest.mark.parametrize(
    ("model", "worst", "holds"),  # by servers: stages, GB of the worst worker and of data parallelism's
    [
        ("GNMT-16", {"1x4 (A)": (4, 1.0, 1.0), "4x4 (A)": (16, 1.0, 1.0), "2x8 (B)": (16, 1.5, 1.0)}, False),
        ("GNMT-16", {"1x4 (A)": (4, 1.0, 1.0), "4x4 (A)": (16, 1.09, 1.0), "2x8 (B)": (16, 0.9, 1.0)}, True),
        ("GNMT-16", {"1x4 (A)": (4, 1.0, 1.0), "4x4 (A)": (16, 2.0, 2.0), "2x8 (B)": (16, 3.0, 3.0)}, True),  # of its
        ("VGG-16", {"1x4 (A)": (4, 1.0, 1.0), "4x4 (A)": (4, 1.5, 1.0), "2x8 (B)": (16, 1.0, 1.0)}, True),  # as many
    ],
)
def test_a_footprint_over_more_stages_is_compared_with_that_over_the_fewest(
    model: str, worst: Mapping[str, tuple[int, float, float]], holds: bool
) -> None:
    def make(arm: Arm) -> RunLog:
        usual_ones = {"1x4 (A)": (4, 1.0, 1.0)}.get(arm.labels["servers"], (16, 1.0, 1.0))
        stages, most, alone = worst[arm.labels["servers"]] if arm.labels["model"] == model else usual_ones
        straight = {"plan": "straight", "stages": [{}] * stages, "memory": [most * 1e9] + [1e8] * (stages - 1)}
        plans = [straight, {"plan": "data parallel", "memory": [alone * 1e9]}]
        return log([{"what": "plan", **plan} for plan in plans])

    finding = judged("text_memory_over_stages", "stays", make)
    assert finding.holds is holds, finding.why


@pytest.mark.parametrize(("last", "holds"), [(1.05, True), (1.2, False)])
def test_the_worst_stage_may_be_any(last: float, holds: bool) -> None:
    straight = {"plan": "straight", "memory": [5e8, 4e8, 3e8, last * 1e9], "stages": [{"versions": 1}] * 4}
    plans = [{"what": "plan", **row} for row in (straight, {"plan": "data parallel", "memory": [1e9]})]
    for result, claim in (("figure_16", "on_par"), ("text_memory_bound", "about_one")):
        assert judged(result, claim, lambda arm: log(plans)).holds is holds


def test_the_clouds_slowdown_is_judged_in_half_precision() -> None:
    """Single precision, in which the entries' code does not run, is only told."""

    def cloud(half: float, single: float) -> Make:
        def make(arm: Arm) -> RunLog:
            printed = {"GNMT-8": 1.94, "SSD": 3.29, "Mask R-CNN": 2.32}[arm.labels["model"]]
            factor = half if arm.labels["precision"] == "fp16" else single
            seconds = factor * printed if arm.labels["arm"] == "Cluster-B" else 1.0
            return log([{"what": "plan", "plan": f"data parallel over {n}", "timed": seconds} for n in (64, 256)])

        return make

    for claim in ("cloud_slower", "ratios"):
        assert judged("table_3", claim, cloud(1.0, 0.3), "quick").holds is True
        assert judged("table_3", claim, cloud(0.3, 1.0), "quick").holds is False


@pytest.mark.parametrize(
    ("claim", "model", "megabytes", "holds"),  # of the best plan with several stages, data parallelism sending 100
    [
        ("far_less", "GNMT-16", 50.0, True),
        ("far_less", "GNMT-16", 55.0, False),
        ("resnet_more", "ResNet-50", 100.1, True),
        ("resnet_more", "ResNet-50", 99.9, False),
    ],
)
def test_bytes_per_sample_are_compared_as_the_claims_read_them(
    claim: str, model: str, megabytes: float, holds: bool
) -> None:
    def make(arm: Arm) -> RunLog:
        sent = {"data parallel": 100.0, "several stages": megabytes if arm.labels["model"] == model else 10.0}
        return log([{"what": "plan", "plan": plan, "bytes_per_sample": 1e6 * mb} for plan, mb in sent.items()])

    assert judged("figure_17", claim, make).holds is holds


@pytest.mark.parametrize(
    ("claim", "rates", "holds"),  # samples per second at depths 1, 2, 4 and 7
    [
        ("grows_to_noam", (100, 106, 112, 50), True),
        ("grows_to_noam", (100, 106, 110, 300), False),  # from 2 to 4 by less than 5 %
        ("grows_to_noam", (100, 104, 200, 300), False),
        ("saturates", (100, 180, 400, 370), True),
        ("saturates", (100, 180, 400, 350), False),  # 4 is more than a tenth above 7
        ("saturates", (100, 180, 350, 400), False),
        ("saturates", (100, 390, 400, 380), False),  # 2 is above 7
    ],
)
def test_throughput_grows_up_to_noam_and_not_beyond(claim: str, rates: tuple[int, ...], holds: bool) -> None:
    rows = [
        {"what": "plan", "depth": depth, "samples_per_second": rate}
        for depth, rate in zip((1, 2, 4, 7), rates, strict=True)
    ]
    assert judged("figure_18a", claim, lambda arm: log(rows)).holds is holds


@pytest.mark.parametrize(("smallest", "holds"), [(1.0, True), (1.05, False)])
def test_stages_differ_by_a_tenth_of_their_memory(smallest: float, holds: bool) -> None:
    rows = [{"what": "plan", "depth": depth, "memory": [1.1e9, smallest * 1e9]} for depth in (1, 2, 4, 7)]
    assert judged("figure_18b", "stages_differ", lambda arm: log(rows)).holds is holds


def test_a_plan_saves_its_bytes_on_every_cluster() -> None:
    """15-1 for VGG-16, on A and on B."""

    def saving(by_servers: Mapping[str, float]) -> Make:
        def make(arm: Arm) -> RunLog:
            share = by_servers.get(arm.labels["servers"], 0.5)
            sent = {"data parallel": 100.0, "15-1": 100.0 * (1 - share)}
            rows = [{"plan": plan, "config": plan, "bytes_per_sample": size} for plan, size in sent.items()]
            return log([{"what": "plan", **row} for row in rows])

        return make

    for on_a, on_b, holds in ((0.86, 0.9, True), (0.84, 0.9, False), (0.9, 0.84, False)):
        runs = saving({"4x4 (A)": on_a, "2x8 (B)": on_b})
        assert judged("text_communication_reduction", "vgg16_85", runs).holds is holds
