"""Figures and claims of *PipeDream* (importing this registers them)."""

from pipelag.results.pipedream import schedules  # noqa: F401
