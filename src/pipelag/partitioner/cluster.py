"""Machines as the partitioner sees them: levels of workers joined by links (PipeDream section 3.1, Figure 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from pipelag.errors import PipelagError, expect, shown, unknown
from pipelag.files import read_yaml
from pipelag.timing.costs import Topology, ring_seconds, summed_bytes, summed_messages
from pipelag.typed import MOST_WORKERS, Typed, checked


class LevelOptions(Typed):
    """A level in a file: its workers, bytes per second, and seconds per message."""

    workers: int = Field(ge=1, le=MOST_WORKERS)
    bandwidth: float = Field(gt=0, le=1e18)
    latency: float = Field(default=0.0, ge=0, le=1e9)


class ClusterOptions(Typed):
    """A cluster in a file: its levels, and the bytes of a worker's memory (None: no limit)."""

    levels: list[LevelOptions] = Field(min_length=1, max_length=4)
    memory: float | None = Field(default=None, gt=0, le=1e18)
    note: str = ""

    @model_validator(mode="after")
    def _fits(self) -> ClusterOptions:
        workers = prod(level.workers for level in self.levels)
        if workers > MOST_WORKERS:
            raise ValueError(f"{workers:,} workers are too many for the search; the limit is {MOST_WORKERS:,}")
        return self


@dataclass(frozen=True)
class Level:
    """One level of a cluster: `workers` components of the level below (m_k), joined by links.

    bandwidth: bytes per second of a link (B_k).
    latency: seconds that every message takes besides, from GPU to GPU. The paper's cost has none (section 3.1).
    """

    workers: int
    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        whole, number = isinstance(self.workers, int), isinstance(self.bandwidth, Real)
        if not (whole and number and self.workers >= 1 and self.bandwidth > 0):
            raise PipelagError(
                "a level needs 1 or more workers and a bandwidth above 0, not "
                f"{shown(self.workers)} and {shown(self.bandwidth)}"
            )
        if not (isinstance(self.latency, Real) and 0 <= self.latency < inf):
            raise PipelagError(
                f"a level's latency is {shown(self.latency)}; it should be a finite number of seconds from 0 on"
            )


