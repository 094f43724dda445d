"""PipeDream: Generalized Pipeline Parallelism for DNN Training (2019), sections 3.2 and 3.3.

1F1B: stage l of n begins with n-l forwards and then alternates one forward and one backward, for ever. Its forward of
minibatch t misses the n-l updates of the minibatches still in flight behind it.

    weight stashing   w(t+1) = w(t) - lr grad f(w_1(t-n+1), w_2(t-n+2), ..., w_n(t))     backward reads the forward's
    vertical sync     w(t+1) = w(t) - lr grad f(w_1(t-n+1), w_2(t-n+1), ..., w_n(t-n+1))
    PipeDream-2BW     W(t+1) = W(t) - lr grad f(W(t-1)),   gradients of at least n microbatches per update

Gradient aggregation over m minibatches (section 3.3) is `microbatches=m`: m passes, one update with their mean.
"""

from dataclasses import replace

from pipelag.errors import PipelagError
from pipelag.methods.base import Method, register
from pipelag.schedules.library import one_f_one_b as build


def travelling(lags: tuple[int, ...], period: int, here: int) -> tuple[int, ...]:
    """The version that stage 1 read travels with the microbatch: its lags, where an update takes as many there.

    Raises:
        PipelagError: stages with different numbers of replicas, whose versions are made in rounds of their own.
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
        revision=2,  # with microbatches, each has a version of its own
    )
)

two_buffers = register(
    replace(
        pipedream,
        name="pipedream_2bw",
        summary="1F1B with double-buffered weights: every stage one update behind, two versions in all",
        source="PipeDream-2BW (arXiv 2006.09503) section 3.1; pipeoptim table II",
        # One stage alone has nothing to wait for.
        held=lambda stage, live: (min(1, len(live.forward_lags) - 1),) * live.periods[stage - 1],
    )
)

# What the schedule does without stashing: the straw man of section 3.3, and what PipeOptim's Figure 1d warns of.
vanilla = register(
    replace(
        pipedream,
        name="1f1b",
        summary="1F1B without weight stashing: latest weights in both passes, so a gradient mixes two versions",
        source="pipedream section 3.3; pipeoptim Figure 1d",
        backward_reads="live",
    )
)
