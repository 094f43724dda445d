"""Memory by kind, against real workers; sizes over the batch; the largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipelag import models
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.cluster import flat
from pipelag.partitioner.laid import Laid
from pipelag.partitioner.pipelined import Pipelined, straight_plan
from pipelag.partitioner.plan import Plan, PlanStage
from pipelag.schedules import schedule
from pipelag.schedules.actions import in_flight
from pipelag.stage.phase import Phase
from pipelag.timing.by_batch import Profiles
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.loss import with_loss
from pipelag.timing.memory import StageMemory, held_at_peak, microbatches_under_way, most_that_fit
from pipelag.timing.rehearsal import rehearse
from pipelag.timing.roofline import roofline
from pipelag.timing.sheets import DEVICES
from tests.toy import Noise

BATCH = 16
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGDM": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.001),
}
PLAIN: dict[str, Any] = {"rate": lambda step: 1.0, "seed": 0}
Records = dict[str, list[list[dict[str, int]]]]  # network -> case -> worker -> bytes by kind
CASES = [
    (method, parts, optimizer, recompute)
    for method, parts in (("pipedream", 1), ("pipedream_2bw", 2), ("pipeoptim", 1), ("gpipe", 4), ("xpipe", 1))
    for optimizer in OPTIMIZERS
    for recompute in (False, True)
]


def even() -> nn.Sequential:
    """A weight tensor per layer, of a multiple of 64 bytes, so that nothing is padded; cut after layer 2."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(1024, 32, bias=False), nn.ReLU()),
        nn.Linear(32, 16, bias=False),
    )


def odd() -> nn.Sequential:
    """Batch norm, biases, tensors of any size; cut after layer 2."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU()),
        nn.Sequential(nn.Conv2d(5, 7, 3, padding=1, bias=False), nn.BatchNorm2d(7), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(448, 33), nn.ReLU()),
        nn.Linear(33, 4),
    )


@cache
def profiles_of(build: Callable[[], nn.Sequential]) -> Profiles:
    model = with_loss(build().train().to("meta"))

    def make(samples: int) -> Profile:
        images = torch.empty(samples, 3, 8, 8, device="meta").to(memory_format=torch.channels_last)
        return roofline(model, images, "p100")

    return Profiles(make, input_bytes=3 * 8 * 8 * 4)


def placed(
    build: Callable[[], nn.Sequential], method: str, parts: int, optimizer: str, recompute: bool, memory: float = 1e9
) -> Pipelined:
    ground = Ground(profiles_of(build), flat(2), DEVICES["p100"], memory, OPTIMIZERS[optimizer], BATCH)
    arm = Arm.of("arm", {"method": method, "microbatches": parts, "recompute": recompute})
    return Pipelined(arm, ground, straight_plan(ground, 2, (2,)))


REPLICATED = [
    (method, replicas, optimizer)
    for method in ("pipedream", "spectrain", "pipemare")
    for replicas in ((2, 1), (3, 1), (1, 2))
    for optimizer in OPTIMIZERS
]


def laid(method: str, replicas: tuple[int, ...], optimizer: str) -> Laid:
    """A method over the two stages of `even`, which have so many replicas."""
    workers = sum(replicas)
    ground = Ground(profiles_of(even), flat(workers), DEVICES["p100"], 1e9, OPTIMIZERS[optimizer], BATCH, "free")
    plan = Plan((PlanStage(1, 2, replicas[0]), PlanStage(3, 4, replicas[1])))
    return Laid(Arm.of("arm", {"method": method}), ground, plan)


def train_replicated(job: Job) -> list[list[dict[str, int]]]:
    """What the workers of a case with as many as this job's held, case by case."""
    memory = []
    for method, replicas, optimizer in REPLICATED:
        if sum(replicas) != job.world:
            continue
        batches, phases = Noise(BATCH), [Phase(get(method), 36, (2,), replicas=replicas)]
        loss = nn.functional.cross_entropy
        training = RealTraining(job, even().train(), phases, OPTIMIZERS[optimizer], loss, **PLAIN)
        records = training.run(batches.inputs, batches.targets)[0]
        memory.append([records[rank].memory for rank in sorted(records)])
    return memory


@pytest.mark.real
@pytest.mark.parametrize("workers", [3, 4])
def test_replicas_hold_what_is_counted_for_them(workers: int) -> None:
    """Their delays, in updates, are shorter than a straight pipeline's of as many stages, and so are their rings."""
    cases = [case for case in REPLICATED if sum(case[1]) == workers]
    for case, records in zip(cases, launch(train_replicated, workers, "cpu", 1), strict=True):
        method, replicas, optimizer = case
        pipeline, rank = laid(*case), 0
        for stage, ours in enumerate(pipeline.memory(BATCH)):
            for record in records[rank : rank + replicas[stage]]:
                assert ours.rings + ours.remembered == record["weight_copies"], (case, stage)
                assert ours.optimizer == record["optimizer"], (case, stage)
            held = [record["activations"] for record in records[rank : rank + replicas[stage]]]
            assert ours.inputs + ours.activations == max(held), (case, stage)
            rank += replicas[stage]


