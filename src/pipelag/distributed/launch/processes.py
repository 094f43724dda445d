"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

JOB = str(Path(__file__).parents[2] / "job.py")  # asks for a fork of the warm process, where there is one
PARENT = "PIPELAG_PARENT"  # in the environment: the process that starts others, for these to know theirs


def be_parent() -> None:
    """Tell the processes started from here whose they are."""
    os.environ[PARENT] = str(os.getpid())


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent dies, however that dies: nothing is left running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def leave_with_parent() -> None:
    """End with the launcher, also where it died before this call."""
    if sys.platform == "linux":
        end_with_parent()
        if os.environ.get(PARENT, str(os.getppid())) != str(os.getppid()):  # it died before the call
            os._exit(1)
