"""The time of an arm over a straight plan: a pipeline with one stage per GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise

from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.placed import Placed, Row
from pipelag.partitioner.plan import Plan, PlanStage, bytes_per_minibatch, links
from pipelag.partitioner.search import partition
from pipelag.schedules import Schedule
from pipelag.timing.breakdown import held_by_sending, shares, steady_seconds
from pipelag.timing.costs import StageCost, Topology


class Pipelined(Placed):
    """A method over the stages of `plan`; for `replicas` see `Placed`."""

    def __init__(self, arm: Arm, ground: Ground, plan: Plan, replicas: Sequence[int] = ()) -> None:
        super().__init__(arm, ground, plan.workers, plan.stages, replicas)
        self.plan = plan
        self.topology = replace(links(self.cluster, plan), overlap=self.options.overlap is not False)

    def schedule(self, minibatches: int) -> Schedule:
        """The method's schedule of so many minibatches."""
        return self.method.schedule(len(self.stages), minibatches, self.parts)

    def costs(self, samples: int) -> list[StageCost]:
        """The stages' costs of a microbatch, including its share of moving weights, and of an update."""
        passes = self.ground.profiles.at(samples).cut(self.plan.cuts, recompute=self.options.recompute)
        return [
            replace(
                cost,
                forward=cost.forward + self.charge(stage, "F") / self.parts,
                backward=(cost.in_two_parts if self.splits else cost.backward) + self.charge(stage, "B") / self.parts,
                splitting=0.0,
                update=self.charge(stage, "U", "step"),
            )
            for stage, cost in enumerate(passes)
        ]

    def timed(self, samples: int) -> Row:
        """See `Placed.timed`."""
        costs = self.costs(samples)
        period = steady_seconds(self.schedule, costs, self.topology, self.options.clock)
        unhindered = steady_seconds(self.schedule, costs, Topology(), self.options.clock)
        sending = held_by_sending(costs, self.topology)
        stages = []
        for number, (stage, cost) in enumerate(zip(self.stages, costs, strict=True)):
            seconds = {
                "forward": cost.forward * self.parts - self.charge(number, "F"),
                "backward": cost.backward * self.parts - self.charge(number, "B"),
                "policy": self.charge(number, "F", "B", "U"),
                "update": self.charge(number, "step"),
            }
            where = {"stage": number + 1, "first": stage.first, "last": stage.last, "seconds": seconds}
            divided = shares(period, unhindered, sum(seconds.values()), sending[number] * self.parts)
            stages.append(where | {"shares": asdict(divided)})
        return {
            "clock": self.options.clock,
            "seconds": period,
            "unhindered": unhindered,
            "bytes": bytes_per_minibatch(self.ground.profiles.at(samples), self.plan) * self.parts,
            "stages": stages,
        }


def straight_plan(ground: Ground, workers: int, cuts: Sequence[int] | None = None) -> Plan:
    """The plan with one stage per GPU: with these cuts or, without, the partitioner's for a minibatch of `ground`.

    Raises:
        PipelagError: cuts out of order or range, or fewer layers than GPUs.
    """
    profile = ground.profiles.at(ground.batch)
    if cuts is None:
        return partition(profile, ground.cluster.line(workers), "ring", straight=True)
    profile.cut(cuts)
    return Plan(tuple(PlanStage(a + 1, b) for a, b in pairwise([0, *cuts, len(profile.layers)])))
