"""What PipeOptim's claims and notes rest on: ties, minibatches, gains over models whose seeds differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pipelag.experiments import Arm, load_paper, load_scale
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.logs import Item, RunLog
from pipelag.results.pipeoptim.throughput import ARMS, mostly_above
from pipelag.results.pipeoptim.training import over_all, scattered, splits, updates
from pipelag.results.verdict import JUDGES, Finding, NotLogged
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
    more = three[0] | {3: 50.0, 4: 60.0}  # one side of each model may have further seeds
    paired = over_all([(more, three[1]), (more, three[1])])
    assert paired.mean == pytest.approx(7 / 3) and paired.seeds == 3 and paired.error == even.error


def test_a_models_gain_is_over_the_seeds_that_both_arms_have() -> None:
    def make(arm: Arm) -> RunLog | None:
        fewer = (arm.labels["model"], arm.labels["arm"]) == ("VGG-16", "Vanilla-1F1B") and arm.seed == 2
        ends = 80.0 + 10 * arm.seed / 2 + (2.0 if arm.labels["arm"] == "PipeOptim" else 0.0)
        return None if fewer else trained(ends, line=[50.0, ends])

    table = draw(context("pipeoptim", "text_weight_prediction_gain", make)).table
    assert table is not None
    cells = {row[0]: row[2:5] for row in table.texts()["rows"]}
    assert cells["VGG-16"] == ["87.00", "82.50", "+2.00"]


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


def told(claim: str, rates: Mapping[str, Mapping[str, float]], result: str = "text_throughput") -> Finding:
    """The verdict where these approaches have other rates for these models; PipeOptim's is 151 for all."""
    make = lambda arm: plan_log(arm, dict(rates.get(arm.labels["model"], {})), BATCHES, COPIES)  # noqa: E731
    return JUDGES["pipeoptim", result, claim](context("pipeoptim", result, make, scale="quick"))


def models_of(*optimizers: str) -> list[str]:
    """Of text_throughput; all eight if no optimizer is named."""
    runs = context("pipeoptim", "text_throughput", lambda arm: None, scale="quick")
    models = {model: runs.select(model=model)[0].arm.labels["optimizer"] for model in runs.values("model")}
    return [model for model, optimizer in models.items() if optimizer in optimizers or not optimizers]


@pytest.mark.parametrize(
    ("percents", "holds"),
    [
        ((20.0, 41.0, 92.0), True),  # 51 % on average, up to 92 %, as printed
        ((90.0, 91.0, 92.0), False),  # the mean is 1.91 times the rate, not 1.51
        ((51.0, 51.0, 51.0), False),  # the most is 1.51 times the rate, not 1.92
    ],
)
def test_the_gain_over_gpipe_is_of_adamws_models_on_average_and_at_most(
    percents: tuple[float, ...], holds: bool
) -> None:
    adamw = models_of("AdamW")
    rates = {model: {"GPipe": 151 / (1 + gain / 100)} for model, gain in zip(adamw, percents, strict=True)}
    rates |= {model: {"GPipe": 15.1} for model in models_of("SGDM", "Adam")}  # ten times as fast
    finding = told("gain_over_gpipe", rates)
    assert finding.holds is holds, finding.why


@pytest.mark.parametrize(
    ("other", "claim", "mean", "most", "holds"),
    [
        ("PipeDream", "below_pipedream", 4.0, 16.5, True),
        ("PipeDream", "below_pipedream", 4.0, 5.0, False),  # at most less than half of what is printed
        ("PipeDream", "below_pipedream", 9.0, 16.5, False),  # on average more than twice
        ("PipeDream-2BW", "below_2bw", 2.6, 14.1, True),
        ("PipeDream-2BW", "below_2bw", 2.6, 5.0, False),
        ("PipeDream-2BW", "below_2bw", 6.0, 14.1, False),
    ],
)
def test_how_much_lower_throughput_is_has_a_mean_and_an_extreme(
    other: str, claim: str, mean: float, most: float, holds: bool
) -> None:
    """Of eight models one is the farthest below."""
    first, *rest = models_of()
    lower = dict.fromkeys(rest, (8 * mean - most) / 7) | {first: most}
    finding = told(claim, {model: {other: 151 / (1 - percent / 100)} for model, percent in lower.items()})
    assert finding.holds is holds, finding.why


