"""The machine's memory: how much there is, and a way for a process to keep the memory that it frees.

Otherwise the C library returns it to the system after every step.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def machine_memory() -> int:
    """The bytes of memory in this machine; 2^63 if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # there is no such call, or no such name
        return 2**63


def keep_freed_memory() -> None:
    """Ask glibc not to return large blocks to the system; does nothing with another C library.

    A training step on a CPU allocates and frees hundreds of megabytes. If they are returned each time, the next step
    has a page fault per 4 KiB (a tenth of ResNet-20's time), in whichever layer allocates first.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
