"""A plugin for tests: the process that imports it kills itself, at its n-th touch of a folder or after some seconds.

`PIPELAG_DYING` is JSON: `folder`; `who` dies, "launcher" (or a run's one process) or a worker's rank; `touch`, before
which of its touches (opening, renaming, removing, making), or `seconds`, after which; or, for a run that is to end, all
of its processes count: each touch adds a byte to the file that `count` and its name make. Then root is held to what a
file's mode allows, as users are, and a checkpoint is written after every step.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
from typing import Any

from pipelag.runs.kinds import train_simulated

VARIABLE = "PIPELAG_DYING"
ALL = "all"  # of a run's processes
TOUCHES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def obey_modes() -> None:
    """Give up root's right to write what is read-only."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice 32 bits
    libc = ctypes.CDLL(None)
    if sys.platform == "linux" and libc.capget(header, sets) == 0:
        sets[0] &= ~OVERRIDES
        libc.capset(header, sets)


def watch(folder: str, touch: int | None, count: str | None) -> None:
    """Look at every touch of the folder."""
    seen = 0

    def look(event: str, words: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in TOUCHES and str(words[0]).startswith(folder):
            seen += 1
            if count is not None:
                os.write(file, b".")
            if seen == touch:
                die()

    file = os.open(count, os.O_CREAT | os.O_APPEND | os.O_WRONLY) if count else -1
    sys.addaudithook(look)


def begin(orders: dict[str, Any]) -> None:
    train_simulated.CHECKPOINT_SECONDS, train_simulated.FLUSH_STEPS = 0.0, 1
    tempfile.tempdir = None  # that of this process's environment, not of the one it is a fork of
    obey_modes()
    me = os.environ.get("RANK", "launcher")
    if orders.get("who") == ALL:
        watch(orders["folder"], None, orders["count"] + me)
    elif orders.get("who") == me:
        watch(orders["folder"], orders.get("touch"), None)
        if "seconds" in orders:
            timer = threading.Timer(orders["seconds"], die)
            timer.daemon = True
            timer.start()


if VARIABLE in os.environ:
    begin(json.loads(os.environ[VARIABLE]))
