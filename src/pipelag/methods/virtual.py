"""Several stages per worker: interleaved 1F1B, with a flush and without, pipelines in both directions, and ZB-V.

None of the five papers has these methods. The schedules are those of Narayanan et al. 2021 (arXiv 2104.04473, section
2.2), of Li and Hoefler 2021 (Chimera, arXiv 2107.06925), whose idea DeepSeek's DualPipe shares, and of Qi et al. 2024
(arXiv 2401.10241, section 6; arXiv 2405.15362). Staleness is derived from the schedules, as for every method.
"""

from dataclasses import replace

from pipelag.methods.base import Method, register
from pipelag.schedules.virtual import Interleaved, bidirectional
from pipelag.schedules.zero_bubble import zb_v as build_zb_v

CHUNKS = 2  # default number of stages per worker


def interleaved_with(chunks: int = CHUNKS) -> Method:
    """`1f1b_interleaved` with `chunks` stages per worker."""
    return replace(interleaved, build=Interleaved(chunks))


def stashed_with(chunks: int = CHUNKS) -> Method:
    """`pipedream_interleaved` with `chunks` stages per worker."""
    return replace(stashed, build=Interleaved(chunks, flush=False))


interleaved: Method = register(
    Method(
        name="1f1b_interleaved",
        summary="1F1B over several stages per worker, with a flush after each minibatch: no staleness, smaller bubbles",
        source="arXiv 2104.04473, section 2.2",
        build=Interleaved(CHUNKS),
        options=interleaved_with,
    )
)

stashed: Method = register(
    Method(
        name="pipedream_interleaved",
        summary="1f1b_interleaved without a flush, with weight stashing: less stale than pipedream with as many stages",
        source="PipeDream section 3.3 on arXiv 2104.04473's order",
        build=Interleaved(CHUNKS, flush=False),
        backward_reads="stashed",
        options=stashed_with,
    )
)

both_ways = register(
    Method(
        name="bidirectional",
        summary="two pipelines in opposite directions over the same workers (Chimera), gradients summed: no staleness",
        source="arXiv 2107.06925, section 3",
        build=bidirectional,
    )
)

zb_v = register(
    Method(
        name="zb_v",
        summary="zero bubble with two stages per worker in a V (ZB-V): no staleness, hardly any bubble, 1F1B's memory",
        source="Zero bubble pipeline parallelism (arXiv 2401.10241), section 6; arXiv 2405.15362",
        build=build_zb_v,
    )
)
