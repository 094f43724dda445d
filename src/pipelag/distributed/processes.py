"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import signal
import sys


def leave_with_parent() -> None:
    """Ask Linux to end this process when its launcher dies, however that dies: nothing is left running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
