"""Methods side by side: times, bytes and shares by hand; options refused before anything is computed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelag.errors import PipelagError
from pipelag.experiments import arms as config_arms
from pipelag.experiments import load_paper, load_scale
from pipelag.partitioner.arms import Arm, Ground, checked_arms
from pipelag.partitioner.cluster import Cluster, Level, flat
from pipelag.partitioner.laid import Laid
from pipelag.partitioner.options import ArmOptions, PlanOptions, ProfileOptions
from pipelag.partitioner.pipelined import Pipelined, straight_plan
from pipelag.partitioner.placed import Row
from pipelag.partitioner.plan import Plan, PlanStage, bytes_per_minibatch
from pipelag.partitioner.side_by_side import arm_rows
from pipelag.runs.carry_out import carry_out
from pipelag.runs.spec import RunSpec
from pipelag.timing.by_batch import Profiles
from pipelag.timing.costs import summed_bytes
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import Device
from pipelag.typed import checked

SECOND = 1e3  # milliseconds
WEIGHTS = (400, 0, 800, 1600)  # bytes


def profile(samples: int) -> Profile:
    """Four layers whose forwards take 1, 2, 1, 1 and backwards 2, 3, 3, 2 seconds per sample."""
    rows = zip((1, 2, 1, 1), (2, 3, 3, 2), (10, 20, 30, 40), (100, 200, 300, 400), WEIGHTS, strict=True)
    return Profile(
        tuple(
            LayerTime(i, f"layer {i}", SECOND * samples * f, SECOND * samples * b, samples * out, samples * saved, w)
            for i, (f, b, out, saved, w) in enumerate(rows, start=1)
        )
    )


def sgdm(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def ground(workers: int = 4, bandwidth: float = float("inf"), **more: Any) -> Ground:
    settings: dict[str, Any] = {"memory": 1e6, "optimizer": sgdm, "batch": 4, "moving": "free"} | more
    return Ground(Profiles(profile, input_bytes=7.0), flat(workers, bandwidth), Device(1.0, 100.0), **settings)


def rows(arms: dict[str, Any], place: Ground, workers: list[int], cuts: list[int] | None = None) -> dict[str, Row]:
    """By arm and number of GPUs."""
    chosen = checked_arms(arms, place.cluster, workers, place.batch, cuts)
    return {f"{row['arm']} {row['workers']}": row for row in arm_rows(chosen, place, workers, cuts)}


def test_asynchronous_pipelines_take_as_long_as_their_slowest_stage_and_gpipe_fills_and_drains() -> None:
    arms = {name: {"method": name} for name in ("pipedream", "pipeoptim", "xpipe", "dualpipe", "1f1b")}
    by_arm = rows(arms | {"GPipe": {"method": "gpipe", "microbatches": 4}}, ground(), [4])
    for name in arms:
        assert by_arm[f"{name} 4"]["seconds"] == pytest.approx(4 * 5)  # layer 2, of 4 samples
        assert by_arm[f"{name} 4"]["speedup"] == pytest.approx(15 / 5)
    # microbatches of one sample: forwards of 1 2 1 1, all four of them through the 2; backwards of 2 3 3 2
    assert by_arm["GPipe 4"]["seconds"] == pytest.approx((1 + 4 * 2 + 1 + 1) + (2 + 4 * 3 + 3 + 2))
    assert by_arm["GPipe 4"]["samples_per_second"] == pytest.approx(4 / by_arm["GPipe 4"]["seconds"])
    assert by_arm["GPipe 4"]["speedup"] == pytest.approx(4 * 15 / by_arm["GPipe 4"]["seconds"])  # of all four samples


def test_equal_stages_give_gpipe_seven_quarters() -> None:
    even = Profiles(lambda n: Profile((LayerTime(1, "even", SECOND * n, 2 * SECOND * n, 0, 1, 0),) * 4))
    place = Ground(even, flat(4), Device(1.0, 1.0), 1e6, sgdm, 4)
    by_arm = rows({"GPipe": {"method": "gpipe", "microbatches": 4}, "1F1B": {"method": "1f1b"}}, place, [4])
    assert by_arm["GPipe 4"]["seconds"] == pytest.approx(7 / 4 * by_arm["1F1B 4"]["seconds"])


def test_recomputing_lengthens_the_backward_alone() -> None:
    by_arm = rows({"a": {"method": "1f1b"}, "b": {"method": "1f1b", "recompute": True}}, ground(), [4])
    plain, recomputing = by_arm["a 4"]["stages"], by_arm["b 4"]["stages"]
    for before, after in zip(plain, recomputing, strict=True):
        assert after["seconds"]["forward"] == before["seconds"]["forward"]
        assert after["seconds"]["backward"] == before["seconds"]["backward"] + before["seconds"]["forward"]
    assert by_arm["b 4"]["seconds"] == pytest.approx(4 * 7)


def test_a_lockstep_clock_pads_1f1b_but_not_dualpipe() -> None:
    arms = {
        f"{name}, {clock}": {"method": name, "clock": clock}
        for name in ("pipedream", "dualpipe")
        for clock in ("free", "lockstep")
    }
    by_arm = {name: row["seconds"] / 4 for name, row in rows(arms, ground(), [4]).items()}
    assert by_arm["pipedream, free 4"] == pytest.approx(5)
    assert by_arm["pipedream, lockstep 4"] == pytest.approx(max(1, 3, 1, 2) + max(2, 2, 3, 1))
    assert by_arm["dualpipe, free 4"] == by_arm["dualpipe, lockstep 4"] == pytest.approx(5)


def test_moving_weights_is_charged_where_it_happens() -> None:
    """6 |W| of stashing on all stages but the last, at 100 bytes per second, and SGD's step on each (5 |W| fused)."""
    place = {moving: ground(moving=moving) for moving in ("free", "fused", "separate")}
    by_moving = {
        moving: rows({"PipeDream": {"method": "pipedream"}}, one, [4])["PipeDream 4"] for moving, one in place.items()
    }
    for stage, weights in enumerate(WEIGHTS):
        seconds = {moving: row["stages"][stage]["seconds"] for moving, row in by_moving.items()}
        stashed = 6 * weights if stage < 3 else 0
        assert seconds["fused"]["policy"] == seconds["separate"]["policy"] == pytest.approx(stashed / 100)
        assert seconds["fused"]["update"] == pytest.approx(5 * weights / 100)
        assert seconds["separate"]["update"] > seconds["fused"]["update"] or not weights
        assert seconds["free"]["policy"] == seconds["free"]["update"] == 0
        for one in seconds.values():
            assert (one["forward"], one["backward"]) == pytest.approx(
                (4 * (1, 2, 1, 1)[stage], 4 * (2, 3, 3, 2)[stage])
            )
        assert by_moving["free"]["stages"][stage]["moved"] == {"separate": stashed, "fused": stashed}
    slowest = max(sum(stage["seconds"].values()) for stage in by_moving["fused"]["stages"])
    assert by_moving["fused"]["seconds"] == pytest.approx(slowest) == pytest.approx(16 + 11 * 8)
    # one GPU has nothing to stash
    assert by_moving["fused"]["speedup"] == pytest.approx((60 + 5 * sum(WEIGHTS) / 100) / slowest)


