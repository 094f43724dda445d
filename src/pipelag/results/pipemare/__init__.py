"""Figures, tables and claims of *PipeMare*; importing this package registers them."""

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
    sensitivity,
    settings,
    stages,
    whole_memory,
)