def train_all(job: Job) -> Records:
    """What both workers of every case held, by network."""
    memory: Records = {"even": [], "odd": []}
    for build in (even, odd):
        for method, parts, optimizer, recompute in CASES:
            batches, phases = Noise(BATCH), [Phase(get(method), 4, (2,), {}, parts, recompute)]
            loss = nn.functional.cross_entropy
            training = RealTraining(
                job, build().train(), phases, OPTIMIZERS[optimizer], loss, rate=lambda step: 1.0, seed=0
            )
            records = training.run(batches.inputs, batches.targets)[0]
            memory[build.__name__].append([records[rank].memory for rank in (0, 1)])
    return memory


@pytest.fixture(scope="module")
def real_memory() -> Records:
    return launch(train_all, 2, "cpu", 1)


@pytest.mark.real
def test_real_workers_hold_what_is_counted_for_an_arm(real_memory: Records) -> None:
    """Every kind to the byte; where the executors keep more than the papers count, that is in `rings`."""
    for case, records in zip(CASES, real_memory["even"], strict=True):
        pipeline = placed(even, *case)
        method, parts, optimizer, recompute = case
        for stage, (record, ours) in enumerate(zip(records, pipeline.memory(BATCH // parts), strict=True)):
            weights = record["weights"]
            assert ours.weights == ours.gradients == weights, case
            assert ours.optimizer == record["optimizer"]
            assert ours.optimizer == {"SGDM": weights, "Adam": 2 * weights + 4 * 2}[optimizer]
            assert ours.rings + ours.remembered == record["weight_copies"]
            assert ours.remembered == (2 * weights if (method, optimizer, stage) == ("xpipe", "SGDM", 0) else 0)
            assert ours.rings == (ours.versions + weights if ours.versions else 0)
            # `Record` counts the input of the microbatch that is recomputed among those that wait and as kept again
            twice = ours.inputs / pipeline.under_way[stage] if recompute else 0
            assert ours.inputs + ours.activations + twice == record["activations"]


@pytest.mark.real
def test_real_workers_pad_their_tensors_and_count_steps(real_memory: Records) -> None:
    """With tensors of any size: what the policy holds, tensor by tensor; and the activations."""
    model = odd()
    for case, records in zip(CASES, real_memory["odd"], strict=True):
        method, parts, optimizer, recompute = case
        pipeline = placed(odd, *case)
        for stage, (record, ours) in enumerate(zip(records, pipeline.memory(BATCH // parts), strict=True)):
            tensors = [p.numel() * 4 for layer in list(model)[2 * stage : 2 * stage + 2] for p in layer.parameters()]
            exact = rehearse(get(method), OPTIMIZERS[optimizer], stage + 1, 2, parts).held(tensors)
            assert record["weights"] == exact.weights == sum(-(-size // 64) * 64 for size in tensors)
            assert record["optimizer"] == exact.optimizer
            assert record["weight_copies"] == exact.copies + exact.remembered
            assert ours.weights == sum(tensors) < record["weights"]
            twice = ours.inputs / pipeline.under_way[stage] if recompute else 0
            assert ours.inputs + ours.activations + twice == record["activations"]


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "1f1b_flush", "cycle", "sequential", "pipemare", "zb_h1", "zb_h2"])
@pytest.mark.parametrize(("stages", "parts"), [(1, 1), (2, 4), (4, 1), (4, 4)])
def test_what_is_under_way_is_what_the_workers_say(name: str, stages: int, parts: int) -> None:
    plan = schedule(name, stages=stages, minibatches=12, microbatches=parts)
    assert microbatches_under_way(plan) == [in_flight(row) for row in plan.workers]


def test_under_way_as_the_papers_have_it() -> None:
    """D - rank in 1F1B, all microbatches in GPipe (PipeOptim table II and section V-C)."""
    assert microbatches_under_way(schedule("1f1b", stages=4, minibatches=12)) == [4, 3, 2, 1]
    assert microbatches_under_way(schedule("gpipe", stages=4, minibatches=3, microbatches=5)) == [5, 5, 5, 5]
    with pytest.raises(PipelagError, match="a worker has several stages"):
        microbatches_under_way(schedule("sequential", stages=2, minibatches=2, workers=1))


def test_recomputing_keeps_the_inputs_and_one_pass() -> None:
    states, passes = np.array([[[4], [0]], [[2], [0]]]), [np.array([[3.0, 10.0, 0.0], [0.0, 0.0, 0.0]])]
    assert [*held_at_peak(states, passes, recompute=False).values()] == [12, 40, 0]
    assert [*held_at_peak(states, passes, recompute=True).values()] == [12, 10, 0]


def test_parts_and_totals() -> None:
    memory = StageMemory(10, 20, 5, 10, 40, 3, 7, rings=30)
    assert memory.total() == 95
    assert memory.total(executor=True) == 105
    assert set(memory.parts()) ^ set(memory.parts(executor=True)) == {"versions", "rings"}
    assert memory.largest_part() == "optimizer"


@given(st.integers(0, 50), st.integers(1, 9), st.integers(0, 5000))
def test_the_largest_that_fits_is_exact(fixed: int, each: int, memory: int) -> None:
    most = most_that_fit(lambda n: fixed + each * n, memory)
    assert most == max((n for n in range(memory + 1) if n and fixed + each * n <= memory), default=0)


def test_where_nothing_grows_there_is_no_largest() -> None:
    assert most_that_fit(lambda n: 1.0, 2.0) is None


SMALL = {
    "alexnet": ({"width": 0.125}, (3, 32, 32)),
    "resnet50": ({"blocks": [1, 1, 1], "width": 0.125, "form": "cifar"}, (3, 16, 16)),
    "residual_lstm": ({"layers": 2, "size": 8, "memory": 12, "words": 30}, (6,)),
    "sentiment_transformer": ({"blocks": 1, "size": 16, "hidden": 16, "heads": 2, "words": 30}, (6,)),
}


@pytest.mark.parametrize("name", SMALL)
def test_bytes_lie_on_a_line_over_the_batch(name: str) -> None:
    options, shape = SMALL[name]
    kind = torch.float if len(shape) == 3 else torch.long

    def make(samples: int) -> Profile:
        with torch.device("meta"):
            return roofline(models.build(name, **options), torch.empty(samples, *shape, dtype=kind), "v100")

    profiles = Profiles(make)
    profiles.at(8)
    foreseen = {samples: profiles.sizes(samples) for samples in (3, 5, 8, 13, 64)}
    assert sorted(profiles.made) == [8, 16]
    for samples, sizes in foreseen.items():
        exact = make(samples).layers
        assert sizes.output_bytes.tolist() == [layer.output_bytes for layer in exact]
        assert sizes.kept_bytes.tolist() == [layer.kept_bytes for layer in exact]


def test_sizes_that_grow_unevenly_are_refused() -> None:
    make = lambda n: Profile((LayerTime(1, "square", 1.0, 1.0, n * n, n, 4),))  # noqa: E731
    profiles = Profiles(make)
    profiles.at(1), profiles.at(2)
    with pytest.raises(
        PipelagError, match=r"layer 1 'square' has 9 output bytes for 3 samples, but two other profiles predict 7"
    ):
        profiles.at(3)
    assert Profiles(make, scaled=True).sizes(3).output_bytes.tolist() == [9]


def fits(pipeline: Pipelined, samples: int) -> bool:
    """With a profile of its own for so many samples, stage by stage."""
    layers = pipeline.ground.profiles.make(samples).layers
    bounds = [0, *pipeline.plan.cuts, len(layers)]
    for (a, b), counted, under_way in zip(pairwise(bounds), pipeline.memory(1), pipeline.under_way, strict=True):
        fixed = counted.total() - counted.inputs - counted.activations
        entering = layers[a - 1].output_bytes if a else samples * pipeline.ground.profiles.input_bytes
        if fixed + entering * under_way + sum(layer.kept_bytes for layer in layers[a:b]) > pipeline.ground.memory:
            return False
    return True


@pytest.mark.parametrize(("method", "parts"), [("pipedream", 1), ("pipeoptim", 1), ("gpipe", 4)])
def test_one_sample_more_does_not_fit(method: str, parts: int) -> None:
    pipeline = placed(odd, method, parts, "Adam", True, memory=777_777.0)
    most = pipeline.largest()
    assert fits(pipeline, most["samples"]) and not fits(pipeline, most["samples"] + 1)
    assert most["batch"] == parts * most["samples"] > 0
    assert most["part"] in ("inputs", "activations")
    assert pipeline.largest(executor=True)["samples"] <= most["samples"]
    none = placed(odd, method, parts, "Adam", True, memory=100_000.0).largest()
    assert (none["batch"], none["stage"], none["part"]) == (0, 2, "optimizer")
    assert "the largest part, optimizer, is" in none["why"]
