"""PipeMare's scores are the best over a run's evaluations, and what stands beside them says how runs end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pipelag.experiments import load_paper
from pipelag.results.drawing import draw
from pipelag.results.loading import load_results
from pipelag.results.logs import Item
from pipelag.results.pipemare.costs import unreached
from pipelag.results.pipemare.headline import PAPERS_LENGTHS, variants
from pipelag.results.pipemare.lemmas import lemma_1
from pipelag.results.pipemare.quality import area, best_of, last_cell
from pipelag.results.verdict import JUDGES, verdicts
from tests.results.cases.pipemare import PAPER, rising, training, warmed_up
from tests.results.made_up import context, log

pytestmark = pytest.mark.usefixtures("in_project")


def falling_back(labels: Mapping[str, str]) -> list[float]:
    """The largest K is ahead at its best, and ends where the others do."""
    return [5.0, 20.0, 7.0] if labels["arm"] == "K = 60/60" else [5.0, 6.0, 7.0]


def test_a_verdict_that_rests_on_the_best_evaluations_tells_of_the_last() -> None:
    runs = context(PAPER, "figure_13", training(falling_back))
    load_results(runs.paper)
    verdict = {each.claim: each for each in verdicts(runs)}["transformer_large_k"]
    assert verdict.verdict == "holds" and "by -13.00" in verdict.why
    assert "at the last evaluation +0.00" in verdict.why


def test_tables_say_of_how_many_evaluations_a_score_is_the_best_and_have_the_last() -> None:
    for result in ("table_2", "table_3", "text_quality_bound"):
        runs = context(PAPER, result, training(lambda labels: [5.0, 20.0, 7.0], hardware=True))
        load_results(runs.paper)
        table = draw(runs).table
        assert table is not None
        headings = [column.heading for column in table.columns]
        best, last = (next(h for h in headings if word in h) for word in ("best of 3 evaluations", "last"))
        keys = {column.heading: column.key for column in table.columns}
        cells = [(row[keys[best]], row[keys[last]]) for row in table.rows]
        assert ("20.0 (sd 0.0)", "7.0 (sd 0.0)") in cells


def test_a_run_that_diverged_has_no_end() -> None:
    runs = context(PAPER, "table_3", training({"T1": 40, "T2": [9.0, 8.0]}))
    assert last_cell(runs, task="images", arm="T1") == "diverged"
    assert last_cell(runs, task="images", arm="T2") == "8.0 (sd 0.0)"
    assert last_cell(runs, task="images", arm="Sync") is None
    assert best_of(runs) == "best of 2 evaluations"


def test_evaluations_that_a_run_that_diverged_never_came_to_count_as_0() -> None:
    rows = [{"bleu": 10.0, "accuracy": 20.0}, {"bleu": 30.0, "accuracy": 40.0}]
    runs = context(PAPER, "table_3", lambda arm: log(rows, diverged_at=7 if arm.seed else None))
    spec = runs.select(task="translation", arm="T1")[0].arm.spec
    asked = spec.steps // spec.evaluate_every
    means = area(runs, task="translation", arm="T1")
    assert asked > 2 and means == pytest.approx({0: 20.0, 1: 40.0 / asked, 2: 40.0 / asked})


def test_a_target_that_no_warmed_up_run_reaches_is_said_with_where_it_is_from() -> None:
    runs = context(PAPER, "table_3", training({"Sync": [20.0, 34.5], "T1+T2+W": [10.0, 30.0]}, hardware=True))
    load_results(runs.paper)
    table = draw(runs).table
    assert table is not None
    (note,) = [note for note in table.notes if "never reaches 34.1" in note]
    assert "98.8 % of Sync's best" in note and note.endswith("30.0")


def test_of_a_target_that_some_seeds_reach_the_others_are_told() -> None:
    reaching = training({"Sync": [20.0, 34.5], "T1+T2+W": [10.0, 34.4]}, hardware=True)
    short = training({"T1+T2+W": [10.0, 30.0]})
    runs = context(PAPER, "table_3", lambda arm: short(arm) or reaching(arm) if arm.seed == 0 else reaching(arm))
    why = unreached(runs, "translation")
    assert "for with 1 of its 3 seeds it never reaches 34.1" in why and why.endswith("the best of these comes to 30.0")


def test_seeds_of_an_arm_that_a_scale_leaves_out_are_not_compared() -> None:
    make = training({"Sync": rising(34.5, 8), "T1": rising(34.4, 16)})
    asked = context(PAPER, "table_3", make)
    items = [
        Item(replace(item.arm, left_out="two seeds are enough"), None)
        if item.arm.labels["arm"] == "T1" and item.arm.seed == 2
        else item
        for item in asked.items
    ]
    load_results(asked.paper)
    verdict = {each.claim: each for each in verdicts(replace(asked, items=items))}["iwslt_t1_twice"]
    assert verdict.verdict == "holds" and "(2 seeds)" in verdict.why


def test_each_number_of_stages_says_by_how_much_it_misses_its_target() -> None:
    scores = {"GPipe": [20.0, 34.5], "PipeMareW": [10.0, 30.0], "PipeMare": [20.0], "PipeDream": [20.0]}
    runs = context(PAPER, "figure_3", training(scores, hardware=True))
    load_results(runs.paper)
    footer = draw(runs).footer(runs)
    assert "At P = 23, 47, 93, PipeMareW has no amortised utilisation, for it never reaches 33.9" in footer
    assert (
        "of GPipe's best that the paper's target is of its own; the best of its seeds comes to 30.0, 30.0, 30.0."
        in footer
    )
    assert "At the last evaluation: GPipe 34.5 (sd 0.0) at P = 23, 34.5" in footer
    lone = replace(runs, items=[item for item in runs.items if item.arm.labels.get("setup") != "transformer_few"])
    lone = replace(lone, items=[item for item in lone.items if item.arm.labels.get("setup") != "transformer_some"])
    assert "of its own; the best" in draw(lone).footer(lone) and "At P" not in draw(lone).footer(lone)


def test_warm_up_as_long_as_the_papers_is_a_variant_where_table_3_has_another() -> None:
    runs = context(PAPER, "text_quality_bound", training(lambda labels: 30.0))
    assert variants(runs, "translation") == ["T1", "T1+T2", "T1+T2+W"]  # at the paper's scale they are one run
    published = context(PAPER, "text_quality_bound", training(lambda labels: 30.0), scale="published")
    assert variants(published, "translation")[-1] == PAPERS_LENGTHS
    assert PAPERS_LENGTHS not in variants(published, "images")


def test_each_grid_has_a_legend_of_its_own_and_no_two_lines_of_it_one_colour() -> None:
    runs = context(PAPER, "figure_13", training(lambda labels: 30.0))
    load_results(runs.paper)
    figure = draw(runs).figure
    assert not figure.legends
    for axes, many in zip(figure.axes, (6, 4), strict=True):
        lines = [line for line in axes.get_lines() if line.get_label().startswith(("Sync", "K ="))]
        assert len(axes.get_legend().get_texts()) == len({line.get_color() for line in lines}) == many


def test_a_legend_has_the_values_of_a_grid_in_their_order() -> None:
    runs = context(PAPER, "figure_14", training(lambda labels: 30.0))
    load_results(runs.paper)
    (legend,) = draw(runs).figure.legends
    values = [text.get_text() for text in legend.get_texts()]
    assert values == ["Sync", "no correction", *(f"D = {value}" for value in (0.01, 0.1, 0.2, 0.5, 0.9))]


def test_steps_from_arm_to_arm_are_told_at_their_best_and_once_at_their_ends() -> None:
    scores = {"Sync": [90.0, 80.0], "no discrepancy": [70.0, 60.0], "no discrepancy, many more stages": [30.0, 10.0]}
    runs = context(PAPER, "figure_4", training(scores))
    load_results(runs.paper)
    why = {each.claim: each for each in verdicts(runs)}["delay_hurts"].why
    assert "steps of +20.00 ± 0.00 (3 seeds), +40.00 ± 0.00 (3 seeds), at the last evaluation +20.00 ± 0.00" in why
    assert why.count("at the last evaluation") == 1 and "+50.00" in why


def test_the_boundary_of_divergence_lies_between_two_step_sizes_of_the_grid() -> None:
    def rows(tau: int) -> list[dict[str, float | None]]:
        bound = lemma_1(tau, 1.0)
        row: dict[str, float | None] = {"tau": tau, "curvature": 1.0, "bound": bound}
        return [row | {"alpha": a, "loss": 1.0 if a < bound else None} for a in (0.25, 0.5, 1.0, 2.0)]

    log_ = log([row for tau in (1, 2) for row in rows(tau)])
    runs = context(PAPER, "figure_5b", lambda arm: log_, scale="quick", seeds=[0])
    load_results(runs.paper)
    verdict = {each.claim: each for each in verdicts(runs)}["on_lemma_1"]
    assert verdict.verdict == "holds"
    assert "stays finite is 0.50 to 0.81, the next of the grid, which diverges, 1.00 to 1.62" in verdict.why


def test_segments_that_stand_for_the_papers_checkpoints_are_counted_below_the_figure() -> None:
    runs = context(PAPER, "figure_17", training(lambda labels: 90.0), scale="published", seeds=[0])
    load_results(runs.paper)
    assert "2, 4, 17 checkpoints the 27 stages here have 2, 4, 14 segments" in draw(runs).footer(runs)


def test_one_evaluation_less_to_a_good_bleu_is_no_fewer_epochs() -> None:
    load_results(load_paper(PAPER))

    def fewer(last: int) -> bool | None:
        taken = {"W = 3/60": 50, "W = 5/60": 50, "W = 10/60": last}
        return JUDGES[PAPER, "figure_15", "fewer_epochs"](context(PAPER, "figure_15", warmed_up(taken))).holds

    assert [fewer(last) for last in (48, 49, 55)] == [True, None, False]


def test_that_t1_scores_lower_is_not_said_of_what_it_adds() -> None:
    runs = context(PAPER, "figure_8", training(lambda labels: 35.0 if labels["split"] == "2" else 41.0))
    load_results(runs.paper)
    assert "what T1 adds is unknown" in JUDGES[PAPER, "figure_8", "t1_weakens_images"](runs).why
    arms = {item.arm.labels["arm"] for item in runs.items if item.arm.labels.get("split") == "2"}
    assert arms == {"Sync", "T1", "T1+T2", "T1+T2+W"}  # none without T1


def test_a_run_without_a_task_may_be_left_out() -> None:
    """Table 2 counts weight copies, too; and a task of which a scale leaves out one arm is not left out."""
    runs = context(PAPER, "table_2", training(lambda labels: [5.0, 20.0, 7.0], hardware=True))
    load_results(runs.paper)

    def without(item: Item) -> Item:
        labels = item.arm.labels
        gone = "task" not in labels or labels["task"] == "WMT17" or labels["arm"] == "PipeDream"
        return Item(replace(item.arm, left_out="too long here"), None) if gone else item

    table = draw(replace(runs, items=[without(item) for item in runs.items])).table
    assert table is not None
    assert [note for note in table.notes if "left out" in note] == ["WMT17 left out: too long here"]
