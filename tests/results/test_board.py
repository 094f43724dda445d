"""The leaderboard's tables: in what order methods stand, and what is said of runs that do not learn."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest

import pipelag.results.leaderboard  # noqa: F401  (registers the tables)
from pipelag.experiments import Arm
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.leaderboard.board import averaged, best_of, timed
from pipelag.results.leaderboard.rates import beyond
from pipelag.results.leaderboard.scores import loss_of, meanings, score
from pipelag.results.logs import Item, RunLog
from pipelag.results.verdict import JUDGES, NotLogged, verdicts
from pipelag.runs.spec import PhaseSpec
from pipelag.timing.layers import LayerTime, Profile
from tests.results.made_up import context, log, trained, trained_as

pytestmark = pytest.mark.usefixtures("in_project")


def rows(runs: Context) -> list[dict[str, Any]]:
    """A table's cells by heading."""
    table = draw(runs).table
    assert table is not None
    return [{column.heading: row.get(column.key) for column in table.columns} for row in table.rows]


@pytest.mark.parametrize("result", ["table_1", "table_4"])
def test_what_diverges_with_some_seed_stands_below_all_that_do_not(result: str) -> None:
    """However accurate the seeds are that do not: a mean of those would flatter it."""
    gone = {"PipeOptim": (1,), "PipeDream": (0, 1), "XPipe": (0, 1, 2)}

    def make(arm: Arm) -> RunLog | None:
        name = arm.labels["arm"]
        if arm.labels["what"] != "learning":
            return None
        if arm.seed in gone.get(name, ()):
            return trained(diverged_at=7, phases=[{"forward_delays": [0]}])
        run = trained(80.0 if name in gone else 70.0 if name == "sequential" else 60.0)
        run.rows[-1]["loss"] = 0.5 if arm.labels.get("rate", "1") == "1" else 0.7
        run.summary["phases"] = [{"forward_delays": [0]}]
        return run

    order = [row["method"] for row in rows(context("leaderboard", result, make))]
    assert order[0] == "sequential" and order[-3:] == list(gone)


@pytest.mark.parametrize("result", ["table_1", "table_2"])
def test_sequential_trainings_memory_is_that_of_the_one_worker_which_speedups_are_over(result: str) -> None:
    """All layers' activations and weights, and not the fullest of as many workers as a pipeline has."""
    layers = [asdict(LayerTime(n, f"layer {n}", 1.0, 2.0, 0, n << 20, 1 << 10, 1.0)) for n in range(1, 21)]

    def make(arm: Arm) -> RunLog | None:
        if arm.labels["what"] == "profile":
            return log(layers)
        return trained(60.0, phases=[{"forward_delays": [0]}]) if arm.labels["what"] == "learning" else None

    by_method = {row["method"]: row for row in rows(context("leaderboard", result, make))}
    assert by_method["sequential"]["memory, MiB"] == pytest.approx(sum(range(1, 21)) + 20 / 1024)
    assert by_method["sequential"]["speedup: timed, 4 workers"] == pytest.approx(1)
    assert by_method["1F1B, latest weights"]["speedup: timed, 4 workers"] == pytest.approx(20 / 7)  # over the slowest's
    stages = enumerate(pairwise((0, 5, 12, 17, 20)))
    fullest = max((4 - stage) * sum(range(a + 1, b + 1)) for stage, (a, b) in stages)
    assert by_method["1F1B, latest weights"]["memory, MiB"] == pytest.approx(fullest, abs=0.01)


@pytest.mark.parametrize(("days", "when"), [((27, 27, 27), "all on one day"), ((27, 27, 28), "on 2 days")])
def test_speedups_are_told_to_be_measured_on_as_many_days_as_their_logs_are_from(
    days: tuple[int, ...], when: str
) -> None:
    """Ours and torch's own may send their messages in different ways, which the notes say."""
    of_arm = dict(zip(("GPipe", "PipeDream", "SC"), days, strict=True))
    blocks = [
        {"arm": arm, "block": 0, "steps": 10, "seconds": seconds}
        for arm, seconds in (("non-pipelined", 2), ("pipelined", 1))
    ]

    def make(arm: Arm) -> RunLog | None:
        what, name = arm.labels["what"], arm.labels["arm"]
        if what == "learning":
            return trained(60.0, phases=[{"forward_delays": [0]}])
        if what not in ("speed", "torch") or name not in of_arm:
            return None
        run = log(blocks, messages={"speed": "shared memory", "torch": "gloo"}[what])
        return replace(run, environment={"date": f"2026-11-{of_arm[name]}T17:03:15Z"})

    drawn = draw(context("leaderboard", "table_1", make)).table
    assert drawn is not None
    (ours,) = (note for note in drawn.notes if note.startswith("Measured:"))
    (torchs,) = (note for note in drawn.notes if note.startswith("Torch's own:"))
    assert f"One run per method, {when}, so" in ours and "messages through shared memory;" in ours
    assert torchs.endswith("messages through gloo.")


