"""PipeDream: Generalized Pipeline Parallelism for DNN Training (2019), sections 3.2 and 3.3.

1F1B: stage l of n begins with n-l forwards and then alternates one forward and one backward without end. Its forward
of minibatch t reads weights that lack n-l updates: those of the minibatches whose backwards are still to come there.

    weight stashing   w(t+1) = w(t) - lr grad f(w_1(t-n+1), w_2(t-n+2), ..., w_n(t))     backward reads as its forward
    vertical sync     w(t+1) = w(t) - lr grad f(w_1(t-n+1), w_2(t-n+1), ..., w_n(t-n+1))
    PipeDream-2BW     W(t+1) = W(t) - lr grad f(W(t-1)),   gradients of at least n microbatches per update

Gradient aggregation over m minibatches (section 3.3) is `microbatches=m`: m passes, then one update with their mean
gradient.
"""

from dataclasses import replace

from pipelag.errors import PipelagError
from pipelag.methods.base import Method, register
from pipelag.schedules.library import one_f_one_b as build


def travelling(lags: tuple[int, ...], period: int, here: int) -> tuple[int, ...]:
    """Vertical sync's lags: the version that stage 1 read travels with the microbatch to all stages.

    Args:
        lags: the lags of stage 1's forwards.
        period, here: microbatches per update at stage 1 and at this stage.

    Raises:
        PipelagError: the periods differ, as they do if stages have different numbers of replicas.
    """
    if period != here:
        raise PipelagError(
            "vertical sync needs one version on all stages, but these replicas make versions in rounds of different "
            "length; give all stages the same number of replicas"
        )
    return lags


pipedream = register(
    Method(
        name="pipedream",
        summary="1F1B with weight stashing: a backward reads the version that its forward read",
        source="pipedream sections 3.2 and 3.3, Figures 4 and 9",
        build=build,
        backward_reads="stashed",
    )
)

vertical_sync = register(
    replace(
        pipedream,
        name="pipedream_vertical_sync",
        summary="1F1B with weight stashing, and one version for a minibatch on all stages (vertical sync)",
        source="pipedream section 3.3",
        held=lambda stage, live: travelling(live.forward_lags[0], live.periods[0], live.periods[stage - 1]),
        revision=2,  # each microbatch of a minibatch has a version of its own
    )
)

two_buffers = register(
    replace(
        pipedream,
        name="pipedream_2bw",
        summary="1F1B with double-buffered weights: every stage one update behind, two versions in all",
        source="PipeDream-2BW (arXiv 2006.09503) section 3.1; pipeoptim table II",
        # A single stage reads live weights.
        held=lambda stage, live: (min(1, len(live.forward_lags) - 1),) * live.periods[stage - 1],
    )
)

# The schedule without stashing: the naive pipelining that section 3.3 and PipeOptim's Figure 1d warn of.
vanilla = register(
    replace(
        pipedream,
        name="1f1b",
        summary="1F1B without weight stashing: latest weights in both passes, so a gradient mixes two versions",
        source="pipedream section 3.3; pipeoptim Figure 1d",
        backward_reads="live",
    )
)
