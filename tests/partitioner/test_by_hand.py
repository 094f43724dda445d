"""Plans small enough for every second and byte of them to be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelag.__main__ import main
from pipelag.data.files import fetch
from pipelag.errors import PipelagError
from pipelag.partitioner.cluster import Cluster, Level, flat
from pipelag.partitioner.given import plan_given
from pipelag.partitioner.options import GivenPlan, PlanOptions, ProfileOptions
from pipelag.partitioner.plan import Plan, PlanStage, links, predict, time_plan, timed_period
from pipelag.partitioner.plan_rows import plan_rows, swept, under_gpipe
from pipelag.partitioner.published import Graph, Node, chain, order, read_graph
from pipelag.runs.carry_out import carry_out
from pipelag.runs.kinds.partition import published_profiles
from pipelag.runs.spec import RunSpec
from pipelag.timing.breakdown import Unsettled
from pipelag.timing.layers import LayerTime, Profile
from tests.partitioner.test_partitioner import GRAPH, layers

TWO_SERVERS = Cluster((Level(2, 8e6), Level(2, 1e6)))


def test_replicas_sum_over_the_slowest_link_among_them() -> None:
    """8,000 bytes: within a server 2 x 1/2 of them at 8e6 take 1 ms, over two servers 2 x 3/4 at 1e6 take 12 ms."""
    profile = layers((1.0, 3.0, 0, 0, 8000))
    near, far = Plan((PlanStage(1, 1, 2),)), Plan((PlanStage(1, 1, 4),))
    assert predict(profile, TWO_SERVERS, near, "ring") == pytest.approx(4e-3 / 2)
    assert predict(profile, TWO_SERVERS, far, "ring") == pytest.approx(12e-3 / 4)
    assert timed_period(profile, TWO_SERVERS, near) == pytest.approx((1 + 3 + 1) * 1e-3 / 2)
    assert timed_period(profile, TWO_SERVERS, far) == pytest.approx((1 + 3 + 12) * 1e-3 / 4)


def test_the_links_of_a_plan_are_as_fast_as_its_slowest_boundary() -> None:
    line = Plan(tuple(PlanStage(i, i) for i in (1, 2, 3)))
    assert links(TWO_SERVERS, line).bandwidth == 1e6
    assert links(TWO_SERVERS, Plan((PlanStage(1, 1), PlanStage(2, 3)))).bandwidth == 8e6


def test_the_first_workers_of_a_cluster_fill_servers_and_may_need_more_of_them() -> None:
    servers = Cluster((Level(4, 8e6, 1e-4), Level(2, 1e6, 5e-4)), memory=7.0)
    filled = {count: servers.first(count) for count in (1, 3, 4, 8, 16)}
    assert {count: [level.workers for level in part.levels] for count, part in filled.items()} == {
        1: [1],
        3: [3],
        4: [4],
        8: [4, 2],
        16: [4, 4],
    }
    assert {part.memory for part in filled.values()} == {7.0}


def test_a_timed_plan_holds_versions_of_weights_and_activations() -> None:
    """Stage l of 3 has 4 - l minibatches under way, each with weights, input and activations (section 3.3)."""
    profile = layers((1.0, 2.0, 100, 7, 40), (1.0, 2.0, 50, 5, 60), (1.0, 2.0, 10, 3, 20))
    line = Plan(tuple(PlanStage(i, i) for i in (1, 2, 3)))
    peaks = time_plan(profile, flat(3), line).peak_memory
    assert peaks == (3 * (40 + 7), 2 * (60 + 100 + 5), 1 * (20 + 50 + 3))


def test_a_pace_that_does_not_settle_is_that_of_a_runs_second_half(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsettled(*args: object, **more: object) -> float:
        raise Unsettled("made up")

    profile = layers((1.0, 2.0, 0, 0, 8), (2.0, 3.0, 0, 0, 8), (1.0, 1.0, 0, 0, 8))
    line = Plan(tuple(PlanStage(i, i) for i in (1, 2, 3)))
    monkeypatch.setattr("pipelag.partitioner.plan.steady_seconds", unsettled)
    assert timed_period(profile, flat(3), line) == pytest.approx(5e-3)
    # three replicas of 9 ms: whole rounds are compared, since 64 minibatches take as long as 66
    dealt = Plan((PlanStage(1, 1, 3), PlanStage(2, 2)))
    quick = layers((3.0, 6.0, 0, 0, 0), (0.5, 0.5, 0, 0, 0))
    assert timed_period(quick, flat(4), dealt) == pytest.approx(9e-3 / 3)


def test_gpipe_recomputes_fills_and_drains() -> None:
    """(N + P - 1) / N of a forward and a backward that repeats it, per microbatch; at most N = 8 P."""
    profile = layers(*[(1.0, 2.0, 0, 0, 8)] * 4)
    line = Plan(tuple(PlanStage(i, i) for i in range(1, 5)))
    noam, most = under_gpipe(profile, flat(4), line, memory=1e9)
    assert (noam["microbatches"], most["microbatches"]) == (4, 32)
    assert noam["timed"] == pytest.approx(7 / 4 * (1 + 3) * 1e-3)
    assert most["timed"] == pytest.approx(35 / 32 * (1 + 3) * 1e-3)


def test_what_most_fits_under_gpipe_may_not_fit() -> None:
    """Two stages of 40 bytes of weights, gradients and activations each; an input of 10 for every microbatch."""
    profile = layers(*[(1.0, 2.0, 10, 40, 40)] * 2)
    line = Plan((PlanStage(1, 1), PlanStage(2, 2)))
    fits = {memory: [row["fits"] for row in under_gpipe(profile, flat(2), line, memory)] for memory in (129, 130, 140)}
    assert fits == {129: [False, False], 130: [False, True], 140: [True, True]}


def test_the_overhead_is_a_share_of_the_whole_time() -> None:
    """4 ms of computing, then 6 ms of summing over four (PipeDream, figure 1: per cent of the total training time)."""
    cluster = {"levels": [{"workers": 4, "bandwidth": 1e6}]}
    options = PlanOptions(cluster=cluster, search=False, data_parallel_over=[1, 4], overlap=False)
    alone, four = plan_rows(layers((1.0, 3.0, 0, 0, 4000)), flat(4, 1e6), options)
    assert (alone["overhead"], alone["timed"]) == (0, pytest.approx(4e-3))
    assert (four["overhead"], four["timed"]) == (pytest.approx(0.6), pytest.approx(10e-3 / 4))


def test_part_of_a_cluster_sums_over_its_own_links() -> None:
    """4 ms of computing; two in a server then send 4,000 bytes at 8e6 for 0.5 ms, four 2 x 3/4 of them at 1e6."""
    levels = [{"workers": 2, "bandwidth": 8e6}, {"workers": 2, "bandwidth": 1e6}]
    options = PlanOptions(cluster={"levels": levels}, search=False, data_parallel_over=[2, 4], overlap=False)
    two, four = plan_rows(layers((1.0, 3.0, 0, 0, 4000)), TWO_SERVERS, options)
    assert (two["overhead"], four["overhead"]) == (pytest.approx(0.5 / 4.5), pytest.approx(6 / 10))


def test_the_best_plan_of_several_stages_is_that_by_a_rings_cost() -> None:
    """Two replicas of the first 6 ms, whose 8,000 bytes a ring sums in 8 ms and the printed cost in 16; then 4 ms."""
    profile = layers((2.0, 4.0, 0, 0, 8000), (1.0, 3.0, 0, 0, 0))
    options = PlanOptions(cluster={"levels": [{"workers": 3, "bandwidth": 1e6}]}, search=True, compare=True)
    configs = {row["plan"]: row["config"] for row in plan_rows(profile, flat(3, 1e6), options)}
    assert configs["several stages"] == configs["several stages, not pipelined"] == "2-1"
    assert configs["PipeDream"] == "1-2"


def test_the_partitions_of_a_sweep() -> None:
    """On four workers: one stage, each cut with one or two workers behind it, and two last stages of a worker each."""
    plans = list(swept(layers(*[(1.0, 2.0, 0, 0, 0)] * 4), 4))
    two = [(config, (cut,)) for cut in (1, 2, 3) for config in ("3-1", "2-2")]
    assert [(plan.config, plan.cuts) for plan in plans] == [("4", ()), *two, ("2-1-1", (2, 3))]


def test_a_published_layer_has_its_own_times_and_keeps_what_it_writes(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(GRAPH)
    profile, _ = chain(read_graph(tmp_path / "graph.txt"))
    assert [(layer.forward_ms, layer.backward_ms) for layer in profile.layers] == [(1, 2), (2, 4), (0.5, 0.5), (1, 1)]
    assert [layer.kept_bytes for layer in profile.layers] == [10, 16, 0, 6]  # in place nothing is written anew


def graph_of(edges: tuple[tuple[str, str], ...], **nodes: tuple[float, float]) -> Graph:
    """By name (milliseconds of a forward, bytes of the output)."""
    return Graph({name: Node(name, ms, ms, size, 0.0) for name, (ms, size) in nodes.items()}, edges)


def test_a_published_profile_is_taken_for_another_minibatch_and_another_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the minibatch takes twice as long; at 10.6 of 15.7 TFLOPS (P100, V100) it takes 15.7 / 10.6 as long."""
    places = tuple(tmp_path / name / "graph.txt" for name in ("vgg", "other/vgg16"))
    for place in places:
        place.parent.mkdir(parents=True)
        place.write_text(GRAPH if place == places[1] else "nothing")
    monkeypatch.setattr(fetch, "fetch", lambda name: SimpleNamespace(paths=places))

    def layers_of(**changes: Any) -> list[dict[str, Any]]:
        inputs = [{"shape": [3, 2]}, {"shape": [5], "of": "words"}]
        profile = {"published": changes.pop("published", "vgg16"), "batch": 8, "inputs": inputs}
        options = {"profile": profile, "cluster": {"levels": [{"workers": 2, "bandwidth": 1e9}]}} | changes
        spec = RunSpec.model_validate({"kind": "partition", "batch": 16, "options": options})
        out = tmp_path / "-".join(map(str, (profile["published"], *changes.values())))
        summary = carry_out(spec, out, "cpu", 1)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        plans = [row for row in rows if row["what"] == "plan"]
        assert all(row["samples_per_second"] == pytest.approx(16 / row["timed"]) for row in plans)
        assert summary["forward_ms"] == pytest.approx(sum(row["forward_ms"] for row in rows[: -len(plans)]))
        return [row for row in rows if row["what"] == "layer"]

    for rows, slower in ((layers_of(), 1.0), (layers_of(device="p100_sxm2"), 15.7 / 10.6)):
        assert [row["forward_ms"] for row in rows] == pytest.approx([slower * ms for ms in (2.0, 4.0, 1.0, 2.0)])
        assert [row["backward_ms"] for row in rows] == pytest.approx([slower * ms for ms in (4.0, 8.0, 1.0, 2.0)])
        assert [row["weight_bytes"] for row in rows] == [12, 32, 0, 64]
        assert [row["output_bytes"] for row in rows] == [2 * size for size in (10, 10 + 16, 16, 6)]
    given = ProfileOptions.model_validate(
        {"published": "vgg16", "inputs": [{"shape": [3, 2]}, {"shape": [5], "of": "words"}]}
    )
    assert published_profiles(given, "v100")[0].input_bytes == 3 * 2 * 4 + 5 * 8
    with pytest.raises(PipelagError, match="unknown published profile 'vgg61'; did you mean 'vgg16'"):
        layers_of(published="vgg61")


