"""What workers refuse, in one sentence each; most of it without starting one."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.distributed import channel, checkpoints
from pipelag.distributed.channel import HEAD, Channel
from pipelag.distributed.checkpoints import Checkpoints
from pipelag.distributed.feasible import check_marks
from pipelag.distributed.job import Job
from pipelag.distributed.p2p import TensorMeta
from pipelag.distributed.routes import routes_of
from pipelag.distributed.training import RealTraining
from pipelag.distributed.workers.pipeline import PipelineWorker
from pipelag.distributed.workers.stage import check_loss
from pipelag.distributed.workers.torch_pipelining import TorchWorker
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.runs.kinds import train_real
from pipelag.runs.spec import RunSpec
from pipelag.schedules import schedule
from pipelag.stage.phase import Phase


def test_an_evaluation_inside_a_round_of_replicas() -> None:
    phase = Phase(get("pipedream"), 12, (2,), replicas=(2, 3))
    check_marks([phase], {6, 12, 13})
    with pytest.raises(
        PipelagError, match=r"after 9 steps of the phase falls inside a round .* \[2, 3\]; evaluate every 6 .* that$"
    ):
        check_marks([phase], {6, 9, 11})


def test_an_evaluation_inside_a_round_of_a_later_phase() -> None:
    phases = [Phase(get("bsp"), 5), Phase(get("pipedream"), 12, (2,), replicas=(2, 3))]
    check_marks(phases, {3, 5, 11, 17})
    with pytest.raises(PipelagError, match="after 7 steps of phase 2 .* the phases before it a multiple of 6 steps$"):
        check_marks(phases, {5, 12, 17})


@pytest.mark.parametrize(
    ("later", "sentence"),
    [
        ({"method": "pipedream", "cuts": [1], "replicas": [2, 1]}, "after 1 steps of phase 2 falls inside a round"),
        ({"method": "bsp"}, "a minibatch of 4 cannot be split into 3 equal shares, one for each worker"),
        ({"method": "bsp", "microbatches": 2}, "real workers of 'bsp' do not split their share"),
    ],
)
def test_a_later_phase_is_refused_before_the_first_begins(
    later: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_real, "everywhere", lambda *args, **more: pytest.fail("workers were started"))
    first = {"method": "pipedream", "steps": 3, "cuts": [1, 2]}
    spec = {"model": {"name": "snn"}, "data": {"name": "digits"}, "optimizer": {"lr": 0.1}, "batch": 4}
    spec |= {"phases": [first, later | {"steps": 4}], "evaluate_every": 4, "executor": "real", "workers": 3}
    with pytest.raises(PipelagError, match=sentence):
        train_real.train(RunSpec.model_validate(spec), tmp_path, "cpu", 3)


def test_a_backward_away_from_its_activations() -> None:
    with pytest.raises(
        PipelagError, match="'cycle' runs .* on another worker than its forward, whose activations it needs"
    ):
        routes_of(schedule("cycle", stages=3, minibatches=4, colocated=False))


def test_a_loss_over_another_stages_weights_but_not_over_what_a_layer_makes() -> None:
    """A layer may take the gradient of an energy by its own copy of the positions."""
    received, own, others = torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    positions = received.detach().requires_grad_()
    forces = torch.autograd.grad((own * positions.square()).sum(), positions, create_graph=True)[0]
    check_loss((received - forces).sum(), [own, received])
    with pytest.raises(PipelagError, match="the loss uses weights that are not the last stage's"):
        check_loss((received - forces + others).sum(), [own, received])


@pytest.mark.parametrize("kind", ["nonsense", "nn"])
def test_tensors_of_a_type_that_there_is_not(kind: str) -> None:
    assert TensorMeta.read(TensorMeta.of(torch.ones(2, 3)).text()) == TensorMeta.of(torch.ones(2, 3))
    with pytest.raises(PipelagError, match=f"announces tensors of type '{kind}', which torch does not have"):
        TensorMeta.read(f'[[2], "{kind}", false, true]')


@pytest.mark.parametrize(
    ("first", "now", "words"), [(True, False, "no gradient, but .* had a gr"), (False, True, "a gr.* no gr")]
)
def test_outputs_that_have_a_gradient_now_and_then(first: bool, now: bool, words: str) -> None:
    sender: Any = SimpleNamespace(metas=[TensorMeta((2,), torch.float32, False, first)])
    outputs = (torch.ones(2, requires_grad=now),)
    worker: Any = None
    PipelineWorker.check_history(worker, sender, (torch.ones(2, requires_grad=first),), "the output")
    with pytest.raises(PipelagError, match=f"^tensor 1 of the output has {words}"):
        PipelineWorker.check_history(worker, sender, outputs, "the output")


class Detached(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


@pytest.mark.real
@pytest.mark.parametrize("method", ["zb_h1", "1f1b"])
def test_a_stage_from_which_no_gradient_comes_back(method: str) -> None:
    """In place of none it sent zeros, by which the first stage's weights decayed."""
    data = [(torch.ones(4, 3), torch.zeros(4, dtype=torch.long))] * 4
    how: dict[str, Any] = {"method": method, "cuts": (1,), "optimizer": {"name": "sgd", "lr": 0.1, "weight_decay": 0.1}}
    first, last = nn.Linear(3, 3), Detached(3, 2)
    before = first.weight.detach().clone()
    with pytest.raises(PipelagError, match=r"minibatch 0 does not depend on the input of stage 2 .*; freeze"):
        pipelag.train([first, last], data, executor="real", **how)
    pipelag.train([first, last], data, **how)
    assert torch.equal(first.weight, before)
    pipelag.train([first.requires_grad_(False), last], data, executor="real", **how)
    assert torch.equal(first.weight, before)


