"""Latencies of a cluster's links: the search against brute force, times against a plain run of messages and by hand."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelag.__main__ import main
from pipelag.errors import PipelagError
from pipelag.partitioner.advice import best, choices
from pipelag.partitioner.arms import Ground
from pipelag.partitioner.cluster import Cluster, Level, flat, server_seconds
from pipelag.partitioner.options import PlanOptions
from pipelag.partitioner.plan import Plan, PlanStage, links, memory_of, predict, stage_costs, timed_period
from pipelag.partitioner.plan_rows import plan_rows
from pipelag.partitioner.search import partition
from pipelag.report.diagrams import cluster_levels
from pipelag.results.context import Context
from pipelag.runs.kinds.link_speed import data_parallel_step
from pipelag.runs.spec import RunSpec
from pipelag.schedules.library import one_f_one_b_rr
from pipelag.timing.by_batch import Profiles
from pipelag.timing.costs import Topology
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import Device
from tests.partitioner.test_arms import ground as arms_ground
from tests.partitioner.test_arms import rows, sgdm
from tests.partitioner.test_partitioner import all_plans, layers, profiles

latencies = st.sampled_from([0.0, 1e-5, 3e-4, 2e-3, 1e-2])
# GPU, server, rack
THREE = (Level(2, 8e6, 1e-4), Level(2, 2e6, 5e-4), Level(2, 1e6, 2e-3))


# The search -----------------------------------------------------------------------------------------------------------


def seconds_of(profile: Profile, workers: int, bandwidth: float, latency: float, plan: Plan) -> float:
    """A plan's period over one level, written down plainly: a ring for each layer that has weights, 2 (m-1) messages
    each; two messages over a boundary.
    """
    slowest = 0.0
    for stage in plan.stages:
        inside, m = profile.layers[stage.first - 1 : stage.last], stage.replicas
        sent = sum(
            2 * (m - 1) * (latency + layer.weight_bytes / m / bandwidth) for layer in inside if layer.weight_bytes
        )
        slowest = max(slowest, max(sum(layer.total_ms for layer in inside) / 1e3, sent) / m)
        if stage.last < len(profile.layers):
            slowest = max(slowest, 2 * latency + 2 * inside[-1].output_bytes / bandwidth)
    return slowest


@given(profiles, st.integers(2, 5), latencies, st.booleans(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_equals_exhaustive_search(
    profile: Profile, workers: int, latency: float, straight: bool, data_parallel: bool
) -> None:
    straight = straight and workers <= len(profile.layers)
    plans = [
        plan
        for plan in all_plans(len(profile.layers), workers)
        if (data_parallel or len(plan.stages) > 1) and not (straight and len(plan.stages) < workers)
    ]
    by_hand = {plan: seconds_of(profile, workers, 1e6, latency, plan) for plan in plans}
    cluster = flat(workers, 1e6, latency)
    searched = partition(profile, cluster, straight=straight, data_parallel=data_parallel)
    assert searched.period == pytest.approx(min(by_hand.values()))
    for plan, seconds in by_hand.items():
        assert predict(profile, cluster, plan, "ring") == pytest.approx(seconds)


@given(profiles, st.integers(2, 4), latencies, st.floats(2e4, 3e5))
@settings(max_examples=40, deadline=None)
def test_equals_exhaustive_search_where_memory_is_limited(
    profile: Profile, workers: int, latency: float, memory: float
) -> None:
    fitting = [plan for plan in all_plans(len(profile.layers), workers) if max(memory_of(profile, plan)) <= memory]
    cluster = Cluster((Level(workers, 1e6, latency),), memory)
    if not fitting:
        with pytest.raises(PipelagError, match="no plan fits"):
            partition(profile, cluster)
        return
    least = min(seconds_of(profile, workers, 1e6, latency, plan) for plan in fitting)
    assert partition(profile, cluster).period == pytest.approx(least)


def recurrence(profile: Profile, cluster: Cluster) -> float:
    """PipeDream's recurrence over levels (section 3.1) with a ring's cost and latencies, by plain recursion."""

    def best(k: int, i: int, j: int, m: int) -> float:
        """A^k(i -> j, m)."""
        if k < 0:
            return sum(layer.total_ms for layer in profile.layers[i : j + 1]) / 1e3
        level = cluster.levels[k]

        def stage(i: int, j: int, m: int) -> float:
            inner = best(k - 1, i, j, cluster.levels[k - 1].workers if k else 1)
            heavy = [layer.weight_bytes for layer in profile.layers[i : j + 1] if layer.weight_bytes]
            return max(inner, sum(2 * (m - 1) * (w / m / level.bandwidth + level.latency) for w in heavy)) / m

        least = stage(i, j, m)
        for s, last in itertools.product(range(i, j), range(1, m)):
            message = 2 * (level.latency + profile.layers[s].output_bytes / level.bandwidth)
            least = min(least, max(best(k, i, s, m - last), message, stage(s + 1, j, last)))
        return least

    return best(len(cluster.levels) - 1, 0, len(profile.layers) - 1, cluster.levels[-1].workers)


@given(profiles, st.integers(1, 3), st.integers(1, 3), latencies, latencies)
@settings(max_examples=40, deadline=None)
def test_two_levels_equal_the_recurrence(profile: Profile, inner: int, outer: int, near: float, far: float) -> None:
    cluster = Cluster((Level(inner, 4e6, near), Level(outer, 1e6, far)))
    by_levels = recurrence(profile, cluster)
    assert partition(profile, cluster, hierarchical=True).period == pytest.approx(by_levels)
    workers = inner * outer
    slowest = path(cluster.levels, 0, workers - 1)  # of one worker none: it has no stage to send to
    flattened = min(seconds_of(profile, workers, *slowest, plan) for plan in all_plans(len(profile.layers), workers))
    assert partition(profile, cluster, hierarchical=False).period == pytest.approx(flattened)
    assert partition(profile, cluster).period == pytest.approx(min(by_levels, flattened))


def test_three_levels_equal_the_recurrence() -> None:
    profile = layers((1, 2, 900, 0, 5000), (3, 4, 100, 0, 0), (2, 1, 4000, 0, 12_000), (1, 1, 10, 0, 300))
    assert partition(profile, Cluster(THREE), hierarchical=True).period == pytest.approx(
        recurrence(profile, Cluster(THREE))
    )


@given(profiles, latencies, latencies)
@settings(max_examples=30, deadline=None)
def test_the_printed_cost_has_no_latency(profile: Profile, near: float, far: float) -> None:
    """PipeDream, section 3.1."""
    plain = Cluster((Level(2, 4e6), Level(2, 1e6)))
    late = Cluster((Level(2, 4e6, near), Level(2, 1e6, far)))
    for hierarchical in (None, True, False):
        plan = partition(profile, late, "paper", hierarchical=hierarchical)
        assert plan == partition(profile, plain, "paper", hierarchical=hierarchical)
        assert predict(profile, late, plan, "paper") == predict(profile, plain, plan, "paper")


def test_a_latency_makes_fewer_replicas() -> None:
    """Two layers of 6 ms, 1,000 bytes each at 1 MB/s: data parallelism over four GPUs takes 3 ms; with 2 ms a message,
    two rings of six messages take 24 ms for four minibatches, and two stages of two replicas 3 + 4 ms for two.
    """
    profile = layers((2.0, 4.0, 100, 0, 1000), (2.0, 4.0, 100, 0, 1000))
    assert partition(profile, flat(4, 1e6)).config == "4"
    late = flat(4, 1e6, 2e-3)
    assert predict(profile, late, Plan((PlanStage(1, 2, 4),)), "ring") == pytest.approx((24e-3 + 3e-3) / 4)
    plan = partition(profile, late)
    assert plan.config == "2-2" and plan.period == pytest.approx(2 * (2e-3 + 100 / 1e6))


# Times ----------------------------------------------------------------------------------------------------------------


def path(levels: tuple[Level, ...], a: int, b: int) -> tuple[float, float]:
    """(bandwidth, latency) between two workers: of the levels up to the one that joins them."""
    place = lambda worker: [  # noqa: E731
        worker // count for count in itertools.accumulate((level.workers for level in levels), lambda x, y: x * y)
    ]
    joined = next(k for k, (x, y) in enumerate(zip(place(a), place(b), strict=True)) if x == y)
    crossed = levels[: joined + 1]
    return min(level.bandwidth for level in crossed), max(level.latency for level in crossed)


def run(profile: Profile, levels: tuple[Level, ...], plan: Plan, minibatches: int) -> float:
    """Seconds of 1F1B-RR, action by action and message by message, over links as slow as the plan's slowest one."""
    replicas = [stage.replicas for stage in plan.stages]
    begin = [sum(replicas[:k]) for k in range(len(replicas))]
    slow, seconds = (inf, 0.0), []
    for k, stage in enumerate(plan.stages):
        inside, m = profile.layers[stage.first - 1 : stage.last], stage.replicas
        if k:
            for n in range(minibatches):
                pair = path(levels, begin[k - 1] + n % replicas[k - 1], begin[k] + n % m)
                slow = min(slow[0], pair[0]), max(slow[1], pair[1])
        computed = summed = 0.0
        for layer in reversed(inside):
            computed += layer.backward_ms / 1e3
            if m > 1 and layer.weight_bytes:
                among = [path(levels, begin[k], begin[k] + other) for other in range(1, m)]
                bandwidth, latency = min(b for b, _ in among), max(late for _, late in among)
                step = latency + layer.weight_bytes / m / bandwidth
                summed = max(summed, computed) + 2 * (m - 1) * step
        seconds.append((sum(layer.forward_ms for layer in inside) / 1e3, max(computed, summed)))
    size = [profile.layers[stage.last - 1].output_bytes for stage in plan.stages]
    rows = [list(row) for row in one_f_one_b_rr(len(replicas), minibatches, replicas).workers]
    free, link, there = [0.0] * len(rows), {}, {}
    while any(rows):
        for worker, row in enumerate(rows):
            while row:
                kind, stage, m = row[0]
                first = kind == "U" or (kind == "F" and stage == 1) or (kind == "B" and stage == len(replicas))
                if not first and (kind, stage, m) not in there:
                    break
                row.pop(0)
                if kind == "U":
                    continue
                free[worker] = max(free[worker], there.get((kind, stage, m), 0.0)) + seconds[stage - 1][kind == "B"]
                to = stage + 1 if kind == "F" else stage - 1
                if 1 <= to <= len(replicas):
                    wire = worker, begin[to - 1] + m % replicas[to - 1]
                    crossing = slow[1] + size[min(stage, to) - 1] / slow[0]
                    link[wire] = max(link.get(wire, 0.0), free[worker]) + crossing
                    there[kind, to, m] = link[wire]
    return max(free)


