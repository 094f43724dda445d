"""What would flatter an arm, or tell what nobody knows: a reviewer's counter-examples to the judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipelag.experiments import Arm, load_paper
from pipelag.results.judging import Difference
from pipelag.results.loading import load_results
from pipelag.results.logs import RunLog
from pipelag.results.spectrain.training import above_stale
from pipelag.results.verdict import JUDGES, Finding, NotLogged
from tests.results.cases import leaderboard, pipedream, pipemare, spectrain
from tests.results.made_up import Make, Pair, altered, context, trained, with_rows

pytestmark = pytest.mark.usefixtures("in_project")
Change = Callable[[Arm, RunLog], RunLog | None]


def changed(make: Make, change: Change) -> Make:
    """Logs, changed by their arms."""

    def make_changed(arm: Arm) -> RunLog | None:
        run = make(arm)
        return run if run is None else change(arm, run)

    return make_changed


def of(case: Callable[[], Pair]) -> Make:
    """The logs of which a case's claim holds."""
    logs = {(*sorted(item.arm.labels.items()), item.arm.seed): item.log for item in case()[0].items}
    return lambda arm: logs.get((*sorted(arm.labels.items()), arm.seed))


def verdict(paper: str, result: str, claim: str, make: Make) -> Finding:
    load_results(load_paper(paper))
    return JUDGES[paper, result, claim](context(paper, result, make))


def lost(run: RunLog, at: int = 400) -> RunLog:
    """A run that diverged there, with what it reached before."""
    return replace(run, summary=run.summary | {"diverged_at": at, "final": None})


def test_what_a_run_reached_before_it_diverged_is_no_best() -> None:
    make = changed(spectrain.learnt({}, apart=0.1), lambda arm, f: lost(f) if arm.labels["arm"] == "Data P." else f)
    with pytest.raises(NotLogged, match="Data P. of VGG16 diverged with seed 0, at step 400"):
        above_stale(context("spectrain", "table_1", make), "Data P.")


