"""The comparison of all methods (importing this registers its tables, figures and claims)."""

from pipelag.results.leaderboard import board, choice, deep, depth, longer, networks, rates  # noqa: F401
