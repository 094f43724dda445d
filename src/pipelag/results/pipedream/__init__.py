"""Tables, figures and claims of *PipeDream* (importing this registers them)."""

from pipelag.results.pipedream import comparisons, planning, schedules, training  # noqa: F401
