"""The comparison of all methods; importing this package registers its tables, figures and claims."""

from pipelag.results.leaderboard import board, choice, deep, depth, longer, look_ahead, networks, rates  # noqa: F401