PLANS = (
    (PlanStage(1, 2), PlanStage(3, 3), PlanStage(4, 4)),
    (PlanStage(1, 2, 2), PlanStage(3, 4)),
    (PlanStage(1, 1, 3), PlanStage(2, 3, 2), PlanStage(4, 4)),
    (PlanStage(1, 3, 5), PlanStage(4, 4, 3)),
    (PlanStage(1, 4, 8),),
)


@pytest.mark.parametrize("stages", PLANS, ids=lambda stages: "-".join(str(stage.replicas) for stage in stages))
@pytest.mark.parametrize("times", [0.0, 0.1, 1.0, 10.0])
def test_a_timed_plan_is_as_quick_as_a_plain_run_of_its_messages(stages: Any, times: float) -> None:
    profile = layers((1, 2, 900, 0, 5000), (3, 4, 100, 0, 0), (2, 1, 4000, 0, 12_000), (1, 1, 10, 0, 300))
    levels = tuple(replace(level, latency=times * level.latency) for level in THREE)
    plan = Plan(stages)
    count = 30 * 12  # whole rounds of every plan
    taken = (run(profile, levels, plan, 2 * count) - run(profile, levels, plan, count)) / count
    assert timed_period(profile, Cluster(levels), plan) == pytest.approx(taken, rel=5e-3)


