"""What workers count: seconds, bytes, ages, steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pipelag.distributed.checkpoints import Checkpoints, CheckpointWriter, outdated
from pipelag.distributed.gather import gathered
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.record import Record
from pipelag.distributed.training import RealTraining
from pipelag.distributed.workers import base
from pipelag.distributed.workers.base import Assignment, Worker
from pipelag.distributed.workers.parameter_server import NONE, ParameterServer
from pipelag.distributed.workers.stage import StageState, ring_bytes
from pipelag.methods import get
from pipelag.schedules import Action
from pipelag.stage.phase import Phase
from pipelag.stage.split import Later
from tests.toy import Noise, sgd


def test_a_worker_that_waits_or_sends_does_not_compute() -> None:
    record = Record(seconds=10.0, waited=2.0, sending=3.0)
    assert record.busy == 5.0
    assert record.shares() == {"busy": 0.5, "communication": 0.3, "idle": 0.2}
    assert Record(seconds=10.0, opaque=True).shares() == {}


class Clocked(Worker):
    """Every action takes four seconds: one waits for a message, one goes into a checkpoint."""

    now = 100.0

    def perform(self, action: Action) -> None:
        Clocked.now += 4
        self.receivers[0].waited += 1
        self.saving += 1


def test_no_clock_counts_checkpoints_and_no_span_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a restart, of which 10 seconds, 2 of waiting and 7 bytes are known."""
    monkeypatch.setattr(base, "time", SimpleNamespace(perf_counter=lambda: Clocked.now))
    before = {"seconds": 10.0, "waited": 2.0, "sent_bytes": 7.0}
    worker = Clocked(None, SimpleNamespace(start=0, offset=0), before)  # type: ignore[arg-type]
    worker.receivers = [SimpleNamespace(waited=0.0)]  # type: ignore[list-item]
    worker.senders = [SimpleNamespace(seconds=0.5, bytes=40, finish=lambda: None)]  # type: ignore[list-item]
    worker.perform_all([Action("F", 1, 0), Action("B", 1, 0)])
    record = worker.record
    assert [(start, end) for _, start, end in record.spans] == [(102, 104), (106, 108)]
    assert (record.seconds, record.waited, record.sending, record.sent_bytes) == (10 + 6, 2 + 2, 0.5, 7 + 40)
    assert record.busy == 16 - 4 - 0.5


@pytest.mark.parametrize(("workers", "sent"), [(2, 32), (4, 48), (8, 56)])
def test_in_a_ring_each_sends_all_but_its_own_part_twice(workers: int, sent: int) -> None:
    assert ring_bytes(torch.zeros(8), workers) == sent  # of 32 bytes


def test_a_checkpoint_adds_the_seconds_since_its_worker_began(tmp_path: Path) -> None:
    """The phase's clock stood at 5 seconds when the worker began, and the run's at 20; now the phase's stands at 8."""
    module = nn.Linear(2, 1)
    names = {name: name for name in module.state_dict()}
    checkpoints = Checkpoints(tmp_path, frozenset({4}))
    writer = CheckpointWriter(checkpoints, "", 1, 1, names, list(names), base={"seconds": 5.0}, seconds=20.0, last=0)
    writer.save(4, module, None, {}, [torch.tensor(float(step)) for step in range(4)], {"seconds": 8.0}, None)
    assert checkpoints.steps() == [4] and checkpoints.losses(4) == [0.0, 1.0, 2.0, 3.0]
    (part,) = checkpoints.parts(4, "resume")
    assert part["seconds"] == 23.0


def test_ever_fewer_of_the_older_sets_can_be_gone_on_from() -> None:
    """One that is damaged costs thrice as far as from the run's end to there, at most; the two newest always stay."""
    for count in range(1, 60):
        steps = list(range(1, count + 1))
        kept = sorted(set(steps) - set(outdated(steps)))
        assert kept[-2:] == steps[-2:]
        for damaged in steps:
            before = max((step for step in kept if step < damaged), default=0)
            assert count + 1 - before <= 3 * (count + 1 - damaged)
    assert outdated([10, 20, 30, 40, 50, 60, 70, 80]) == [10, 20, 30, 50]


def test_a_server_counts_the_updates_that_a_gradient_misses() -> None:
    """Two workers, five minibatches from the run's step 10 on; each has its rank's first, and asks for the next."""
    model = nn.Linear(2, 1, bias=False)
    before, done = model.weight.detach().clone(), list[int]()
    phase = Phase(get("asp"), 5)
    make: Any = lambda params: torch.optim.SGD(params, lr=1.0)  # noqa: E731
    assignment = Assignment(phase, make, nn.functional.mse_loss, lambda step: 1 / (1 + step), seed=0, start=10)
    server = ParameterServer(model, assignment, 2, done.append)
    gradient = [torch.ones_like(buffer) for buffer in server.flat.buffers]
    answers = [server.exchange(gradient, [1.0], version, 0.5) for version in (0, 0, 1, 1, 4)]
    for updates, (_, _, (sent,)) in enumerate(answers, start=1):  # as they were then, though the server has gone on
        expected = before - sum(1 / (1 + step) for step in range(10, 10 + updates))
        torch.testing.assert_close(sent[: before.numel()].view_as(before), expected)
    server.exchange(gradient, [0.0], 5, 0.5)  # of what was not used
    assert [answer[:2] for answer in answers] == [(2, 1), (3, 2), (4, 3), (NONE, 4), (NONE, 5)]
    assert server.ages == [0, 1, 1, 2, 0, 0]
    assert done == [11, 12, 13, 14, 15, 16]
    torch.testing.assert_close(before - model.weight, torch.full((1, 2), sum(1 / (1 + step) for step in range(10, 15))))