def test_an_output_crosses_until_its_last_use_whatever_edge_comes_last() -> None:
    nodes = {"a": (1.0, 10.0), "b": (1.0, 20.0), "c": (1.0, 30.0)}
    for edges in ((("a", "b"), ("a", "c"), ("b", "c")), (("a", "c"), ("a", "b"), ("b", "c"))):
        profile, _ = chain(graph_of(edges, **nodes))
        assert [layer.output_bytes for layer in profile.layers] == [10, 10 + 20, 30]


def test_the_longer_branch_runs_first() -> None:
    """So that a decoder's embedding is made where it is used, and crosses no boundary of the encoder."""
    edges = (("words", "decoder"), ("one", "two"), ("two", "decoder"))
    for flipped in (edges, edges[::-1]):
        nodes = dict.fromkeys(("words", "one", "two", "decoder"), (1.0, 1.0))
        assert order(graph_of(flipped, **nodes)) == ["one", "two", "words", "decoder"]


def test_merged_layers_have_the_name_of_the_one_that_takes_longest() -> None:
    nodes = {"a": (1.0, 1.0), "b": (3.0, 1.0), "c": (2.0, 1.0)}
    profile, notes = chain(graph_of((("a", "b"), ("b", "c")), **nodes), most=1)
    assert [layer.name for layer in profile.layers] == ["b and 2 more"] and profile.layers[0].forward_ms == 6
    assert notes == ["2 boundaries between quick layers merged, 1 layers left"]


