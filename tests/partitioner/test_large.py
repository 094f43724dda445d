"""Costs on paper against the schedules they are of, and the layouts that are chosen."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.partitioner.large import Fleet, Layout, Machine, Numbers, Work, copies, under_way, updates_late
from pipelag.theory.at_scale import METHODS, why_none
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.memory import microbatches_under_way
from pipelag.timing.sheets import Device

PIPELINES = [name for name in METHODS.values() if name]
SHAPES = [(2, 1), (2, 4), (4, 1), (4, 3), (4, 4), (5, 2), (8, 3), (8, 16)]
MACHINE = Machine(Device(1e12, 1e12, 1e9), server=4, inside=1e9, between=1e8, ports=2, latency=1e-6)
NUMBERS = Numbers(held=16, remembered=0, moved=28)


@lru_cache
def even(samples: int) -> Profile:
    """Eight equal layers."""
    return Profile(tuple(LayerTime(n, "", 1.0 * samples, 2.0 * samples, 8, 1000 * samples, 4000) for n in range(1, 9)))


WORK = Work(even, batch=32, element=4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PIPELINES)
def test_the_formulas_are_the_schedules(name: str, shape: tuple[int, int]) -> None:
    (stages, microbatches), method = shape, get(name)
    behind = range(stages - 1, -1, -1)
    held = [copies(method, d, microbatches) for d in behind]
    try:
        derived = method.weight_copies(stages, microbatches)
    except PipelagError:
        assert None in held  # two versions do not suffice
        return
    assert list(derived) == held
    live = replace(method, held=None).delays(stages, microbatches).forward
    assert list(live) == [updates_late(method, d, microbatches) for d in behind]
    schedule = method.schedule(stages, 4 * stages, microbatches)
    assert microbatches_under_way(schedule) == [under_way(method, d, microbatches) for d in behind]


def fleet(name: str | None, gpus: int = 16, machine: Machine = MACHINE, work: Work = WORK) -> Fleet:
    return Fleet(machine, work, get(name) if name else None, NUMBERS, gpus)


@pytest.mark.parametrize("microbatches", [1, 2, 8, 32])
@pytest.mark.parametrize("name", PIPELINES)
def test_equal_stages_take_on_paper_what_the_timed_executor_says(name: str, microbatches: int) -> None:
    layout = Layout((2, 4, 6), 1, microbatches, 32 // microbatches, recompute=False)
    one = fleet(name, 4)
    costs = one.costs(layout)
    assert one.timed(layout, costs) == pytest.approx(one.seconds(layout, costs), rel=0.02)


def test_what_leaves_a_server_is_counted() -> None:
    layout = Layout((1, 2, 3, 4, 5, 6, 7), 2, 4, 4, recompute=False)  # 8 stages over two servers, two replicas
    one = fleet("1f1b_flush", 16)
    # either server: 4 microbatches of 8 bytes to the other, and a ring's share, half of 2 x 4000 bytes, of four stages
    assert one.leaving(layout, one.costs(layout)) == 4 * 8 + 4 * 4000
    assert MACHINE.rings(1, 16) == 2e8 and MACHINE.rings(8, 16) == 5e7 and MACHINE.rings(4, 4) == 1e9


def test_replicas_share_the_minibatch_and_fill_the_gpus() -> None:
    layouts = list(fleet("pipedream").layouts())
    assert len({layout.stages for layout in layouts}) > 2
    for layout in layouts:
        assert layout.stages * layout.replicas == 16
        assert layout.replicas * layout.microbatches * layout.samples == WORK.batch
    assert {layout.stages for layout in fleet(None).layouts()} == {1}


def test_the_quickest_that_fits_and_is_least_late_is_taken() -> None:
    small = replace(MACHINE, sheet=Device(1e12, 1e12, 40_000))  # two layers with versions and moments hold 48,000
    choice = fleet("pipeoptim", machine=small, work=replace(WORK, batch=8)).best()
    assert choice is not None and choice.paper.memory <= 40_000
    assert (choice.layout.stages, choice.layout.replicas, choice.layout.microbatches) == (
        8,
        2,
        4,
    )  # not 2 twice as large
    free = fleet("pipeoptim").best()
    paper = [fleet("pipeoptim").on_paper(layout) for layout in fleet("pipeoptim").layouts()]
    assert free is not None and free.paper.seconds <= 1.05 * min(cost.seconds for cost in paper if cost)
    none = fleet("pipeoptim", machine=replace(MACHINE, sheet=Device(1e12, 1e12, 1.0)))
    assert none.best() is None and why_none(none).startswith("does not fit")


def test_what_cannot_be_laid_out_says_why() -> None:
    few = fleet(None, 64)
    assert few.best() is None and "too few samples" in why_none(few)
    shallow = fleet("pipedream_2bw", 256, work=replace(WORK, batch=32))
    assert shallow.best() is None and "two versions" in why_none(shallow)


def test_a_ring_of_four_sends_three_quarters_twice() -> None:
    layout = Layout((1, 2, 3, 4, 5, 6, 7), 4, 2, 4, recompute=False)
    one = fleet("1f1b_flush", 32)
    assert one.leaving(layout, one.costs(layout)) == 2 * 8 + 2 * 3 / 4 * 4 * 4000


@pytest.mark.parametrize("recompute", [False, True])
def test_an_update_waits_for_what_is_left_of_the_sums(recompute: bool) -> None:
    """Eight replicas of two stages share their servers' ports, 1e8 bytes a second each: the first layer's 4,000 bytes,
    the last to be ready, take 2 x 7/8 of that, the latency twice the logarithm; the step moves 28 bytes a parameter.
    """
    one = fleet("1f1b_flush", 16)
    layout = Layout((4,), 8, 1, 4, recompute)
    left = 2 * 7 / 8 * 4000 / 1e8 + 2 * 3 * 1e-6
    for cost in one.costs(layout):
        assert cost.update == pytest.approx(28 * 4 * 1000 / 1e12 + left, rel=1e-9)
        assert cost.backward == pytest.approx(4 * 4 * (2e-3 + 1e-3 * recompute))


@pytest.mark.parametrize(("recompute", "activations"), [(False, 4 * 2000 + 4 * 6000), (True, 4 * 2000 + 6000)])
def test_memory_is_weights_state_inputs_and_what_passes_keep(recompute: bool, activations: int) -> None:
    """GPipe's four microbatches of two samples on four stages of a layer: with recomputation one pass keeps all."""
    layers = lambda n: Profile(tuple(LayerTime(i, "", n, n, 1000 * n, 3000 * n, 4000) for i in range(1, 5)))  # noqa: E731
    numbers = Numbers(held=16, remembered=4, moved=28)
    one = Fleet(MACHINE, Work(layers, batch=8, element=4), get("gpipe"), numbers, 4)
    assert one.memory(Layout((1, 2, 3), 1, 4, 2, recompute)) == 4000 + 1000 * (16 + 4) + activations


def test_a_pipeline_within_a_server_has_its_links() -> None:
    assert (MACHINE.links(4).bandwidth, MACHINE.links(5).bandwidth) == (1e9, 1e8)
    assert MACHINE.links(5).latency == 1e-6


def test_what_the_first_stages_forwards_miss() -> None:
    layout = Layout((2, 4, 6), 4, 1, 8, recompute=False)
    assert fleet("pipedream").late(layout) == 3 and fleet("spectrain").late(layout) == 6
    assert fleet(None).late(layout) == fleet("gpipe").late(layout) == 0
