"""Replicated pipelines on thousands of GPUs: the costs of a method by formulas, and its best layout.

G GPUs hold R replicas of a pipeline of D stages. An update is of the same minibatch under every layout: each replica
takes an R-th of it in N microbatches, and the replicas of a stage sum their gradients in a ring as these become ready
in the last backward. The formulas here stand for what depends on a schedule, and tests compare them with the schedules
themselves. The chosen layout is timed (`Fleet.timed`), and its delays are derived from its schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil, isqrt, log2

from pipelag.methods import Method
from pipelag.partitioner.cluster import wait_free
from pipelag.schedules import library
from pipelag.timing.breakdown import steady_seconds
from pipelag.timing.costs import StageCost, Topology, ring_seconds
from pipelag.timing.layers import Profile, balanced_cuts
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

    def rings(self, stages: int, gpus: int) -> float:
        """The bandwidth of each ring of replicas in bytes per second; the rings of a server's GPUs share its ports."""
        if gpus <= self.server:
            return self.inside
        return min(self.inside, self.between * self.ports / min(stages, self.server))

    def links(self, stages: int) -> Topology:
        """The links between neighbouring stages, which are taken to be equal.

        They are those between servers if a pipeline spans several servers, otherwise those inside a server.
        """
        return Topology(self.inside if stages <= self.server else self.between, self.latency)


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
    element: bytes of one number, in the weights that passes read and in gradients on links.
    """

    profile: Callable[[int], Profile]
    batch: int
    element: int


@dataclass(frozen=True)
class Layout:
    """D stages, given by their cuts, times R replicas, each of which takes N microbatches of `samples` per update."""

    cuts: tuple[int, ...]
    replicas: int
    microbatches: int
    samples: int
    recompute: bool

    @property
    def stages(self) -> int:
        """D, the number of stages."""
        return len(self.cuts) + 1


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


# Formulas for a stage with `behind` further stages behind it, and so many microbatches per update ---------------------


def flushes(method: Method) -> bool:
    """Whether a method's pipeline drains at every update."""
    return method.build in (library.gpipe, library.one_f_one_b_flush)


