"""Schedules, and the staleness derived from them, which must be what the papers' formulas give.

The formulas are in tests only, never in the code.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.schedules import SCHEDULES, Action, Schedule, check, delays, schedule, steady_delays
from pipelag.schedules.actions import in_flight
from pipelag.schedules.virtual import Interleaved


@pytest.mark.parametrize("k", range(1, 11))
@pytest.mark.parametrize("colocated", [True, False])
def test_cycle_schedule_has_the_papers_degree_of_staleness(k: int, colocated: bool) -> None:
    plan = schedule("cycle", stages=k + 1, minibatches=2 * k + 5, colocated=colocated)
    check(plan)
    assert len(plan.workers) == (k + 1 if colocated else 2 * k + 1)
    derived = delays(plan)
    assert derived.forward == tuple(2 * (k - i + 1) for i in range(1, k + 2))
    assert derived.backward == (0,) * (k + 1)


@given(stages=st.integers(1, 8), minibatches=st.integers(1, 20), colocated=st.booleans())
def test_any_cycle_schedule_is_possible_and_fills_from_version_zero(
    stages: int, minibatches: int, colocated: bool
) -> None:
    plan = schedule("cycle", stages=stages, minibatches=minibatches, colocated=colocated)
    check(plan)
    for stage, row in enumerate(delays(plan).forward_versions, start=1):
        assert list(row) == [max(0, m - 2 * (stages - stage)) for m in range(minibatches)]


def test_length_and_utilisation_of_figure_4() -> None:
    plan = schedule("cycle", stages=2, minibatches=5, colocated=False)
    assert plan.length == 7  # M + 2 cycles for K = 1
    assert plan.grid().splitlines()[1].split()[:3] == [".", "2F0+2B0", "2F1+2B1"]


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_sequential_is_never_stale_and_keeps_one_worker_busy(stages: int) -> None:
    plan = schedule("sequential", stages=stages, minibatches=4)
    check(plan)
    assert set(delays(plan).forward) == set(delays(plan).backward) == {0}
    assert plan.cycles is not None
    cells = [
        c
        for row, cs in zip(plan.workers, plan.cycles, strict=True)
        for a, c in zip(row, cs, strict=True)
        if a.kind != "U"
    ]
    assert sorted(cells) == list(range(plan.length))  # exactly one worker in every cycle


def test_stashing_reads_the_forwards_version() -> None:
    lags = methods.get("stale_weights_stashed").delays(4)
    assert lags.backward == lags.forward == (6, 4, 2, 0)


def test_one_stage_of_any_method_is_plain_training_but_for_pipemares_pipeline() -> None:
    """No method delays a single stage, except on PipeMare's pipeline: tau = ceil((2(P-i)+1)/N) = 1 (appendix A.1)."""
    for method in methods.METHODS.values():
        lags = method.delays(1)
        late = method.build is SCHEDULES["pipemare"]
        assert lags.forward == ((2 if method.random else 1,) if late else (0,))
        assert lags.backward == (lags.forward if method.random or method.backward_reads == "stashed" else (0,))


@given(stages=st.integers(1, 12), n=st.integers(1, 20))
def test_pipemares_delays_come_out_of_its_schedule(stages: int, n: int) -> None:
    derived = steady_delays(SCHEDULES["pipemare"], stages, n)
    every = range(1, stages + 1)
    assert derived.forward == tuple(math.ceil((2 * (stages - i) + 1) / n) for i in every)
    assert derived.forward_lags == tuple(
        tuple(math.ceil((2 * (stages - i) + 1 - k) / n) for k in range(n)) for i in every
    )
    assert set(derived.backward) == {0}


@pytest.mark.parametrize(("stages", "n"), [(107, 8), (107, 16), (93, 19), (91, 25), (214, 8), (186, 19), (150, 8)])
def test_pipemares_delays_at_the_sizes_of_its_tables(stages: int, n: int) -> None:
    formula = tuple(math.ceil((2 * (stages - i) + 1) / n) for i in range(1, stages + 1))
    assert steady_delays(SCHEDULES["pipemare"], stages, n).forward == formula


