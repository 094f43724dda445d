"""The partitioner: PipeDream's hierarchical dynamic program (section 3.1), vectorised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from numbers import Real
from types import NoneType
from typing import Any

import numpy as np

from pipelag.errors import PipelagError, expect, shown
from pipelag.partitioner.cluster import Cluster, Level, sync_of
from pipelag.partitioner.plan import Plan, PlanStage, check_state, memory_of
from pipelag.timing.costs import summed_messages
from pipelag.timing.layers import LayerTime, Profile

LEAST_MS = 1e-9  # milliseconds of all layers; below, minibatches per second have no meaning
MOST_WORK = 3 * 10**11  # (layers x workers) squared; the search does 1 to 2 x 10^9 of it per second


def partition(
    profile: Profile,
    cluster: Cluster,
    communication: str = "ring",
    straight: bool = False,
    hierarchical: bool | None = None,
    data_parallel: bool = True,
    state: float = 0.0,
) -> Plan:
    """Find the plan with the shortest predicted time per minibatch, as PipeDream's partitioner does (section 3.1).

    Args:
        communication: the cost of summing gradients: "ring", the cost of a ring all-reduce, or "paper", the cost as the
            paper's recurrence prints it (`SYNC`). The ring's cost includes the latencies of the levels: one for the
            output at a boundary, one for its gradient, and 2 (m-1) for each layer with weights that m replicas sum. The
            printed cost has no latencies.
        straight: True: one stage per worker, without replicas.
        hierarchical: True: only plans that follow the levels, as the recurrence does. False: only plans over the
            collapsed cluster, where the replicas of a stage may span servers (15-1). None: the better of the two. A
            memory limit is only searched under over the collapsed cluster; the best plan by levels is used if it fits
            anyway.
        data_parallel: whether plans may be plain data parallelism, the whole model on every worker. False: at least two
            stages.
        state: bytes of the optimizer's state per byte of weights, such as 2 for Adam. They count if memory is limited.

    Raises:
        PipelagError: a profile without times, fewer layers than workers for a straight plan, True for `hierarchical`
            with a memory limit, or no plan that fits into the workers' memory.
    """
    expect("the profile", profile, Profile, "a pipelag.Profile, such as pipelag.profile(model, inputs)")
    expect("the cluster", cluster, Cluster, "a pipelag.Cluster, such as pipelag.Cluster.load('cluster.yaml')")
    expect("straight", straight, bool, "True or False")
    expect("hierarchical", hierarchical, (bool, NoneType), "True, False or None")
    expect("data_parallel", data_parallel, bool, "True or False")
    expect("communication", communication, str, "'ring' or 'paper'")
    check_times(profile)
    check_state(state)
    sync_of(communication)
    cluster = cluster.without_latency() if communication == "paper" else cluster
    if (len(profile.layers) * cluster.workers) ** 2 > MOST_WORK:
        raise PipelagError(
            f"{len(profile.layers)} layers on {cluster.workers:,} workers would take too long to search; "
            "plan for fewer workers, or merge layers"
        )
    if straight and cluster.workers > len(profile.layers):
        raise PipelagError(
            f"a straight plan for {cluster.workers} workers needs at least as many layers, but the profile has "
            f"{len(profile.layers)}"
        )
    if not data_parallel and min(cluster.workers, len(profile.layers)) < 2:
        raise PipelagError("two stages need two workers and two layers; allow data parallelism")
    limited = cluster.memory < float("inf")
    if limited and hierarchical:
        raise PipelagError(
            "a memory limit can only be kept over the collapsed cluster, because the number of versions of a stage "
            "depends on the stages after it; leave hierarchical out"
        )
    plans: list[Plan | None] = []
    by_levels = not straight and hierarchical is not False and len(cluster.levels) > 1
    if by_levels:
        unlimited = replace(cluster, memory=inf)
        plan = _search(profile, unlimited, communication, straight, data_parallel, state)
        if plan is not None and (not limited or max(memory_of(profile, plan, state=state)) <= cluster.memory):
            plans.append(plan)
    if not by_levels or hierarchical is None:
        plans.append(_search(profile, cluster.collapsed(), communication, straight, data_parallel, state))
    fitting = [plan for plan in plans if plan is not None]
    if not fitting:
        raise PipelagError(
            f"no plan fits: with {cluster.memory / 2**30:.3g} GiB per worker even the smallest stages need too much "
            "memory; use more workers, a smaller minibatch, or recomputation"
        )
    # Compare each plan by its own search's period. `predict` would differ: it takes the links between the plan's own
    # workers, and does not sum gradients level by level.
    return min(fitting, key=lambda plan: plan.period or 0.0)


def check_times(profile: Profile) -> None:
    """Refuse profiles whose layers take no time, and times or sizes that are no finite numbers from 0 on."""
    if not profile.layers:
        raise PipelagError("the profile has no layers")
    for layer in profile.layers:
        expect("a layer of the profile", layer, LayerTime, "a pipelag.timing.layers.LayerTime")
        for name in ("forward_ms", "backward_ms", "output_bytes", "kept_bytes", "weight_bytes"):
            value = getattr(layer, name)
            is_number = isinstance(value, Real)
            if not (is_number and 0 <= value < inf):
                raise PipelagError(
                    f"layer {layer.layer} '{layer.name}' has {name} {shown(value)}; it should be a number from 0 on; "
                    "profile the model again"
                )
    if sum(layer.total_ms for layer in profile.layers) < LEAST_MS:
        raise PipelagError(
            "all layers of the profile take no time; profile the model, or give the times in milliseconds"
        )


def _search(
    profile: Profile, cluster: Cluster, communication: str, straight: bool, data_parallel: bool, state: float
) -> Plan | None:
    layers = profile.layers
    count = len(layers)
    time = np.concatenate([[0.0], np.cumsum([layer.total_ms / 1e3 for layer in layers])])
    weights = np.concatenate([[0.0], np.cumsum([float(layer.weight_bytes) for layer in layers])])
    rings = np.concatenate([[0], np.cumsum([layer.weight_bytes > 0 for layer in layers])])
    output = np.array([float(layer.output_bytes) for layer in layers])
    upper = np.triu(np.ones((count, count), dtype=bool))
    between = np.where(upper, weights[1:][None, :] - weights[:-1][:, None], 0.0)  # weight bytes of layers i..j
    summed = np.where(upper, rings[1:][None, :] - rings[:-1][:, None], 0)  # layers of i..j with gradients to sum
    inner = np.where(upper, time[1:][None, :] - time[:-1][:, None], np.inf)  # A^0(i -> j): their time
    if not data_parallel:
        inner[0, -1] = np.inf  # no worker may have all layers; several servers may each hold a whole pipeline
    solved: list[_Level] = []
    for number, level in enumerate(cluster.levels):
        top = number == len(cluster.levels) - 1
        limit = _Limit(profile, cluster, state) if top and cluster.memory < float("inf") else None
        stage = _Stage(level, inner, between, summed, sync_of(communication), straight)
        solved.append(_Level(stage, 2 * (level.latency + output / level.bandwidth), top, limit))
        inner = solved[-1].best[:, level.workers]
    period = float(inner[0, count - 1])
    if not np.isfinite(period):
        return None
    stages = tuple(_stages(solved, len(solved) - 1, 0, count - 1, cluster.levels[-1].workers, 1))
    return Plan(tuple(PlanStage(i + 1, j + 1, replicas) for i, j, replicas in stages), period)


class _Stage:
    """T^k(i -> j, m): the seconds of a stage that is replicated on m components of the level below."""

    def __init__(
        self, level: Level, inner: np.ndarray, between: np.ndarray, summed: np.ndarray, sync: Any, straight: bool
    ) -> None:
        self.level, self.inner, self.between, self.summed = level, inner, between, summed
        self.sync, self.straight = sync, straight
        self.replicas = np.arange(1, level.workers + 1)[:, None]
        self.messages = np.array([[summed_messages(m)] for m in range(1, level.workers + 1)])

    def seconds(self, i: Any, j: Any) -> np.ndarray:
        """[m, layers], m from 1: the seconds of the stages of layers `i` to `j`, one of which is a slice."""
        inner, weights = self.inner[i, j][None, :], self.between[i, j][None, :]
        sent = self.sync(weights, self.replicas, self.level.bandwidth)
        if self.level.latency:
            sent += self.messages * self.level.latency * self.summed[i, j][None, :]
        seconds = np.maximum(inner, sent) / self.replicas
        seconds[0] = inner
        if self.straight:
            seconds[1:] = np.inf
        return seconds


class _Limit:
    """The limit on memory: a stage holds versions of weights and activations, gradients and state (`plan.memory_of`).

    A stage holds ceil(workers from this stage on / its replicas) versions.
    """

    def __init__(self, profile: Profile, cluster: Cluster, state: float) -> None:
        layers = profile.layers
        weights = np.concatenate([[0.0], np.cumsum([float(layer.weight_bytes) for layer in layers])])
        activations = np.concatenate([[0.0], np.cumsum([float(layer.kept_bytes) for layer in layers])])
        entering = np.array([0.0, *(float(layer.output_bytes) for layer in layers[:-1])])
        self.weights = weights[1:][None, :] - weights[:-1][:, None]
        self.stashed = self.weights + activations[1:][None, :] - activations[:-1][:, None] + entering[:, None]
        self.once = self.weights * (1 + state)
        self.memory, self.workers = cluster.memory, cluster.workers

    def keep(self, seconds: np.ndarray, i: Any, j: Any, before: int) -> np.ndarray:
        """The seconds of these stages, [m, layers], infinite where a stage with `before` workers before it does not
        fit.
        """
        replicas = np.arange(1, len(seconds) + 1)[:, None]
        versions = -(-(self.workers - before) // replicas)
        return np.where(versions * self.stashed[i, j] + self.once[i, j] <= self.memory, seconds, np.inf)


class _Level:
    """All subproblems of one level: best[i, m, j] = A^k(i -> j, m), with m from 0, where it is infinite.

    The top level needs only the subproblems that begin at the first layer.
    """

    def __init__(self, stage: _Stage, message: np.ndarray, top: bool, limit: _Limit | None) -> None:
        self.stage, self.message, self.limit = stage, message, limit
        self.count, self.total = len(message), stage.level.workers
        begin = 1 if top else self.count  # the number of first layers that are needed
        self.best = np.full((begin, self.total + 1, self.count), np.inf)
        for i in range(begin):
            self.best[i, 1:, i:] = self.whole(i)
        for s in range(self.count - 1):  # the last layer before the last stage
            after = slice(s + 1, None)
            tail = stage.seconds(s + 1, after)
            for i in range(min(s + 1, begin)):
                self.extend(self.best[i, :, after], np.maximum(self.best[i, :, s], message[s]), tail, s)

    def whole(self, i: int) -> np.ndarray:
        """[m, last layers from i on]: the seconds of plans with a single stage that begins at layer i."""
        seconds = self.stage.seconds(i, slice(i, None))
        if self.limit is not None:
            seconds = self.limit.keep(seconds, i, slice(i, None), 0)
        return seconds

    def extend(self, best: np.ndarray, front: np.ndarray, tail: np.ndarray, s: int) -> None:
        """Consider the plans whose last stage begins right after layer s.

        Args:
            best: [m, last layers], lowered where these plans are better.
            front: [m], the seconds of the stages up to s and of the message behind them.
            tail: [m, last layers], the seconds of the last stage.
        """
        worst = np.maximum.accumulate(best.max(axis=1)[::-1])[::-1]
        scratch = np.empty_like(tail)
        for before in range(1, self.total):
            if front[before] >= worst[before + 1]:
                continue  # no entry can improve
            last = tail[: self.total - before]
            if self.limit is not None:
                last = self.limit.keep(last, s + 1, slice(s + 1, None), before)
            here = np.maximum(last, front[before], out=scratch[: len(last)])
            np.minimum(best[before + 1 :], here, out=best[before + 1 :])

    def split(self, i: int, j: int, m: int) -> tuple[int, int]:
        """The best plan's last layer before its last stage, and that stage's m'; (-1, m): it has only one stage.

        Among equally good plans, the one with the smallest m', then the fewest layers before the last stage.
        """
        least = self.best[i, m, j]
        if self.whole(i)[m - 1, j - i] == least:
            return -1, m
        seconds = self.stage.seconds(slice(i + 1, j + 1), j)[: m - 1]
        front = np.maximum(self.best[i, m - 1 : 0 : -1, i:j], self.message[i:j])
        if self.limit is not None:
            for last in range(1, m):
                fitting = self.limit.keep(seconds[:last], slice(i + 1, j + 1), j, m - last)
                seconds[last - 1] = fitting[last - 1]
        last, s = np.argwhere(np.maximum(front, seconds) == least)[0].tolist()
        return i + s, last + 1


def _stages(solved: list[_Level], level: int, i: int, j: int, m: int, replicas: int) -> Iterator[tuple[int, int, int]]:
    """The stages (first layer, last layer, workers) of A^level(i -> j, m), each on `replicas` times its own workers."""
    if level < 0:
        yield i, j, replicas
        return
    s, last = solved[level].split(i, j, m)
    inner = (level - 1, solved[level - 1].total if level else 1)
    if s < 0:
        yield from _stages(solved, inner[0], i, j, inner[1], replicas * m)
        return
    yield from _stages(solved, level, i, s, m - last, replicas)
    yield from _stages(solved, inner[0], s + 1, j, inner[1], replicas * last)
