"""Runs of kind `train`, in the executor that the spec names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelag.runs.spec import RunSpec


def train(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Train and evaluate; returns the summary."""
    if spec.executor == "simulated":
        import torch

        from pipelag.runs.kinds.train_simulated import train as simulated

        return simulated(spec, out, torch.device(device), threads)
    from pipelag.runs.kinds.train_real import train as real

    return real(spec, out, device, threads)
