"""Heartbeats: who is stopped, hangs or is cut off ends the run in the time said; who is slow does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipelag.distributed.heartbeat import BYE, Heard, Heartbeat, kept_from_a_core, patience_of
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import WorkerFailed, launch
from pipelag.distributed.training import RealTraining
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.stage.phase import Phase
from tests.ending import alive

pytestmark = pytest.mark.real


def stopping(job: Job, pid: Path) -> None:
    if job.rank == 1:
        job.store.wait(["beat/1"], timedelta(minutes=4))  # whoever has never beaten is given far longer
        pid.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


def test_a_worker_that_is_stopped_ends_the_run_in_the_time_said(tmp_path: Path) -> None:
    sentence = "rank 1 of 2 workers failed: nothing has been heard from it for 2 s: it is stopped, hangs or has lost"
    with pytest.raises(WorkerFailed, match=sentence):
        launch(stopping, 2, patience=2, pid=tmp_path / "pid")
    assert time.time() - (tmp_path / "pid").stat().st_mtime < 240  # since it stopped; unheard, for ever
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))


def wait_for(what: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def slow(job: Job) -> str:
    """One rank computes, then sleeps, each for far longer than the patience; the other waits for it."""
    end = time.monotonic() + 6
    while job.rank == 0 and time.monotonic() < end:
        torch.ones(100, 100) @ torch.ones(100, 100)
    if job.rank == 0:
        time.sleep(6)
    job.arrive()
    return "together"


def test_a_slow_rank_is_not_taken_for_a_dead_one() -> None:
    assert launch(slow, 2, patience=2) == "together"


def limits(job: Job) -> tuple[set[timedelta], int]:
    """How long this rank's messages may take, after two phases of ASP; and how many groups it has."""
    asynchronous = [Phase(get("asp"), 2)] * 2
    model = nn.Sequential(nn.Linear(4, 2))
    RealTraining(job, model, asynchronous, torch.optim.SGD, nn.functional.mse_loss, rate=lambda step: 1.0, seed=0).run(
        lambda t: torch.ones(2, 4), lambda t: torch.ones(2, 2)
    )
    groups: list[Any] = [dist.group.WORLD, job.group("F"), job.share([0, 1]), *job.groups.values()]
    times = {group._get_backend(torch.device("cpu")).options._timeout for group in groups}
    return times | {job.store.timeout}, len(dist.distributed_c10d._world.pg_map)


def test_a_message_may_take_as_long_as_a_minibatch_takes() -> None:
    """Ranks wait for one another's first minibatch, too; groups are made once, not at every phase."""
    times, groups = launch(limits, 2)
    assert min(times) > timedelta(days=30) and groups == 4  # all ranks', ASP's, forwards', the replicas'


def hanging(job: Job) -> None:
    if job.rank == 1:
        time.sleep(1e6)  # here it hangs
    job.arrive()


def test_where_nobody_computes_the_one_that_hangs_is_named_with_its_line() -> None:
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, start=1) if text.endswith("# here it hangs"))
    sentence = (
        f"rank 1 of 2 workers failed: no worker has computed .* 20 s: it hangs at .*test_heartbeat.py, line {line}"
    )
    with pytest.raises(WorkerFailed, match=sentence):
        launch(hanging, 2, patience=2)  # a busy machine may hold a heart's thread back for a second


