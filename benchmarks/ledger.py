"""A benchmark's results as rows of a file, from which docs/benchmarks.md is written.

`python -m benchmarks.all` runs every benchmark with PIPELAG_BENCHMARK_ROWS naming the file. Without that variable a
benchmark prints its numbers and writes no rows.
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
    """Add a row: the median, the least and the greatest of the blocks' values, and the goal for the median.

    Args:
        what: what was compared; the same for all rows of a table.
        case: the row's case.
        unit: "x" for a ratio, otherwise the unit of the values.
        most, least: the bounds that the goal sets, if any.
        work: the amount of work, if the page draws the cost against it.
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
    """A confidence interval of at least 95 % for the true median, between two of the values; None for fewer than six.

    Of n independent values the number below the true median is binomial (n, 1/2), whatever their distribution is.
    """
    count, held = len(values), sorted(values)
    left_out, ways, tail = 0, 1, 1  # tail / 2^n: the probability that at most `left_out` values lie below the median
    while 2 * 20 * tail <= 2**count:  # below or above it: one case in twenty at most
        ways = ways * (count - left_out) // (left_out + 1)
        left_out += 1
        tail += ways
    return (held[left_out - 1], held[-left_out]) if left_out else None


def within_noise(row: dict[str, object]) -> bool:
    """Whether a goal lies in the median's interval, so that another run may well say the opposite of `reached`."""
    between = row.get("interval")
    if between is None:
        return False
    low, high = between  # type: ignore[misc]
    return any(goal is not None and low <= goal <= high for goal in (row["most"], row["least"]))  # type: ignore[operator]


def reached(row: dict[str, object]) -> bool | None:
    """Whether the median reaches its goal; None if it has none."""
    value, most, least = (row[key] for key in ("median", "most", "least"))
    assert isinstance(value, float | int)
    if most is None and least is None:
        return None
    return (most is None or value <= most) and (least is None or value >= least)  # type: ignore[operator]
