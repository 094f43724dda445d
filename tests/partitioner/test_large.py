"""Costs on paper against the schedules they are of, and the layouts that are chosen."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from pipelag.methods import get
from pipelag.partitioner.formulas import kept, lead_of
from pipelag.partitioner.large import Fleet
from pipelag.partitioner.layouts import Layout, Machine, Numbers, Work, waits
from pipelag.theory.at_scale import METHODS, why_none
from pipelag.timing.costs import uniform
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import Device

PIPELINES = [name for name in METHODS.values() if name]
SINGLE = [name for name in PIPELINES if name not in ("1f1b_interleaved", "zb_v")]  # one stage per worker
SHAPES = [(2, 1), (2, 4), (4, 1), (4, 3), (4, 4), (5, 2), (8, 3), (8, 16)]
MACHINE = Machine(Device(1e12, 1e12, 1e9), server=4, inside=1e9, between=1e8, ports=2, latency=1e-6)
NUMBERS = Numbers(gradient=4, state=12, moved=(28, 28, 28))


@lru_cache
def even(samples: int, tensor: int = 1) -> Profile:
    """Eight equal layers."""
    one = LayerTime(1, "", 1.0 * samples, 2.0 * samples, 8, 1000 * samples, 4000, 0.75 * samples)
    return Profile(tuple(replace(one, layer=n) for n in range(1, 9)))


WORK = Work(even, batch=32, element=4)
FREE = replace(MACHINE, server=64, inside=float("inf"), latency=0.0)  # whose messages take no time


def fleet(name: str | None, gpus: int = 16, machine: Machine = MACHINE, work: Work = WORK) -> Fleet:
    return Fleet(machine, work, get(name) if name else None, NUMBERS, gpus)


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8, 32])
@pytest.mark.parametrize("name", SINGLE)
def test_equal_stages_take_on_paper_what_the_timed_executor_says(name: str, microbatches: int) -> None:
    layout = Layout((2, 4, 6), 1, microbatches, 32 // microbatches, recompute=False)
    one = fleet(name, 4)
    costs = one.costs(layout)
    assert one.timed(layout, costs) == pytest.approx(one.seconds(layout, costs), rel=0.02)


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75), (1.5, 1.0, 1.0), (2.0, 1.0, 0.5)], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (3, 5), (8, 8), (8, 32), (6, 10)], ids=str)
@pytest.mark.parametrize("name", ["zb_h1", "zb_h2"])
def test_zero_bubble_schedules_with_few_microbatches_have_a_longer_bubble(
    name: str, shape: tuple[int, int], times: tuple[float, float, float]
) -> None:
    """N (F+B+W) + (P-1) (F+B) - min(N-1, lead (P-1)) W; Qi et al.'s table 2 has it for lead (P-1) + 1 microbatches."""
    (stages, n), (f, b, w), method = shape, times, get(name)
    layout = Layout(tuple(range(1, stages)), 1, n, 1, recompute=False)
    costs = uniform(stages, f, b + w, weight_gradient=w)
    formula = n * (f + b + w) + (stages - 1) * (f + b) - min(n - 1, lead_of(method) * (stages - 1)) * w
    one = fleet(name, stages, FREE)
    assert one.seconds(layout, costs) == pytest.approx(formula)
    assert one.timed(layout, costs) == pytest.approx(formula)


@pytest.mark.parametrize(("workers", "microbatches"), [(2, 2), (2, 8), (4, 4), (4, 16), (8, 8), (8, 24)])
@pytest.mark.parametrize("chunks", [2, 3, 5])
@pytest.mark.parametrize("message", [0.0, 0.05])
def test_interleaving_has_the_bubble_of_one_of_a_workers_stages(
    workers: int, microbatches: int, chunks: int, message: float
) -> None:
    """All chunks of all microbatches, the passes of a chunk per further worker, and each boundary's message twice."""
    stages = chunks * workers
    layout = Layout(tuple(range(1, stages)), 1, microbatches, 1, recompute=False, chunks=chunks)
    costs = uniform(stages, 1.0, 2.0, output_bytes=1.0)
    one = fleet("1f1b_interleaved", workers, replace(FREE, inside=1 / message if message else float("inf")))
    formula = microbatches * chunks * 3 + (workers - 1) * 3 + 2 * (stages - 1) * message
    assert one.seconds(layout, costs) == pytest.approx(formula)
    assert one.timed(layout, costs) == pytest.approx(formula)


