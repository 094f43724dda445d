"""Which device a run gets, and what its log says of its arithmetic."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import pytest
import torch

from pipelag import precision
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.errors import PipelagError
from pipelag.products import multiplies
from pipelag.runs import folder as folders
from pipelag.runs.carry_out import carry_out, resolve_device
from pipelag.runs.folder import environment
from pipelag.runs.kinds.speed import measure
from pipelag.runs.spec import RunSpec


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.mark.usefixtures("one_gpu")
def test_workers_without_a_gpu_each_go_to_the_cpu_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert resolve_device("auto") == "cuda:0"
    assert resolve_device("auto", 1) == "cuda"
    assert capsys.readouterr().err == ""
    assert resolve_device("auto", 2) == "cpu"
    notice = "pipelag: 2 workers need 2 GPUs, but this machine has 1, so they run on the CPU\n"
    assert capsys.readouterr().err == notice
    assert resolve_device("cuda", 2) == "cuda"  # asked for: `launch` refuses it
    assert resolve_device("cuda:0", 2) == "cuda:0"  # they share it
    with pytest.raises(PipelagError, match="^2 workers need 2 GPUs, and this machine has 1; .* or cuda:0"):
        launch(print, 2, "cuda")


def test_workers_that_share_a_gpu_are_not_timed(tmp_path: Path) -> None:
    spec = RunSpec(
        kind="speed",
        model={"name": "lenet5"},
        data={"name": "digits"},
        optimizer={"lr": 0.1},
        executor="real",
        workers=2,
        phases=[{"method": "pipedream", "steps": 12, "cuts": [2]}],  # type: ignore[list-item]
    )
    with pytest.raises(PipelagError, match="^workers that share cuda:0 are no faster than one; use --device cuda"):
        measure(spec, tmp_path, "cuda:0", 2)


def test_messages_lie_in_the_cpus_memory_where_a_gpu_is_shared() -> None:
    gpu = torch.device("cuda", 0)
    assert Job(0, 2, gpu, None).outside == gpu
    assert Job(0, 2, gpu, None, shared=True).outside == torch.device("cpu")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto", 2) == "cpu"
    with pytest.raises(PipelagError, match="torch sees no GPU here"):
        resolve_device("cuda")


@pytest.fixture
def settings() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    tried = torch.backends.cudnn.benchmark
    tf32 = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    allowed = attention()
    workspace = os.environ.get(precision.WORKSPACE)
    yield
    for kind, enabled in zip(precision.ATTENTION, allowed, strict=True):
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(enabled)
    torch.use_deterministic_algorithms(before[0])
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[1], tried
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32
    os.environ.pop(precision.WORKSPACE, None)
    os.environ.update({precision.WORKSPACE: workspace} if workspace else {})


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("asked", ["1", "0"])
def test_a_log_says_how_its_numbers_were_computed(asked: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(precision.ASKED, asked)
    spec = RunSpec(kind="count", model={"name": "lenet5"}, options={"sample_shape": [1, 28, 28]})  # type: ignore[arg-type]
    carry_out(spec, tmp_path, "cpu", 1)
    arithmetic = json.loads((tmp_path / "environment.json").read_text())["precision"]
    kernels = {} if multiplies("cpu") else {"bfloat16": "products by float32's kernels, rounded"}
    assert arithmetic == {"dtype": "float32", "matmul": "highest", "deterministic": asked == "1"} | kernels
    assert torch.backends.cudnn.deterministic is (asked == "1")
    assert torch.backends.cudnn.benchmark is (asked == "0")  # the fastest of several may be another the next time
    rounded = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    assert asked == "0" or rounded == (False, False)
    assert os.environ.get(precision.WORKSPACE) == (":4096:8" if asked == "1" else None)


def test_a_log_says_what_the_environment_has_libraries_compute_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in precision.CHOICES:
        monkeypatch.delenv(name, raising=False)
    assert "environment" not in precision.described("cpu")
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")  # float32 products in bfloat16, on CPUs that can
    assert precision.described("cpu")["environment"] == {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}


def attention() -> list[bool]:
    return [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in precision.ATTENTION]


@pytest.mark.usefixtures("settings", "one_gpu")
@pytest.mark.parametrize(("asked", "device"), [("1", "cuda:0"), ("1", "cpu"), ("0", "cuda:0")])
def test_numbers_that_repeat_need_attention_that_does(asked: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's own kernel of attention, which repeats, goes by one of the settings."""
    monkeypatch.setenv(precision.ASKED, asked)
    before = attention()
    precision.prepare()
    precision.prepare_for(device)
    assert attention() == ([False] * 3 if (asked, device) == ("1", "cuda:0") else before) and all(before)
    assert torch.backends.cuda.math_sdp_enabled()


def test_of_a_gpu_it_says_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    row = environment("cuda:0", 1)
    assert row["device"] == "H100"
    keys = {"dtype", "matmul", "deterministic", "tf32", "cudnn", "cublas_workspace", "attention"}
    assert set(row["precision"]) == keys and row["precision"]["attention"][-1] == "math"


def test_a_log_says_where_by_what_and_when_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The date in UTC, wherever the machine is."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/python -m pipelag", "run", "--out", "x"])
    with monkeypatch.context() as away:
        away.setenv("TZ", "Pacific/Kiritimati")  # 14 hours ahead
        time.tzset()
        row = environment("cpu", 3)
    time.tzset()
    made = datetime.strptime(row["date"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - made) < timedelta(minutes=5)
    assert row["host"] == socket.gethostname() and row["threads"] == 3 and row["command"] == ["pipelag", *sys.argv[1:]]
    assert row["device"].endswith(f" ({os.cpu_count()} cores)") and row["python"] == platform.python_version()
    assert row["versions"] == {name: metadata.version(name) for name in ("pipelag", "torch", "torchvision", "numpy")}


def test_a_log_names_the_job_of_slurm_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_PARTITION": "gpu"}
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert "slurm" not in environment("cpu", 1)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert environment("cpu", 1)["slurm"] == {"job": "7", "nodes": "n[1-2]", "partition": "gpu"}


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_log_says_the_commit_of_the_code_and_not_of_the_folder_that_one_works_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = {}
    for name in ("ours", "theirs"):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / "src/folder.py").write_text(name)
        git(tmp_path / name, "init", "-q")
        git(tmp_path / name, "add", ".")
        git(tmp_path / name, "commit", "-q", "-m", "one")
        heads[name] = git(tmp_path / name, "rev-parse", "--short=12", "HEAD")
    monkeypatch.chdir(tmp_path / "theirs")
    monkeypatch.setattr(folders, "__file__", str(tmp_path / "ours/src/folder.py"))
    assert environment("cpu", 1)["commit"] == heads["ours"] != heads["theirs"]
    (tmp_path / "ours/beside.txt").write_text("what git does not follow is no change")
    assert environment("cpu", 1)["commit"] == heads["ours"]
    (tmp_path / "ours/src/folder.py").write_text("changed")
    assert environment("cpu", 1)["commit"] == heads["ours"] + "+"
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for place in ("none", "theirs/.venv/lib/pipelag"):  # no checkout, and an installed copy in somebody's own
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "folder.py").write_text("")
        monkeypatch.setattr(folders, "__file__", str(tmp_path / place / "folder.py"))
        assert environment("cpu", 1)["commit"] is None
