"""Memory that a process frees stays with it where it asks for that."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOUCHED = 320  # MiB

SCRIPT = f"""
import os, sys
import torch, pipelag

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

if "keep" in sys.argv:
    pipelag.keep_freed_memory()
torch.ones(1 << 15).sum()  # which loads what torch needs
before = resident()
for _ in range(3):
    blocks = [torch.ones(1 << 24) for _ in range({TOUCHED} // 64)]  # of 64 MiB: glibc maps each by itself
    del blocks
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
def test_freed_memory_is_kept_where_asked_for() -> None:
    left = {
        asked: float(subprocess.run([sys.executable, "-c", SCRIPT, asked], capture_output=True, check=True).stdout)
        for asked in ("keep", "return")
    }
    assert left["keep"] > 0.9 * TOUCHED and left["keep"] - left["return"] > 0.5 * TOUCHED
