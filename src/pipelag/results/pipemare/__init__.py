"""Figures, tables and claims of *PipeMare* (importing this registers them)."""

from pipelag.results.pipemare import (  # noqa: F401
    ablation,
    activations,
    curves,
    delays,
    end_to_end,
    headline,
    lemmas,
    length,
    over_time,
    quadratic,
    recomputation,
    regression,
    schedules,
    segments,
    sensitivity,
    settings,
    stages,
    whole_memory,
)
