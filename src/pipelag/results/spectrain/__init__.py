"""Figures and claims of the DualPipe/SpecTrain paper (importing this registers them)."""

from pipelag.results.spectrain import diagrams, prediction, schedules  # noqa: F401
