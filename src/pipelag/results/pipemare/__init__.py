"""Figures, tables and claims of *PipeMare* (importing this registers them)."""

from pipelag.results.pipemare import schedules, theory  # noqa: F401
