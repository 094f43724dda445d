"""Ordinary training: a minibatch starts when the update of the one before is done. Zero delay by construction."""

from pipelag.methods.base import Method, register
from pipelag.schedules.library import sequential as build

sequential = register(
    Method(
        name="sequential",
        summary="no pipelining: one minibatch at a time, no staleness (the baseline)",
        source="stale_weights section 2, Figure 2",
        build=build,
        pipelined=False,
    )
)
