"""The comparison of all methods (importing this registers its tables, figures and claims)."""

from pipelag.results.leaderboard import board, deep, depth, networks, rates  # noqa: F401