def test_an_interleaved_worker_updates_all_its_stages() -> None:
    """One after the other, all workers alike; the last is in nobody's way."""
    layout, one = Layout((1, 2, 3), 1, 4, 1, recompute=False, chunks=2), fleet("1f1b_interleaved", 2, FREE)
    costs = uniform(4, 1.0, 2.0, update=0.5)
    assert one.seconds(layout, costs) == pytest.approx(4 * 2 * 3 + 3 + 2 * 0.5)
    assert one.timed(layout, costs) == pytest.approx(one.seconds(layout, costs))


def test_a_long_gradient_of_weights_takes_at_least_what_a_stage_computes() -> None:
    """Two microbatches with F and B of 1 s and, on the first stage, W of 3 s: the formula is for a shorter W, but never
    below this.
    """
    layout, one = Layout((1,), 1, 2, 1, recompute=False), fleet("zb_h1", 2, FREE)
    costs = [
        *uniform(1, 1.0, 4.0, weight_gradient=3.0, update=0.5),
        *uniform(1, 1.0, 1.0, weight_gradient=0.0),
    ]
    assert one.seconds(layout, costs) == 2 * 5 + 0.5 <= one.timed(layout, costs)


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


SUMMING = replace(MACHINE, inside=1e9, latency=0.0)  # two replicas sum a megabyte in a millisecond


def summed(name: str, size: int, layout: Layout) -> list[float]:
    """Milliseconds that updates take after the passes. Four layers of 1 and 2 ms, a quarter of one for W."""
    rows = [LayerTime(n, "", 1.0, 2.0, 0, 0, size, 0.25) for n in range(1, 5)]
    work = Work(lambda samples, tensor: Profile(tuple(rows)), batch=2 * layout.microbatches, element=4)
    one = Fleet(SUMMING, work, get(name), replace(NUMBERS, moved=(0, 0, 0)), 4)
    return [1e3 * cost.update for cost in one.costs(layout)]


@pytest.mark.parametrize(
    ("name", "microbatches", "left"), [("zb_h1", 4, 1.5), ("zb_h2", 4, 1.25), ("zb_h1", 1, 1.75), ("zb_h2", 2, 1.5)]
)
def test_sums_overlap_with_the_gradients_of_weights_that_are_left_after_the_last_backward(
    name: str, microbatches: int, left: float
) -> None:
    """Two layers on each of two stages, whose sums take 1 ms each.

    The first stage's layers are ready after 2 and 4 ms of its last backward: 1 ms is left. The second has the W's of
    the last two microbatches left (ZB-H2: three, if there are so many), so that its layers are ready after half a
    millisecond and one: the second layer's sum ends 1.5 ms after that.
    """
    after = summed(name, 10**6, Layout((2,), 2, microbatches, 1, recompute=False))
    assert after == pytest.approx([1.0, left])


@pytest.mark.parametrize(("recompute", "milliseconds", "left"), [(False, 5, 6.0), (True, 8, 10.0)])
def test_a_later_chunks_gradients_are_summed_while_an_earlier_one_works(
    recompute: bool, milliseconds: int, left: float
) -> None:
    """Two workers, a layer per stage, sums of 5 ms. A worker's second stage is ready after its backward of 2 ms. Then
    its first stage has the last two microbatches, 4 ms, and is ready at 6 ms; its sum is done at 2 + 5 + 5 ms. With
    recomputation, a millisecond per backward, they are ready at 3 and 9 ms, and sums of 8 ms end at 3 + 8 + 8 ms.
    """
    after = summed("1f1b_interleaved", milliseconds * 10**6, Layout((1, 2, 3), 2, 2, 1, recompute, chunks=2))
    assert after == pytest.approx([left, left, 0.0, 0.0])


