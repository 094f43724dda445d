"""The lockstep clock, by hand and against a naive relaxation; the steady pace and where its time goes."""

from __future__ import annotations

from dataclasses import astuple
from statistics import fmean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.schedules import Schedule, schedule
from pipelag.schedules.actions import Action
from pipelag.schedules.check import inputs_of
from pipelag.timing.breakdown import NEAR, held_by_sending, shares, steady_seconds
from pipelag.timing.costs import StageCost, Topology, uniform
from pipelag.timing.lockstep import CLOCKS, time_lockstep, units_of
from pipelag.timing.timed import time_schedule
from tests.timing.test_timed import NAMES, random_costs


def test_1f1b_has_two_units_per_minibatch_as_figure_6a_draws_it() -> None:
    units = units_of(schedule("1f1b", stages=4, minibatches=8))
    for stage in (1, 2, 3, 4):
        for m in range(4, 7):  # the pipeline is full
            assert units[Action("F", stage, m + 1)] - units[Action("F", stage, m)] == 2
            assert units[Action("B", stage, m + 1)] - units[Action("B", stage, m)] == 2
        assert units[Action("U", stage, 5)] == units[Action("B", stage, 5)]
    first = [units[Action("F", 1, m)] for m in range(4)] + [units[Action("B", 1, 0)]]
    assert first == [0, 1, 2, 3, 7]
    # in every unit of the steady state some GPUs run a forward and some a backward
    kinds = [{a.kind for a, unit in units.items() if unit == now and a.kind != "U"} for now in range(8, 14)]
    assert kinds == [{"F", "B"}] * 6


def test_a_clocked_schedule_keeps_its_cycles() -> None:
    plan = schedule("cycle", stages=3, minibatches=5)
    assert plan.cycles is not None
    units = units_of(plan)
    for row, clock in zip(plan.workers, plan.cycles, strict=True):
        assert [units[action] for action in row] == list(clock)


def costs_of(*passes: tuple[float, float]) -> list[StageCost]:
    return [StageCost(forward, backward) for forward, backward in passes]


def test_two_stages_by_hand() -> None:
    """Units alternate: stage 1 forward with stage 2 backward, then the other way round."""
    plan = lambda n: schedule("1f1b", stages=2, minibatches=n)  # noqa: E731
    costs = costs_of((1.0, 2.0), (1.5, 4.0))
    assert steady_seconds(plan, costs, clock="lockstep") == pytest.approx(max(1.0, 4.0) + max(2.0, 1.5))
    assert steady_seconds(plan, costs) == pytest.approx(1.5 + 4.0)
    # 1F0 | 2F0 1F1 | 2B0 | 1B0 2F1 | 1F2 2B1 | ...
    starts = {span.action: span.start for span in time_lockstep(plan(3), costs).spans}
    by_hand = {"1F0": 0, "2F0": 1, "1F1": 1, "2B0": 2.5, "1B0": 6.5, "2F1": 6.5, "1F2": 8.5, "2B1": 8.5}
    by_hand |= {"1B1": 12.5, "2F2": 12.5, "2B2": 14.5, "1B2": 18.5}
    assert {str(a): start for a, start in starts.items() if a.kind != "U"} == by_hand


def test_four_stages_by_hand() -> None:
    """Odd stages run forwards while even ones run backwards, and the other way round."""
    costs = costs_of((1.0, 3.0), (2.0, 2.5), (0.5, 5.0), (1.5, 4.0))
    plan = lambda n: schedule("1f1b", stages=4, minibatches=n)  # noqa: E731
    by_hand = max(1.0, 2.5, 0.5, 4.0) + max(3.0, 2.0, 5.0, 1.5)
    assert steady_seconds(plan, costs, clock="lockstep") == pytest.approx(by_hand)
    assert steady_seconds(plan, costs) == pytest.approx(5.5)  # the slowest stage alone
    even = uniform(4, 1.0, 2.0)
    assert steady_seconds(plan, even, clock="lockstep") == pytest.approx(4.0)  # forwards padded to backwards
    assert steady_seconds(plan, even) == pytest.approx(3.0)