def test_advice_charges_for_moving_weights_too() -> None:
    """The third stage: 16 seconds of passes and 11 x 800 bytes at 100 a second."""
    line = Plan(tuple(PlanStage(n, n) for n in range(1, 5)))
    laid = Laid(Arm.of("a", {"method": "pipedream"}), ground(moving="fused"), line)
    assert laid.period(4) == pytest.approx(16 + 11 * 8)


def test_microbatches_share_what_a_minibatch_moves() -> None:
    place = ground(moving="fused")
    row = rows({"2BW": {"method": "pipedream_2bw", "microbatches": 4}}, place, [4])["2BW 4"]
    slowest = max(sum(stage["seconds"].values()) for stage in row["stages"])
    assert slowest <= row["seconds"] < 1.02 * slowest  # an update holds up one microbatch of four
    assert row["stages"][0]["seconds"]["policy"] == pytest.approx(18 * WEIGHTS[0] / 100)
    for stage, forward, backward in zip(row["stages"], (1, 2, 1, 1), (2, 3, 3, 2), strict=True):
        assert stage["seconds"]["forward"] == pytest.approx(4 * forward)
        assert stage["seconds"]["backward"] == pytest.approx(4 * backward)


@pytest.mark.parametrize(("gather", "seconds"), [("ring", 2 * 3 / 4), ("server", 2 * 3)])
def test_strong_scaling_by_hand(gather: str, seconds: float) -> None:
    place = ground(bandwidth=1000.0)
    by_arm = rows({"Data P.": {"method": "bsp", "gather": gather}}, place, [1, 2, 4])
    size = sum(WEIGHTS)
    four = by_arm["Data P. 4"]
    assert four["seconds"] == pytest.approx(15 + seconds * size / 1000)  # a sample each, then the sum
    assert four["unhindered"] == pytest.approx(15)
    assert four["bytes"] == summed_bytes(size, 4) == 6 * size
    assert four["speedup"] == pytest.approx(60 / four["seconds"])
    assert by_arm["Data P. 1"]["speedup"] == pytest.approx(1)
    assert (by_arm["Data P. 1"]["bytes"], by_arm["Data P. 1"]["seconds"]) == (0, pytest.approx(60))
    assert by_arm["Data P. 2"]["seconds"] == pytest.approx(30 + {"ring": 1, "server": 2}[gather] * size / 1000)
    # all of the ring sends all the time; beside a server each of the others is served for a third of it
    transfer = [one["transfer"] for one in four["gpus"]]
    whole = 1 - 15 / four["seconds"]
    assert transfer == pytest.approx([whole] * 4 if gather == "ring" else [whole, *[whole / 3] * 3])
    assert [one["imbalance_idle"] for one in four["gpus"]] == pytest.approx([0] * 4)


