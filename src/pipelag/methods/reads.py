"""The vocabulary of weight policies: what a pass may read instead of the live weights, and what an update may add.

The classes here are plain values without torch. A read has two methods, and any class that has them is another kind of
read. `amounts` gives one number per microbatch of a minibatch that says how far the read acts on a stage (0: the pass
reads the live weights). `carry` makes the `pipelag.methods.carriers` object that carries the read out on a stage, the
same for every executor. An update has `change`, which makes an object of `pipelag.methods.changes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pipelag.errors import unknown

if TYPE_CHECKING:
    from pipelag.stage.policy import StageWeights

Amounts = tuple[float, ...]
Direction = Literal["update", "update again", "velocity", "average", "moments", "difference"]
Horizon = Literal["own update", "round trip"]
Taken = Literal["printed", "own"]


@dataclass(frozen=True)
class Passes:
    """The forwards or backwards of one stage under the method's schedule, one entry per microbatch of an update.

    lags: updates between the weights that the pass reads and the update that its minibatch makes.
    forward: the lags of the forwards (equal to `lags` if these passes are the forwards).
    beyond: updates of the stage from the minibatch's own update to the end of its round trip (`Delays.beyond`).
    """

    stage: int
    stages: int
    lags: tuple[int, ...]
    forward: tuple[int, ...]
    beyond: tuple[int, ...]


def one_of(kind: str, word: object, words: Any) -> None:
    """Refuse a word that a `Literal` does not list; the code would otherwise treat it as one of those listed."""
    if word not in get_args(words):
        raise unknown(kind, str(word), get_args(words))


@dataclass(frozen=True)
class Predict:
    """Read w - s * step: the weights predicted s updates ahead. Before the first update there is no step to repeat.

    direction: what one step is, at the learning rate of the coming update.
        "update": the optimizer's own rule applied to its present state (PipeOptim, table I).
        "update again": the same with the last gradient counted once more, SGD only (PipeOptim, ambiguity D2).
        "velocity": lr * the smoothed gradient that the optimizer keeps, such as SGD's momentum buffer or Adam's first
            moment (SpecTrain, equation 4). For an optimizer without one, the average v = 0.9 v + 0.1 g is kept
            (equation 1).
        "average": lr * that average over any optimizer, with v_0 = 0 (SpecTrain, equation 1 as printed).
        "moments": lr * mhat / sqrt(vhat + eps), Adam's form over any optimizer (XPipe).
        "difference": the last step as it was made, w_{t-1} - w_t, whatever optimizer made it (LWP_w).
    horizon: what s counts, derived from the schedule for each microbatch:
        "own update": the updates between the pass and the minibatch's own update (PipeOptim section III-A).
        "round trip": the updates until the minibatch's last backward is done (SpecTrain section 3.3).
        Or a function of (stage, stages, updates until the minibatch's own update).
    """

    direction: Direction
    horizon: Horizon | Callable[[int, int, int], float] = "own update"

    def __post_init__(self) -> None:
        one_of("direction of a prediction", self.direction, Direction)
        if not callable(self.horizon):
            one_of("horizon of a prediction", self.horizon, Horizon)

    def amounts(self, passes: Passes) -> Amounts:
        """s for each microbatch."""
        if callable(self.horizon):
            return tuple(self.horizon(passes.stage, passes.stages, lag) for lag in passes.lags)
        further = passes.beyond if self.horizon == "round trip" else (0,) * len(passes.lags)
        return tuple(lag + more for lag, more in zip(passes.lags, further, strict=True))

    def carry(self, stage: StageWeights) -> Any:
        """The object that predicts a stage's weights."""
        from pipelag.methods import carriers

        return carriers.prediction(self.direction, stage)


@dataclass(frozen=True)
class Correct:
    """PipeMare's T2 (section 3.2): read w - (tau_fwd - tau_bkwd) delta, an estimate of what the forward read.

    delta <- gamma delta + (1 - gamma)(w_{t+1} - w_t) with gamma = decay^(1 / (tau_fwd - tau_bkwd)).

    reading: which tau_fwd is meant where a minibatch has several microbatches, whose forwards read different versions.
        "printed": the largest, ceil((2(P-i)+1)/N), for all of them (appendix A.1).
        "own": each microbatch's own lag. gamma is still computed from the printed tau_fwd; if that equals tau_bkwd,
            from the microbatch with the largest difference.
    """

    decay: float = 0.1
    reading: Taken = "printed"

    def __post_init__(self) -> None:
        one_of("reading of a correction", self.reading, Taken)

    def amounts(self, passes: Passes) -> Amounts:
        """tau_fwd - tau_bkwd (or tau_fwd - tau_recomp) for each microbatch; 0 where both read equally old weights."""
        by_microbatch = tuple(max(0, before - now) for before, now in zip(passes.forward, passes.lags, strict=True))
        printed = max(0, max(passes.forward) - max(passes.lags))
        return by_microbatch if self.reading == "own" else (printed,) * len(by_microbatch)

    def carry(self, stage: StageWeights) -> Any:
        """The object that corrects a stage's weights."""
        from pipelag.methods import carriers

        return carriers.Correction(stage, self.decay, stage.distance or max(self.amounts(stage.passes["B"])))


@dataclass(frozen=True)
class LookAhead:
    """Read w + gamma (w_t - w_{t-1}): Nesterov's point for asynchronous pipelines (arXiv 2505.01099).

    As an update: w_{t+1} = w_t + gamma (w_t - w_{t-1}) + (1 - gamma) * (the optimizer's own step).
    """

    gamma: float = 0.9

    def amounts(self, passes: Passes) -> Amounts:
        """gamma."""
        return (self.gamma,) * len(passes.lags)

    def carry(self, stage: StageWeights) -> Any:
        """The object that moves a stage's weights ahead."""
        from pipelag.methods import carriers

        return carriers.Along(stage)

    def change(self, stage: StageWeights) -> Any:
        """The object that damps a stage's updates."""
        from pipelag.methods import changes

        return changes.DampedStep(stage, self.gamma)


@dataclass(frozen=True)
class SpikeCompensation:
    """After v <- m v + g, step by lr (a v + b g) with a = m^D, b = (1 - m^D)/(1 - m) (arXiv 2003.11666, SC_D)."""

    def change(self, stage: StageWeights) -> Any:
        """The object that compensates a stage's updates; None if the stage has no delay."""
        from pipelag.methods import changes

        return changes.Spike(stage) if stage.delay else None


@dataclass(frozen=True)
class DelayCompensation:
    """Replace g by g + strength * g * g * (w_now - w_stale), elementwise (DC-ASGD, Zheng et al. 2017)."""

    strength: float = 0.04
    stale = True  # needs the weights that the forward read

    def change(self, stage: StageWeights) -> Any:
        """The object that compensates a stage's updates; None if the stage has no delay."""
        from pipelag.methods import changes

        return changes.Compensation(stage, self.strength) if stage.delay else None


ForwardReads = Literal["live"] | Predict | LookAhead
BackwardReads = Literal["live", "stashed"] | Predict | Correct
Update = SpikeCompensation | DelayCompensation | LookAhead
