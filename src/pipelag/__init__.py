"""pipelag: asynchronous pipeline-parallel training, its staleness and its remedies, reproduced.

    import pipelag
    run = pipelag.train(model, batches, method="stale_weights", cuts=(2, 5), steps=200)

Names are loaded on first use: `import pipelag` itself is cheap, and loads torch only where a name needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipelag.errors import PipelagError

if TYPE_CHECKING:
    from pipelag import methods
    from pipelag.api import TrainedRun, train
    from pipelag.methods import Method, register
    from pipelag.schedules import Schedule, check, delays
    from pipelag.simulate.training import Phase
    from pipelag.timing.profile import Profile, balanced_cuts, profile

_HOMES = {
    "train": "pipelag.api",
    "TrainedRun": "pipelag.api",
    "Phase": "pipelag.simulate.training",
    "Method": "pipelag.methods",
    "register": "pipelag.methods",
    "Schedule": "pipelag.schedules",
    "check": "pipelag.schedules",
    "delays": "pipelag.schedules",
    "Profile": "pipelag.timing.profile",
    "profile": "pipelag.timing.profile",
    "balanced_cuts": "pipelag.timing.profile",
}

__all__ = [
    "Method", "Phase", "PipelagError", "Profile", "Schedule", "TrainedRun", "balanced_cuts", "check", "delays",
    "methods", "profile", "register", "schedule", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "methods":
        return import_module("pipelag.methods")
    if name not in _HOMES:
        raise AttributeError(f"module 'pipelag' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def schedule(method: str, *, stages: int, minibatches: int) -> Schedule:
    """The schedule of a method over so many stages and minibatches."""
    from pipelag.methods import get

    return get(method).schedule(stages, minibatches)
