"""What passes hold at the same time, of backwards in two parts and of several stages: counted, and by real workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import pipelag
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.methods import get
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.cluster import flat
from pipelag.partitioner.laid import Laid
from pipelag.partitioner.plan import Plan, PlanStage
from pipelag.partitioner.stacked import Stacked
from pipelag.stage.phase import Phase
from pipelag.timing.by_batch import Profiles
from pipelag.timing.layers import LayerTime, Profile, kept_until_w
from pipelag.timing.loss import with_loss
from pipelag.timing.memory import held_at_peak, states_by_part
from pipelag.timing.roofline import roofline
from pipelag.timing.sheets import DEVICES
from tests.timing.test_memory import BATCH, OPTIMIZERS, PLAIN
from tests.toy import Noise


class Recurrent(nn.Module):
    """An LSTM with batches first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(size, 12, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.lstm(x)[0].contiguous())


class Mean(nn.Module):
    """The mean over the words."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def dense(entering: int, leaving: int, act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    return nn.Sequential(nn.Linear(entering, leaving), act())


def convolution(entering: int, leaving: int) -> nn.Sequential:
    conv = nn.Conv2d(entering, leaving, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(leaving), nn.ReLU())


def transformer() -> nn.Sequential:
    return nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True), nn.Tanh())


# Four layers each. Of the third linear one B frees what its last tanh has saved; of the LSTM alone it frees everything.
NETS: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]] = {
    "linear": (
        lambda: [dense(192, 16), dense(16, 32, nn.ReLU), nn.Sequential(dense(32, 24), dense(24, 8)), nn.Linear(8, 4)],
        (192,),
    ),
    "convolution and batch norm": (
        lambda: [convolution(3, 5), convolution(5, 7), convolution(7, 6), nn.Sequential(nn.Flatten(), dense(384, 4))],
        (3, 8, 8),
    ),
    "transformer": (
        lambda: [dense(64, 16), transformer(), transformer(), nn.Sequential(Mean(), nn.Linear(16, 4))],
        (3, 64),
    ),
    "lstm": (
        lambda: [
            *(dense(64, 16), nn.Sequential(Recurrent(16), dense(12, 12))),
            *(Recurrent(12), nn.Sequential(Mean(), nn.Linear(12, 4))),
        ],
        (3, 64),
    ),
}
CASES = [
    (name, method, parts, cuts)
    for name in NETS
    for method, cuts in (
        *(("zb_h1", (1,)), ("zb_h1", (2,)), ("zb_h2", (2,)), ("zb_v", (1, 2, 3))),
        *(("1f1b_flush", (2,)), ("1f1b_interleaved", (1, 2, 3))),
    )
    for parts in (2, 4, 8)
]


def net(name: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*NETS[name][0]()).train()


class Shaped(Noise):
    """Noise of a network's shape."""

    def __init__(self, batch: int, name: str) -> None:
        super().__init__(batch)
        self.shape = NETS[name][1]

    def inputs(self, t: int) -> torch.Tensor:
        return super().inputs(t).contiguous().view(self.batch, *self.shape)


def train_all(job: Job) -> list[list[dict[str, int]]]:
    """What both workers of every case held."""
    memory = []
    for name, method, parts, cuts in CASES:
        batches, phases = Shaped(BATCH, name), [Phase(get(method), 4, cuts, {}, parts)]
        training = RealTraining(job, net(name), phases, OPTIMIZERS["SGDM"], nn.functional.cross_entropy, **PLAIN)
        records = training.run(batches.inputs, batches.targets)[0]
        memory.append([records[rank].memory for rank in (0, 1)])
    return memory


def profiles_of(name: str) -> Profiles:
    model = with_loss(net(name))

    def make(samples: int) -> Profile:
        return pipelag.profile(model, Shaped(samples, name).inputs(0), repeats=1, warmup=0, split=True, progress=False)

    return Profiles(make, input_bytes=4 * 192, scaled=True)  # oneDNN's LSTM keeps more than in proportion


def both_ways(job: Job) -> list[dict[str, int]]:
    """What both workers of a bidirectional pipeline held, each with one stage of either direction."""
    batches, phases = Shaped(BATCH, "transformer"), [Phase(get("bidirectional"), 4, (2,), {}, 8)]
    loss = nn.functional.cross_entropy
    training = RealTraining(job, net("transformer"), phases, OPTIMIZERS["SGDM"], loss, **PLAIN)
    records = training.run(batches.inputs, batches.targets)[0]
    return [records[rank].memory for rank in (0, 1)]