def test_a_distance_is_the_mean_over_stages_lines_and_seeds_that_do_not_diverge_in_thousandths() -> None:
    runs = [trained(60.0), trained(60.0), trained(diverged_at=7)]
    for run, distances in zip(runs, ([[0.001, 0.003], []], [[0.004, 0.008], [0.0, 0.002]], [[9.0, 9.0]]), strict=True):
        run.rows[:] = [(run.rows or [{}])[-1] | {"forward_distance": of_stages} for of_stages in distances]
    assert averaged(runs, "forward_distance") == pytest.approx(3.0)
    assert averaged(runs, "discrepancy") is None and averaged(runs[2:], "forward_distance") is None


def test_runs_that_do_not_learn_are_named_by_the_rule_of_the_judges() -> None:
    """Of images by their distance from chance, of translations by BLEU, which stands in the table."""

    def images(arm: Arm) -> RunLog | None:
        if arm.labels["what"] != "learning":
            return None
        chance = (arm.labels["arm"], arm.seed) == ("PipeDream", 1)
        run = trained(12.0 if chance else 60.0, phases=[{"forward_delays": [0]}])
        run.summary["data"] = {**run.summary["data"], "classes": 10}
        return run

    def words(arm: Arm) -> RunLog:
        collapsed = arm.labels["arm"] == "Stale weights" and arm.seed < 2
        return trained(bleu=0.5 if collapsed else 9.0, phases=[{"forward_delays": [0]}])

    table = draw(context("leaderboard", "table_1", images)).table
    assert table is not None and "BLEU" not in [column.heading for column in table.columns]
    (note,) = [note for note in table.notes if "not learn" in note]
    assert note.endswith("chance to 100 %): PipeDream (1 of 3 runs).")
    runs = context("leaderboard", "table_3", words)
    table = draw(runs).table
    assert table is not None
    (note,) = [note for note in table.notes if "not learn" in note]
    assert "a BLEU of 1): Stale weights (2 of 3 runs). " in note
    assert next(row for row in rows(runs) if row["method"] == "sequential")["BLEU"] == "9.00 ± 0.00"


def test_short_names_are_told_of_where_they_stand() -> None:
    (whole,) = meanings(["LWP_w + SC", "DC-ASGD", "ASP data parallel", "PipeDream"])
    assert [each in whole for each in ("LWP: ", "SC: ", "DC-ASGD: ", "ASP: ", "XPipe: ")] == [True] * 4 + [False]
    assert meanings(["PipeDream", "sequential"]) == []
    (pipemare,) = meanings(["PipeMare T1+T2"])
    assert "T1: " in pipemare and "T2: " in pipemare and "T2: " not in meanings(["PipeMare T1"])[0]


def rated(arm: Arm) -> RunLog | None:
    """A run that ends the better the nearer its rate is to twice the common one; none of a quarter of it."""
    if arm.labels["rate"] == "1/4":
        return None
    end = {"2": 70.0, "1": 65.0}.get(arm.labels["rate"], 50.0)
    run = trained(end)
    run.rows[-1]["loss"] = 100 - end
    return run


@pytest.mark.parametrize("result", ["table_10", "table_13"])
def test_a_search_explains_the_signs_and_dashes_that_it_has_and_no_others(result: str) -> None:
    """Reasons stand once; methods that no scale tries at a rate are named."""

    def without(runs: Context) -> Context:
        lacks = [replace(i.arm, left_out="too slow") if i.arm.labels["rate"] == "1/4" else i.arm for i in runs.items]
        return replace(runs, items=[Item(arm, rated(arm)) for arm in lacks])

    runs = without(context("leaderboard", result, rated))
    drawn = draw(runs)
    table = drawn.table
    assert table is not None
    own_rates = {row["method"]: row["its rate"] for row in rows(runs)}
    signed = result == "table_10"  # whose rates end at twice the common one; the other's go on
    assert {str(rate).startswith("≥ ") for rate in own_rates.values()} == {signed}
    assert any(note.startswith("≤, ≥: ") for note in table.notes) is signed
    (dash,) = [note for note in table.notes if "too slow" in note]
    assert dash.startswith("–: ") and "Left out" in runs.footer() and "Left out" not in drawn.footer(runs)
    (untried,) = [note for note in table.notes if note.startswith("Rates that took no part in the choice")]
    beta = {"table_10": "0.99", "table_13": "0.9"}[result]
    named = f"sequential with NAdam (beta1 = {beta})"
    assert named in untried and named in own_rates


