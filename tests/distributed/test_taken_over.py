"""What a restart takes over from a checkpoint, and what a checkpoint is of; no worker is started for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pipelag.distributed.checkpoints import Checkpoints, CheckpointWriter
from pipelag.distributed.record import Record
from pipelag.distributed.training import RealTraining
from pipelag.distributed.workers.base import Assignment
from pipelag.distributed.workers.pipeline import PipelineWorker, merged_losses
from pipelag.methods import get
from pipelag.models.cut import stages
from pipelag.schedules import Action
from pipelag.schedules.actions import in_flight
from pipelag.stage.optimizers import group_by_stage
from pipelag.stage.phase import Phase
from tests.toy import sgd

PHASE = Phase(get("pipedream"), 8, (1,))
LOSS = nn.functional.mse_loss


def training(folder: Path, phases: list[Phase], make: Any = sgd) -> RealTraining:
    """As one of two workers has it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    job: Any = SimpleNamespace(rank=0, world=2, device=torch.device("cpu"), shared=False, uneven=False)
    store = Checkpoints(folder, frozenset({4, 8}))
    return RealTraining(job, model, phases, make, LOSS, rate=lambda step: 1.0, seed=0, checkpoints=store)


def assigned(one: RealTraining, phase: Phase, start: int, offset: int) -> Assignment:
    return Assignment(phase, one.optimizer, LOSS, one.rate, 0, start, offset)


