"""ZB-V's costs on paper against its schedule and the timed executor, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipelag.methods import get
from pipelag.partitioner.formulas import stages_of
from pipelag.partitioner.in_v import Tail, kept, tail
from pipelag.partitioner.large import Fleet
from pipelag.partitioner.layouts import Layout, Machine, Numbers, Work
from pipelag.schedules.zero_bubble import zb_v
from pipelag.timing.costs import uniform
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.memory import states_by_part
from pipelag.timing.sheets import Device

METHOD = get("zb_v")
MACHINE = Machine(Device(1e12, 1e12, 1e9), server=8, inside=1e9, between=1e8, ports=2, latency=0.0)
NUMBERS = Numbers(gradient=4, state=12, moved=(0, 0, 0))
SHAPES = [(2, 1), (2, 2), (2, 3), (2, 9), (4, 1), (4, 3), (4, 5), (4, 7), (4, 8), (4, 24), (8, 3), (8, 11), (8, 16)]


def fleet(rows: list[LayerTime], gpus: int, batch: int = 8, machine: Machine = MACHINE) -> Fleet:
    return Fleet(machine, Work(lambda samples, tensor: Profile(tuple(rows)), batch, 4), METHOD, NUMBERS, gpus)


def layers(count: int, **sizes: int) -> list[LayerTime]:
    """Layers of 1, 1.25 and 0.75 ms, of which the last is for the gradients of the weights."""
    of_layer = {"output_bytes": 0, "kept_bytes": 0, "weight_bytes": 0} | sizes
    return [LayerTime(n, "", 1.0, 2.0, weight_ms=0.75, **of_layer) for n in range(1, count + 1)]


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75), (1.35, 1.47, 1.0), (1.0, 1.5, 1.0)], ids=str)
@pytest.mark.parametrize(("workers", "microbatches"), SHAPES)
def test_equal_stages_take_on_paper_what_the_timed_executor_says(
    workers: int, microbatches: int, times: tuple[float, float, float]
) -> None:
    forward, inputs, weights = times
    layout = Layout(tuple(range(1, 2 * workers)), 1, microbatches, 1, recompute=False, chunks=2)
    costs = uniform(2 * workers, forward, inputs + weights, weight_gradient=weights, update=0.25)
    one = fleet(layers(2 * workers), workers)
    assert one.seconds(layout, costs) == pytest.approx(one.timed(layout, costs), rel=1e-6)


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.5), (1.5, 1.0, 1.0), (2.0, 1.0, 0.5), (0.8, 1.0, 1.2)], ids=str)
@pytest.mark.parametrize(("workers", "microbatches"), SHAPES)
def test_other_passes_take_nearly_that(workers: int, microbatches: int, times: tuple[float, float, float]) -> None:
    forward, inputs, weights = times
    layout = Layout(tuple(range(1, 2 * workers)), 1, microbatches, 1, recompute=False, chunks=2)
    costs = uniform(2 * workers, forward, inputs + weights, weight_gradient=weights)
    one = fleet(layers(2 * workers), workers)
    assert one.seconds(layout, costs) == pytest.approx(one.timed(layout, costs), rel=0.07)


def test_messages_cross_all_boundaries_but_the_turn_twice() -> None:
    """Two workers, one microbatch: three messages there would be, but stages 2 and 3 are on one worker."""
    costs = uniform(4, 1.0, 2.0, output_bytes=1.0)
    one = fleet(layers(4), 2, machine=replace(MACHINE, inside=2.0))
    layout = Layout((1, 2, 3), 1, 1, 1, recompute=False, chunks=2)
    assert one.seconds(layout, costs) == one.timed(layout, costs) == 4 * (1 + 1) + 1 + 4 * 0.5


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_a_longer_minibatch_repeats_its_rounds(workers: int) -> None:
    """So that its states and its end are those of a shorter one, which is built in its place."""
    for n in (4 * workers, 4 * workers + 1, 6 * workers):
        under_way = [np.unique(states.sum(axis=1), axis=0) for states in states_by_part(zb_v(2 * workers, 2, n))]
        for worker in range(workers):
            assert kept(workers, worker, n) == [tuple(map(int, state)) for state in under_way[worker]]
            assert tail(workers, worker, n) == tail(workers, worker, 4 * workers)
    assert stages_of(METHOD, 0, workers, 2 * workers) == (1, 2 * workers)


def test_how_the_drawn_minibatch_ends() -> None:
    """Of two workers and three microbatches (see `zb_v`): 4W2 1B1 1W1 1B2 1W2, and 3W1 2B1 3B2 2B2 2W1 3W2 2W2."""
    assert tail(2, 0, 3) == Tail(down=1, up=0, backwards=2, weights=1)
    assert tail(2, 1, 3) == Tail(down=2, up=1, backwards=0, weights=0)


def test_a_worker_keeps_what_its_two_stages_have_under_way() -> None:
    """At most 2P passes. The last stage, on the first worker, ends each microbatch at once."""
    assert max(map(sum, kept(2, 0, 8))) == max(map(sum, kept(2, 1, 8))) == 4
    one = fleet(layers(4, output_bytes=500, kept_bytes=1000, weight_bytes=4000), 2)
    layout = Layout((1, 2, 3), 1, 8, 1, recompute=False, chunks=2)
    weights = 2 * (4000 + 1000 * 16)
    states = [(down * 1000 + up * 1500) for down, up in kept(2, 0, 8)]  # what comes in is the words', without a size
    turned = [(down + up) * 1500 for down, up in kept(2, 1, 8)]
    assert one.memory(layout) == weights + max(*states, *turned)


def test_sums_of_the_stage_up_overlap_with_the_way_down() -> None:
    """Two workers, a layer per stage, three microbatches, sums of a megabyte, 1 ms, over two replicas.

    Worker 0: stage 4 is ready when 1B1 (1.25 ms) and 1W1 (0.75 ms) are still to come, and then 1B2 and 1W2 (2 ms). Its
    sum is done before stage 1 is ready. So the sum of stage 1 is left. Worker 1: stage 3 is ready after its last W,
    0.75 ms after the last backward and before 2W1 and 2W2 (1.5 ms together); both sums are done 1.5 ms + 1 ms after it.
    """
    one = fleet(layers(4, weight_bytes=10**6), 4, batch=6)
    costs = one.costs(Layout((1, 2, 3), 2, 3, 1, recompute=False, chunks=2))
    assert [1e3 * cost.update for cost in costs] == pytest.approx([1.0, 1.0, 0.0, 0.0])


def test_longer_sums_of_the_stage_up_hold_up_those_of_the_stage_down() -> None:
    """As above, with sums of 5 ms. Worker 0: stage 4's ends after 5 ms, stage 1 is ready after 4 and summed after 10.
    Worker 1: stage 3's sum ends 5.75 ms after the last backward, stage 2 is ready after 2.25 and summed after 10.75.
    """
    one = fleet(layers(4, weight_bytes=5 * 10**6), 4, batch=6)
    costs = one.costs(Layout((1, 2, 3), 2, 3, 1, recompute=False, chunks=2))
    assert [1e3 * cost.update for cost in costs] == pytest.approx([10 - 4.0, 10.75 - 2.25, 0.0, 0.0])


def test_weights_for_the_way_up_come_while_a_microbatch_goes_on() -> None:
    """Two workers, forwards of 1 ms, half a sum of 2.5 ms for gathering a layer's weights, as for scattering gradients.

    Worker 0 waits 2.5 ms for stage 1's; stage 4's come after 5 ms, and the forwards of stages 1 to 3 end at 5.5. Worker
    1 waits 2.5 ms, and for stage 3's weights until 5 ms, of which a forward takes 1. Gradients of worker 0: stage 4's
    are scattered after 2.5 ms, stage 1's ready after 4, and scattered after 6.5. Of worker 1: stage 3's are ready after
    0.75 ms and scattered after 3.25; stage 2's are ready after 2.25 and scattered after 5.75.
    """
    one = fleet(layers(4, weight_bytes=5 * 10**6), 4, batch=6)
    costs = one.costs(Layout((1, 2, 3), 2, 3, 1, recompute=False, chunks=2, sharded=True))
    scattered = (6.5 - 4.0, 5.75 - 2.25)
    assert [1e3 * cost.update for cost in costs[:2]] == pytest.approx([2.5 + scattered[0], 4.0 + scattered[1]])


def test_a_slow_link_carries_a_microbatch_twice_in_each_direction() -> None:
    """Down and up, and so the gradients: with messages of 9 s each, the eight microbatches follow 18 s apart."""
    costs = uniform(4, 1.0, 2.0, output_bytes=9.0)
    one = fleet(layers(4), 2, machine=replace(MACHINE, inside=1.0))
    layout = Layout((1, 2, 3), 1, 8, 1, recompute=False, chunks=2)
    assert one.seconds(layout, costs) == pytest.approx(one.timed(layout, costs), rel=0.15)


def test_the_last_stage_is_beside_the_first() -> None:
    """Four workers on two servers: a microbatch goes to the other server once, and comes back."""
    one = fleet(layers(8, output_bytes=10), 4, machine=replace(MACHINE, server=2))
    layout = Layout((1, 2, 3, 4, 5, 6, 7), 1, 8, 1, recompute=False, chunks=2)
    assert one.leaving(layout, one.costs(layout)) == 8 * 2 * 10


def test_layouts_have_two_stages_per_worker_and_keep_activations() -> None:
    laid = list(fleet(layers(8), 4).layouts())
    assert {(one.workers, one.stages) for one in laid} == {(2, 4), (4, 8)}
    assert {one.recompute for one in laid} == {False}
    assert {one.microbatches for one in laid if one.workers == 4} == {1, 2, 4, 8}  # no groups
