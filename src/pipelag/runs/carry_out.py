"""Carry out a run of any kind."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pipelag import precision
from pipelag.distributed.launch.torchrun import check_world, leads, workers_here
from pipelag.errors import PipelagError
from pipelag.files import alone
from pipelag.runs.folder import check_places
from pipelag.runs.kinds import KINDS
from pipelag.runs.spec import RunSpec

DEVICE = "auto|cpu|cuda(?::([0-9]{1,4}))?"


def check_device(name: str) -> None:
    """Refuse what is the name of no device, also where the run computes on the CPU."""
    if re.fullmatch(DEVICE, name) is None:
        raise PipelagError(f"unknown device '{name}'; the devices are auto, cpu, cuda and cuda:N")


def resolve_device(name: str, workers: int | None = None) -> str:
    """The torch device that a name stands for. `auto` is the GPU if there is one for every worker, else the CPU.

    Args:
        name: auto, cpu, cuda or cuda:N.
        workers: the number of processes on this machine. With "cuda" each has a GPU of its own; with "cuda:N" all
            share that GPU. None: this process computes by itself.

    Raises:
        PipelagError: an unknown device, or a GPU that torch does not see.
    """
    import torch

    if name == "auto":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        needed = workers or 1
        if 0 < count < needed:
            print(
                f"pipelag: {workers} workers need {workers} GPUs, but this machine has {count}, so they run on the CPU",
                file=sys.stderr,
            )
        return "cpu" if count < needed else "cuda:0" if workers is None else "cuda"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PipelagError(f"device '{name}' was asked for, but torch sees no GPU here; use --device cpu or auto")
    check_device(name)
    number = re.fullmatch(DEVICE, name)
    if name != "cpu" and number is not None and int(number[1] or 0) >= torch.cuda.device_count():
        raise PipelagError(
            f"there is no device '{name}' here: torch sees {torch.cuda.device_count()} GPUs, from cuda:0"
        )
    return "cuda:0" if name == "cuda" and workers is None else name


def tasks_of_srun() -> str:
    """A hint for a folder that is taken, if srun has started this command in several processes; else empty."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks == "1":
        return ""
    return (
        f"; srun has started {tasks} processes of this command, and a run starts its workers itself: take --ntasks 1, "
        "or start torchrun on each node"
    )


def carry_out(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Carry out the run `spec` in the folder `out`; returns the summary that was written.

    The folder is locked meanwhile: two runs cannot be at work in it at once.

    Args:
        device: auto, cpu, cuda or cuda:N.
        threads: CPU threads for all of the run's processes together.

    Raises:
        PipelagError: the device is not there, the folder cannot hold a run, another process is at work in it, or the
            kind refuses the spec.
    """
    check_places(out)
    check_device(device)
    kind = KINDS[spec.kind]
    several = spec.kind == "speed" or (spec.kind == "train" and spec.executor == "real")
    if not several or spec.options.get("links"):
        check_world(1, f"this {spec.kind} run")
    # Under torchrun, rank 0 holds the lock for all ranks.
    with alone(out / "partial", tasks_of_srun()) if leads() else nullcontext():
        if not kind.computes:  # needs no torch
            return kind.carry_out(spec, out, "cpu", threads)
        import torch

        torch.set_num_threads(threads)
        precision.prepare(alone=True)
        workers = workers_here(spec.workers) if several else None
        place = resolve_device(device, workers) if kind.on_gpu else "cpu"
        precision.prepare_for(place)
        return kind.carry_out(spec, out, place, threads)


def carry_out_together(
    asked: Sequence[tuple[RunSpec, Path]], device: str, threads: int
) -> list[dict[str, Any] | Exception]:
    """Train several runs in one process, in turns (`pipelag.runs.kinds.together`).

    Args:
        asked: each run's spec and folder.
        device, threads: as for `carry_out`.

    Returns:
        For each run its summary, or the error that ended it.

    Raises:
        PipelagError: a run is not a simulated training, two runs have the same folder, a folder cannot hold a run, or
            the device is not there.
    """
    for number, (spec, out) in enumerate(asked, 1):
        check_places(out)
        if spec.kind != "train" or spec.executor != "simulated":
            what = f"a {spec.kind} run" if spec.kind != "train" else "a training on real workers"
            raise PipelagError(
                f"run {number} is {what}, but only simulated trainings can share a process; start it by itself"
            )
        if out.resolve() in [other.resolve() for _, other in asked[: number - 1]]:
            raise PipelagError(f"the folder {out} is given to two runs; give each run its own folder")
    check_world(1, "trainings that share a process")
    import torch

    from pipelag.runs.kinds.together import train_together

    torch.set_num_threads(threads)
    precision.prepare(alone=True)
    place = resolve_device(device)
    precision.prepare_for(place)
    return train_together(asked, torch.device(place), threads)
