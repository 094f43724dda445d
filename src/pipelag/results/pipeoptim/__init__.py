"""Figures, tables and claims of *PipeOptim*; importing this package registers them."""

from pipelag.results.pipeoptim import (  # noqa: F401
    accuracy,
    batches,
    curves,
    features,
    overall,
    schedules,
    throughput,
)
