"""ZB-V (Qi et al. 2024, arXiv 2401.10241 section 6 and arXiv 2405.15362) against what the papers promise of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import pipelag
from pipelag.distributed.routes import routes_of, stages_on
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.schedules import Action, Schedule
from pipelag.timing.breakdown import steady_seconds

ALIKE = (1.0, 1.0, 1.0)
SIZES = [(p, n) for p in (1, 2, 3, 5, 8) for n in (1, 2, p, p + 1, 2 * p - 1, 4 * p)]


def built(workers: int, microbatches: int, minibatches: int = 1) -> Schedule:
    return pipelag.schedule("zb_v", stages=2 * workers, minibatches=minibatches, microbatches=microbatches)


def relaxed(schedule: Schedule) -> list[list[tuple[int, Action]]]:
    """Per worker, the time units in which its passes begin, each of one unit: moved back until nothing is too early."""
    begins = {action: 0 for _, action in schedule if action.kind != "U"}
    moved = True
    while moved:
        moved = False
        for row in schedule.workers:
            before = [action for action in row if action.kind != "U"]
            for place, action in enumerate(before):
                kind, stage, m = action
                needs = {"F": [("F", stage - 1)], "B": [("F", stage), ("B", stage + 1)], "W": [("B", stage)]}[kind]
                sources = [Action(k, s, m) for k, s in needs if 1 <= s <= schedule.stages]  # type: ignore[arg-type]
                earliest = max((begins[one] + 1 for one in (*sources, *before[max(0, place - 1) : place])), default=0)
                if begins[action] < earliest:
                    begins[action], moved = earliest, True
    return [[(begins[action], action) for action in row if action.kind != "U"] for row in schedule.workers]


def waits(schedule: Schedule) -> list[int]:
    """Per worker, the idle time units between its first action and its last."""
    return [row[-1][0] + 1 - row[0][0] - len(row) for row in relaxed(schedule)]


def pace(name: str, workers: int, microbatches: int, times: tuple[float, float, float] = ALIKE) -> float:
    """Seconds per minibatch of one network in the steady state; a worker's F, B and W take these times in all."""
    method = get(name)
    each = 2 if name in ("zb_v", "1f1b_interleaved") else 1
    f, b, w = (time / each for time in times)
    costs = pipelag.uniform(each * workers, f, b + w, weight_gradient=w)
    return steady_seconds(lambda count: method.schedule(each * workers, count, microbatches), costs)


@pytest.mark.parametrize(("workers", "microbatches"), SIZES)
def test_everything_happens_once_and_nothing_is_stale(workers: int, microbatches: int) -> None:
    schedule = built(workers, microbatches, minibatches=3)
    pipelag.check(schedule)
    routes_of(schedule)  # messages are taken in the order in which they are sent
    delays = pipelag.delays(schedule)
    assert {lag for stage in (*delays.forward_lags, *delays.backward_lags) for lag in stage} == {0}
    assert [len(row) for row in schedule.workers] == [2 * 3 * (3 * microbatches + 1)] * workers


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_stages_go_down_the_workers_and_up_again(workers: int) -> None:
    schedule = built(workers, 4)
    path = [schedule.owners["F", stage] for stage in range(1, 2 * workers + 1)]
    assert path == [*range(workers), *reversed(range(workers))]
    assert [stages_on(schedule, rank) for rank in range(workers)] == [
        [rank + 1, 2 * workers - rank] for rank in range(workers)
    ]


