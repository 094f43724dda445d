"""PipeMare: Asynchronous Pipeline Parallel DNN Training, section 3, and its Hogwild experiment (appendix E).

The asynchronous pipeline of P stages and N microbatches has tau_fwd = ceil((2(P-i)+1)/N), tau_bkwd = 0 and one copy of
the weights. The methods here apply the remedies T1 and T2 one by one, together, or not at all. The paper's W
(synchronous warm-up epochs) is a phase of `gpipe` that comes first.

    T1   lr_{k,i} = lr_k / tau_i^{p_k},  p_k = 1 - min(k/K, 1)                       (equation 4)
    T2   u_bkwd = w - (tau_fwd - tau_bkwd) delta,  delta <- gamma delta + (1 - gamma)(w_{t+1} - w_t)    (section 3.2)

k counts minibatches from the start of the asynchronous phase, and tau_i is tau_fwd (ambiguities B13, B14). The forward
of microbatch m = 0 .. N-1 of a minibatch lags ceil((2(P-i)+1-m)/N) updates. The largest of these lags is the tau that
the paper prints, and T1 and T2 use it for all microbatches.

With the option `reading="own"`, T2 corrects each microbatch by its own lag. With `queue=True`, an option of all methods
here except `hogwild` and its variants, the pipeline is the one that the authors simulated (section 4.1): a queue of
weights with one integer delay tau for the whole minibatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pipelag.errors import PipelagError
from pipelag.methods.base import Method, register
from pipelag.methods.random_delays import RandomDelays
from pipelag.methods.reads import Correct
from pipelag.schedules import Delays
from pipelag.schedules.library import pipemare as build

ANNEALING = 400  # default of K, in minibatches; the paper's values are in the configs
DECAY = 0.1  # default of D; the paper has 0.5 for ResNet on CIFAR-10, 0.1 for the Transformer on IWSLT14 (ambiguity B8)
Reading = Literal["printed", "own"]


def annealed(steps: int) -> Callable[[int, int, int, float], float]:
    """T1's policy for the learning rate, with K = `steps` minibatches; 0 leaves the rate unchanged."""
    if steps < 0:
        raise PipelagError(f"T1's annealing should be 0 or more minibatches, not {steps}")

    def factor(stage: int, stages: int, step: int, tau: float) -> float:
        power = 1.0 - min(step / steps, 1.0) if steps else 0.0
        return float(tau**-power)

    return factor


def corrected(decay: float, reading: Reading) -> Correct:
    """T2's correction of what backwards read, with D = `decay`."""
    if not 0 < decay < 1:
        raise PipelagError(f"T2's decay D should be between 0 and 1, not {decay}")
    return Correct(decay, reading)


def printed_tau(stage: int, live: Delays) -> tuple[int, ...]:
    """The lags of the authors' queue: the largest lag, for all microbatches of a minibatch."""
    return (live.forward[stage - 1],) * len(live.forward_lags[stage - 1])


def pipemare_with(
    annealing: int = ANNEALING, decay: float = DECAY, reading: Reading = "printed", queue: bool = False
) -> Method:
    """T1 and T2 with other settings: K = `annealing` minibatches, D = `decay`."""
    return replace(
        pipemare,
        learning_rate=annealed(annealing),
        backward_reads=corrected(decay, reading),
        held=printed_tau if queue else None,
    )


def t1_with(annealing: int = ANNEALING, queue: bool = False) -> Method:
    """T1 alone, with K = `annealing` minibatches."""
    return replace(t1, learning_rate=annealed(annealing), held=printed_tau if queue else None)


def t2_with(decay: float = DECAY, reading: Reading = "printed", queue: bool = False) -> Method:
    """T2 alone, with D = `decay`."""
    return replace(t2, backward_reads=corrected(decay, reading), held=printed_tau if queue else None)


pipemare = register(
    Method(
        name="pipemare",
        summary="asynchronous microbatched pipeline with T1 (learning rates by delay) and T2 (discrepancy correction)",
        source="pipemare section 3",
        build=build,
        learning_rate=annealed(ANNEALING),
        backward_reads=Correct(DECAY),
        options=pipemare_with,
        revision=2,  # the last stage too is one update late, and segments recompute two cycles later than before
    )
)
t1 = register(
    replace(
        pipemare,
        name="pipemare_t1",
        summary="PipeMare with learning-rate rescheduling (T1) only",
        source="pipemare section 3.1, equation 4",
        backward_reads="live",
        options=t1_with,
    )
)
t2 = register(
    replace(
        pipemare,
        name="pipemare_t2",
        summary="PipeMare with discrepancy correction (T2) only",
        source="pipemare section 3.2",
        learning_rate=None,
        options=t2_with,
    )
)
neither: Method = register(
    replace(
        pipemare,
        name="pipemare_naive",
        summary="PipeMare's pipeline without T1 and T2: stale forward, current backward",
        source="pipemare section 3, Figure 4",
        learning_rate=None,
        backward_reads="live",
        options=lambda queue=False: replace(neither, held=printed_tau if queue else None),
    )
)

stashed: Method = register(
    replace(
        neither,
        name="pipedream_cycle",
        summary="weight stashing on PipeMare's pipeline: PipeDream as in table 1 of PipeMare's paper",
        source="pipemare appendix A.1",
        backward_reads="stashed",
        options=lambda queue=False: replace(stashed, held=printed_tau if queue else None),
    )
)


def hogwild_with(
    mean: float | None = None, most: int | None = None, annealing: int | None = None, microbatches: int = 1
) -> Method:
    """Hogwild with another mean delay or another bound (`most`), in updates, the same for all stages.

    `annealing` adds T1 with each stage's mean delay. `microbatches` is the N of PipeMare's tau_fwd, from which means
    and bound are computed if they are not given.
    """
    return _hogwild(hogwild, mean, most, annealing, microbatches)


def _hogwild(base: Method, mean: float | None, most: int | None, annealing: int | None, microbatches: int) -> Method:
    assert base.random is not None
    law = RandomDelays(base.random.of, microbatches, mean, most)
    return replace(base, random=law, learning_rate=None if annealing is None else annealed(annealing))


hogwild = register(
    Method(
        name="hogwild",
        summary="each stage's gradient is a random number of updates late (truncated exponential)",
        source="pipemare appendix E, equation 16 (means and bound: ambiguity B18)",
        build=build,
        random=RandomDelays("gradient"),
        options=hogwild_with,
        revision=2,  # follows equation 16, and draws from laws that have the mean asked for
    )
)
hogwild_t1: Method = register(
    replace(
        hogwild,
        name="hogwild_t1",
        summary="hogwild with T1: learning rates by each stage's mean delay",
        learning_rate=annealed(ANNEALING),
        options=lambda annealing=ANNEALING, mean=None, most=None, microbatches=1: _hogwild(
            hogwild_t1, mean, most, annealing, microbatches
        ),
    )
)
hogwild_mixed: Method = register(
    replace(
        hogwild,
        name="hogwild_mixed",
        summary="variant of hogwild: each stage reads weights of a random age, the same in forward and backward",
        source="pipemare appendix E, equation 16 read as one pass of minibatch t",
        random=RandomDelays("weights"),
        options=lambda mean=None, most=None, annealing=None, microbatches=1: _hogwild(
            hogwild_mixed, mean, most, annealing, microbatches
        ),
    )
)
