"""What real workers do when something is wrong: nothing listens to others, nobody waits for ever, nothing is left."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

import pipelag
from pipelag.distributed import gather
from pipelag.distributed.job import Job
from pipelag.distributed.launch import processes
from pipelag.distributed.launch.launch import WorkerFailed, first_cause, launch, leave_report
from pipelag.distributed.p2p import PeerLost, reaching, told_of_loss
from pipelag.distributed.record import Record
from pipelag.distributed.training import RealTraining
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.runs.carry_out import carry_out
from pipelag.runs.kinds import train_real
from pipelag.schedules import Action
from pipelag.stage.phase import Phase
from tests.distributed.test_heartbeat import wait_for
from tests.distributed.test_real import REAL, SPLIT, alone, optimizer_for
from tests.ending import alive, ended
from tests.runs.test_integrity import spec as train_spec
from tests.toy import Noise, convolutional

pytestmark = pytest.mark.real
ROOT = Path(__file__).resolve().parents[2]


def listening(process: int) -> list[str]:
    return [each.laddr.ip for each in psutil.Process(process).net_connections("tcp") if each.status == "LISTEN"]


def listeners(job: Job, launcher: int) -> list[str]:
    """Addresses that the launcher and all workers listen on, in the middle of a phase of two workers."""
    addresses: list[str] = []

    class Looking(Noise):
        def inputs(self, t: int) -> torch.Tensor:
            if t == 3:
                addresses.extend(listening(os.getpid()) + (listening(launcher) if job.rank == 0 else []))
            return super().inputs(t)

    batches = Looking()
    for name in ("stale_weights", "bsp", "asp", "gpipe_torch"):
        cuts = () if get(name).data_parallel else (3,)
        phases = [Phase(get(name), 8, cuts, microbatches=2 if name == "gpipe_torch" else 1)]
        training = RealTraining(
            job, convolutional(), phases, optimizer_for(name), nn.functional.cross_entropy, rate=lambda s: 1.0, seed=5
        )
        training.run(batches.inputs, batches.targets)
    return [address for part in gather.gathered(addresses, job.device) for address in part]


def test_nothing_of_a_run_on_one_machine_can_be_reached_from_another() -> None:
    addresses = launch(listeners, 2, launcher=os.getpid())
    assert len(addresses) >= 4 and set(addresses) == {"127.0.0.1"}


def unpickling_nothing(job: Job, cases: list[list[Phase]]) -> int:
    """Every method, where torch may unpickle nothing that another rank has sent."""

    def refuse(*args: Any) -> None:
        raise AssertionError("what came over a socket is unpickled")

    dist.distributed_c10d._unpickler = refuse  # type: ignore[attr-defined, assignment]
    for phases in cases:
        batches, make = Noise(), optimizer_for(phases[0].method.name)
        training = RealTraining(
            job, convolutional(), phases, make, nn.functional.cross_entropy, rate=lambda s: 1.0, seed=5
        )
        training.run(batches.inputs, batches.targets)
    return len(training.losses)


def test_no_method_unpickles_what_another_rank_sends() -> None:
    cases = [[Phase(get(name), 6, (3,), microbatches=SPLIT.get(name, 1))] for name in REAL]
    cases += [[Phase(get(name), 6, ())] for name in ("bsp", "asp")]
    cases += [[Phase(get("gpipe_torch"), 6, (3,), microbatches=2)]]
    assert launch(unpickling_nothing, 2, cases=cases) == 6


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def attacked(job: Job, mark: Path) -> str:
    try:
        gather.gathered({"weights": Attack(f"touch {mark}") if job.rank else torch.ones(2)}, job.device)
    except PipelagError as error:
        return str(error)
    return "taken"


def test_a_rank_that_sends_code_is_refused(tmp_path: Path) -> None:
    refusal = launch(attacked, 2, mark=tmp_path / "mark")
    assert "hold other objects than tensors, numbers, strings" in refusal and not (tmp_path / "mark").exists()


def test_a_record_travels_whole() -> None:
    spans = [(Action("F", 1, 0), 0.1, 0.25), (Action("U", 2, 7), 1e9 + 1 / 3, 2e9)]
    record = Record({3: torch.tensor(0.1), 4: torch.tensor(2.5)}, [1.0, 2.0], 0.5, spans=spans, ages=[1], opaque=True)
    assert Record.unpacked(record.packed()) == record
    assert Record.unpacked(Record().packed()) == Record()


def interrupted(job: Job) -> None:
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
    job.arrive()


def test_the_keyboards_signal_to_one_worker_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerFailed, match=r"rank 1 of 2 workers failed: it was ended by signal 2 \(SIGINT\)"):
        launch(interrupted, 2)
    assert time.monotonic() - began < 240  # of which nearly all is the start
    assert capfd.readouterr().err == ""


def test_the_end_of_the_workers_store_is_no_traceback() -> None:
    """A launcher kills its workers and ends their store: on a busy machine, some see the end of the store first."""
    store = dist.TCPStore(processes.LOOPBACK, 0, is_master=True, wait_for_workers=False)
    worker = dist.TCPStore(processes.LOOPBACK, store.port, is_master=False, wait_for_workers=False)
    del store
    with pytest.raises(RuntimeError) as caught:
        worker.get("key")
    assert told_of_loss(caught.value).startswith("it lost its connection to the workers' store (")


def dying(job: Job) -> None:
    """Rank 1 is gone while rank 0 waits for it."""
    if job.rank == 1:
        os._exit(3)
    with reaching(0, 1):
        dist.recv(torch.empty(1), 1)


def test_a_worker_that_died_is_named_and_not_the_one_that_misses_it() -> None:
    sentence = "rank 1 of 2 workers failed: it exited with status 3; all workers have been stopped"
    with pytest.raises(WorkerFailed, match=f"^{sentence}$"):
        launch(dying, 2)


def test_of_failed_workers_the_one_that_began_it_is_named(tmp_path: Path) -> None:
    def cause(**codes: int) -> str:
        return str(first_cause({int(rank[1:]): code for rank, code in codes.items()}, tmp_path, 4))

    report = {"message": "rank 0 lost its connection to rank 1", "peer_lost": True, "bad_input": False}
    (tmp_path / "error-0.json").write_text(json.dumps(report))
    (tmp_path / "error-3.json").write_text(json.dumps(report | {"message": "ValueError: mine", "peer_lost": False}))
    assert "rank 3 of 4 workers failed: ValueError: mine" in cause(r0=1, r3=1)
    assert "rank 1 of 4 workers failed: it exited with status 7" in cause(r0=1, r1=7, r3=1)
    assert "rank 2 of 4 workers failed: it was ended by signal 9 (SIGKILL)" in cause(r0=1, r2=-9)
    assert "it was ended by signal 40 (a real-time signal)" in cause(r0=1, r2=-40)
    assert "rank 0 lost its connection" in cause(r0=1, r1=errno.ENOSPC)  # which could not say what it saw


def test_two_reports_of_one_worker_at_the_same_time_leave_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat may find another silent while the main thread loses its connection."""
    met, write = threading.Barrier(2), Path.write_text

    def together(path: Path, text: str) -> int:
        written = write(path, text)
        met.wait(60)
        return written

    monkeypatch.setattr(Path, "write_text", together)
    reports = [{"message": "short"}, {"message": "a longer one"}]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda report: leave_report(report, tmp_path, 0), reports))
    assert json.loads((tmp_path / "error-0.json").read_text()) in reports


