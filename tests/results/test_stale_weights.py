"""The judges of stale weights at their edges: one evaluation, one seed, arms of different seeds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipelag.experiments import Arm, load_paper, load_scale
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.loading import load_results
from pipelag.results.logs import Item, RunLog
from pipelag.results.stale_weights.claims_accuracy import costs_alike
from pipelag.results.stale_weights.claims_convergence import all_converge
from pipelag.results.stale_weights.claims_depth import widest_gap
from pipelag.results.stale_weights.claims_hybrid import around
from pipelag.results.stale_weights.claims_staleness import same_percentages
from pipelag.results.stale_weights.reading import memory_of
from pipelag.results.verdict import Finding, NotLogged
from tests.results.cases.stale_weights import FINE, SLIDING, STALE, ends
from tests.results.made_up import OFFICIAL, context, trained

pytestmark = pytest.mark.usefixtures("in_project")


def test_of_one_evaluation_nobody_knows_whether_it_moves() -> None:
    with pytest.raises(NotLogged, match="AlexNet's 4-stage is evaluated once"):
        all_converge(context("stale_weights", "figure_5b", lambda arm: trained(80.0, line=[80.0])))


def test_the_first_quarter_after_a_switch_stands_beside_as_much_before_it() -> None:
    assert around(dict.fromkeys(range(50, 601, 50), 0.0), 200) == ([150, 200], [250, 300])
    assert around(dict.fromkeys((100, 200, 400, 800), 0.0), 200) == ([200], [400])  # one at least
    for steps in ((300, 400), (100, 200)):
        with pytest.raises(NotLogged):
            around(dict.fromkeys(steps, 0.0), 200)


def test_with_one_seed_a_gap_has_the_error_of_its_test_sets_samples() -> None:
    def make(arm: Arm) -> RunLog | None:
        if arm.spec.kind != "train":
            return None
        deep = (arm.labels["model"], arm.labels["arm"]) == ("ResNet-362", "pipelined")
        ended = trained(80.0 if deep else 90.0)
        return replace(ended, summary=ended.summary | {"data": OFFICIAL | {"test": 10_000}})

    finding = widest_gap(context("stale_weights", "table_5", make, seeds=(0,)))
    assert finding.holds is True and "than ResNet-20 +10.00 ± " in finding.why


def test_the_curves_of_figure_6_are_compared_where_both_have_a_point() -> None:
    """A scale may leave out the register at which the other curve has its last."""

    def without(*layers: int) -> Finding:
        whole = context("stale_weights", "figure_6", ends({**FINE, **SLIDING}))
        names = [f"register after {layer}" for layer in layers]
        items = [
            Item(replace(item.arm, left_out="no time"), None) if item.arm.labels["arm"] in names else item
            for item in whole.items
        ]
        return same_percentages(replace(whole, items=items))

    assert without(17).holds is True and "layer 15" in without(17).why and "layer 17" not in without(17).why
    with pytest.raises(NotLogged, match="fewer than two registers where Increasing Stages has its last"):
        without(*(layer for layer in STALE if layer != 19))


def test_the_costs_are_of_the_seeds_that_their_difference_is_of() -> None:
    def make(arm: Arm) -> RunLog:
        return trained(89.0 - arm.seed if arm.labels["arm"] == "8-stage" else 90.0)

    runs = context("stale_weights", "precision", make)
    runs.items = [item for item in runs.items if item.arm.labels["precision"] == "float32" or not item.arm.seed]
    assert costs_alike(runs).why.startswith("8 stages cost 1.00 points in float32, 1.00 in bfloat16: more by +0.00")


def test_training_without_a_pipeline_has_no_stale_weights_at_whichever_rate() -> None:
    runs = context("stale_weights", "table_3", ends(FINE))
    load_results(runs.paper)
    drawn = draw(runs).table
    assert drawn is not None
    stale = {row["0"]: row["2"] for row in drawn.rows if row["1"] == "none"}
    assert stale == {"non-pipelined": 0.0, "non-pipelined at the pipelined rate": 0.0}


def test_a_table_without_ranges_does_not_explain_any() -> None:
    for result, ranges in (("text_hybrid_speedup_bound", False), ("text_headline_speedup", True)):
        runs = Context.load(load_paper("stale_weights"), result, load_scale("published", "cpu"))
        load_results(runs.paper)
        drawn = draw(runs).table
        assert drawn is not None and any("[min, max]" in note for note in drawn.notes) is ranges


def test_the_models_page_prints_what_table_6_does() -> None:
    runs = Context.load(load_paper("stale_weights"), "table_6", load_scale("published", "cpu"))
    load_results(runs.paper)
    printed = []
    for depth in (20, 56, 110, 224, 362):
        ours = memory_of(runs, f"ResNet-{depth}")
        assert ours is not None
        sizes = [f"{ours[key]:.2f}" for key in ("weight_mb", "activations_mb_per_sample", "increase_mb_per_sample")]
        printed.append((str(depth), *sizes, f"{ours['increase_percent']:.0f}"))
    page = Path("docs/models.md").read_text()
    row = r"\| (\d+), \(\d+\) \| ([\d.]+) \| ([\d.]+) / [\d.]+ \| ([\d.]+) / [\d.]+ \| (\d+) / \d+ \|"
    assert re.findall(row, page) == printed
