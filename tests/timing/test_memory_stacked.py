"""Memory of workers with several stages, against real workers."""

from __future__ import annotations

import pytest
from torch import nn

from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.methods import get
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.cluster import flat
from pipelag.partitioner.plan import Plan, PlanStage
from pipelag.partitioner.stacked import Stacked
from pipelag.stage.phase import Phase
from pipelag.timing.sheets import DEVICES
from tests.timing.test_memory import BATCH, OPTIMIZERS, PLAIN, even, profiles_of
from tests.toy import Noise

CUTS = (1, 2, 3)
CASES = [
    (method, parts, optimizer)
    for method, parts in (("1f1b_interleaved", 2), ("1f1b_interleaved", 8), ("zb_v", 1), ("zb_v", 4))
    for optimizer in OPTIMIZERS
]


def train_all(job: Job) -> list[list[dict[str, int]]]:
    """What both workers of every case held."""
    memory = []
    for method, parts, optimizer in CASES:
        batches, phases = Noise(BATCH), [Phase(get(method), 4, CUTS, {}, parts)]
        loss = nn.functional.cross_entropy
        training = RealTraining(job, even().train(), phases, OPTIMIZERS[optimizer], loss, **PLAIN)
        records = training.run(batches.inputs, batches.targets)[0]
        memory.append([records[rank].memory for rank in (0, 1)])
    return memory


@pytest.mark.real
def test_real_workers_hold_what_is_counted_for_all_their_stages() -> None:
    """Every kind to the byte; what passes hold is in `test_memory_split`."""
    for case, records in zip(CASES, launch(train_all, 2, "cpu", 1), strict=True):
        method, parts, optimizer = case
        ground = Ground(profiles_of(even), flat(2), DEVICES["p100"], 1e9, OPTIMIZERS[optimizer], BATCH, "free")
        arm = Arm.of("arm", {"method": method, "microbatches": parts})
        form = Stacked(arm, ground, Plan(tuple(PlanStage(n, n) for n in (1, 2, 3, 4))))
        for record, ours in zip(records, form.memory(BATCH // parts), strict=True):
            assert ours.weights == ours.gradients == record["weights"]
            assert ours.optimizer == record["optimizer"]
            assert ours.versions == ours.rings == ours.remembered == record["weight_copies"] == 0