def test_a_later_stages_update_hides_behind_the_first_stages_passes_in_a_zero_bubble_schedule() -> None:
    """Of three microbatches over four stages. The last stage begins, and has its last B, three times 2.25 ms of F and B
    before the first; then it has three W's of 0.75 left, and the first stage one: 5.25 ms earlier in all.
    """
    layout, one = Layout((1, 2, 3), 1, 3, 1, recompute=False), fleet("zb_h1", 4, FREE)
    costs = uniform(4, 1.0, 2.0, weight_gradient=0.75)
    for stage, update, longer in ((1, 5.0, 5.0), (4, 5.0, 0.0), (4, 6.0, 0.75)):
        changed = [*costs]
        changed[stage - 1] = replace(costs[0], update=update)
        more = one.seconds(layout, changed) - one.seconds(layout, costs)
        assert more == pytest.approx(longer, abs=1e-9)
        assert one.timed(layout, changed) - one.timed(layout, costs) == pytest.approx(longer, abs=1e-9)


@pytest.mark.parametrize(("recompute", "activations"), [(False, 4 * 2000 + 4 * 6000), (True, 4 * 2000 + 6000)])
def test_memory_is_weights_state_inputs_and_what_passes_keep(recompute: bool, activations: int) -> None:
    """GPipe's four microbatches of two samples on four stages of a layer: with recomputation one pass keeps all."""
    layers = lambda n, _: Profile(tuple(LayerTime(i, "", n, n, 1000 * n, 3000 * n, 4000) for i in range(1, 5)))  # noqa: E731
    numbers = Numbers(gradient=4, state=16, moved=(28, 28, 28))
    one = Fleet(MACHINE, Work(layers, batch=8, element=4), get("gpipe"), numbers, 4)
    assert one.memory(Layout((1, 2, 3), 1, 4, 2, recompute)) == 4000 + 1000 * (16 + 4) + activations


@pytest.mark.parametrize(("name", "microbatches"), [("zb_h1", 4), ("zb_h2", 7)])
def test_a_zero_bubble_schedule_keeps_activations_until_the_gradients_of_weights(name: str, microbatches: int) -> None:
    """Of up to four and seven microbatches on each of four stages; two layers keep 2,000 bytes, of which 8 came in."""
    layout = Layout((2, 4, 6), 1, 16, 1, recompute=False)
    assert fleet(name, 4).memory(layout) == 8000 + 2000 * 16 + microbatches * (2000 + 8)


@pytest.mark.parametrize(("recompute", "inside"), [(False, 3 * 1000 + 2 * 4000), (True, 4000)])
def test_an_interleaved_worker_holds_all_its_stages(recompute: bool, inside: int) -> None:
    """Worker 0 of two has stages 1 and 3. It begins with the two microbatches of the first group through both and a
    third through stage 1: three and two; after the backwards of two and two forwards, there are four and one. Stage 3
    keeps 4,000 bytes besides the 500 that came in.
    """
    rows = [LayerTime(n, "", 1.0, 2.0, 500, 4000 if n == 3 else 1000, 4000) for n in range(1, 5)]
    one = Fleet(MACHINE, Work(lambda n, _: Profile(tuple(rows)), 8, 4), get("1f1b_interleaved"), NUMBERS, 2)
    layout = Layout((1, 2, 3), 1, 8, 1, recompute, chunks=2)
    states = kept(get("1f1b_interleaved"), 0, 4, 8)
    assert states == [(3, 2), (4, 1)]
    assert one.memory(layout) == 2 * (4000 + 1000 * 16) + 2 * 500 + inside


def test_a_pipeline_within_a_server_has_its_links() -> None:
    assert (MACHINE.links(4).bandwidth, MACHINE.links(5).bandwidth) == (1e9, 1e8)
    assert MACHINE.links(5).latency == 1e-6