def test_an_arm_that_stays_at_chance_is_not_called_stable() -> None:
    def still(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels["arm"] != "Vanilla DualPipe":
            return run
        rows = [row | {"accuracy": 50.0} for row in run.rows]
        data = {"title": "IMDb", "classes": 2, "official": True}
        return replace(run, rows=rows, summary=run.summary | {"final": rows[-1], "data": data})

    with pytest.raises(NotLogged, match="does not learn here"):
        verdict("spectrain", "figure_5", "fluctuates", changed(spectrain.learnt({}), still))


def test_a_run_that_diverged_is_not_left_out_of_how_stable_an_arm_is() -> None:
    def first(arm: Arm, run: RunLog) -> RunLog:
        return lost(run) if (arm.labels["arm"], arm.seed) == ("Vanilla DualPipe", 0) else run

    with pytest.raises(NotLogged, match="Vanilla DualPipe of Transformer diverged with seed 0"):
        verdict("spectrain", "figure_5", "fluctuates", changed(spectrain.learnt({}), first))


def test_epochs_to_a_target_that_the_rates_fall_decides_say_nothing_of_the_arms() -> None:
    """Every run passes its target at the first evaluation after the rate has fallen."""

    def falls(arm: Arm, run: RunLog) -> RunLog:
        if arm.spec.kind != "train":
            return run
        best = max(row["accuracy"] for row in run.rows)
        rows = [
            row | {"accuracy": best if late else 10.0, "lr": 0.001 if late else 0.01}
            for row in run.rows
            for late in [row["epoch"] > 45]
        ]
        return replace(run, rows=rows)

    make = pipedream.training(pipedream.ALIKE, pipedream.vgg(5280, 5960))
    assert verdict("pipedream", "figure_11", "as_many_epochs_here", make).holds is True
    for result, claim in (("figure_11", "as_many_epochs_here"), ("figure_10", "earlier_here")):
        finding = verdict("pipedream", result, claim, changed(make, falls))
        assert finding.holds is None and "at the first evaluation after a fall of the rate" in finding.why, claim


def test_a_seed_without_a_log_is_missed() -> None:
    make = pipedream.training(pipedream.ALIKE)
    gone = changed(make, lambda arm, f: None if (arm.labels["arm"], arm.seed) == ("PipeDream", 2) else f)
    runs = context("pipedream", "figure_11", gone)
    asked = [replace(item, arm=replace(item.arm, left_out="")) for item in runs.items]
    with pytest.raises(NotLogged, match="PipeDream, seed 2, has no log"):
        JUDGES["pipedream", "figure_11", "as_many_epochs_here"](replace(runs, items=asked))


def test_of_a_seed_with_which_the_other_arm_never_arrives_nobody_knows_how_much_later_it_would() -> None:
    def never(arm: Arm, run: RunLog) -> RunLog:
        if (arm.labels["arm"], arm.labels.get("model"), arm.seed) != ("data parallelism", "VGG-16", 1):
            return run
        return replace(run, rows=[row | {"accuracy": 10.0} for row in run.rows])

    with pytest.raises(NotLogged, match="not reached by the arm that it is compared with with every seed"):
        verdict("pipedream", "figure_11", "as_many_epochs_here", changed(pipedream.training(pipedream.ALIKE), never))


def test_on_the_leaderboard_a_diverged_run_is_below_by_no_number_of_points() -> None:
    """As nought points it would widen the interval until nothing is told."""

    def gone(arm: Arm, run: RunLog) -> RunLog:
        return trained(diverged_at=7) if (arm.labels["arm"], arm.seed) == ("Stale weights", 1) else run

    finding = verdict(
        "leaderboard", "figure_2", "ahead_at_every_rate", changed(of(leaderboard.ahead_at_every_rate), gone)
    )
    assert finding.holds is True and "runs that diverge: Stale weights 1 of 3" in finding.why


def test_a_rate_at_the_end_of_the_search_is_nobodys_own() -> None:
    least = leaderboard.SMALLER | {"Stale weights": "1/4"}
    load_results(load_paper("leaderboard"))
    finding = JUDGES["leaderboard", "table_4", "cost_remains"](leaderboard.over_rates(least, least)[0])
    assert finding.holds is None and "the best rate for Stale weights may be below the smallest tried" in finding.why


def test_one_seed_whose_error_is_unknown_tells_nothing_of_sizes() -> None:
    assert Difference.of({0: 34.5}, {0: 34.1}).within(0.2, 0.6) is None


def test_how_many_times_as_long_is_not_known_where_the_shorter_never_arrives() -> None:
    def short(arm: Arm, run: RunLog) -> RunLog:
        if (arm.labels["arm"], arm.seed) != ("Sync", 2):
            return run
        return replace(run, rows=[row | {"bleu": 0.9 * row["bleu"]} for row in run.rows if "bleu" in row])

    make = changed(of(pipemare.iwslt_t1_twice), short)
    with pytest.raises(NotLogged, match="synchronous training does not come to"):
        verdict("pipemare", "table_3", "iwslt_t1_twice", make)


def test_what_is_mostly_the_rates_doing_is_paired_over_seeds() -> None:
    """Drops that scatter leave open whether the rate does more than half, whatever their mean."""
    drops = {"non-pipelined at the pipelined rate": (5.0, 5.2, 4.8), "4-stage": (9.5, 3.0, 14.0)}

    def make(arm: Arm) -> RunLog | None:
        lost_by = drops.get(arm.labels["arm"], (4.0, 4.0, 4.0))[arm.seed]
        return trained(90.0 - (0.0 if arm.labels["arm"] == "non-pipelined" else lost_by))

    assert verdict("stale_weights", "control", "mostly_the_rate_here", make).holds is None


@pytest.mark.parametrize("claim", ["faster_than_data_here", "faster_than_pipedream_here"])
@pytest.mark.parametrize("lacking", ["diverges", "has no log"])
def test_on_each_network_does_not_hold_of_the_others_alone(claim: str, lacking: str) -> None:
    make = of(spectrain.faster_than_data_here)

    def without(arm: Arm, run: RunLog) -> RunLog | None:
        meant = arm.labels.get("what") == "training" and arm.labels.get("model") == "SNN"
        if not meant or arm.labels["arm"] != "SpecTrain" or arm.seed:
            return run
        return lost(run) if lacking == "diverges" else None

    whole = verdict("spectrain", "figure_13", claim, make)
    assert "SNN" in whole.why
    if claim == "faster_than_data_here":
        assert whole.holds
    finding = verdict("spectrain", "figure_13", claim, changed(make, without))
    assert finding.holds is None and "SNN unknown" in finding.why


def test_an_order_of_five_is_not_that_of_three() -> None:
    """PipeDream above all, and PipeDream-2BW third: neither is the order that PipeOptim's text gives."""

    def order(**accuracies: float) -> bool | None:
        def make(arm: Arm) -> RunLog | None:
            name = arm.labels["arm"].replace("-", "_")
            return trained(accuracies[name] + 0.01 * arm.seed) if name in accuracies else None

        return verdict("pipeoptim", "figure_5a", "order", make).holds

    assert order(XPipe=72, GPipe=71, PipeOptim=70, PipeDream=70.01, PipeDream_2BW=69) is True
    assert order(XPipe=72, GPipe=70, PipeOptim=69, PipeDream=73, PipeDream_2BW=71.5) is False
    assert order(XPipe=72, GPipe=71, PipeOptim=66, PipeDream=70, PipeDream_2BW=69) is False


@pytest.mark.parametrize(("arm", "holds"), [("PipeDream, vertical sync", True), ("PipeDream", False)])
def test_of_a_papers_methods_the_one_that_is_compared_has_to_learn(arm: str, holds: bool) -> None:
    """That each paper has a better method needs no other of its methods to learn."""

    def still(each: Arm, run: RunLog) -> RunLog:
        if each.labels["arm"] != arm:
            return run
        rows = [row | {"accuracy": 10.0} for row in run.rows]
        data = {"title": "CIFAR-10", "classes": 10, "official": True}
        return replace(run, rows=rows, summary=run.summary | {"final": rows[-1], "data": data})

    make = changed(of(leaderboard.remedies_help), still)
    if holds:
        assert verdict("leaderboard", "table_1", "remedies_help", make).holds is True
    else:
        with pytest.raises(NotLogged, match="PipeDream does not learn here"):
            verdict("leaderboard", "table_1", "remedies_help", make)


def test_a_price_that_is_greater_is_not_called_less_by_less_than_nought() -> None:
    load_results(load_paper("leaderboard"))
    finding = JUDGES["leaderboard", "table_9", "look_ahead_hides_delay"](leaderboard.look_ahead_hides_delay_deeper()[1])
    assert finding.holds is False and "more by " in finding.why and "less by -" not in finding.why


def test_translations_that_differ_are_named_with_how_far_they_are_apart() -> None:
    load_results(load_paper("leaderboard"))
    judged = JUDGES["leaderboard", "table_5", "same_translations"]
    same, other = map(judged, leaderboard.same_translations())
    assert same.holds is True and "apart" not in same.why
    assert other.holds is False and "furthest apart, by 0.1000: " in other.why and "update" in other.why


def test_what_only_the_baseline_moves_is_one_comparison() -> None:
    """Of three pipelines at one rate the differences are one number, which is not a threefold finding."""
    load_results(load_paper("leaderboard"))
    judged = JUDGES["leaderboard", "table_13", "costs_more_at_own"]
    still, moved = map(judged, leaderboard.costs_more_at_own())
    assert still.holds is True and still.why.count("at the common rate") == 1
    assert still.why.startswith("the own rate of 1F1B, latest weights, XPipe, PipeOptim is the common rate, so")
    assert moved.holds is False and moved.why.count("at the common rate") == 2


def test_a_correction_that_goes_beyond_no_discrepancy_widens_the_range_all_the_same() -> None:
    further = altered(pipemare.of_arm("corrected", with_rows(lambda row: row | {"largest_stable": 10.0})))
    assert verdict("pipemare", "figure_16", "correction_widens", further).holds is True