@given(profiles, st.data(), st.lists(latencies, min_size=2, max_size=2))
@settings(max_examples=40, deadline=None)
def test_more_latency_is_never_faster_and_none_is_as_before(profile: Profile, data: Any, late: list[float]) -> None:
    workers = data.draw(st.integers(1, 6))
    plan = data.draw(st.sampled_from(all_plans(len(profile.layers), workers)))
    cluster = lambda *each: Cluster((Level(3, 4e6, each[0]), Level(2, 1e6, each[1])))  # noqa: E731
    plain = Cluster((Level(3, 4e6), Level(2, 1e6)))
    assert timed_period(profile, cluster(0.0, 0.0), plan) == timed_period(profile, plain, plan)
    assert predict(profile, cluster(0.0, 0.0), plan, "ring") == predict(profile, plain, plan, "ring")
    low, high = sorted(late)
    paces = [
        timed_period(profile, one, plan) for one in (plain, cluster(low, low), cluster(low, high), cluster(high, high))
    ]
    for before, after in itertools.pairwise(paces):
        assert after >= before * (1 - 1e-3)  # a pace that settles slowly is told to a thousandth
    assert predict(profile, cluster(low, low), plan, "ring") <= predict(profile, cluster(high, high), plan, "ring")


def test_replicas_and_boundaries_by_hand() -> None:
    """4,000 bytes over two servers of two: 2 x 3/4 of them at 1 MB/s take 6 ms, and six messages 0.5 ms each 3 more."""
    servers = Cluster((Level(2, 8e6, 1e-4), Level(2, 1e6, 5e-4)))
    profile = layers((1.0, 3.0, 0, 0, 4000))
    near, far = Plan((PlanStage(1, 1, 2),)), Plan((PlanStage(1, 1, 4),))
    assert timed_period(profile, servers, near) == pytest.approx((1 + 3 + 0.5 + 2 * 0.1) * 1e-3 / 2)
    assert timed_period(profile, servers, far) == pytest.approx((1 + 3 + 6 + 3) * 1e-3 / 4)
    assert predict(profile, servers, far, "ring") == pytest.approx((6 + 3) * 1e-3 / 4)
    two = layers((1.0, 1.0, 0, 0, 2000), (0.0, 0.0, 0, 0, 0), (0.0, 2.0, 0, 0, 2000))
    both = Plan((PlanStage(1, 3, 4),))
    assert predict(two, servers, both, "ring") == pytest.approx((6 + 2 * 3) * 1e-3 / 4)  # a ring for each of the two
    assert server_seconds(4000, 4, 1e6, 5e-4) == pytest.approx((24 + 3) * 1e-3) and server_seconds(0, 4, 1e6, 5e-4) == 0
    (cost,) = stage_costs(layers((1.0, 3.0, 0, 0, 0)), servers, far)
    assert cost.backward == pytest.approx(3e-3)  # without weights there is no ring
    again = [stage_costs(layers((1.0, 3.0, 0, 0, size)), servers, far, recompute=True)[0] for size in (0, 4000)]
    assert [cost.backward for cost in again] == pytest.approx([4e-3, (1 + 3 + 6 + 3) * 1e-3])  # the forward comes first
    line = Plan(tuple(PlanStage(i, i) for i in (1, 2, 3)))
    assert links(servers, line) == Topology(1e6, 5e-4)
    assert links(servers, Plan((PlanStage(1, 1), PlanStage(2, 3)))) == Topology(8e6, 1e-4)
    assert links(servers, far) == Topology()