def test_links_and_rings_are_those_of_the_gpus_of_a_pipeline_however_many_its_stages() -> None:
    """Two GPUs with four stages: messages stay inside a server, whose ports two rings share."""
    work = Work(lambda n, _: Profile(tuple(LayerTime(i, "", 0.0, 0.0, 10**6, 0, 10**6) for i in range(1, 5))), 16, 4)
    machine = replace(MACHINE, server=3, inside=1e9, between=1e8, ports=2, latency=0.0)
    one = Fleet(machine, work, get("1f1b_interleaved"), replace(NUMBERS, moved=(0, 0, 0)), 16)
    layout = Layout((1, 2, 3), 8, 2, 1, recompute=False, chunks=2)
    costs = one.costs(layout)
    ring = 2 * 7 / 8 * 1e6 / 1e8  # of a stage; a worker has two, and sums both after its passes, which take no time
    assert [cost.update for cost in costs] == pytest.approx([2 * ring, 2 * ring, 0.0, 0.0])
    for seconds in (one.seconds(layout, costs), one.timed(layout, costs)):
        assert seconds == pytest.approx(2 * ring + 6e-3, rel=0.03)  # three boundaries, there and back, 1 ms each


def test_what_the_first_stages_forwards_miss() -> None:
    layout = Layout((2, 4, 6), 4, 1, 8, recompute=False)
    assert fleet("pipedream").late(layout) == 3 and fleet("spectrain").late(layout) == 6
    assert fleet(None).late(layout) == fleet("gpipe").late(layout) == 0


# By hand: eight layers of 1 and 2 ms a sample on four stages, so 2 and 4 ms; links of 1e6 bytes a second --------------

SLOW = replace(MACHINE, sheet=Device(1e12, 1e6, 1e9), inside=1e6, latency=0.0)
CUTS = (2, 4, 6)


def sending(size: int, first: int = 4000) -> Work:
    """Outputs of so many bytes; the first layer has weights of its own size, the others 4,000 bytes."""
    rows = [LayerTime(n, "", 1.0, 2.0, size, 0, first if n == 1 else 4000) for n in range(1, 9)]
    return Work(lambda samples, tensor: Profile(tuple(rows)), batch=4, element=4)


@pytest.mark.parametrize(
    ("name", "message", "milliseconds"),
    [
        ("gpipe", 3, 4 * 6 + 2 * 3 * 3 + 3 * (3 + 4)),  # one there and back, three more behind a message and a pass
        ("1f1b_flush", 1, 4 * 6 + 2 * 3 * 1 + 3 * (24 + 6 * 1) / 4),  # four are under way in 24 ms of passes
        ("pipedream", 3, 4 * (24 + 6 * 3) / 4),
        ("spectrain", 5, 4 * (24 + 6 * 5) / 7),  # seven are under way at the first of four stages
        ("spectrain", 30, 4 * 30),  # the link is what is slowest
    ],
)
def test_messages_take_their_time_on_paper(name: str, message: int, milliseconds: float) -> None:
    """Of four microbatches, without what an update takes."""
    one = fleet(name, 4, SLOW, sending(1000 * message))
    costs = [replace(cost, update=0.0) for cost in one.costs(Layout(CUTS, 1, 4, 1, recompute=False))]
    assert one.seconds(Layout(CUTS, 1, 4, 1, recompute=False), costs) == pytest.approx(milliseconds / 1e3)
    if name != "1f1b_flush":  # whose microbatches come in at unequal distances
        assert one.timed(Layout(CUTS, 1, 4, 1, recompute=False), costs) == pytest.approx(milliseconds / 1e3, rel=0.03)


@pytest.mark.parametrize(("name", "passes"), [("gpipe", 7 * 6), ("1f1b_flush", 7 * 6), ("pipedream", 4 * 6)])
def test_the_longest_update_is_waited_for_on_paper(name: str, passes: int) -> None:
    """28 bytes a parameter at 1e6 a second: 28 ms for each 1,000 parameters, of which the first stage has 4,000."""
    one, layout = fleet(name, 4, SLOW, sending(0, first=12_000)), Layout(CUTS, 1, 4, 1, recompute=False)
    costs = one.costs(layout)
    assert [cost.update for cost in costs] == pytest.approx([4 * 28e-3, 2 * 28e-3, 2 * 28e-3, 2 * 28e-3])
    assert one.seconds(layout, costs) == pytest.approx((passes + 4 * 28) / 1e3)