def test_each_part_of_a_split_backward_has_a_unit_of_its_own() -> None:
    """ZB-H1 over two stages with two microbatches: 1F0 | 1F1 2F0 | 2B0 | 1B0 2F1 | 1W0 2B1 | 1B1 2W0 | 1W1 2W1."""
    plan = schedule("zb_h1", stages=2, minibatches=1, microbatches=2)
    units = {str(action): unit for action, unit in units_of(plan).items() if action.kind != "U"}
    assert units == {
        "1F0": 0, "1F1": 1, "2F0": 1, "2B0": 2, "1B0": 3, "2F1": 3, "1W0": 4, "2B1": 4, "1B1": 5, "2W0": 5, "1W1": 6,
        "2W1": 6,
    }  # fmt: skip
    costs = [StageCost(1.0, 5.0, weight_gradient=2.0), StageCost(2.0, 3.0, weight_gradient=1.0)]
    assert time_lockstep(plan, costs).makespan == 1 + 2 + 2 + 3 + 2 + 3 + 2


def test_a_unit_of_dualpipe_lasts_as_long_as_its_slowest_gpu() -> None:
    costs = costs_of((1.0, 3.0), (2.0, 2.5), (0.5, 5.0), (1.5, 4.0))
    plan = lambda n: schedule("cycle", stages=4, minibatches=n)  # noqa: E731
    assert steady_seconds(plan, costs, clock="lockstep") == pytest.approx(5.5)
    assert steady_seconds(plan, costs) == pytest.approx(5.5)


def test_a_unit_waits_for_the_messages_that_it_needs() -> None:
    plan = schedule("1f1b", stages=2, minibatches=2)
    timing = time_lockstep(plan, uniform(2, 1.0, 1.0, output_bytes=1.0), Topology(bandwidth=4.0))
    starts = {str(span.action): span.start for span in timing.spans if span.action.kind != "U"}
    # 1F1 shares its unit with 2F0, so that it too begins when the message has arrived
    assert starts == {"1F0": 0, "2F0": 1.25, "1F1": 1.25, "2B0": 2.25, "1B0": 3.5, "2F1": 3.5, "2B1": 4.5, "1B1": 5.75}


def naive(plan: Schedule, costs: list[StageCost], topology: Topology) -> dict[Action, float]:
    """Start times as the least solution of what a lockstep clock demands, relaxed until nothing moves."""
    at = {action: worker for worker, action in plan}
    units = units_of(plan)
    lasts = {a: {"F": costs[a.stage - 1].forward, "B": costs[a.stage - 1].backward}.get(a.kind, 0.0) for a in at}
    lasts |= {a: costs[a.stage - 1].update for a in at if a.kind == "U"}
    start = dict.fromkeys(at, 0.0)
    moved = True
    while moved:
        moved = False
        arrives: dict[tuple[Action, Action], float] = {}
        for row in plan.workers:
            free: dict[str, float] = {"F": 0.0, "B": 0.0}
            for a in row:
                to = Action(a.kind, a.stage + (1 if a.kind == "F" else -1), a.number)
                if a.kind != "U" and to in at and at[to] != at[a]:
                    size = costs[min(a.stage, to.stage) - 1].output_bytes
                    free[a.kind] = max(free[a.kind], start[a] + lasts[a]) + topology.seconds(size)
                    arrives[a, to] = free[a.kind]
        begins = dict.fromkeys(range(1 + max(units.values())), 0.0)
        for a, unit in units.items():
            for later in begins:
                if later > unit:
                    begins[later] = max(begins[later], start[a] + lasts[a])
        for (a, to), when in arrives.items():
            if units[to] > units[a]:
                begins[units[to]] = max(begins[units[to]], when)
        for row in plan.workers:
            earlier = 0.0
            for a in row:
                needs = [arrives.get((i, a), start[i] + lasts[i]) for i in inputs_of(a, plan)]
                when = max([earlier, begins[units[a]], *needs])
                if when > start[a] + 1e-12:
                    start[a], moved = when, True
                earlier = start[a] + lasts[a]
    return start