@pytest.mark.parametrize(("stages", "size"), [(16, 4), (12, 3), (11, 3), (7, 7), (6, 1)])
def test_pipemare_caches_as_many_activations_as_appendix_a_counts(stages: int, size: int) -> None:
    """PipeMare caches 2(P-i)+1 activations per stage, and with recomputation 2(S-j)+1, j = 1 .. S.

    The latter add up to S squared in a segment.
    """
    plain, recomputing = (schedule("pipemare", stages=stages, minibatches=3 * stages, segment=s) for s in (0, size))
    check(plain)
    check(recomputing)
    assert [in_flight(row) for row in plain.workers] == [2 * (stages - i) + 1 for i in range(1, stages + 1)]
    held = [in_flight(row, "R") for row in recomputing.workers]
    for first in range(0, stages, size):
        segment = held[first : first + size]
        assert segment == [2 * (len(segment) - j) + 1 for j in range(1, len(segment) + 1)]
        assert sum(segment) == len(segment) ** 2


@given(stages=st.integers(1, 9))
def test_how_far_a_minibatch_is_from_the_end_of_its_round_trip(stages: int) -> None:
    """A minibatch is as many updates from the end of its round trip as SpecTrain's equations 5 and 6 say.

    In 1F1B it is as many as in the authors' port (ambiguity E1).
    """
    dual, one = steady_delays(SCHEDULES["dualpipe"], stages), steady_delays(SCHEDULES["1f1b"], stages)
    gpus = range(stages)
    assert [dual.forward[k] + dual.beyond[k][0] for k in gpus] == [2 * stages - k - 2 for k in gpus]
    assert [dual.backward[k] + dual.beyond[k][0] for k in gpus] == list(gpus)
    assert [one.forward[k] + one.beyond[k][0] for k in gpus] == [k // 2 + stages - k - 1 for k in gpus]
    assert [beyond[0] for beyond in one.beyond] == [k // 2 for k in gpus]


@given(stages=st.integers(1, 8), n=st.integers(1, 7))
def test_the_versions_of_the_entry_and_of_the_end_are_those_of_a_clock(stages: int, n: int) -> None:
    """The versions at a minibatch's entry and at its end are those that a walk over the cycles counts."""
    minibatches = -(-2 * stages // n) + 4
    plan = schedule("cycle", stages=stages, minibatches=minibatches, microbatches=n)
    derived, done = delays(plan), dict.fromkeys(range(1, stages + 1), 0)
    entered: dict[int, dict[int, int]] = {}
    ended: dict[int, dict[int, int]] = {}
    assert plan.cycles is not None
    for now in range(plan.length):
        happening = [
            action
            for row, cycles in zip(plan.workers, plan.cycles, strict=True)
            for action, cycle in zip(row, cycles, strict=True)
            if cycle == now
        ]
        for kind, stage, number in happening:
            if (kind, stage) == ("F", 1):
                entered[number] = dict(done)
            if (kind, stage) == ("B", 1) and number % n == n - 1:
                ended[number // n] = dict(done)
        for kind, stage, _ in happening:
            done[stage] += kind == "U"
    for stage in range(1, stages + 1):
        for m, then in entered.items():
            assert then[stage] == max(0, m // n - derived.entry_lags[stage - 1][m % n])
        assert {max(then[stage] - t for t, then in ended.items())} == set(derived.beyond[stage - 1])


F, B, U = (lambda s, m, k=k: Action(k, s, m) for k in "FBU")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([[B(1, 0), F(1, 0), U(1, 0)]], "deadlocks: worker 0 at 1B0"),
        ([[F(1, 0), B(1, 0)]], "never performs 1U0"),
        ([[F(1, 0), F(1, 0), B(1, 0), U(1, 0)]], "performs 1F0 twice"),
        ([[F(1, 0), B(1, 0), U(1, 0), Action("X", 1, 0)]], "an unknown kind"),  # type: ignore[arg-type]
    ],
)
def test_impossible_schedules_are_refused(rows: list[list[Action]], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        check(Schedule("mine", 1, 1, tuple(map(tuple, rows))))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([[Action("F", 1, 0), Action("B", 1, 0)]], "never updates stage 1; add its U actions"),
        ([[Action("F", 1, 0), Action("U", 1, 0)]], "never performs 1B0"),
        ([[Action("X", 1, 0)]], "1X0 has an unknown kind; the kinds are F, B, R, W, S and U"),  # type: ignore[arg-type]
    ],
)
def test_a_schedule_without_all_its_actions_has_no_delays(rows: list[list[Action]], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        delays(Schedule("mine", 1, 1, tuple(map(tuple, rows))))


def test_rows_and_cycles_are_like_tuples() -> None:
    plan = schedule("cycle", stages=2, minibatches=3)
    assert plan.cycles is not None
    for kept in (plan.workers[0], plan.cycles[0]):
        whole = tuple(kept)
        assert (kept == whole, kept[1:] == whole[1:], kept[-1] == whole[-1], kept != whole[1:]) == (True,) * 4
        assert {kept: "found"}[whole] == "found" and repr(kept) == repr(whole)  # type: ignore[index]


def test_crossed_waiting_is_a_deadlock() -> None:
    above = [F(1, 0), B(1, 0), U(1, 0), F(1, 1), B(1, 1), U(1, 1)]
    below = [F(2, 1), B(2, 1), U(2, 1), F(2, 0), B(2, 0), U(2, 0)]
    with pytest.raises(PipelagError, match="deadlocks: worker 0 at 1B0, worker 1 at 2F1"):
        check(Schedule("crossed", 2, 2, (tuple(above), tuple(below))))


def test_a_schedule_without_clock_may_not_split_a_stage() -> None:
    plan = Schedule("split", 1, 1, ((F(1, 0),), (B(1, 0), U(1, 0))))
    with pytest.raises(PipelagError, match="put both on one worker"):
        delays(plan)


def test_staleness_that_does_not_settle_is_refused() -> None:
    def growing(stages: int, minibatches: int) -> Schedule:
        every = range(minibatches)
        return Schedule(
            "growing",
            1,
            minibatches,
            (tuple([F(1, m) for m in every] + [a for m in every for a in (B(1, m), U(1, m))]),),
        )

    with pytest.raises(PipelagError, match="does not settle"):
        steady_delays(growing, 1)


def test_an_update_takes_no_place_in_the_text_of_a_schedule() -> None:
    """The text of a schedule shows passes and no updates, with a clock and without."""
    assert schedule("1f1b", stages=2, minibatches=3).grid() == "1F0 1F1 1B0 1F2 1B1 1B2\n2F0 2B0 2F1 2B1 2F2 2B2"
    assert schedule("cycle", stages=1, minibatches=2).grid() == "1F0+1B0 1F1+1B1"


@pytest.mark.parametrize("replicas", [2, [1.5, 1], "21", [1]])
def test_replicas_are_whole_numbers_for_each_stage(replicas: Any) -> None:
    with pytest.raises(PipelagError, match="replicas is .* should give each of the 2 stages"):
        schedule("1f1b_rr", stages=2, minibatches=2, replicas=replicas)


def test_workers_are_one_per_stage_where_replicas_or_model_parallelism_need_it() -> None:
    with pytest.raises(PipelagError, match=r"uses 1 worker or one per stage \(4\), not 3"):
        schedule("sequential", stages=4, minibatches=2, workers=3)
    with pytest.raises(PipelagError, match="does not give each stage a worker of its own, .* leave out the replicas"):
        methods.get("1f1b_interleaved").schedule(4, 4, 2, (1, 1, 2, 1))


def test_a_worker_holds_a_whole_number_of_stages() -> None:
    with pytest.raises(
        PipelagError, match="chunks, the stages of a worker, should be a whole number from 1 on, not 1.5"
    ):
        Interleaved(1.5)  # type: ignore[arg-type]


def test_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(PipelagError, match="unknown schedule 'cycel'; did you mean 'cycle'"):
        schedule("cycel", stages=2, minibatches=2)
    with pytest.raises(PipelagError, match="unknown method 'stale_weight'; did you mean 'stale_weights'"):
        methods.get("stale_weight")
    with pytest.raises(
        PipelagError, match="at least 1 stage, 1 minibatch and 1 microbatch, in whole numbers, not 0, 2 and 1"
    ):
        schedule("cycle", stages=0, minibatches=2)
