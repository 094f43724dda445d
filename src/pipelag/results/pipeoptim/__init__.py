"""Figures, tables and claims of *PipeOptim* (importing this registers them)."""

from pipelag.results.pipeoptim import features, schedules  # noqa: F401
