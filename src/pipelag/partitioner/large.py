"""Replicated pipelines on thousands of GPUs: the costs of a method by formulas, and its best layout.

G GPUs hold R replicas of a pipeline. An update is of the same minibatch under every layout: each replica takes an R-th
of it in N microbatches, and the replicas of a stage sum their gradients in a ring as these become ready at the end of
the minibatch. Formulas (`pipelag.partitioner.formulas`) stand for what depends on a schedule. The chosen layout is
timed (`Fleet.timed`), and its delays are derived from its schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import ceil, isqrt, log2

from pipelag.methods import Method
from pipelag.partitioner import formulas
from pipelag.partitioner.chunks import CHUNKS, cuts_of
from pipelag.partitioner.cluster import wait_free
from pipelag.timing.breakdown import steady_seconds
from pipelag.timing.costs import StageCost, Topology, ring_seconds
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import Device

TIMED = 4  # the number of layouts that are timed: the quickest by the formulas
NEAR = 0.05  # how much longer than the quickest, relatively, a less stale layout may take


@dataclass(frozen=True)
class Machine:
    """Servers with GPUs of one kind. Bandwidths are in bytes per second in each direction.

    sheet: the GPU's data sheet.
    server: the number of GPUs of a server.
    inside: bandwidth from GPU to GPU inside a server.
    between: bandwidth of each of a server's ports to the other servers; ports: the number of these.
    latency: seconds per message.
    """

    sheet: Device
    server: int
    inside: float
    between: float
    ports: int
    latency: float

    def rings(self, workers: int, gpus: int) -> float:
        """The bandwidth of each ring of replicas in bytes per second; the rings of a server's GPUs share its ports."""
        if gpus <= self.server:
            return self.inside
        return min(self.inside, self.between * self.ports / min(workers, self.server))

    def links(self, workers: int) -> Topology:
        """The links between neighbouring stages, which are taken to be equal.

        They are those between servers if a pipeline spans several servers, otherwise those inside a server.
        """
        return Topology(self.inside if workers <= self.server else self.between, self.latency)


@dataclass(frozen=True)
class Numbers:
    """Bytes per parameter, in addition to the weight that passes read (which the profile counts) and its versions.

    held: the gradient, the optimizer's state and the float32 master weight.
    remembered: the method's other state.
    moved: bytes that the optimizer's step and the method move at an update.
    """

    held: float
    remembered: float
    moved: float


@dataclass(frozen=True)
class Work:
    """A network and the minibatch of an update.

    profile: gives the network's profile for a number of samples per pass.
    batch: the samples of the minibatch.
    element: bytes of one number, in the weights that passes read and in what pipelines send.
    summed: bytes of one number in the sums of gradients; None: as many.
    """

    profile: Callable[[int], Profile]
    batch: int
    element: int
    summed: int | None = None

    def ring_bytes(self, weight_bytes: float) -> float:
        """The bytes of the gradients of so many bytes of weights, as replicas sum them."""
        return weight_bytes / self.element * (self.summed or self.element)