def test_links_cross_levels() -> None:
    """The least bandwidth, the greatest latency, of all levels up to the one that joins two workers."""
    odd = Cluster((Level(2, 1e6, 5e-3), Level(2, 4e6, 1e-3)), memory=7.0)
    assert odd.link(0, 1) == odd.link(0, 3) == Topology(1e6, 5e-3) and odd.link(2, 2) == Topology()
    assert odd.collapsed() == Cluster((Level(4, 1e6, 5e-3),), 7.0)
    three = Cluster(THREE)
    assert [three.link(0, last).latency for last in (1, 2, 4, 7)] == [1e-4, 5e-4, 2e-3, 2e-3]
    assert three.between(range(4), range(4, 6)) == Topology(1e6, 2e-3)
    assert three.first(3).levels == (THREE[0], replace(THREE[1], workers=2))
    assert three.line(3) == flat(3, 2e6, 5e-4) and three.line(5) == flat(5, 1e6, 2e-3)


def test_arms_of_a_run_have_latencies() -> None:
    """The weights of `test_arms`, 400, 800 and 1,600 bytes in three of four layers, and 1.5 seconds a message."""
    late = replace(arms_ground(2), cluster=flat(2, 100.0, 1.5))
    arms = {
        "ring": {"method": "bsp"},
        "server": {"method": "bsp", "gather": "server"},
        "overlapped": {"method": "bsp", "overlap": True},
        "pipe": {"method": "1f1b", "batch": 1},
        "held": {"method": "1f1b", "batch": 1, "overlap": False},
    }
    by_arm = rows(arms, late, [2], cuts=[2])
    compute = 2 * 15  # seconds, of two samples each
    assert by_arm["ring 2"]["seconds"] == pytest.approx(compute + 2800 / 100 + 2 * 1.5)
    assert by_arm["server 2"]["seconds"] == pytest.approx(compute + 2 * 2800 / 100 + 2 * 1.5)
    # forward 10; backwards of 4 6 6 4: 16 + 3 bytes' seconds at 14, 8 + 3 from 33, 4 + 3 from 44 on
    assert by_arm["overlapped 2"]["seconds"] == pytest.approx(10 + max(4 + 19, 10) + 11 + 7)
    assert by_arm["overlapped 2"]["unhindered"] == pytest.approx(compute)
    crossing = 20 / 100 + 1.5
    assert by_arm["held 2"]["seconds"] > by_arm["pipe 2"]["seconds"]
    held = by_arm["held 2"]["stages"][0]["shares"]
    assert held["transfer"] * by_arm["held 2"]["seconds"] == pytest.approx(crossing)


