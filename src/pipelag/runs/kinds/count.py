"""Runs of kind `count`: a model's weights and activations, layer by layer, without computing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelag.models import count as counting
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.kinds.options import CountOptions
from pipelag.runs.spec import RunSpec


def count(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Log parameters, weights, activations and outputs per layer. `options.sample_shape`: (C, H, W).

    `options.words`: the model takes words; then activations are not counted.
    """
    assert spec.model is not None
    folder = RunFolder(out, spec)
    folder.rewind(0)
    options = spec.asked(CountOptions)
    shape = tuple(options.sample_shape)
    if options.words:
        rows = counting.parameters_only(spec.model.name, spec.model.options)
    else:
        rows = counting.rows(spec.model.name, spec.model.options, shape)
    for row in rows:
        folder.log(row)
    summary = {
        "status": "finished",
        "sample_shape": list(shape),
        "batch": spec.batch,
        "cuts": options.cuts,
        "parameters": sum(row["parameters"] for row in rows),
        "layers": len(rows),
    }
    folder.finish(summary, environment("cpu", threads))
    return summary
