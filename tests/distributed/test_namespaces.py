"""Workers in network namespaces: links of the speed asked for, ends of processes, and what happens without them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from pipelag.distributed.launch import namespaces
from pipelag.distributed.launch.launch import WorkerFailed, launch
from pipelag.distributed.launch.namespaces import Links, obstacle
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.runs.carry_out import carry_out
from pipelag.runs.kinds import link_speed
from pipelag.runs.kinds.link_speed import bucketed, data_parallel_step, pipeline_period
from pipelag.runs.spec import RunSpec
from pipelag.stage.phase import Phase
from pipelag.timing.layers import LayerTime, Profile
from tests.ending import ended

HINDERED = obstacle(Links(1.0))
needs_namespaces = pytest.mark.skipif(HINDERED is not None, reason=str(HINDERED))


def sent(job: Any, rates: list[float]) -> list[float]:
    """Gbit/s of a message of 5 MB over links of these rates: the fastest of five, since a busy machine takes longer."""
    tensor, fastest = torch.ones(1_250_000), []
    for rate in rates:
        namespaces.reshape(Links(rate))
        seconds = []
        for _ in range(5):
            dist.barrier()
            began = time.perf_counter()
            if job.rank == 0:
                dist.send(tensor, 1)
                dist.recv(tensor[:1], 1)
            else:
                dist.recv(tensor, 0)
                dist.send(tensor[:1], 0)
            seconds.append(time.perf_counter() - began)
        fastest.append(8 * 5e6 / 1e9 / min(seconds))
    return fastest


@needs_namespaces
@pytest.mark.real
def test_messages_are_as_fast_as_the_link() -> None:
    slow, fast = launch(sent, 2, links=Links(1.0), rates=[0.05, 0.2])
    assert 0.7 * 0.05 < slow < 1.1 * 0.05  # headers take 5 %; a busy machine takes more, never less
    assert 1.5 * slow < fast < 1.1 * 0.2


def fails(job: Any, how: str) -> None:
    if job.rank == 1 and how == "raises":
        raise PipelagError("rank 1 does not like it")
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


@needs_namespaces
@pytest.mark.real
@pytest.mark.parametrize(
    ("how", "error", "sentence"),
    [
        ("raises", PipelagError, "rank 1 does not like it"),
        ("is killed", WorkerFailed, r"rank 1 of 2 workers failed: it was ended by signal 9 \(SIGKILL\)"),
    ],
)
def test_the_worker_that_failed_is_named(how: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        launch(fails, 2, links=Links(1.0), how=how)


def unplugged(job: Any) -> None:
    if job.rank == 1:
        namespaces.command("ip link set link1 down")
    dist.barrier()


@needs_namespaces
@pytest.mark.real
def test_a_worker_that_loses_its_network_ends_the_run_in_the_time_said() -> None:
    began = time.monotonic()
    with pytest.raises(WorkerFailed, match="rank 1 of 2 workers failed: .* it (is stopped|has lost its network)"):
        launch(unplugged, 2, links=Links(1.0), patience=2)
    assert time.monotonic() - began < 300


def words_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # gone meanwhile
        return ""


@needs_namespaces
@pytest.mark.real
def test_killing_the_launcher_leaves_nothing() -> None:
    script = (
        "import time\n"
        "from pipelag.distributed.launch.launch import launch\n"
        "from pipelag.distributed.launch.namespaces import Links\n"
        "def wait(job):\n    time.sleep(300)\nlaunch(wait, 2, links=Links(1.0))\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    with ended(launcher):
        deadline = time.monotonic() + 240
        family: list[psutil.Process] = []
        while sum("pipelag.distributed.launch.launch" in words_of(p) for p in family) < 2:
            assert launcher.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
            family = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
        launcher.wait()
        _, alive = psutil.wait_procs(family, timeout=240)
        assert [words_of(p) for p in alive if words_of(p)] == []  # a zombie has no words


def spec(**links: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "kind": "speed",
            "model": {"name": "lenet5"},
            "data": {"name": "digits"},
            "batch": 8,
            "optimizer": {"lr": 0.01},
            "phases": [{"method": "pipedream", "steps": 8, "cuts": [2]}],
            "executor": "real",
            "workers": 2,
            "options": {"links": links, "blocks": 1},
        }
    )


def log_of(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return rows, json.loads((folder / "summary.json").read_text())


@needs_namespaces
@pytest.mark.real
def test_a_run_measures_both_methods_on_every_link(tmp_path: Path) -> None:
    carry_out(spec(gbit=[0.02, 1]), tmp_path, "cpu", 2)
    rows, summary = log_of(tmp_path)
    assert summary["measured"] and summary["why_not"] is None
    assert {(r["arm"], r["measured"], r["gbit"]) for r in rows} == {
        (arm, measured, gbit)
        for arm in ("pipeline", "data parallelism")
        for measured in (True, False)
        for gbit in (0.02, 1.0)
    }
    rate = {r["gbit"]: r["samples_per_second"] for r in rows if r["measured"] and r["arm"] == "data parallelism"}
    # 62,006 parameters of 4 bytes: at 0.02 Gbit/s a sum alone takes 0.1 s
    assert rate[0.02] < min(16 / 0.09, rate[1.0])


@pytest.mark.real
def test_without_namespaces_the_timed_executor_answers_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_speed, "obstacle", lambda links: "this machine does not allow a network namespace: no")
    carry_out(spec(gbit=[0.1, 1]), tmp_path, "cpu", 2)
    rows, summary = log_of(tmp_path)
    assert not summary["measured"] and summary["why_not"].endswith("a network namespace: no")
    assert summary["status"] == "finished" and len(rows) == 4 and not any(r["measured"] for r in rows)


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
    assert obstacle(Links(1.0)) == "the command tc is missing: install iproute2"


def test_the_reason_is_what_the_machine_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(namespaces, "ENTER", ("sh", "-c", "echo 'unshare: unshare failed: not permitted' >&2; exit 1"))
    assert obstacle(Links(1.0)) == (
        "this machine does not allow a network namespace: unshare: unshare failed: not permitted"
    )


@pytest.mark.parametrize(
    ("links", "sentence"),
    [
        ({"gbit": [0]}, "'links.gbit.0' of a speed run is 0; it should be above 0"),
        ({"gbit": [1], "latency_ms": -1}, "'links.latency_ms' of a speed run is -1; it should be 0 or more"),
        ({"mbit": [1]}, "option 'links"),
    ],
)
def test_links_that_cannot_be_are_refused(links: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        carry_out(spec(**links), tmp_path, "cpu", 2)


def test_more_workers_than_the_network_has_addresses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "run", lambda *_: pytest.fail("they were started"))
    with pytest.raises(PipelagError, match="255 workers behind links are more than the 254 that their network"):
        launch(sent, 255, links=Links(1.0))


def test_a_links_queue_has_its_rate_in_bits_and_its_latency_in_milliseconds() -> None:
    link = Links(2.5, latency_ms=5)
    assert link.bandwidth == 2.5e9 / 8
    assert link.queue(delayed=True) == ["netem", "delay", "5ms", "rate", "2500000000bit", "limit", "100000"]
    at_once = ["tbf", "rate", "2500000000bit", "burst", "312500", "latency", "400ms"]
    assert link.queue(delayed=False) == Links(2.5).queue(delayed=True) == at_once


def test_gradients_are_summed_in_whole_buckets() -> None:
    mega = 1 << 20
    assert bucketed([mega, 30 * mega, 2 * mega, mega // 2]) == [mega, 30 * mega, int(2.5 * mega), 0]
    assert bucketed([10, 20, 30]) == [60, 0, 0]


def test_the_timed_rates_are_those_of_their_definitions() -> None:
    """Two equal layers: the pipeline waits for its messages; data parallelism adds its ring."""
    layers = tuple(LayerTime(n, "l", 10.0, 20.0, 10_000_000, 0, 500_000) for n in (1, 2))
    profile, phase = Profile(layers), Phase(get("pipedream"), 8, (1,))
    # two minibatches in flight: two stages' passes and two messages of 0.8 ms, half of that each
    assert pipeline_period(profile, phase, Links(100.0)) == pytest.approx((0.06 + 2 * 0.0008) / 2)
    assert pipeline_period(profile, phase, Links(1.0)) >= 0.08  # 10 MB at 125 MB/s, each way
    # one bucket of 1 MB: ready at the end of the backward, half of it sent and received twice
    assert data_parallel_step(profile, 2, Links(1.0)) == pytest.approx(0.06 + 1e6 / 125e6)
    assert data_parallel_step(profile, 2, Links(1.0, latency_ms=5)) == pytest.approx(0.06 + 1e6 / 125e6 + 0.01)
