"""What plans, clusters and published profiles refuse, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.cluster import Cluster, Level, flat
from pipelag.partitioner.given import plan_given
from pipelag.partitioner.laid import Laid
from pipelag.partitioner.options import GivenPlan
from pipelag.partitioner.plan import Plan, PlanStage, bytes_per_minibatch, memory_of, predict, time_plan
from pipelag.partitioner.published import MOST_LINES, chain, read_graph
from pipelag.partitioner.search import partition
from pipelag.partitioner.stacked import stages_of_a_worker
from pipelag.timing.by_batch import Profiles
from pipelag.timing.layers import Profile
from pipelag.timing.sheets import Device
from tests.partitioner.test_advise import profile, sgdm
from tests.partitioner.test_partitioner import GRAPH, layers

THREE = layers(*[(1.0, 2.0, 1, 1, 1)] * 3)


def test_plans_that_do_not_fit() -> None:
    with pytest.raises(PipelagError, match="the plan covers layers 1 to 2, but the profile has layers 1 to 3"):
        predict(THREE, flat(2), Plan((PlanStage(1, 2),)))
    with pytest.raises(PipelagError, match="two stages need two workers and two layers; allow data parallelism"):
        partition(layers((1.0, 2.0, 1, 1, 1)), flat(2), data_parallel=False)
    servers = Cluster((Level(2, 2.0), Level(2, 1.0)), memory=1e9)
    assert partition(THREE, servers).workers == 4
    with pytest.raises(PipelagError, match="a memory limit can only be kept over the collapsed cluster"):
        partition(THREE, servers, hierarchical=True)


TWO = Plan((PlanStage(1, 2), PlanStage(3, 3)))
LIMITED = Cluster((Level(2, 1.0),), memory=1e4)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (lambda: partition(THREE, LIMITED, state="2"), "state is '2'; it should be a number from 0 on"),  # type: ignore[arg-type]
        (lambda: partition(THREE, LIMITED, state=-1), "state is -1; it should be a number from 0 on"),
        (lambda: memory_of(THREE, TWO, state=float("nan")), "state is nan; it should be a number from 0 on"),
        (lambda: partition(THREE, flat(2), None), "communication is None; it should be 'ring' or 'paper'"),  # type: ignore[arg-type]
        (lambda: partition(Profile(({},)), flat(2)), "a layer of the profile is {}; it should be a pipelag"),  # type: ignore[arg-type]
        (lambda: partition(layers(("1", 2.0, 1, 1, 1)), flat(2)), "layer 1 .* has forward_ms '1'; it should be"),  # type: ignore[arg-type]
        (lambda: partition(layers((1.0, 2.0, 1, 1, -7)), flat(2)), "has weight_bytes -7; it should be a number"),
        (lambda: Plan(((1, 2),)), r"a stage of a plan is \(1, 2\); it should be a PlanStage of whole numbers"),  # type: ignore[arg-type]
        (lambda: Plan((PlanStage("a", 2),)), "it should be a PlanStage of whole numbers"),  # type: ignore[arg-type]
        (
            lambda: memory_of(layers((1.0, 2.0, 1, 1, 1)), TWO),
            "the plan covers layers 1 to 3, but the profile has layers",
        ),
        (
            lambda: bytes_per_minibatch(layers((1.0, 2.0, 1, 1, 1)), TWO),
            "the plan covers layers 1 to 3, but the profile",
        ),
        (
            lambda: memory_of(THREE, TWO, depth=0),
            "depth, the minibatches in the pipeline, should be a whole number from 1 on, not 0",
        ),
        (
            lambda: TWO.versions(-1),
            "depth, the minibatches in the pipeline, should be a whole number from 1 on, not -1",
        ),
        (lambda: time_plan(THREE, flat(2), TWO, minibatches=-3), "a schedule needs at least 1 stage, 1 minibatch"),
        (lambda: time_plan(THREE, flat(2), TWO, minibatches=0), "a schedule needs at least 1 stage, 1 minibatch"),
        (lambda: THREE.cut((1,), update_ms=("a", 1.0)), r"update_ms is \('a', 1.0\); it should be a time for each of"),  # type: ignore[arg-type]
        (lambda: Plan((PlanStage(1, 2), PlanStage(3, 2))), "the layers 3 to 2 and 1 workers; it should have at"),
        (lambda: partition(THREE, flat(2), "rings"), "form 'rings' of the communication cost; did you mean 'ring'"),
        (lambda: partition(Profile(()), flat(2)), "the profile has no layers"),
        (lambda: partition(THREE, flat(10**6)), "3 layers on 1,000,000 workers would take too long to search"),
        (lambda: Cluster(()), "a cluster needs at least one level of workers"),
        (lambda: Cluster((4,)), r"levels should each be a Level\(workers, bandwidth\), not \(4,\); use Cluster.of for"),  # type: ignore[arg-type]
        (lambda: Cluster((Level(2, 1.0),), memory=0), "a worker's memory must be above 0 bytes, not 0"),
        (lambda: Profile.load(3), "the profile's file is 3; it should be a path"),  # type: ignore[arg-type]
        (lambda: THREE.save(None), "the profile's file is None; it should be a path"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_plan_profile_or_count_is_refused(asked: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        asked()


@pytest.mark.parametrize(
    ("replicas", "cuts", "sentence"),
    [
        ([1, 1], [1, 2], "the number of cuts is 2; for 2 stages it should be 1"),
        ([1, 1, 1, 1], None, "cuts can only be searched for with 2 or 3 stages, not 4"),
        ([1, 1], [3], "a stage has the layers 4 to 3 and 1 workers"),
        ([1, 1], ["pool"], "no layer has a name that begins with 'pool'"),
    ],
)
def test_a_given_plan_that_is_none(replicas: list[int], cuts: list[int | str] | None, sentence: str) -> None:
    with pytest.raises(PipelagError, match=f"'mine' needs replicas .* that fit a profile of 3 layers .{sentence}"):
        plan_given(THREE, flat(4), "mine", GivenPlan(replicas=replicas, cuts=cuts))
    with pytest.raises(PipelagError, match="a profile of 2 layers .2 layers cannot make 3 stages"):
        plan_given(layers(*[(1.0, 2.0, 1, 1, 1)] * 2), flat(4), "mine", GivenPlan(replicas=[1, 1, 1]))


def test_a_layers_name_may_have_ends_of_lines_that_json_has_not(tmp_path: Path) -> None:
    """U+2028 and U+0085 stand in a JSON text as they are; a file of another system ends its lines in two characters."""
    row = '{"layer": 1, "name": "a\u2028b\x85", "forward_ms": 1, "backward_ms": 2, "output_bytes": 1, "kept_bytes": 1'
    for end in ("", "\n", "\r\n", "\n\n", "\n \n"):  # and an editor may leave an empty line
        (tmp_path / "p.jsonl").write_bytes((row + ', "weight_bytes": 1}' + end).encode())
        assert [layer.name for layer in Profile.load(tmp_path / "p.jsonl").layers] == ["a\u2028b\x85"]
    (tmp_path / "p.jsonl").write_text("")
    with pytest.raises(PipelagError, match="it holds no layers"):
        Profile.load(tmp_path / "p.jsonl")


def test_replicas_that_are_not_timed() -> None:
    plan = Plan((PlanStage(1, 3, 2), PlanStage(4, 6)))

    def laid(moving: Any, **arm: Any) -> Laid:
        place = Ground(Profiles(profile), flat(3), Device(1.0, 1.0), 1e9, sgdm, 8, moving)
        return Laid(Arm.of("a", arm), place, plan)

    assert laid("free", method="pipedream").replicas == (2, 1)
    with pytest.raises(PipelagError, match="'pipedream_2bw' cannot be timed with microbatches over replicated stages"):
        laid("free", method="pipedream_2bw", microbatches=4)
    with pytest.raises(
        PipelagError, match="'pipedream' over replicated stages can only be timed without the cost of moving weights"
    ):
        laid("fused", method="pipedream")


def test_methods_whose_workers_have_several_stages() -> None:
    each = {name: stages_of_a_worker(get(name)) for name in ("pipedream", "gpipe", "pipedream_2bw", "sequential")}
    assert set(each.values()) == {1} and stages_of_a_worker(get("dualpipe")) == 1
    assert stages_of_a_worker(get("1f1b_interleaved")) == stages_of_a_worker(get("zb_v")) == 2
    assert stages_of_a_worker(get("1f1b_interleaved", chunks=5)) == 5
    with pytest.raises(PipelagError, match="several workers hold each of its stages, and their memory is not counted"):
        stages_of_a_worker(get("bidirectional"))


def test_clusters_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(PipelagError, match="list.yaml' is not a cluster file: it must have the key levels"):
        Cluster.load(tmp_path / "list.yaml")
    level = {"workers": 100, "bandwidth": 1.0}
    with pytest.raises(PipelagError, match="10,000 workers are too many for the search; the limit is 4,096"):
        Cluster.of({"levels": [level, level]})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GRAPH.replace("[4.0; 1.0; 1.0]", "[4.0; x]"), "line 5 should hold a number"),
        (
            GRAPH.replace("forward_compute_time=2.0", "forward_compute_time=1e16"),
            "line 2: times and sizes should be between",
        ),
        (GRAPH + "\n" + GRAPH.splitlines()[1], "the node 'node3' appears twice"),
        ("\n" * (MOST_LINES + 1), f"has {MOST_LINES + 1:,} lines, too many for a profile"),
        (GRAPH.splitlines()[0], "the profile has no layers other than inputs"),
    ],
)
def test_published_profiles_that_are_none(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(text)
    with pytest.raises(PipelagError, match=sentence):
        chain(read_graph(tmp_path / "graph.txt"))


@pytest.mark.parametrize(("levels", "held"), [([4], "the level holds 4"), ([4, 2], "the levels hold 4 x 2 = 8")])
def test_a_cluster_of_another_size_is_told(levels: list[int], held: str) -> None:
    content = {"levels": [{"workers": workers, "bandwidth": 1e9} for workers in levels]}
    with pytest.raises(PipelagError, match=f"^{held} workers, not the 3 asked for$"):
        Cluster.of(content, 3)