def updates_late(method: Method, behind: int, microbatches: int) -> int:
    """The number of updates that the live weights miss when a forward reads them."""
    if flushes(method):
        return 0
    between = {library.one_f_one_b: behind, library.cycle: 2 * behind, library.pipemare: 2 * behind + 1}
    return -(-between[method.build] // microbatches)


def under_way(method: Method, behind: int, microbatches: int) -> int:
    """The number of microbatches between their forward and their backward."""
    if method.build is library.gpipe:
        return microbatches
    if method.build is library.one_f_one_b_flush:
        return min(microbatches, behind + 1)
    return behind + 1 if method.build is library.one_f_one_b else 2 * behind + 1


def copies(method: Method, behind: int, microbatches: int) -> int | None:
    """The copies of the weights, including the live ones (`Method.weight_copies`).

    None: double buffering's two copies do not suffice.
    """
    late = updates_late(method, behind, microbatches)
    if method.held is not None:  # double buffering
        return 2 if late <= 1 else None
    if method.backward_reads == "stashed":
        return late + 1
    reads = {method.forward_reads, method.backward_reads} - {"live"}
    further = any(getattr(each, "horizon", "") == "round trip" for each in reads)  # predicts beyond its own update
    return 2 if reads and (late or further) else 1


# A layout -------------------------------------------------------------------------------------------------------------


class Fleet:
    """A method on so many GPUs. Without a method: data parallelism, a pipeline of one stage."""

    def __init__(self, machine: Machine, work: Work, method: Method | None, numbers: Numbers, gpus: int) -> None:
        self.machine, self.work, self.method, self.numbers, self.gpus = machine, work, method, numbers, gpus

    def layouts(self) -> Iterator[Layout]:
        """All layouts: every equal division of the GPUs into stages and replicas, and of a replica's share into
        microbatches, without and with recomputation. A method has two or more stages.
        """
        profile = self.work.profile(1)
        for stages in self.depths():
            share, rest = divmod(self.work.batch, replicas := self.gpus // stages)
            for samples in divisors(share) if not rest else ():
                for recompute in (False, True):
                    yield Layout(cuts_of(profile, stages), replicas, share // samples, samples, recompute)

    def depths(self) -> list[int]:
        """The numbers of stages that divide the GPUs equally, with at least one layer per stage."""
        layers = len(self.work.profile(1).layers)
        return [n for n in divisors(self.gpus) if n <= layers and (n == 1) == (self.method is None)]

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
        return updates_late(self.method, layout.stages - 1, layout.microbatches) if self.method else 0

    def on_paper(self, layout: Layout) -> OnPaper | None:
        """A layout's costs by the formulas; None: the method does not suit the layout."""
        memory = self.memory(layout)
        if memory is None:
            return None
        costs = self.costs(layout)
        return OnPaper(self.seconds(layout, costs), memory, costs)

    def seconds(self, layout: Layout, costs: Sequence[StageCost]) -> float:
        """The seconds per minibatch by the formulas.

        Microbatches follow one another at the pace of the slowest stage, link, or round trip through the pipeline.
        """
        n, stages, method = layout.microbatches, layout.stages, self.method
        one = [cost.forward + cost.backward for cost in costs]
        update = max(cost.update for cost in costs)
        message = self.machine.links(stages).seconds(max((c.output_bytes for c in costs[:-1]), default=0.0))
        message *= stages > 1
        # While one microbatch goes to the end of the pipeline and back, a stage takes in as many as it has under way.
        pace = max([message, *one])
        if method is not None and method.build is not library.gpipe:
            behind = range(stages - 1, -1, -1)
            pace = max(
                pace,
                *((sum(one[-d - 1 :]) + 2 * d * message) / under_way(method, d, max(n, d + 1)) for d in behind),
            )
        if method is None or not flushes(method):
            return n * pace + update
        if method.build is library.gpipe:  # forwards and backwards each have their own pace
            pace = sum(max(message, *(getattr(cost, way) for cost in costs)) for way in ("forward", "backward"))
        return sum(one) + 2 * (stages - 1) * message + (n - 1) * pace + update

    def timed(self, layout: Layout, costs: Sequence[StageCost]) -> float:
        """The seconds per minibatch by the timed executor."""
        if self.method is None:
            (cost,) = costs
            return layout.microbatches * (cost.forward + cost.backward) + cost.update
        schedule, links = self.method.schedule, self.machine.links(layout.stages)
        return steady_seconds(lambda count: schedule(layout.stages, count, layout.microbatches), costs, links)

    def costs(self, layout: Layout) -> tuple[StageCost, ...]:
        """The stages' costs. An update takes the optimizer's step, and the sum of gradients as far as it outlasts the
        backward.
        """
        return _costs(self.machine, self.work, layout, self.numbers.moved)

    def memory(self, layout: Layout) -> float | None:
        """The bytes of the fullest GPU; None: the method does not suit the layout."""
        most, n = 0.0, layout.microbatches
        plain = self.work.profile(layout.samples).cut(layout.cuts)
        for behind, cost in zip(range(layout.stages - 1, -1, -1), plain, strict=True):
            held = 1 if self.method is None else copies(self.method, behind, n)
            if held is None:
                return None
            waiting = 1 if self.method is None else under_way(self.method, behind, n)
            parameters = cost.weight_bytes / self.work.element
            inside = cost.kept_bytes - cost.entering_bytes
            activations = waiting * cost.entering_bytes + inside * (1 if layout.recompute else waiting)
            weights = held * cost.weight_bytes + parameters * (self.numbers.held + self.numbers.remembered)
            most = max(most, weights + activations)
        return most

    def leaving(self, layout: Layout, costs: Sequence[StageCost]) -> float:
        """The bytes that leave the busiest server for one update or, if there is only one server, its busiest GPU."""
        size = 1 if self.gpus <= self.machine.server else self.machine.server
        share = 2 * (layout.replicas - 1) / layout.replicas
        most = 0.0
        for first in range(0, layout.stages, size):
            here = costs[first : first + size]
            ahead = here[-1].output_bytes if first + size < layout.stages else 0.0
            back = costs[first - 1].output_bytes if first else 0.0
            most = max(most, layout.microbatches * (ahead + back) + share * sum(cost.weight_bytes for cost in here))
        return most


def divisors(number: int) -> list[int]:
    """The divisors of a number in increasing order; 0 has none."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


@lru_cache(maxsize=256)
def cuts_of(profile: Profile, stages: int) -> tuple[int, ...]:
    """The balanced cuts of a profile into so many stages, cached."""
    return balanced_cuts(profile, stages)


@lru_cache(maxsize=4096)
def _costs(machine: Machine, work: Work, layout: Layout, moved: float) -> tuple[StageCost, ...]:
    gpus, costs = layout.replicas * layout.stages, []
    profile, rate = work.profile(layout.samples), machine.rings(layout.stages, gpus)
    bounds = pairwise([0, *layout.cuts, len(profile.layers)])
    for (a, b), cost in zip(bounds, profile.cut(layout.cuts, recompute=layout.recompute), strict=True):
        after_backward = 0.0
        if layout.replicas > 1:
            passes = [layer.backward_ms / 1e3 for layer in profile.layers[a:b]]
            sizes = [layer.weight_bytes for layer in profile.layers[a:b]]
            again = cost.forward * layout.recompute
            ready = wait_free(passes, sizes, lambda size: ring_seconds(size, layout.replicas, rate), again)
            after_backward = max(0.0, ready - cost.backward) + 2 * ceil(log2(layout.replicas)) * machine.latency
        step = moved * cost.weight_bytes / work.element / machine.sheet.bandwidth
        costs.append(
            StageCost(
                cost.forward,
                cost.backward,
                update=step + after_backward,
                output_bytes=cost.output_bytes,
                weight_bytes=cost.weight_bytes,
            )
        )
    return tuple(costs)
