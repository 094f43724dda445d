"""What diverges or never learns says nothing about how alike arms end, nor about what they do on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import pipelag.results.pipedream
import pipelag.results.pipemare
import pipelag.results.spectrain
import pipelag.results.stale_weights  # noqa: F401  (register the judges)
from pipelag.experiments import Arm
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.judging import over_models
from pipelag.results.logs import Item, RunLog
from pipelag.results.verdict import NotLogged, Verdict, judged
from tests.results.cases import pipedream, pipemare, spectrain, stale_weights  # noqa: F401  (register the cases)
from tests.results.cases.spectrain import learnt
from tests.results.made_up import CASES, both, context, trained

pytestmark = pytest.mark.usefixtures("in_project")
Change = Callable[[RunLog], RunLog]


def changed(key: tuple[str, str, str], change: Change, seeds: tuple[int, ...] = (0, 1, 2)) -> Verdict:
    """The verdict on a claim of the trainings that make it hold, with those of some seeds changed."""
    holds, _ = CASES[key]()

    def make(item: Item) -> Item:
        trains = item.log is not None and item.arm.spec.kind == "train" and item.arm.seed in seeds
        return replace(item, log=change(item.log)) if trains and item.log is not None else item

    assert verdict(holds, key[2]).verdict == "holds"
    return verdict(replace(holds, items=[make(item) for item in holds.items]), key[2])


def verdict(runs: Context, claim: str) -> Verdict:
    """The verdict on one of a result's claims."""
    return judged(runs, next(each for each in runs.result.claims if each.id == claim))


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize(
    "key",
    [
        ("stale_weights", "control_curves", "four_run_alike_here"),
        ("stale_weights", "figure_7", "jumps_to_baseline_here"),
        ("spectrain", "figure_9", "predicted_below_stale"),
        ("spectrain", "figure_9", "grows_with_s"),
        ("pipedream", "text_headline_tta", "language_ends_alike_here"),
        ("pipedream", "figure_10", "earlier_here"),
        ("pipedream", "figure_11", "as_many_epochs_here"),
        ("pipemare", "length", "reaches_sync_here"),
        ("pipemare", "length", "price_falls_here"),
        ("pipemare", "length", "remedies_help_here"),
    ],
)
def test_a_run_that_diverges_decides_nothing(key: tuple[str, str, str], rows: int) -> None:
    """Whether it ends before its first evaluation or after: what it reached before that flatters it."""

    def gone(log: RunLog) -> RunLog:
        return replace(log, rows=log.rows[:rows], summary=log.summary | {"final": None, "diverged_at": 7})

    told = changed(key, gone, seeds=(0,))
    assert told.verdict == "cannot be judged" and "diverged with seed 0, at step 7" in told.why


@pytest.mark.parametrize(
    "key",
    [
        ("pipemare", "table_3", "t1_lifts_translation_here"),
        ("pipemare", "figure_7", "warmup_speeds_up_here"),
        ("pipemare", "figure_3", "loses_less_here"),
        ("pipemare", "figure_8", "t2_worth_more_images_here"),
        ("pipemare", "figure_14", "small_d_converges"),
        ("pipemare", "figure_18", "correction_matters"),
    ],
)
def test_a_best_score_of_a_run_that_diverges_later_is_said_to_be_one(key: tuple[str, str, str]) -> None:
    """PipeMare's scores are the best over the epochs, whatever comes after."""

    def gone(log: RunLog) -> RunLog:
        return replace(log, summary=log.summary | {"final": None, "diverged_at": 7})

    assert "; diverged: " in changed(key, gone, seeds=(0,)).why


def test_the_ends_of_longer_trainings_are_of_runs_that_do_not_diverge() -> None:
    """A run that diverges has no end; 0 % in its place would be a difference that no run has."""

    def make(arm: Arm) -> RunLog:
        gone = arm.labels["arm"] == "T1" and arm.labels["length"] == "once" and arm.seed == 0
        return trained(diverged_at=7) if gone else trained(50.0)

    table = draw(context("pipemare", "length", make)).table
    assert table is not None
    rows = {line.split(" | ")[0]: line.split(" | ")[1:] for line in table.markdown().splitlines()}
    assert rows["| T1"][:2] == ["50.0 (sd 0.0), 1 of 3 diverged", "50.0 (sd 0.0)"]
    assert rows["| T1"][3:5] == ["–", "+0.00 ± 0.00 (3 seeds)"]


@pytest.mark.parametrize(
    "key",
    [
        ("stale_weights", "figure_5a", "drop_within_0_5"),
        ("stale_weights", "figure_5a", "converges_alike"),
        ("stale_weights", "figure_5b", "all_converge"),
        ("stale_weights", "figure_5b", "spread_below_half_a_point"),
        ("stale_weights", "precision", "ends_alike_here"),
        ("stale_weights", "precision", "costs_alike_here"),
        ("stale_weights", "control", "four_cost_little_here"),
        ("stale_weights", "control_curves", "four_run_alike_here"),
        ("pipedream", "figure_11", "ends_alike_here"),
        ("pipemare", "length", "reaches_sync_here"),
    ],
)
def test_arms_that_all_stay_at_chance_are_not_alike(key: tuple[str, str, str]) -> None:
    """Their drops are all within any bound, and their curves flat from the first evaluation on."""

    def chance(log: RunLog) -> RunLog:
        run = trained(10.0, line=[10.0] * len(log.rows))
        return replace(log, rows=run.rows, summary=run.summary | {"data": log.data | {"classes": 10}})

    told = changed(key, chance)
    assert told.verdict == "cannot be judged" and "does not learn here" in told.why


def test_accuracies_that_are_all_equal_have_no_ranks() -> None:
    """The sentence said that their rank correlation is nan."""
    told = changed(("stale_weights", "table_3", "accuracy_falls"), lambda log: trained(50.0))
    assert told.verdict == "cannot be judged" and told.why.endswith("all are equal, so that they have no ranks")


def test_curves_are_compared_over_the_seeds_that_both_have() -> None:
    """SpecTrain may have fewer seeds than data parallelism, whose own seeds say what is near."""

    def fewer(arm_seeds: tuple[int, ...]) -> Verdict:
        runs, _ = both("spectrain", "figure_12", learnt({}, apart=1.0), learnt({}))
        items = [i for i in runs.items if i.arm.labels["arm"] != "SpecTrain" or i.arm.seed in arm_seeds]
        return verdict(replace(runs, items=items), "spectrain_near_data")

    assert "(3 seeds)" in fewer((0, 1, 2)).why
    assert "(2 seeds)" in fewer((1, 2)).why


def test_models_without_a_seed_in_common_have_no_mean() -> None:
    with pytest.raises(NotLogged, match="no seed in common"):
        over_models([{0: 1.0}, {1: 2.0}])