def test_what_torchs_schedules_do_not_take() -> None:
    second: Any = SimpleNamespace(stage=2)
    with pytest.raises(
        PipelagError, match=r"torch.int64 crosses the boundary at stage 2, but .* gradient for every tensor"
    ):
        TorchWorker.metas(second, (torch.ones(2), torch.ones(2, dtype=torch.int64)))


@pytest.mark.parametrize(
    ("uneven", "shared", "sentence"),
    [
        (True, False, "needs minibatches of one shape, but these differ; use gpipe or 1f1b_flush"),
        (False, True, "torch's schedules send from GPU to GPU: give each worker a GPU"),
    ],
)
def test_what_torchs_schedules_cannot_send_is_refused_before_an_earlier_phase(
    uneven: bool, shared: bool, sentence: str
) -> None:
    phases = [Phase(get(method), 3, (1,)) for method in ("pipedream", "gpipe_torch")]
    job, optimizer = Job(0, 2, torch.device("cpu"), None, shared=shared), partial(torch.optim.SGD, lr=0.1)
    model, loss = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.functional.cross_entropy
    settings: dict[str, Any] = {"rate": lambda step: 1.0, "seed": 0}
    RealTraining(job, model, phases[:1], optimizer, loss, uneven=uneven, **settings)
    with pytest.raises(PipelagError, match=sentence):
        RealTraining(job, model, phases, optimizer, loss, uneven=uneven, **settings)


def test_an_evaluation_whose_checkpoint_is_gone(tmp_path: Path) -> None:
    spec = {"model": {"name": "snn"}, "data": {"name": "digits"}, "optimizer": {"lr": 0.1}, "evaluate_every": 2}
    spec |= {"phases": [{"method": "sequential", "steps": 4}], "executor": "real"}
    task: Any = None
    training: Any = SimpleNamespace(model=None)
    rows = train_real._evaluated(
        task, training, Checkpoints(tmp_path, frozenset({2, 4})), RunSpec.model_validate(spec), lambda step: 1.0
    )
    with pytest.raises(PipelagError, match="^the checkpoints of step 2 are missing from .*; start the run again$"):
        next(rows)


@pytest.mark.skipif(not channel.possible(), reason="this system has no memory without a name")
def test_a_message_without_its_memory() -> None:
    """The system drops an open file that finds no room in the receiver's process."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there = Channel(other)
    one.send(HEAD.pack(0, 64))
    with pytest.raises(
        OSError, match="a message arrived without its shared memory: this process has too many open files"
    ):
        there.take()
    one.close()


def test_checkpoints_that_cannot_be_moved_or_removed_or_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    sets = Checkpoints(tmp_path, frozenset())
    sets.at(4).mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(PipelagError, match=r"cannot be set aside as step-000000004.damaged \(Permission denied\)"):
            sets._set_aside(4)
        patch.setattr(checkpoints, "rmtree", refuse)
        with pytest.raises(
            PipelagError, match=r"which is incomplete, cannot be removed \(Permission denied\); remove it"
        ):
            sets._drop(sets.at(4))
    (sets.at(4) / "stage-1-of-1.pt").touch()
    with pytest.raises(PipelagError, match=r"losses-1-of-1.pt is missing; start again"):
        sets.parts(4, "losses")