def test_data_parallelism_computes_all_microbatches_and_sends_no_output() -> None:
    """Whatever a message would take, here a second."""
    one = fleet(None, 1, replace(SLOW, latency=1.0), sending(10**6))
    layout = Layout((), 1, 4, 1, recompute=False)
    seconds = 4 * 8 * 3e-3 + 8 * 28e-3
    assert one.timed(layout, one.costs(layout)) == pytest.approx(seconds)
    assert one.seconds(layout, one.costs(layout)) == pytest.approx(seconds)


def test_memory_counts_every_version() -> None:
    """PipeDream's first of four stages holds four of its 8,000 bytes, and 16 bytes of each of 2,000 parameters."""
    assert fleet("pipedream", 4, SLOW, sending(0)).memory(Layout(CUTS, 1, 1, 4, False)) == 4 * 8000 + 2000 * 16


def test_a_server_in_the_midst_sends_both_ways_and_a_gpu_where_there_is_one_server() -> None:
    layout = Layout((1, 2, 3, 4, 5, 6, 7), 2, 4, 4, recompute=False)
    one = fleet("1f1b_flush", 16, replace(MACHINE, server=2))
    assert one.leaving(layout, one.costs(layout)) == 4 * (8 + 8) + 2 * 4000
    alone = fleet("1f1b_flush", 4, SLOW, sending(100))
    assert alone.leaving(Layout(CUTS, 1, 4, 1, False), alone.costs(Layout(CUTS, 1, 4, 1, False))) == 4 * (100 + 100)


