"""Timings small enough for every second and byte of them to be counted by hand: messages, sums, recomputation, cuts."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.schedules import Schedule, schedule
from pipelag.schedules.actions import Action
from pipelag.schedules.replicated import one_f_one_b_rounds
from pipelag.schedules.virtual import Interleaved
from pipelag.timing.costs import StageCost, Topology, uniform
from pipelag.timing.layers import LayerTime, Profile, balanced_cuts
from pipelag.timing.lockstep import time_lockstep
from pipelag.timing.loss import with_loss
from pipelag.timing.timed import Timing, time_schedule
from pipelag.timing.trace import transfer_rows


def starts(timing: Timing) -> dict[str, float]:
    """Seconds, of all but updates."""
    return {str(span.action): span.start for span in timing.spans if span.action.kind != "U"}


@pytest.mark.parametrize("shared", [False, True])
def test_a_message_takes_its_latency_and_then_its_bytes(shared: bool) -> None:
    link = Topology(bandwidth=4.0, latency=0.5, shared=shared)
    assert link.seconds(6.0) == 0.5 + 6 / 4
    timing = time_schedule(schedule("1f1b", stages=2, minibatches=1), uniform(2, 1.0, 2.0, output_bytes=6.0), link)
    assert starts(timing) == {"1F0": 0, "2F0": 1 + 2, "2B0": 4, "1B0": 6 + 2}


def test_both_directions_of_a_link_carry_at_once_and_of_a_medium_in_turn() -> None:
    """Six minibatches' outputs and gradients, 3 seconds each."""
    plan, costs = schedule("cycle", stages=2, minibatches=6), uniform(2, 1.0, 1.0, output_bytes=3.0)
    link, medium = (time_schedule(plan, costs, Topology(bandwidth=1.0, shared=shared)) for shared in (False, True))
    for timing in (link, medium):
        assert sum(sent.end - sent.start for sent in timing.transfers) == 2 * 6 * 3
    assert link.makespan < 2 * 6 * 3 <= medium.makespan


def test_replicas_sum_in_a_ring_and_none_begins_before_all_have_come() -> None:
    """Three replicas, of which each sends 2 x 2/3 of 9 bytes in four messages (PipeDream section 3.1)."""
    cost = StageCost(1.0, 2.0, update=0.5, weight_bytes=9.0)
    timing = time_schedule(one_f_one_b_rounds(1, 3, (3,)), [cost], Topology(bandwidth=3.0, latency=0.25))
    assert timing.makespan == pytest.approx(1 + 2 + (4 * 0.25 + 2 * 2 / 3 * 9 / 3) + 0.5)
    assert timing.utilisation == pytest.approx(1) and timing.busy == pytest.approx((timing.makespan,) * 3)
    nothing = time_schedule(one_f_one_b_rounds(1, 3, (3,)), [StageCost(1.0, 2.0)], Topology(latency=0.25))
    assert nothing.makespan == 1 + 2  # without weights there is nothing to sum


def test_each_stage_sums_among_its_own_replicas() -> None:
    """Stage 1 has two of the three workers, of which each sends 2 x 1/2 of 9 bytes; stage 2 has nothing to sum."""
    plan, costs = one_f_one_b_rounds(2, 2, (2, 1)), [StageCost(1.0, 2.0, weight_bytes=9.0)] * 2
    sums = [span for span in time_schedule(plan, costs, Topology(bandwidth=3.0)).spans if span.action.kind == "S"]
    assert [(span.worker, span.end - span.start) for span in sums] == [(0, 3.0), (1, 3.0)]


def test_who_is_first_on_a_medium_is_the_worker_that_was_first_in_order() -> None:
    """Two replicas of either stage, whose forwards end together; a message takes 3."""
    plan = schedule("1f1b_rr", stages=2, minibatches=2, replicas=(2, 2))
    timing = time_schedule(plan, uniform(2, 1.0, 2.0, output_bytes=3.0), Topology(bandwidth=1.0, shared=True))
    assert starts(timing) == {"1F0": 0, "1F1": 0, "2F0": 4, "2B0": 5, "2F1": 7, "2B1": 8, "1B0": 10, "1B1": 13}


