"""The pipelines without staleness: GPipe, 1F1B with flush and zero-bubble ones, by pipelag's workers or by torch's.

They differ in speed and memory. All of them learn as plain training with the mean gradient of the microbatches does.
"""

from dataclasses import replace

from pipelag.methods.base import Method, register
from pipelag.schedules.library import gpipe as build_gpipe
from pipelag.schedules.library import one_f_one_b_flush as build_flush
from pipelag.schedules.zero_bubble import zb_h1 as build_zb_h1
from pipelag.schedules.zero_bubble import zb_h2 as build_zb_h2

gpipe = register(
    Method(
        name="gpipe",
        summary="all forwards of a minibatch's microbatches, all backwards, one update: no staleness, but bubbles",
        source="pipedream Figure 3; pipemare appendix A.1 (utilisation N/(N+P-1))",
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

zb_h1 = register(
    Method(
        name="zb_h1",
        summary="1F1B with flush that computes weights' gradients later (ZB-H1): no staleness, a third of the bubble",
        source="Zero bubble pipeline parallelism (arXiv 2401.10241), section 2.2",
        build=build_zb_h1,
    )
)

zb_h2 = register(
    Method(
        name="zb_h2",
        summary="zb_h1 with nearly twice as many microbatches under way (ZB-H2): no staleness and hardly any bubble",
        source="Zero bubble pipeline parallelism (arXiv 2401.10241), section 2.3",
        build=build_zb_h2,
    )
)

gpipe_torch = register(
    replace(
        gpipe,
        name="gpipe_torch",
        summary="gpipe, by torch.distributed.pipelining's ScheduleGPipe on real workers",
        workers="torch",
    )
)

flush_torch = register(
    replace(
        flush,
        name="1f1b_torch",
        summary="1f1b_flush, by torch.distributed.pipelining's Schedule1F1B on real workers",
        workers="torch",
    )
)
