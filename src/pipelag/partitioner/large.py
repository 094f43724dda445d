"""Replicated pipelines on thousands of GPUs: the costs of a method by formulas, and its best layout.

G GPUs hold R replicas of a pipeline. A worker is a GPU or, with tensor parallelism, a few GPUs of a server, each of
which has an equal part of every layer of the worker's stages. An update is of the same minibatch under every layout:
each replica takes an R-th of it in N microbatches, and the replicas of a stage sum their gradients in a ring as these
become ready at the end of the minibatch. Formulas (`pipelag.partitioner.formulas`) stand for what depends on a
schedule. The chosen layout is timed (`Fleet.timed`), and its delays are derived from its schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import isqrt

from pipelag.methods import Method
from pipelag.partitioner import formulas
from pipelag.partitioner.chunks import CHUNKS, cuts_of
from pipelag.partitioner.in_v import in_v
from pipelag.partitioner.layouts import Layout, Machine, Numbers, Work, costs_of
from pipelag.timing.breakdown import steady_seconds
from pipelag.timing.costs import StageCost, ring_seconds
from pipelag.timing.layers import Profile

TIMED = 12  # the number of layouts that are timed: the quickest by the formulas
NEAR = 0.01  # how much longer than the quickest, relatively, a less stale layout may take


@dataclass(frozen=True)
class OnPaper:
    """What the formulas give for a layout.

    seconds: per minibatch.
    memory: bytes of the fullest GPU.
    costs: the stages' costs, for the timed executor.
    """

    seconds: float
    memory: float
    costs: tuple[StageCost, ...]


@dataclass(frozen=True)
class Found:
    """The chosen layout, its costs by the formulas, and its seconds per minibatch by the timed executor."""

    layout: Layout
    paper: OnPaper
    seconds: float


# A layout -------------------------------------------------------------------------------------------------------------


class Fleet:
    """A method on so many GPUs. Without a method: data parallelism, a pipeline of one stage."""

    def __init__(self, machine: Machine, work: Work, method: Method | None, numbers: Numbers, gpus: int) -> None:
        self.machine, self.work, self.method, self.numbers, self.gpus = machine, work, method, numbers, gpus
        self.interleaved = formulas.chunks_of(method) > 1
        self.build = method.build if method is not None and in_v(method) else None
        self.chunks = CHUNKS if self.interleaved else (2,) if self.build else (1,)  # the stages that a worker may have
        self.splits = formulas.splits(method)

    def method_of(self, layout: Layout) -> Method | None:
        """The method with as many stages per worker as in this layout."""
        return formulas.with_chunks(self.method, layout.chunks) if layout.chunks > 1 else self.method

    def layouts(self) -> Iterator[Layout]:
        """All layouts: every equal division of the GPUs into pipelines, and of a replica's share into microbatches,
        without and with recomputation, which a method that computes gradients of weights apart cannot have; with the
        optimizer's state on every replica and, if allowed, divided.

        A method has two or more workers. Interleaving has every number of stages per worker that is in `CHUNKS`, and
        takes the microbatches in groups of as many as workers.
        """
        for tensor, workers in self.pipelines():
            profile = self.work.profile(1, tensor)
            share, rest = divmod(self.work.batch, replicas := self.gpus // (workers * tensor))
            groups, left = divmod(share, workers if self.interleaved else 1)
            for chunks in self.chunks:
                if rest or left or chunks * workers > len(profile.layers):
                    continue
                again = (False,) if self.splits else (False, True)
                state = (False, True) if self.work.sharded and replicas > 1 else (False,)
                for cuts, samples, recompute, sharded in product(
                    self.cuts(workers, chunks, tensor), divisors(groups), again, state
                ):
                    yield Layout(cuts, replicas, share // samples, samples, recompute, chunks, tensor, sharded)

    def cuts(self, workers: int, chunks: int, tensor: int) -> list[tuple[int, ...]]:
        """The cuts that make the slowest stage fast (`cuts_of`): by its passes, and by these and its update.

        Layers such as embeddings have many weights and little to compute, so that these may differ.
        """
        profile, replicas = self.work.profile(1, tensor), self.gpus // (workers * tensor)
        rate, moved = self.machine.rings(workers * tensor, self.gpus), self.numbers.moved[1]
        layers = []
        for layer in profile.layers:
            summing = ring_seconds(self.work.ring_bytes(layer.weight_bytes), replicas, rate)
            step = moved * self.work.parameters(layer.weight_bytes) / self.machine.sheet.bandwidth
            of_sample = 1e3 * (summing + step) * replicas / self.work.batch
            layers.append(replace(layer, backward_ms=layer.backward_ms + of_sample))
        kinds = (cuts_of(each, workers, chunks, self.build) for each in (profile, Profile(tuple(layers))))
        return list(dict.fromkeys(kinds))

    def pipelines(self) -> Iterator[tuple[int, int]]:
        """(GPUs of a worker, workers) that divide the GPUs equally, with at least one layer per stage.

        A worker's GPUs are in one server, whose GPUs they divide equally.
        """
        most = len(self.work.profile(1, 1).layers) // min(self.chunks)
        for tensor in self.work.tensor:
            if self.gpus % tensor or self.machine.server % tensor:
                continue
            counts = (n for n in divisors(self.gpus // tensor) if n <= most and (n == 1) == (self.method is None))
            yield from ((tensor, workers) for workers in counts)

    def best(self) -> Found | None:
        """The best layout; None: none fits into memory.

        Of the layouts that fit, the `TIMED` quickest by the formulas are timed. Of these, all within `NEAR` of the
        quickest are fast enough, and the least stale of them is best: one per cent of throughput is no reason to read
        weights that are ten updates old.
        """
        costed = ((layout, self.on_paper(layout)) for layout in self.layouts())
        fitting = [(layout, cost) for layout, cost in costed if cost and cost.memory <= self.machine.sheet.memory]
        quickest = sorted(fitting, key=lambda pair: pair[1].seconds)[:TIMED]
        timed = [Found(layout, cost, self.timed(layout, cost.costs)) for layout, cost in quickest]
        least = min((one.seconds for one in timed), default=0.0)
        near = [one for one in timed if one.seconds <= (1 + NEAR) * least]
        return min(near, key=lambda one: (self.late(one.layout), one.seconds), default=None)

    def late(self, layout: Layout) -> int:
        """The number of updates that the first stage's forwards miss."""
        return formulas.updates_late(self.method, 1, layout.stages, layout.microbatches) if self.method else 0

    def on_paper(self, layout: Layout) -> OnPaper | None:
        """A layout's costs by the formulas; None: the method does not suit the layout."""
        memory = self.memory(layout)
        if memory is None:
            return None
        costs = self.costs(layout)
        return OnPaper(self.seconds(layout, costs), memory, costs)

    def seconds(self, layout: Layout, costs: Sequence[StageCost]) -> float:
        """The seconds per minibatch by the formulas."""
        links = self.machine.links(layout.workers, layout.tensor)
        message = links.seconds(max((c.output_bytes for c in costs[:-1]), default=0.0))
        return formulas.seconds(
            self.method_of(layout), costs, layout.microbatches, message if layout.workers > 1 else 0.0
        )

    def timed(self, layout: Layout, costs: Sequence[StageCost]) -> float:
        """The seconds per minibatch by the timed executor."""
        method, links = self.method_of(layout), self.machine.links(layout.workers, layout.tensor)
        if method is None:
            (cost,) = costs
            return layout.microbatches * (cost.forward + cost.backward) + cost.update
        schedule = method.schedule
        return steady_seconds(lambda count: schedule(layout.stages, count, layout.microbatches), costs, links)

    def costs(self, layout: Layout) -> tuple[StageCost, ...]:
        """The stages' costs. An update takes the optimizer's step, and the sum of gradients as far as it outlasts the
        passes in which these become ready (`last_passes`). Where the state is divided, it also takes what the next
        passes wait for the gathering of the weights that they read (`waits`).
        """
        return costs_of(self.machine, self.work, layout, self.numbers, self.method_of(layout))

    def memory(self, layout: Layout) -> float | None:
        """The bytes of the fullest GPU; None: the method does not suit the layout."""
        method, most, n, workers = self.method_of(layout), 0.0, layout.microbatches, layout.workers
        held = self.numbers.gradient + self.numbers.state / (layout.replicas if layout.sharded else 1)
        plain = self.work.profile(layout.samples, layout.tensor).cut(layout.cuts)
        for worker in range(workers):
            stages = formulas.stages_of(method, worker, workers, layout.stages)
            mine = [plain[stage - 1] for stage in stages]
            weights = 0.0
            for stage, cost in zip(stages, mine, strict=True):
                copies = formulas.copies(method, stage, layout.stages, n) if method else 1
                if copies is None:
                    return None
                weights += copies * cost.weight_bytes + self.work.parameters(cost.weight_bytes) * held
            inside = [cost.kept_bytes - cost.entering_bytes for cost in mine]
            for waiting in formulas.kept(method, worker, layout.stages, n):
                again = (
                    max(inside) if layout.recompute else sum(w * each for w, each in zip(waiting, inside, strict=True))
                )
                inputs = sum(w * cost.entering_bytes for w, cost in zip(waiting, mine, strict=True))
                most = max(most, weights + inputs + again)
        return most

    def leaving(self, layout: Layout, costs: Sequence[StageCost]) -> float:
        """The bytes that leave the busiest server for one update or, if there is only one server, its busiest GPU.

        What the GPUs of a worker send each other is not counted, as it stays inside a server.
        """
        alone, tensor = self.gpus <= self.machine.server, layout.tensor
        share = (layout.replicas - 1) / layout.replicas
        size, senders = (1, 1) if alone else (self.machine.server // tensor, tensor)  # workers, GPUs that send of each
        server_of = {
            stage: worker // size
            for worker in range(layout.workers)
            for stage in formulas.stages_of(self.method, worker, layout.workers, layout.stages)
        }
        servers = [server_of[stage] for stage in range(1, layout.stages + 1)]
        bytes_of = [0.0] * (max(servers) + 1)
        for stage, (here, cost) in enumerate(zip(servers, costs, strict=True), start=1):
            summed = again = self.work.ring_bytes(cost.weight_bytes)
            if layout.sharded:
                gathers = 1 + formulas.gathered_again(self.method, stage, layout.stages, layout.microbatches)
                again = gathers * cost.weight_bytes
            bytes_of[here] += senders * share * (summed + again)
        for (here, there), cost in zip(pairwise(servers), costs, strict=False):
            if here != there:  # the output, and the gradient that comes back
                bytes_of[here] += senders * layout.microbatches * cost.output_bytes
                bytes_of[there] += senders * layout.microbatches * cost.output_bytes
        return max(bytes_of)


def divisors(number: int) -> list[int]:
    """The divisors of a number in increasing order; 0 has none."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