def rows_of(profile: Profile, bandwidth: float, **options: Any) -> dict[str, dict[str, Any]]:
    """Of two workers, by the plans' names."""
    settings = {"cluster": {"levels": [{"workers": 2, "bandwidth": bandwidth}]}, "search": False} | options
    rows = plan_rows(profile, flat(2, bandwidth), PlanOptions.model_validate(settings))
    return {row["plan"]: row for row in rows}


def test_model_parallelism_and_rounds_have_one_minibatch_under_way() -> None:
    """Two stages of 6 ms: pipelined one minibatch every 6, else every 12; one stage on both workers is no plan here."""
    rows = rows_of(layers(*[(1.0, 2.0, 0, 0, 0)] * 4), 1e9, compare=True)
    assert {name: (row["config"], row["timed"]) for name, row in rows.items()} == {
        "several stages": ("straight", pytest.approx(6e-3)),
        "several stages, not pipelined": ("straight", pytest.approx(12e-3)),
        "straight": ("straight", pytest.approx(6e-3)),
        "model parallel": ("straight", pytest.approx(12e-3)),
    }


def test_a_depth_has_its_own_pace_versions_and_memory() -> None:
    """Two layers a stage, each with 40 bytes of weights and 7 of activations; 100 between the stages."""
    rows = rows_of(layers(*[(1.0, 2.0, 100, 7, 40)] * 4), 1e9, depths=[1, 2])
    first, second = rows["depth 1"], rows["depth 2"]
    assert (first["versions"], second["versions"]) == ((1, 1), (2, 1))
    assert (first["timed"], second["timed"]) == (pytest.approx(12e-3, rel=1e-3), pytest.approx(6e-3, rel=1e-3))
    last = (100 + 80 + 14) + 80
    assert (first["memory"], second["memory"]) == ([94 + 80, last], [2 * 94 + 80, last])


