"""Memory that a process frees stays with it where it asks for that."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOUCHED = 300  # MiB

SCRIPT = f"""
import os, sys
import torch, pipelag

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

if "keep" in sys.argv:
    pipelag.keep_freed_memory()
before = resident()
for _ in range(3):
    blocks = [torch.ones(1 << 18) for _ in range({TOUCHED})]  # a MiB each
    del blocks
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
def test_freed_memory_is_kept_where_asked_for() -> None:
    left = {
        asked: float(subprocess.run([sys.executable, "-c", SCRIPT, asked], capture_output=True, check=True).stdout)
        for asked in ("keep", "return")
    }
    assert left["keep"] > 0.9 * TOUCHED > 0.3 * TOUCHED > left["return"]
