"""tqdm's progress bars without its lock between processes.

tqdm makes that lock with the first of its bars, also with one that is not shown. From Python 3.14 on the lock starts a
process that tracks it, and that complains of a leaked semaphore where a signal ends the training.
"""

from __future__ import annotations

from threading import RLock

from tqdm import tqdm


class Bar(tqdm):  # type: ignore[type-arg]
    """tqdm's bar, for use within one process; arguments are tqdm's."""


Bar.set_lock(RLock())