@given(
    name=st.sampled_from([*NAMES, "pipemare"]),
    stages=st.integers(1, 4),
    minibatches=st.integers(1, 4),
    microbatches=st.integers(1, 3),
    seed=st.integers(0, 99),
    links=st.booleans(),
)
def test_start_times_equal_the_naive_reference(
    name: str, stages: int, minibatches: int, microbatches: int, seed: int, links: bool
) -> None:
    plan = schedule(name, stages=stages, minibatches=minibatches, microbatches=microbatches)
    costs = random_costs(stages, seed)
    topology = Topology(bandwidth=1.5, latency=0.1) if links else Topology()
    timing = time_lockstep(plan, costs, topology)
    assert {span.action: span.start for span in timing.spans} == pytest.approx(naive(plan, costs, topology))
    assert timing.makespan >= time_schedule(plan, costs, topology).makespan - 1e-9


def test_a_schedule_that_deadlocks_is_refused() -> None:
    rows = ((Action("B", 1, 0), Action("F", 1, 0)), (Action("F", 2, 0), Action("B", 2, 0)))
    with pytest.raises(PipelagError, match="deadlocks"):
        time_lockstep(Schedule("stuck", 2, 1, rows, ((0, 1), (1, 2))), uniform(2))


@given(
    name=st.sampled_from(NAMES),
    clock=st.sampled_from(sorted(CLOCKS)),
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 3),
    seed=st.integers(0, 99),
    bandwidth=st.sampled_from([0.3, 1.5, float("inf")]),
    overlap=st.booleans(),
)
@example(name="cycle", clock="free", stages=4, microbatches=1, seed=85, bandwidth=0.3, overlap=True)  # 7 in a group
@settings(max_examples=50)
def test_the_pace_is_that_of_the_far_future(
    name: str, clock: str, stages: int, microbatches: int, seed: int, bandwidth: float, overlap: bool
) -> None:
    costs, topology = random_costs(stages, seed), Topology(bandwidth, overlap=overlap)
    plan = lambda n: schedule(name, stages=stages, minibatches=n, microbatches=microbatches)  # noqa: E731
    spans = CLOCKS[clock](plan(400), costs, topology).spans
    ends = sorted(span.end for span in spans if span.action.kind == "U" and span.action.stage == 1)
    gaps = [after - before for before, after in zip(ends[319:379], ends[320:380], strict=True)]
    # Where messages wait for each other, minibatches repeat in groups. A mean over part of one is not the pace.
    group = next((k for k in range(1, 3 * stages) if gaps[k:] == pytest.approx(gaps[:-k])), 1)
    pace, later = steady_seconds(plan, costs, topology, clock), fmean(gaps[len(gaps) % group :])
    assert later * (1 - 1e-9) <= pace <= later * (1 + NEAR)  # a stage may still be catching up then, not much faster


def test_three_minibatches_may_keep_in_step_over_one_link() -> None:
    """Two workers whose messages wait for each other: every third minibatch takes longer."""
    costs, topology = random_costs(2, 3), Topology(0.3, overlap=True)
    plan = lambda n: schedule("cycle", stages=2, minibatches=n)  # noqa: E731
    spans = time_schedule(plan(90), costs, topology).spans
    ends = sorted(span.end for span in spans if span.action.kind == "U" and span.action.stage == 1)
    gaps = [after - before for before, after in zip(ends[40:79], ends[41:80], strict=True)]
    assert max(gaps) > 1.4 * min(gaps) and gaps[:-3] == pytest.approx(gaps[3:])
    assert steady_seconds(plan, costs, topology) == pytest.approx(sum(gaps[:3]) / 3)


def test_a_stage_that_catches_up_slowly_does_not_pass_for_the_slowest() -> None:
    """Stage 1 is slower than stage 3 by so little that all go by stage 3 for hundreds of minibatches."""
    costs = random_costs(3, 77)
    plan = lambda n: schedule("1f1b", stages=3, minibatches=n)  # noqa: E731
    slowest, _, third = (cost.forward + cost.backward + cost.update for cost in costs)
    assert 1 < slowest / third < 1.001
    assert steady_seconds(plan, costs) == pytest.approx(slowest, rel=1e-9)


def test_nearly_equal_stages_take_as_long_as_the_slowest() -> None:
    """One catches up with another by a millionth of a minibatch per minibatch: nobody can wait for that."""
    costs = costs_of((1.0, 2.0), (1.0, 2.000002), (1.000001, 2.0), (1.0, 2.0))
    for name in ("1f1b", "cycle"):
        plan = lambda n, name=name: schedule(name, stages=4, minibatches=n)  # noqa: E731
        assert steady_seconds(plan, costs) == pytest.approx(3.000002, rel=1e-9)
        slow = steady_seconds(plan, costs, Topology(latency=0.3, overlap=False))
        assert 3.000002 + 0.6 - 1e-9 <= slow < 6


