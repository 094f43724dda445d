"""The comparison of all methods (importing this registers its tables, figure and claims)."""

from pipelag.results.leaderboard import board, depth, networks  # noqa: F401
