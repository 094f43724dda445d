"""The cores that this process may use. A cluster may give a job only some of a machine's.

Most clusters bind a job to its cores, and then the system tells. SLURM without such a plugin (`TaskPlugin=task/none`)
only says in the environment how many cores a job has, so that jobs which count the machine's cores would share them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def granted(environment: Mapping[str, str]) -> int | None:
    """The number of cores that SLURM has given this process on this machine; None outside of SLURM.

    A task that srun has started has the cores of a task, a batch script all that the job has here.
    """
    names = ("SLURM_CPUS_PER_TASK",) if "SLURM_STEP_ID" in environment else ()
    for name in (*names, "SLURM_CPUS_ON_NODE"):
        number = environment.get(name, "")
        if number.isdecimal() and int(number):
            return int(number)
    return None


def allowed() -> list[int]:
    """The numbers of the cores that the system lets this process use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def count() -> int:
    """How many cores this process should use."""
    return min(len(allowed()), granted(os.environ) or len(allowed()))


def own() -> list[int]:
    """The numbers of the cores that are this process's to divide among workers.

    Empty where the system cannot bind processes to cores, and in a job of SLURM that may run on more cores than it has
    been given: which of them are its own is not known, and two such jobs would choose the same.
    """
    if not hasattr(os, "sched_setaffinity"):
        return []
    return allowed() if count() == len(allowed()) else []