def test_a_pace_that_never_settles_is_refused() -> None:
    def backwards_last(n: int) -> Schedule:
        row = [Action("F", 1, m) for m in range(n)] + [Action(k, 1, m) for m in range(n) for k in ("B", "U")]  # type: ignore[arg-type]
        return Schedule("backwards last", 1, n, (tuple(row),))

    with pytest.raises(PipelagError, match="the pace of the schedule 'backwards last' still changes after 1024"):
        steady_seconds(backwards_last, uniform(1))


@given(st.floats(0.1, 9), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_shares_add_up_to_one(period: float, less: float, busy: float, sending: float) -> None:
    """Whatever computing and sending there is within the period."""
    computing = period * less * busy
    transfer = (period - computing) * sending
    divided = shares(period, period * less, computing, transfer)
    assert sum(astuple(divided)) == pytest.approx(1.0)
    assert min(astuple(divided)) >= 0


def test_idle_time_is_the_links_where_infinite_ones_would_spare_it() -> None:
    divided = shares(period=10.0, unhindered=8.0, computing=6.0)
    assert astuple(divided) == pytest.approx((0.6, 0.0, 0.2, 0.2))
    divided = shares(period=10.0, unhindered=8.0, computing=6.0, transfer=1.5)
    assert astuple(divided) == pytest.approx((0.6, 0.15, 0.05, 0.2))
    divided = shares(period=10.0, unhindered=8.0, computing=6.0, transfer=3.0)  # more than links cost the period
    assert astuple(divided) == pytest.approx((0.6, 0.3, 0.0, 0.1))


def test_a_worker_is_held_up_by_what_it_sends_to_both_sides() -> None:
    costs = [StageCost(1, 1, output_bytes=size) for size in (1.0, 2.0, 4.0)]
    assert held_by_sending(costs, Topology(bandwidth=1.0)) == [0, 0, 0]
    assert held_by_sending(costs, Topology(bandwidth=1.0, overlap=False)) == [1, 3, 2]
    plan = lambda n: schedule("1f1b", stages=3, minibatches=n)  # noqa: E731
    pace = steady_seconds(plan, costs, Topology(bandwidth=1.0, overlap=False))
    assert pace >= 2 + 3  # the second computes for 2 and sends for 3


def test_a_pace_that_repeats_after_more_minibatches_than_are_under_way() -> None:
    """2BW's four microbatches over slow links keep in step over three minibatches (PipeOptim's VGG-16)."""
    passes = ((0.0435, 0.1128, 278e6), (0.0494, 0.1422, 139e6), (0.0462, 0.1356, 69e6), (0.0318, 0.0941, 4.0))
    costs = [StageCost(forward, backward, output_bytes=size) for forward, backward, size in passes]

    def plan(count: int) -> Schedule:
        return schedule("1f1b", stages=4, minibatches=count, microbatches=4)

    links = Topology(bandwidth=12e9)
    ends = sorted(s.end for s in time_schedule(plan(200), costs, links).spans if s.action.kind == "U")
    pace = steady_seconds(plan, costs, links)
    assert pace == pytest.approx((ends[-81] - ends[-321]) / 60, rel=1e-3)


def test_what_is_known_of_the_pace_is_told_where_a_longer_schedule_would_have_too_many_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 minibatches of eight over four stages do not settle it exactly, and 64 are too many here."""
    tried: list[int] = []

    def plan(n: int) -> Schedule:
        tried.append(n)
        return get("pipedream").schedule(4, n, 8)

    costs = uniform(4, 1.0, 2.0, update=0.01)
    exact = steady_seconds(plan, costs, Topology(latency=1.0))
    assert max(tried) > 16
    tried.clear()
    for module in ("pipelag.schedules.library", "pipelag.timing.breakdown"):
        monkeypatch.setattr(f"{module}.MOST_PASSES", 1000)
    assert steady_seconds(plan, costs, Topology(latency=1.0)) == pytest.approx(exact, rel=NEAR)
    assert max(tried) == 16
