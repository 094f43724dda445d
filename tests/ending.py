"""A test that fails leaves no process behind: an endless training beside them slows all tests after it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """The process, killed at the end; the workers of a launcher end with it."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()