def lingering(job: Job, folder: Path) -> None:
    """Rank 1 fails while rank 0 is at work on something else."""
    (folder / f"pid{job.rank}").write_text(str(os.getpid()))
    job.arrive()
    if job.rank == 1:
        raise ArithmeticError("no")
    time.sleep(600)


def test_no_worker_is_at_work_when_its_run_has_failed(tmp_path: Path) -> None:
    """Nor is a fork of the warm process, where the next run may begin in the same folder."""
    with pytest.raises(WorkerFailed, match="rank 1 of 2 workers failed: ArithmeticError: no"):
        launch(lingering, 2, folder=tmp_path)
    assert not any(alive(int((tmp_path / f"pid{rank}").read_text())) for rank in (0, 1))


class Told:
    """A worker whose exit code is known from a second on."""

    def __init__(self, code: int, since: float, clock: list[float]) -> None:
        self.code, self.since, self.clock = code, since, clock

    def poll(self) -> int | None:
        return self.code if self.clock[0] >= self.since else None


@pytest.mark.parametrize(("lost", "codes"), [(True, {0: 1, 1: -9}), (False, {0: 1})])
def test_the_end_of_a_worker_that_others_have_lost_is_waited_for(
    lost: bool, codes: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may tell of it seconds later; without it, the one that misses it would be named."""
    clock = [100.0]
    sleep = lambda seconds: clock.append(clock.pop() + seconds)  # noqa: E731
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    leave_report({"peer_lost": lost}, tmp_path, 0)
    started: Any = [Told(1, 101.0, clock), Told(-9, 111.0, clock)]
    assert processes.watch(started, tmp_path) == codes
    assert clock[0] < 120


def unserved(job: Job) -> None:
    """Rank 0's server makes no update of what another worker sends: it has threads for those."""
    refused, after = threading.Event(), itertools.count()

    class Refusing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if threading.current_thread() is not threading.main_thread():
                refused.set()
                raise ArithmeticError("no update")
            return super().step(closure)

    def inputs(t: int) -> torch.Tensor:
        if job.rank == 0 and t:
            assert refused.wait(60) and next(after) < 20, "it went on"
        return Noise().inputs(t)

    make = lambda parameters: Refusing(parameters, lr=0.01)  # noqa: E731
    phases, loss = [Phase(get("asp"), 200)], nn.functional.cross_entropy
    RealTraining(job, convolutional(), phases, make, loss, rate=lambda step: 1.0, seed=5).run(inputs, Noise().targets)


def test_what_fails_in_a_servers_thread_ends_the_run_at_once() -> None:
    with pytest.raises(WorkerFailed, match="rank 0 of 2 workers failed: ArithmeticError: no update"):
        launch(unserved, 2)


def test_of_a_lost_connection_its_reason_is_told_whole() -> None:
    place, advice = "[/__w/gloo/transport/tcp/pair.cc:561] ", ". This is typically caused by a remote worker crashing."
    with pytest.raises(PeerLost) as caught, reaching(0, 1):
        raise RuntimeError(f"{place}Connection closed by peer [127.0.0.1]:17808{advice}")
    assert str(caught.value) == "rank 0 lost its connection to rank 1 (Connection closed by peer [127.0.0.1]:17808)"


class Narrow(nn.Module):
    """Takes another width than it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 4)


class Worn(nn.Module):
    """Fails in its fifth forward."""

    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if self.count > 4:
            raise ArithmeticError("worn out")
        return x


def test_an_error_within_a_schedule_of_torchs_says_where() -> None:
    model = nn.Sequential(*convolutional()[:5], Worn(), convolutional()[5])
    where = r"rank 1 .*: ArithmeticError: worn out \(in step [12]: stage 2, layer 6 \(Worn\), input \[4, 16\]\); all"
    with pytest.raises(WorkerFailed, match=where):
        pipelag.train(model, Noise(), steps=4, cuts=(3,), method="gpipe_torch", microbatches=2, executor="real")


@pytest.mark.parametrize(
    "how", [{"cuts": (3,)}, {"method": "bsp", "workers": 2}, {"method": "asp", "workers": 2}], ids=str
)
def test_an_error_in_a_worker_says_where_as_a_simulated_one_does(how: dict[str, Any]) -> None:
    model = nn.Sequential(*convolutional()[:5], Narrow())
    with pytest.raises(WorkerFailed) as caught:
        pipelag.train(model, Noise(), steps=4, executor="real", **how)
    stage, batch = (2, 8) if "cuts" in how else (1, 8 if how["method"] == "asp" else 4)
    where = rf"RuntimeError: .*\(in step [01]: stage {stage}, layer 6 \(Narrow\), input \[{batch}, 16\]\); all workers"
    assert re.search(where, str(caught.value))
    if "cuts" in how:
        with pytest.raises(RuntimeError) as simulated:
            pipelag.train(model, Noise(), steps=4, **how)
        assert f"({simulated.value.__notes__[0]})" in str(caught.value)


def test_an_error_in_the_loss_of_a_worker_says_so() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target.float())

    with pytest.raises(WorkerFailed, match=r"\(in step 0: the loss, output \[4, 4\], targets \[4\]\); all workers"):
        pipelag.train(convolutional(), Noise(), steps=4, cuts=(3,), loss=loss, microbatches=2, executor="real")


def test_signal_handlers_are_given_back() -> None:
    handler = lambda number, frame: None  # noqa: E731
    before = signal.signal(signal.SIGHUP, handler)
    try:
        handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
        assert launch(slow_not, 1) == "done"
        assert handlers == {n: signal.getsignal(n) for n in handlers}
    finally:
        signal.signal(signal.SIGHUP, before)


def slow_not(job: Job) -> str:
    return "done"


ENDLESS = """
    import os, signal, sys, pipelag
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever starts the tests by nohup has it ignored here too
    from tests.toy import Noise, convolutional

    class Telling(Noise):
        def __getitem__(self, t):
            if t == 20:
                open(os.path.join(os.environ["TELL"], "pid" + os.environ["RANK"]), "w").write(str(os.getpid()))
            return super().__getitem__(t)

    pipelag.train(convolutional(), Telling(), steps=10**5, cuts=(3,), executor="real")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all_in_one_sentence(tmp_path: Path, number: signal.Signals) -> None:
    for folder in ("tmp", "tell"):
        (tmp_path / folder).mkdir()
    (tmp_path / "endless.py").write_text(textwrap.dedent(ENDLESS))
    environment = alone(number == signal.SIGHUP, TELL=str(tmp_path / "tell"), TMPDIR=str(tmp_path / "tmp"))
    launcher = subprocess.Popen(
        [sys.executable, str(tmp_path / "endless.py")], env=environment, stderr=subprocess.PIPE, text=True
    )
    with ended(launcher):
        pids = [tmp_path / "tell" / f"pid{rank}" for rank in (0, 1)]
        wait_for(lambda: all(path.exists() and path.read_text() for path in pids), 240)
        (folder,) = (tmp_path / "tmp").glob("pipelag-workers-*")
        assert not (folder / "payload.pkl").exists()  # nor does it stay where the launcher is killed
        launcher.send_signal(number)
        _, text = launcher.communicate(timeout=240)
        assert launcher.returncode == -number
        assert (
            text == f"pipelag: stopped by {number.name}; all workers have ended, and nothing of the training is kept\n"
        )
        assert list((tmp_path / "tmp").glob("pipelag-*")) == []
        wait_for(lambda: not any(alive(int(path.read_text())) for path in pids))


def test_a_worker_whose_launcher_has_ended_meanwhile_says_nothing(tmp_path: Path) -> None:
    """A fork of the warm process may begin when the folder with its task is gone already."""
    words = [sys.executable, "-m", "pipelag.distributed.launch.launch", str(tmp_path / "gone")]
    done = subprocess.run(words, env=os.environ | {"RANK": "0"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_what_a_killed_launcher_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, foreign = tmp_path / f"{processes.OURS}left", tmp_path / "another"
    for folder in (left, foreign):
        folder.mkdir()
        (folder / "error-0.json").write_text("{}")
    with processes.workers_folder() as first:
        assert left.exists()  # it may be one that is just being made
        for folder in (left, foreign, first):
            os.utime(folder, (0, 0))
        with processes.workers_folder() as second:
            assert not left.exists() and foreign.exists()
            assert first.exists() and first != second  # in use
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


def test_no_folder_for_the_workers_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    refused = pytest.raises(PipelagError, match=r"no folder for the workers .*No such file.*; set TMPDIR to a folder")
    with refused, processes.workers_folder():
        pass

    def lockless(*_: object) -> None:  # as on some network disks
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", lockless)
    with pytest.raises(PipelagError, match="No locks available"), processes.workers_folder():
        pass
    assert not list(tmp_path.iterdir())


def enter(*words: str) -> list[str]:
    return ["unshare", "--user", "--map-root-user", "--net", "--uts", "sh", "-ec", " ".join(words)]


NAMESPACES = shutil.which("unshare") and subprocess.run(enter("true"), capture_output=True).returncode == 0


@pytest.mark.skipif(not NAMESPACES, reason="this machine allows no namespaces")
@pytest.mark.parametrize("loopback", [True, False])
def test_no_network_but_loopback_is_enough_and_none_is_said(tmp_path: Path, loopback: bool) -> None:
    script = """
        import pipelag
        from tests.toy import Noise, convolutional
        try:
            run = pipelag.train(convolutional(), Noise(), steps=3, cuts=(3,), executor="real")
            print(len(run.metrics))
        except pipelag.PipelagError as error:
            print(error)
    """
    (tmp_path / "one.py").write_text(textwrap.dedent(script))
    words = "hostname nowhere.invalid;" + "ip link set lo up;" * loopback + f"exec {sys.executable} one.py"
    began = time.monotonic()
    done = subprocess.run(enter(words), cwd=tmp_path, env=alone(), capture_output=True, text=True, check=False)
    assert time.monotonic() - began < 300
    expected = (
        "3\n"
        if loopback
        else (
            "workers on one machine talk over its loopback interface, and 127.0.0.1 does not answer "
            "(Network is unreachable); bring it up: ip link set lo up\n"
        )
    )
    assert done.stdout == expected, done.stderr


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no gradient": ({"loss": lambda output, target: output.detach().sum()}, "the loss has no gradient; compute it"),
    "several values": (
        {"loss": lambda output, target: output.sum(1)},
        r"the loss returns a tensor of shape \[8\]",
    ),
    "no tensor": (
        {"loss": lambda output, target: 3},
        "the loss returns an int; it should return a tensor of one number",
    ),
    "too few": ({"batches": [], "steps": 2}, "2 steps need 2 minibatches, and there are 0; train fewer steps"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_real_workers_refuse_what_simulated_ones_do_in_the_same_words(case: str) -> None:
    changes, sentence = REFUSED[case]
    for executor in ("simulated", "real"):
        how: dict[str, Any] = {"batches": Noise(), "steps": 4, "cuts": (3,), "executor": executor} | changes
        with pytest.raises(PipelagError, match=f"^{sentence}"):
            pipelag.train(convolutional(), **how)


def test_an_unknown_device_is_refused_before_any_worker_is_started() -> None:
    with pytest.raises(PipelagError, match="unknown device 'tpu'; the devices are cpu, cuda"):
        launch(slow_not, 2, "tpu")
    with pytest.raises(PipelagError, match="a worker needs 1 thread or more, not 0"):
        launch(slow_not, 2, threads=0)


def test_a_wrong_number_of_workers_is_refused_before_any_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_real, "everywhere", lambda *args, **more: pytest.fail("workers were started"))
    wrong = train_spec(executor="real", workers=9)
    with pytest.raises(PipelagError, match="9 workers are more than the . that the . stages of the cuts"):
        carry_out(wrong, tmp_path / "run", "cpu", 2)


def test_a_folder_that_is_still_written_to_is_removed(tmp_path: Path) -> None:
    """As by a worker that was killed a moment ago."""
    folder = tmp_path / "step"
    folder.mkdir()
    over = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            with suppress(OSError):
                (folder / f"{number}").write_text("x")

    writing = threading.Thread(target=write)
    writing.start()
    threading.Timer(0.3, over.set).start()
    processes.remove(folder)
    writing.join()
    assert not folder.exists()
