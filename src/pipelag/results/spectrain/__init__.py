"""Figures, tables and claims of the DualPipe/SpecTrain paper (importing this registers them)."""

from pipelag.results.spectrain import algorithm, diagrams, prediction, schedules  # noqa: F401