def sending(job: Job) -> list[int]:
    """How many bytes each rank has sent: two replicas of a stage, one of the next."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Linear(6, 4))
    phases, loss = [Phase(get("pipedream"), 8, (2,), replicas=(2, 1))], nn.functional.cross_entropy
    training = RealTraining(job, model, phases, sgd, loss, rate=lambda step: 1.0, seed=0)
    batches = Noise(batch=4)
    records = training.run(batches.inputs, batches.targets)[0]
    return [records[rank].sent_bytes for rank in sorted(records)]


@pytest.mark.real
def test_workers_count_the_bytes_that_they_send() -> None:
    """An output and its gradient are 4 x 6 floats. A round of two minibatches sums the 192 x 6 weights of stage 1 and
    6 biases in a ring of two, each sending as much as they are; and before, of each of both, whether it has a gradient.
    """
    message, weights = 4 * 6 * 4, (192 * 6 + 6) * 4
    replica = 4 * message + 4 * (weights + 2 * 4)
    assert launch(sending, 3, "cpu", 1) == [replica, replica, 8 * message]


def keeping(job: Job, names: list[str]) -> list[list[dict[str, int]]]:
    """What each rank kept, by method."""
    kept, loss = [], nn.functional.cross_entropy
    for name in names:
        layers = [nn.Flatten(), nn.Linear(192, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)]
        phases = [Phase(get(name), 2, (3,), microbatches=4)]
        training = RealTraining(job, nn.Sequential(*layers), phases, sgd, loss, rate=lambda step: 1.0, seed=0)
        batches = Noise(batch=8)
        records = training.run(batches.inputs, batches.targets)[0]
        kept.append([records[rank].memory for rank in sorted(records)])
    return kept


@pytest.mark.real
def test_what_w_needs_is_counted_until_w() -> None:
    """Of 2 samples, W needs the gradients of stage 1's output (6 numbers), or of both layers of stage 2 (5 and 4)."""
    flush, h1, h2 = launch(keeping, 2, "cpu", 1, names=["1f1b_flush", "zb_h1", "zb_h2"])
    assert all("gradients" not in stage for stage in flush)
    one = [stage["activations"] // waiting for stage, waiting in zip(flush, (2, 1), strict=True)]
    for kept, waiting, behind in ((h1, (2, 2), (1, 2)), (h2, (3, 3), (1, 3))):
        assert [stage["activations"] for stage in kept] == [a * b for a, b in zip(one, waiting, strict=True)]
        assert [stage["gradients"] for stage in kept] == [4 * 2 * 6 * behind[0], 4 * 2 * (5 + 4) * behind[1]]


def waiting(job: Job) -> list[list[list[int]]]:
    """By rank: of each W, whether the stage's input still has its gradient; of each R inside a segment, its inputs."""
    gradients, inputs, accumulate, again = list[int](), list[int](), Later.accumulate, StageState.forward_again

    def accumulated(left: Later) -> None:
        leaves = [t for t in left.saved() if t.is_leaf and t.requires_grad and not isinstance(t, nn.Parameter)]
        gradients.extend(leaf.grad is not None for leaf in leaves)
        accumulate(left)

    def ran_again(state: StageState, m: int, *given: Any) -> Any:
        if not state.heads:
            inputs.append(len(state.saved[m].inputs))
        return again(state, m, *given)

    Later.accumulate, StageState.forward_again = accumulated, ran_again  # type: ignore[method-assign]
    for phase in (Phase(get("zb_h1"), 2, (2,), microbatches=2), Phase(get("pipemare"), 4, (2,), recompute=2)):
        layers, loss = [nn.Flatten(), nn.Linear(192, 6), nn.Linear(6, 4)], nn.functional.cross_entropy
        training = RealTraining(job, nn.Sequential(*layers), [phase], sgd, loss, rate=lambda step: 1.0, seed=0)
        batches = Noise(batch=8)
        training.run(batches.inputs, batches.targets)
    return gathered([gradients, inputs], job.device)


@pytest.mark.real
def test_what_no_pass_needs_is_not_kept_for_one() -> None:
    """Of stage 2: the gradients that B has sent, while W waits; the input of a stage that gets it again from R."""
    assert launch(waiting, 2, "cpu", 1) == [[[], []], [[0] * 4, [0] * 4]]
