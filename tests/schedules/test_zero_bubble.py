"""Zero-bubble schedules against the formulas of Qi et al. 2024 (arXiv 2401.10241, table 2); what a W action means."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pipelag
from pipelag.errors import PipelagError
from pipelag.schedules import Action, Schedule
from pipelag.timing.breakdown import steady_seconds

LEADS = {"1f1b_flush": -1, "zb_h1": 1, "zb_h2": 2}  # the bubble is (P-1) (F + B - lead W)


def pace(name: str, stages: int, microbatches: int, times: tuple[float, float, float]) -> float:
    """Seconds per minibatch in the steady state for passes that take F, B and W."""
    costs = pipelag.uniform(stages, times[0], times[1] + times[2], weight_gradient=times[2])
    return steady_seconds(
        lambda count: pipelag.schedule(name, stages=stages, minibatches=count, microbatches=microbatches), costs
    )


@pytest.mark.parametrize("name", LEADS)
@pytest.mark.parametrize("times", [(1, 1, 1), (1, 1.25, 0.75), (1.5, 1, 1), (2, 1, 0.5), (1, 2, 0)])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 2), (2, 3), (3, 5), (4, 12), (8, 15), (8, 32)])
def test_the_bubble_is_the_papers(name: str, times: tuple[float, float, float], stages: int, microbatches: int) -> None:
    f, b, w = times
    bubble = (stages - 1) * (f + b - LEADS[name] * w)
    assert pace(name, stages, microbatches, times) == pytest.approx(microbatches * (f + b + w) + bubble)


@pytest.mark.parametrize(("name", "held"), [("zb_h1", 4), ("zb_h2", 7)])
def test_all_stages_hold_activations_of_equally_many_microbatches_until_their_w(name: str, held: int) -> None:
    schedule = pipelag.schedule(name, stages=4, minibatches=3, microbatches=16)
    timing = pipelag.time(schedule, pipelag.uniform(4, kept_bytes=1.0))
    assert timing.peak_memory == (held,) * 4
    deep = pipelag.time(pipelag.schedule("1f1b_flush", stages=4, minibatches=3, microbatches=16), timing.wiring.costs)
    assert max(deep.peak_memory) == 4  # 1F1B's first stage: ZB-H1 needs no more


@pytest.mark.parametrize("name", ["zb_h1", "zb_h2", "zb_v"])
@pytest.mark.parametrize("microbatches", [1, 4, 9])
def test_a_stage_computes_both_parts_in_the_same_order(name: str, microbatches: int) -> None:
    """So gradients of weights that B computes are added in the same order as those that W computes."""
    for row in pipelag.schedule(name, stages=4, minibatches=3, microbatches=microbatches).workers:
        for stage in range(1, 5):
            order = {kind: [a.number for a in row if (a.kind, a.stage) == (kind, stage)] for kind in "BW"}
            assert order["B"] == order["W"] == sorted(order["B"])


@pytest.mark.parametrize("name", ["zb_h1", "zb_h2"])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 1), (5, 2), (4, 9), (7, 7)])
def test_nothing_is_stale_and_everything_happens_once(name: str, stages: int, microbatches: int) -> None:
    schedule = pipelag.schedule(name, stages=stages, minibatches=4, microbatches=microbatches)
    pipelag.check(schedule)
    delays = pipelag.delays(schedule)
    assert {lag for stage in (*delays.forward_lags, *delays.backward_lags) for lag in stage} == {0}
    per_stage = 4 * (3 * microbatches + 1)
    assert [len(row) for row in schedule.workers] == [per_stage] * stages


def test_the_first_steps_of_zb_h1_over_three_stages() -> None:
    """Drawn by hand from the rule: stage i begins with P-i forwards, and its W comes i-1 backwards late."""
    assert pipelag.schedule("zb_h1", stages=3, minibatches=1, microbatches=4).grid().splitlines() == [
        "1F0 1F1 1F2 1B0 1W0 1F3 1B1 1W1 1B2 1W2 1B3 1W3",
        "2F0 2F1 2B0 2F2 2B1 2W0 2F3 2B2 2W1 2B3 2W2 2W3",
        "3F0 3B0 3F1 3B1 3F2 3B2 3W0 3F3 3B3 3W1 3W2 3W3",
    ]


def of(*rows: str, stages: int, minibatches: int = 1) -> Schedule:
    """A schedule from words such as 1F0."""
    actions = [tuple(Action(word[1], int(word[0]), int(word[2:])) for word in row.split()) for row in rows]  # type: ignore[arg-type]
    return Schedule("mine", stages, minibatches, tuple(actions))


def test_a_stage_may_split_its_backward_where_another_does_not() -> None:
    mixed = of("1F0 1B0 1U0", "2F0 2B0 2W0 2U0", stages=2)
    pipelag.check(mixed)
    assert (mixed.splits(1), mixed.splits(2)) == (False, True)
    timing = pipelag.time(mixed, pipelag.uniform(2, 1.0, 4.0, weight_gradient=1.0))
    # 1F, 2F, the three seconds of 2B without its weights, then 1B (whole) while 2W runs.
    assert [(str(s.action), s.start, s.end) for s in timing.spans if s.action.kind in "BW"] == [
        ("2B0", 2.0, 5.0), ("1B0", 5.0, 9.0), ("2W0", 5.0, 6.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "stages", "minibatches", "message"),
    [
        (["1F0 1B0 1U0 1W0"], 1, 1, "deadlocks: worker 0 at 1U0"),
        (["1F0 1W0 1B0 1U0"], 1, 1, "deadlocks: worker 0 at 1W0"),
        (["1F0 1B0 1W0 1U0 1F1 1B1 1U1"], 1, 2, "never performs 1W1"),
        (["1F0 1B0 1W0 1W0 1U0"], 1, 1, "performs 1W0 twice"),
        (["1F0 1B0 1U0", "1W0"], 1, 1, "runs 1W0 on worker 1, but its backward"),
    ],
)
def test_a_w_in_the_wrong_place_is_refused(rows: list[str], stages: int, minibatches: int, message: str) -> None:
    with pytest.raises(PipelagError, match=message):
        pipelag.check(of(*rows, stages=stages, minibatches=minibatches))


@pytest.mark.parametrize("row", ["1F0 1W0 1B0 1U0", "1F0 1B0 1U0"])
def test_the_timed_executor_does_not_run_a_w_without_its_b(row: str) -> None:
    rows = [row] if "W" in row else [row, "1W0"]
    with pytest.raises(PipelagError, match="deadlocks: worker . waits at 1W0"):
        pipelag.time(of(*rows, stages=1), pipelag.uniform(1))


def test_an_update_between_the_parts_of_a_backward_is_refused() -> None:
    between = of("1F0 1F1 1B0 1B1 1W0 1U0 1W1 1U1", stages=1, minibatches=2)
    pipelag.check(between)
    with pytest.raises(PipelagError, match="updates stage 1 between 1B1 and 1W1"):
        pipelag.delays(between)
    pipelag.delays(of("1F0 1F1 1B0 1W0 1U0 1B1 1W1 1U1", stages=1, minibatches=2))


def test_times_without_the_part_of_the_weights_are_refused() -> None:
    schedule = pipelag.schedule("zb_h1", stages=2, minibatches=1)
    costs = [replace(cost, weight_gradient=None) for cost in pipelag.uniform(2)]
    with pytest.raises(PipelagError, match="gradients of stage 1's weights apart .* give the StageCost a weight_grad"):
        pipelag.time(schedule, costs)
    pipelag.time(pipelag.schedule("1f1b", stages=2, minibatches=1), costs)
    with pytest.raises(PipelagError, match="weight_gradient is 3.0 s, but it is a part of the backward"):
        pipelag.StageCost(1.0, 2.0, weight_gradient=3.0)
    with pytest.raises(PipelagError, match=r"which takes 2.5 s \(backward and splitting\)"):
        pipelag.StageCost(1.0, 2.0, weight_gradient=3.0, splitting=0.5)


def test_what_splitting_costs_is_part_of_a_backward_in_two_parts_alone() -> None:
    cost = pipelag.StageCost(1.0, 2.0, weight_gradient=1.5, splitting=0.5)
    spans = pipelag.time(of("1F0 1B0 1W0 1U0", stages=1), [cost]).spans
    assert [(str(s.action), s.end - s.start) for s in spans] == [("1F0", 1.0), ("1B0", 1.0), ("1W0", 1.5), ("1U0", 0.0)]
    spans = pipelag.time(of("1F0 1B0 1U0", stages=1), [cost]).spans
    assert [(str(s.action), s.end - s.start) for s in spans] == [("1F0", 1.0), ("1B0", 2.0), ("1U0", 0.0)]
