"""What only Linux has is asked for with an answer for systems without it: macOS, Linux on Arm."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scaling
from pipelag.allocator import machine_memory
from pipelag.runs.folder import device_title

ROOT = Path(__file__).resolve().parents[1]
LINUX = {  # what Linux alone has, and where it is used: each of these places has a way without it
    r"os\.sched_": {"cores.py", "launch.py", "namespaces.py"},
    r"memfd_create|SEQPACKET|SO_PEERCRED": {"channel.py"},
    r"pidfd_": {"job.py", "warm.py"},
    r"prctl": {"job.py"},
    r"mallopt": {"allocator.py"},
    r"ru_maxrss": {"scaling.py"},  # whose unit differs
    r'"/(proc|sys|dev/shm|dev/full)\b': {"folder.py", "heartbeat.py"},
    r"os\.(fdatasync|posix_f|copy_file_range|splice|eventfd|pipe2|[a-z]*xattr|unshare|setns|O_DIRECT|O_TMP)": set(),
    r'get_context\("fork|set_start_method|select\.epoll': set(),
}


@pytest.mark.parametrize("names", LINUX)
def test_what_linux_alone_has_is_used_where_there_is_a_way_without_it(names: str) -> None:
    files = [path for top in ("src", "benchmarks", "workflow") for path in (ROOT / top).rglob("*.py")]
    assert {path.name for path in files if re.search(names, path.read_text())} == LINUX[names]


def test_a_worker_ends_with_its_launcher_where_the_system_does_not_see_to_it() -> None:
    """The worker says that it runs and, by the end of its output, that it has ended."""
    worker = (
        "import sys, time\nsys.platform = 'darwin'\nfrom pipelag.job import leave_with_parent\n"
        "leave_with_parent(); print('here', flush=True); time.sleep(600)"
    )
    launcher = (
        "import subprocess, sys, time\nfrom pipelag.job import be_parent\n"
        "be_parent(); subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", launcher, worker], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline() == b"here\n"
        assert not select.select([started.stdout], [], [], 2.5)[0]  # it has looked for its parent, and stayed
        started.kill()
        assert select.select([started.stdout], [], [], 60.0)[0] and started.stdout.read() == b""


@pytest.mark.parametrize(
    ("cpuinfo", "command", "answer", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 9\n", "lscpu", "", "AMD EPYC 9"),
        ("processor\t: 0\nCPU part\t: 0xd4f\n", "lscpu", "Vendor ID:   ARM\nModel name:   Neoverse-V2", "Neoverse-V2"),
        (None, "sysctl", "machdep.cpu.brand_string: Apple M2 Pro", "Apple M2 Pro"),
    ],
)
def test_a_processor_is_named_on_every_system(
    cpuinfo: str | None, command: str, answer: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> str:
        assert path == Path("/proc/cpuinfo")
        if cpuinfo is None:
            raise FileNotFoundError
        return cpuinfo

    (tmp_path / command).write_text(f"#!/bin/sh\necho '{answer}'\n")
    (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(Path, "read_text", read)
    assert device_title("cpu") == f"{name} ({os.cpu_count()} cores)"


def test_memory_that_the_system_does_not_tell_of_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    assert 2**28 < machine_memory() < 2**60
    monkeypatch.setattr(os, "sysconf", unknown)
    assert machine_memory() == 2**63


def test_peak_memory_is_in_bytes_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux counts KiB, macOS bytes."""
    here = scaling.resident()
    monkeypatch.setattr(sys, "platform", "darwin" if sys.platform == "linux" else "linux")
    assert scaling.resident() == pytest.approx(here / 1024 if sys.platform == "darwin" else here * 1024, rel=0.5)