def test_gpus_of_two_servers_sum_over_the_link_between_them() -> None:
    """A ring of four sends 2 x 3/4 of the weights at 100 bytes a second; two in a server send all of them at 1,000."""
    cluster = Cluster((Level(2, 1000.0), Level(2, 100.0)))
    by_arm = rows({"Data P.": {"method": "bsp"}}, replace(ground(), cluster=cluster), [2, 4])
    size = sum(WEIGHTS)
    assert by_arm["Data P. 2"]["seconds"] == pytest.approx(30 + size / 1000)
    assert by_arm["Data P. 4"]["seconds"] == pytest.approx(15 + 1.5 * size / 100)


def test_a_server_updates_while_the_others_wait() -> None:
    place = ground(bandwidth=1000.0, moving="fused")
    row = rows({"Data P.": {"method": "bsp", "gather": "server"}}, place, [4])["Data P. 4"]
    update = 5 * sum(WEIGHTS) / 100
    assert row["seconds"] == pytest.approx(15 + update + 6 * sum(WEIGHTS) / 1000)
    assert row["speedup"] == pytest.approx((60 + update) / row["seconds"])  # one GPU updates all weights, too
    idle = [one["imbalance_idle"] for one in row["gpus"]]
    assert idle == pytest.approx([0, *[update / row["seconds"]] * 3])


def test_gradients_can_be_summed_while_the_backward_runs() -> None:
    place = ground(bandwidth=1000.0)
    by_arm = rows({"after": {"method": "bsp"}, "meanwhile": {"method": "bsp", "overlap": True}}, place, [4])
    assert by_arm["meanwhile 4"]["seconds"] < by_arm["after 4"]["seconds"]
    assert by_arm["meanwhile 4"]["seconds"] == pytest.approx(
        15 + 1.5 * WEIGHTS[0] / 1000
    )  # the first layer's, at the end


