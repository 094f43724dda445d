"""The vocabulary of weight policies: what a pass may read instead of the live weights, and what an update may add.

Values, without torch. Each says by which amounts it acts on a stage, one per microbatch of a minibatch (0: not at all,
the pass reads the live weights), and makes what carries it out there (`carry`: a `pipelag.methods.carriers` object), in
the same way for every executor. Another kind of read is a class with these two methods.
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
    """The forwards or backwards of a stage, as the schedule has them, per microbatch of an update.

    lags: updates between the weights that they read and their own update; forward: those of the forwards.
    beyond: updates of the stage from their own one to the end of the minibatch's round trip (`Delays.beyond`).
    """

    stage: int
    stages: int
    lags: tuple[int, ...]
    forward: tuple[int, ...]
    beyond: tuple[int, ...]


def one_of(kind: str, word: object, words: Any) -> None:
    """Refuse a word that is none of a `Literal`'s; it would otherwise be taken for one of them."""
    if word not in get_args(words):
        raise unknown(kind, str(word), get_args(words))


@dataclass(frozen=True)
class Predict:
    """Read w - s * step, the weights foreseen s updates ahead; no step before the first update.

    direction: what one step is taken to be, at the rate of the coming update.
        "update": the optimizer's own rule applied to its present state (PipeOptim, table I).
        "update again": the same with the last gradient counted once more, SGD only (PipeOptim, ambiguity D2).
        "velocity": lr * the smoothed gradient: SGD's momentum buffer, Adam's first moment (SpecTrain, equation 4). An
            optimizer without either gets an average kept here, v = 0.9 v + 0.1 g (equation 1).
        "average": lr * that average, whatever the optimizer, v_0 = 0 (SpecTrain, equation 1 as it is printed).
        "moments": lr * mhat / sqrt(vhat + eps), Adam's form whatever the optimizer (XPipe).
        "difference": the last step as it was made, w_{t-1} - w_t (LWP_w); knows no optimizer.
    horizon: what s counts, derived from the schedule for each microbatch:
        "own update": the updates between the pass and the minibatch's own update (PipeOptim section III-A).
        "round trip": those until the minibatch's last backward is done (SpecTrain section 3.3).
        Or a function of (stage, stages, updates until the own one).
    """

    direction: Direction
    horizon: Horizon | Callable[[int, int, int], float] = "own update"

    def __post_init__(self) -> None:
        one_of("direction of a prediction", self.direction, Direction)
        if not callable(self.horizon):
            one_of("horizon of a prediction", self.horizon, Horizon)

    def amounts(self, passes: Passes) -> Amounts:
        """s of each microbatch."""
        if callable(self.horizon):
            return tuple(self.horizon(passes.stage, passes.stages, lag) for lag in passes.lags)
        further = passes.beyond if self.horizon == "round trip" else (0,) * len(passes.lags)
        return tuple(lag + more for lag, more in zip(passes.lags, further, strict=True))

    def carry(self, stage: StageWeights) -> Any:
        """The prediction on a stage."""
        from pipelag.methods import carriers

        return carriers.prediction(self.direction, stage)


@dataclass(frozen=True)
class Correct:
    """PipeMare's T2 (section 3.2): read w - (tau_fwd - tau_bkwd) delta, close to what the forward read.

    delta <- gamma delta + (1 - gamma)(w_{t+1} - w_t) with gamma = decay^(1 / (tau_fwd - tau_bkwd)).

    reading: what tau_fwd is where a minibatch has several microbatches, whose forwards read different versions.
        "printed": ceil((2(P-i)+1)/N), the largest, for all of them (appendix A.1).
        "own": each microbatch's own lag; gamma stays that of the printed one, or where that leaves no difference to
            correct is that of the greatest own one.
    """

    decay: float = 0.1
    reading: Taken = "printed"

    def __post_init__(self) -> None:
        one_of("reading of a correction", self.reading, Taken)

    def amounts(self, passes: Passes) -> Amounts:
        """tau_fwd - tau_bkwd (or - tau_recomp) of each microbatch; nothing where a pass reads as old weights."""
        by_microbatch = tuple(max(0, before - now) for before, now in zip(passes.forward, passes.lags, strict=True))
        printed = max(0, max(passes.forward) - max(passes.lags))
        return by_microbatch if self.reading == "own" else (printed,) * len(by_microbatch)

    def carry(self, stage: StageWeights) -> Any:
        """The correction on a stage."""
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
        """The look-ahead on a stage."""
        from pipelag.methods import carriers

        return carriers.Along(stage)

    def change(self, stage: StageWeights) -> Any:
        """The damped update on a stage."""
        from pipelag.methods import carriers

        return carriers.DampedStep(stage, self.gamma)


@dataclass(frozen=True)
class SpikeCompensation:
    """After v <- m v + g, step by lr (a v + b g) with a = m^D, b = (1 - m^D)/(1 - m) (arXiv 2003.11666, SC_D)."""

    def change(self, stage: StageWeights) -> Any:
        """The compensation on a stage; none where nothing is delayed."""
        from pipelag.methods import carriers

        return carriers.Spike(stage) if stage.delay else None


@dataclass(frozen=True)
class DelayCompensation:
    """Replace g by g + strength * g * g * (w_now - w_stale), elementwise (DC-ASGD, Zheng et al. 2017)."""

    strength: float = 0.04
    stale = True  # goes by the weights that the forward read

    def change(self, stage: StageWeights) -> Any:
        """The compensation on a stage; none where nothing is delayed."""
        from pipelag.methods import carriers

        return carriers.Compensation(stage, self.strength) if stage.delay else None


ForwardReads = Literal["live"] | Predict | LookAhead
BackwardReads = Literal["live", "stashed"] | Predict | Correct
Update = SpikeCompensation | DelayCompensation | LookAhead
