"""Runs of kind `count`: a model's weights and activations, layer by layer, without computing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelag.errors import PipelagError
from pipelag.models import count as counting
from pipelag.models.taking import taking
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.kinds.options import CountOptions
from pipelag.runs.spec import RunSpec


def count(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Log parameters, weights, activations and outputs per layer.

    `options.sample_shape`: the input's (C, H, W). `options.words`: the model takes words instead; its activations are
    not counted.
    """
    assert spec.model is not None
    options = spec.asked(CountOptions)
    shape = tuple(options.sample_shape)
    if options.words:
        rows = counting.parameters_only(spec.model.name, spec.model.options)
    else:
        with taking(spec.model.name, f"images of {'x'.join(map(str, shape))}"):
            rows = counting.rows(spec.model.name, spec.model.options, shape)
    if options.cuts and options.cuts[-1] >= rows[-1]["layer"]:
        raise PipelagError(
            f"a cut after layer {options.cuts[-1]} leaves an empty last stage: '{spec.model.name}' has "
            f"{rows[-1]['layer']} layers"
        )
    folder = RunFolder(out, spec)
    folder.rewind(0)
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
