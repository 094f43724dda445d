"""Correction for multiple testing: which claims that tests over seeds decide survive it."""

from __future__ import annotations

import math
from collections.abc import Sequence

RATE = 0.05  # the accepted rate of false discoveries


def two_sided(t: float, freedom: int) -> float:
    """P(|T| > |t|) for Student's t with `freedom` degrees of freedom, in closed form (Abramowitz, Stegun, 26.7.3-4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for k in range(1, freedom // 2 + 1):
        total += term
        term *= square * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    inside = math.sin(angle) * total
    return 1.0 - (2 / math.pi * (angle + inside) if odd else inside)


def least_surprising(p_values: Sequence[float], rate: float = RATE) -> float:
    """The greatest p-value that is still a discovery by Benjamini and Hochberg's rule; below 0 if none is.

    Of m p-values in ascending order, that is the last one, the k-th, that is at most k / m times the rate; all before
    it are discoveries too (Journal of the Royal Statistical Society B 57, 1995).
    """
    ordered = sorted(p_values)
    within = [p for k, p in enumerate(ordered, 1) if p <= k / len(ordered) * rate]
    return within[-1] if within else -1.0