def test_each_form_of_the_cost_has_its_own_plan_told_stage_by_stage() -> None:
    """12 ms over two replicas, whose 9,000 bytes take 9 ms in a ring and 18 as printed; two stages of 7 and 5 ms."""
    rows = rows_of(layers((3.0, 4.0, 5, 0, 9000), (2.0, 3.0, 5, 0, 0)), 1e6, search=True)
    assert {name: row["config"] for name, row in rows.items()} == {
        "data parallel": "2",
        "PipeDream": "straight",
        "PipeDream, ring": "2",
    }
    assert rows["data parallel"]["predicted"] == {"paper": pytest.approx(9e-3), "ring": pytest.approx(6e-3)}
    assert rows["PipeDream"]["predicted"] == {"paper": pytest.approx(7e-3), "ring": pytest.approx(7e-3)}
    names = ("stage", "first", "last", "replicas", "forward_ms", "backward_ms", "weight_bytes", "output_bytes")
    stages = [(1, 1, 1, 1, 3.0, 4.0, 9000, 5), (2, 2, 2, 1, 2.0, 3.0, 0, 0)]
    assert rows["PipeDream"]["stages"] == [
        dict(zip(names, stage, strict=True)) | {"versions": versions}
        for stage, versions in zip(stages, (2, 1), strict=True)
    ]


def test_a_plan_written_down_is_cut_before_a_named_layer_or_by_a_rings_cost() -> None:
    """Two replicas and one: of layer 2 a ring takes 10 / 2 ms, less than 8 of two layers; as printed, twice that."""
    profile = layers((1.0, 3.0, 0, 0, 0), (1.0, 3.0, 0, 0, 10_000), (1.0, 3.0, 0, 0, 0))
    cluster = flat(3, 1e6)
    assert plan_given(profile, cluster, "x", GivenPlan(replicas=[2, 1])).cuts == (2,)
    named = plan_given(profile, cluster, "x", GivenPlan(replicas=[2, 1], cuts=["Layer 2"]))
    assert named.stages == (PlanStage(1, 1, 2), PlanStage(2, 3, 1))
    assert plan_given(profile, cluster, "x", GivenPlan(replicas=[1, 1, 1], cuts=[1, 2])).cuts == (1, 2)


