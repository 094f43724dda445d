"""A test that fails leaves no process behind: an endless training beside them slows all tests after it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """The process, killed at the end; the workers of a launcher end with it."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended, and that nobody has waited for yet, does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # perhaps since the line above began
        return False
