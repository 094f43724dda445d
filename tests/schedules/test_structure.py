"""Schedules have the counts that their papers give, and schedules that contradict themselves are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipelag
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.schedules import SCHEDULES, Action, Schedule, check, delays, schedule, steady_delays
from pipelag.schedules.library import minibatches_held
from pipelag.schedules.virtual import Interleaved, bidirectional
from pipelag.stage.phase import Phase

F, B, U, S = (lambda s, m, k=k: Action(k, s, m) for k in "FBUS")


@given(replicas=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_as_many_minibatches_are_under_way_as_section_3_2_admits(replicas: list[int]) -> None:
    """The input stage admits NOAM = ceil(workers / its replicas) minibatches (PipeDream, section 3.2).

    A later stage admits those of a pipeline that begins with it.
    """
    ceil = lambda a, b: -(-a // b)  # noqa: E731
    noam = ceil(sum(replicas), replicas[0])
    assert minibatches_held(replicas)[0] == noam
    for stage, count in enumerate(replicas):
        of_its_own = ceil(sum(replicas[stage:]), count)
        assert minibatches_held(replicas)[stage] == min(of_its_own, ceil(noam * replicas[0], count))


def test_of_more_minibatches_than_keep_all_busy_each_replica_has_its_part() -> None:
    """Minibatches beyond NOAM are divided among a stage's replicas.

    Five workers, two of them replicas of stage 3, have a NOAM of 5. Of seven minibatches the other two wait in front of
    the stages: one for each replica of stage 3, and none where a backward follows its forward at once.
    """
    assert minibatches_held((1, 1, 2, 1)) == (5, 4, 2, 1)
    assert minibatches_held((1, 1, 2, 1), depth=7) == (7, 6, 3, 1)


@pytest.mark.parametrize(("workers", "chunks", "microbatches"), [(2, 2, 4), (4, 2, 8), (4, 3, 8), (3, 2, 6)])
def test_the_bubble_of_interleaving_is_a_chunks_share(workers: int, chunks: int, microbatches: int) -> None:
    """The bubble is (p - 1)(t_f + t_b) / v, with t_f and t_b over all v stages of a worker.

    Source: Narayanan et al., section 2.2.
    """
    stages = workers * chunks
    timing = pipelag.time(Interleaved(chunks)(stages, 1, microbatches), pipelag.uniform(stages))
    ideal, bubble = microbatches * chunks * 3.0, (workers - 1) * 3.0  # a stage: 1 forward, 2 backward
    assert timing.makespan == pytest.approx(ideal + bubble)


@pytest.mark.parametrize(("workers", "chunks", "microbatches"), [(2, 2, 4), (4, 2, 8), (4, 3, 8), (3, 2, 6), (4, 1, 8)])
@pytest.mark.parametrize("flush", [True, False])
def test_interleaving_begins_with_as_many_forwards_as_megatron(
    workers: int, chunks: int, microbatches: int, flush: bool
) -> None:
    """Rank r begins with 2 (p - r - 1) + (v - 1) p forwards, or with 1F1B's p - r - 1 if it has one chunk.

    This leaves messages time to travel.
    """
    for rank, row in enumerate(Interleaved(chunks, flush)(workers * chunks, 3, microbatches).workers):
        first = next(at for at, action in enumerate(row) if action.kind == "B")
        warmup = workers - rank - 1 if chunks == 1 else 2 * (workers - rank - 1) + (chunks - 1) * workers
        assert first == min(warmup + 1, microbatches * chunks)  # plus one: the steady state begins with a forward


@pytest.mark.parametrize("flush", [True, False])
def test_interleaving_makes_no_action_on_its_own(flush: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that thousands of microbatches over many stages are built in milliseconds."""

    def made(*values: object) -> None:
        raise AssertionError("an action was made on its own")

    monkeypatch.setattr("pipelag.schedules.virtual.Action", made)
    workers = Interleaved(4, flush)(64, 2, 1024).workers
    assert sum(map(len, workers)) == 64 * 2 * (2 * 1024 + 1)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 8), (4, 12), (6, 16)])
def test_neither_direction_has_more_under_way_than_1f1b(stages: int, microbatches: int) -> None:
    """Stage l holds at most n - l + 1 microbatches of each direction, as in 1F1B."""
    for row in bidirectional(stages, 2, microbatches).workers:
        for way in (0, 1):
            for stage in range(1, stages + 1):
                mine = [a.kind for a in row if a.stage == stage and a.kind in "FB" and a.number % 2 == way]
                held = [mine[: at + 1].count("F") - mine[: at + 1].count("B") for at in range(len(mine))]
                assert max(held, default=0) <= stages - stage + 1


