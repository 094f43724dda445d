"""Every table, figure and claim of *Pipelined Training with Stale Weights*; importing this package registers them."""

from pipelag.results.stale_weights import (  # noqa: F401
    accuracy,
    claims_accuracy,
    claims_convergence,
    claims_depth,
    claims_hybrid,
    claims_memory,
    claims_schedules,
    claims_speed,
    claims_staleness,
    diagrams,
    speed_and_memory,
)