def test_15_1_is_cut_before_the_first_of_several_linear_layers() -> None:
    names = ("Conv2d", "Linear", "ReLU", "Linear")
    profile = Profile(tuple(LayerTime(n, name, 1.0, 2.0) for n, name in enumerate(names, start=1)))
    assert plan_given(profile, flat(16), "15-1", GivenPlan(replicas=[15, 1], cuts=["linear"])).cuts == (1,)


def test_the_shell_counts_an_optimizers_state_and_says_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two layers of 40 MB: a whole model holds 2 x 80 MB, 320 with Adam's state; a stage of two 3 x 40, or 200."""
    layers(*[(1.0, 2.0, 0, 0, 40_000_000)] * 2).save(tmp_path / "p.jsonl")
    (tmp_path / "c.yaml").write_text("levels: [{workers: 2, bandwidth: 1e12}]\nmemory: 250e6\n")
    words = ["partition", str(tmp_path / "p.jsonl"), "--cluster", str(tmp_path / "c.yaml")]
    assert main(words) == 0
    plain = capsys.readouterr().out
    assert plain.startswith("plan 2: ") and "160 MB" in plain and "fit" not in plain
    assert main([*words, "--state", "2"]) == 0
    adam = capsys.readouterr().out.splitlines()
    assert adam[0].startswith("plan straight: ") and adam[1].endswith("200 MB") and adam[2].endswith("160 MB")
    assert "fit" not in adam[3] and adam[4].endswith("MB sent per minibatch; it does not fit: 320 MB per worker")
    assert main([*words, "--state", "5"]) == 2
    assert "no plan fits" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--state", "-1"])


def test_the_shell_tells_what_is_small_or_slow_and_names_on_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One worker: 500 s a minibatch, 2 x 3,000 bytes of weights and gradients; names of any length, over two lines."""
    row = LayerTime(1, "one\ntwo " + 70 * "x", 200_000.0, 300_000.0, weight_bytes=3000)
    Profile((row,)).save(tmp_path / "p.jsonl")
    (tmp_path / "c.yaml").write_text("levels: [{workers: 1, bandwidth: 1e9}]\n")
    assert main(["partition", str(tmp_path / "p.jsonl"), "--cluster", str(tmp_path / "c.yaml")]) == 0
    first, stage, plan, alone = capsys.readouterr().out.splitlines()
    assert first == "plan 1: 1 stage on 1 worker, NOAM 1"
    name = "one two " + 52 * "x" + "..."
    assert stage == f"  stage 1: layers 1-1 ({name} ... {name}), 1 worker, 500000.00 ms, 0.006 MB"
    rates = "predicted 0.002, timed 0.002 minibatches per second, 0 MB sent per minibatch"
    assert [plan, alone] == [f"  plan: {rates}", f"  data parallelism: {rates}"]


def test_a_plans_json_says_what_its_text_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two servers of two: by the search all links are slow, though a stage's replicas are on one server."""
    layers(*[(1.0, 2.0, 8, 8, 4000)] * 4).save(tmp_path / "p.jsonl")
    (tmp_path / "c.yaml").write_text("levels: [{workers: 2, bandwidth: 8e6}, {workers: 2, bandwidth: 1e6}]\n")
    words = ["partition", str(tmp_path / "p.jsonl"), "--cluster", str(tmp_path / "c.yaml"), "--state", "1"]
    assert main([*words, "--out", str(tmp_path / "plan.json")]) == 0
    text, plan = capsys.readouterr().out, json.loads((tmp_path / "plan.json").read_text())
    rates = f"predicted {1 / plan['predicted']:.2f}, timed {1 / plan['timed']:.2f} minibatches per second"
    assert f"  plan: {rates}, {plan['bytes'] / 1e6:.3g} MB sent per minibatch" in text
    for stage, held in zip(plan["stages"], plan["memory"], strict=True):
        (line,) = [line for line in text.splitlines() if f"layers {stage['first']}-{stage['last']} " in line]
        assert line.endswith(f" {held / 1e6:.3g} MB")