def test_a_runs_rows_have_latencies() -> None:
    """4 ms of computing and 6 of summing, as in `test_by_hand`, in six messages of 0.5 ms more."""
    cluster = {"levels": [{"workers": 4, "bandwidth": 1e6, "latency": 5e-4}]}
    options = PlanOptions(cluster=cluster, search=False, data_parallel_over=[1, 4], overlap=False)
    alone, four = plan_rows(layers((1.0, 3.0, 0, 0, 4000)), Cluster.of(cluster), options)
    assert (alone["timed"], four["timed"]) == (pytest.approx(4e-3), pytest.approx((10e-3 + 3e-3) / 4))
    both = PlanOptions(cluster=cluster, gpipe={"memory": 1e9}, depths=[1], compare=True)
    profile = layers(*[(1.0, 2.0, 100, 7, 4000)] * 4)
    late, plain = (
        {row["plan"]: row for row in plan_rows(profile, one, both)} for one in (Cluster.of(cluster), flat(4, 1e6))
    )
    assert late["data parallel"]["predicted"]["paper"] == plain["data parallel"]["predicted"]["paper"]
    assert all(late[name]["timed"] >= plain[name]["timed"] * 0.999 for name in late.keys() & plain.keys())
    for name in ("depth 1", "GPipe, NOAM", "model parallel", "data parallel"):
        assert late[name]["timed"] > plain[name]["timed"]
    # one minibatch at a time: six messages of it on its way there and back
    assert late["model parallel"]["timed"] - plain["model parallel"]["timed"] == pytest.approx(6 * 5e-4)


def test_advice_has_latencies() -> None:
    def quickest(latency: float) -> dict[str, float]:
        small = Profile(tuple(LayerTime(i, "x", 1, 2, 800, 100, 400) for i in range(1, 7)))
        sizes = Profiles(lambda samples: small.scaled(samples / 8), scaled=True)
        place = Ground(sizes, flat(3, 3e6, latency), Device(1.0, 1.0), 1e9, sgdm, 8, "free")
        return {one.method.name: one.seconds for one in best(choices(place)[0])}

    plain, none, late = quickest(0.0), quickest(0.0), quickest(5e-3)
    assert plain == none and plain.keys() == late.keys()
    assert all(late[name] >= plain[name] * 0.999 for name in plain)
    for name in ("gpipe", "pipedream", "bsp"):
        assert late[name] > plain[name]


def test_a_ring_costs_as_much_over_measured_links() -> None:
    """`pipelag run` of kind speed says the same of two workers."""
    from pipelag.distributed.launch.namespaces import Links

    profile = layers((10, 20, 0, 0, 10**6))
    gbit = Links(8e-3, latency_ms=5)  # 1 MB/s
    step = data_parallel_step(profile, 2, gbit)
    assert step / 2 == pytest.approx(timed_period(profile, flat(2, 1e6, 5e-3), Plan((PlanStage(1, 1, 2),))))


# What is given --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1e-6, nan, inf, "1", None, 1j])
def test_a_latency_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(
        PipelagError, match=r"^a level's latency is .*; it should be a finite number of seconds from 0 on$"
    ):
        Level(4, 1e9, wrong)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("-1", "the key 'levels.1.latency' of a cluster is -1; it should be 0 or more"),
        (".inf", "levels.1.latency is inf, which is not a finite number"),
        (".nan", "levels.1.latency is nan, which is not a finite number"),
        ("5 us", "the key 'levels.1.latency' of a cluster is '5 us'; it should be a number"),
        ("true", "the key 'levels.1.latency' of a cluster is True; it should be a number"),
        ("null", "the key 'levels.1.latency' of a cluster is None; it should be a number"),
    ],
)
def test_a_file_whose_latency_is_none_is_refused(
    given: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        f"levels:\n- {{workers: 2, bandwidth: 1.0e+9}}\n- {{workers: 2, bandwidth: 1.0e+9, latency: {given}}}\n"
    )
    with pytest.raises(PipelagError) as refused:
        Cluster.load(file)
    assert sentence in str(refused.value)
    layers((1.0, 2.0, 1, 1, 1)).save(tmp_path / "p.jsonl")
    assert main(["partition", str(tmp_path / "p.jsonl"), "--cluster", str(file)]) == 2
    assert sentence in capsys.readouterr().err
    (tmp_path / "near.yaml").write_text("levels: [{workers: 2, bandwidth: 1.0e+9, latence: 1.0}]\n")
    with pytest.raises(PipelagError, match="unknown key 'levels.0.latence' of a cluster; did you mean 'latency'"):
        Cluster.load(tmp_path / "near.yaml")


