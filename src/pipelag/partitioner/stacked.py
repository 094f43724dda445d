"""The time, memory and staleness of a method whose workers hold several stages each: interleaved 1F1B, ZB-V."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.partitioner import formulas
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.chunks import cuts_of
from pipelag.partitioner.cluster import Cluster, slowest
from pipelag.partitioner.formulas import chunks_of
from pipelag.partitioner.laid import Form, recomputed
from pipelag.partitioner.placed import check_parts
from pipelag.partitioner.plan import Plan, PlanStage
from pipelag.schedules import Schedule, delays
from pipelag.timing.breakdown import steady_seconds
from pipelag.timing.costs import StageCost, Topology
from pipelag.timing.memory import StageMemory, held_at_peak, states_by_part
from pipelag.timing.rehearsal import rehearse

NOT_COUNTED = "its workers hold several stages each, whose versions of the weights are not counted"


class Stacked(Form):
    """An arm without staleness over a straight plan, of whose stages each worker holds several.

    Args:
        plan: all stages, in order; the method's schedule says which worker holds which.

    Raises:
        PipelagError: a method with stale weights, or where moving weights takes time.
    """

    def __init__(self, arm: Arm, ground: Ground, plan: Plan) -> None:
        self.arm, self.ground, self.plan = arm, ground, plan
        self.method, self.options, self.parts = arm.method, arm.options, arm.options.microbatches
        if ground.moving != "free":
            raise PipelagError(
                f"'{arm.method.name}' with several stages per worker can only be timed without the cost of moving "
                "weights; set moving='free'"
            )
        self.stages = len(plan.stages)
        twice = self.schedule(2)  # a worker may begin the second minibatch before it has ended the first on all stages
        self.delays = delays(twice)
        if any((*self.delays.forward, *self.delays.backward)):
            raise PipelagError(NOT_COUNTED)
        self.holders = holders_of(twice)
        self.links = links_of(ground.cluster, self.holders)
        self.under_way = states_by_part(twice)
        self.splits = any(twice.split)
        self.held = rehearse(self.method, ground.optimizer, 1, 1)  # alike on all stages, of live weights alone

    def schedule(self, minibatches: int) -> Schedule:
        """The method's schedule of so many minibatches."""
        return self.method.schedule(self.stages, minibatches, self.parts)

    @property
    def passes(self) -> int:
        """About how many forwards `steady_seconds` times."""
        return self.stages * self.parts * 8 * (-(-self.stages // self.parts) + 1)

    def costs(self, samples: int) -> list[StageCost]:
        """The stages' costs of a microbatch of so many samples."""
        return self.ground.profiles.at(samples).cut(self.plan.cuts, recompute=self.options.recompute)

    def least(self, samples: int) -> float:
        """The seconds per minibatch that the busiest worker computes, or the busiest link sends."""
        costs, links, pairs = self.costs(samples), self.links, list(pairwise(self.holders))
        computed, sent = dict.fromkeys(self.holders, 0.0), dict.fromkeys([*pairs, *(pair[::-1] for pair in pairs)], 0.0)
        for worker, cost in zip(self.holders, costs, strict=True):
            computed[worker] += cost.forward + (cost.in_two_parts if self.splits else cost.backward)
        for (a, b), cost in zip(pairs, costs, strict=False):
            for pair in ((a, b), (b, a)) if a != b else ():  # the output, and the gradient that comes back
                sent[pair] += links.seconds(cost.output_bytes)
        return self.parts * max(*computed.values(), *sent.values())

    def on_paper(self, samples: int) -> float:
        """The seconds per minibatch by the formula for interleaving, but not below `least`; otherwise `least`."""
        least, costs = self.least(samples), self.costs(samples)
        if chunks_of(self.method) == 1:
            return least
        message = max(self.links.seconds(cost.output_bytes) for cost in costs[:-1])
        return max(least, formulas.seconds(self.method, costs, self.parts, message))

    def period(self, samples: int) -> float:
        """The seconds per minibatch in the proved steady state, with `samples` in a pass (`steady_seconds`)."""
        return steady_seconds(self.schedule, self.costs(samples), self.links, self.options.clock)

    def memory(self, samples: int) -> list[StageMemory]:
        """The peak memory of each worker: what all its stages hold, and their activations when these are most.

        With recomputation a worker keeps the inputs of all microbatches under way, and the activations of one of them
        on the largest of its stages.
        """
        layers, sizes = self.ground.profiles.at(self.ground.batch).layers, self.ground.profiles.sizes(samples)
        rows, first = list[StageMemory](), samples * self.ground.profiles.input_bytes
        for worker, states in enumerate(self.under_way):
            mine = [stage for stage, holder in zip(self.plan.stages, self.holders, strict=True) if holder == worker]
            tensors = [layer.weight_bytes for stage in mine for layer in layers[stage.first - 1 : stage.last]]
            weights, held = float(sum(tensors)), self.held.held(tensors)
            passes = [sizes.passes(stage.first, stage.last, first) for stage in mine]
            rows.append(
                StageMemory(
                    weights=weights,
                    versions=0.0,
                    remembered=held.remembered,
                    gradients=weights,
                    optimizer=held.optimizer,
                    rings=held.copies,
                    **held_at_peak(states, passes, self.options.recompute),
                )
            )
        return rows


def stages_of_a_worker(method: Method) -> int:
    """How many stages a method's schedule gives to each worker; of interleaving, the number that is registered.

    Raises:
        PipelagError: several, with stale weights or with several workers for a stage, whose memory is not counted.
    """
    stages = 2 * max(2, chunks_of(method))
    for microbatches in (1, 4) if method.pipelined else ():
        try:
            schedule = method.schedule(stages, 2, microbatches)
        except PipelagError:
            continue
        each = stages // len({schedule.owners["F", stage] for stage in range(1, stages + 1)})
        if each > 1 and any(len(workers) > 1 for workers in schedule.replicas):
            raise PipelagError("several workers hold each of its stages, and their memory is not counted")
        if each > 1 and (max(method.taus(stages, microbatches)) or max(method.weight_copies(stages, microbatches)) > 1):
            raise PipelagError(NOT_COUNTED)
        return each
    return 1


def holders_of(schedule: Schedule) -> tuple[int, ...]:
    """Per stage, the worker (from 0) that holds it."""
    return tuple(workers[0] for workers in schedule.replicas)


def links_of(cluster: Cluster, holders: Sequence[int]) -> Topology:
    """The links between the workers (from 0) that hold neighbouring stages, all as slow as the slowest of them."""
    filled = cluster.first(max(holders) + 1)
    return slowest(filled.link(a, b) for a, b in pairwise(holders))


def stacked(arm: Arm, ground: Ground, workers: int, chunks: int) -> Iterator[Stacked]:
    """An arm over the straight plan with `chunks` stages per worker: with the cuts for the profile's times and, where
    memory is limited and the arm can recompute activations, with those for times with recomputation.

    Raises:
        PipelagError: see `Stacked`; or the backwards are split, and the profile does not know their parts.
    """
    once = arm.method.schedule(chunks * workers, 1, arm.options.microbatches)
    links = links_of(ground.cluster, holders_of(once))
    profile = ground.profiles.at(ground.batch // arm.options.microbatches)
    check_parts(arm.method, any(once.split), profile.layers)
    apart = ground.memory < inf and not any(once.split)
    cuts = [
        cuts_of(times, workers, chunks, arm.method.build, links)
        for times in ((profile, recomputed(profile)) if apart else (profile,))
    ]
    for each in dict.fromkeys(cuts):
        bounds = pairwise([0, *each, len(profile.layers)])
        yield Stacked(arm, ground, Plan(tuple(PlanStage(a + 1, b) for a, b in bounds)))
