"""Many short trainings in one process: memory, open files and threads stay as they are; of real ones no process, port
or folder is left either.

Twenty in the ordinary suite, and two on real workers; PIPELAG_TEST_FACTOR times as many where that is set (10: two
hundred, and twenty).
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import tempfile
import threading
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor

import pipelag
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import WorkerFailed, launch
from pipelag.runs.carry_out import carry_out
from pipelag.runs.spec import RunSpec
from pipelag.warm import WarmProcess
from tests.inputs.sizes import FACTOR
from tests.workflow.test_warm import forks, wait_for

METHODS = ("stale_weights", "pipedream", "pipemare", "pipeoptim", "dualpipe", "sequential", "gpipe")
PAIRS = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(10)]
# Of memory in use that may come. Twenty kept models of 4 MB would be 80; 0.002 came.
MEGABYTES = 10.0


def short_training(number: int) -> None:
    """A model of 4 MB, three stages, ten minibatches."""
    torch.manual_seed(number)
    model = [nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 4)]
    kind = torch.optim.Adam if number % 2 else torch.optim.SGD
    run = pipelag.train(
        model,
        PAIRS,
        method=METHODS[number % len(METHODS)],
        cuts=(1, 3),
        optimizer=lambda params: kind(params, lr=0.01, **({} if kind is torch.optim.Adam else {"momentum": 0.9})),
    )
    assert run.diverged_at is None and len(run.metrics) == len(PAIRS)


def tensor_bytes() -> int:
    """Bytes of all storages that live tensors hold, each counted once."""
    storages = {}
    for thing in gc.get_objects():
        # isinstance would ask lazy modules for a class, and load them; what torch.export leaves has no memory
        if issubclass(type(thing), torch.Tensor) and not isinstance(thing, FakeTensor):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class Mallinfo(ctypes.Structure):
    """What glibc's mallinfo2 tells: `uordblks` and `hblkhd` are the bytes in use, of its arenas and mapped."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def held() -> tuple[float, int, int]:
    """MB of memory in use, open files, threads.

    Not what the process has: glibc keeps freed memory, 0 to 90 MB of it from one training to the next (seen over 200).
    """
    gc.collect()
    process = psutil.Process()
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:  # no glibc, or one from before 2021: what is kept of tensors is counted all the same
        memory = 0
    else:
        ask.restype = Mallinfo
        usage = ask()
        memory = usage.uordblks + usage.hblkhd
    return memory / 2**20, process.num_fds(), threading.active_count()


def refused(number: int) -> None:
    """A training that ends in an error keeps nothing either."""
    try:
        pipelag.train([nn.Linear(16, 2048), nn.Linear(2048, 4)], PAIRS, loss=lambda output, target: output)
    except pipelag.PipelagError:
        return
    raise AssertionError("taken")


def test_trainings_leave_nothing_behind() -> None:
    for number in range(len(METHODS)):  # what is loaded once
        short_training(number)
        refused(number)
    (memory, files, threads), tensors = held(), tensor_bytes()
    for number in range(20 * FACTOR):
        short_training(number)
        refused(number)
    after = held()
    assert tensor_bytes() <= tensors
    assert after[0] - memory < MEGABYTES * FACTOR and after[1] <= files and after[2] <= threads


def test_runs_into_folders_leave_no_file_open(tmp_path: Path) -> None:
    spec = {"model": {"name": "lenet5"}, "data": {"name": "digits"}, "batch": 20, "optimizer": {"lr": 0.01}}

    def run(number: int) -> None:
        phases = [{"method": "stale_weights", "steps": 2, "cuts": [1]}]
        one = RunSpec.model_validate(spec | {"phases": phases, "seed": number})
        assert carry_out(one, tmp_path / str(number), "cpu", 1)["status"] == "finished"

    run(0)
    _, files, threads = held()
    for number in range(1, 1 + 3 * FACTOR):
        run(number)
    after = held()
    assert after[1] <= files and after[2] <= threads
    assert not list(tmp_path.glob("*/partial"))


def killed(job: Job) -> None:
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    job.arrive()


def real_training() -> None:
    """On two workers, and after that two of which one is killed."""
    model = [nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)]
    run = pipelag.train(model, PAIRS, method="pipedream", cuts=(1,), executor="real")
    assert len(run.metrics) == len(PAIRS)
    with pytest.raises(WorkerFailed, match="rank 1 of 2 workers failed: it was ended by signal 9"):
        launch(killed, 2)


def ports() -> int:
    """Sockets that this process listens on or is connected by."""
    return len(psutil.Process().net_connections("inet"))


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there is no warm process")
@pytest.mark.real
def test_real_trainings_leave_no_process_port_folder_or_file(
    tmp_path: Path, warm: WarmProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    real_training()  # what is loaded, and opened, once
    running, children, connected = set(forks(warm)), len(psutil.Process().children(recursive=True)), ports()
    memory, files, threads = held()
    for _ in range(2 * FACTOR):
        real_training()
        wait_for(lambda: not set(forks(warm)) - running)
        assert not list(tmp_path.iterdir())
    after = held()
    assert after[0] - memory < MEGABYTES and after[1] <= files and after[2] <= threads
    assert ports() <= connected and len(psutil.Process().children(recursive=True)) <= children
