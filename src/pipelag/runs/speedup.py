"""Speedups from the log lines of a `speed` run. No torch: the run writes them, and results read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.spec import RunSpec


def speedups(rows: Sequence[Mapping[str, Any]], arm: str) -> list[float]:
    """The arm's speedup in each block: the non-pipelined time per minibatch over the arm's."""
    per_step = {(row["arm"], row["block"]): row["seconds"] / row["steps"] for row in rows}
    blocks = sorted({row["block"] for row in rows})
    return [per_step["non-pipelined", block] / per_step[arm, block] for block in blocks]


def spread(values: Sequence[float]) -> str:
    """The blocks' values as text: their median, with the least and the greatest in brackets."""
    return f"{median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def finish(
    folder: RunFolder, spec: RunSpec, rows: list[dict[str, Any]], threads: int, device: str, data: Any, **more: Any
) -> dict[str, Any]:
    """Log the blocks of a speed run and publish it; returns the summary. `threads`: CPU threads of each worker."""
    for row in rows:
        folder.log(row)
    summary = {
        "status": "finished",
        "seconds": round(sum(row.get("seconds", 0.0) for row in rows), 3),
        "batch": spec.batch,
        "workers": spec.workers,
        "threads_per_worker": threads,
        **more,
        "data": data,
        "device": device,
    }
    folder.finish(summary, environment(device, threads))
    return summary