def test_no_gradient_is_there_before_the_forward_has_run_again() -> None:
    """Two layers of 1 s forward and 1 s backward; the last one's 8 bytes take 2 (2-1)/2 x 8 / 2 = 4 s to sum."""
    times = Profile(tuple(LayerTime(n, "layer", 1e3, 1e3, 4, 4, size) for n, size in ((1, 0), (2, 8))))
    place = Ground(Profiles(lambda _: times), flat(2, 2.0), Device(1.0, 1.0), 1e9, sgdm, 2, "free")
    row = rows({"Data P.": {"method": "bsp", "overlap": True, "recompute": True}}, place, [2])["Data P. 2"]
    assert row["seconds"] == pytest.approx(2 + 2 + 1 + 4)  # forward, forward again, the last layer's backward, the sum


def test_no_share_is_below_0_by_rounding() -> None:
    """0.1 + 0.2 + 0.3 seconds of backwards are more than 0.3 + 0.2 + 0.1, to numbers of 64 bits."""
    times = Profile(tuple(LayerTime(n, "layer", 0.0, 100.0 * n, 4, 4, 8) for n in (1, 2, 3)))
    place = Ground(Profiles(lambda _: times), flat(1), Device(1.0, 1.0), 1e9, sgdm, 1, "free")
    row = rows({"Data P.": {"method": "bsp", "overlap": True}}, place, [1])["Data P. 1"]
    assert row["gpus"] == [{"computing": 1.0, "transfer": 0.0, "transfer_idle": 0.0, "imbalance_idle": 0.0}]


def test_bytes_of_both_kinds_of_parallelism_by_one_rule() -> None:
    """Activations and gradients over the cuts; 2 (N-1) |w| once per sum (SpecTrain figure 3)."""
    arms = {"a": {"method": "1f1b"}, "b": {"method": "1f1b_flush", "microbatches": 2}, "c": {"method": "bsp"}}
    by_arm = rows(arms, ground(), [4])
    assert by_arm["a 4"]["bytes"] == by_arm["b 4"]["bytes"] == 2 * 4 * (10 + 20 + 30)
    assert by_arm["c 4"]["bytes"] == 2 * 3 * sum(WEIGHTS)
    # PipeDream's data parallelism: a minibatch per replica, one sum for all of them
    assert bytes_per_minibatch(profile(4), Plan((PlanStage(1, 4, 4),))) * 4 == by_arm["c 4"]["bytes"]


@given(
    method=st.sampled_from(["pipedream", "xpipe", "gpipe", "dualpipe", "bsp", "sequential"]),
    clock=st.sampled_from(["free", "lockstep"]),
    bandwidth=st.sampled_from([5.0, 50.0, 1e9]),
    overlap=st.booleans(),
    gather=st.sampled_from(["ring", "server"]),
    workers=st.sampled_from([1, 2, 4]),
)
@settings(deadline=None, max_examples=40)
def test_shares_of_every_gpu_add_up(
    method: str, clock: str, bandwidth: float, overlap: bool, gather: str, workers: int
) -> None:
    option = {"gather": gather} if method == "bsp" else {"clock": clock}
    arm = {"method": method, "overlap": overlap} | option
    (row,) = rows({"arm": arm}, ground(bandwidth=bandwidth, moving="fused"), [workers]).values()
    per_gpu = row["gpus"] if method == "bsp" else [stage["shares"] for stage in row["stages"]]
    assert len(per_gpu) == workers
    for one in per_gpu:
        assert set(one) == {"computing", "transfer", "transfer_idle", "imbalance_idle"}
        assert sum(one.values()) == pytest.approx(1)
        assert min(one.values()) >= 0
    if bandwidth == 1e9 or workers == 1:
        assert max(one["transfer"] + one["transfer_idle"] for one in per_gpu) < 1e-3
    busy = max(one["computing"] for one in per_gpu)
    if method == "pipedream" and clock == "free" and bandwidth == 1e9:
        assert busy == pytest.approx(1, abs=1e-3)  # the slowest stage never waits
    slower = row["seconds"] - row["unhindered"]
    assert slower >= -1e-9
    assert (
        max((o["transfer"] + o["transfer_idle"]) for o in per_gpu) * row["seconds"] == pytest.approx(slower, abs=1e-6)
        or overlap is False
    )


