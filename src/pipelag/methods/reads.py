"""The vocabulary of weight policies: what a pass may read instead of the live weights, and what an update may add.

Values only, no torch: `pipelag.policy` carries them out on a stage, in the same way for every executor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Horizon = Callable[[int, int, int], float]  # (stage, stages, delay of the stage's forward) -> updates ahead


@dataclass(frozen=True)
class Predict:
    """Read w - s * step, the weights foreseen `horizon` = s updates ahead; no step before the first update.

    direction: what one step is taken to be.
        "update": the optimizer's own rule applied to its present state (PipeOptim, table I).
        "velocity": lr * the smoothed gradient: SGD's momentum buffer, Adam's first moment (SpecTrain, equation 4). An
            optimizer without either gets an average kept here, v = 0.9 v + 0.1 g (equation 1).
        "moments": lr * mhat / sqrt(vhat + eps), Adam's form whatever the optimizer (XPipe).
        "difference": the last step as it was made, w_{t-1} - w_t (LWP_w); knows no optimizer.
    """

    direction: Literal["update", "velocity", "moments", "difference"]
    horizon: Horizon


@dataclass(frozen=True)
class Correct:
    """PipeMare's T2 (section 3.2): read w - (tau_fwd - tau_bkwd) delta, close to what the forward read.

    delta <- gamma delta + (1 - gamma)(w_{t+1} - w_t) with gamma = decay^(1 / (tau_fwd - tau_bkwd)).
    """

    decay: float = 0.1


@dataclass(frozen=True)
class LookAhead:
    """Read w + gamma (w_t - w_{t-1}): Nesterov's point for asynchronous pipelines (arXiv 2505.01099)."""

    gamma: float = 0.9


@dataclass(frozen=True)
class SpikeCompensation:
    """After v <- m v + g, step by lr (a v + b g) with a = m^D, b = (1 - m^D)/(1 - m) (arXiv 2003.11666, SC_D)."""


@dataclass(frozen=True)
class DelayCompensation:
    """Replace g by g + strength * g * g * (w_now - w_stale), elementwise (DC-ASGD, Zheng et al. 2017)."""

    strength: float = 0.04


@dataclass(frozen=True)
class RandomDelays:
    """Hogwild-style delays (PipeMare appendix E): each stage's weights are tau updates old, tau drawn per minibatch.

    tau follows the exponential law of mean `mean(stage, stages)` updates, cut off at `most(stage, stages)`, rounded
    down; forward and backward read the same version.
    """

    mean: Callable[[int, int], float]
    most: Callable[[int, int], int]


ForwardReads = Literal["live"] | Predict | LookAhead
BackwardReads = Literal["live", "stashed"] | Predict | Correct
Update = SpikeCompensation | DelayCompensation | LookAhead
