"""Runs of kind `profile`: the time of every layer on this machine."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.kinds.options import ProfileOptions
from pipelag.runs.spec import RunSpec
from pipelag.runs.tasks import open_task
from pipelag.timing.profile import profile as time_layers


def profile(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Log the forward and backward time of each layer on this machine. The options are `ProfileOptions`."""
    options = spec.asked(ProfileOptions)
    threads = options.threads or threads
    torch.set_num_threads(threads)
    folder = RunFolder(out, spec)
    folder.rewind(0)
    where = torch.device(device)
    task = open_task(spec, where)
    model = task.model(spec, where)
    start = time.perf_counter()
    inputs = task.batches.inputs(0)
    timed = time_layers(model, inputs, repeats=options.repeats, progress=True, split=options.split)
    for layer in timed.layers:
        folder.log(asdict(layer))
    summary = {
        "status": "finished",
        "seconds": round(time.perf_counter() - start, 3),
        "batch": spec.batch,
        "layers": len(timed.layers),
        "total_ms": sum(layer.total_ms for layer in timed.layers),
        "data": task.summary(),
        "device": device,
    }
    folder.finish(summary, environment(device, threads))
    return summary
