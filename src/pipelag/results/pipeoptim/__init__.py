"""Figures, tables and claims of *PipeOptim* (importing this registers them)."""

from pipelag.results.pipeoptim import batches, features, schedules, throughput  # noqa: F401