@dataclass(frozen=True)
class Layout:
    """R replicas of a pipeline, each of which takes N microbatches of `samples` per update.

    cuts: those of all stages.
    chunks: the stages of a worker, a GPU.
    """

    cuts: tuple[int, ...]
    replicas: int
    microbatches: int
    samples: int
    recompute: bool
    chunks: int = 1

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.cuts) + 1

    @property
    def workers(self) -> int:
        """The number of GPUs of one pipeline."""
        return self.stages // self.chunks


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
        self.chunks = CHUNKS if formulas.chunks_of(method) > 1 else (1,)  # the stages that a worker may have
        self.lead = formulas.lead_of(method)

    def method_of(self, layout: Layout) -> Method | None:
        """The method with as many stages per worker as in this layout."""
        return formulas.with_chunks(self.method, layout.chunks) if layout.chunks > 1 else self.method

    def layouts(self) -> Iterator[Layout]:
        """All layouts: every equal division of the GPUs into pipelines, and of a replica's share into microbatches,
        without and with recomputation, which a method that computes gradients of weights apart cannot have.

        A method has two or more workers. Interleaving has every number of stages per worker that is in `CHUNKS`, and
        takes the microbatches in groups of as many as workers.
        """
        profile = self.work.profile(1)
        for workers in self.depths():
            share, rest = divmod(self.work.batch, replicas := self.gpus // workers)
            groups, left = divmod(share, 1 if self.chunks == (1,) else workers)
            for chunks in self.chunks:
                if rest or left or chunks * workers > len(profile.layers):
                    continue
                for samples in divisors(groups):
                    for recompute in (False,) if self.lead else (False, True):
                        cuts = cuts_of(profile, workers, chunks)
                        yield Layout(cuts, replicas, share // samples, samples, recompute, chunks)

    def depths(self) -> list[int]:
        """The numbers of workers that divide the GPUs equally, with at least one layer per stage."""
        most = len(self.work.profile(1).layers) // min(self.chunks)
        return [n for n in divisors(self.gpus) if n <= most and (n == 1) == (self.method is None)]

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
        message = self.machine.links(layout.workers).seconds(max((c.output_bytes for c in costs[:-1]), default=0.0))
        return formulas.seconds(
            self.method_of(layout), costs, layout.microbatches, message if layout.workers > 1 else 0.0
        )

    def timed(self, layout: Layout, costs: Sequence[StageCost]) -> float:
        """The seconds per minibatch by the timed executor."""
        method, links = self.method_of(layout), self.machine.links(layout.workers)
        if method is None:
            (cost,) = costs
            return layout.microbatches * (cost.forward + cost.backward) + cost.update
        schedule = method.schedule
        return steady_seconds(lambda count: schedule(layout.stages, count, layout.microbatches), costs, links)

    def costs(self, layout: Layout) -> tuple[StageCost, ...]:
        """The stages' costs. An update takes the optimizer's step, and the sum of gradients as far as it outlasts the
        passes in which these become ready (`last_passes`).
        """
        return _costs(self.machine, self.work, layout, self.numbers.moved, self.lead)

    def memory(self, layout: Layout) -> float | None:
        """The bytes of the fullest GPU; None: the method does not suit the layout."""
        method, most, n, workers = self.method_of(layout), 0.0, layout.microbatches, layout.workers
        plain = self.work.profile(layout.samples).cut(layout.cuts)
        for worker in range(workers):
            mine = plain[worker::workers]
            weights = 0.0
            for stage, cost in zip(range(worker + 1, layout.stages + 1, workers), mine, strict=True):
                held = formulas.copies(method, stage, layout.stages, n) if method else 1
                if held is None:
                    return None
                parameters = cost.weight_bytes / self.work.element
                weights += held * cost.weight_bytes + parameters * (self.numbers.held + self.numbers.remembered)
            inside = [cost.kept_bytes - cost.entering_bytes for cost in mine]
            for waiting in formulas.kept(method, worker, layout.stages, n):
                again = (
                    max(inside) if layout.recompute else sum(w * each for w, each in zip(waiting, inside, strict=True))
                )
                inputs = sum(w * cost.entering_bytes for w, cost in zip(waiting, mine, strict=True))
                most = max(most, weights + inputs + again)
        return most

    def leaving(self, layout: Layout, costs: Sequence[StageCost]) -> float:
        """The bytes that leave the busiest server for one update or, if there is only one server, its busiest GPU."""
        size = 1 if self.gpus <= self.machine.server else self.machine.server
        share = 2 * (layout.replicas - 1) / layout.replicas
        servers = [number % layout.workers // size for number in range(layout.stages)]  # of each stage
        bytes_of = [0.0] * (max(servers) + 1)
        for here, cost in zip(servers, costs, strict=True):
            bytes_of[here] += share * self.work.ring_bytes(cost.weight_bytes)
        for (here, there), cost in zip(pairwise(servers), costs, strict=False):
            if here != there:  # the output, and the gradient that comes back
                bytes_of[here] += layout.microbatches * cost.output_bytes
                bytes_of[there] += layout.microbatches * cost.output_bytes
        return max(bytes_of)


def divisors(number: int) -> list[int]:
    """The divisors of a number in increasing order; 0 has none."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def last_passes(layers: Sequence[LayerTime], layout: Layout, stage: int, lead: int) -> tuple[Sequence[float], float]:
    """The passes in which a stage's gradients become ready: (seconds of each layer, first layer first; those before).

    They are the backward of the last microbatch. Where the gradients of weights are computed apart, they are the W's
    that are left after it, of the last lead (i-1) + 1 microbatches on stage i. Nothing waits for these, so that they
    can go through the layers one by one, each for all these microbatches. On the first stage each W follows its B at
    once, so that it is the whole backward there.
    """
    if lead and stage > 1:
        left = formulas.left_for_the_end(lead, stage, layout.microbatches)
        return [left * (layer.weight_ms or 0.0) / 1e3 for layer in layers], 0.0
    again = sum(layer.forward_ms for layer in layers) / 1e3 * layout.recompute
    return [layer.backward_ms / 1e3 for layer in layers], again


@lru_cache(maxsize=4096)
def _costs(machine: Machine, work: Work, layout: Layout, moved: float, lead: int) -> tuple[StageCost, ...]:
    gpus, workers = layout.replicas * layout.workers, layout.workers
    profile, rate = work.profile(layout.samples), machine.rings(workers, gpus)
    bounds = list(pairwise([0, *layout.cuts, len(profile.layers)]))
    costs = profile.cut(layout.cuts, recompute=layout.recompute)
    outlasting = [0.0] * workers
    for worker in range(workers) if layout.replicas > 1 else ():
        passes: list[float] = []
        sizes: list[float] = []
        for stage in range(worker + 1, layout.stages + 1, workers):
            layers = profile.layers[slice(*bounds[stage - 1])]
            own, before = last_passes(layers, layout, stage, lead)
            # Gradients of a later chunk are summed while the group's last microbatches go through an earlier one.
            more = (workers - 1) * costs[stage - 1].backward if stage + workers <= layout.stages else 0.0
            passes += [*own, before + more]
            sizes += [work.ring_bytes(layer.weight_bytes) for layer in layers] + [0]
        ready = wait_free(passes, sizes, lambda size: ring_seconds(size, layout.replicas, rate))
        outlasting[worker] = max(0.0, ready - sum(passes)) + 2 * ceil(log2(layout.replicas)) * machine.latency
    made = []
    for number, cost in enumerate(costs):
        step = moved * cost.weight_bytes / work.element / machine.sheet.bandwidth
        rest = outlasting[number] if number < workers else 0.0  # a worker's first chunk is the last to be ready
        made.append(replace(cost, update=step + rest))
    return tuple(made)
