"""Replicated pipelines on thousands of GPUs: the costs of a method by formulas, and its best layout.

G GPUs hold R replicas of a pipeline. A worker is a GPU or, with tensor parallelism, a few GPUs of a server, each of
which has an equal part of every layer of the worker's stages. An update is of the same minibatch under every layout:
each replica takes an R-th of it in N microbatches, and the replicas of a stage sum their gradients in a ring as these
become ready at the end of the minibatch. Formulas (`pipelag.partitioner.formulas`) stand for what depends on a
schedule. The chosen layout is timed (`Fleet.timed`), and its delays are derived from its schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from math import ceil, isqrt, log2

from pipelag.methods import Method
from pipelag.partitioner import formulas
from pipelag.partitioner.chunks import CHUNKS, cuts_of
from pipelag.partitioner.cluster import wait_free
from pipelag.partitioner.in_v import in_v
from pipelag.partitioner.in_v import tail as tail_of
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

    def rings(self, pipeline: int, gpus: int) -> float:
        """The bandwidth of each ring of replicas in bytes per second; the rings of a server's GPUs share its ports.

        Args:
            pipeline: the GPUs of a pipeline; gpus: all.
        """
        if gpus <= self.server:
            return self.inside
        return min(self.inside, self.between * self.ports / min(pipeline, self.server))

    def links(self, workers: int, tensor: int = 1) -> Topology:
        """The links between neighbouring stages, which are taken to be equal, for each of the GPUs of a worker.

        They are those between servers if a pipeline spans several servers, otherwise those inside a server. The GPUs of
        a worker send at the same time, each its part.
        """
        out = self.between * min(1.0, self.ports / tensor)
        return Topology(self.inside if workers * tensor <= self.server else out, self.latency)


@dataclass(frozen=True)
class Numbers:
    """Bytes per parameter, in addition to the weight that passes read (which the profile counts) and its versions.

    gradient: the gradient.
    state: the optimizer's state, the float32 master weight, and what the method remembers besides.
    moved: bytes that the optimizer's step and the method move at an update.
    """

    gradient: float
    state: float
    moved: float


@dataclass(frozen=True)
class Work:
    """A network and the minibatch of an update.

    profile: gives a GPU's profile of the network for a number of samples per pass and of GPUs that share its layers.
    batch: the samples of the minibatch.
    element: bytes of one number, in the weights that passes read and in what pipelines send.
    summed: bytes of one number in the sums of gradients; None: as many.
    tensor: the numbers of GPUs that may share every layer (tensor parallelism).
    sharded: replicas may divide the optimizer's state, too (see `Layout`).
    """

    profile: Callable[[int, int], Profile]
    batch: int
    element: int
    summed: int | None = None
    tensor: tuple[int, ...] = (1,)
    sharded: bool = False

    def ring_bytes(self, weight_bytes: float) -> float:
        """The bytes of the gradients of so many bytes of weights, as replicas sum them."""
        return weight_bytes / self.element * (self.summed or self.element)


@dataclass(frozen=True)
class Layout:
    """R replicas of a pipeline, each of which takes N microbatches of `samples` per update.

    cuts: those of all stages.
    chunks: the stages of a worker.
    tensor: the GPUs of a worker, which share each of its layers.
    sharded: each replica has an R-th of the optimizer's state, sums that part of the gradients, updates that part of
        the weights, and gathers the others' (ZeRO's first stage; Rajbhandari et al., arXiv 1910.02054, section 5.1).
    """

    cuts: tuple[int, ...]
    replicas: int
    microbatches: int
    samples: int
    recompute: bool
    chunks: int = 1
    tensor: int = 1
    sharded: bool = False

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.cuts) + 1

    @property
    def workers(self) -> int:
        """The number of workers of one pipeline."""
        return self.stages // self.chunks

    @property
    def gpus(self) -> int:
        """The number of GPUs of one pipeline."""
        return self.workers * self.tensor


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
                cuts = cuts_of(profile, workers, chunks, self.build)
                again = (False,) if self.splits else (False, True)
                state = (False, True) if self.work.sharded and replicas > 1 else (False,)
                for samples, recompute, sharded in product(divisors(groups), again, state):
                    yield Layout(cuts, replicas, share // samples, samples, recompute, chunks, tensor, sharded)

    def pipelines(self) -> Iterator[tuple[int, int]]:
        """(GPUs of a worker, workers) that divide the GPUs equally, with at least one layer per stage.

        A worker's GPUs are in one server, whose GPUs they divide equally.
        """
        most = len(self.work.profile(1, 1).layers) // min(self.chunks)
        for tensor in self.work.tensor:
            if self.gpus % tensor or self.machine.server % tensor:
                continue
            yield from ((tensor, n) for n in divisors(self.gpus // tensor) if self.holds(n) and n <= most)

    def holds(self, workers: int) -> bool:
        """Whether pipelines of so many workers suit the method: one is data parallelism."""
        return (workers == 1) == (self.method is None)

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
        passes in which these become ready (`last_passes`); where the state is divided, also the gathering of all
        weights that passes read.
        """
        return _costs(self.machine, self.work, layout, self.numbers.moved, self.method_of(layout))

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
                weights += copies * cost.weight_bytes + cost.weight_bytes / self.work.element * held
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
        gathers = formulas.gathered(self.method) if layout.sharded else 0
        size, senders = (1, 1) if alone else (self.machine.server // tensor, tensor)  # workers, GPUs that send of each
        server_of = {
            stage: worker // size
            for worker in range(layout.workers)
            for stage in formulas.stages_of(self.method, worker, layout.workers, layout.stages)
        }
        servers = [server_of[stage] for stage in range(1, layout.stages + 1)]
        bytes_of = [0.0] * (max(servers) + 1)
        for here, cost in zip(servers, costs, strict=True):
            summed, weights = self.work.ring_bytes(cost.weight_bytes), cost.weight_bytes
            bytes_of[here] += senders * share * (summed + (gathers * weights if layout.sharded else summed))
        for (here, there), cost in zip(pairwise(servers), costs, strict=False):
            if here != there:  # the output, and the gradient that comes back
                bytes_of[here] += senders * layout.microbatches * cost.output_bytes
                bytes_of[there] += senders * layout.microbatches * cost.output_bytes
        return max(bytes_of)


def divisors(number: int) -> list[int]:
    """The divisors of a number in increasing order; 0 has none."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def last_passes(
    layers: Sequence[LayerTime], layout: Layout, stage: int, method: Method | None
) -> tuple[Sequence[float], float]:
    """The passes in which a stage's gradients become ready: (seconds of each layer, first layer first; those before).

    They are the backward of the last microbatch. Where the gradients of weights are computed apart, they are the W's
    that are left after it: of the last lead (i-1) + 1 microbatches on stage i, or as many as ZB-V's schedule has.
    Nothing waits for these, so that they can go through the layers one by one, each for all these microbatches. On the
    first stage each W follows its B at once, so that it is the whole backward there.

    In a V, the gradients of a worker's stage on the way up are ready before, and are summed while it works on the way
    down. Interleaved, those of a later chunk are summed while the group's last microbatches go through an earlier one.
    """
    weights = [(layer.weight_ms or 0.0) / 1e3 for layer in layers]
    backwards = [(layer.backward_ms + layer.forward_ms * layout.recompute) / 1e3 for layer in layers]
    before, left = 0.0, 0
    if lead := formulas.lead_of(method):
        left = formulas.left_for_the_end(lead, stage, layout.microbatches)
    elif in_v(method):
        tail = tail_of(layout.workers, min(stage - 1, layout.stages - stage), layout.microbatches)
        left = tail.down if stage <= layout.workers else tail.up
        if stage <= layout.workers:
            before = (tail.backwards - (stage == 1)) * (sum(backwards) - sum(weights)) + tail.weights * sum(weights)
    elif stage + layout.workers <= layout.stages:
        before = (layout.workers - 1) * sum(backwards)
    if stage > 1 and formulas.splits(method):
        return [left * each for each in weights], before
    again = sum(layer.forward_ms for layer in layers) / 1e3 * layout.recompute
    return [layer.backward_ms / 1e3 for layer in layers], before + again


@lru_cache(maxsize=4096)
def _costs(machine: Machine, work: Work, layout: Layout, moved: float, method: Method | None) -> tuple[StageCost, ...]:
    workers, replicas = layout.workers, layout.replicas
    profile = work.profile(layout.samples, layout.tensor)
    rate = machine.rings(layout.gpus, replicas * layout.gpus)
    bounds = list(pairwise([0, *layout.cuts, len(profile.layers)]))
    costs = profile.cut(layout.cuts, recompute=layout.recompute)
    outlasting = [0.0] * workers
    sums, latency = 1 if layout.sharded else 2, ceil(log2(replicas)) * machine.latency

    def exchange(size: float) -> float:
        """Seconds for gathering so many bytes, or for adding them up and scattering the sums; a ring does both."""
        return ring_seconds(size, replicas, rate) / 2

    for worker in range(workers) if replicas > 1 else ():
        passes: list[float] = []
        sizes: list[float] = []
        for stage in formulas.stages_of(method, worker, workers, layout.stages):
            layers = profile.layers[slice(*bounds[stage - 1])]
            own, before = last_passes(layers, layout, stage, method)
            passes += [*own, before]
            sizes += [work.ring_bytes(layer.weight_bytes) for layer in layers] + [0]
        ready = wait_free(passes, sizes, lambda size: sums * exchange(size))
        outlasting[worker] = max(0.0, ready - sum(passes)) + sums * latency
    gathers = formulas.gathered(method)
    made = []
    for number, cost in enumerate(costs):
        step = moved * cost.weight_bytes / work.element / machine.sheet.bandwidth
        if layout.sharded:
            step = step / replicas + gathers * (exchange(cost.weight_bytes) + latency)
        rest = outlasting[number] if number < workers else 0.0  # a worker's first chunk is the last to be ready
        made.append(replace(cost, update=step + rest))
    return tuple(made)
