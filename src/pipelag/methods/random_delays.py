"""Random delays, Hogwild-style (PipeMare appendix E): the law that they follow, drawn alike by every executor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import Literal

from pipelag.errors import PipelagError


@dataclass(frozen=True)
class RandomDelays:
    """Each stage's delay, drawn anew for every minibatch from an exponential law cut off at a common bound.

    The paper gives neither the means nor the bound (ambiguity B18). Here a stage's mean is its delay in PipeMare's
    pipeline of as many microbatches, and the bound twice the first stage's: of all laws on 0 .. bound with a mean, the
    truncated exponential has the greatest entropy, and with that bound the first stage's is uniform.

    of: what is old. "gradient": block i of the gradient of minibatch t - tau_i, all of whose stages were at that
        minibatch's version (equation 16). "weights": stage i's weights, in both passes of minibatch t.
    microbatches: N of PipeMare's tau, where `mean` or `most` are not given; they then hold for all stages.
    """

    of: Literal["gradient", "weights"] = "gradient"
    microbatches: int = 1
    mean: float | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise PipelagError(f"a minibatch should have 1 or more microbatches, not {self.microbatches}")
        if self.mean is not None and not (math.isfinite(self.mean) and self.mean >= 0):
            raise PipelagError(f"the mean delay should be 0 or more updates, not {self.mean}")
        if self.most is not None and self.most < 0:
            raise PipelagError(f"the greatest delay should be 0 or more updates, not {self.most}")

    def means(self, taus: Sequence[int]) -> tuple[float, ...]:
        """Per stage, in updates; `taus`: the delays of PipeMare's pipeline."""
        return tuple(float(tau) if self.mean is None else self.mean for tau in taus)

    def bound(self, taus: Sequence[int]) -> int:
        """The greatest delay of any stage, in updates. Raises `PipelagError` where it lies below a mean."""
        bound = 2 * max(taus) if self.most is None else self.most
        if max(self.means(taus)) > bound:
            raise PipelagError(
                f"delays of at most {bound} updates cannot have a mean of {max(self.means(taus)):g}; raise `most` or "
                "lower `mean`"
            )
        return bound

    def draw(self, taus: Sequence[int], seed: int, t: int) -> list[int]:
        """The delays of minibatch t, per stage."""
        from pipelag.randomness import mix  # loads torch, which a listing of the methods does without

        bound = self.bound(taus)
        return [
            drawn(mean, bound, Random(mix(seed, t, stage, 1)).random())
            for stage, mean in enumerate(self.means(taus), start=1)
        ]


def drawn(mean: float, bound: int, uniform: float) -> int:
    """The delay at which the law's distribution reaches a number between 0 and 1."""
    return next((n for n, reached in enumerate(distribution(mean, bound)) if uniform < reached), bound)


@lru_cache(maxsize=1024)
def distribution(mean: float, bound: int) -> tuple[float, ...]:
    """P(tau <= n) for n = 0 .. bound of the law P(n) ~ exp(-rate n) on 0 .. bound that has this mean.

    It is what the exponential law, cut off at bound + 1 and rounded down, leaves. The rate is found by bisection; it is
    negative for means beyond half the bound.
    """
    if mean <= 0 or bound == 0:
        return (1.0,) * (bound + 1)
    if mean >= bound:
        return (0.0,) * bound + (1.0,)

    def law(rate: float) -> list[float]:
        weights = [math.exp(-rate * (n if rate > 0 else n - bound)) for n in range(bound + 1)]
        return [weight / sum(weights) for weight in weights]

    low, high = -700.0, 700.0
    for _ in range(200):
        middle = (low + high) / 2
        mean_reached = sum(n * p for n, p in enumerate(law(middle)))
        low, high = (middle, high) if mean_reached > mean else (low, middle)
    return tuple(accumulate(law((low + high) / 2)))
