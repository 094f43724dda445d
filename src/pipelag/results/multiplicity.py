"""How many of the claims that intervals over seeds tell are left when they are corrected for how many they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

RATE = 0.05  # of false discoveries


def two_sided(t: float, freedom: int) -> float:
    """P(|T| > |t|) of Student's t with so many degrees of freedom, in closed form (Abramowitz and Stegun, 26.7.3-4)."""
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
    """The greatest p-value that is still a discovery by Benjamini and Hochberg's rule; below 0 where none is.

    Of m p-values in order, the k-th is at most k / m of the rate, and so are counted all before it (Journal of the
    Royal Statistical Society B 57, 1995).
    """
    ordered = sorted(p_values)
    within = [p for k, p in enumerate(ordered, 1) if p <= k / len(ordered) * rate]
    return within[-1] if within else -1.0
