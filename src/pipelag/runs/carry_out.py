"""Carry out a run, of whatever kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelag.errors import PipelagError
from pipelag.runs.kinds import KINDS
from pipelag.runs.spec import RunSpec


def resolve_device(name: str) -> str:
    """`auto` is the first GPU where there is one; a GPU asked for that is not there is refused."""
    import torch

    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PipelagError(f"device '{name}' was asked for, but torch sees no GPU here; use --device cpu or auto")
    if name != "cpu" and not name.startswith("cuda"):
        raise PipelagError(f"unknown device '{name}'; the devices are auto, cpu, cuda and cuda:N")
    return "cuda:0" if name == "cuda" else name


def carry_out(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Run `spec` into the folder `out`; returns the summary that was written.

    Args:
        device: auto, cpu, cuda or cuda:N.
        threads: of the CPU, for all of the run's processes together.

    Raises:
        PipelagError: a device that is not there, or what the kind refuses.
    """
    kind = KINDS[spec.kind]
    if not kind.computes:  # needs no torch
        return kind.carry_out(spec, out, "cpu", threads)
    import torch

    torch.set_num_threads(threads)
    return kind.carry_out(spec, out, resolve_device(device) if kind.on_gpu else "cpu", threads)
