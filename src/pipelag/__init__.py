"""pipelag: asynchronous pipeline-parallel training, its staleness, and the remedies for it, reproduced.

    import pipelag
    run = pipelag.train(model, batches, method="stale_weights", cuts=(2, 5), steps=200)

Names are loaded on first use. `import pipelag` itself is cheap; torch is loaded with the first name that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipelag.errors import PipelagError, Stop

if TYPE_CHECKING:
    __version__: str
    from pipelag import methods
    from pipelag.allocator import keep_freed_memory
    from pipelag.api import TrainedRun, train
    from pipelag.methods import Method, register
    from pipelag.models.linearise import linearise
    from pipelag.partitioner.cluster import Cluster
    from pipelag.partitioner.plan import Plan
    from pipelag.partitioner.search import partition
    from pipelag.schedules import Schedule, check, delays
    from pipelag.stage.phase import Phase
    from pipelag.timing.costs import StageCost, Topology, uniform
    from pipelag.timing.layers import Profile, balanced_cuts
    from pipelag.timing.profile import profile
    from pipelag.timing.timed import Timing

_HOMES = {
    "train": "pipelag.api",
    "TrainedRun": "pipelag.api",
    "Phase": "pipelag.stage.phase",
    "Method": "pipelag.methods",
    "register": "pipelag.methods",
    "linearise": "pipelag.models.linearise",
    "keep_freed_memory": "pipelag.allocator",
    "Schedule": "pipelag.schedules",
    "check": "pipelag.schedules",
    "delays": "pipelag.schedules",
    "Profile": "pipelag.timing.layers",
    "profile": "pipelag.timing.profile",
    "balanced_cuts": "pipelag.timing.layers",
    "StageCost": "pipelag.timing.costs",
    "Topology": "pipelag.timing.costs",
    "uniform": "pipelag.timing.costs",
    "Timing": "pipelag.timing.timed",
    "Cluster": "pipelag.partitioner.cluster",
    "Plan": "pipelag.partitioner.plan",
    "partition": "pipelag.partitioner.search",
}

_ROOMS = ("data", "distributed", "methods", "models", "partitioner", "runs", "schedules", "simulate", "stage", "timing")

__all__ = [
    "Cluster", "Method", "Phase", "PipelagError", "Plan", "Profile", "Schedule", "StageCost", "Stop", "Timing",
    "Topology", "TrainedRun", "balanced_cuts", "check", "delays", "keep_freed_memory", "linearise", "methods",
    "partition", "profile", "register", "schedule", "time", "train", "uniform", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"pipelag.{name}")
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module 'pipelag' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """All names, for completion: those that are loaded on first use are not in `globals()` yet."""
    return sorted({*globals(), *_HOMES, *_ROOMS, "__version__"})


def _version() -> str:
    """The version of the installed package; "0+unknown" if the source runs without being installed."""
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version("pipelag"))
    except metadata.PackageNotFoundError:
        return "0+unknown"


def schedule(name: str | Method, *, stages: int, minibatches: int, **options: Any) -> Schedule:
    """A schedule by its name ("1f1b", "gpipe", ...), or the schedule of a method, as a `pipelag.Schedule`.

    Args:
        name: a schedule (`pipelag schedules` lists them), or a method by name or as a `Method`.
        stages: the number of stages.
        minibatches: the number of minibatches.
        options: `microbatches`, the parts of each minibatch (1). A schedule given by name may have more options,
            such as `replicas` of "1f1b_rr"; a method has no others.

    Raises:
        PipelagError: an unknown name or option, or numbers of stages, minibatches or microbatches that do not fit.
    """
    from pipelag.errors import unknown
    from pipelag.methods import METHODS, get
    from pipelag.schedules import SCHEDULES
    from pipelag.schedules import schedule as by_name
    from pipelag.schedules.library import as_python

    stages, minibatches = as_python(stages), as_python(minibatches)
    options = {key: as_python(value) for key, value in options.items()}
    if isinstance(name, str) and name in SCHEDULES:
        return by_name(name, stages=stages, minibatches=minibatches, **options)
    if isinstance(name, str) and name not in METHODS:
        raise unknown("schedule or method", name, {*SCHEDULES, *METHODS})
    microbatches = options.pop("microbatches", 1)
    if options:
        raise unknown("option of a method's schedule", next(iter(options)), ["microbatches"])
    return get(name).schedule(stages, minibatches, microbatches)


def time(
    schedule: Schedule,
    costs: Profile | list[StageCost],
    topology: Topology | None = None,
    *,
    cuts: tuple[int, ...] = (),
    method: str | Method | None = None,
) -> Timing:
    """Predict the time of a schedule: how long it takes, how busy its workers are and how much memory they need.

    Args:
        costs: the cost of each stage, such as `profile.cut(cuts)` or `uniform(4)`; or a profile, to be cut at `cuts`.
        topology: the links between workers; None: messages take no time.
        cuts: with a profile only: the last layer of each stage but the last.
        method: the method whose copies of the weights count in the memory; None: one copy per stage.

    Returns:
        A `Timing`: seconds (`makespan`, `steady_period`), shares (`utilisation`, `bubble`), bytes (`peak_memory`).

    Raises:
        PipelagError: an argument of the wrong type, costs for another number of stages than the schedule's, cuts that
            do not fit the profile or are given without one, an unknown method, a schedule that deadlocks, or costs
            that do not say how long the schedule's W actions take (`StageCost.weight_gradient`).
    """
    from pipelag.errors import expect
    from pipelag.schedules import SUCH_AS, Schedule
    from pipelag.timing.costs import Topology
    from pipelag.timing.layers import Profile
    from pipelag.timing.timed import time_schedule, weight_versions

    expect("the schedule", schedule, Schedule, SUCH_AS)
    expect("topology", topology, (Topology, type(None)), "a pipelag.Topology(bandwidth, latency), or None")
    expect("costs", costs, (Profile, list), "a pipelag.Profile, or a list of pipelag.StageCost")
    if isinstance(costs, Profile):
        costs = costs.cut(cuts, schedule.microbatches)
    elif cuts:
        raise PipelagError(
            "cuts are given, but the list of stage costs is already cut; leave cuts out, or give a profile"
        )
    copies = weight_versions(method, schedule.stages, schedule.microbatches) if method is not None else None
    return time_schedule(schedule, costs, topology, copies)