def counting(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([group | {"k": 0} for group in groups], lr=0.1)


def left_after_four(folder: Path) -> None:
    """Both stages' parts after four minibatches, which took the first five seconds and the second six, or seven."""
    one = training(folder, [PHASE], counting)
    one.seconds = 10.0
    for number, piece in enumerate(stages(one.model, PHASE.cuts), start=1):
        writer, policy = one._writer(assigned(one, PHASE, 0, 0), number, piece)
        assert writer is not None and policy is None
        optimizer = group_by_stage(counting, [list(piece.parameters())], {}, [number])
        assert optimizer is not None
        optimizer.param_groups[0]["k"] = 40 + number
        losses = [torch.tensor(0.5)] * 4 if number == 2 else []
        writer.save(4, piece, optimizer, {}, losses, {"seconds": 5.0 + number}, {"version": number})


def test_a_run_goes_on_at_the_time_and_in_the_state_that_each_stage_was_in(tmp_path: Path) -> None:
    left_after_four(tmp_path)
    again = training(tmp_path, [PHASE])
    again.resume(4)
    assert (again.done, again.losses, again.seconds) == (4, [0.5] * 4, 10.0 + 7.0)  # the later stage's
    for number, piece in enumerate(stages(again.model, PHASE.cuts), start=1):
        writer, policy = again._writer(assigned(again, PHASE, 4, 4), number, piece)
        assert writer is not None and writer.base == {"seconds": 5.0 + number} and policy == {"version": number}
        assert again.counted[number] == [{"k": 40 + number}]


@pytest.mark.parametrize(
    "other",
    [
        replace(PHASE, method=get("gpipe")),
        replace(PHASE, recompute=True),
        replace(PHASE, microbatches=2),
        Phase(get("pipedream"), 8, (1,), replicas=(1, 1)),
    ],
    ids=["method", "recompute", "microbatches", "replicas"],
)
def test_another_pipeline_takes_over_neither_clock_nor_policy(other: Phase, tmp_path: Path) -> None:
    left_after_four(tmp_path)
    again = training(tmp_path, [other])
    again.resume(4)
    writer, policy = again._writer(assigned(again, other, 4, 4), 2, stages(again.model, other.cuts)[1])
    assert writer is not None and (writer.base, policy, again.counted[2]) == ({}, None, [])
    assert again.seconds == 17.0  # the run's go on all the same


def test_a_training_that_differs_is_told_by_the_phase_that_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the end of a phase it was that phase which left the checkpoint."""
    left_after_four(tmp_path)
    ended = [replace(PHASE, steps=4), Phase(get("gpipe"), 4, (1,))]
    training(tmp_path, ended).resume(4)
    assert capsys.readouterr().err == ""
    training(tmp_path, [replace(PHASE, steps=3), ended[1]]).resume(4)
    assert "continues a training with method pipedream, now gpipe" in capsys.readouterr().err


def test_checkpoints_are_marked_by_the_minibatches_of_their_phase() -> None:
    """A phase of ten minibatches begins after five of the run, two of them are done: it ends after fifteen."""
    assignment = Assignment(replace(PHASE, steps=10), sgd, LOSS, lambda step: 1.0, 0, start=7, offset=2)
    writer: Any = SimpleNamespace(wants=lambda step: step in (5, 6, 7, 8, 9, 15, 16))
    assert assignment.steps == 8
    assert assignment.marks(writer) == [3, 4, 10]  # those after 5 to 7 are written
    assert assignment.marks(None) == []


def test_statistics_are_those_of_the_moment_at_which_they_were_noted(tmp_path: Path) -> None:
    """Later minibatches' forwards run before the update is done."""
    module = nn.BatchNorm1d(2)
    names = {name: f"0.{name}" for name in module.state_dict()}
    checkpoints = Checkpoints(tmp_path, frozenset({4}))
    writer = CheckpointWriter(checkpoints, "", 1, 1, names, list(names), base={}, seconds=0.0, last=0)
    module.running_mean.fill_(1.0)  # type: ignore[union-attr]
    writer.note_buffers(4, module)
    module.running_mean.fill_(2.0)  # type: ignore[union-attr]
    nn.init.constant_(module.weight, 3.0)
    writer.save(4, module, None, {}, [torch.tensor(0.0)] * 4, {"seconds": 1.0}, None)
    kept = checkpoints.model(4)
    assert kept["0.running_mean"].tolist() == [1.0, 1.0] and kept["0.weight"].tolist() == [3.0, 3.0]
    (checkpoints.at(4) / "stage-1-of-3.pt").write_bytes(b"")  # of another division, whose other parts are not there
    assert checkpoints.complete(4)
    (checkpoints.at(4) / "stage-1-of-1.pt").unlink()
    assert not checkpoints.complete(4) and checkpoints.steps() == []


def test_parts_of_a_minibatchs_loss_are_added() -> None:
    parts = [{0: torch.tensor(1.0), 1: torch.tensor(2.0)}, {1: torch.tensor(3.0), 2: torch.tensor(4.0)}]
    assert {t: float(value) for t, value in merged_losses(parts).items()} == {0: 1.0, 1: 5.0, 2: 4.0}


def test_a_minibatchs_loss_is_the_sum_of_its_microbatches_parts() -> None:
    worker: Any = SimpleNamespace(record=Record(), assignment=SimpleNamespace(phase=SimpleNamespace(microbatches=2)))
    for m, value in enumerate((1.0, 2.0, 4.0)):
        PipelineWorker.note_loss(worker, m, torch.tensor(value))
    assert {t: float(value) for t, value in worker.record.losses.items()} == {0: 3.0, 1: 4.0}


def test_a_checkpoint_has_the_losses_since_the_one_before() -> None:
    """A worker began at the run's step 10, the last checkpoint was after 14, and now eight minibatches are done."""
    losses = {t: torch.tensor(float(t)) for t in range(9)}  # a ninth forward is further than its update
    worker: Any = SimpleNamespace(record=Record(losses=losses), start=10, mates={})
    state: Any = SimpleNamespace(writer=SimpleNamespace(last=14), stage=1)
    assert [float(loss) for loss in PipelineWorker.losses_of_all(worker, state, 8)] == [4.0, 5.0, 6.0, 7.0]
    assert state.writer.last == 18


def test_what_is_under_way_is_between_its_forward_or_recomputation_and_its_backward() -> None:
    row = [Action(kind, 1, m) for kind, m in (("F", 0), ("F", 1), ("R", 0), ("F", 2), ("B", 0), ("R", 1), ("B", 1))]  # type: ignore[arg-type]
    assert (in_flight(row), in_flight(row, "R")) == (3, 1)
