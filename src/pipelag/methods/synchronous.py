"""The baselines without staleness: GPipe, 1F1B with flush, and data parallelism with a barrier.

They differ in speed and memory; what they learn is plain training with the mean gradient of the microbatches.
"""

from pipelag.methods.base import Method, register
from pipelag.schedules.library import gpipe as build_gpipe
from pipelag.schedules.library import one_f_one_b_flush as build_flush

gpipe = register(
    Method(
        name="gpipe",
        summary="all forwards of the microbatches, all backwards, one update: no staleness, a bubble per minibatch",
        source="pipedream Figure 3; pipemare section 2 (utilisation N/(N+P-1))",
        build=build_gpipe,
    )
)

flush = register(
    Method(
        name="1f1b_flush",
        summary="1F1B within a minibatch and a flush at its end (DAPPLE): GPipe's bubble with fewer kept activations",
        source="DAPPLE (arXiv 2007.01045)",
        build=build_flush,
    )
)
