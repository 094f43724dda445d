"""Ordinary training: a minibatch starts after the update of the one before it, so that no pass reads stale weights."""

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
