"""Schedules and the staleness derived from them: the papers' formulas are tests, never code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.schedules import Action, Schedule, check, delays, schedule, steady_delays


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


def test_one_stage_of_any_method_is_plain_training() -> None:
    for method in methods.METHODS.values():
        lags = method.delays(1)
        assert lags.forward == lags.backward == (0,)


F, B, U = (lambda s, m, k=k: Action(k, s, m) for k in "FBU")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([[B(1, 0), F(1, 0), U(1, 0)]], "deadlocks: worker 0 at 1B0"),
        ([[F(1, 0), B(1, 0)]], "never performs 1U0"),
        ([[F(1, 0), F(1, 0), B(1, 0), U(1, 0)]], "performs 1F0 twice"),
        ([[F(1, 0), B(1, 0), U(1, 0), Action("X", 1, 0)]], "a kind that no executor knows"),  # type: ignore[arg-type]
    ],
)
def test_impossible_schedules_are_refused(rows: list[list[Action]], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        check(Schedule("mine", 1, 1, tuple(map(tuple, rows))))


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


def test_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(PipelagError, match="unknown schedule 'cycel'; did you mean 'cycle'"):
        schedule("cycel", stages=2, minibatches=2)
    with pytest.raises(PipelagError, match="unknown method 'stale_weight'; did you mean 'stale_weights'"):
        methods.get("stale_weight")
    with pytest.raises(PipelagError, match="at least 1 stage and 1 minibatch, not 0 and 2"):
        schedule("cycle", stages=0, minibatches=2)
