"""Figures, tables and claims of the DualPipe/SpecTrain paper; importing this package registers them."""

from pipelag.results.spectrain import (  # noqa: F401
    algorithm,
    communication,
    convergence,
    diagrams,
    headline_accuracy,
    learning_curves,
    prediction,
    schedules,
    throughput,
    training,
)
