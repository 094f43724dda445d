"""Jobs that are forks of a warm process do what processes of their own do: output, exit codes, signals, ends."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelag.job import PARENT
from pipelag.runs.spec import DataSpec, ModelSpec, OptimizerSpec, PhaseSpec, RunSpec
from pipelag.warm import Server, WarmProcess, pass_on, remove_abandoned
from tests.ending import alive, ended

ROOT = Path(__file__).resolve().parents[2]
JOB = [sys.executable, "-S", "-I", str(ROOT / "src/pipelag/job.py")]
ENDLESS = RunSpec(
    model=ModelSpec(name="resnet8"),
    data=DataSpec(name="shapes", options={"train": 80, "test": 20}),  # of 12,000, each process would make all
    batch=8,
    optimizer=OptimizerSpec(lr=0.01),
    phases=(PhaseSpec(method="stale_weights", steps=100_000, cuts=(2,)),),
    evaluate_every=10,
)
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="forks are watched by pidfd, which is Linux's"),
    pytest.mark.real,
]


def job(*words: str, folder: Path = ROOT, warm: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if warm or key != "PIPELAG_WARM"}
    return subprocess.run([*JOB, *words], cwd=folder, capture_output=True, text=True, env=environment, check=False)


def forks(process: WarmProcess) -> list[int]:
    assert process.process is not None
    server = process.process.pid
    return [int(each) for each in Path(f"/proc/{server}/task/{server}/children").read_text().split()]


def wait_for(what: object, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def training(folder: Path, process: WarmProcess) -> tuple[subprocess.Popen[str], int]:
    """A training under way in a fork, and the fork's number."""
    words = ["run", "--spec", ENDLESS.canonical(), "--out", str(folder / "run"), "--device", "cpu", "--threads", "1"]
    before = set(forks(process))  # those that draw stay
    client = subprocess.Popen([*JOB, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: client.poll() is not None or list(folder.glob("run/partial/*")))
    assert client.poll() is None, client.stdout and client.stdout.read()
    (fork,) = set(forks(process)) - before
    return client, fork


def test_its_socket_has_its_name_only_once_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that finds the name, and nobody who listens, would start by itself."""
    place, listen, there = tmp_path / "socket", socket.socket.listen, list[bool]()
    monkeypatch.setattr(socket.socket, "listen", lambda one, *most: (there.append(place.exists()), listen(one, *most)))
    server = Server(place)
    with server.listening, server.watch, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(place))
    assert there == [False] and [path.name for path in tmp_path.iterdir()] == ["socket"]


def test_a_fork_says_and_returns_what_a_process_of_its_own_does(warm: WarmProcess) -> None:
    for words in (["list", "stale_weights", "table_6"], ["list", "stale_wheat"], ["result"], ["nonsense"]):
        forked, alone = job(*words), job(*words, warm=False)
        assert forked.returncode == alone.returncode, words
        assert forked.stdout == alone.stdout and forked.stderr.replace("job.py", "pipelag") == alone.stderr, words
    assert job("nonsense").returncode == 2


def test_torch_is_loaded_when_something_computes_and_not_for_drawings(tmp_path: Path) -> None:
    """It takes four times as long as all that drawings need."""
    process = WarmProcess()
    process.start(tmp_path / "warm.log")
    assert process.process is not None
    maps = Path(f"/proc/{process.process.pid}/maps")
    try:
        assert job("result", "nothing", "nothing").returncode == 2 and len(forks(process)) == 1
        assert "libtorch" not in maps.read_text()
        assert job("list", "stale_weights", "table_6").returncode == 0
        assert "libtorch" in maps.read_text()
    finally:
        process.stop()


def test_a_fork_that_draws_stays_and_draws_the_same(warm: WarmProcess, tmp_path: Path) -> None:
    """In another folder too, and after a request that it refused."""
    drawn, number = [], set()
    for folder in ("one", "two"):
        project = tmp_path / folder
        (project / "results").mkdir(parents=True)
        (project / "config").symlink_to(ROOT / "config")
        done = job("result", "stale_weights", "figure_2", folder=project)
        assert done.returncode == 0, done.stderr
        number.add(tuple(forks(warm)))
        assert job("result", "stale_weights", "figure_222", folder=project).returncode == 2
        drawn.append({p.name: p.read_bytes() for p in (project / "figures").rglob("*.*")})
    assert len(number) == 1 and drawn[0] == drawn[1] and "figure_2.svg" in drawn[0]
    (fork,) = next(iter(number))
    os.kill(fork, signal.SIGKILL)
    wait_for(lambda: fork not in forks(warm))
    assert job("result", "stale_weights", "figure_2", folder=tmp_path / "one").returncode == 0


def test_a_fork_that_is_killed_while_its_next_request_comes_is_replaced(warm: WarmProcess, tmp_path: Path) -> None:
    """A machine without memory kills one that waits: the warm process may see the request before the end."""
    assert job("result", "nothing", "nothing").returncode == 2
    assert warm.process is not None
    os.kill(warm.process.pid, signal.SIGSTOP)
    try:
        client = subprocess.Popen([*JOB, "result", "nothing", "nothing"], stderr=subprocess.PIPE, text=True)
        wait_for(lambda: caught(client.pid))  # it has connected
        for fork in forks(warm):
            os.kill(fork, signal.SIGKILL)
            wait_for(lambda fork=fork: psutil.Process(fork).status() == psutil.STATUS_ZOMBIE)
    finally:
        os.kill(warm.process.pid, signal.SIGCONT)
    assert "unknown paper 'nothing'" in client.communicate(timeout=240)[1]
    assert client.returncode == 2 and warm.process.poll() is None


def test_a_fork_works_in_the_clients_folder_and_environment(warm: WarmProcess, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('plugin of', __import__('os').getcwd())\n")
    os.environ["PIPELAG_PLUGINS"] = "mine"
    try:
        assert f"plugin of {tmp_path}" in job("list", "leaderboard", folder=tmp_path).stdout
    finally:
        del os.environ["PIPELAG_PLUGINS"]


def test_torch_is_as_quiet_in_forks_as_in_workers_of_their_own(warm: WarmProcess) -> None:
    assert warm.process is not None
    environment = Path(f"/proc/{warm.process.pid}/environ").read_bytes().split(b"\0")
    assert b"TORCH_CPP_LOG_LEVEL=ERROR" in environment


def test_a_fork_has_the_clients_environment_and_nothing_of_the_servers(warm: WarmProcess, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os\nprint(sorted(os.environ))\n")
    few = {name: os.environ[name] for name in ("PATH", "PIPELAG_WARM")} | {"PIPELAG_PLUGINS": "mine", "MINE": "1"}
    few["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run([*JOB, "list", "leaderboard"], cwd=tmp_path, env=few, capture_output=True, text=True)
    named = ast.literal_eval(done.stdout.splitlines()[0])
    assert {*few} <= {*named} and {*named} - {*few} <= {PARENT, "LC_CTYPE"}, done.stderr


def test_what_nothing_catches_ends_a_fork_as_a_process_of_its_own(warm: WarmProcess, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine(BaseException):\n    pass\n\n\nraise Mine('nobody')\n")
    os.environ["PIPELAG_PLUGINS"] = "mine"
    try:
        for forked in (True, False):
            done = job("list", "leaderboard", folder=tmp_path, warm=forked)
            assert done.returncode == 1 and done.stderr.endswith("Mine: nobody\n")
    finally:
        del os.environ["PIPELAG_PLUGINS"]


def test_a_run_says_by_which_command_it_was_made(warm: WarmProcess, tmp_path: Path) -> None:
    spec = RunSpec(kind="count", model=ModelSpec(name="resnet8"))
    words = ["run", "--spec", spec.canonical(), "--out", str(tmp_path / "run"), "--device", "cpu", "--threads", "1"]
    done = job(*words)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/environment.json").read_text())["command"] == ["pipelag", *words]


def test_a_killed_client_takes_its_fork_along(warm: WarmProcess, tmp_path: Path) -> None:
    client, fork = training(tmp_path, warm)
    client.kill()
    wait_for(lambda: fork not in forks(warm))
    assert job("list", "leaderboard").returncode == 0  # the others go on


def test_signals_reach_the_fork_and_its_end_the_client(warm: WarmProcess, tmp_path: Path) -> None:
    client, _ = training(tmp_path, warm)
    client.send_signal(signal.SIGINT)
    text, _ = client.communicate()
    assert client.returncode == 130 and "interrupted; finished work is kept" in text
    client, fork = training(tmp_path / "another", warm)
    os.kill(fork, signal.SIGKILL)
    assert client.wait() == -signal.SIGKILL


def test_a_fork_that_has_not_made_its_group_yet_ends_with_its_client_too() -> None:
    """On a busy machine a client may be gone before its fork has run at all; a worker then waited for its launcher."""
    with ended(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], text=True)) as fork:
        pass_on(fork.pid, signal.SIGKILL)  # it is in the group of these tests
        assert fork.wait(timeout=240) == -signal.SIGKILL
    pass_on(fork.pid, signal.SIGKILL)  # one that has ended is left alone


def test_a_signal_that_nobody_reads_any_more_does_not_hide_the_answer(tmp_path: Path) -> None:
    """It comes while the warm process closes its end."""
    place = tmp_path / "warm"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(place))
        server.listen()
        client = subprocess.Popen([*JOB, "list"], env=os.environ | {"PIPELAG_WARM": str(place)})
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as asked:
            asked.readline()
            connection.shutdown(socket.SHUT_RD)
            wait_for(lambda: caught(client.pid))
            client.terminate()
            connection.send(bytes([7]))
            assert client.wait(240) == 7


def test_a_warm_process_that_ends_before_it_has_read_a_request_is_one_sentence(tmp_path: Path) -> None:
    place = tmp_path / "warm"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(place))
        server.listen()
        environment = os.environ | {"PIPELAG_WARM": str(place)}
        client = subprocess.Popen([*JOB, "list"], env=environment, stderr=subprocess.PIPE, text=True)
        connection, _ = server.accept()
        wait_for(lambda: caught(client.pid))
        connection.close()  # what has come is unread
    assert client.communicate(timeout=240)[1].startswith("job.py: the warm process has ended; see its log")
    assert client.returncode == 1


def caught(process: int) -> bool:
    """Whether a process handles SIGTERM itself."""
    status = Path(f"/proc/{process}/status").read_text()
    mask = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return bool(mask >> (signal.SIGTERM - 1) & 1)


def real(folder: Path, process: WarmProcess) -> tuple[subprocess.Popen[str], list[int]]:
    """A training on two real workers under way in forks, and their numbers: the launcher's, then the workers'.

    In the order in which they began, which is that of /proc; numbers begin again with 1 some time.
    """
    spec = ENDLESS.model_dump() | {"executor": "real", "workers": 2}
    words = ["run", "--spec", json.dumps(spec), "--out", str(folder / "run"), "--device", "cpu", "--threads", "2"]
    before = set(forks(process))
    client = subprocess.Popen([*JOB, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: client.poll() is not None or list(folder.glob("run/partial/checkpoints/*")))
    assert client.poll() is None, client.stdout and client.stdout.read()
    return client, [fork for fork in forks(process) if fork not in before]


def test_real_workers_are_forks_and_a_killed_one_is_named(warm: WarmProcess, tmp_path: Path) -> None:
    client, started = real(tmp_path, warm)
    assert len(started) == 3
    os.kill(started[-1], signal.SIGKILL)
    text, _ = client.communicate(timeout=240)
    assert client.returncode == 2
    assert re.search(r"rank [01] of 2 workers failed: it was ended by signal 9 \(SIGKILL\)", text), text
    wait_for(lambda: not set(started) & set(forks(warm)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_client_of_their_launcher(warm: WarmProcess, tmp_path: Path, number: int) -> None:
    client, started = real(tmp_path, warm)
    client.send_signal(number)
    client.communicate(timeout=240)
    wait_for(lambda: not set(started) & set(forks(warm)))


def test_the_end_of_the_warm_process_ends_its_forks(tmp_path: Path) -> None:
    process = WarmProcess()
    process.start(tmp_path / "warm.log")
    client, fork = training(tmp_path, process)
    process.stop()
    text, _ = client.communicate()
    assert client.returncode == 1 and "the warm process has ended" in text
    wait_for(lambda: not alive(fork))


def test_without_a_warm_process_a_job_starts_by_itself(tmp_path: Path) -> None:
    environment = os.environ | {"PIPELAG_WARM": str(tmp_path / "nobody")}
    done = subprocess.run([*JOB, "list", "leaderboard"], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and re.search(r"[0-9a-f]{12}", done.stdout)


def test_a_module_in_the_working_directory_hides_none_of_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIPELAG_WARM", raising=False)
    (tmp_path / "types.py").write_text("raise SystemExit('hidden')")
    done = subprocess.run([*JOB, "schedules"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "gpipe" in done.stdout, done.stderr


def test_nor_from_the_warm_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text("raise SystemExit('hidden')")
    process = WarmProcess()
    process.start(tmp_path / "log")
    try:
        assert job("schedules", folder=tmp_path).returncode == 0
        assert process.process is not None and process.process.poll() is None, (tmp_path / "log").read_text()
    finally:
        process.stop()


def test_a_fork_that_still_writes_while_its_workflow_ends_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, remove = WarmProcess(), os.rmdir
    process.start(tmp_path / "log")
    folder = Path(process.folder.name)

    def removed(*path: Any, **how: Any) -> None:
        (folder / "shapes.1").touch()
        remove(*path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", removed)
        process.stop()
    assert process.process is None
    shutil.rmtree(folder)


def test_what_matplotlib_keeps_for_a_read_only_home_goes_with_the_warm_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/proc")  # where not even root can make a folder
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    process = WarmProcess()
    process.start(tmp_path / "warm.log")
    try:
        subprocess.run([*JOB, "report", "--help"], check=True, capture_output=True)
        assert list(Path(process.folder.name).glob("matplotlib-*"))
    finally:
        process.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["warm.log"]


def test_a_warm_process_ends_with_who_started_it(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pipelag.warm import WarmProcess; w = WarmProcess(); w.start(sys.argv[1]);"
        "print(w.process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("PIPELAG_WARM", PARENT)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, env=environment
    )
    wait_for(lambda: not alive(int(done.stdout)))


def test_folders_of_killed_warm_processes_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours = [f"pipelag-warm-{name}" for name in ("killed", "alive", "begun", "mute")]
    for name in (*ours, "other-killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shapes-1.pickle").touch()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "pipelag-warm-alive/socket"))
        listening.listen()
        for name in ("pipelag-warm-killed", "other-killed"):
            with socket.socket(socket.AF_UNIX) as gone:
                gone.bind(str(tmp_path / name / "socket"))
                gone.listen()
        with socket.socket(socket.AF_UNIX) as bound:  # in its first moments one refuses, as those that are gone do
            (tmp_path / "pipelag-warm-young").mkdir()
            bound.bind(str(tmp_path / "pipelag-warm-young/socket"))
            for path in tmp_path.iterdir():
                if path.name != "pipelag-warm-young":
                    os.utime(path, (0, 0) if path.name != "pipelag-warm-begun" else (time.time() - 600,) * 2)
            remove_abandoned()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other-killed",
        "pipelag-warm-alive",
        "pipelag-warm-begun",
        "pipelag-warm-young",
    ]
