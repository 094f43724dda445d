"""Plans that a configuration writes down, as PipeDream's Table 1 prints them, instead of searching for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from pipelag.errors import PipelagError
from pipelag.partitioner.cluster import Cluster
from pipelag.partitioner.options import GivenPlan
from pipelag.partitioner.plan import Plan, PlanStage, predict
from pipelag.timing.layers import Profile


def plan_given(profile: Profile, cluster: Cluster, name: str, given: GivenPlan) -> Plan:
    """The plan that `options.given` writes down; refused with its name where it is none for this profile."""
    layers, replicas = len(profile.layers), given.replicas
    try:
        if given.cuts is not None:
            return plan_of([last_before(profile, cut) for cut in given.cuts], replicas, layers)
        if not 1 < len(replicas) < 4:
            raise ValueError(f"cuts can only be searched for with 2 or 3 stages, not {len(replicas)}")
        tried = [plan_of(cuts, replicas, layers) for cuts in combinations(range(1, layers), len(replicas) - 1)]
        return min(tried, key=lambda one: predict(profile, cluster, one, "ring"))
    except (ValueError, PipelagError) as error:
        raise PipelagError(
            f"options.given: '{name}' needs replicas (the number of workers of each stage) and cuts (the last layer of "
            f"each stage but the last) that fit a profile of {layers} layers ({error})"
        ) from error


def last_before(profile: Profile, cut: int | str) -> int:
    """A cut as the number of a stage's last layer; a word stands for the first layer whose name begins like it."""
    if isinstance(cut, int):
        return cut
    numbers = [layer.layer for layer in profile.layers if layer.name.lower().startswith(cut.lower())]
    if not numbers:
        raise ValueError(f"no layer has a name that begins with '{cut}'")
    return numbers[0] - 1


def plan_of(cuts: Sequence[int], replicas: Sequence[int], layers: int) -> Plan:
    """Stages that end at the cuts, with so many workers each."""
    bounds = zip([0, *cuts], [*cuts, layers], replicas, strict=True)
    return Plan(tuple(PlanStage(before + 1, last, count) for before, last, count in bounds))
