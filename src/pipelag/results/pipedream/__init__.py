"""Tables, figures and claims of *PipeDream* (importing this registers them)."""

from pipelag.results.pipedream import (  # noqa: F401
    comparisons,
    footprints,
    links,
    overheads,
    planning,
    predictions,
    schedules,
    training,
)
