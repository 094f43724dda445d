"""Figures, tables and claims of *PipeMare* (importing this registers them)."""

from pipelag.results.pipemare import formulas, schedules, sweeps, theory, training  # noqa: F401
