"""Layouts of replicated pipelines on thousands of GPUs, and what their stages cost.

An update takes the optimizer's step and what no pass hides of its messages: sums of gradients, which overlap with the
last backwards, and the gathering of weights, which overlaps with the next passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import ceil, log2

from pipelag.methods import Method
from pipelag.partitioner import formulas
from pipelag.partitioner.cluster import wait_free
from pipelag.partitioner.in_v import in_v
from pipelag.partitioner.in_v import tail as tail_of
from pipelag.timing.costs import StageCost, Topology, ring_seconds
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import Device


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
    moved: bytes that the optimizer's step and the method move at an update, on the first stage, on one in between and
        on the last.
    """

    gradient: float
    state: float
    moved: tuple[float, float, float]

    def moved_on(self, stage: int, stages: int) -> float:
        """`moved` of a stage, from 1."""
        return self.moved[0 if stage == 1 else 2 if stage == stages else 1]


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

    def parameters(self, weight_bytes: float) -> float:
        """The number of parameters in so many bytes of weights."""
        return weight_bytes / self.element

    def ring_bytes(self, weight_bytes: float) -> float:
        """The bytes of the gradients of so many bytes of weights, as replicas sum them."""
        return self.parameters(weight_bytes) * (self.summed or self.element)


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


def waits(passes: Iterable[tuple[float, float]]) -> float:
    """The seconds that passes wait for weights, which are gathered layer by layer ahead of them.

    Args:
        passes: of each layer, in the order of the passes, the seconds of the pass and of the gathering that it needs.
    """
    gathered = ready = computed = 0.0
    for of_pass, of_gathering in passes:
        gathered += of_gathering
        ready = max(ready, gathered) + of_pass
        computed += of_pass
    return ready - computed


@lru_cache(maxsize=4096)
def costs_of(
    machine: Machine, work: Work, layout: Layout, numbers: Numbers, method: Method | None
) -> tuple[StageCost, ...]:
    """The costs of a layout's stages; see `Fleet.costs`. The method has as many stages per worker as the layout."""
    workers, replicas = layout.workers, layout.replicas
    profile = work.profile(layout.samples, layout.tensor)
    rate = machine.rings(layout.gpus, replicas * layout.gpus)
    bounds = list(pairwise([0, *layout.cuts, len(profile.layers)]))
    costs = profile.cut(layout.cuts, recompute=layout.recompute)
    waiting = [0.0] * layout.stages  # of all stages of a worker, at its first, whose gradients are the last to be ready
    sums, latency = 1 if layout.sharded else 2, ceil(log2(replicas)) * machine.latency

    def exchange(size: float) -> float:
        """Seconds for gathering so many bytes, or for adding them up and scattering the sums; a ring does both."""
        return ring_seconds(size, replicas, rate) / 2

    def next_passes(worker: int) -> Iterator[tuple[float, float]]:
        """A worker's passes after an update, and the gathering that they need, for `waits`."""
        others = (
            2 * (workers - 1 - worker) if in_v(method) else workers - 1
        )  # have a microbatch between two stages here
        for stage in formulas.stages_of(method, worker, workers, layout.stages):
            layers = profile.layers[slice(*bounds[stage - 1])]
            again = formulas.gathered_again(method, stage, layout.stages, layout.microbatches)
            yield 0.0, (1 + again) * latency
            yield from ((layer.forward_ms / 1e3, exchange(layer.weight_bytes)) for layer in layers)
            if layout.chunks > 1:
                yield others * costs[stage - 1].forward, 0.0
            if again:
                yield from ((layer.backward_ms / 1e3, exchange(layer.weight_bytes)) for layer in reversed(layers))

    for worker in range(workers) if replicas > 1 else ():
        passes: list[float] = []
        sizes: list[float] = []
        for stage in formulas.stages_of(method, worker, workers, layout.stages):
            layers = profile.layers[slice(*bounds[stage - 1])]
            own, before = last_passes(layers, layout, stage, method)
            passes += [*own, before]
            sizes += [work.ring_bytes(layer.weight_bytes) for layer in layers] + [0]
        ready = wait_free(passes, sizes, lambda size: sums * exchange(size))
        waiting[worker] = max(0.0, ready - sum(passes)) + sums * latency
        if layout.sharded:
            waiting[worker] += waits(next_passes(worker))
    made = []
    for stage, (cost, rest) in enumerate(zip(costs, waiting, strict=True), start=1):
        parameters = work.parameters(cost.weight_bytes) / (replicas if layout.sharded else 1)
        step = numbers.moved_on(stage, layout.stages) * parameters / machine.sheet.bandwidth
        made.append(replace(cost, update=step + rest))
    return tuple(made)
