"""SpecTrain's judges and notes where runs diverge, do not learn, or can be read in two ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipelag.experiments import Arm, load_paper, load_scale
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.loading import load_results
from pipelag.results.logs import RunLog
from pipelag.results.spectrain.below import rates, sizes
from pipelag.results.spectrain.communication import measured_ratio
from pipelag.results.spectrain.convergence import faster_here, figure_13, headline_time, times
from pipelag.results.spectrain.learning_curves import STYLES
from pipelag.results.spectrain.throughput import least_drawn
from pipelag.results.spectrain.timing import disagreeing, methods_timed, shares
from pipelag.results.spectrain.training import (
    above_stale,
    above_vanilla_here,
    as_trained,
    at_least_data_on_four,
    mean_order,
    table_1,
)
from pipelag.results.verdict import JUDGES, Finding, NotLogged
from tests.results.cases.spectrain import as_printed, learnt, timed
from tests.results.made_up import Make, altered, context, log, with_rows

pytestmark = pytest.mark.usefixtures("in_project")


def at_chance(arm_name: str, model: str) -> Make:
    """Trainings in which one run of an arm stays at chance."""

    def make(arm: Arm) -> RunLog | None:
        run = learnt({}, apart=0.1)(arm)
        if run is None or (arm.labels["arm"], arm.labels["model"], arm.seed) != (arm_name, model, 0):
            return run
        rows = [row | {"accuracy": 50.0} for row in run.rows]
        data = {"title": "IMDb", "classes": 2, "official": True}
        return replace(run, rows=rows, summary=run.summary | {"final": rows[-1], "data": data})

    return make


@pytest.mark.parametrize("arm", ["Vanilla DualPipe", "PipeDream, stashing"])
def test_whichever_arm_does_not_learn_nothing_is_judged_by_it(arm: str) -> None:
    whole = context("spectrain", "table_1", learnt({}, apart=0.1))
    broken = context("spectrain", "table_1", at_chance(arm, "Transformer"))
    assert above_stale(whole, "Data P.").holds is True
    finding = above_stale(broken, "Data P.")
    assert finding.holds is None and f"{arm} of Transformer does not learn here" in finding.why
    assert "Data P. over " in finding.why  # the other arm's is told


def test_what_a_run_reached_before_it_diverged_says_nothing() -> None:
    def make(arm: Arm) -> RunLog | None:
        run = learnt({})(arm)
        lost = run is not None and (arm.labels.get("arm"), arm.seed) == ("SpecTrain", 1)
        return replace(run, summary=run.summary | {"final": None, "diverged_at": 7}) if run and lost else run

    runs = context("spectrain", "table_1", make)
    assert as_trained(runs, "VGG16", "Data P.")
    with pytest.raises(NotLogged, match="diverged with seed 1"):
        as_trained(runs, "VGG16", "SpecTrain")


def test_a_network_told_against_decides_though_another_is_not_trained() -> None:
    """What every network is said to do fails where one does not, whether or not the others have a log."""

    def without_inception(snn: float) -> Finding:
        def make(arm: Arm) -> RunLog | None:
            inception = arm.labels.get("model") == "Inception v4"
            return None if inception else learnt({("SNN", "SpecTrain"): snn}, apart=0.1)(arm)

        return at_least_data_on_four(context("spectrain", "table_1", make))

    found = without_inception(66.0)
    assert found.holds is False and "Inception v4 has no logged value" in found.why
    assert without_inception(70.5).holds is None


def test_the_table_marks_what_does_not_learn() -> None:
    drawn = table_1(context("spectrain", "table_1", at_chance("Vanilla DualPipe", "Transformer")))
    assert drawn.table is not None
    marked = [row["1"] for row in drawn.table.rows if "1 of 3 does not learn" in str(row["7"])]
    assert marked == ["Vanilla DualPipe"]


def test_an_order_names_the_arms_that_it_is_about() -> None:
    def lacking(arm: Arm) -> RunLog | None:
        return None if arm.labels["arm"] in ("SpecTrain", "PipeDream") else learnt({}, apart=0.1)(arm)

    with pytest.raises(NotLogged, match="PipeDream of VGG16 has no logged value"):
        mean_order("PipeDream")(context("spectrain", "table_1", lacking))


def test_where_no_arm_is_whole_it_says_why() -> None:
    with pytest.raises(NotLogged, match="does not learn here"):
        above_vanilla_here(context("spectrain", "table_1", _all_at_chance))


def _all_at_chance(arm: Arm) -> RunLog | None:
    run = learnt({}, apart=0.1)(arm)
    if run is None or arm.labels["arm"] != "Vanilla DualPipe":
        return run
    data = {"title": "IMDb", "classes": 2, "official": True}
    return replace(run, summary=run.summary | {"final": run.rows[-1] | {"accuracy": 50.0}, "data": data})


def judged(result: str, claim: str, **speedups: float) -> Finding:
    """A claim about times as printed, but for arms whose second reading has another speedup."""
    from pipelag.results.verdict import JUDGES

    names = {"ring": "Data P., ring", "piped": "PipeDream, free clock", "dual": "DualPipe, free clock"}

    def world(model: str, arm: str, gpus: int) -> dict[str, float]:
        entry = as_printed(model, arm, gpus)
        changed = {names[key]: value for key, value in speedups.items()}
        return entry | ({"speedup": changed[arm]} if arm in changed else {})

    return JUDGES["spectrain", result, claim](context("spectrain", result, timed(world)))


@pytest.mark.parametrize(
    ("result", "claim", "speedups"),
    [
        ("figure_10", "dualpipe_highest", {"piped": 9.0}),
        ("figure_10", "cnn_data_above_pipedream", {"ring": 0.1}),
        ("figure_10", "dense_gains", {"dual": 99.0}),
        ("text_headline_throughput", "over_pipedream", {"piped": 9.0}),
    ],
)
def test_what_one_reading_alone_gives_cannot_be_judged(result: str, claim: str, speedups: dict[str, float]) -> None:
    assert judged(result, claim).holds is True
    finding = judged(result, claim, **speedups)
    assert finding.holds is None and "the two readings do not agree" in finding.why


def test_the_readings_that_do_not_agree_are_named() -> None:
    sentence = disagreeing([True, False])
    assert sentence.endswith(
        "with a server and a common clock it holds, with a ring and without a common clock it fails"
    )


def raced_but(speedups: dict[str, float], not_learning: str = "") -> Make:
    """Trainings that need equally many iterations, but for an arm that diverges; timed plans, with other speedups."""

    def make(arm: Arm) -> RunLog | None:
        if arm.labels.get("what") == "plan":
            return timed(lambda m, a, g: as_printed(m, a, g) | ({"speedup": speedups[a]} if a in speedups else {}))(arm)
        run = learnt(dict.fromkeys(("Data P.", "PipeDream", "PipeDream, stashing", "SpecTrain"), 70.0))(arm)
        if run is None or arm.labels["arm"] != not_learning or arm.labels["model"] == "VGG16":
            return run
        return replace(run, summary=run.summary | {"diverged_at": 7, "final": None})

    return make


def test_every_network_is_held_against_the_same_pipedream() -> None:
    """Its one version learns on one network alone, so that stashing is meant on that one too."""
    finding = faster_here("PipeDream")(context("spectrain", "figure_13", raced_but({}, not_learning="PipeDream")))
    assert finding.holds is True and finding.why.startswith("time over that of PipeDream, stashing: VGG16")
    assert finding.why.count("over its one version") == 1


def test_a_lead_that_needs_the_common_clock_is_not_told() -> None:
    free = context("spectrain", "figure_13", raced_but({"PipeDream, free clock": 9.0}))
    finding = faster_here("PipeDream")(free)
    assert finding.holds is None and "it holds, with a ring and without a common clock it fails" in finding.why
    assert faster_here("Data P.")(free).holds is True


def test_runs_that_one_evaluation_brings_there_at_once_are_not_told_apart() -> None:
    """It may have been at the start or at the end, so that no time is known."""

    def once(arm: Arm) -> RunLog | None:
        run = raced_but({})(arm)
        return run and (run if arm.labels.get("what") == "plan" else replace(run, rows=run.rows[-1:]))

    assert faster_here("Data P.")(context("spectrain", "figure_13", raced_but({}))).holds is True
    assert faster_here("Data P.")(context("spectrain", "figure_13", once)).holds is None


def test_figure_13_has_a_panel_for_each_pipedream_and_says_where_one_lacks() -> None:
    drawn = figure_13(context("spectrain", "figure_13", raced_but({}, not_learning="PipeDream")))
    assert drawn.data is not None
    models = drawn.data.groupby("pipedream")["model"].nunique().to_dict()
    assert models == {"PipeDream: one version on all GPUs": 1, "PipeDream: stashing": 9}
    assert "one version diverges or does not learn on ResNet-152, Inception v4, SNN" in drawn.note


def test_the_schemes_are_timed_over_the_seeds_that_all_have() -> None:
    runs = context("spectrain", "figure_13", raced_but({}))
    few = [item for item in runs.items if item.arm.labels["arm"] != "PipeDream" or not item.arm.seed]
    assert {seed for by_seed in times(replace(runs, items=few), "VGG16").values() for seed in by_seed} == {0}
    others = [item for item in few if item.arm.labels["arm"] != "Data P." or item.arm.seed]
    with pytest.raises(NotLogged, match="the three schemes of VGG16 have no seed in common"):
        times(replace(runs, items=others), "VGG16")


def test_the_methods_that_are_timed_are_named_whichever_network_lacks() -> None:
    planned = altered(with_rows(lambda row: row | {"method": f"method of {row['arm']}"}), timed())

    def make(arm: Arm) -> RunLog | None:
        return None if arm.labels["model"] == "Residual LSTM" else planned(arm)

    whole, lacking = context("spectrain", "figure_10", planned), context("spectrain", "figure_10", make)
    assert methods_timed(lacking) == methods_timed(whole) != ""


def test_an_arm_has_one_style_in_all_figures_where_runs_diverge_too() -> None:
    def make(arm: Arm) -> RunLog | None:
        ended = learnt({})(arm)
        if ended is None or arm.labels["arm"] != "Vanilla DualPipe":
            return ended
        return replace(ended, summary=ended.summary | {"diverged_at": 70, "final": None})

    styles = []
    for result in ("figure_5", "figure_12"):
        drawn = draw(context("spectrain", result, make))
        assert drawn.chart is not None
        styles.append(drawn.chart["styles"]["Vanilla DualPipe (3 of 3 diverged)"])
    assert styles[0] == styles[1] == STYLES["Vanilla DualPipe"]


def test_the_headline_has_both_clocks_and_the_spread_over_seeds() -> None:
    drawn = headline_time(context("spectrain", "text_headline_time", raced_but({"PipeDream, free clock": 9.0})))
    assert drawn.table is not None
    cells = {row["1"]: row["3"] for row in drawn.table.rows if row["0"] == "all"}
    assert len(cells) == 5 and cells["paper"] == "42.1"
    common, free = (
        cells[f"ours: {clock}; stashing"] for clock in ("a server, a common clock", "a ring, no common clock")
    )
    assert " ± " in str(common) and float(str(free).split()[0]) > 2 * float(str(common).split()[0])
    assert any(
        note.startswith("in % of PipeDream's time, a ring, no common clock; stashing: VGG16")
        for note in drawn.table.notes
    )


def published(result: str) -> tuple[list[str], str]:
    """A published result's notes and what stands below it."""
    runs = Context.load(load_paper("spectrain"), result, load_scale("published", "cpu"))
    load_results(runs.paper)
    drawn = draw(runs)
    return (drawn.table.notes if drawn.table is not None else []), drawn.footer(runs)


