"""Data parallelism, the alternative to pipelines.

With a barrier (BSP) it learns as plain training does; real workers are replicas under torch's DistributedDataParallel.
Without a barrier (ASP), every gradient of n workers is n-1 updates old in the simulated executor, where a stage stands
for a worker. Real workers send their gradients to a parameter server, and a gradient's age depends on the workers'
speeds.
"""

from pipelag.methods.base import Method, register
from pipelag.schedules.library import parameter_server, sequential

bsp = register(
    Method(
        name="bsp",
        summary="data parallelism with a barrier: replicas share each minibatch; no staleness",
        source="pipedream section 2.1 (BSP)",
        build=sequential,
        pipelined=False,
        workers="ddp",
    )
)

asp = register(
    Method(
        name="asp",
        summary="asynchronous data parallelism over as many workers (n) as stages: every gradient is n-1 updates late",
        source="pipedream section 2.1 (ASP)",
        build=parameter_server,
        backward_reads="stashed",
        workers="server",
    )
)
