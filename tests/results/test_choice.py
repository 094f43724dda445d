"""The leaderboard's table of what is left to lose: every number against sequential training of its own work."""

from __future__ import annotations

import pytest

import pipelag.results.leaderboard  # noqa: F401  (registers the tables)
from pipelag.experiments import Arm
from pipelag.results.drawing import draw
from pipelag.results.leaderboard.choice import stages_of
from pipelag.results.logs import RunLog
from pipelag.results.verdict import verdicts
from tests.results.made_up import context, trained

pytestmark = pytest.mark.usefixtures("in_project")
WHOLE = {"half": 60.0, "adamw": 70.0, "words": 80.0}


def test_each_cost_is_against_sequential_training_of_the_same_work() -> None:
    def ending(arm: Arm) -> RunLog | None:
        name, work = arm.labels["arm"], arm.labels["work"]
        (phase,) = arm.spec.phases
        lost = 0.0 if name.startswith("sequential") else float(phase.stages) + (10.0 if name == "PipeDream" else 0.0)
        run = trained(WHOLE[work] - lost + (5.0 if "NAdam" in name else 0.0))
        run.summary["phases"] = [{"weight_copies": [4 if name == "PipeDream" else 1] * phase.stages}]
        return run

    runs = context("leaderboard", "table_8", ending)
    table = draw(runs).table
    assert table is not None
    rows = {
        line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in table.markdown().splitlines()
    }
    zero = "± 0.00"
    assert rows["1F1B, latest weights"] == [
        "1",
        *(f"+{cost}.00 {zero}" for cost in (4, 8, 16, 4, 8, 16, 8)),
    ]
    assert rows["PipeDream"] == ["4", *(f"+{cost}.00 {zero}" for cost in (14, 18, 26, 14, 18, 26, 18))]
    assert rows["PipeDream with NAdam (beta1 = 0.99)"] == [
        "1",
        "–",
        "–",
        "–",
        *(f"+{cost}.00 {zero}" for cost in (4, 8, 16, 8)),
    ]
    assert list(rows).index("1F1B, latest weights") < list(rows).index("PipeDream")
    words = {stages_of(item) for item in runs.items if item.arm.labels["work"] == "words"}
    assert words == {8} and rows["XPipe"][2:5] == ["–", "–", "–"]


def test_a_run_that_diverges_costs_an_unknown_amount_and_fewer_seeds_are_counted() -> None:
    def ending(arm: Arm) -> RunLog | None:
        if arm.labels["arm"] == "PipeOptim":
            return trained(diverged_at=7, phases=[{}])
        return trained(50.0, phases=[{}]) if arm.seed == 0 or arm.labels["arm"] != "XPipe" else None

    table = draw(context("leaderboard", "table_8", ending)).table
    assert table is not None
    text = table.markdown()
    assert "unknown (with no seed do both finish)" in text
    assert "(one seed" in text


@pytest.mark.parametrize("result", ["table_8", "figure_3"])
@pytest.mark.parametrize("lacking", ["a seed", "an arm"])
def test_what_is_said_of_each_depth_waits_for_all_logs(result: str, lacking: str) -> None:
    """A sentence about every remedy does not hold without the logs of one, nor of some of its seeds."""

    def ending(arm: Arm, whole: bool = False) -> RunLog | None:
        (phase,) = arm.spec.phases
        deep = phase.stages == 16 and not arm.labels["arm"].startswith("sequential")
        gone = arm.labels["arm"] == "PipeOptim" if lacking == "an arm" else arm.seed > 0
        if deep and gone and not whole:
            return None
        lost = 0.0 if arm.labels["arm"].startswith("sequential") else float(phase.stages)
        return trained(60.0 - lost + arm.seed, phases=[{}])

    def verdict(whole: bool) -> str:
        judgements = verdicts(context("leaderboard", result, lambda arm: ending(arm, whole)))
        return next(each.verdict for each in judgements if each.claim == "depth_costs_each")

    assert verdict(whole=True) == "holds"
    assert verdict(whole=False) == "cannot be judged"
