"""Tables, figures and claims of *PipeDream*; importing this package registers them."""

from pipelag.results.pipedream import (  # noqa: F401
    asynchronous,
    comparisons,
    footprints,
    large_minibatches,
    links,
    overheads,
    planning,
    predictions,
    published,
    schedules,
    speedups,
    training,
)
