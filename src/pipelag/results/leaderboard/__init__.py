"""The comparison of all methods (importing this registers its tables and claims)."""

from pipelag.results.leaderboard import board, networks  # noqa: F401
