"""For all tests: one thread. Their tensors are tiny, and threads that wait for each other on a busy machine crawl.

Real workers are forks of one warm process, as in a workflow: each would spend more on loading torch than on its test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # of numpy, and of processes that tests start, which count cores: before torch
import torch
from hypothesis import HealthCheck, settings
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipelag.distributed.launch import processes
from pipelag.warm import WarmProcess
from tests.inputs.sizes import FACTOR

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile(
    "pipelag",
    deadline=None,  # no test is timed: on a busy machine they would fail
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=FACTOR == 1,  # the ordinary suite finds the same every day; longer looks are new ones
)
settings.load_profile("pipelag")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Also where a test before has let a run set the number, which would change sums in their last bits."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_figure_stays() -> Iterator[None]:
    """A test that draws need not close what it drew: a thousand figures are a gigabyte."""
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a test computes: on the CPU, and on the GPU where there is one, there with deterministic kernels."""
    name: str = request.param
    if name == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("there is no GPU")
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        monkeypatch.setenv("PIPELAG_DETERMINISTIC", "1")  # of workers
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    with sdpa_kernel(SDPBackend.MATH) if name == "cuda" else nullcontext():
        yield name


@pytest.fixture
def place(device: str) -> str:
    """Where real workers compute: on the CPU, and all on the first GPU, through links over the CPU."""
    return "cuda:0" if device == "cuda" else device


@pytest.fixture
def in_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the project's own folder, with its config read anew."""
    monkeypatch.chdir(Path(__file__).resolve().parents[1])


@pytest.fixture
def nothing_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the config alone: `make reproduce` has left logs in the project's own."""
    shutil.copytree(Path(__file__).resolve().parents[1] / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is such a place: many checkpoints wait long for a disk, each for its sync."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="pipelag-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmProcess]:
    """A warm process for the session, in the environment of those tests only that ask for it."""
    process = WarmProcess()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # forks run tests.script, too
        process.start(tmp_path_factory.mktemp("warm") / "warm.log")
    os.environ.pop("PIPELAG_WARM", None)
    yield process
    process.stop()


@pytest.fixture(autouse=True)
def warm_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks of the warm process; so are those of commands that tests marked `real` start."""
    start = processes.start

    def warmed() -> None:
        process: WarmProcess = request.getfixturevalue("warm")
        if process.process is not None:
            monkeypatch.setenv("PIPELAG_WARM", process.socket)

    def started(words: Sequence[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
        warmed()
        return start(words, more)

    monkeypatch.setattr(processes, "start", started)
    if request.node.get_closest_marker("real"):
        warmed()
