"""Cuts for workers with one stage and with two."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

import pytest

from pipelag.partitioner.chunks import cuts_of, parts, slowest_of
from pipelag.schedules.virtual import Interleaved
from pipelag.schedules.zero_bubble import zb_v
from pipelag.timing.costs import Topology
from pipelag.timing.layers import LayerTime, Profile, balanced_cuts
from pipelag.timing.timed import time_schedule


def unequal(*times: float) -> Profile:
    return Profile(tuple(LayerTime(n, "", t / 3, 2 * t / 3) for n, t in enumerate(times, start=1)))


def test_the_slowest_stage_of_every_number_of_first_layers() -> None:
    times = [3.0, 1.0, 2.0, 2.0, 5.0]
    profile, inf = unequal(*times), float("inf")
    for stages in (1, 2, 3):
        rows = [profile.layers[:n] for n in range(stages, 6)]
        cut = [balanced_cuts(Profile(row), stages) for row in rows]
        slowest = [max(c.forward + c.backward for c in Profile(row).cut(at)) for row, at in zip(rows, cut, strict=True)]
        assert slowest_of(times, stages)[stages:] == pytest.approx([1e3 * each for each in slowest])
    assert slowest_of(times, 3)[:3] == [inf, inf, inf]


def test_workers_of_two_stages_get_equally_much() -> None:
    """Of six layers 4 + 1 and 4 + 1 for two workers. With the slowest of four stages as fast as possible, one of them
    has 1 + 2 and the other 3 + 4. Of eight equal layers each stage has two.
    """
    layers = unequal(1.0, 3.0, 2.0, 2.0, 1.0, 1.0)
    assert balanced_cuts(layers, 4) == (1, 2, 3)
    assert parts(layers, 2, 2) == cuts_of(layers, 2, 2) == (2, 4, 5)
    assert cuts_of(unequal(*[1.0] * 8), 2, 2) == cuts_of(unequal(*[1.0] * 8), 4) == (2, 4, 6)


def test_equal_layers_are_divided_equally_though_other_halves_would_do() -> None:
    """A worker with stages of one and three layers has as much to do, and the schedule waits for the three."""
    assert parts(unequal(*[1.0] * 8), 2, 2) == (2, 4, 6)


@pytest.mark.parametrize(
    ("times", "cuts"), [((1.0, 2.0, 3.0, 1.0, 1.0), (1, 2, 3)), ((1.0, 3.0, 1.0, 1.0, 2.0), (1, 2, 4))], ids=str
)
def test_the_faster_of_two_kinds_of_cuts_is_taken(times: tuple[float, ...], cuts: tuple[int, ...]) -> None:
    """Of the first layers those with the fastest slowest stage, of the second those by parts."""
    layers = unequal(*times)
    kinds = [balanced_cuts(layers, 4), parts(layers, 2, 2)]
    assert len({*kinds}) == 2 and cuts == kinds[times[1] == 3.0]
    assert cuts_of(layers, 2, 2) == cuts
    once = Interleaved(2)(4, 1, 4)
    assert min(kinds, key=lambda each: time_schedule(once, layers.cut(each)).makespan) == cuts


def test_cuts_are_those_of_a_pipeline_that_is_full_for_a_while() -> None:
    """One group of microbatches, which only fills and drains it, would take other cuts than two groups or eight."""
    layers = unequal(4.0, 1.0, 1.0, 1.0, 1.0)
    kinds = [(1, 2, 3), (1, 3, 4)]
    assert [balanced_cuts(layers, 4), parts(layers, 2, 2)] == kinds
    taken = []
    for groups in (1, 2, 8):
        schedule = Interleaved(2)(4, 1, 2 * groups)
        taken.append(min(kinds, key=lambda each: time_schedule(schedule, layers.cut(each)).makespan))  # noqa: B023
    assert taken == [(1, 3, 4), (1, 2, 3), (1, 2, 3)] and cuts_of(layers, 2, 2) == (1, 2, 3)


def test_workers_of_three_stages_get_equally_much() -> None:
    """Two workers with three layers each, of equal ones; of seven, 7 s for each. With its first part counted as much as
    the other two, one worker would have 10.
    """
    assert parts(unequal(*[1.0] * 6), 2, 3) == (1, 2, 3, 4, 5)
    times = [1.0, 3.0, 1.0, 3.0, 2.0, 3.0, 1.0]
    bounds = [0, *parts(unequal(*times), 2, 3), 7]
    stages = [sum(times[a:b]) for a, b in pairwise(bounds)]
    assert sum(stages[::2]) == sum(stages[1::2]) == 7.0


def test_over_links_the_slowest_stage_or_link_counts() -> None:
    """Layers of 1 s, the outputs of which take 2 s each way, but for those of the second and third."""
    layers = Profile(tuple(LayerTime(n, "", 500.0, 500.0, size) for n, size in enumerate((2, 0, 0, 2, 2), start=1)))
    crossing = [2e3 * layer.output_bytes for layer in layers.layers]
    assert balanced_cuts(layers, 2) in [(2,), (3,)] and balanced_cuts(layers, 3, crossing_ms=crossing) == (2, 3)
    assert balanced_cuts(layers, 3) == (1, 3)


@pytest.mark.parametrize("seed", range(6))
def test_cuts_over_links_are_the_best_of_all(seed: int) -> None:
    random = Random(seed)
    rows = [(random.randint(0, 9), random.randint(0, 9)) for _ in range(8)]
    layers = Profile(tuple(LayerTime(n, "", time / 2, time / 2) for n, (time, _) in enumerate(rows, start=1)))

    def slowest(cuts: tuple[int, ...]) -> float:
        stages = [sum(time for time, _ in rows[a:b]) for a, b in pairwise([0, *cuts, 8])]
        return max(*stages, *(rows[cut - 1][1] for cut in cuts))

    for stages in (2, 3, 4, 8):
        found = balanced_cuts(layers, stages, crossing_ms=[crossing for _, crossing in rows])
        assert slowest(found) == min(map(slowest, combinations(range(1, 8), stages - 1)))


def test_slow_links_move_the_cuts_of_workers_with_two_stages() -> None:
    """Outputs of 1 MB, but for three of 1 kB: it is cut behind these if a message of 1 MB takes longer than layers."""
    small = (2, 3, 6)
    layers = Profile(
        tuple(LayerTime(n, "", 1.0, 2.0, 1000 if n in small else 1_000_000) for n in range(1, 9)),
    )
    assert cuts_of(layers, 2, 2) == cuts_of(layers, 2, 2, None, Topology(1e12)) == (2, 4, 6)
    assert cuts_of(layers, 2, 2, None, Topology(1e7)) == small


def test_a_link_carries_the_output_and_the_gradient_of_a_boundary() -> None:
    """A second for each byte, both ways; if one way counted alone, other cuts would be taken, and be slower."""
    rows = enumerate(zip((3, 3, 4, 4, 1, 4), (1, 5, 6, 3, 3, 5), strict=True), start=1)
    layers = Profile(tuple(LayerTime(n, "", 1e3 * time / 3, 2e3 * time / 3, size) for n, (time, size) in rows))
    links = Topology(1.0)
    ways = [[each * 1e3 * layer.output_bytes for layer in layers.layers] for each in (1, 2)]
    one, both = (balanced_cuts(layers, 4, crossing_ms=crossing) for crossing in ways)
    once = Interleaved(2)(4, 1, 4)
    seconds = [time_schedule(once, layers.cut(cuts), links).makespan for cuts in (one, both)]
    assert one != both and seconds[1] < seconds[0]
    assert cuts_of(layers, 2, 2, None, links) == both


def test_cuts_are_compared_under_the_methods_own_schedule() -> None:
    """In a V the first worker has the first stage and the last, interleaved the first and the third."""
    rows = enumerate((1.0, 1.0, 4.0, 4.0, 3.0, 3.0), start=1)
    layers = Profile(tuple(LayerTime(n, "", time, 2 * time, weight_ms=time) for n, time in rows))
    kinds = [balanced_cuts(layers, 4), parts(layers, 2, 2)]
    for build, taken in ((Interleaved(2), kinds[1]), (zb_v, kinds[0])):
        once = build(4, 1, 4)
        assert min(kinds, key=lambda cuts: time_schedule(once, layers.cut(cuts)).makespan) == taken  # noqa: B023
        assert cuts_of(layers, 2, 2, build) == taken