def test_table_1_names_sizes_rates_and_delays() -> None:
    notes, below = published("table_1")
    for words in (
        "SNN width 0.125, layers 16",
        "Transformer 0.04 (800)",
        "PipeDream (pipedream_vertical_sync) 3, 3, 3, 3",
    ):
        assert any(words in note for note in notes), words
    assert any("PipeDream on Transformer at 800 times the paper's, SNN at 2 times" in note for note in notes)
    assert "half of the largest" in below


def test_of_the_papers_own_networks_no_size_or_rate_is_told() -> None:
    whole = context("spectrain", "table_1", learnt({}))
    assert (sizes(whole), rates(whole)) == ("", "")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("figure_3", "of 200 would send"),
        ("figure_5", "means over the latest 3 of these means and of their standard deviations"),
        ("figure_6a", "Method: pipedream; updates that passes miss, GPU by GPU: 3, 2, 1, 0"),
        ("figure_8c", "Method: dualpipe_stashed; updates that passes miss, GPU by GPU: 4, 3, 2"),
        ("figure_9", "measured on one minibatch in 10"),
        ("figure_10", "PipeDream is pipedream_vertical_sync (one version of the weights on all GPUs), DualPipe is"),
        ("figure_11", "SNN under DualPipe: computing 0.0"),
        ("figure_13", "PipeDream's one version diverges or does not learn on SNN, Transformer, Residual LSTM"),
    ],
)
def test_what_a_reader_must_know_stands_below(result: str, words: str) -> None:
    assert words in published(result)[1]


