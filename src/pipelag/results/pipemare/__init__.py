"""Figures, tables and claims of *PipeMare* (importing this registers them)."""

from pipelag.results.pipemare import (  # noqa: F401
    ablation,
    activations,
    end_to_end,
    lemmas,
    quadratic,
    regression,
    schedules,
    settings,
    stages,
)
