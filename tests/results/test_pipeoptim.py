"""What PipeOptim's claims and notes rest on: ties, minibatches, gains over models whose seeds differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelag.experiments import Arm, load_paper, load_scale
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.logs import Item, RunLog
from pipelag.results.pipeoptim.throughput import ARMS, mostly_above
from pipelag.results.pipeoptim.training import over_all, scattered, splits, updates
from pipelag.results.verdict import JUDGES
from tests.results.cases.pipeoptim import BATCHES, COPIES, GOOD, RATES, plan_log, planned
from tests.results.made_up import carried_out, context, trained

pytestmark = pytest.mark.usefixtures("in_project")


@pytest.mark.parametrize(
    ("percents", "holds"),
    [
        ((1.0, 1.0, 1.0, 0.0), True),
        ((1.0, 1.0, 0.0, -0.05), None),  # half of them are ahead, and ties are no support
        ((0.0, 0.0, 0.0, 0.05), None),
        ((1.0, 1.0, -1.0, -1.0), False),
        ((1.0, -1.0, -1.0, 0.0), False),
    ],
)
def test_ties_are_no_support_for_most(percents: tuple[float, ...], holds: bool | None) -> None:
    assert mostly_above({f"model {number}": value for number, value in enumerate(percents)})[0] is holds


def test_an_order_with_a_tie_in_it_is_not_told() -> None:
    level, _ = planned("figure_8", {"PipeDream": 150.5, "PipeOptim": 152.95}, {})
    finding = JUDGES["pipeoptim", "figure_8", "order"](level)
    assert finding.holds is None, finding.why


def test_of_an_approach_that_no_logged_plan_has_there_is_no_mean() -> None:
    """SpecTrain runs with SGDM alone."""

    def make(arm: Arm) -> RunLog | None:
        return plan_log(arm, RATES, BATCHES, COPIES) if arm.labels["model"] == "VGG-16" else None

    table = draw(context("pipeoptim", "text_throughput", make, scale="quick")).table
    assert table is not None
    means = next(row for row in table.texts()["rows"] if row[0] == "all, mean")
    assert means[2] == "+51.00 %" and means[5] == "–"


def test_a_mean_over_models_is_that_of_their_own_seeds() -> None:
    one, three = ({0: 12.0}, {0: 10.0}), ({0: 5.0, 1: 9.0, 2: 8.0}, {0: 5.0, 1: 5.0, 2: 5.0})
    uneven = over_all([one, three])
    assert uneven.mean == (2.0 + 7 / 3) / 2 and uneven.above() is None and uneven.matches(2.0) is None
    assert uneven.text() == "+2.17 (models of different seeds, no interval)"
    even = over_all([three, three])
    assert even.mean == pytest.approx(7 / 3) and even.seeds == 3 and even.error is not None


def test_what_a_run_that_diverges_had_reached_is_no_best_accuracy() -> None:
    def make(arm: Arm) -> RunLog:
        ended = trained(80.0, line=[50.0, 80.0])
        if (arm.labels["model"], arm.labels["arm"], arm.seed) != ("VGG-16", "Vanilla-1F1B", 1):
            return ended
        return replace(ended, rows=ended.rows[:1], summary=ended.summary | {"final": None, "diverged_at": 700})

    table = draw(context("pipeoptim", "text_weight_prediction_gain", make)).table
    assert table is not None
    cells = {row[0]: row[2:5] for row in table.texts()["rows"]}
    assert cells["VGG-16"] == ["80.00", "diverged", "–"] and cells["Inception-V3"] == ["80.00", "80.00", "+0.00"]


def test_gnmt16s_gains_are_of_where_curves_end() -> None:
    ends = {"PipeOptim": 21.65, "PipeDream": 21.44, "PipeDream-2BW": 21.42}

    def make(arm: Arm) -> RunLog:
        end = ends.get(arm.labels["arm"], 21.0)
        return trained(bleu=end + 0.001 * (arm.seed - 1), line=[0.0, 25.0, end + 0.001 * (arm.seed - 1)])

    finding = JUDGES["pipeoptim", "figure_5c", "gains"](context("pipeoptim", "figure_5c", make))
    assert finding.why.startswith("over PipeDream +0.21 ") and "over PipeDream-2BW +0.23 " in finding.why


def test_the_mean_gain_is_of_the_rows_above_it() -> None:
    """With fewer seeds of one model than of the others, too."""
    gains = {"VGG-16": (3.0,), "Inception-V3": (0.0, 3.0, 6.0), "Residual LSTM": (6.0, 6.0, 6.0)}

    def make(arm: Arm) -> RunLog:
        lost = gains[arm.labels["model"]][arm.seed] if arm.labels["arm"] == "Vanilla-1F1B" else 0.0
        return trained(80.0 - lost, line=[50.0, 80.0 - lost])

    result = context("pipeoptim", "text_weight_prediction_gain", lambda arm: None)
    result.items = [Item(i.arm, make(i.arm)) for i in result.items if i.arm.seed < len(gains[i.arm.labels["model"]])]
    table = draw(result).table
    assert table is not None
    assert [row[4] for row in table.texts()["rows"]] == ["+3.00", "+3.00", "+6.00", "+4.00"]


def test_who_sums_and_whose_seeds_lie_apart_is_said() -> None:
    def make(apart: float) -> list[str]:
        runs = context("pipeoptim", "figure_5b", lambda arm: trained(bleu=20.0 + apart * (arm.seed - 1)))
        assert splits(runs) == ["Samples of an update: PipeDream-2BW 4 x 16; the others 64."]
        return scattered(runs)

    assert make(1.0) == [] and len(make(9.0)) == len(GOOD) - 2  # no SpecTrain, no 1F1B without prediction
    assert make(9.0)[0] == "GPipe's seeds of GNMT-8 lie far apart, their best evaluations at 11.00, 20.00, 29.00."


def test_who_makes_fewer_updates_is_said() -> None:
    runs = context("pipeoptim", "figure_9a", lambda arm: trained(60.0, steps=arm.spec.steps))
    summed, others = "GPipe, PipeDream-2BW 20,300 of 4 x 86", "PipeDream, XPipe, PipeOptim 81,340 of 86"
    sentence = f"Updates, all at one rate: {summed} samples; {others} samples; SpecTrain 77,770 of 90 samples."
    assert updates(runs) == [sentence]
    assert sentence in draw(runs).note


def test_table_2_has_the_papers_words_below_what_schedules_say() -> None:
    table = draw(context("pipeoptim", "table_2", carried_out, scale="quick")).table
    assert table is not None
    rows = {(row[0], row[1]): row[2:8] for row in table.texts()["rows"]}
    solved, bridged = "same weights in both passes", "bridged by prediction"
    assert rows["PipeDream", "ours"] == ["1F1B", "weight stashing", solved, "3, 2, 1, 0", "4, 3, 2, 1", "[1M, 4M]"]
    assert rows["PipeDream", "paper"][2:4] == ["solved", "unsolved"]
    assert {rows[arm, "ours"][2] for arm in ("SpecTrain", "XPipe", "PipeOptim")} == {bridged}
    assert "PipeDream-2BW's updates sum 4 microbatches each." in table.notes


def test_approaches_stand_in_one_order_in_curves_bars_and_tables() -> None:
    runs = Context.load(load_paper("pipeoptim"), "figure_6a", load_scale("published", "cpu"))
    bars = draw(runs).data
    assert bars is not None and list(bars["approach"]) == list(ARMS)