@pytest.mark.parametrize("stages", [2, 4, 6, 8])
def test_two_directions_wait_as_long_as_chimeras(stages: int) -> None:
    """With as many microbatches as stages, P, the makespan is Chimera's (arXiv 2107.06925, section 3).

    Each microbatch takes three units, and there are P - 2 bubbles of two units.
    """
    timing = pipelag.time(bidirectional(stages, 1, stages), pipelag.uniform(stages))
    assert timing.makespan == 3 * stages + 2 * (stages - 2)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_round_of_1f1b_is_the_passes_of_an_update(n: int) -> None:
    """The backward's horizon on GPU k of 1F1B is k // 2n updates.

    A gradient moves on by a stage per pass, and an update takes n forwards and n backwards.
    """
    beyond = steady_delays(SCHEDULES["1f1b"], 9, n).beyond
    assert beyond == tuple((k // (2 * n),) * n for k in range(9))
    method = get("spectrain_1f1b")
    assert [method.amounts("B", k + 1, 4, method.delays(4, n))[0] for k in range(4)] == [k // (2 * n) for k in range(4)]


def one(
    *rows: list[Action], stages: int = 1, minibatches: int = 2, cycles: tuple[tuple[int, ...], ...] | None = None
) -> Schedule:
    return Schedule("mine", stages, minibatches, tuple(map(tuple, rows)), cycles)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (
            one([F(1, 0), B(1, 0), U(1, 0), F(1, 1), B(1, 1), U(1, 2)]),
            r"has the updates \[0, 2\] of stage 1, which do not divide the schedule's 2 microbatches equally",
        ),
        (
            one([F(1, 0), B(1, 0), U(1, 0), F(1, 1), B(1, 1), F(1, 2), B(1, 2), U(1, 1)], minibatches=3),
            r"the updates \[0, 1\] of stage 1, which do not divide the schedule's 3 microbatches",
        ),
        (
            one([F(1, 0), B(1, 0), U(1, 0)], minibatches=1, cycles=((0, 0),)),
            "should give every action a cycle, but does not",
        ),
        (one([F(1, 0), B(1, 0), U(2, 0)], minibatches=1), "the action 2U0 has a stage outside the schedule's 1 to 1"),
        (one([F(1, 0), B(1, 0), U(1, -1)], minibatches=1), "the action 1U-1 has .* or a number below 0"),
        (
            one(
                [F(1, 0), B(1, 0), S(1, 0), U(1, 0), F(1, 3), B(1, 3), S(1, 1), U(1, 1)],
                [F(1, 1), B(1, 1), S(1, 0), U(1, 0), F(1, 2), B(1, 2), S(1, 1), U(1, 1)],
                minibatches=4,
            ),
            "assigns the microbatches of stage 1 to its replicas in an order that changes from update to update",
        ),
    ],
    ids=["a gap", "unequal", "no clock", "no such stage", "no such number", "turned"],
)
def test_what_a_schedule_cannot_say_is_refused(plan: Schedule, sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        delays(plan)


def test_more_passes_than_there_is_memory_for_are_refused_at_once() -> None:
    for build in (schedule, lambda name, **counts: get("pipedream").schedule(*counts.values())):
        with pytest.raises(PipelagError, match="are more than 10,000,000 passes, too many for a schedule"):
            build("1f1b", stages=1000, minibatches=10_001)


def test_only_a_clock_has_a_length() -> None:
    with pytest.raises(PipelagError, match="the schedule '1f1b' has no common clock; time it over a profile instead"):
        schedule("1f1b", stages=2, minibatches=2).length  # noqa: B018


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (one([F(1, 0), F(1, 1), B(1, 0), B(1, 1), U(1, 1), U(1, 0)]), "deadlocks: worker 0 at 1U1"),
        (one([F(1, 0), B(1, 0), Action("R", 1, 0), U(1, 0)], minibatches=1), "deadlocks: worker 0 at 1B0"),
        (one([F(1, 0), B(1, 0), U(1, 0), S(1, 0)], minibatches=1), "deadlocks: worker 0 at 1U0"),
        (
            one(
                [F(1, 0), B(1, 0), S(1, 0), U(1, 0), F(1, 2), B(1, 2), S(1, 1), U(1, 1)],
                [F(1, 1), B(1, 1), S(1, 0), U(1, 0), F(1, 3), B(1, 3), S(1, 1)],
                minibatches=4,
            ),
            "never performs 1U1",
        ),
    ],
    ids=["updates out of order", "recomputed too late", "summed too late", "a replica left behind"],
)
def test_an_order_in_which_results_are_not_there_yet_is_refused(plan: Schedule, sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        check(plan)


def test_replicas_take_whole_minibatches_in_turn() -> None:
    """Minibatch m goes to replica m mod r with all of its microbatches (PipeDream, section 3.2)."""
    for name in ("gpipe", "pipemare", "pipedream"):
        assert get(name).delays(2, 3, (2, 1)).places == ((0, 0, 0, 1, 1, 1), (0, 0, 0)), name


@pytest.mark.parametrize("replicas", [(1.5, 1), (0, 2), (2, 1, 1), ("2", 1)])
def test_replicas_of_a_method_are_whole_numbers_for_each_stage(replicas: Any) -> None:
    for name in ("pipedream", "pipemare"):
        with pytest.raises(PipelagError, match="should give each of the 2 stages a whole number of workers, 1 or more"):
            Phase(get(name), 6, (1,), replicas=replicas).check()