def test_slow_links_are_told_from_imbalance() -> None:
    even = Profiles(lambda n: Profile((LayerTime(1, "even", SECOND * n, 2 * SECOND * n, n, 1, 4),) * 2))
    slow = Ground(even, flat(2, 0.25), Device(1.0, 1.0), 1e6, sgdm, 1, "free")
    row = rows({"a": {"method": "1f1b", "overlap": False}}, slow, [2])["a 2"]
    for stage in row["stages"]:  # 3 s of computing, 4 s of sending, and of the rest the links have all the blame
        assert stage["shares"]["computing"] * row["seconds"] == pytest.approx(3)
        assert stage["shares"]["transfer"] * row["seconds"] == pytest.approx(4)
        assert stage["shares"]["imbalance_idle"] == pytest.approx(0)
        assert stage["shares"]["transfer_idle"] * row["seconds"] == pytest.approx(row["seconds"] - 7)


def test_each_microbatch_is_sent() -> None:
    """Two of one sample, each of which holds either stage up for 4 s."""
    even = Profiles(lambda n: Profile((LayerTime(1, "even", SECOND * n, 2 * SECOND * n, n, 1, 4),) * 2))
    slow = Ground(even, flat(2, 0.25), Device(1.0, 1.0), 1e6, sgdm, 2, "free")
    row = rows({"a": {"method": "gpipe", "microbatches": 2, "overlap": False}}, slow, [2])["a 2"]
    for stage in row["stages"]:
        assert stage["shares"]["computing"] * row["seconds"] == pytest.approx(2 * 3)
        assert stage["shares"]["transfer"] * row["seconds"] == pytest.approx(2 * 4)


def test_the_largest_batch_can_be_the_batch() -> None:
    place = ground(memory=50_000.0)
    row = rows({"PipeOptim": {"method": "pipeoptim", "batch": "largest", "recompute": True}}, place, [4])["PipeOptim 4"]
    most = row["largest"]
    assert row["batch"] == most["batch"] == most["samples"] and row["fits"]
    # the last stage: no version, 3 |W| of weights, gradients and momentum; an input of 30 and 400 kept per sample; the
    # third: 4 |W|, 2 inputs of 20 and 300 kept
    by_hand = min(
        (50_000 - 3 * 1600) // 430,
        (50_000 - 4 * 800) // 340,
        (50_000 - 4 * 400) // (4 * 7 + 100),
        (50_000) // (3 * 10 + 200),
    )
    assert most["samples"] == by_hand
    assert row["largest_executor"]["samples"] <= by_hand


def test_an_arm_that_fits_at_no_batch_says_so() -> None:
    row = rows({"PipeDream": {"method": "pipedream", "batch": "largest"}}, ground(memory=3000.0), [4])["PipeDream 4"]
    assert row["batch"] == row["largest"]["batch"] == 0
    assert "seconds" not in row
    assert row["largest"]["why"].startswith("with one sample stage 4 holds")
    assert "the largest part, weights, is" in row["largest"]["why"]
    row = rows({"PipeDream": {"method": "pipedream"}}, ground(memory=3000.0), [4])["PipeDream 4"]
    assert row["fits"] is False and row["seconds"] > 0


def test_no_limit_is_told() -> None:
    endless = Ground(Profiles(profile), flat(4), Device(1.0, 1.0), float("inf"), sgdm, 4)
    assert rows({"A": {"method": "1f1b"}}, endless, [4])["A 4"]["largest"]["batch"] is None
    with pytest.raises(PipelagError, match="the arm 'A' has no largest batch: however many samples"):
        rows({"A": {"method": "1f1b", "batch": "largest"}}, endless, [4])


