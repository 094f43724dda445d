"""How many cores a process takes: those it may use, and on a cluster no more than it has been given."""

from __future__ import annotations

import os

import pytest

from pipelag import cores

ON_NODE = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "8"}


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        ({}, None),
        (ON_NODE, 8),  # a batch script has all that the job has on its machine
        (ON_NODE | {"SLURM_CPUS_PER_TASK": "2"}, 8),
        (ON_NODE | {"SLURM_CPUS_PER_TASK": "2", "SLURM_STEP_ID": "0"}, 2),  # one of a step's tasks
        (ON_NODE | {"SLURM_STEP_ID": "0"}, 8),
        ({"SLURM_CPUS_ON_NODE": "0"}, None),
        ({"SLURM_CPUS_ON_NODE": "16(x2)"}, None),
    ],
)
def test_what_slurm_has_given(environment: dict[str, str], number: int | None) -> None:
    assert cores.granted(environment) == number


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not bind processes to cores")
def test_a_job_that_is_bound_to_no_cores_takes_as_many_as_it_was_given_and_binds_its_workers_to_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 1, 5, 7})
    assert (cores.count(), cores.own()) == (4, [1, 3, 5, 7])
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")  # two of the four, and nobody knows which
    assert (cores.count(), cores.own()) == (2, [])
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    assert (cores.count(), cores.own()) == (4, [1, 3, 5, 7])
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "64")  # a wrapper has bound it to fewer
    assert (cores.count(), cores.own()) == (4, [1, 3, 5, 7])
