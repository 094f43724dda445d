"""The comparison of all methods (importing this registers its tables and claims)."""

from pipelag.results.leaderboard import board  # noqa: F401
