"""The partitioner: PipeDream's hierarchical dynamic program (section 3.1), vectorised."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipelag.errors import PipelagError
from pipelag.partitioner.cluster import Cluster, Level, sync_of
from pipelag.partitioner.plan import Plan, PlanStage
from pipelag.timing.layers import Profile


def partition(
    profile: Profile,
    cluster: Cluster,
    communication: str = "paper",
    straight: bool = False,
    hierarchical: bool | None = None,
    data_parallel: bool = True,
) -> Plan:
    """The plan with the shortest predicted time per minibatch.

    Args:
        communication: the cost of summing gradients: "paper" as the recurrence prints it, or "ring" (`SYNC`).
        straight: no replicas, one stage per worker.
        hierarchical: True: only plans that follow the levels, as the recurrence does; False: only plans over the
            collapsed cluster, where replicas may cross servers (15-1); None: the better of the two.
        data_parallel: whether the whole model on every worker is a plan too; without, there are at least two stages.

    Raises:
        PipelagError: a profile without times, fewer layers than workers for a straight plan, or no plan that fits
            into the workers' memory.
    """
    check_times(profile)
    sync_of(communication)
    if straight and cluster.workers > len(profile.layers):
        raise PipelagError(
            f"a straight plan for {cluster.workers} workers needs as many layers, and the profile has "
            f"{len(profile.layers)}"
        )
    if not data_parallel and min(cluster.workers, len(profile.layers)) < 2:
        raise PipelagError("two stages need two workers and two layers; allow data parallelism")
    limited = cluster.memory < float("inf")
    if limited and hierarchical:
        raise PipelagError(
            "how many versions a stage holds depends on the stages behind it, so a memory limit is kept over the "
            "collapsed cluster only; leave hierarchical out"
        )
    plans = []
    if straight or limited or hierarchical is False or len(cluster.levels) == 1:
        plans.append(_search(profile, cluster.collapsed(), communication, straight, data_parallel))
    else:
        plans.append(_search(profile, cluster, communication, straight, data_parallel))
        if hierarchical is None:
            plans.append(_search(profile, cluster.collapsed(), communication, straight, data_parallel))
    found = [plan for plan in plans if plan is not None]
    if not found:
        raise PipelagError(
            f"no plan fits: with {cluster.memory / 2**30:.3g} GiB per worker even the smallest stages hold too much; "
            "use more workers, a smaller minibatch, or recomputation"
        )
    return min(found, key=lambda plan: plan.period or 0.0)


def check_times(profile: Profile) -> None:
    """Refuse profiles that say nothing about time."""
    if not profile.layers:
        raise PipelagError("the profile has no layers")
    for layer in profile.layers:
        if layer.forward_ms < 0 or layer.backward_ms < 0:
            raise PipelagError(f"layer {layer.layer} '{layer.name}' has a negative time; profile the model again")
    if sum(layer.total_ms for layer in profile.layers) <= 0:
        raise PipelagError(
            "all layers of the profile take no time; profile the model, or give the times in milliseconds"
        )


def _search(profile: Profile, cluster: Cluster, communication: str, straight: bool, data_parallel: bool) -> Plan | None:
    layers = profile.layers
    count = len(layers)
    time = np.concatenate([[0.0], np.cumsum([layer.total_ms / 1e3 for layer in layers])])
    weights = np.concatenate([[0.0], np.cumsum([float(layer.weight_bytes) for layer in layers])])
    output = np.array([float(layer.output_bytes) for layer in layers])
    upper = np.triu(np.ones((count, count), dtype=bool))
    between = np.where(upper, weights[1:][None, :] - weights[:-1][:, None], 0.0)  # weight bytes of layers i..j
    inner = np.where(upper, time[1:][None, :] - time[:-1][:, None], np.inf)  # A^0(i -> j): their time
    solved: list[_Solved] = []
    for number, level in enumerate(cluster.levels):
        top = number == len(cluster.levels) - 1
        fits = _fitting(profile, cluster) if top and cluster.memory < float("inf") else None
        solved.append(_Solved(level, inner, between, output, communication, straight, top, fits, data_parallel))
        inner = solved[-1].best[level.workers]
    period = float(inner[0, count - 1])
    if not np.isfinite(period):
        return None
    stages = tuple(_stages(solved, len(solved) - 1, 0, count - 1, cluster.levels[-1].workers, 1))
    return Plan(tuple(PlanStage(i + 1, j + 1, replicas) for i, j, replicas in stages), period)


class _Solved:
    """All subproblems of one level: best[m][i, j] = A^k(i -> j, m) and how it came about.

    On the top level only those that begin at the first layer are needed.
    """

    def __init__(
        self,
        level: Level,
        inner: np.ndarray,
        between: np.ndarray,
        output: np.ndarray,
        communication: str,
        straight: bool,
        top: bool,
        fits: np.ndarray | None,
        data_parallel: bool,
    ) -> None:
        count, total = len(output), level.workers
        sync = sync_of(communication)
        begin = 1 if top else count  # how many first layers are needed
        # T^k(i -> j, m): one stage, replicated on m components of the level below
        replicated = {1: inner}
        for m in range(2, total + 1):
            replicated[m] = (
                np.full_like(inner, np.inf) if straight else np.maximum(inner, sync(between, m, level.bandwidth)) / m
            )
        message = 2 * output / level.bandwidth
        self.best: dict[int, np.ndarray] = {}
        self.split: dict[int, np.ndarray] = {}  # (last layer before the last stage, its m'), or -1
        for m in range(1, total + 1):
            best = replicated[m][:begin].copy()
            if top and not data_parallel:
                best[0, count - 1] = np.inf
            if fits is not None:
                best[~fits[total - m, m][:begin]] = np.inf
            split = np.full((begin, count, 2), -1, dtype=np.int32)
            for last in range(1, m):  # m': components of the last stage
                before, tail = self.best[m - last], replicated[last]
                if fits is not None:
                    tail = np.where(fits[total - m, last], tail, np.inf)
                for s in range(count - 1):
                    rows = min(s + 1, begin)
                    candidate = np.maximum(
                        np.maximum(before[:rows, s], message[s])[:, None], tail[s + 1, s + 1 :][None, :]
                    )
                    here = best[:rows, s + 1 :]
                    better = candidate < here
                    if better.any():
                        here[better] = candidate[better]
                        split[:rows, s + 1 :][better] = (s, last)
            self.best[m], self.split[m] = best, split


def _stages(solved: list[_Solved], level: int, i: int, j: int, m: int, replicas: int) -> Iterator[tuple[int, int, int]]:
    """The stages of A^level(i -> j, m), each on `replicas` times as many workers as the subproblem says."""
    if level < 0:
        yield i, j, replicas
        return
    s, last = solved[level].split[m][i, j]
    inner = (level - 1, _workers(solved, level - 1))
    if s < 0:
        yield from _stages(solved, inner[0], i, j, inner[1], replicas * m)
        return
    yield from _stages(solved, level, i, int(s), m - int(last), replicas)
    yield from _stages(solved, inner[0], int(s) + 1, j, inner[1], replicas * int(last))


def _workers(solved: list[_Solved], level: int) -> int:
    return max(solved[level].best) if level >= 0 else 1


def _fitting(profile: Profile, cluster: Cluster) -> np.ndarray:
    """fits[after, m, i, j]: whether layers i..j on m replicas, with `after` workers behind them, fit into memory.

    As `plan.memory_of` counts: ceil((m + after) / m) versions of weights and activations, and one set of gradients.
    """
    layers, total = profile.layers, cluster.workers
    count = len(layers)
    weights = np.concatenate([[0.0], np.cumsum([float(layer.weight_bytes) for layer in layers])])
    kept = np.concatenate([[0.0], np.cumsum([float(layer.kept_bytes) for layer in layers])])
    entering = np.array([0.0, *(float(layer.output_bytes) for layer in layers[:-1])])
    own = weights[1:][None, :] - weights[:-1][:, None]
    stashed = own + kept[1:][None, :] - kept[:-1][:, None] + entering[:, None]
    fits = np.zeros((total, total + 1, count, count), dtype=bool)
    for after in range(total):
        for m in range(1, total - after + 1):
            fits[after, m] = -(-(m + after) // m) * stashed + own <= cluster.memory
    return fits
