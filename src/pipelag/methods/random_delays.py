"""Random delays in the style of Hogwild (PipeMare appendix E): their law, and how it is drawn from."""

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
    """Each stage's delay, drawn anew for every minibatch from an exponential law truncated at a common bound.

    The paper gives neither the means nor the bound (ambiguity B18). Here a stage's mean is its delay in PipeMare's
    pipeline with `microbatches` microbatches, and the bound is twice the delay of the first stage. Among all laws on
    0 .. bound with a given mean, the truncated exponential has the greatest entropy; with this mean and bound the law
    of the first stage is uniform.

    of: what is old. "gradient": stage i steps along block i of the gradient of minibatch t - tau_i, for which all
        stages read that minibatch's version (equation 16). "weights": the weights that stage i reads in both passes of
        minibatch t.
    microbatches: the N of PipeMare's tau, for a mean or bound that is not given.
    mean, most: mean and greatest delay in updates, the same for all stages; None: as above.
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
        """Per stage, the mean delay in updates; `taus`: the delays of PipeMare's pipeline."""
        return tuple(float(tau) if self.mean is None else self.mean for tau in taus)

    def bound(self, taus: Sequence[int]) -> int:
        """The greatest delay of any stage, in updates. Raises `PipelagError` if it is less than some stage's mean."""
        bound = 2 * max(taus) if self.most is None else self.most
        if max(self.means(taus)) > bound:
            raise PipelagError(
                f"delays of at most {bound} updates cannot have a mean of {max(self.means(taus)):g}; raise `most` or "
                "lower `mean`"
            )
        return bound

    def draw(self, taus: Sequence[int], seed: int, t: int) -> list[int]:
        """The delays of minibatch t, per stage, in updates."""
        from pipelag.randomness import mix  # here, as it loads torch, which listing the methods should not

        bound = self.bound(taus)
        return [
            drawn(mean, bound, Random(mix(seed, t, stage, 1)).random())
            for stage, mean in enumerate(self.means(taus), start=1)
        ]


def drawn(mean: float, bound: int, uniform: float) -> int:
    """The delay at which the cumulative distribution exceeds `uniform`, a number from 0 to 1 (inverse transform)."""
    return next((n for n, reached in enumerate(distribution(mean, bound)) if uniform < reached), bound)


@lru_cache(maxsize=1024)
def distribution(mean: float, bound: int) -> tuple[float, ...]:
    """P(tau <= n) for n = 0 .. bound, under the law P(n) ~ exp(-rate n) on 0 .. bound that has this mean.

    This is the exponential law truncated at bound + 1 and rounded down. The rate is found by bisection; it is negative
    for means above half the bound.
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
