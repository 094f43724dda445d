"""What `pipelag advise` chooses from, by hand: plans that one of the methods may be quickest with, and what fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pipelag.errors import PipelagError
from pipelag.methods import METHODS
from pipelag.partitioner.advice import Choice, best, choices, computing, plans_of, timed
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.cluster import Cluster, Level, flat
from pipelag.partitioner.laid import Laid
from pipelag.partitioner.plan import Plan, PlanStage
from pipelag.partitioner.replicated import Replicated
from pipelag.partitioner.search import partition
from pipelag.timing.by_batch import Profiles
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import Device
from tests.partitioner.test_advise import ground, profile

ENDLESS = float("inf")


def of_three(*rows: tuple[float, float, int], memory: float = ENDLESS) -> Ground:
    """Layers of (forward ms, backward ms, bytes of weights) on two GPUs whose links cost nothing; minibatches of 1."""
    layers = tuple(LayerTime(n, f"layer {n}", f, b, 0, 0, w) for n, (f, b, w) in enumerate(rows, start=1))
    return Ground(Profiles(lambda _: Profile(layers)), flat(2), Device(1.0, 1.0), memory, sgd, 1, "free")


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all methods these."""
    names = ("bsp", "pipedream", "gpipe", "hogwild")
    monkeypatch.setattr("pipelag.partitioner.advice.METHODS", {name: METHODS[name] for name in names})


@pytest.fixture
def chosen() -> Choice:
    (one,) = (each for each in best(choices(ground(2), one_minibatch=True)[0]) if each.method.name == "pipedream")
    return one


def test_recomputing_may_want_other_cuts() -> None:
    """4, 2 and 6 ms are two halves behind layer 2; with the forwards again 8, 4 and 6 are nearest to it behind 1."""
    place = of_three((4.0, 0.0, 0), (2.0, 0.0, 0), (0.0, 6.0, 0))
    straight = [plan.cuts for plan in plans_of(place) if max(stage.replicas for stage in plan.stages) == 1]
    assert straight == [(2,), (1,)]


def test_over_several_levels_plans_without_regard_to_them_are_timed_too() -> None:
    """Predicted to be slower for its one boundary, of which the timed executor knows that many links share it."""
    rows = [(3.5, 7.0)] * 7
    rows[1] = rows[5] = (30.0, 60.0)
    layers = tuple(
        LayerTime(n, "x", f, b, 4_000_000 * n, 0, 400_000_000 if n == 7 else 10_000_000)
        for n, (f, b) in enumerate(rows, start=1)
    )
    cluster = Cluster((Level(3, 25e9, 8e-6), Level(2, 3e9, 3e-5), Level(2, 1e9, 1e-4)))
    for memory in (ENDLESS, 3e9):
        place = Ground(Profiles(lambda _: Profile(layers)), cluster, Device(1.0, 1.0), memory, sgd, 1, "free")
        by_cost, over = (partition(Profile(layers), cluster, hierarchical=way) for way in (None, False))
        assert (by_cost.config, over.config) == ("6-3-3", "11-1") and (by_cost.period or 0) < (over.period or 0)
        (one,) = (each for each in best(choices(place)[0]) if each.method.name == "pipedream")
        assert one.plan == over


def test_what_fits_is_chosen_though_another_plan_were_quicker() -> None:
    """Layer 2's 1,000 bytes are there three times on the first stage (two versions and gradients), behind it twice,
    where 8 ms go by instead of 6.
    """
    rows = ((0.0, 4.0, 0), (0.0, 2.0, 1000), (0.0, 6.0, 0))
    assert [plan.cuts for plan in plans_of(of_three(*rows)) if plan.config == "straight"] == [(2,)]
    (one,) = (each for each in best(choices(of_three(*rows, memory=2500.0))[0]) if each.method.name == "pipedream")
    assert (one.usable, one.plan.cuts, one.seconds) == (True, (1,), pytest.approx(8e-3))
    assert one.fullest.total() == 2000


def test_what_fits_with_the_optimizers_state_is_chosen() -> None:
    """The same with momentum, another 1,000 bytes: 4,000 on the first stage, 3,000 behind it."""
    rows = ((0.0, 4.0, 0), (0.0, 2.0, 1000), (0.0, 6.0, 0))
    place = replace(of_three(*rows, memory=3500.0), optimizer=lambda params: torch.optim.SGD(params, 0.1, momentum=0.9))
    (one,) = (each for each in best(choices(place)[0]) if each.method.name == "pipedream")
    assert (one.usable, one.plan.cuts, one.fullest.total()) == (True, (1,), 3000)


