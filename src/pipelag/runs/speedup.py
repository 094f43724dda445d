"""Speedups from the log lines of a `speed` run. No torch: the run writes them, and results read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def speedups(rows: Sequence[Mapping[str, Any]], arm: str) -> list[float]:
    """Per block, the non-pipelined time per minibatch over the arm's."""
    per_step = {(row["arm"], row["block"]): row["seconds"] / row["steps"] for row in rows}
    blocks = sorted({row["block"] for row in rows})
    return [per_step["non-pipelined", block] / per_step[arm, block] for block in blocks]