@pytest.mark.real
def test_so_do_workers_with_stages_of_both_directions() -> None:
    sizes = profiles_of("transformer").sizes(BATCH // 8)
    passes = [sizes.passes(first, last, BATCH // 8 * 4 * 192) for first, last in ((1, 2), (3, 4))]
    states = states_by_part(get("bidirectional").schedule(2, 4, 8))
    for record, own in zip(launch(both_ways, 2, "cpu", 1), states, strict=True):
        assert sum(held_at_peak(own, passes, recompute=False).values()) == record["joint"]


@pytest.mark.real
def test_real_workers_hold_at_the_same_time_what_is_counted() -> None:
    """To the byte: inputs, activations and gradients of outputs, on both workers, when they hold most of all together.
    Each stage's own peaks, added up, are more where they come at different times.
    """
    apart = set[str]()
    profiles = {name: profiles_of(name) for name in NETS}
    for case, records in zip(CASES, launch(train_all, 2, "cpu", 1), strict=True):
        name, method, parts, cuts = case
        ground = Ground(profiles[name], flat(2), DEVICES["p100"], 1e9, OPTIMIZERS["SGDM"], BATCH, "free")
        plan = Plan(tuple(PlanStage(a + 1, b) for a, b in pairwise((0, *cuts, 4))))
        form = (Stacked if len(cuts) > 1 else Laid)(
            Arm.of("a", {"method": method, "microbatches": parts}), ground, plan
        )
        for record, ours in zip(records, form.memory(BATCH // parts), strict=True):
            assert ours.inputs + ours.activations + ours.output_gradients == record["joint"], case
            assert (ours.output_gradients > 0) <= ("gradients" in record)
            if record["joint"] < record["activations"]:
                apart.add(method)
    assert apart == {"1f1b_interleaved", "zb_v"}


def test_data_sheets_count_what_measuring_counts() -> None:
    """Except of LSTMs, whose kernels differ."""
    for name in ("linear", "transformer"):
        model, batch = with_loss(net(name)), Shaped(BATCH, name).inputs(0)
        measured = pipelag.profile(model, batch, repeats=1, warmup=0, split=True).layers
        estimated = roofline(model.to("meta"), batch.to("meta"), "p100").layers
        for ours, theirs in zip(measured, estimated, strict=True):
            for size in ("output_bytes", "kept_bytes", "gradient_bytes", "freed_bytes"):
                assert getattr(ours, size) == getattr(theirs, size), (name, ours.layer, size)


def test_what_w_needs_is_up_to_the_last_layer_that_keeps_gradients() -> None:
    sizes = {"entering": 3, "kept": [10, 20, 40], "freed": [1, 2, 40], "leaving": 7}
    assert kept_until_w(**sizes, gradients=[5, 6, 0], first=False) == (3, 10 + 18, 11)  # type: ignore[arg-type]
    assert kept_until_w(**sizes, gradients=[0, 0, 0], first=False) == (0, 0, 0)  # type: ignore[arg-type]
    assert kept_until_w(**sizes, gradients=[5, 6, 0], first=True) == (3, 70, 7)  # type: ignore[arg-type]
    for first in (True, False):
        assert kept_until_w(**sizes, gradients=[5, None, 0], first=first) == (3, 70, 0)  # type: ignore[arg-type]


def test_the_peak_is_after_a_forward_or_after_the_first_part_of_a_backward() -> None:
    """ZB-H1's first stage of two: 1F0 1F1 1B0 1W0 ..., with two between F and B, or one and one between B and W."""
    states = states_by_part(pipelag.schedule("zb_h1", stages=2, minibatches=2, microbatches=2))[0]
    assert states[:, :, 0].tolist() == [[0, 1], [1, 0], [1, 1], [2, 0]]
    for gradients, expected in ((4, (2, 20, 0)), (6, (2, 15, 6))):  # of 22 bytes; of 21 or 23
        passes = np.array([[1.0, 10, 0], [1, 5, gradients]])
        assert tuple(held_at_peak(states, [passes], recompute=False).values()) == expected


LAYERS = Profile(tuple(LayerTime(n, "a", 1.0, 2.0, 8, 40, 4, 1.0, 0.0, 6, 10) for n in (1, 2, 3)))


def test_a_cut_has_what_is_kept_until_w() -> None:
    first, second = LAYERS.cut((1,), microbatches=2)
    assert (first.until_w_bytes, second.until_w_bytes) == ((40 + 8) / 2, (8 + 80 - 10 + 12) / 2)
    old = Profile(tuple(replace(layer, gradient_bytes=None) for layer in LAYERS.layers))
    assert [cost.until_w_bytes for cost in old.cut((1,))] == [None, None]
    plan = pipelag.schedule("zb_h2", stages=2, minibatches=3, microbatches=4)
    (_, more), (_, without) = (pipelag.time(plan, each.cut((1,))).peak_memory for each in (LAYERS, old))
    assert more != without
