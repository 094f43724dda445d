"""`pipelag run` as the workers that torchrun starts: two agents on this machine's loopback, as two machines would."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from pipelag.distributed.launch import torchrun
from pipelag.distributed.launch.launch import check_backend
from pipelag.distributed.p2p import PeerLost
from pipelag.errors import PipelagError
from pipelag.runs.carry_out import carry_out
from pipelag.runs.spec import RunSpec
from tests.ending import ended
from tests.workflow.test_warm import JOB

pytestmark = pytest.mark.real

RUN: dict[str, Any] = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits"},
    "batch": 16,
    "seed": 3,
    "executor": "real",
    "workers": 2,
    "optimizer": {"lr": 0.05, "momentum": 0.9},
    "phases": [{"method": "pipedream", "steps": 40, "cuts": [2]}],
    "evaluate_every": 10,
}


@contextmanager
def held_port() -> Iterator[int]:
    """A port of the loopback interface, which the system gives to nobody else; a store of torch can listen there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the store has it
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextmanager
def agents(
    folders: tuple[Path, Path], spec: dict[str, Any], each: int = 1, restarts: int = 0, forked: bool = False
) -> Iterator[list[Any]]:
    """Two of torchrun's agents with `each` process, as on two machines; a machine's own folder is where it works.

    forked: all of these processes are forks of the warm one, and begin with torch loaded.
    """
    python, pipelag = (JOB, ["--no-python", *JOB]) if forked else ([sys.executable], ["-m", "pipelag"])
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{stack.enter_context(held_port())}"]
        words = [*python, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(each), *where]
        words += ["--rdzv-id", "test", "--max-restarts", str(restarts), "--monitor-interval", "0.1", *pipelag, "run"]
        words += ["--spec", json.dumps(spec), "--out", "out", "--device", "cpu", "--threads", str(each)]
        yield [
            stack.enter_context(
                ended(
                    subprocess.Popen(
                        words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                    )
                )
            )
            for folder in folders
        ]


def log_of(folder: Path) -> list[dict[str, Any]]:
    """A run's log without its times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_start_is_not_taken_for_an_earlier_one_of_the_same_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start breaks off: rank 2 never comes, and time passes once rank 1 has joined."""
    store, first, names = HashStore(), list[Any](), set()
    with monkeypatch.context() as patch, ThreadPoolExecutor() as pool:
        clock = SimpleNamespace(sleep=time.sleep, monotonic=lambda: 60.0 * any(each.done() for each in first[1:]))
        patch.setattr(torchrun, "time", clock)
        first += [pool.submit(torchrun.attempt, store, rank, 3, 30.0) for rank in (0, 1)]
    with pytest.raises(PipelagError, match=r"^rank 2 has not joined rank 0 within 30 s$"):
        first[0].result()
    for _ in range(2):
        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(torchrun.attempt, store, rank, 3, 240.0) for rank in (0, 1, 2)]
        (name,) = {each.result() for each in asked}
        names.add(name)
    assert len({first[1].result(), *names}) == 3


def test_machines_with_and_without_gpus_are_refused() -> None:
    store = HashStore()
    check_backend(store, 0, "nccl")
    check_backend(store, 1, "nccl")
    with pytest.raises(
        PipelagError, match=r"^rank 2 would communicate over gloo and rank 0 over nccl: .* --device cpu$"
    ):
        check_backend(store, 2, "gloo")


def test_two_machines_leave_the_log_of_one(tmp_path: Path) -> None:
    carry_out(RunSpec(**RUN), tmp_path / "one", "cpu", 2)
    with agents((tmp_path, tmp_path), RUN) as started:
        outputs = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(outputs)
    assert log_of(tmp_path / "out") == log_of(tmp_path / "one")
    assert sum(text.count("finished after 40 steps") for text in outputs) == 1  # one process tells
    assert not (tmp_path / "out" / "partial").exists()
    with agents((tmp_path, tmp_path), RUN, forked=True) as started:
        outputs = [process.communicate(timeout=240)[0] for process in started]
    assert sum(text.count("nothing was done") for text in outputs) == 1


KILLING = """
import os, signal, sys

def look(event, words):
    if event == "os.rename" and str(words[1]).endswith("step-000000030/stage-2-of-2.pt"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

if not os.path.exists("killed"):
    sys.addaudithook(look)
"""


def test_torchrun_starts_a_broken_run_again_which_goes_on_from_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin kills the second worker while it writes its third checkpoint."""
    carry_out(RunSpec(**RUN), tmp_path / "unbroken", "cpu", 2)
    (tmp_path / "killing.py").write_text(KILLING)
    monkeypatch.setenv("PIPELAG_PLUGINS", "killing")
    with agents((tmp_path, tmp_path), RUN, restarts=1) as started:
        outputs = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(outputs)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["resumed_at"] == 20
    assert log_of(tmp_path / "out") == log_of(tmp_path / "unbroken")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PeerLost(1, 0, "Connection reset"), "rank 1 lost its connection to rank 0 (Connection reset)"),
        (
            RuntimeError("[/w/gloo/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:9. Check the logs"),
            "it lost its connection to another (Connection closed by peer [127.0.0.1]:9)",
        ),
    ],
    ids=["between two", "in a collective"],
)
def test_a_lost_peer_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, sentence: str
) -> None:
    """And this process ends at once."""

    def broken(*words: Any) -> None:
        raise error

    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torchrun, "_as_one_of_them", broken)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        torchrun.everywhere(broken, (each for each in ()), 2, "cpu", 1, Path())
    assert capsys.readouterr().err == f"pipelag: rank 1: {sentence}\n"


def test_a_variable_that_torchrun_has_left_behind_is_no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert torchrun.leads() and torchrun.workers_here(3) == 3
    torchrun.check_world(3, "this run")


@pytest.mark.parametrize(
    ("apart", "each", "change", "sentence"),
    [
        (True, 1, {}, "does not see what rank 0 writes to out/partial; set --out to a folder that all machines share"),
        (False, 2, {}, "torchrun has started 4 processes, and this run is for 2; choose --nnodes and --nproc-per-node"),
        (False, 1, {"executor": "simulated", "workers": 1}, "this train run is for 1; start it without torchrun"),
    ],
    ids=["folders of their own", "too many processes", "one process's run"],
)
def test_what_several_machines_cannot_do_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool, each: int, change: dict[str, Any], sentence: str
) -> None:
    monkeypatch.setenv("PIPELAG_PATIENCE", "3")
    here, there = tmp_path, tmp_path / "other"
    there.mkdir()
    with agents((here, there if apart else here), RUN | change, each, forked=True) as started:
        output = "".join(process.communicate(timeout=240)[0] for process in started)
    assert all(process.returncode for process in started)
    assert sentence in output
    assert "pipelag/__main__.py" not in output  # through which whatever is no sentence would come, with its traceback
    assert not list(tmp_path.glob("**/summary.json"))