@pytest.mark.parametrize(("workers", "microbatches"), SIZES)
def test_a_worker_keeps_the_activations_of_at_most_as_many_microbatches_as_there_are_workers(
    workers: int, microbatches: int
) -> None:
    """2P passes of a stage of half the size, from F to W; with enough microbatches on every worker, as many as 1F1B."""
    peaks = []
    for row in built(workers, microbatches).workers:
        held = [sum({"F": 1, "W": -1}.get(action.kind, 0) for action in row[:end]) for end in range(len(row) + 1)]
        peaks.append(max(held))
        assert held[-1] == 0
    assert max(peaks) <= 2 * workers
    if microbatches >= 2 * workers - 1:
        assert peaks == [2 * workers] * workers
    halves = pipelag.time(built(workers, microbatches, 3), pipelag.uniform(2 * workers, kept_bytes=0.5))
    assert max(halves.peak_memory) <= workers


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 8])
def test_no_worker_waits_with_one_microbatch_less_than_twice_the_workers(workers: int) -> None:
    for microbatches in (2 * workers - 1, 2 * workers, 3 * workers + 1):
        schedule = built(workers, microbatches)
        assert waits(schedule) == [0] * workers
        rows = relaxed(schedule)
        assert [row[0][0] for row in rows] == list(range(workers))  # but for the pipeline's fill
        assert pace("zb_v", workers, microbatches) == pytest.approx(3 * microbatches)
    if workers > 1:
        assert sum(waits(built(workers, 2 * workers - 2))) > 0


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 8])
def test_with_fewer_microbatches_a_minibatch_takes_as_long_as_is_said(workers: int) -> None:
    """In passes of a stage. With one microbatch and with one per worker, no schedule could be faster."""
    for n in range(1, 2 * workers - 1):
        last = max(row[-1][0] for row in relaxed(built(workers, n))) + 1
        if n <= workers:
            assert last == max(4 * workers + 2 * n - 1, 3 * workers + 4 * n - 1) == 2 * pace("zb_v", workers, n)
        else:
            assert 2 * pace("zb_v", workers, n) == pytest.approx(6 * n + 2 * (2 * workers - 1 - n))
        if n in (1, workers):  # there and back and the first stage's W; the last worker's wait and work
            assert last == max(4 * workers + 1, workers - 1 + 6 * n)


def test_eight_microbatches_over_32_workers_take_what_the_page_at_scale_says() -> None:
    """In passes of half a worker's stage."""
    taken = [round(2 * pace(name, 32, 8)) for name in ("zb_v", "zb_h1")]
    assert taken == [143, 158]
    page = " ".join((Path(__file__).parents[2] / "docs/scale.md").read_text().split())
    assert f"8 microbatches over 32 GPUs need {taken[0]} passes of half a stage for ZB-H1's {taken[1]}" in page


def test_the_first_steps_over_two_workers() -> None:
    """Drawn by hand: the last stage, on worker 0, goes backward at once; W waits where the pipeline drains."""
    assert built(2, 3).grid().splitlines() == [
        "1F0 1F1 1F2 4F0 4B0 4W0 4F1 4B1 4W1 1B0 1W0 4F2 4B2 4W2 1B1 1W1 1B2 1W2",
        "2F0 3F0 2F1 3F1 3B0 3W0 2F2 2B0 2W0 3F2 3B1 3W1 2B1 3B2 2B2 2W1 3W2 2W2",
    ]


@pytest.mark.parametrize("times", [ALIKE, (1, 1.25, 0.75), (1.5, 1, 1), (1, 1.5, 1), (1, 1, 1.5), (2, 1, 0.5)])
@pytest.mark.parametrize(("workers", "microbatches"), [(4, 8), (8, 32)])
def test_the_bubble_is_smaller_than_that_of_schedules_with_as_much_memory(
    workers: int, microbatches: int, times: tuple[float, float, float]
) -> None:
    """Over one network cut into as many or twice as many stages. Unequal passes leave a bubble, less than ZB-H1's."""
    ours = pace("zb_v", workers, microbatches, times)
    work = microbatches * sum(times)
    others = ("zb_h1", "1f1b_interleaved", "1f1b_flush")
    assert work <= ours + 1e-9
    assert all(ours < pace(name, workers, microbatches, times) for name in others)
    if times == ALIKE:
        assert ours == pytest.approx(work) == pace("zb_h2", workers, microbatches)
    else:
        assert ours > work + 0.1


def test_many_microbatches_over_many_workers_are_built_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rule whose cost does not grow with the number of passes, one by one: P = 64, N = 256 in milliseconds."""
    from pipelag.schedules import actions

    def made(*values: object) -> None:
        raise AssertionError("an action was made on its own")

    monkeypatch.setattr(actions.Action, "_make", made)
    schedule = built(64, 256)
    assert sum(map(len, schedule.workers)) == 64 * (6 * 256 + 2)


def test_one_stage_takes_its_passes_in_turn() -> None:
    schedule = pipelag.schedule("zb_v", stages=1, minibatches=1, microbatches=2)
    assert schedule.grid() == "1F0 1B0 1W0 1F1 1B1 1W1"
    pipelag.check(schedule)


def test_an_odd_number_of_stages_is_refused() -> None:
    with pytest.raises(PipelagError, match="zb_v gives each worker two stages, so their number must be even, not 3"):
        pipelag.schedule("zb_v", stages=3, minibatches=1)
