"""Memory of pipelined training, from `count` logs (stale_weights sections 3 and 6.6). No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

BYTES = 4  # float32
MB = 2**20

Rows = Sequence[Mapping[str, Any]]


def per_stage(rows: Rows, cuts: Sequence[int], key: str) -> list[int]:
    """Sum a count over the layers of each stage."""
    bounds = [0, *cuts, max(row["layer"] for row in rows)]
    return [sum(row[key] for row in rows if low < row["layer"] <= high) for low, high in pairwise(bounds)]


def kept_copies(stages: int) -> list[int]:
    """How many further minibatches' activations each stage keeps: 2(K - i + 1) for stage i of K + 1 (section 3)."""
    return [2 * (stages - i) for i in range(1, stages + 1)]


def increase(rows: Rows, cuts: Sequence[int], batch: int) -> dict[str, float]:
    """Table 6: the memory of weights and activations, and how much the kept activations add.

    As in torchsummary, each activation counts twice, once for its gradient. A kept copy is only a forward activation
    and counts once, so K = 1 adds 2 x FS_1's forward activations; no other reading comes near the printed percentages.
    The percentage is relative to weights plus activations at this batch size.
    """
    weights = BYTES * sum(row["parameters"] for row in rows) / MB
    forward = per_stage(rows, cuts, "activations")
    activations = 2 * BYTES * sum(forward) / MB
    added = BYTES * sum(a * n for a, n in zip(forward, kept_copies(len(forward)), strict=True)) / MB
    return {
        "weight_mb": weights,
        "activations_mb_per_sample": activations,
        "increase_mb_per_sample": added,
        "increase_percent": 100.0 * added * batch / (activations * batch + weights),
    }
