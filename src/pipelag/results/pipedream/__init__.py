"""Tables, figures and claims of *PipeDream* (importing this registers them)."""

from pipelag.results.pipedream import comparisons, links, planning, schedules, training  # noqa: F401