def test_a_latency_is_read_and_stands_in_a_spec_only_where_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "levels: [{workers: 2, bandwidth: 1e9, latency: 5e-6}, {workers: 3, bandwidth: 1e8}]"
    )
    assert Cluster.load(tmp_path / "c.yaml").levels == (Level(2, 1e9, 5e-6), Level(3, 1e8, 0.0))

    def spec(level: dict[str, float]) -> RunSpec:
        profile = {"published": "vgg16", "batch": 64}
        options = {"profile": profile, "cluster": {"levels": [{"workers": 4, "bandwidth": 1.0e9} | level]}}
        return RunSpec(kind="partition", batch=64, options=options)

    assert "latency" not in spec({}).canonical()
    assert spec({"latency": 5e-6}).id != spec({}).id
    with pytest.raises(PipelagError, match=r"levels.0.latency.* is -1.0; it should be 0 or more"):
        spec({"latency": -1.0})


def test_the_picture_of_a_cluster_says_its_latencies() -> None:
    words = lambda *levels: " ".join(text.get_text() for text in cluster_levels(levels).axes[0].texts)  # noqa: E731
    assert "12 GB/s, 5 µs" in words(
        {"workers": 2, "bandwidth": 12e9, "latency": 5e-6}, {"workers": 2, "bandwidth": 1e9}
    )
    assert "µs" not in words({"workers": 2, "bandwidth": 12e9, "latency": 0.0}, {"workers": 2, "bandwidth": 1e9})


def test_the_shell_has_latencies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4 ms and 6 of summing 4,000 bytes over four GPUs, and six messages of 0.5 ms; stages have one boundary."""
    layers((1.0, 3.0, 0, 0, 4000)).save(tmp_path / "p.jsonl")
    layers(*[(1.0, 2.0, 100, 0, 40)] * 2).save(tmp_path / "two.jsonl")
    said = {}
    for late in ("", ", latency: 5.0e-4"):
        (tmp_path / "c.yaml").write_text(f"levels: [{{workers: 4, bandwidth: 1.0e+6{late}}}]\n")
        (tmp_path / "two.yaml").write_text(f"levels: [{{workers: 2, bandwidth: 1.0e+6{late}}}]\n")
        assert main(["partition", str(tmp_path / "p.jsonl"), "--cluster", str(tmp_path / "c.yaml")]) == 0
        said[late] = [capsys.readouterr().out.splitlines()[-1]]
        words = [str(tmp_path / "two.jsonl"), "--cluster", str(tmp_path / "two.yaml"), "--batch", "8"]
        assert main(["advise", *words, "--format", "json"]) == 0
        chosen = json.loads(capsys.readouterr().out)["choices"]
        said[late].append({row["method"]: row["samples_per_second"] for row in chosen})
    plain, late = said.values()
    assert f"predicted {4 / 6e-3:.2f}, timed {4 / 10e-3:.2f} minibatches per second" in plain[0]
    assert f"predicted {4 / 9e-3:.2f}, timed {4 / 13e-3:.2f} minibatches per second" in late[0]
    assert late[1]["gpipe"] < plain[1]["gpipe"] and late[1]["bsp"] < plain[1]["bsp"]


@pytest.mark.parametrize(
    ("latency", "words"), [({}, "without message latency"), ({"latency": 5e-6}, "with the links' latency")]
)
def test_what_is_drawn_says_whether_messages_had_a_latency(latency: dict[str, float], words: str) -> None:
    profile = {"published": "vgg16", "batch": 64}
    options = {"profile": profile, "cluster": {"levels": [{"workers": 4, "bandwidth": 1.0e9} | latency]}}
    spec = RunSpec(kind="partition", batch=64, options=options)
    item = SimpleNamespace(arm=SimpleNamespace(spec=spec), log=SimpleNamespace(environment={}))
    drawn: Any = SimpleNamespace(items=[item], result=SimpleNamespace(source="simulated"))
    assert Context._timed(drawn) == f"Discrete-event simulation on the authors' profiles, {words}."
