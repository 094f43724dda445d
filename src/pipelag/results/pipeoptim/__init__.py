"""Figures, tables and claims of *PipeOptim* (importing this registers them)."""

from pipelag.results.pipeoptim import schedules  # noqa: F401
