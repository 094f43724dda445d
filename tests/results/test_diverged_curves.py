"""Where one arm diverged, the curves of the others can still be read, and the legend says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipelag.experiments.expand import Arm
from pipelag.results.logs import RunLog
from pipelag.results.pipeoptim.accuracy import best_of
from pipelag.results.spectrain.learning_curves import figure_12, limits, named, spectrain_near_data
from pipelag.results.verdict import NotLogged
from tests.results.cases.spectrain import learnt
from tests.results.made_up import both, context, trained


def test_a_best_evaluation_is_none_of_a_run_that_diverges() -> None:
    def make(arm: Arm) -> RunLog:
        gone = arm.labels["arm"] == "XPipe" and arm.seed == 1
        run = trained(line=[40.0, 50.0 + arm.seed], accuracy=50.0)
        return replace(run, summary={**run.summary, "final": None, "diverged_at": 30}) if gone else run

    items = context("pipeoptim", "table_4", make, seeds=(0, 1, 2)).select(model="AlexNet")
    ends = {arm: best_of([i for i in items if i.arm.labels["arm"] == arm], "AlexNet") for arm in ("XPipe", "GPipe")}
    assert ends == {"XPipe": "51.00 ± 1.41 (2 of 3 seeds, one diverges)", "GPipe": "51.00 ± 1.00"}


def rows(**arms: list[float]) -> list[dict[str, Any]]:
    return [
        {"panel": "loss", "arm": arm, "step": step, "value": value, "diverged": max(values) > 100}
        for arm, values in arms.items()
        for step, value in enumerate(values)
    ]


def log(diverged_at: int | None) -> RunLog:
    return RunLog(Path(), [], {"diverged_at": diverged_at}, {})


def test_the_axis_is_of_those_that_did_not_diverge() -> None:
    low, high = limits(rows(steady=[1.0, 0.5], other=[0.9, 0.6], lost=[1.0, 1e6]), "loss")
    assert low is not None and high is not None and 0.4 < low < 0.5 and 1.0 < high < 1.1
    assert limits(rows(steady=[1.0, 0.5], other=[0.9, 0.6]), "loss") == (None, None)
    assert limits(rows(lost=[1.0, 1e6]), "loss") == (None, None)
    seeds = rows(steady=[0.8, 0.6]) + rows(steady=[0.8, 0.6]) + rows(steady=[3.2, 0.6])  # one evaluation of one seed
    high = limits(seeds, "loss")[1]
    assert high is not None and 1.6 < high < 1.7


def test_the_legend_counts_them() -> None:
    assert named("PipeDream", [log(None), log(None)]) == "PipeDream"
    assert named("PipeDream", [log(7)]) == "PipeDream (diverged)"
    assert named("PipeDream", [log(7), log(None), log(9)]) == "PipeDream (2 of 3 diverged)"


@pytest.mark.usefixtures("in_project")
def test_a_curve_that_is_not_there_is_said_below_the_figure() -> None:
    def lost(arm: Arm) -> RunLog | None:
        run = learnt({})(arm)
        if run is None or arm.labels["arm"] != "Vanilla DualPipe" or not arm.seed:
            return run
        return replace(run, rows=[], summary=run.summary | {"diverged_at": 7, "final": None})

    whole, broken = both("spectrain", "figure_12", learnt({}), lost)
    assert "Diverged" not in whole.footer()
    assert "Diverged: Vanilla DualPipe (2 of 3 runs)." in broken.footer()
    _, several = both("spectrain", "table_1", learnt({}), lost)  # of each model by itself
    models = dict.fromkeys(item.arm.labels["model"] for item in several.items)
    each = "; ".join(f"model {model}: 2 of 3" for model in models)
    assert len(models) > 1 and f"Diverged: Vanilla DualPipe ({each} runs)." in several.footer()


@pytest.mark.usefixtures("in_project")
def test_of_what_diverges_with_every_seed_no_loss_is_drawn() -> None:
    def gone(least: int) -> pd.DataFrame:
        def make(arm: Arm) -> RunLog | None:
            run = learnt({})(arm)
            if run is None or arm.labels["arm"] != "PipeDream" or arm.seed < least:
                return run
            return replace(run, summary=run.summary | {"diverged_at": 7, "final": None})

        drawn = figure_12(context("spectrain", "figure_12", make))
        assert drawn.data is not None and ("No loss is drawn" in drawn.note) is (least == 0)
        return drawn.data[drawn.data["arm"].str.startswith("PipeDream (")]

    assert set(gone(0)["panel"]) == {"Validation accuracy"}
    assert len(set(gone(1)["panel"])) == 3


@pytest.mark.usefixtures("in_project")
def test_one_that_diverged_early_is_not_near_to_whom_it_began_beside() -> None:
    def lost(arm: Arm) -> RunLog | None:
        run = learnt({}, apart=1.0)(arm)
        if run is None or arm.labels["arm"] != "SpecTrain":
            return run
        return replace(run, rows=run.rows[:3], summary=run.summary | {"diverged_at": 70, "final": None})

    whole, broken = both("spectrain", "figure_12", learnt({}, apart=1.0), lost)
    assert spectrain_near_data(whole).why.startswith("points between accuracies")
    with pytest.raises(NotLogged, match="SpecTrain of Transformer diverged with seed 0, at step 70"):
        spectrain_near_data(broken)
