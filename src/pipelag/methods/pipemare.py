"""PipeMare: Asynchronous Pipeline Parallel DNN Training, section 3, and its Hogwild experiment (appendix E).

The asynchronous pipeline with P stages and N microbatches: tau_fwd = ceil((2(P-i)+1)/N), tau_bkwd = 0, one copy of the
weights. Each remedy alone and both together; W, synchronous warm-up epochs, is a phase of `gpipe` before.

    T1   lr_{k,i} = lr_k / tau_i^{p_k},  p_k = 1 - min(k/K, 1)                       (equation 4)
    T2   u_bkwd = w - (tau_fwd - tau_bkwd) delta,  delta <- gamma delta + (1 - gamma)(w_{t+1} - w_t)    (section 3.2)

k counts minibatches from the start of the asynchronous phase (ambiguities B13, B14). Microbatch k = 0 .. N-1 of a
minibatch lags ceil((2(P-i)+1-k)/N) updates; the largest of these is the printed tau, which T1 and T2 go by.

Options of T2: `reading="own"` corrects each microbatch by its own lag. Of all: `queue=True` is the machine that the
authors simulated (section 4.1), a queue of weights with the integer delay tau for the whole minibatch.
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

ANNEALING = 400  # K where none is given, in minibatches; the papers' values are in the configs
DECAY = 0.1  # D; the paper: 0.5 for ResNet on CIFAR-10, 0.1 for the Transformer on IWSLT14 (ambiguity B8)
Reading = Literal["printed", "own"]


def annealed(steps: int) -> Callable[[int, int, int, float], float]:
    """T1 with K = `steps` minibatches; 0 leaves the rate alone."""
    if steps < 0:
        raise PipelagError(f"T1's annealing should be 0 or more minibatches, not {steps}")

    def factor(stage: int, stages: int, step: int, tau: float) -> float:
        power = 1.0 - min(step / steps, 1.0) if steps else 0.0
        return float(tau**-power)

    return factor


def corrected(decay: float, reading: Reading) -> Correct:
    """T2 with this D."""
    if not 0 < decay < 1:
        raise PipelagError(f"T2's decay D should be between 0 and 1, not {decay}")
    if reading not in ("printed", "own"):
        raise PipelagError(f"T2's reading of tau should be 'printed' or each microbatch's 'own', not '{reading}'")
    return Correct(decay, reading)


def printed_tau(stage: int, live: Delays) -> tuple[int, ...]:
    """One lag for all microbatches of a minibatch: the largest."""
    return (live.forward[stage - 1],) * len(live.forward_lags[stage - 1])


def pipemare_with(
    annealing: int = ANNEALING, decay: float = DECAY, reading: Reading = "printed", queue: bool = False
) -> Method:
    """T1 and T2."""
    return replace(
        pipemare,
        learning_rate=annealed(annealing),
        backward_reads=corrected(decay, reading),
        held=printed_tau if queue else None,
    )


def t1_with(annealing: int = ANNEALING, queue: bool = False) -> Method:
    """T1 alone."""
    return replace(t1, learning_rate=annealed(annealing), held=printed_tau if queue else None)


def t2_with(decay: float = DECAY, reading: Reading = "printed", queue: bool = False) -> Method:
    """T2 alone."""
    return replace(t2, backward_reads=corrected(decay, reading), held=printed_tau if queue else None)


pipemare = register(
    Method(
        name="pipemare",
        summary="asynchronous microbatched pipeline with T1 (rates by delay) and T2 (discrepancy correction)",
        source="pipemare section 3",
        build=build,
        learning_rate=annealed(ANNEALING),
        backward_reads=Correct(DECAY),
        options=pipemare_with,
        revision=2,  # the last stage is an update late too, and segments recompute two cycles later
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
        summary="weight stashing on PipeMare's pipeline: PipeDream as that paper's table 1 has it",
        source="pipemare appendix A.1",
        backward_reads="stashed",
        options=lambda queue=False: replace(stashed, held=printed_tau if queue else None),
    )
)


def hogwild_with(
    mean: float | None = None, most: int | None = None, annealing: int | None = None, microbatches: int = 1
) -> Method:
    """Another mean delay or bound, for all stages; `annealing` adds T1 with each stage's mean delay.

    `microbatches`: N of the means that are not given, which are PipeMare's tau_fwd.
    """
    return _hogwild(hogwild, mean, most, annealing, microbatches)


def _hogwild(base: Method, mean: float | None, most: int | None, annealing: int | None, microbatches: int) -> Method:
    assert base.random is not None
    law = RandomDelays(base.random.of, microbatches, mean, most)
    return replace(base, random=law, learning_rate=None if annealing is None else annealed(annealing))


hogwild = register(
    Method(
        name="hogwild",
        summary="every stage's gradient a random number of updates old (truncated exponential)",
        source="pipemare appendix E, equation 16 (means and bound: ambiguity B18)",
        build=build,
        random=RandomDelays("gradient"),
        options=hogwild_with,
        revision=2,  # equation 16, and laws that have the mean asked for
    )
)
hogwild_t1: Method = register(
    replace(
        hogwild,
        name="hogwild_t1",
        summary="hogwild with T1 by each stage's mean delay",
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
        summary="variant of hogwild whose passes mix weights of random ages, a stage's the same in both",
        source="pipemare appendix E, equation 16 read as one pass of minibatch t",
        random=RandomDelays("weights"),
        options=lambda mean=None, most=None, annealing=None, microbatches=1: _hogwild(
            hogwild_mixed, mean, most, annealing, microbatches
        ),
    )
)