@pytest.mark.parametrize("name", ["zb_h1", "zb_h2"])
def test_backwards_in_two_parts_need_a_profile_that_knows_both(name: str) -> None:
    arms = {"zb": {"method": name, "microbatches": 4}, "1F1B": {"method": "1f1b_flush", "microbatches": 4}}
    with pytest.raises(PipelagError, match=f"^'{name}' computes the gradients of weights apart .* say how long they"):
        rows(arms, ground(), [4])

    def halved(samples: int) -> Profile:
        return Profile(tuple(replace(layer, weight_ms=layer.backward_ms / 2) for layer in profile(samples).layers))

    known = replace(ground(), profiles=Profiles(halved, input_bytes=7.0))
    found = rows(arms, known, [4])
    assert found["zb 4"]["seconds"] < found["1F1B 4"]["seconds"]
    assert [stage["seconds"] for stage in found["zb 4"]["stages"]] == [
        stage["seconds"] for stage in found["1F1B 4"]["stages"]
    ]

    def costly(samples: int) -> Profile:
        return Profile(tuple(replace(layer, split_ms=layer.weight_ms) for layer in halved(samples).layers))

    slower = rows(arms, replace(ground(), profiles=Profiles(costly, input_bytes=7.0)), [4])
    assert slower["1F1B 4"] == found["1F1B 4"] and slower["zb 4"]["seconds"] > found["zb 4"]["seconds"]
    assert [stage["seconds"]["backward"] for stage in slower["zb 4"]["stages"]] == [
        pytest.approx(stage["seconds"]["backward"] * (1.5 if stage["stage"] > 1 else 1.0))
        for stage in found["zb 4"]["stages"]
    ]


def test_given_cuts_are_kept_and_others_are_the_partitioners() -> None:
    stages = rows({"a": {"method": "1f1b"}}, ground(), [2], [1])["a 2"]["stages"]
    assert [(stage["first"], stage["last"]) for stage in stages] == [(1, 1), (2, 4)]
    stages = rows({"a": {"method": "1f1b"}}, ground(), [2])["a 2"]["stages"]
    assert [(stage["first"], stage["last"]) for stage in stages] == [(1, 2), (3, 4)]


@pytest.mark.parametrize(
    ("arm", "sentence"),
    [
        ({"method": "pipeoptin"}, "unknown method 'pipeoptin'; did you mean 'pipeoptim'?"),
        ({"method": "gpipe", "microbatch": 4}, "setting 'microbatch' of the arm 'A'; did you mean 'microbatches'?"),
        ({"method": "gpipe", "clock": "lockstop"}, "is 'lockstop', which is not known; did you mean 'lockstep'?"),
        ({"method": "bsp", "gather": "serve"}, "is 'serve', which is not known; did you mean 'server'?"),
        ({"method": "gpipe", "batch": "largets"}, "is 'largets', which is not known; did you mean 'largest'?"),
        ({"method": "gpipe", "batch": 0}, "'batch' of the arm 'A' is 0; it should be 1 or more"),
        ({"method": "gpipe", "batch": -4}, "'batch' of the arm 'A' is -4; it should be 1 or more"),
        ({"method": "gpipe", "microbatches": "4"}, "'microbatches' of the arm 'A' is '4'; it should be a whole number"),
        ({"method": "gpipe", "recompute": 2}, "'recompute' of the arm 'A' is 2"),
        ({"batch": 4}, "'method' of the arm 'A' is missing"),
        ({"method": "pipemare", "settings": {"anealing": 3}}, "did you mean 'annealing'?"),
        ({"method": "gpipe", "microbatches": 3}, "cannot divide a minibatch of 4 equally over 3 microbatches"),
        ({"method": "pipedream_2bw", "microbatches": 2}, "as many as stages are always enough"),
        ({"method": "xpipe", "gather": "ring"}, "is a pipeline, which sums no gradients"),
        ({"method": "bsp", "microbatches": 2}, "has no clock and no microbatches"),
        ({"method": "bsp", "batch": 6}, "cannot divide a minibatch of 6 equally over 4 GPUs"),
        ({"method": "hogwild"}, "has no schedule"),
        ({"method": "asp"}, "has no schedule"),
        (
            {"method": "zb_h1", "recompute": True},
            "the arm 'A' recomputes activations, but 'zb_h1' keeps them until it computes the gradients of the weights",
        ),
    ],
)
def test_what_cannot_be_is_refused(arm: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PipelagError) as refusal:
        checked_arms({"A": arm}, flat(4), [4], 4, None)
    assert sentence in str(refusal.value)