def test_of_what_does_not_fit_the_one_that_holds_least_is_told(chosen: Choice) -> None:
    small, large = chosen.memory[0], replace(chosen.memory[0], weights=10**9)
    quick = replace(chosen, fits=False, fits_recomputing=False, seconds=1.0, memory=(large,))
    slow = replace(quick, seconds=2.0, memory=(small,))
    fits = replace(slow, fits=True, seconds=3.0, memory=(large,))
    assert best([quick, slow]) == [slow] and best([quick, slow, fits]) == [fits]
    assert best([replace(fits, seconds=2.5), fits]) == [replace(fits, seconds=2.5)]


def test_what_is_usable_stale_and_named(chosen: Choice) -> None:
    apart = replace(chosen, fits=False, fits_recomputing=True)
    assert replace(apart, recompute=True).usable and not apart.usable
    still = replace(chosen, staleness=(0, 0), stale_backward=(0, 0))
    assert not still.stale and replace(still, stale_backward=(0, 1)).stale and replace(still, staleness=(1, 0)).stale
    assert replace(chosen, plan=Plan((PlanStage(1, 6),))).config == "1 GPU"
    bsp = replace(chosen, method=METHODS["bsp"], plan=Plan((PlanStage(1, 6, 4),)), updates=(1,))
    assert bsp.config == "divided over 4" and replace(bsp, updates=(4,)).config == "4"


def test_data_parallelism_has_all_of_a_pass_whether_it_is_computed_again_or_not() -> None:
    """13 ms of forwards and 18 of backwards, on both of two GPUs for two minibatches or on each for a half."""
    place = ground(2, bandwidth=1e18)
    together, divided = (one for one in choices(place)[0] if one.method.name == "bsp")
    assert (together.updates, divided.updates) == ((2,), (1,))
    assert together.seconds == pytest.approx(31e-3 / 2) and divided.seconds == pytest.approx(31e-3 / 2)
    kept = 6 * 250 * 8  # bytes of a minibatch, beside weights, gradients and momentum
    assert (together.fullest.total(), divided.fullest.total()) == (3 * 8400 + kept, 3 * 8400 + kept / 2)
    half = replace(place, memory=divided.fullest.total())
    usable = [(one.fits, one.fits_recomputing) for one in choices(half)[0] if one.method.name == "bsp"]
    assert usable == [(False, False), (True, True)]
    again = Arm.of("bsp", {"method": "bsp", "recompute": True})
    assert Replicated(again, place, 2).memory(8) == list(together.memory)


def test_staleness_is_told_in_minibatches() -> None:
    """2BW's weights miss one update on every stage, which is of one minibatch of four parts (Memory-Efficient
    Pipeline-Parallel DNN Training, section 3.1); PipeDream's miss as many as there are stages behind.
    """
    plan = Plan(tuple(PlanStage(n, n) for n in (1, 2, 3)) + (PlanStage(4, 6),))
    staleness = {
        name: Laid(Arm.of("a", {"method": name, "microbatches": parts}), ground(4), plan).staleness()
        for name, parts in (("pipedream_2bw", 4), ("pipedream", 1), ("gpipe", 4))
    }
    assert staleness == {"pipedream_2bw": (1, 1, 1, 1), "pipedream": (3, 2, 1, 0), "gpipe": (0, 0, 0, 0)}


def test_every_update_is_of_one_minibatch_where_that_is_asked_for() -> None:
    allowed, without = choices(ground(2), one_minibatch=True)
    assert {max(one.updates) for one in allowed} == {1}
    assert {one.method.name for one in allowed} >= {"bsp", "pipedream", "gpipe"} and "hogwild" in without
    odd = replace(ground(3), batch=8)
    assert without.keys() < choices(odd, one_minibatch=True)[1].keys()
    assert choices(odd, one_minibatch=True)[1]["bsp"] == "a minibatch of 8 cannot be divided over 3 GPUs"


def test_times_found_before_are_of_the_same_passes() -> None:
    """Methods that differ in what they hold share them: not where one of them has to recompute, nor across parts."""
    plan = Plan((PlanStage(1, 5), PlanStage(6, 6)))
    place = ground(2)

    def laid(name: str, memory: float = ENDLESS, **more: Any) -> Laid:
        return Laid(Arm.of(name, {"method": name, **more}), replace(place, memory=memory), plan)

    names = ("1f1b", "pipedream")
    held = {name: timed(laid(name), {}).fullest.total() for name in names}
    memory = max(held.values()) - 1
    assert min(held.values()) < memory
    clock: Any = {}
    found = [timed(laid(name, memory), clock) for name in names]
    assert sorted(one.recompute for one in found) == [False, True]
    alone = [timed(laid(name, memory), {}) for name in names]
    assert [one.seconds for one in found] == [one.seconds for one in alone] and found[0].seconds != found[1].seconds
    parts = [timed(laid("gpipe", microbatches=n), clock).seconds for n in (2, 4)]
    assert parts == [timed(laid("gpipe", microbatches=n), {}).seconds for n in (2, 4)] and parts[0] != parts[1]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_no_schedule_is_quicker_than_its_slowest_stage_computes_however_a_minibatch_is_split(parts: int) -> None:
    """29 ms of five layers for eight samples; their replicas take turns with whole minibatches."""
    assert computing(ground(2), Plan((PlanStage(1, 5), PlanStage(6, 6))), parts) == pytest.approx(29e-3)
    assert computing(ground(3), Plan((PlanStage(1, 5, 2), PlanStage(6, 6))), parts) == pytest.approx(29e-3 / 2)


