"""Pipelined Training with Stale Weights of Deep CNNs (2020), section 3.

Every stage does one forward and one backward per cycle. The forward of stage i (FS_i) reads the current weights, which
lack the updates of the 2(K-i+1) minibatches whose backwards are still to come at this stage. The backward
(BKS_{K-i+2}) uses the activations that the forward kept, but the weights that are current by *then*, which are newer
than the forward's. The stage updates at once:

    W_i <- W_i - lr_i * gradient        no weight stashing, no microbatches, K = stages - 1
"""

from dataclasses import replace

from pipelag.methods.base import Method, register
from pipelag.schedules.library import cycle as build

stale_weights = register(
    Method(
        name="stale_weights",
        summary="the schedule `cycle` with stale weights in the forward and current weights in the backward",
        source="stale_weights section 3, Figures 3 and 4",
        build=build,
    )
)

# The paper's sentence that FS_i and its backward "use the same weights" contradicts its "no stashing" (ambiguity A4).
# This variant follows the sentence, so that the two readings can be compared.
stale_weights_stashed = register(
    replace(
        stale_weights,
        name="stale_weights_stashed",
        summary="stale_weights with weight stashing: a backward reads the version that its forward read",
        backward_reads="stashed",
    )
)