def test_every_equal_division_is_a_layout_with_and_without_recomputation() -> None:
    """Six GPUs and a minibatch of 18: a power of two is no more equal than a three."""
    six = fleet("pipedream", 6, work=replace(WORK, batch=18))
    shapes = [(one.stages, one.replicas, one.microbatches, one.samples) for one in six.layouts() if not one.recompute]
    shares = {2: (3, 6), 3: (2, 9), 6: (1, 18)}  # by stages: the replicas, and each one's samples
    assert sorted(set(shapes)) == sorted(
        (stages, replicas, share // samples, samples)
        for stages, (replicas, share) in shares.items()
        for samples in range(1, share + 1)
        if share % samples == 0
    )
    assert sum(one.recompute for one in six.layouts()) == len(shapes)
    assert {one.replicas for one in fleet("pipedream", 16, work=replace(WORK, batch=20)).layouts()} == {4, 2}


def test_gradients_of_weights_apart_allow_no_recomputation_and_interleaving_wants_groups() -> None:
    assert {one.recompute for one in fleet("zb_h1").layouts()} == {False}
    laid = list(fleet("1f1b_interleaved").layouts())
    assert {(one.workers, one.chunks) for one in laid} == {(2, 2), (2, 3), (2, 4), (4, 2)}  # of eight layers
    assert {one.recompute for one in laid} == {False, True}
    for one in laid:
        assert one.stages == one.chunks * one.workers and one.microbatches % one.workers == 0
        assert one.replicas * one.workers == 16 and one.replicas * one.microbatches * one.samples == 32


def test_a_first_and_a_last_worker_on_other_servers_send_to_each_other() -> None:
    """Four workers on two servers, two stages each: three times a microbatch goes from one server to the other."""
    layout = Layout((1, 2, 3, 4, 5, 6, 7), 1, 4, 1, recompute=False, chunks=2)
    one = fleet("1f1b_interleaved", 4, replace(MACHINE, server=2))
    assert one.leaving(layout, one.costs(layout)) == 4 * 3 * 8


def test_why_a_method_has_no_layout_names_what_it_needs() -> None:
    full = fleet("zb_h2", machine=replace(MACHINE, sheet=Device(1e12, 1e12, 1.0)))
    assert full.best() is None and why_none(full).startswith("does not fit without recomputation: ")
    shallow = fleet("1f1b_interleaved", 64)
    assert shallow.best() is None and "as interleaving needs" in why_none(shallow)


def test_what_is_least_late_is_not_taken_where_it_is_much_slower() -> None:
    """Two stages are one update late, and their replicas sum 1 MB of the first layer for a millisecond more than the
    six that four stages take, which are two late.
    """
    layers = lambda n, _: Profile(tuple(LayerTime(i, "", n, 2 * n, 0, 0, 10**6) for i in range(1, 5)))  # noqa: E731
    one = Fleet(MACHINE, Work(layers, batch=2, element=4), get("pipedream"), NUMBERS, 4)
    found = one.best()
    assert found is not None and found.seconds == pytest.approx(6e-3, rel=0.02)
    assert (found.layout.stages, one.late(found.layout)) == (4, 2)
    (slower,) = (each for each in one.layouts() if each.stages == 2 and not each.recompute)
    assert one.late(slower) == 1 and one.timed(slower, one.costs(slower)) == pytest.approx(7e-3, rel=0.02)


# Layers that GPUs share, and state that replicas share ----------------------------------------------------------------


def halved(samples: int, tensor: int) -> Profile:
    """`even`, a GPU's part of it."""
    rows = (
        replace(
            layer,
            forward_ms=layer.forward_ms / tensor,
            backward_ms=layer.backward_ms / tensor,
            output_bytes=layer.output_bytes // tensor,
            kept_bytes=layer.kept_bytes // tensor,
            weight_bytes=layer.weight_bytes // tensor,
        )
        for layer in even(samples).layers
    )
    return Profile(tuple(rows))


SHARING = Work(halved, batch=32, element=4, tensor=(1, 2), sharded=True)


def test_gpus_that_share_layers_and_replicas_that_share_state_fill_the_gpus_too() -> None:
    laid = list(fleet("pipedream", work=SHARING).layouts())
    assert {one.tensor for one in laid} == {1, 2}
    for one in laid:
        assert one.gpus == one.stages * one.tensor and one.gpus * one.replicas == 16
        assert not one.sharded or one.replicas > 1
    assert sum(one.sharded for one in laid) == sum(one.replicas > 1 for one in laid) / 2
    alone = {(one.gpus, one.replicas) for one in fleet(None, work=SHARING).layouts()}
    assert alone == {(1, 16), (2, 8)}
    odd = fleet("pipedream", machine=replace(MACHINE, server=3), work=SHARING)
    assert {one.tensor for one in odd.layouts()} == {1}  # two GPUs of three leave one over
    assert {one.tensor for one in fleet(None, 1, work=SHARING).layouts()} == {1}


def test_gpus_that_share_layers_send_their_parts_at_once() -> None:
    """Four GPUs make two stages within a server; eight are on two servers, whose two ports four stages' GPUs share."""
    assert MACHINE.links(2, tensor=2).bandwidth == 1e9
    assert MACHINE.links(4, tensor=2).bandwidth == 1e8
    assert MACHINE.links(2, tensor=4).bandwidth == 1e8 * 2 / 4
    layout = Layout((2, 4, 6), 2, 4, 4, recompute=False, tensor=2)  # eight GPUs, two replicas
    one = fleet("1f1b_flush", 16, work=SHARING)
    # a server: 4 microbatches of 8 bytes, and half of 2 x 4000 bytes of each of four layers, in whatever parts
    assert one.leaving(layout, one.costs(layout)) == 4 * 8 + 4 * 4000
    near = replace(layout, replicas=4, cuts=(4,))
    assert one.leaving(near, one.costs(near)) == 2 * 3 / 4 * 8 * 4000  # no message leaves a server


def test_a_ring_takes_as_long_with_half_the_weights_and_twice_the_rings() -> None:
    """Two stages of a GPU each, or one of two GPUs: either way, two rings share a server's ports."""
    work = replace(SHARING, batch=8)
    whole, parts = Layout((4,), 8, 1, 1, recompute=False), Layout((), 8, 1, 1, recompute=False, tensor=2)
    left = fleet(None, 16, work=work).costs(parts)[0].update - 28 * 8 * 500 / 1e12
    assert left == pytest.approx(2 * 7 / 8 * 2000 / 1e8 + 2 * 3 * 1e-6)  # of the first layer, the last to be ready
    most = max(cost.update for cost in fleet("1f1b_flush", 16, work=work).costs(whole)) - 28 * 4 * 1000 / 1e12
    assert most == pytest.approx(2 * 7 / 8 * 4000 / 1e8 + 2 * 3 * 1e-6)


@pytest.mark.parametrize(
    ("name", "gathers"),
    [
        ("1f1b_flush", (1, 1)),
        ("pipedream", (1, 1)),
        ("pipeoptim", (2, 1)),
        ("spectrain", (2, 2)),
        ("pipemare_t2", (2, 2)),
    ],
)
def test_shared_state_takes_less_memory_and_weights_are_gathered_for_the_next_passes(
    name: str, gathers: tuple[int, int]
) -> None:
    """Eight replicas have an eighth of 12 bytes a parameter, and move an eighth of 28 of each of the stage's 4,000.

    The first layer's gradients, the last to be ready, are scattered in half a ring. Then its weights, the first to be
    read, are gathered in another; the others' are while passes of 4 and 8 ms a layer run. PipeOptim reads predicted
    weights and live ones, which are the same on its last stage; SpecTrain reads two predictions, PipeMare live and
    corrected ones.
    """
    one, layout = fleet(name, 16), Layout((4,), 8, 1, 4, recompute=False)
    plain, shared = one.memory(layout), one.memory(replace(layout, sharded=True))
    assert plain is not None and shared is not None
    assert plain - shared == 4000 * 12 * 7 / 8
    half, latency = 7 / 8 * 4000 / 1e8, 3e-6
    for cost, number in zip(one.costs(replace(layout, sharded=True)), gathers, strict=True):
        update = 28 * 4 * 1000 / 1e12 / 8 + half + latency + half + number * latency
        assert cost.update == pytest.approx(update, rel=1e-9)
    sent = one.leaving(replace(layout, sharded=True), one.costs(layout)) - 2 * 7 / 8 * 8 * 4000
    assert sent == pytest.approx((sum(gathers) - 2) * 7 / 8 * 4 * 4000)


def test_passes_wait_for_weights_that_are_gathered_ahead_of_them() -> None:
    """Layers of 1 s whose weights come after 2 s each: 2, 4 and 6 s; and then one that needs none."""
    assert waits([(1.0, 2.0), (1.0, 2.0), (1.0, 2.0), (1.0, 0.0)]) == 6 + 1 + 1 - 4
    assert waits([(3.0, 2.0), (3.0, 2.0), (3.0, 2.0)]) == 2.0  # the others come while passes run
    assert waits([(1.0, 0.0), (9.0, 0.0), (1.0, 12.0)]) == 2.0


def test_weights_for_the_backwards_come_after_those_for_the_forwards() -> None:
    """PipeOptim, two layers on each of two stages, two replicas: gathering takes 3.5 ms for a stage's first layer, and
    0.5 for the other.

    On the first stage predicted weights are there after 3.5 and 4 ms, live ones, from the second layer on, after 4.5
    and 8: forwards end after 4.5 and 5.5 ms, backwards after 7.5 and 10, of which 6 are passes. The last stage reads
    the same weights in both and waits 3.5 ms. On both, gradients are scattered 3.5 ms after the last backward.
    """
    rows = [LayerTime(n, "", 1.0, 2.0, 0, 0, 7 * 10**6 if n % 2 else 10**6) for n in range(1, 5)]
    work = Work(lambda samples, tensor: Profile(tuple(rows)), batch=2, element=4)
    one = Fleet(SUMMING, work, get("pipeoptim"), replace(NUMBERS, moved=(0, 0, 0)), 4)
    costs = one.costs(Layout((2,), 2, 1, 1, recompute=False, sharded=True))
    assert [1e3 * cost.update for cost in costs] == pytest.approx([3.5 + 4.0, 3.5 + 3.5])


def test_a_stage_pays_for_its_own_steps() -> None:
    """A layer has 1,000 parameters, whose bytes move at 1e6 a second. The last of four stages has five layers."""
    one = Fleet(SLOW, sending(0), get("pipeoptim"), replace(NUMBERS, moved=(40, 44, 28)), 4)
    costs = one.costs(Layout((1, 2, 3), 1, 4, 1, recompute=False))
    assert [1e3 * cost.update for cost in costs] == pytest.approx([40, 44, 44, 5 * 28])


def test_a_forwards_wait_is_shorter_where_other_passes_come_before() -> None:
    """Interleaved, two workers: a later chunk's weights are gathered while two microbatches go through an earlier one.

    Layers of 1 and 2 ms; 3.5 ms for gathering a layer's weights, as for scattering its gradients. Chunk 1 waits 3.5 ms,
    until chunk 2's weights come, 7 ms, two forwards have run, and another 1.5 ms pass. Gradients: the later chunk's are
    ready after 2 ms, and scattered at 5.5 ms; the earlier chunk's at 6 ms (a microbatch more, and its own), and at 9.5.
    """
    rows = [LayerTime(n, "", 1.0, 2.0, 0, 0, 7 * 10**6) for n in range(1, 5)]
    work = Work(lambda samples, tensor: Profile(tuple(rows)), batch=4, element=4)
    one = Fleet(SUMMING, work, get("1f1b_interleaved"), replace(NUMBERS, moved=(0, 0, 0)), 4)
    layout = Layout((1, 2, 3), 2, 2, 1, recompute=False, chunks=2, sharded=True)
    assert [1e3 * cost.update for cost in one.costs(layout)] == pytest.approx([3.5 + 5.0, 3.5 + 5.0, 0.0, 0.0])


def test_state_is_shared_where_it_would_not_fit() -> None:
    held = 8 * 4000 + 8000 * 16 + 8 * 1000  # weights, gradient and state, and what a sample's pass keeps
    tight = replace(MACHINE, sheet=Device(1e12, 1e12, held - 1))
    squeezed = fleet(None, 4, machine=tight, work=replace(SHARING, tensor=(1,), batch=4)).best()
    assert squeezed is not None and squeezed.layout.sharded and squeezed.paper.memory == held - 8000 * 12 * 3 / 4
    whole = fleet(None, 4, work=replace(SHARING, tensor=(1,), batch=4, sharded=False)).best()
    assert whole is not None and not whole.layout.sharded


def test_cuts_may_also_make_up_for_a_stages_update() -> None:
    """Eight layers of 3 ms a sample, whose first has weights that take 16 ms to sum, for two samples of a replica."""
    rows = [LayerTime(n, "", 1.0, 2.0, 0, 0, 16 * 10**6 if n == 1 else 0) for n in range(1, 9)]
    work = Work(lambda samples, tensor: Profile(tuple(rows)), batch=4, element=4)
    one = Fleet(SUMMING, work, get("1f1b_flush"), replace(NUMBERS, moved=(0, 0, 0)), 4)
    assert one.cuts(2, 1, 1) == [(4,), (3,)]  # 12 and 12 ms; with the sum 9 + 8 and 15 ms, where it was 12 + 8
    assert {layout.cuts for layout in one.layouts() if layout.stages == 2} == {(4,), (3,)}


def test_a_stage_of_an_asynchronous_pipeline_updates_while_others_compute() -> None:
    """Four stages, the last of which is slowest, and the first updates for long: neither waits for the other."""
    one, layout = fleet("pipedream", 4, SLOW, sending(0)), Layout(CUTS, 1, 4, 1, recompute=False)
    costs = [replace(cost, update=0.0) for cost in one.costs(layout)]
    costs[0], costs[3] = replace(costs[0], update=6e-3), replace(costs[3], forward=4e-3)
    assert one.seconds(layout, costs) == pytest.approx(4 * 8e-3)  # of the last; the first takes 4 x 6 + 6 ms
    assert one.timed(layout, costs) == pytest.approx(4 * 8e-3, rel=0.03)