def test_numbers_of_gpus_are_checked() -> None:
    arms = {"A": {"method": "1f1b"}}
    with pytest.raises(PipelagError, match="the arms can use 1 to 4 GPUs .the cluster has no more., not 8"):
        checked_arms(arms, flat(4), [8], 4, None)
    with pytest.raises(PipelagError, match=r"the cuts \[1\] make 2 stages, but the arms use 2, 4 GPUs"):
        checked_arms(arms, flat(4), [2, 4], 4, [1])


SPEC: dict[str, Any] = {
    "kind": "partition",
    "model": {"name": "vgg16", "options": {"width": 0.0625, "classes": 10}},
    "batch": 8,
    "optimizer": {"name": "adam", "lr": 0.001},
    "options": {
        "profile": {"roofline": "p40", "inputs": [{"shape": [3, 32, 32]}], "loss": True},
        "cluster": {"levels": [{"workers": 2, "bandwidth": 12e9}]},
        "search": False,
        "workers": [1, 2],
        "arms": {"Data P.": {"method": "bsp"}, "PipeOptim": {"method": "pipeoptim", "recompute": True}},
    },
}


def spec_with(**options: Any) -> RunSpec:
    return RunSpec.model_validate(SPEC | {"options": SPEC["options"] | options})


def test_a_run_logs_its_arms(tmp_path: Path) -> None:
    carry_out(spec_with(), tmp_path / "run", "cpu", 1)
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["layer"] for row in logged if row["what"] == "layer"] == list(range(1, 17))
    logged_arms = [row for row in logged if row["what"] == "arm"]
    assert [(row["arm"], row["workers"]) for row in logged_arms] == [
        ("Data P.", 1),
        ("PipeOptim", 1),
        ("Data P.", 2),
        ("PipeOptim", 2),
    ]
    assert not [row for row in logged if row["what"] == "plan"]
    pipeline = logged_arms[-1]
    assert pipeline["gpu_memory"] == 24 * 2**30 and pipeline["fits"]
    assert [stage["versions"] for stage in pipeline["stages"]] == [2, 1]
    for stage in pipeline["stages"]:
        assert set(stage["memory"]) == {
            *("weights", "versions", "remembered", "gradients", "optimizer", "inputs", "activations"),
            "output_gradients",
        }
        weights = stage["memory"]["weights"]
        assert stage["memory"]["optimizer"] == pytest.approx(2 * weights, abs=100)
    assert pipeline["stages"][0]["memory"]["inputs"] == 2 * 8 * 3 * 32 * 32 * 4  # two minibatches of images under way


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"arm": {}}, "unknown option 'arm' of a partition run; did you mean 'arms'?"),
        ({"moving": "fuse"}, "is 'fuse', which is not known; did you mean 'fused'?"),
        ({"profile": {"rooflin": "p40"}}, "unknown option 'rooflin' of a plan's profile; did you mean 'roofline'?"),
        ({"device": "p10"}, "did you mean 'p100'?"),
        ({"workers": [1, 4]}, "1 to 2 GPUs"),
        ({"cuts": [3]}, "the cuts [3] make 2 stages, but the arms use 1, 2 GPUs"),
        ({"arms": {"X": {"method": "gpip"}}}, "did you mean 'gpipe'?"),
        ({"depths": "4"}, "the option 'depths' of a partition run is '4'"),
        ({"depths": [1, 0]}, "the option 'depths.1' of a partition run is 0; it should be 1 or more"),
        (
            {"data_parallel_over": [0]},
            "the option 'data_parallel_over.0' of a partition run is 0; it should be 1 or more",
        ),
    ],
)
def test_a_run_is_refused_before_it_begins(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refusal:  # most are refused with the spec
        carry_out(spec_with(**options), tmp_path / "run", "cpu", 1)
    assert sentence in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_arms_need_an_optimizer(tmp_path: Path) -> None:
    with pytest.raises(PipelagError, match="give the run an optimizer"):
        carry_out(spec_with().model_copy(update={"optimizer": None}), tmp_path / "run", "cpu", 1)


@pytest.mark.parametrize("scale", ["quick", "standard", "paper", "published"])
def test_the_plans_of_every_scale_are_well_asked(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    asked = 0
    for paper in ("pipedream", "pipeoptim", "spectrain"):
        for result in load_paper(paper).results:
            for arm in config_arms(load_paper(paper), result, load_scale(scale)):
                if arm.spec.kind == "partition":
                    options = checked(PlanOptions, arm.spec.options, "option of a plan")
                    checked(ProfileOptions, options.profile, "option of a plan's profile")
                    asked += 1
    assert asked > 10


def test_an_arm_says_how_it_runs() -> None:
    arm = Arm.of("2BW", {"method": "pipedream_2bw", "microbatches": 4})
    assert arm.options == ArmOptions(method="pipedream_2bw", microbatches=4)
    assert (arm.parts(8), arm.samples(8, 64)) == (4, 16)
    data = Arm.of("Data P.", {"method": "bsp", "batch": "largest"})
    assert (data.parts(8), data.samples(8, 64)) == (8, None)


def test_the_largest_batch_is_of_all_microbatches() -> None:
    """GPipe's four are under way on every stage, beside weights, gradients and momentum."""
    arm = {"method": "gpipe", "microbatches": 4, "batch": "largest"}
    row = rows({"GPipe": arm}, ground(memory=50_000.0), [4])["GPipe 4"]
    samples = min(
        (50_000 - 3 * weights) // (4 * (entering + kept))
        for weights, entering, kept in zip(WEIGHTS, (7, 10, 20, 30), (100, 200, 300, 400), strict=True)
    )
    assert (row["largest"]["samples"], row["largest"]["batch"], row["batch"]) == (samples, 4 * samples, 4 * samples)
    assert row["largest"]["stage"] == 4 and row["fits"]
    assert row["samples_per_second"] == pytest.approx(4 * samples / row["seconds"])


def test_the_fullest_stage_of_the_executors_here_is_by_what_they_hold() -> None:
    """SpecTrain has 7, 5, 3 and 1 minibatches under way. With 46 samples stage 2, which has no weights, holds most; but
    for what the executor keeps ready beside the third one's.
    """
    place = ground(memory=50_000.0)
    placed = Pipelined(Arm.of("a", {"method": "spectrain"}), place, straight_plan(place, 4))
    assert placed.under_way == [7, 5, 3, 1]
    most, memory = placed.largest(executor=True), placed.memory(46)
    assert (most["samples"], most["stage"]) == (46, 3)
    assert memory[1].total() == memory[1].total(True) == 5 * 46 * (10 + 200)
    assert memory[2].total() == 4 * 800 + 3 * 46 * (20 + 300)
    assert memory[2].total() < memory[1].total() < memory[2].total() - memory[2].versions + memory[2].rings
    row = rows({"a": {"method": "spectrain"}}, place, [4])["a 4"]
    assert row["largest"]["samples"] == 50_000 // (5 * (10 + 200)) and row["largest_executor"] == most


@pytest.mark.parametrize("moving", ["separate", "fused"])
def test_what_is_charged_is_what_is_said_to_move(moving: str) -> None:
    """At 100 bytes a second; predicting in one kernel moves less than in several."""
    row = rows({"a": {"method": "xpipe"}}, ground(moving=moving), [4])["a 4"]
    for stage in row["stages"]:
        assert stage["seconds"]["policy"] == pytest.approx(stage["moved"][moving] / 100)
        assert stage["moved"]["separate"] > stage["moved"]["fused"] > 0 or stage["stage"] == 2  # without weights