@pytest.mark.parametrize("milliseconds", [0.0, 5e-324])
@pytest.mark.parametrize("workers", [1, 2])
def test_layers_that_take_no_time_are_refused_on_any_number_of_gpus(milliseconds: float, workers: int) -> None:
    """Of one GPU no plan is searched for; and milliseconds may be numbers of which no second is left."""
    none = replace(of_three((milliseconds, 0.0, 8), (0.0, 0.0, 8)), cluster=flat(workers))
    with pytest.raises(PipelagError, match="all layers of the profile take no time; profile the model"):
        choices(none)


def test_more_bytes_than_64_bits_hold_do_not_fit() -> None:
    """Two layers of 5e18 bytes that their backwards need: as whole numbers of 64 bits their sum is below 0."""
    layers = tuple(LayerTime(n, "", 1.0, 1.0, 0, 5 * 10**18, 8) for n in (1, 2))
    huge = replace(of_three((1.0, 1.0, 8)), profiles=Profiles(lambda _: Profile(layers)), memory=1e18)
    (divided,) = (each for each in best(choices(huge)[0]) if each.method.name == "bsp")
    assert divided.fullest.activations == 1e19 and not divided.fits


def halves(samples: int) -> Profile:
    """`profile`, half of whose backwards are gradients of weights."""
    return Profile(tuple(replace(layer, weight_ms=layer.backward_ms / 2) for layer in profile(samples).layers))


def test_zero_bubble_is_compared_where_the_profile_knows_both_parts_of_a_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("1f1b_flush", "zb_h1")
    monkeypatch.setattr("pipelag.partitioner.advice.METHODS", {name: METHODS[name] for name in names})
    known, unknown = replace(ground(4), profiles=Profiles(halves)), ground(4)
    found, without = choices(known)
    quickest = {one.method.name: one.seconds for one in best(found)}
    assert quickest.keys() == {"1f1b_flush", "zb_h1"} and quickest["zb_h1"] < quickest["1f1b_flush"]
    assert without == {}
    found, without = choices(unknown)
    assert {one.method.name for one in found} == {"1f1b_flush"}
    assert without["zb_h1"] == (
        "'zb_h1' computes the gradients of weights apart from the rest of a backward (W), and the profile does not say "
        "how long they take (weight_ms)"
    )


def test_zero_bubble_is_compared_with_whole_minibatches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight layers of 1 ms for F, B and W over four GPUs: 4 (F+B) + W of two layers (arXiv 2401.10241, table 2)."""
    monkeypatch.setattr("pipelag.partitioner.advice.METHODS", {"zb_h1": METHODS["zb_h1"]})
    layers = tuple(LayerTime(n, "", 1.0, 2.0, 0, 0, 8, 1.0) for n in range(1, 9))
    place = Ground(Profiles(lambda _: Profile(layers)), flat(4), Device(1.0, 1.0), ENDLESS, sgd, 1, "free")
    found, without = choices(place, microbatches=1)
    assert without == {} and best(found)[0].plan.cuts == (2, 4, 6)
    assert best(found)[0].seconds == pytest.approx(4 * 4e-3 + 2e-3)


def test_what_keeps_activations_for_the_gradients_of_weights_does_not_fit_by_recomputing() -> None:
    plan = Plan((PlanStage(1, 5), PlanStage(6, 6)))
    place = replace(ground(2), profiles=Profiles(halves))
    names = ("1f1b_flush", "zb_h1")
    arms = {name: Arm.of(name, {"method": name, "microbatches": 4}) for name in names}
    held = {name: timed(Laid(arm, place, plan), {}).fullest.total() for name, arm in arms.items()}
    small = replace(place, memory=min(held.values()) - 1)
    found = {name: timed(Laid(arm, small, plan), {}) for name, arm in arms.items()}
    assert (found["1f1b_flush"].usable, found["1f1b_flush"].recompute) == (True, True)
    assert (found["zb_h1"].usable, found["zb_h1"].recompute) == (False, False)
    assert found["zb_h1"].fits_recomputing is False
