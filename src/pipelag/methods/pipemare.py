"""PipeMare: Asynchronous Pipeline Parallel DNN Training (2019), section 3, and its Hogwild experiment (appendix E).

The asynchronous pipeline with P stages and N microbatches: tau_fwd = ceil((2(P-i)+1)/N), tau_bkwd = 0, one copy of the
weights. Each remedy alone and both together; W, synchronous warm-up epochs, is a phase of `gpipe` before.

    T1   lr_{k,i} = lr_k / tau_i^{p_k},  p_k = 1 - min(k/K, 1)                       (equation 4)
    T2   u_bkwd = w - (tau_fwd - tau_bkwd) delta,  delta <- gamma delta + (1 - gamma)(w_{t+1} - w_t)    (section 3.2)

k counts minibatches from the start of the asynchronous phase, and tau_i is at least 1 (ambiguities B13, B14). T2 goes
back by the mean number of updates between the forward and the backward of a minibatch's microbatches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipelag.errors import PipelagError
from pipelag.methods.base import Method, register
from pipelag.methods.reads import Correct, RandomDelays
from pipelag.schedules.library import cycle as build

ANNEALING = 400  # K where none is given, in minibatches; the papers' values are in the configs
DECAY = 0.1  # D; the paper: 0.5 for ResNet on CIFAR-10, 0.1 for the Transformer on IWSLT14 (ambiguity B8)


def annealed(steps: int) -> Callable[[int, int, int, int], float]:
    """T1 with K = `steps` minibatches; 0 leaves the rate alone."""

    def factor(stage: int, stages: int, step: int, tau: int) -> float:
        power = 1.0 - min(step / steps, 1.0) if steps else 0.0
        return float(tau**-power)

    return factor


def _check(annealing: int, decay: float) -> None:
    if annealing < 0 or not 0 < decay < 1:
        raise PipelagError(
            f"PipeMare needs annealing >= 0 minibatches and 0 < decay < 1, not annealing={annealing}, decay={decay}"
        )


def pipemare_with(annealing: int = ANNEALING, decay: float = DECAY) -> Method:
    """T1 and T2."""
    _check(annealing, decay)
    return replace(pipemare, learning_rate=annealed(annealing), backward_reads=Correct(decay))


def t1_with(annealing: int = ANNEALING) -> Method:
    """T1 alone."""
    _check(annealing, DECAY)
    return replace(t1, learning_rate=annealed(annealing))


def t2_with(decay: float = DECAY) -> Method:
    """T2 alone."""
    _check(0, decay)
    return replace(t2, backward_reads=Correct(decay))


pipemare = register(
    Method(
        name="pipemare",
        summary="asynchronous microbatched pipeline with T1 (rates by delay) and T2 (discrepancy correction)",
        source="pipemare section 3",
        build=build,
        learning_rate=annealed(ANNEALING),
        backward_reads=Correct(DECAY),
        options=pipemare_with,
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
neither = register(
    replace(
        pipemare,
        name="pipemare_naive",
        summary="PipeMare's pipeline without T1 and T2: stale forward, current backward",
        source="pipemare section 3, Figure 4",
        learning_rate=None,
        backward_reads="live",
        options=None,
    )
)

stashed = register(
    replace(
        neither,
        name="pipedream_cycle",
        summary="weight stashing on PipeMare's pipeline: PipeDream as that paper's table 1 has it",
        source="pipemare appendix A.1",
        backward_reads="stashed",
    )
)


def hogwild_with(
    mean: float | None = None, most: int | None = None, annealing: int | None = None, microbatches: int = 1
) -> Method:
    """Hogwild with another mean delay or bound, for all stages; `annealing` adds T1.

    `microbatches`: N, which divides the delays that are not given, as PipeMare's tau_fwd is divided.
    """
    base = hogwild if annealing is None else hogwild_t1
    if microbatches < 1:
        raise PipelagError(f"a minibatch has 1 or more microbatches, not {microbatches}")
    return replace(
        base,
        random=RandomDelays(
            lambda stage, stages: 2.0 * (stages - stage) / microbatches if mean is None else mean,
            lambda stage, stages: -(-2 * (stages - 1) // microbatches) if most is None else most,
        ),
        learning_rate=None if annealing is None else annealed(annealing),
    )


hogwild = register(
    Method(
        name="hogwild",
        summary="every stage's weights a random number of updates old (truncated exponential), the same in both passes",
        source="pipemare appendix E, equation 16 (means and bound: ambiguity B18)",
        build=build,
        random=RandomDelays(
            mean=lambda stage, stages: 2.0 * (stages - stage), most=lambda stage, stages: 2 * (stages - 1)
        ),
        options=hogwild_with,
    )
)
hogwild_t1 = register(
    replace(
        hogwild,
        name="hogwild_t1",
        summary="random delays with T1",
        learning_rate=annealed(ANNEALING),
        options=lambda annealing=ANNEALING, mean=None, most=None, microbatches=1: hogwild_with(
            mean, most, annealing, microbatches
        ),
    )
)
