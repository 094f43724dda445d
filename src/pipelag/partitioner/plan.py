"""Plans, contiguous stages with replicas: their predicted and timed seconds, the bytes that they send, their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, lcm
from numbers import Integral, Real
from typing import Any

from pipelag.errors import PipelagError, shown
from pipelag.partitioner.cluster import Cluster, slowest, sync_of, wait_free
from pipelag.schedules import Schedule
from pipelag.schedules.actions import Action
from pipelag.schedules.library import check_counts, minibatches_held, one_f_one_b_rr
from pipelag.timing.breakdown import Unsettled, steady_seconds
from pipelag.timing.costs import StageCost, Topology, summed_bytes, summed_messages
from pipelag.timing.layers import Profile
from pipelag.timing.timed import Timing, time_schedule


@dataclass(frozen=True)
class PlanStage:
    """A stage of a plan: layers `first` to `last` (counted from 1) on `replicas` workers."""

    first: int
    last: int
    replicas: int = 1


@dataclass(frozen=True)
class Plan:
    """How a model is divided over workers: its stages in order, which cover all layers.

    stages: a `PlanStage` for each: its first and last layer, and its number of workers.
    period: predicted seconds per minibatch, if a search made the plan.
    """

    stages: tuple[PlanStage, ...]
    period: float | None = None

    def __post_init__(self) -> None:
        if not self.stages:
            raise PipelagError("a plan needs at least one stage")
        for stage in self.stages:
            whole = isinstance(stage, PlanStage) and all(isinstance(one, Integral) for one in vars(stage).values())
            if not whole:
                raise PipelagError(f"a stage of a plan is {shown(stage)}; it should be a PlanStage of whole numbers")
        for before, after in pairwise(self.stages):
            if after.first != before.last + 1:
                raise PipelagError(
                    f"a stage ends at layer {before.last}, but the next begins at layer {after.first}; it should "
                    f"begin at layer {before.last + 1}"
                )
        for stage in self.stages:
            if stage.last < stage.first or stage.replicas < 1:
                raise PipelagError(
                    f"a stage has the layers {stage.first} to {stage.last} and {stage.replicas} workers; it should "
                    "have at least one layer and one worker"
                )

    @property
    def workers(self) -> int:
        """The number of workers of all stages."""
        return sum(stage.replicas for stage in self.stages)

    @property
    def config(self) -> str:
        """The plan as the paper writes it: "16" (data parallelism), "straight", or the stages' replicas, "15-1"."""
        counts = [stage.replicas for stage in self.stages]
        return "straight" if len(counts) > 1 and set(counts) == {1} else "-".join(map(str, counts))

    @property
    def cuts(self) -> tuple[int, ...]:
        """The last layers of all stages but the last: the cuts of a training run."""
        return tuple(stage.last for stage in self.stages[:-1])

    @property
    def noam(self) -> int:
        """Minibatches under way per replica of the first stage: ceil(workers / its replicas) (section 3.2)."""
        return -(-self.workers // self.stages[0].replicas)

    def versions(self, depth: int | None = None) -> tuple[int, ...]:
        """Per stage, the versions that a worker stashes (weights and activations): its minibatches under way.

        Args:
            depth: minibatches under way per replica of the first stage; None: NOAM.
        """
        return minibatches_held([stage.replicas for stage in self.stages], depth)


def placement(plan: Plan) -> list[range]:
    """The numbers of each stage's workers; workers are numbered stage by stage."""
    places, at = [], 0
    for stage in plan.stages:
        places.append(range(at, at + stage.replicas))
        at += stage.replicas
    return places


def check_layers(plan: Plan, profile: Profile) -> None:
    """Refuse a plan for another model."""
    if plan.stages[0].first != 1 or plan.stages[-1].last != len(profile.layers):
        raise PipelagError(
            f"the plan covers layers {plan.stages[0].first} to {plan.stages[-1].last}, but the profile has layers 1 to "
            f"{len(profile.layers)}"
        )


def check_plan(plan: Plan, profile: Profile, cluster: Cluster) -> None:
    """Refuse a plan for another model, or for more workers than the cluster has."""
    check_layers(plan, profile)
    if plan.workers > cluster.workers:
        raise PipelagError(f"the plan needs {plan.workers} workers, but the cluster has {cluster.workers}")


def check_state(state: float) -> None:
    """Refuse an optimizer's state, in bytes per byte of weights, that is not a finite number from 0 on."""
    if not (isinstance(state, Real) and 0 <= state < inf):
        raise PipelagError(f"state is {shown(state)}; it should be a number from 0 on, such as 2 for Adam's")


def predict(profile: Profile, cluster: Cluster, plan: Plan, communication: str = "paper") -> float:
    """The seconds per minibatch by PipeDream's cost model (section 3.1): those of the slowest stage or boundary.

    communication: see `partition`; the cost of "paper" has no latencies.
    """
    check_plan(plan, profile, cluster)
    sync, seconds, places = sync_of(communication), 0.0, placement(plan)
    cluster = cluster.without_latency() if communication == "paper" else cluster
    for stage, place in zip(plan.stages, places, strict=True):
        layers = profile.layers[stage.first - 1 : stage.last]
        compute = sum(layer.total_ms for layer in layers) / 1e3
        send = 0.0
        if stage.replicas > 1:
            link, rings = cluster.link(place[0], place[-1]), sum(layer.weight_bytes > 0 for layer in layers)
            send = sync(sum(layer.weight_bytes for layer in layers), stage.replicas, link.bandwidth)
            send += summed_messages(stage.replicas) * link.latency * rings
        seconds = max(seconds, max(compute, send) / stage.replicas)
    for stage, (a, b) in zip(plan.stages[:-1], pairwise(places), strict=True):
        seconds = max(seconds, 2 * cluster.between(a, b).seconds(profile.layers[stage.last - 1].output_bytes))
    return seconds


def bytes_per_minibatch(profile: Profile, plan: Plan) -> float:
    """The bytes that all workers send for one minibatch: activations, their gradients, and gradients of weights.

    A stage of r replicas sums its gradients once per r minibatches, and sends 2 (r-1) |w| for that (section 3.1,
    `summed_bytes`).
    """
    check_layers(plan, profile)
    sent = 0.0
    for number, stage in enumerate(plan.stages):
        layers = profile.layers[stage.first - 1 : stage.last]
        sent += summed_bytes(sum(layer.weight_bytes for layer in layers), stage.replicas) / stage.replicas
        if number < len(plan.stages) - 1:
            sent += 2 * layers[-1].output_bytes
    return sent


def memory_of(profile: Profile, plan: Plan, depth: int | None = None, state: float = 0.0) -> list[float]:
    """The peak bytes of a worker of each stage under weight stashing.

    They are the weights and activations of every minibatch under way, the gradients, and the optimizer's state.

    Args:
        depth: minibatches under way per replica of the first stage; None: NOAM.
        state: bytes of the optimizer's state per byte of weights.
    """
    check_layers(plan, profile)
    check_state(state)
    held: list[float] = []
    for stage, versions in zip(plan.stages, plan.versions(depth), strict=True):
        layers = profile.layers[stage.first - 1 : stage.last]
        weights = sum(layer.weight_bytes for layer in layers)
        entering = profile.layers[stage.first - 2].output_bytes if stage.first > 1 else 0
        kept = entering + sum(layer.kept_bytes for layer in layers)
        held.append(versions * (weights + kept) + weights * (1 + state))
    return held


def stage_costs(profile: Profile, cluster: Cluster, plan: Plan, recompute: bool = False) -> list[StageCost]:
    """The stages' costs for the timed executor.

    The backward of a replicated stage lasts until its gradients are summed: for every layer with weights, a ring starts
    as soon as the layer's gradients are ready (`wait_free`). Replicas are assumed not to wait for one another. How
    much of such a backward a schedule may compute apart (W) is not known.

    Args:
        recompute: a stage's forward runs again before its backward.
    """
    check_plan(plan, profile, cluster)
    costs = profile.cut(plan.cuts, recompute=recompute)
    timed = []
    for stage, place, cost in zip(plan.stages, placement(plan), costs, strict=True):
        layers = profile.layers[stage.first - 1 : stage.last]
        backward = cost.backward
        if stage.replicas > 1:
            link, count = cluster.link(place[0], place[-1]), stage.replicas
            backward = wait_free(
                [layer.backward_ms / 1e3 for layer in layers],
                [layer.weight_bytes for layer in layers],
                lambda size, link=link, count=count: link.ring_seconds(size, count),
                cost.forward * recompute,
            )
        timed.append(
            StageCost(
                cost.forward,
                backward,
                output_bytes=cost.output_bytes,
                kept_bytes=cost.kept_bytes,
                weight_bytes=cost.weight_bytes,
                weight_gradient=cost.weight_gradient if stage.replicas == 1 else None,
            )
        )
    return timed


def links(cluster: Cluster, plan: Plan) -> Topology:
    """The links between stages, all as slow as the plan's slowest boundary."""
    return slowest(cluster.between(a, b) for a, b in pairwise(placement(plan)))


def rounds(replicas: Sequence[int], minibatches: int) -> Schedule:
    """The schedule of hybrid parallelism without pipelining (PipeDream section 5.3, Figure 14b).

    A round has as many minibatches as the widest stage has replicas; they go through the stages together. A worker
    performs all its passes of a round before those of the next.
    """
    width, rows = max(replicas), []
    for stage, count in enumerate(replicas, start=1):
        for replica in range(count):
            row: list[Action] = []
            for begin in range(0, minibatches, width):
                own_minibatches = [m for m in range(begin, min(begin + width, minibatches)) if m % count == replica]
                row += [Action("F", stage, m) for m in own_minibatches]
                for m in own_minibatches:
                    row += [Action("B", stage, m), Action("U", stage, m)]
            rows.append(tuple(row))
    return Schedule("rounds", len(replicas), minibatches, tuple(rows))


def time_plan(
    profile: Profile,
    cluster: Cluster,
    plan: Plan,
    minibatches: int | None = None,
    schedule: Callable[[int], Schedule] | None = None,
) -> Timing:
    """Time a plan under 1F1B-RR, or another schedule, with the timed executor.

    Args:
        minibatches: their number; None: enough for a steady state.
        schedule: makes the schedule of a number of minibatches over the same stages and workers (such as `rounds`);
            None: 1F1B-RR.
    """
    replicas = [stage.replicas for stage in plan.stages]
    count = 12 * plan.workers if minibatches is None else minibatches
    check_counts(len(replicas), count, 1)
    chosen = schedule(count) if schedule else one_f_one_b_rr(len(replicas), count, replicas)
    return time_schedule(chosen, stage_costs(profile, cluster, plan), links(cluster, plan), plan.versions())


def timed_period(
    profile: Profile,
    cluster: Cluster,
    plan: Plan,
    schedule: Callable[[int], Schedule] | None = None,
    recompute: bool = False,
) -> float:
    """The seconds per minibatch in the steady state under 1F1B-RR, or another schedule (see `time_plan`).

    Where the pace does not settle, it is the mean over the second half of a run.
    """
    replicas = [stage.replicas for stage in plan.stages]
    costs, between = stage_costs(profile, cluster, plan, recompute), links(cluster, plan)
    build = schedule or (lambda count: one_f_one_b_rr(len(replicas), count, replicas))
    round_ = lcm(*replicas)
    try:
        return steady_seconds(build, costs, between, period=round_, ahead=2 * plan.workers)
    except Unsettled:
        half = -(-16 * plan.workers // round_) * round_
        short, long = (time_schedule(build(count), costs, between).makespan for count in (half, 2 * half))
        return (long - short) / half


def describe(profile: Profile, plan: Plan) -> list[dict[str, Any]]:
    """One row per stage: its layers, replicas, times in milliseconds, sizes in bytes, and versions."""
    rows = []
    for number, (stage, versions) in enumerate(zip(plan.stages, plan.versions(), strict=True), start=1):
        layers = profile.layers[stage.first - 1 : stage.last]
        rows.append(
            {
                "stage": number,
                "first": stage.first,
                "last": stage.last,
                "replicas": stage.replicas,
                "forward_ms": sum(layer.forward_ms for layer in layers),
                "backward_ms": sum(layer.backward_ms for layer in layers),
                "weight_bytes": sum(layer.weight_bytes for layer in layers),
                "output_bytes": layers[-1].output_bytes if number < len(plan.stages) else 0,
                "versions": versions,
            }
        )
    return rows
