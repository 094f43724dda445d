"""Remedies for staleness from other papers than the five, all on PipeDream's 1F1B; D is the stage's delay in updates.

    spike_compensation   v <- m v + g;  w <- w - lr (a v + b g),  a = m^D,  b = (1 - m^D)/(1 - m)      (SC_D)
    lwp_v, lwp_w         forward with w - lr D v, or with w + D (w_t - w_{t-1})
    lwp_sc               LWP_w and SC_D together
    nesterov_async       both passes at w_t + d_t, d_t = gamma (w_t - w_{t-1});
                         w_{t+1} = w_t + d_t + (1 - gamma) * (the optimizer's own step)
    dc_asgd              g + strength * g * g * (w_now - w_stale)

SC and LWP: Kosson et al., *Pipelined Backpropagation at Scale* (arXiv 2003.11666), without weight stashing.
Nesterov: Ajanthan et al., ICML 2025 (arXiv 2505.01099), with PipeDream's weight stashing. Its practical form is
`method="pipedream"` with NAdam and beta1 = 0.99. DC-ASGD: Zheng et al. 2017, with weight stashing.
"""

from __future__ import annotations

from dataclasses import replace

from pipelag.errors import PipelagError
from pipelag.methods.base import Method, register
from pipelag.methods.pipedream import pipedream, vanilla
from pipelag.methods.reads import DelayCompensation, LookAhead, Predict, SpikeCompensation

spike_compensation = register(
    replace(
        vanilla,
        name="spike_compensation",
        summary="1F1B with latest weights; each update adds at once what its late gradient missed of momentum (SC_D)",
        source="arXiv 2003.11666",
        update=SpikeCompensation(),
    )
)
lwp_v = register(
    replace(
        vanilla,
        name="lwp_v",
        summary="1F1B with linear weight prediction from the velocity, D updates ahead",
        source="arXiv 2003.11666",
        forward_reads=Predict("velocity"),
        revision=2,  # predicts at the coming update's rate
    )
)
lwp_w = register(
    replace(
        vanilla,
        name="lwp_w",
        summary="1F1B with linear weight prediction from the last step made, D updates ahead; for any optimizer",
        source="arXiv 2003.11666",
        forward_reads=Predict("difference"),
    )
)
lwp_sc = register(
    replace(
        lwp_w,
        name="lwp_sc",
        summary="1F1B with linear weight prediction (lwp_w) and spike compensation (SC_D)",
        update=SpikeCompensation(),
    )
)


def nesterov_with(gamma: float = 0.9) -> Method:
    """The method with look-ahead factor `gamma`, from 0 (plain stashing) to below 1."""
    if not 0 <= gamma < 1:
        raise PipelagError(f"the look-ahead factor gamma should be from 0 to below 1, not {gamma}")
    return replace(nesterov_async, forward_reads=LookAhead(gamma), update=LookAhead(gamma))


nesterov_async = register(
    replace(
        pipedream,
        name="nesterov_async",
        summary="1F1B with weight stashing; passes read Nesterov's point, and steps are damped by 1 - gamma",
        source="arXiv 2505.01099",
        forward_reads=LookAhead(),
        update=LookAhead(),
        options=nesterov_with,
    )
)


def dc_asgd_with(strength: float = 0.04) -> Method:
    """The method with strength lambda of the compensation; 0 is PipeDream."""
    if strength < 0:
        raise PipelagError(f"the strength lambda should be 0 or more, not {strength}")
    return replace(dc_asgd, update=DelayCompensation(strength))


dc_asgd = register(
    replace(
        pipedream,
        name="dc_asgd",
        summary="1F1B with weight stashing; gradients are compensated for their delay, to first order",
        source="Zheng et al. 2017 (arXiv 1609.08326)",
        update=DelayCompensation(),
        options=dc_asgd_with,
    )
)
