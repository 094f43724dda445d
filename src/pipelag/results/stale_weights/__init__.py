"""Every table, figure and claim of *Pipelined Training with Stale Weights* (importing this registers them)."""

from pipelag.results.stale_weights import accuracy, claims, diagrams, speed_and_memory  # noqa: F401