@pytest.mark.parametrize(
    ("other", "percent", "holds"),
    [
        ("PipeDream", 16.5, True),
        ("PipeDream", -16.5, True),
        ("PipeDream", 17.0, False),
        ("PipeDream", -17.0, False),
        ("PipeDream-2BW", -14.1, True),
        ("PipeDream-2BW", 14.5, False),
        ("PipeDream-2BW", -14.5, False),
    ],
)
def test_comparable_is_within_the_largest_printed_difference_either_way(
    other: str, percent: float, holds: bool
) -> None:
    first = models_of("AdamW")[0]
    finding = told("comparable", {first: {other: 151 / (1 + percent / 100)}})
    assert finding.holds is holds, finding.why


@pytest.mark.parametrize(
    ("rates", "holds"),
    [
        ({"PipeDream": 152.0, "PipeDream-2BW": 153.0, "XPipe": 149.0}, True),
        ({"PipeDream": 150.0, "PipeDream-2BW": 153.0, "XPipe": 149.0}, False),  # the slower of the first two
        ({"PipeDream": 152.0, "PipeDream-2BW": 153.0, "XPipe": 152.5}, False),  # the faster of the last two
    ],
)
def test_all_that_stash_are_compared_with_all_that_predict(rates: dict[str, float], holds: bool) -> None:
    finding = told("below_stashing", dict.fromkeys(models_of(), rates))
    assert finding.holds is holds, finding.why


def test_an_approach_without_a_rate_is_missed() -> None:
    """A plan that took no time, or that did not fit, has none."""
    with pytest.raises(NotLogged, match="XPipe has no logged throughput"):
        told("above_gpipe", {models_of("AdamW")[0]: {"XPipe": 0.0}})


@pytest.mark.parametrize(
    ("fits", "words"),
    [
        ((), ""),
        ((True, True, True), ""),
        ((False, True, True), "under GPipe."),
        ((False, False, True), "under GPipe, XPipe."),
        ((False, False, False), "under any approach."),
    ],
)
def test_what_is_said_not_to_fit_is_what_the_log_says(fits: tuple[bool, ...], words: str) -> None:
    """Plans that are not asked whether they fit say nothing."""

    def make(arm: Arm) -> RunLog:
        names = ("GPipe", "XPipe", "PipeOptim")
        rows = [{"what": "arm", "arm": name, "samples_per_second": 1.0, "workers": 4} for name in names]
        if fits:
            rows = [row | {"fits": fit} for row, fit in zip(rows, fits, strict=True)]
        return RunLog(Path("results/made-up"), rows, {"status": "finished"}, {})

    note = draw(context("pipeoptim", "figure_6a", make)).note
    assert ("do not fit" in note) == bool(words) and words in note


def test_sequences_of_an_update_are_told_by_pass() -> None:
    """GPipe's four passes of 8 are one update; the others update after each."""

    def make(arm: Arm) -> RunLog:
        rows = []
        for name in arm.spec.options["arms"]:
            split, size = 4 if name.startswith("GPipe") else 1, 20 if name.endswith("largest") else 8
            row = {"what": "arm", "arm": name, "samples_per_second": 1.0, "batch": split * size}
            rows.append(row | {"microbatches": split, "workers": 4})
        return RunLog(Path("results/made-up"), rows, {"status": "finished"}, {})

    note = draw(context("pipeoptim", "figure_8", make)).note
    others = "PipeDream, PipeOptim, PipeDream-2BW, Vanilla-1F1B"
    assert f"passes of 8 sequences: GPipe 4 x 8; {others} 8." in note
    assert f"the largest passes that fit: GPipe 4 x 20; {others} 20." in note
