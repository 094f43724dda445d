"""Log rows of the plans in PipeDream's paper over one network and cluster, each timed by the timed executor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pipelag.partitioner.cluster import SYNC, Cluster
from pipelag.partitioner.given import plan_given
from pipelag.partitioner.options import PlanOptions
from pipelag.partitioner.plan import (
    Plan,
    PlanStage,
    bytes_per_minibatch,
    describe,
    links,
    memory_of,
    predict,
    rounds,
    stage_costs,
    timed_period,
)
from pipelag.partitioner.search import partition
from pipelag.schedules import Schedule
from pipelag.schedules.library import gpipe, one_f_one_b_rr, sequential
from pipelag.timing.layers import Profile
from pipelag.timing.timed import time_schedule

Row = dict[str, Any]


def whole(profile: Profile, workers: int) -> Plan:
    """The plan of data parallelism: one stage with all layers on all workers."""
    return Plan((PlanStage(1, len(profile.layers), workers),))


def plan_rows(profile: Profile, cluster: Cluster, options: PlanOptions) -> Iterator[Row]:
    """One row per plan that a run's options ask for (see `pipelag.runs.kinds.partition.partition`)."""
    count = cluster.workers
    measure = partial(row_of, profile, cluster)
    if count > 1 and options.search:
        yield measure("data parallel", whole(profile, count))
        for name, communication in (("PipeDream", "paper"), ("PipeDream, ring", "ring")):
            begun = time.perf_counter()
            chosen = partition(profile, cluster, communication)
            yield measure(name, chosen) | {"search_seconds": time.perf_counter() - begun}
    if options.compare:
        yield from compared(profile, cluster)
    for name, given in options.given.items():
        yield measure(name, plan_given(profile, cluster, name, given))
    straight = count <= len(profile.layers) and (options.depths or options.gpipe)
    if straight:
        line = partition(profile, cluster, "ring", straight=True)
        for depth in options.depths:
            at = partial(one_f_one_b_rr, len(line.stages), replicas=[1] * count, depth=depth)
            held = {"depth": depth, "versions": line.versions(depth)}
            yield measure(f"depth {depth}", line, lambda n, at=at: at(n), memory=memory_of(profile, line, depth)) | held  # type: ignore[misc]
        if options.gpipe:
            yield from under_gpipe(profile, cluster, line, options.gpipe.memory)
    for n in options.data_parallel_over:
        part = cluster.first(n)
        (cost,) = stage_costs(profile, part, whole(profile, n))
        compute = sum(layer.total_ms for layer in profile.layers) / 1e3
        step = cost.forward + cost.backward
        if not options.overlap and n > 1:
            step = compute + part.link(0, n - 1).ring_seconds(cost.weight_bytes, n)
        timed = None if options.overlap else step / n
        alone = row_of(profile, part, f"data parallel over {n}", whole(profile, n), timed=timed)
        yield alone | {"workers": n, "overhead": 1 - compute / step}
    if options.sweep:
        for number, one in enumerate(swept(profile, count), start=1):
            yield measure(f"partition {number}", one)


def compared(profile: Profile, cluster: Cluster) -> Iterator[Row]:
    """Rows of the best plan of several stages, with and without pipelining, a straight pipeline, model parallelism."""
    count = cluster.workers
    measure = partial(row_of, profile, cluster)
    several = partition(profile, cluster, "ring", data_parallel=False)
    yield measure("several stages", several)
    replicas = [stage.replicas for stage in several.stages]
    yield measure("several stages, not pipelined", several, lambda n: rounds(replicas, n))
    if count <= len(profile.layers):
        line = partition(profile, cluster, "ring", straight=True)
        yield measure("straight", line)
        yield measure("model parallel", line, lambda n: sequential(len(line.stages), n))


def under_gpipe(profile: Profile, cluster: Cluster, line: Plan, memory: float) -> Iterator[Row]:
    """Rows of the straight plan under GPipe, with NOAM microbatches between flushes, or as many as memory holds.

    A microbatch has the size of the profile's minibatch. GPipe recomputes, so that a stage keeps the inputs of all
    microbatches and the activations of one. A row says whether it fits, because even one microbatch may not.
    """
    stages = len(line.stages)
    costs = [
        replace(cost, backward=cost.backward + cost.forward, kept_bytes=inputs)
        for cost, inputs in zip(stage_costs(profile, cluster, line), entering(profile, line), strict=True)
    ]
    alone = memory_of(profile, line, 1)  # weights, gradients, and one microbatch's input and activations
    more = [(memory - fixed) // cost.kept_bytes for fixed, cost in zip(alone, costs, strict=True) if cost.kept_bytes]
    most = max(1, int(min([*(1 + beside for beside in more), 8 * stages])))  # with 8 per stage the bubble is below 1/9
    for name, micro in (("GPipe, NOAM", line.noam), ("GPipe, most that fit", most)):
        short, long = (time_schedule(gpipe(stages, n, micro), costs, links(cluster, line)).makespan for n in (2, 4))
        held = [fixed + (micro - 1) * cost.kept_bytes for fixed, cost in zip(alone, costs, strict=True)]
        yield row_of(profile, cluster, name, line, memory=held, timed=(long - short) / (2 * micro)) | {
            "microbatches": micro,
            "fits": max(held) <= memory,  # a single microbatch may not fit either
        }


def entering(profile: Profile, line: Plan) -> list[float]:
    """The bytes of each stage's input; 0 for the first stage."""
    return [0.0, *(float(profile.layers[stage.last - 1].output_bytes) for stage in line.stages[:-1])]


def row_of(
    profile: Profile,
    cluster: Cluster,
    name: str,
    chosen: Plan,
    schedule: Callable[[int], Schedule] | None = None,
    memory: list[float] | None = None,
    timed: float | None = None,
) -> Row:
    """A plan's row of the log: stages, predicted and timed seconds per minibatch, bytes sent, bytes held.

    Predictions are given with both forms of the cost of summing gradients.

    Args:
        schedule: makes the schedule of a number of minibatches; None: 1F1B-RR.
        memory: bytes per stage, in place of the plan's; timed: seconds per minibatch, in place of the plan's.
    """
    return {
        "plan": name,
        "config": chosen.config,
        "stages": describe(profile, chosen),
        "predicted": {form: predict(profile, cluster, chosen, form) for form in SYNC},
        "timed": timed_period(profile, cluster, chosen, schedule) if timed is None else timed,
        "bytes": bytes_per_minibatch(profile, chosen),
        "memory": memory or memory_of(profile, chosen),
    }


def swept(profile: Profile, workers: int) -> Iterator[Plan]:
    """Plans of all kinds: data parallelism, two stages with each possible cut, three stages whose last two have one
    worker each.
    """
    layers = len(profile.layers)
    yield whole(profile, workers)
    for cut in range(1, layers):
        for tail in sorted({1, 2, workers // 4, workers // 2} & set(range(1, workers))):
            yield Plan((PlanStage(1, cut, workers - tail), PlanStage(cut + 1, layers, tail)))
    for cut in range(2, layers - 1, 2) if workers > 2 else ():
        yield Plan((PlanStage(1, cut, workers - 2), PlanStage(cut + 1, layers - 1, 1), PlanStage(layers, layers, 1)))
