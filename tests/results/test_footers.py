"""What stands below a figure is of the runs that it shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelag.commands.result import save
from pipelag.experiments import Arm, arms, load_paper, load_scale
from pipelag.report.frames import Lines
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, draw
from pipelag.results.loading import load_results
from pipelag.results.logs import Item, RunLog
from tests.results.cases.pipemare import PAPER, training
from tests.results.made_up import both


def images_alone(labels: Mapping[str, str]) -> float | None:
    """No pipeline translates."""
    return 90.0 if labels["task"] == "images" else 30.0 if labels["arm"] == "Sync" else None


def everything(labels: Mapping[str, str]) -> float:
    return 90.0 if labels["task"] == "images" else 30.0


@pytest.mark.usefixtures("in_project")
def test_a_task_that_has_no_panel_is_not_told_of() -> None:
    some, whole = both(PAPER, "figure_8", training(images_alone), training(everything), scale="paper")
    for context, panels in ((some, 1), (whole, 2)):
        load_results(context.paper)
        drawn = draw(context)
        assert drawn.data is not None and drawn.data["panel"].nunique() == panels
        assert ("Transformer" in drawn.footer(context)) is (panels == 2) and "ResNet-50" in drawn.footer(context)
    assert "Transformer" in some.footer()


@pytest.mark.usefixtures("in_project")
@pytest.mark.parametrize(("result", "tasks"), [("figure_13", ["translation"]), ("figure_15", []), ("figure_17", [])])
def test_training_without_a_pipeline_or_recomputation_is_not_drawn_alone(result: str, tasks: list[str]) -> None:
    def some(labels: Mapping[str, str]) -> float | None:
        alone = labels["arm"] == "Sync" or labels.get("checkpoints") == "none"
        return 30.0 if alone or labels["task"] in tasks else None

    part, whole = both(PAPER, result, training(some), training(everything), scale="paper")
    load_results(part.paper)
    drawn, drawn_whole = draw(part), draw(whole)
    assert drawn.data is not None and drawn_whole.data is not None
    assert len(set(drawn.data.get("panel", ()))) == len(tasks) < drawn_whole.data["panel"].nunique()
    assert bool(drawn.footer(part)) is bool(tasks)  # an empty frame says itself why it is empty


def published(paper: str, result: str) -> str:
    """What stands below a published result."""
    context = Context.load(load_paper(paper), result, load_scale("published", "cpu"))
    load_results(context.paper)
    return draw(context).footer(context)


@pytest.mark.usefixtures("in_project")
def test_what_a_reader_must_know_of_a_setup_stands_below_whatever_shows_its_runs() -> None:
    smaller_rate, third = "a tenth of the rate that training without one has", "The rate is a third of the one"
    for result in ("table_2", "figure_5d"):
        assert published("stale_weights", result).count(smaller_rate) == 1
    assert smaller_rate not in published("stale_weights", "figure_5a")
    assert published("leaderboard", "table_3").count(third) == published("leaderboard", "table_11").count(third) == 1
    assert third not in published("leaderboard", "table_1")


@pytest.mark.usefixtures("in_project")
def test_a_note_names_another_result_as_its_page_is_called() -> None:
    named = set(re.findall(r'result "([^"]+)"', published("stale_weights", "figure_5d")))
    assert named and named <= {result.title for result in load_paper("stale_weights").results.values()}


@pytest.mark.usefixtures("in_project")
def test_a_note_does_not_send_readers_to_the_result_that_they_read() -> None:
    named = 'the result "The cost of the smaller rate"'
    assert named in published("stale_weights", "control_curves") and named not in published("stale_weights", "control")


@pytest.mark.usefixtures("in_project")
@pytest.mark.parametrize(
    ("paper", "result", "words"),
    [
        ("stale_weights", "figure_5a", "The axis shows the ends of the curves"),
        ("stale_weights", "figure_7", "0.1 (Baseline 1,560); 0.01 (Pipelined 1,560); 0.01, then 0.1 (1,040+520 hybrid"),
        ("pipedream", "links", "Lines are means of 2 timed blocks, bands one standard deviation."),
        ("leaderboard", "figure_1", "SC: spike compensation"),
        ("leaderboard", "figure_2", "T2: backwards read weights"),
    ],
)
def test_what_a_figure_does_not_explain_itself_stands_below_it(paper: str, result: str, words: str) -> None:
    assert words in published(paper, result)


@pytest.mark.usefixtures("in_project")
def test_the_bandwidths_of_clusters_are_not_said_to_be_from_profiles() -> None:
    for result in ("figure_7", "table_2"):
        assert published("pipedream", result) == "Taken from the descriptions of the plans' clusters, not measured."


@pytest.mark.usefixtures("in_project")
@pytest.mark.parametrize(
    "result",
    ["figure_16", "figure_18b", "text_memory_bound", "text_memory_over_stages", "text_communication_reduction"],
)
def test_bytes_are_said_to_be_counted(result: str) -> None:
    words = published("pipedream", result)
    assert "Counted from " in words and "simulation" not in words


@pytest.mark.usefixtures("in_project")
def test_that_a_network_is_smaller_comes_first_and_its_rates_are_all_told() -> None:
    for paper, result in (("pipedream", "figure_11"), ("pipemare", "figure_3"), ("stale_weights", "figure_5c")):
        assert "Different from the paper: smaller models; " in published(paper, result)
    assert "smaller models" not in published("stale_weights", "figure_5d")
    assert "learning rates of 0.025 and 0.004 instead of 0.05 and 0.001" in published("leaderboard", "figure_3")
    searched = published("leaderboard", "table_4")  # whose labels count rates from the common one
    assert "Stale weights (rate 0.1: 1 of 3 runs)" in searched


@pytest.mark.usefixtures("in_project")
def test_minibatches_of_replicated_stages_are_not_called_updates() -> None:
    assert "minibatches (a stage with n replicas updates once per n minibatches)" in published("pipedream", "figure_11")
    assert " updates; " in published("spectrain", "figure_12")


def board(result: str) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """A published table of the leaderboard: cells by method and heading, and its notes."""
    context = Context.load(load_paper("leaderboard"), result, load_scale("published", "cpu"))
    load_results(context.paper)
    table = draw(context).table
    assert table is not None
    rows = [{column.heading: row.get(column.key) for column in table.columns} for row in table.rows]
    return {row["method"]: row for row in rows}, table.notes


@pytest.mark.usefixtures("in_project")
def test_gradients_that_are_late_have_no_distance_of_weights() -> None:
    rows, notes = board("table_1")
    for arm, has_distance in (("Hogwild", False), ("Hogwild, T1", False), ("1F1B, latest weights", True)):
        distances = [cell is not None for heading, cell in rows[arm].items() if "distance" in heading]
        assert distances == [has_distance] * 2, rows[arm]
    assert any(note.startswith("Hogwild: ") and "the greatest that can be drawn" in note for note in notes)
    runs = Context.load(load_paper("leaderboard"), "table_1", load_scale("published", "cpu"))
    settings = [item.arm.spec.phases[0].options for item in runs.select(arm="Hogwild")]
    assert settings and not any("mean" in each or "most" in each for each in settings)  # so means are PipeMare's


@pytest.mark.usefixtures("in_project")
def test_a_rate_at_the_end_of_those_that_were_tried_is_marked() -> None:
    rows, _ = board("table_4")
    rates = [rows[arm]["its rate"] for arm in ("XPipe", "PipeDream", "sequential")]
    assert rates == ["≤ 0.0125", "0.025", "0.05"]


def items(**whys: str) -> list[Item]:
    """Runs of "model arm seed", each left out for a reason, or logged."""
    spec = arms(load_paper(PAPER), "table_3", load_scale("quick"))[0].spec
    runs = []
    for name, why in whys.items():
        model, arm, seed = name.split("_")
        labels = {"what": "training", "model": model, "arm": arm}
        runs.append(Item(Arm(labels, int(seed), spec, why), None if why else RunLog(Path("x"), [], {}, {})))
    return runs


@pytest.mark.usefixtures("in_project")
@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        ({"A_p_0": "", "A_q_0": "", "B_p_0": "long", "B_q_0": "long"}, "B (long)"),
        ({"A_p_0": "", "A_q_0": "long", "B_p_0": "", "B_q_0": "long"}, "q (long)"),
        ({"A_p_0": "", "A_q_0": "", "B_p_0": "", "B_q_0": "long"}, "B: q (long)"),
        ({"A_p_0": "", "A_p_1": "long", "B_p_0": "", "B_p_1": "long"}, "seed 1 (long)"),
        ({"A_p_0": "", "A_p_1": "long", "B_p_0": "", "B_p_1": ""}, "A: seed 1 (long)"),
        (
            {"A_p_0": "", "A_p_1": "long", "B_p_0": "", "B_p_1": "", "A_p_2": "long", "B_p_2": ""},
            "A: seeds 1, 2 (long)",
        ),
        (
            {"A_p_0": "", "A_p_1": "long", "A_p_2": "", "B_q_0": "", "B_q_1": "", "B_q_2": "long"},
            "further seeds (long)",
        ),
        ({"A_p_0": "", "A_p_1": "long", "B_p_0": "dear", "B_p_1": "long"}, "seed 1 (long); B: seed 0 (dear)"),
        ({"A_p_0": "", "A_q_0": "long", "B_p_0": "dear"}, "q (long); B (dear)"),
        ({"A_p_0": "long", "A_q_0": "long"}, "long"),  # of a figure without any other run
    ],
)
def test_what_is_left_out_is_named_by_what_tells_it_apart(runs: dict[str, str], sentence: str) -> None:
    paper = load_paper(PAPER)
    context = Context(paper, "table_3", paper.results["table_3"], load_scale("quick"), items(**runs))
    assert context.left_out() == sentence


@pytest.mark.usefixtures("in_project")
def test_stages_are_told_of_where_they_make_weights_late() -> None:
    assert "27 stages instead of" not in published(PAPER, "figure_8")  # those of training without delays


@pytest.mark.usefixtures("in_project")
def test_a_table_has_its_footer_and_counts_the_seeds_of_an_arm_once(tmp_path: Path) -> None:
    context, _ = both(PAPER, "table_8", training(everything), training(everything), scale="paper")
    load_results(context.paper)
    drawn = draw(context)
    footer = drawn.footer(context)
    seeds = {item.arm.seed for item in context.items}
    assert f"; {len(seeds)} seeds" in footer and "one standard deviation" not in footer
    save(drawn, tmp_path / "table_8", "table", footer)
    for end in (".md", ".tex"):
        assert "updates;" in (tmp_path / "table_8").with_suffix(end).read_text()


@pytest.mark.usefixtures("in_project")
def test_seeds_that_not_all_arms_have_are_not_said_of_all() -> None:
    whole, _ = both(PAPER, "figure_7", training(everything), training(everything), scale="paper")
    lone = [item for item in whole.items if item.arm.labels["arm"] != "T1" or item.arm.seed == 0]
    load_results(whole.paper)
    for context, words in ((whole, "; 3 seeds, bands"), (replace(whole, items=lone), "; 1 to 3 seeds, bands")):
        assert words in draw(context).footer(context)


def test_a_line_of_one_point_has_whiskers_and_the_footer_says_so() -> None:
    """Of a curve the same seeds make a band."""

    def spread(xs: tuple[int, ...]) -> str:
        rows = [{"x": x, "y": float(x + seed), "seed": seed, "arm": "a"} for x in xs for seed in range(3)]
        return Drawn.of(Lines("x", "y", line="arm"), rows).spread

    assert spread((1, 2)) == "bands of one standard deviation"
    assert spread((1,)) == "bands or whiskers of one standard deviation"