@pytest.mark.parametrize(("result", "claim"), [("table_1", "remedies_help"), ("table_4", "staleness_wants_less")])
def test_of_logs_without_a_seed_in_common_nothing_is_chosen(result: str, claim: str) -> None:
    """One arm or rate has one seed, another another, as long as runs are under way or a scale leaves them out."""

    def make(arm: Arm) -> RunLog | None:
        first = arm.labels["arm"] == "PipeDream" or arm.labels.get("rate") == "1"
        return trained(60.0, phases=[{}]) if arm.seed == (0 if first else 1) else None

    runs = context("leaderboard", result, make)
    items = [replace(i, arm=replace(i.arm, left_out="" if i.log else "too slow")) for i in runs.items]
    verdicts_of = {verdict.claim: verdict for verdict in verdicts(replace(runs, items=items))}
    assert verdicts_of[claim].verdict == "cannot be judged" and "seed" in verdicts_of[claim].why


def test_nadams_momentum_is_named_where_tables_have_another() -> None:
    runs = context("leaderboard", "table_8", lambda arm: trained(60.0, phases=[{}]))
    names = {row["method"] for row in rows(runs)}
    assert "1F1B with NAdam (beta1 = 0.99)" in names and "1F1B, latest weights" in names


def test_a_seed_without_a_log_is_missed_and_not_left_out_of_a_score() -> None:
    runs = context("leaderboard", "table_1", lambda arm: None if arm.seed == 1 else trained(70.0))
    with pytest.raises(NotLogged, match=r"^sequential, seed 1, has no log$"):
        score(runs, "sequential")


def test_a_run_that_diverges_has_no_training_loss_to_be_chosen_by() -> None:
    """However low the last one that it logged."""
    runs = context("leaderboard", "table_1", lambda arm: trained(70.0))
    ended = runs.items[0]
    assert ended.log is not None and loss_of(ended) == 1.0
    gone = replace(ended.log, rows=[{"loss": 0.1}], summary={"status": "diverged", "final": None, "diverged_at": 7})
    assert loss_of(replace(ended, log=gone)) == inf


def test_a_minibatch_is_timed_in_its_microbatches() -> None:
    """GPipe's four on two stages, of a quarter of 4 and 8 ms: (4 + 2 - 1) x 3 ms."""
    profile = Profile(tuple(LayerTime(number, "x", 4.0, 8.0) for number in (1, 2)))
    timing = timed(PhaseSpec(method="gpipe", steps=1, cuts=(1,), microbatches=4), profile)
    assert timing is not None and timing.steady_period == pytest.approx(15e-3)


def test_a_timed_method_holds_its_copies_of_the_weights() -> None:
    """PipeDream's first of two stages has two minibatches under way, and a version of its weights for each."""
    profile = Profile(tuple(LayerTime(number, "x", 4.0, 8.0, weight_bytes=10) for number in (1, 2)))
    timing = timed(PhaseSpec(method="pipedream", steps=1, cuts=(1,)), profile)
    assert timing is not None and timing.peak_memory == (20, 10)


def test_the_best_method_is_that_over_the_seeds_that_all_have() -> None:
    """The seeds that one of them lacks would favour the other."""
    losses = {("PipeDream", 0): 0.5, ("PipeDream", 1): 0.1, ("PipeDream", 2): 0.1, ("PipeOptim", 0): 0.4}

    def make(arm: Arm) -> RunLog | None:
        loss = losses.get((arm.labels["arm"], arm.seed))
        return None if loss is None else log([{"loss": loss}], final={"accuracy": 70.0})

    assert best_of(context("leaderboard", "table_1", make), ("PipeDream", "PipeOptim")) == "PipeOptim"


def test_a_look_aheads_price_is_below_sequential_training_with_its_own_optimizer() -> None:
    """5 points below NAdam's 85, where PipeDream is 10 below SGD's 90."""
    ends = {"sequential": 90.0, "PipeDream": 80.0, "sequential with NAdam": 85.0, "PipeDream with NAdam": 80.0}
    runs = context("leaderboard", "table_2", trained_as(ends, spread=0.1))
    finding = JUDGES["leaderboard", "table_2", "look_ahead_hides_delay"](runs)
    assert finding.holds is True and "PipeDream 10.00, PipeDream with NAdam 5.00, less by 5.00" in finding.why


@pytest.mark.parametrize(("power", "words"), [(1, "below the smallest"), (-1, "above the greatest")])
def test_a_rate_at_an_end_of_its_search_may_have_a_better_one_beyond_that_end(power: int, words: str) -> None:
    def make(arm: Arm) -> RunLog:
        assert arm.spec.optimizer is not None
        return log([{"loss": arm.spec.optimizer.lr**power}], final={"accuracy": 70.0})

    remark = beyond(context("leaderboard", "table_4", make), ["PipeDream"])
    assert remark == {"PipeDream": f"; the best rate for PipeDream may be {words} tried"}