@dataclass(frozen=True)
class Cluster:
    """The workers to plan for.

    levels: from the innermost (the GPUs of a server) outwards.
    memory: bytes per worker; unlimited by default.
    """

    levels: tuple[Level, ...]
    memory: float = field(default=inf)

    def __post_init__(self) -> None:
        if not self.levels:
            raise PipelagError("a cluster needs at least one level of workers")
        if not (isinstance(self.levels, (tuple, list)) and all(isinstance(level, Level) for level in self.levels)):
            raise PipelagError(
                f"a cluster's levels should each be a Level(workers, bandwidth), not {shown(self.levels)}; use "
                "Cluster.of for mappings"
            )
        if not (isinstance(self.memory, Real) and self.memory > 0):
            raise PipelagError(f"a worker's memory must be above 0 bytes, not {shown(self.memory)}")

    @property
    def workers(self) -> int:
        """The number of all workers, m_1 x m_2 x ..."""
        return prod(level.workers for level in self.levels)

    def collapsed(self) -> Cluster:
        """The same workers on one level with the slowest links, so that a stage may have any number of replicas.

        The hierarchical recurrence replicates whole servers, so it cannot express a plan such as 15-1 on 4x4.
        """
        link = self.link(0, self.workers - 1)
        return Cluster((Level(self.workers, link.bandwidth, link.latency),), self.memory)

    def first(self, workers: int) -> Cluster:
        """The part of the cluster that so many workers fill, server by server; it may need further servers."""
        levels: list[Level] = []
        left = workers
        for number, level in enumerate(self.levels, start=1):
            if left == 1 and levels:
                break
            last = number == len(self.levels)
            levels.append(replace(level, workers=left if last else min(left, level.workers)))
            left = -(-left // level.workers)
        return Cluster(tuple(levels), self.memory)

    def link(self, first: int, last: int) -> Topology:
        """The slowest link among workers `first` to `last` (numbered from 0, server by server).

        A message that crosses several levels has the smallest of their bandwidths and the largest of their latencies.
        """
        size, crossed = 1, []
        for level in self.levels:
            if first // size == last // size:
                break
            crossed.append(level)
            size *= level.workers
        return slowest(crossed)

    def line(self, workers: int) -> Cluster:
        """Exactly so many workers of the cluster on one level, joined by their slowest link, for a straight plan."""
        link = self.first(workers).link(0, workers - 1)
        return flat(workers, link.bandwidth, link.latency)

    def without_latency(self) -> Cluster:
        """The cluster without latencies, as in the paper's cost (section 3.1)."""
        return replace(self, levels=tuple(replace(level, latency=0.0) for level in self.levels))

    def between(self, before: range, after: range) -> Topology:
        """The slowest link that minibatches take from one stage's workers (`before`) to the next one's (`after`).

        Minibatch m goes from replica m mod |before| to replica m mod |after|, so not every pair communicates. But where
        a server ends between the first worker and the last one, some pair crosses it: that of the last worker, or, if
        its partner is on this side as well, that of the first.
        """
        return self.link(before[0], after[-1])

    @classmethod
    def of(cls, content: Mapping[str, Any], workers: int | None = None) -> Cluster:
        """A cluster from a mapping {levels: [{workers, bandwidth, latency}, ...], memory}.

        Args:
            workers: the number of workers that the cluster should have; None: any.

        Raises:
            PipelagError: the mapping does not fit, or the cluster has another number of workers.
        """
        options = checked(ClusterOptions, content, "key of a cluster")
        cluster = cls(
            tuple(Level(one.workers, one.bandwidth, one.latency) for one in options.levels), options.memory or inf
        )
        if workers is not None and cluster.workers != workers:
            product = " x ".join(str(level.workers) for level in cluster.levels)
            held = f"levels hold {product} =" if len(cluster.levels) > 1 else "level holds"
            raise PipelagError(f"the {held} {cluster.workers} workers, not the {workers} asked for")
        return cluster

    @classmethod
    def load(cls, path: Path | str, workers: int | None = None) -> Cluster:
        """Read a cluster from a YAML file; see `of`."""
        expect("the cluster's file", path, (str, PathLike), "a path")
        content = read_yaml(Path(path), "a cluster file")
        if not isinstance(content, dict):
            raise PipelagError(f"'{path}' is not a cluster file: it must have the key levels")
        try:
            return cls.of(content, workers)
        except PipelagError as error:
            raise PipelagError(f"'{path}': {error}") from error


def flat(workers: int, bandwidth: float = inf, latency: float = 0.0) -> Cluster:
    """A cluster with one level of equal workers."""
    return Cluster((Level(workers, bandwidth, latency),))


def slowest(links: Iterable[Level | Topology]) -> Topology:
    """A link as slow as the slowest of these, with the least bandwidth and the largest latency; of none: no limits."""
    among = list(links)
    return Topology(
        min((link.bandwidth for link in among), default=inf), max((link.latency for link in among), default=0.0)
    )


def paper_seconds(size: float, workers: int, bandwidth: float) -> float:
    """The seconds of summing gradients as PipeDream's recurrence prints them: 2 (m-1) |w| / B, without latency.

    This is m times what a ring of m workers takes (ambiguity C4).
    """
    return summed_bytes(size, workers) / bandwidth


def server_seconds(size: float, workers: int, bandwidth: float, latency: float = 0.0) -> float:
    """The seconds of summing gradients on one of the workers, whose link carries all gradients and then all sums."""
    return summed_bytes(size, workers) / bandwidth + summed_messages(workers) * latency * (size > 0)


SYNC = {"paper": paper_seconds, "ring": ring_seconds}
GATHER = {"ring": ring_seconds, "server": server_seconds}


def sync_of(name: str) -> Any:
    """The function for the cost of summing gradients among a stage's replicas, by name.

    Raises:
        PipelagError: an unknown name (the message names the nearest).
    """
    if name not in SYNC:
        raise unknown("form of the communication cost", name, SYNC)
    return SYNC[name]


def wait_free(backward: Sequence[float], sizes: Sequence[float], seconds: Any, before: float = 0.0) -> float:
    """The seconds of a backward during which gradients are summed as they become ready (wait-free backpropagation).

    The last layer's gradients are ready first.

    Args:
        backward: seconds of the layers' backwards, first layer first; sizes: bytes of their weights.
        seconds: gives the seconds of summing gradients of so many bytes.
        before: seconds before the last layer's backward, in which forwards run again.
    """
    computed, sent = before, 0.0
    for of_layer, size in zip(reversed(backward), reversed(sizes), strict=True):
        computed += of_layer
        if size:
            sent = max(sent, computed) + seconds(size)
    return max(computed, sent)
