"""Methods whose workers hold several stages each, as `pipelag advise` compares them, against counts by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag.__main__ import main
from pipelag.commands.run import read_spec
from pipelag.errors import PipelagError
from pipelag.methods import METHODS, Method, get
from pipelag.partitioner import advice
from pipelag.partitioner.advice import Choice, best, choices, promising
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.cluster import Cluster, Level, flat
from pipelag.partitioner.plan import Plan, PlanStage
from pipelag.partitioner.stacked import Stacked, links_of, stacked, stages_of_a_worker
from pipelag.results.advice import ranked, record
from pipelag.schedules import Action, Schedule
from pipelag.schedules.virtual import Interleaved
from pipelag.timing.by_batch import Profiles
from pipelag.timing.costs import Topology
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import Device

ENDLESS = float("inf")
SEVERAL = ("1f1b_flush", "1f1b_interleaved", "pipedream_interleaved", "zb_v", "bidirectional")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all methods these."""
    monkeypatch.setattr("pipelag.partitioner.advice.METHODS", {name: METHODS[name] for name in SEVERAL})


def sgdm(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def even(count: int) -> list[LayerTime]:
    """Layers of 1 ms of F, of B and of W for a microbatch, which keep 1,000 bytes and have 10 bytes of weights."""
    return [LayerTime(n, "", 1.0, 2.0, 50, 1000, 10, 1.0) for n in range(1, count + 1)]


def on(
    layers: Sequence[LayerTime], workers: int, parts: int, bandwidth: float = ENDLESS, memory: float = ENDLESS
) -> Ground:
    """A microbatch is of one sample, of four bytes."""
    profiles = Profiles(lambda _: Profile(tuple(layers)), input_bytes=4)
    return Ground(profiles, flat(workers, bandwidth), Device(1.0, 1.0), memory, sgdm, parts, "free")


def by_chunks(place: Ground, name: str = "1f1b_interleaved") -> dict[int, Choice]:
    return {one.chunks: one for one in choices(place, place.batch)[0] if one.method.name == name}


def quickest(place: Ground) -> dict[str, Choice]:
    return {one.method.name: one for one in best(choices(place, place.batch)[0])}


# Time


@pytest.mark.parametrize("parts", [4, 8, 12])
def test_interleaving_has_a_part_of_the_bubble_of_a_flush(parts: int) -> None:
    """Of 16 equal layers on four workers each has 12 ms for a microbatch, and waits 3 x 12 ms in 1F1B with a flush."""
    place = on(even(16), 4, parts)
    found = by_chunks(place)
    assert found.keys() == {2, 3, 4}
    for chunks in (2, 4):  # three stages of each worker cannot be equal
        assert found[chunks].seconds == pytest.approx(1e-3 * (12 * parts + 3 * 12 / chunks))
    names = quickest(place)
    assert names["1f1b_flush"].seconds == pytest.approx(1e-3 * (12 * parts + 3 * 12))
    one = names["1f1b_interleaved"]
    assert (one.chunks, one.workers, one.config) == (4, 4, "4 GPUs, 4 stages each")
    assert one.plan.cuts == tuple(range(1, 16)) and one.throughput == pytest.approx(parts / one.seconds)
    assert not one.stale and set(one.updates) == {1}


def test_messages_cross_every_boundary_of_the_stages() -> None:
    """Each takes 0.05 ms; a microbatch's cross the seven boundaries of two workers with four stages there and back."""
    found = by_chunks(on(even(8), 2, 2, bandwidth=1e6))
    assert found[4].seconds == pytest.approx(1e-3 * (2 * 12 + 3 + 2 * 7 * 0.05))
    assert found[2].seconds == pytest.approx(1e-3 * (2 * 12 + 6 + 2 * 3 * 0.05))


@pytest.mark.parametrize(
    ("parts", "passes"), [(2, 2 * 4 + 12 - 1), (4, 12 + 4 * 4 - 1), (6, 6 * 6 + 2), (7, 42), (8, 48)]
)
def test_zb_v_takes_as_many_passes_as_its_papers_say(parts: int, passes: int) -> None:
    """Of two layers each, so of 2 ms: no bubble from 2P-1 = 7 microbatches on (arXiv 2401.10241, section 6)."""
    (one,) = by_chunks(on(even(16), 4, parts), "zb_v").values()
    assert one.seconds == pytest.approx(2e-3 * passes)
    assert (one.config, one.plan.cuts) == ("4 GPUs, 2 stages each", tuple(range(2, 16, 2)))
    assert one.holders == (0, 1, 2, 3, 3, 2, 1, 0)


def test_what_splitting_backwards_costs_is_counted() -> None:
    """A millisecond for each of the four layers of a worker, but for the two of the first stage of the first."""
    layers = [replace(layer, split_ms=1.0) for layer in even(16)]
    (free,), (one,) = (by_chunks(on(each, 4, 8), "zb_v").values() for each in (even(16), layers))
    plan = Plan(tuple(PlanStage(n, n + 1) for n in range(1, 16, 2)))
    forms = [
        Stacked(Arm.of("a", {"method": "zb_v", "microbatches": 8}), on(each, 4, 8), plan) for each in (even(16), layers)
    ]
    assert [form.least(1) for form in forms] == pytest.approx([8 * 4 * 3e-3, 8 * 4 * 4e-3])
    assert one.seconds >= forms[1].least(1) > free.seconds == pytest.approx(8 * 4 * 3e-3)


def test_neighbours_on_other_servers_set_the_links() -> None:
    cluster = Cluster((Level(2, 100.0), Level(2, 10.0, 1e-3)))
    assert links_of(cluster, (0, 1, 0, 1)) == links_of(cluster, (0, 1, 1, 0)) == Topology(100.0)
    assert links_of(cluster, (0, 1, 2, 3)) == Topology(10.0, 1e-3)
    assert links_of(cluster, (0, 0, 2, 2)) == Topology(10.0, 1e-3)


def test_what_no_schedule_can_undercut_is_counted_for_workers_and_links() -> None:
    """Two workers with two stages of two layers: 12 ms. Forwards cross their link twice, backwards once; 50 bytes."""
    bounds = [(1, 2), (3, 4), (5, 6), (7, 8)]
    plan = Plan(tuple(PlanStage(a, b) for a, b in bounds))
    arm = Arm.of("a", {"method": "1f1b_interleaved", "microbatches": 4})
    least = [Stacked(arm, on(even(8), 2, 4, bandwidth), plan).least(1) for bandwidth in (1e6, 5e3)]
    assert least == pytest.approx([4 * 12e-3, 4 * 3 * 1e-2])


def test_on_paper_slow_links_are_not_forgotten() -> None:
    """The formula counts the messages of one microbatch alone: 48 + 6 + 6 x 10 ms; the link sends 4 x 3 x 10."""
    arm = Arm.of("a", {"method": "1f1b_interleaved", "microbatches": 4})
    quick, slow = (next(stacked(arm, on(even(8), 2, 4, bandwidth), 2, 2)) for bandwidth in (5e4, 5e3))
    assert quick.on_paper(1) == pytest.approx(1e-3 * (48 + 6 + 6 * 1))
    assert slow.on_paper(1) == slow.least(1) == pytest.approx(1e-3 * 120)


@pytest.mark.parametrize("name", ["1f1b_interleaved", "zb_v"])
def test_cuts_are_for_the_methods_schedule_and_the_clusters_links(name: str) -> None:
    small = (2, 3, 6)  # layers whose outputs are small
    rows = [replace(layer, output_bytes=1000 if layer.layer in small else 1_000_000) for layer in even(8)]
    arm = Arm.of("a", {"method": name, "microbatches": 2})
    assert next(stacked(arm, on(rows, 2, 2, bandwidth=1e7), 2, 2)).plan.cuts == small
    assert next(stacked(arm, on(rows, 2, 2, bandwidth=1e12), 2, 2)).plan.cuts == (2, 4, 6)
    times = (1.0, 1.0, 4.0, 4.0, 3.0, 3.0)
    rows = [LayerTime(n, "", time, 2 * time, weight_ms=time) for n, time in enumerate(times, start=1)]
    cuts = next(stacked(arm, on(rows, 2, 4), 2, 2)).plan.cuts
    assert cuts == {"1f1b_interleaved": (3, 4, 5), "zb_v": (2, 3, 4)}[name]


def test_all_numbers_of_stages_are_timed_unless_a_minibatch_has_very_many_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 16 microbatches 64, 96 and 128 passes in each of 16 minibatches; on paper more stages are quicker."""
    place = on(even(8), 2, 16)
    arm = Arm.of("a", {"method": "1f1b_interleaved", "microbatches": 16})
    of = {n: replace(arm, method=replace(arm.method, build=Interleaved(n))) for n in (2, 3, 4)}
    forms = [form for n, one in of.items() for form in stacked(one, place, 2, n)]
    assert [form.stages for form in promising(forms, 1)] == [8, 6, 4]
    for most, timed in ((16 * 288, [8, 6, 4]), (16 * 288 - 1, [8, 6]), (10, [8])):
        monkeypatch.setattr(advice, "PASSES", most)
        assert [form.stages for form in promising(forms, 1)] == timed


def test_of_equally_quick_ones_on_paper_the_one_with_fewer_stages_is_timed_first() -> None:
    """A bubble of 3 to 12 of 24,000 ms."""
    assert next(iter(by_chunks(on(even(8), 2, 2000)))) == 2


# Memory


def sized(*kept: int) -> list[LayerTime]:
    """Layers that keep so many bytes, with outputs of 1, 2, ... bytes and weights of 64, 128, ... bytes."""
    return [LayerTime(n, "", 1.0, 2.0, n, size, 64 * n, 1.0) for n, size in enumerate(kept, start=1)]


def form(name: str, layers: Sequence[LayerTime], workers: int, parts: int, **more: Any) -> Stacked:
    arm = Arm.of("a", {"method": name, "microbatches": parts, **more})
    (only,) = stacked(arm, on(layers, workers, parts), workers, 2)
    assert only.plan.cuts == tuple(range(1, len(layers)))
    return only


def test_a_worker_holds_all_its_stages() -> None:
    """Two workers, four stages, two microbatches. Worker 0 makes all its forwards first; worker 1 begins to go back
    after one of its last stage.

        worker 0: 1F0 1F1 3F0 3F1 ...
        worker 1: 2F0 2F1 4F0 4B0 4F1 4B1 2B0 2B1
    """
    kept = 100, 1000, 10_000, 100_000
    first, second = form("1f1b_interleaved", sized(*kept), 2, 2).memory(1)
    assert (first.activations, second.activations) == (2 * 100 + 2 * 10_000, 2 * 1000 + 100_000)
    assert (first.inputs, second.inputs) == (2 * 4 + 2 * 2, 2 * 1 + 3)
    assert (first.weights, second.weights) == (64 + 192, 128 + 256)
    for held in (first, second):
        assert held.gradients == held.optimizer == held.weights
        assert held.versions == held.remembered == 0
    again = form("1f1b_interleaved", sized(*kept), 2, 2, recompute=True).memory(1)
    assert [held.activations for held in again] == [10_000, 100_000]
    assert [held.inputs for held in again] == [first.inputs, second.inputs]


@pytest.mark.parametrize(("kept", "peak"), [((1, 1000, 1, 10), 3 * 1000), ((1, 1000, 1, 5000), 2 * 1000 + 5000)])
def test_a_workers_stages_need_not_peak_together(kept: tuple[int, ...], peak: int) -> None:
    """With four microbatches worker 1 goes on with 4B1 2F2 2B0: it has three of stage 2 under way, but none of 4."""
    _, second = form("1f1b_interleaved", sized(*kept), 2, 4).memory(1)
    assert second.activations == peak


def test_zb_v_keeps_activations_up_to_the_gradients_of_the_weights() -> None:
    """With two microbatches over two workers: 1F0 1F1 4F0 4B0 4F1 4B1 1B0 4W0 ..."""
    first, _ = form("zb_v", sized(100, 1, 1, 10_000), 2, 2).memory(1)
    assert first.activations == 2 * 100 + 2 * 10_000


def test_what_is_left_of_the_minibatch_before_counts() -> None:
    """A worker begins the next minibatch on stage 1 while the gradients of stage 2's weights wait."""
    orders = (
        "1F0 1F1 2F0 3F0 3B0 3W0 2B0 1B0 1W0 2F1 3F1 3B1 3W1 2B1 1B1 1W1 1U0", "2W0 2W1 2U0 3U0",
    )  # fmt: skip

    def build(stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
        if stages == 1:
            return get("zb_v").schedule(1, minibatches, microbatches)

        def action(text: str, t: int) -> Action:
            passing = text[1] != "U"
            return Action(text[1], int(text[0]), int(text[2:]) + (t * microbatches if passing else t))  # type: ignore[arg-type]

        row: list[Action] = []
        for t in range(minibatches):
            begin = [action(text, t) for text in orders[0].split()]
            left = [action(text, t - 1) for text in orders[1].split()] if t else []
            row += [*begin[:2], *left, *begin[2:]]
        row += [action(text, minibatches - 1) for text in orders[1].split()]
        return Schedule("late", stages, minibatches, (tuple(row),), microbatches=microbatches)

    arm = replace(Arm.of("a", {"method": "zb_v", "microbatches": 2}), method=replace(get("zb_v"), build=build))
    plan = Plan(tuple(PlanStage(n, n) for n in (1, 2, 3)))
    (held,) = Stacked(arm, on(sized(1000, 100, 1), 1, 2), plan).memory(1)
    assert held.activations == 2 * 1000 + 2 * 100


@pytest.mark.parametrize("workers", [2, 3])
def test_zb_v_holds_the_activations_of_a_microbatch_per_worker(workers: int) -> None:
    """Of 2P passes of a stage of half the size on every worker, up to the gradients of the weights."""
    rows = form("zb_v", even(2 * workers), workers, 2 * workers - 1).memory(1)
    assert [held.activations for held in rows] == [2 * workers * 1000] * workers


def test_what_fits_is_chosen_though_fewer_stages_were_quicker() -> None:
    """Four microbatches over two workers with eight layers, whose messages are slow. Worker 0 has five passes of two
    layers under way with two stages, and nine of one layer with four (formula of Narayanan et al. 2021, section 2.2).
    """
    free = on(even(8), 2, 4, bandwidth=1e5)
    found = by_chunks(free)
    assert found[2].seconds < found[4].seconds
    assert [found[chunks].fullest.activations for chunks in (2, 4)] == [10_000, 9000]
    one = quickest(replace(free, memory=found[2].fullest.total() - 1))["1f1b_interleaved"]
    assert (one.chunks, one.recompute, one.usable) == (4, False, True)


def test_what_fits_only_by_recomputing_recomputes_and_zb_v_does_not() -> None:
    free = on(even(16), 4, 4)
    kept = min(one.fullest.activations for one in by_chunks(free).values())
    names = quickest(replace(free, memory=0.6 * kept))
    one = names["1f1b_interleaved"]
    assert (one.usable, one.recompute, one.chunks) == (True, True, 4)
    assert one.seconds == pytest.approx(1e-3 * (16 * 4 + 3 * 16 / 4))  # forwards run twice
    assert not names["zb_v"].usable and not names["zb_v"].recompute


def test_what_fits_in_no_form_is_not_timed() -> None:
    """Recomputing, a worker with two stages keeps 2,000 bytes of one microbatch, with four stages 1,000."""
    free = on(even(8), 2, 4)
    arm = Arm.of("a", {"method": "1f1b_interleaved", "microbatches": 4, "recompute": True})
    (pair,) = stacked(arm, free, 2, 2)
    most = max(held.total() for held in pair.memory(1))
    assert by_chunks(replace(free, memory=most)).keys() >= {2, 4}
    assert by_chunks(replace(free, memory=most - 1)).keys() & {2, 4} == {4}


def test_recomputing_may_want_other_cuts() -> None:
    """As with one stage per worker: times in which forwards count twice are divided otherwise."""
    layers = [LayerTime(n, "", *times, 0, 0, 1) for n, times in enumerate(((4, 0), (2, 0), (0, 6)) * 3, start=1)]
    arm = Arm.of("a", {"method": "1f1b_interleaved", "microbatches": 2})
    cuts = [[one.plan.cuts for one in stacked(arm, on(layers, 2, 2, memory=m), 2, 2)] for m in (ENDLESS, 1e9)]
    assert [len(each) for each in cuts] == [1, 2] and cuts[0][0] == cuts[1][0]


def test_where_nothing_fits_what_holds_least_is_told() -> None:
    place = on(even(8), 2, 4)
    held = {chunks: one.fullest.total() for chunks, one in by_chunks(place).items()}
    one = quickest(replace(place, memory=10.0))["1f1b_interleaved"]
    assert held.keys() == {2, 3, 4} and one.fullest.total() <= min(held.values()) < max(held.values())
    assert not one.usable


# What is left out


def left_out(layers: int, workers: int, parts: int, name: str) -> str:
    return choices(on(even(layers), workers, parts), parts)[1][name]


def test_what_has_no_order_or_too_few_layers_is_left_out_with_the_reason() -> None:
    wants = "interleaving gives each of 4 workers 2 stages and groups of 4 microbatches"
    assert left_out(8, 4, 6, "1f1b_interleaved").startswith(wants)
    assert "zb_v" not in choices(on(even(8), 4, 6), 6)[1]
    small = "a pipeline with 2 stages per worker needs at least two GPUs and 4 layers"
    for name in ("1f1b_interleaved", "zb_v"):
        assert left_out(3, 2, 2, name) == left_out(8, 1, 2, name) == small
    unknown = on([replace(layer, weight_ms=None) for layer in even(8)], 2, 2)
    assert "does not say how long they take (weight_ms)" in choices(unknown)[1]["zb_v"]
    assert left_out(8, 2, 2, "bidirectional").startswith("several workers hold each of its stages")
    stashing = "its workers hold several stages each, whose versions of the weights are not counted"
    assert left_out(8, 2, 2, "pipedream_interleaved") == stashing
    with pytest.raises(PipelagError, match=stashing):
        stages_of_a_worker(get("pipedream_interleaved"))


def test_moving_weights_is_not_timed() -> None:
    with pytest.raises(PipelagError, match="with several stages per worker can only be timed without the cost of mov"):
        list(stacked(Arm.of("a", {"method": "zb_v"}), replace(on(even(8), 2, 1), moving="separate"), 2, 2))


def test_few_layers_are_divided_over_as_many_workers_as_get_two_stages() -> None:
    for one in (quickest(on(even(5), 4, 2))[name] for name in ("1f1b_interleaved", "zb_v")):
        assert (one.workers, one.chunks, len(one.memory)) == (2, 2, 2)


def test_what_is_too_much_to_time_does_not_take_the_rest_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with so many microbatches that a schedule of few stages is possible, but none of more."""

    def limited(self: Method, stages: int, *more: Any, **others: Any) -> Any:
        if stages > 4:
            raise PipelagError("too many passes")
        return schedule(self, stages, *more, **others)

    schedule = Method.schedule
    monkeypatch.setattr(Method, "schedule", limited)
    assert by_chunks(on(even(8), 2, 2)).keys() == {2}
    monkeypatch.setattr(Method, "schedule", lambda self, *more, **others: limited(self, 5))
    arm = Arm.of("a", {"method": "1f1b_interleaved"})
    with pytest.raises(PipelagError, match="too many passes"):
        list(stacked(arm, on(even(8), 2, 2), 2, 2))


def test_a_method_without_a_setting_keeps_its_number_of_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(METHODS["1f1b_interleaved"], name="mine", build=Interleaved(3), options=None)
    for where in ("pipelag.partitioner.advice.METHODS", "pipelag.methods.base.METHODS"):
        monkeypatch.setattr(where, {"mine": own})
    assert by_chunks(on(even(12), 2, 2), "mine").keys() == {3}
    assert stages_of_a_worker(own) == 3 and stages_of_a_worker(get(own)) == 3


# The command


def test_a_program_is_told_which_gpu_holds_a_stage() -> None:
    for name, holders in (("1f1b_interleaved", (0, 1, 0, 1)), ("zb_v", (0, 1, 1, 0))):
        (one,) = by_chunks(on(sized(1, 10, 100, 1000), 2, 2), name).values()
        row = record(ranked([one], [], None, "sgd", "")[0])
        assert [stage["gpu"] - 1 for stage in row["stages"]] == list(holders)
        assert [stage["memory"] for stage in row["stages"]] == [one.memory[n].parts() for n in holders]
    (flush,) = (one for one in choices(on(even(2), 2, 2), 2)[0] if one.method.name == "1f1b_flush")
    assert "gpu" not in record(ranked([flush], [], None, "sgd", "")[0])["stages"][0]


@pytest.mark.parametrize(("name", "chunks", "options"), [("1f1b_interleaved", 4, {"chunks": 4}), ("zb_v", 2, {})])
def test_the_config_gives_each_worker_its_stages(
    nothing_logged: None,
    name: str,
    chunks: int,
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pipelag.partitioner.advice.METHODS", {name: METHODS[name]})
    Profile(tuple(even(8))).save(tmp_path / "profile.jsonl")
    (tmp_path / "cluster.yaml").write_text("levels: [{workers: 2, bandwidth: 1.0e+12}]")
    words = ["advise", str(tmp_path / "profile.jsonl"), "--cluster", str(tmp_path / "cluster.yaml"), "--batch", "8"]
    outs = ["--config", str(tmp_path / "run.yaml"), "--model", "vgg16", "--data", "shapes", "--format", "json"]
    assert main([*words, *outs]) == 0
    assert json.loads(capsys.readouterr().out)["choices"][0]["plan"] == f"2 GPUs, {chunks} stages each"
    spec = read_spec(None, tmp_path / "run.yaml")
    (phase,) = spec.phases
    assert (spec.workers, phase.method, phase.stages, phase.microbatches) == (2, name, 2 * chunks, 2)
    assert dict(phase.options) == options
