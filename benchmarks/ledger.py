"""What a benchmark found, as rows of a file, from which docs/benchmarks.md is written.

`python -m benchmarks.all` runs every benchmark with PIPELAG_BENCHMARK_ROWS naming the file; by itself a benchmark
prints its numbers and notes nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median

VARIABLE = "PIPELAG_BENCHMARK_ROWS"


def note(
    what: str,
    case: str,
    values: Sequence[float],
    unit: str = "x",
    *,
    most: float | None = None,
    least: float | None = None,
    work: float | None = None,
) -> None:
    """A row: the median of the blocks' values, the least and the greatest of them, and what is wanted of the median.

    Args:
        what: what was compared, the same for all rows of a table.
        case: which one this is.
        unit: "x" of a ratio, else of what.
        most, least: the goal, where there is one.
        work: how much was done, where cost is drawn against it.
    """
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    between = interval(values)
    row = {"what": what, "case": case, "unit": unit, "median": median(values), "low": min(values), "high": max(values)}
    row |= {"interval": between, "blocks": len(values), "most": most, "least": least, "work": work}
    with Path(path).open("a") as file:
        file.write(json.dumps(row) + "\n")


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Between which two of the values the true median lies, in 95 of 100 cases or more; None of fewer than six.

    Of n independent values the number below the true median is binomial (n, 1/2), whatever their distribution.
    """
    count, held = len(values), sorted(values)
    left_out, ways, tail = 0, 1, 1  # tail / 2^n: how likely it is that at most `left_out` values lie below the median
    while 2 * 20 * tail <= 2**count:  # below or above it: one case in twenty
        ways = ways * (count - left_out) // (left_out + 1)
        left_out += 1
        tail += ways
    return (held[left_out - 1], held[-left_out]) if left_out else None


def within_noise(row: dict[str, object]) -> bool:
    """Whether the goal lies where the median may lie: another run may well say the opposite of `reached`."""
    between = row.get("interval")
    if between is None:
        return False
    low, high = between  # type: ignore[misc]
    return any(goal is not None and low <= goal <= high for goal in (row["most"], row["least"]))  # type: ignore[operator]


def reached(row: dict[str, object]) -> bool | None:
    """Whether the median is what was wanted of it; None where nothing was."""
    value, most, least = (row[key] for key in ("median", "most", "least"))
    assert isinstance(value, float | int)
    if most is None and least is None:
        return None
    return (most is None or value <= most) and (least is None or value >= least)  # type: ignore[operator]