class FakeStore:
    """A store that can fall silent."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set_timeout(self, timeout: Any) -> None:
        pass

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key] for key in keys]


def ear(patience: float = 30.0, **more: Any) -> Heartbeat:
    heart = Heartbeat(FakeStore(), 0, 3, patience, lambda rank, why: None, **more)
    heart.stop()
    return heart


def test_who_is_lost_is_told_apart_from_who_comes_late_or_has_left() -> None:
    heart, now = ear(), time.monotonic()
    heart.heard = {0: Heard("{}", now), 1: Heard(BYE, now - 99), 2: Heard("", now - 99)}  # 2 is still starting
    heart.reached = now
    assert heart.failed(now) is None
    assert heart.failed(now + 202) == (0, "it has not reached the workers' store for 30 s: it has lost its network")
    heart.reached = now + 202
    assert heart.failed(now + 202) == (2, "nothing has been heard from it for 300 s: it has never started")
    asleep = ear(local=True)  # the launcher, which holds the store, was stopped (Ctrl-Z)
    assert asleep.failed(time.monotonic() + 1000) is None


def beats(now: float, *ranks: tuple[float, str | None]) -> dict[int, Heard]:
    """Heard now, of ranks that have been idle for so many seconds, at such places."""
    return {rank: Heard(json.dumps({"n": 1, "idle": idle, "at": at}), now) for rank, (idle, at) in enumerate(ranks)}


def test_who_is_stuck_is_told_only_where_nobody_computes() -> None:
    heart, now = ear(), time.monotonic()
    heart.heard = beats(now, (900, None), (900, "x.py, line 3"), (299, None))  # the third has computed since
    assert heart.stuck() is None
    heart.heard = beats(now, (900, None), (900, "x.py, line 3"), (300, None))
    assert heart.stuck() == (1, "no worker has computed anything for 300 s: it hangs at x.py, line 3")
    heart.heard = beats(now, (900, None), (900, None), (300, None))
    assert heart.stuck() == (0, "no worker has computed anything for 300 s: all wait for one another")
    heart.heard[2] = Heard(BYE, now)  # it is done, and the others may have much to measure
    assert heart.stuck() is None


def test_who_falls_silent_is_told_of_after_the_patience_and_only_new_beats_count() -> None:
    heart = ear()
    for rank in (1, 2):
        heart.store.set(f"beat/{rank}", '{"n": 1}')
    heart.listen()
    first = heart.heard[1].at
    heart.store.set("beat/2", '{"n": 2}')
    heart.listen()
    assert heart.heard[1].at == first < heart.heard[2].at
    heart.reached = first + 31
    assert heart.failed(first + 29) is None
    silent = (1, "nothing has been heard from it for 30 s: it is stopped, hangs or has lost its network")
    assert heart.failed(first + 31) == silent
    assert ear(patience=2).every <= 1  # it beats more than once before others take it for dead


class Watch:
    """Seconds that pass as a thread waits, so many each time, and then it is over."""

    def __init__(self, *waits: float, computing: float = 0.0) -> None:
        self.now, self.used, self.left, self.computing = 1000.0, 0.0, list(waits), computing

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.used

    def thread_time(self) -> float:
        return 0.0

    def is_set(self) -> bool:
        return not self.left

    def wait(self, seconds: float) -> bool:
        if self.left:
            self.now, self.used = self.now + self.left.pop(0), self.used + self.computing
            return False
        return True


@pytest.mark.parametrize(
    ("waits", "lost"),
    [([1.0] * 32, [1]), ([1.0] * 29, []), ([1000.0, 1.0, 1.0], [])],
    ids=["silent", "not long", "this one was stopped"],
)
def test_a_process_that_was_stopped_itself_waits_anew(
    waits: list[float], lost: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could hear nobody; rank 1 alone beats no more."""
    heart, said, watch = ear(local=True), list[int](), Watch(*waits)
    monkeypatch.setattr("pipelag.distributed.heartbeat.time", watch)
    heart.over, heart.lost = watch, lambda rank, why: said.append(rank)  # type: ignore[assignment]
    heart.heard = {0: Heard(BYE, 0), 1: Heard("{}", watch.now), 2: Heard(BYE, 0)}
    heart.reached = watch.now + 10**6
    heart.watch()
    assert said == lost


@pytest.mark.parametrize(
    ("share", "kept", "idle"), [(0.0, 0.0, 5.0), (0.015, 0.0, 5.0), (0.025, 0.0, 0.0), (0.011, 0.98, 0.0)]
)
def test_who_computes_is_not_idle_and_who_only_beats_is(
    share: float, kept: float, idle: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a core, in each of five seconds; beating alone takes less than a fiftieth. So does computing beside a program
    of much greater priority, which keeps it from its core for the rest of the time."""
    heart, watch = ear(), Watch(*[1.0] * 6, computing=share)
    monkeypatch.setattr("pipelag.distributed.heartbeat.time", watch)
    monkeypatch.setattr("pipelag.distributed.heartbeat.kept_from_a_core", lambda: kept * (watch.now - 1000.0))
    monkeypatch.setattr(os, "times", lambda: (0.0, 0.0, 0.0, 0.0, 0.0))
    heart.over, heart.busy = watch, watch.now  # type: ignore[assignment]
    heart.talk()
    assert json.loads(heart.store.values["beat/0"])["idle"] == idle
    assert json.loads(heart.store.values["beat/0"])["n"] == 6  # every beat is a new one


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux alone counts it")
def test_a_thread_that_another_keeps_from_its_core_is_told_from_one_that_waits() -> None:
    cores, before = os.sched_getaffinity(0), kept_from_a_core()
    os.sched_setaffinity(0, {min(cores)})
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # on the same core
    try:
        end = time.monotonic() + 60
        while kept_from_a_core() < before + 0.1 and time.monotonic() < end:
            pass
        began, kept = time.monotonic(), kept_from_a_core()
        assert kept >= before + 0.1
        time.sleep(0.5)
        now = kept_from_a_core()
        assert now - kept < time.monotonic() - began - 0.4  # on waking, it may wait for others once more
    finally:
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, cores)


def test_who_is_done_says_so_and_the_last_waits_until_all_have() -> None:
    heart, asked = ear(), list[str]()
    assert heart.store.values["beat/0"] == BYE.encode()

    def get(key: str) -> bytes:
        asked.append(key)
        return BYE.encode() if key != "beat/2" or asked.count(key) > 2 else b"{}"

    heart.store.get = get
    heart.farewell()
    assert asked.count("beat/2") == 3


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), "soon"])
def test_no_patience_is_refused(bad: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelagError, match="should be 1 or more, not"):
        patience_of(bad)
    monkeypatch.setenv("PIPELAG_PATIENCE", str(bad))
    with pytest.raises(PipelagError, match="should be 1 or more, not"):
        patience_of(None)
    monkeypatch.setenv("PIPELAG_PATIENCE", "45")
    assert patience_of(None) == 45 and patience_of(2) == 2
