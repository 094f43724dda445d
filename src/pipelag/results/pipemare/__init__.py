"""Figures, tables and claims of *PipeMare* (importing this package registers them).

The paper's remedies, as arms are named after them: T1, learning rates rescheduled by delay; T2, discrepancy
correction; W, synchronous warm-up epochs. P is the number of stages, N that of microbatches per minibatch.
"""

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
