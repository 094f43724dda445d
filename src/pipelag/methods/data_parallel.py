"""Data parallelism, the pipelines' rival: with a barrier (BSP) it learns as plain training does, without one (ASP) its
gradients are stale. Here a "stage" stands for a worker when the delay is derived: n workers, one in each."""

from pipelag.methods.base import Method, register
from pipelag.schedules.library import parameter_server

asp = register(
    Method(
        name="asp",
        summary="asynchronous data parallelism over as many workers as stages: n-1 updates of delay everywhere",
        source="pipedream section 2.1 (ASP)",
        build=parameter_server,
        backward_reads="stashed",
    )
)
