"""Runs that look at a model instead of training it: kinds `count` and `profile`."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pipelag.models import count as counting
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.spec import RunSpec
from pipelag.runs.tasks import open_task
from pipelag.timing.profile import profile as time_layers


def count(spec: RunSpec, out: Path, threads: int) -> dict[str, Any]:
    """Log parameters, weights, activations and outputs per layer. `options.sample_shape`: (C, H, W).

    `options.words`: the model takes words; then activations are not counted.
    """
    assert spec.model is not None
    folder = RunFolder(out, spec)
    folder.rewind(0)
    shape = tuple(spec.options.get("sample_shape", (3, 32, 32)))
    if spec.options.get("words"):
        rows = counting.parameters_only(spec.model.name, spec.model.options)
    else:
        rows = counting.rows(spec.model.name, spec.model.options, shape)
    for row in rows:
        folder.log(row)
    summary = {
        "status": "finished",
        "sample_shape": list(shape),
        "batch": spec.batch,
        "cuts": list(spec.options.get("cuts", [])),
        "parameters": sum(row["parameters"] for row in rows),
        "layers": len(rows),
    }
    folder.finish(summary, environment("cpu", threads))
    return summary


def profile(spec: RunSpec, out: Path, device: torch.device, threads: int) -> dict[str, Any]:
    """Log the forward and backward time of each layer on this machine. `options`: repeats (rounds), threads (all)."""
    threads = int(spec.options.get("threads", threads))
    torch.set_num_threads(threads)
    folder = RunFolder(out, spec)
    folder.rewind(0)
    task = open_task(spec, device)
    model = task.model(spec, device)
    start = time.perf_counter()
    timed = time_layers(model, task.batches.inputs(0), repeats=int(spec.options.get("repeats", 10)), progress=True)
    for layer in timed.layers:
        folder.log(asdict(layer))
    summary = {
        "status": "finished",
        "seconds": round(time.perf_counter() - start, 3),
        "batch": spec.batch,
        "layers": len(timed.layers),
        "total_ms": sum(layer.total_ms for layer in timed.layers),
        "data": task.summary(),
        "device": str(device),
    }
    folder.finish(summary, environment(str(device), threads))
    return summary