@pytest.mark.parametrize("wide", [1, 64])
def test_messages_of_a_link_leave_one_after_the_other(wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three outputs are ready at 1, 2 and 3, three gradients at 12, 13 and 14; each is on its way for 3."""
    monkeypatch.setattr("pipelag.timing.sweep.WIDE", wide)  # one worker after the other, or all at once
    plan = schedule("gpipe", stages=2, minibatches=1, microbatches=3)
    timing = time_schedule(plan, uniform(2, 1.0, 1.0, output_bytes=3.0), Topology(bandwidth=1.0))
    assert [timed for action, timed in starts(timing).items() if action[:2] == "2F"] == [4, 7, 10]
    assert [timed for action, timed in starts(timing).items() if action[:2] == "1B"] == [15, 18, 21]
    assert [(sent.start, sent.end) for sent in timing.transfers] == [(t, t + 3) for t in (1, 4, 7, 12, 15, 18)]
    assert time_schedule(plan, uniform(2, 1.0, 1.0, output_bytes=3.0)).transfers == ()  # those take no time


def test_a_message_is_told_with_both_its_workers() -> None:
    """The output of stage 1 goes from worker 0 to 1, the gradient back."""
    timing = time_schedule(schedule("1f1b", stages=2, minibatches=1), uniform(2, output_bytes=3.0), Topology(1.0))
    told = [(row["worker"], row["to"], row["of"], row["start"], row["end"]) for row in transfer_rows(timing)]
    assert told == [(0, 1, "F", 1.0, 4.0), (1, 0, "B", 7.0, 10.0)]


def test_a_last_stage_whose_backward_has_a_worker_of_its_own_sends_it_the_output() -> None:
    plan = Schedule("apart", 1, 1, ((Action("F", 1, 0),), (Action("B", 1, 0), Action("U", 1, 0))))
    for link, begins in ((Topology(), 1.0), (Topology(bandwidth=2.0), 4.0)):
        assert starts(time_schedule(plan, uniform(1, 1.0, 2.0, output_bytes=6.0), link)) == {"1F0": 0, "1B0": begins}


def test_utilisation_is_a_mean_over_workers() -> None:
    """Of 10 seconds one worker is busy for 3, the other for 7."""
    timing = time_schedule(schedule("sequential", stages=2, minibatches=1), [StageCost(1.0, 2.0), StageCost(3.0, 4.0)])
    assert (timing.makespan, timing.busy, timing.utilisation) == (10, (3, 7), 0.5)


def test_the_steady_period_leaves_the_first_and_the_last_quarter_out() -> None:
    """Three forwards at first, then one by one: updates end at 5, 7, 9, 12, 15, 18, 21 and 24."""
    passes = [("F", 0), ("F", 1), ("F", 2), ("B", 0), ("B", 1), ("B", 2)]
    passes += [(kind, number) for number in range(3, 8) for kind in "FB"]
    row: list[Action] = []
    for kind, number in passes:
        row += [Action(kind, 1, number)] + [Action("U", 1, number)] * (kind == "B")  # type: ignore[arg-type]
    timing = time_schedule(Schedule("late", 1, 8, (tuple(row),)), uniform(1, 1.0, 2.0))
    assert timing.makespan == 24 and timing.steady_period == (18 - 9) / 3


def test_the_steady_period_is_of_a_minibatch_however_it_is_split() -> None:
    """GPipe's four microbatches fill and drain two stages: (4 + 2 - 1) x 3 seconds for an update."""
    timing = time_schedule(schedule("gpipe", stages=2, minibatches=12, microbatches=4), uniform(2, 1.0, 2.0))
    assert timing.steady_period == 15 and timing.throughput == pytest.approx(1 / 15)


def test_of_few_minibatches_the_period_is_their_mean() -> None:
    timing = time_schedule(schedule("sequential", stages=2, minibatches=2), uniform(2, 1.0, 2.0))
    assert (timing.makespan, timing.steady_period) == (12, 6)


def test_a_round_of_replicas_is_as_many_minibatches() -> None:
    costs = [StageCost(1.0, 2.0), StageCost(0.25, 0.5)]
    short, long = (time_schedule(one_f_one_b_rounds(2, count, (2, 1)), costs) for count in (48, 96))
    assert long.steady_period == pytest.approx((long.makespan - short.makespan) / 48, rel=0.02)


def test_a_worker_holds_the_weights_of_all_its_stages() -> None:
    costs = [StageCost(1.0, 2.0, weight_bytes=size) for size in (1.0, 10.0, 100.0, 1000.0)]
    assert time_schedule(Interleaved(2)(4, 2, 2), costs).peak_memory == (101, 1010)


def test_what_one_worker_keeps_another_workers_backward_releases() -> None:
    plan = schedule("cycle", stages=3, minibatches=5, colocated=False)
    timing = time_schedule(plan, uniform(3, kept_bytes=1.0))
    for held in timing.memory:
        assert held[0][1] == held[-1][1] == 0 and min(size for _, size in held) == 0
    assert min(timing.peak_memory[:3]) > 0 and timing.peak_memory[3:] == (
        0,
        0,
    )  # who runs backwards alone keeps nothing


def test_a_backward_releases_what_was_kept_for_it_when_it_ends() -> None:
    """Stage 1's forwards begin in the seconds 0 to 4; its first backward, on a worker of its own, lasts from 4 to 6."""
    plan = schedule("cycle", stages=2, minibatches=5, colocated=False)
    assert time_schedule(plan, uniform(2, kept_bytes=1.0)).peak_memory == (5, 1, 0)


def test_activations_are_held_from_a_forwards_start_to_its_backwards_end() -> None:
    timing = time_schedule(schedule("sequential", stages=1, minibatches=1), uniform(1, 1.0, 2.0, kept_bytes=5.0))
    assert timing.memory == (((0.0, 0.0), (0.0, 5.0), (3.0, 0.0)),)


def test_what_is_released_elsewhere_makes_room_for_what_begins_then() -> None:
    """Forwards begin in the seconds 0 to 3 on one worker; on the other the first backward ends at 3."""
    rows = tuple(tuple(Action(kind, 1, number) for number in range(4)) for kind in "FB")  # type: ignore[arg-type]
    assert time_schedule(Schedule("apart", 1, 4, rows), uniform(1, 1.0, 2.0, kept_bytes=1.0)).peak_memory == (3, 0)


def test_a_unit_of_the_lockstep_clock_may_hold_a_pass_and_the_one_that_waits_for_its_message() -> None:
    """Both forwards in the first unit, both backwards in the second; a message takes 3."""
    one, two = (tuple(Action(kind, stage, 0) for kind in "FBU") for stage in (1, 2))  # type: ignore[arg-type]
    plan = Schedule("together", 2, 1, (one, two), ((0, 1, 1), (0, 1, 1)))
    timing = time_lockstep(plan, uniform(2, 1.0, 2.0, output_bytes=3.0), Topology(bandwidth=1.0))
    assert starts(timing) == {"1F0": 0, "2F0": 4, "2B0": 5, "1B0": 10}


def test_recomputed_outputs_travel_like_others() -> None:
    """A segment of two stages over a link that takes 2: its head runs again at once, its message behind the forward's.

    worker 0   1F 0-1   1R 1-2                       1B 10-12
    link          1-3      3-5            8-10 (back)
    worker 1            2F 3-4   2R 5-6   2B 6-8
    """
    plan = schedule("pipemare", stages=2, minibatches=1, segment=2)
    timing = time_schedule(plan, uniform(2, 1.0, 2.0, output_bytes=2.0), Topology(bandwidth=1.0))
    assert starts(timing) == {"1F0": 0, "1R0": 1, "2F0": 3, "2R0": 5, "2B0": 6, "1B0": 10}
    half = time_schedule(plan, uniform(2, 1.0, 2.0, output_bytes=2.0, recompute=0.5), Topology(bandwidth=1.0))
    assert starts(half)["2B0"] == 5.5


@pytest.mark.parametrize(("stages", "size"), [(4, 2), (5, 2), (6, 3)])
def test_heads_of_segments_keep_inputs_and_all_what_waits_for_its_gradient(stages: int, size: int) -> None:
    """PipeMare A.3, counted along each worker's row: an input from its forward, all from the recomputation on."""
    plan = schedule("pipemare", stages=stages, minibatches=4 * stages, segment=size)
    peaks = time_schedule(plan, uniform(stages, kept_bytes=1.0, entering_bytes=0.25)).peak_memory
    for worker, (row, peak) in enumerate(zip(plan.workers, peaks, strict=True)):
        entering = 0.0 if worker % size else 0.25
        held = most = 0.0
        for action in row:
            held += {"F": entering, "R": 1 - entering, "B": -1.0}.get(action.kind, 0.0)
            most = max(most, held)
        assert peak == most


TIMES = Profile(
    (
        LayerTime(1, "a", 1.0, 2.0, output_bytes=800, kept_bytes=300, weight_bytes=40),
        LayerTime(2, "b", 3.0, 5.0, output_bytes=600, kept_bytes=200, weight_bytes=60),
        LayerTime(3, "c", 2.0, 4.0, output_bytes=100, kept_bytes=50, weight_bytes=20),
    )
)


def test_a_cut_is_of_a_microbatch_in_seconds_and_its_update_whole() -> None:
    one, two = TIMES.cut((1,), microbatches=2, update_ms=(4.0, 6.0))
    assert vars(one) == pytest.approx(vars(StageCost(0.5e-3, 1e-3, 4e-3, 400, 150, 40)))
    assert vars(two) == pytest.approx(vars(StageCost(2.5e-3, 4.5e-3, 6e-3, 50, 400 + 125, 80, entering_bytes=400)))
    _, again = TIMES.cut((1,), recompute=True)  # keeps its input alone, and runs its 5 ms again
    assert vars(again) == pytest.approx(vars(StageCost(5e-3, 14e-3, 0.0, 100, 800, 80, entering_bytes=800)))


def test_a_larger_minibatch_and_a_faster_device() -> None:
    larger, faster = TIMES.scaled(2).layers[1], TIMES.faster(2).layers[1]
    assert larger == LayerTime(2, "b", 6.0, 10.0, 1200, 400, 60)
    assert faster == LayerTime(2, "b", 1.5, 2.5, 600, 200, 60)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_boundary_costs_both_its_stages(stages: int) -> None:
    times = (0.5,) * 24
    profile = Profile(tuple(LayerTime(i, "", t, 0.0) for i, t in enumerate(times, start=1)))

    def slowest(cuts: tuple[int, ...]) -> float:
        sums = [sum(times[a:b]) for a, b in pairwise((0, *cuts, len(times)))]
        return max(t + 2.0 * ((i > 0) + (i < len(sums) - 1)) for i, t in enumerate(sums))

    best = min(slowest(cuts) for cuts in combinations(range(1, len(times)), stages - 1))
    assert slowest(balanced_cuts(profile, stages, per_boundary_ms=2.0)) == pytest.approx(best)


def test_the_losses_of_several_outputs_are_added() -> None:
    class Heads(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x[:, :3], x[:, 3:]

    x = torch.randn(4, 5)
    one, two = (nn.functional.cross_entropy(part, torch.zeros(4, dtype=torch.long)) for part in (x[:, :3], x[:, 3:]))
    torch.testing.assert_close(with_loss([Heads()])(x), one + two)


def test_replicas_have_no_lockstep_clock() -> None:
    plan = schedule("1f1b_rr", stages=2, minibatches=4, replicas=(2, 1))
    with pytest.raises(
        PipelagError, match="needs one worker per stage, but '1f1b_rr' has replicas; use the clock 'free'"
    ):
        time_lockstep(plan, uniform(2))
