"""The job of one launch: its processes, their groups and channels, and how they meet and leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from pipelag.distributed import channel
from pipelag.distributed.channel import Channel
from pipelag.distributed.heartbeat import Heartbeat
from pipelag.distributed.p2p import Wire, reaching
from pipelag.distributed.routes import Route
from pipelag.schedules import Schedule
from pipelag.schedules.actions import in_flight

ENDLESS = timedelta(days=365)  # the timeout of a message: a minibatch may take hours, and heartbeats detect dead ranks
AHEAD = 2  # messages that a worker may be ahead of its neighbour, beyond its microbatches under way


@dataclass
class Job:
    """What the processes of one launch share.

    groups: process groups over all ranks, by what is sent in them and a number. Activations and gradients have
        connections of their own, so that neither waits for the other (with nccl that could deadlock).
    shared: the ranks of a machine compute on one GPU, and send through the CPU's memory (gloo), because nccl needs a
        GPU for each rank.
    near: the ranks of this machine that can send through shared memory (`pipelag.distributed.channel`).
    channels: the channels of the present phase's routes; None: the route's two ranks cannot have one.
    """

    rank: int
    world: int
    device: torch.device
    store: Any  # torch.distributed.Store
    heart: Heartbeat | None = None
    groups: dict[tuple[str, int], dist.ProcessGroup] = field(default_factory=dict)
    uneven: bool = False  # minibatches differ in shape
    phases: int = 0  # the number of phases begun, which makes the names of links in the store unique
    met: set[tuple[Any, int, int]] = field(default_factory=set)  # (group, rank, rank) that have exchanged a message
    shares: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict)  # groups of replicas, by their ranks
    shared: bool = False
    near: Sequence[int] = ()
    channels: dict[Route, Channel | None] = field(default_factory=dict)

    @property
    def outside(self) -> torch.device:
        """The device on which messages lie while they are under way."""
        return torch.device("cpu") if self.shared else self.device

    def group(self, kind: str, lane: int = 0, backend: str | None = None) -> dist.ProcessGroup:
        """A process group over all ranks; all ranks ask for a new one together.

        backend: of a new group; None: the job's.
        """
        if (kind, lane) not in self.groups:
            group = dist.new_group(timeout=ENDLESS, backend=backend or dist.get_backend())
            assert group is not None
            self.groups[kind, lane] = group  # type: ignore[assignment]
        return self.groups[kind, lane]

    def share(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """The process group of a stage's replicas; all ranks ask for a new one together, as torch requires."""
        key = tuple(ranks)
        if key not in self.shares:
            self.shares[key] = dist.new_group(list(key), timeout=ENDLESS)  # type: ignore[assignment]
        return self.shares[key]

    def meet(self, pairs: Iterable[tuple[int, int]], groups: Iterable[dist.ProcessGroup | None]) -> None:
        """Have pairs of ranks exchange a first message in each group, before any schedule runs.

        A backend may connect two ranks at their first message, and block until both reach it (nccl does). All ranks
        call this with the same pairs, which meet in the same order, so that no ranks wait for one another in a circle.
        """
        token = torch.zeros(1, device=self.outside)
        for group in groups:
            for low, high in sorted(set(pairs)):
                if self.rank not in (low, high) or (group, low, high) in self.met:
                    continue
                peer = high if self.rank == low else low
                with reaching(self.rank, peer):
                    for sender in (low, high):
                        talk = dist.isend if sender == self.rank else dist.irecv
                        work = talk(token, peer, group=group)
                        assert work is not None
                        work.wait()
                self.met.add((group, low, high))

    def arrive(self) -> None:
        """Wait without a timeout until every rank has called this; in a collective an idle rank would time out."""
        names = [f"phase{self.phases}/done/{rank}" for rank in range(self.world)]
        self.store.set(names[self.rank], "yes")
        self.store.wait(names, ENDLESS)

    def leave(self, last: bool = False) -> None:
        """Leave the job when this rank's work is done.

        last: this rank holds the store, and waits until the others have left.
        """
        if self.heart is not None:
            self.heart.stop()
            if last:
                self.heart.farewell()

    def open_channels(self, schedule: Schedule, routes: Sequence[Route]) -> None:
        """Open channels for a phase's routes between ranks of one machine; all ranks call this together."""
        self.close_channels()
        unread = cache(lambda rank: in_flight(schedule.workers[rank]) + AHEAD)
        for route in routes:
            low, high = sorted((route.source, route.target))
            if self.rank not in (low, high) or not {low, high} <= set(self.near):
                continue
            if max(unread(low), unread(high)) > channel.MOST_UNREAD:
                continue
            opened = channel.listen if self.rank == low else channel.join
            self.channels[route] = opened(self.store, f"phase{self.phases}/channel/{route.name}")

    def close_channels(self) -> None:
        """Close the channels, once the phase is over on all ranks; this frees the memory of its messages."""
        for opened in self.channels.values():
            if opened is not None:
                opened.close()
        self.channels.clear()

    def wire(self, route: Route) -> Wire:
        """What the link of a route needs of the job, in the present phase."""
        return Wire(
            self.rank,
            self.group(route.kind, route.lane),
            self.store,
            self.outside,
            f"phase{self.phases}/{route.name}",
            self.uneven,
            self.device,
            self.channels.get(route),
        )
