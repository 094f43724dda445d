"""Plans that a configuration gives, such as those of PipeDream's Table 1, instead of plans found by search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from pipelag.errors import PipelagError
from pipelag.partitioner.cluster import Cluster
from pipelag.partitioner.options import GivenPlan
from pipelag.partitioner.plan import Plan, PlanStage, predict
from pipelag.timing.layers import Profile


def plan_given(profile: Profile, cluster: Cluster, name: str, given: GivenPlan) -> Plan:
    """The plan that `options.given` gives under this name.

    Raises:
        PipelagError: it is no plan for this profile.
    """
    layers, replicas = len(profile.layers), given.replicas
    try:
        if given.cuts is not None:
            return plan_of([last_before(profile, cut) for cut in given.cuts], replicas, layers)
        if not 1 < len(replicas) < 4:
            raise ValueError(f"cuts can only be searched for with 2 or 3 stages, not {len(replicas)}")
        if len(replicas) > layers:
            raise ValueError(f"{layers} layers cannot make {len(replicas)} stages")
        tried = [plan_of(cuts, replicas, layers) for cuts in combinations(range(1, layers), len(replicas) - 1)]
        return min(tried, key=lambda one: predict(profile, cluster, one, "ring"))
    except (ValueError, PipelagError) as error:
        raise PipelagError(
            f"options.given: '{name}' needs replicas (the number of workers of each stage) and cuts (the last layer of "
            f"each stage but the last) that fit a profile of {layers} layers ({error})"
        ) from error


def last_before(profile: Profile, cut: int | str) -> int:
    """A cut as the number of the layer before it; a word means the cut before the first layer whose name begins so."""
    if isinstance(cut, int):
        return cut
    numbers = [layer.layer for layer in profile.layers if layer.name.lower().startswith(cut.lower())]
    if not numbers:
        raise ValueError(f"no layer has a name that begins with '{cut}'")
    return numbers[0] - 1


def plan_of(cuts: Sequence[int], replicas: Sequence[int], layers: int) -> Plan:
    """The plan whose stages end at the cuts and have these numbers of replicas."""
    if len(cuts) != len(replicas) - 1:
        raise ValueError(
            f"the number of cuts is {len(cuts)}; for {len(replicas)} stages it should be {len(replicas) - 1}"
        )
    bounds = zip([0, *cuts], [*cuts, layers], replicas, strict=True)
    return Plan(tuple(PlanStage(before + 1, last, count) for before, last, count in bounds))