def test_options_of_any_kind_are_told() -> None:
    sentence = sizes(context("spectrain", "table_1", learnt({}), "quick"))
    assert "ResNet-152 blocks [1, 2, 1], width 0.125 (in full width 1)" in sentence


def test_what_was_taken_to_come_out_as_printed_does_not_come_out_by_that() -> None:
    """Of figure 3: as bytes are counted here the ratios are the paper's, and counted one way they are half (E15)."""
    runs = Context.load(load_paper("spectrain"), "figure_3", load_scale("published", "cpu"))
    load_results(runs.paper)
    finding = JUDGES["spectrain", "figure_3", "ratios_as_printed"](runs)
    assert finding.holds is None and "one way alone 8.0x, at most 252x" in finding.why


def test_a_row_of_data_parallelism_is_a_mean_over_its_gpus() -> None:
    """Beside a server that is one of them, the others wait; of a pipeline each stage has one."""
    parts = [{"computing": 1.0, "transfer": 0.0}, {"computing": 0.5, "transfer": 0.5}]
    stages = [{"shares": part} for part in parts]
    assert shares({"gpus": parts, "stages": stages[:1]}) == {"computing": 0.75, "transfer": 0.25}
    assert shares({"stages": stages}) == {"computing": 0.75, "transfer": 0.25}


def test_a_measured_backward_is_over_the_forward_of_the_whole_network() -> None:
    def make(arm: Arm) -> RunLog | None:
        layers = [{"forward_ms": 1.0, "backward_ms": 4.0}, {"forward_ms": 3.0, "backward_ms": 3.0}]
        return log(layers) if arm.labels["what"] == "profile" else None

    runs = context("spectrain", "figure_7", make, "quick")
    (model, *_) = (item.arm.labels["model"] for item in runs.items if item.log is not None)
    assert measured_ratio(runs, model) == 7 / 4


def test_the_lowest_bars_are_those_whose_parts_together_are_low() -> None:
    def bar(model: str, *times: float) -> list[dict[str, Any]]:
        return [{"model": model, "scheme": "x", "part": f"p{n}", "time": time} for n, time in enumerate(times)]

    rows = bar("high", 0.06, 0.06) + bar("low", 0.04, 0.0004, 0.02)
    assert least_drawn(rows) == "Of the lowest bars, low under x: p0 0.040, p2 0.020."
    assert least_drawn(bar("high", 0.06, 0.06)) == ""
