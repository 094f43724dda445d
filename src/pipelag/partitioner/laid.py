"""The time, memory and staleness of a method over a plan, straight or with replicated stages."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Literal

from pipelag.errors import PipelagError
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.pipelined import Pipelined
from pipelag.partitioner.plan import Plan, timed_period
from pipelag.schedules import Schedule
from pipelag.timing.breakdown import steady_seconds
from pipelag.timing.layers import Profile


class Laid(Pipelined):
    """An arm over the stages of a plan, each of which may have several replicas.

    Raises:
        PipelagError: a replicated plan for a method that cannot have one, with microbatches, or where moving weights
            takes time; the last two are not timed.
    """

    def __init__(self, arm: Arm, ground: Ground, plan: Plan) -> None:
        replicas = tuple(stage.replicas for stage in plan.stages)
        self.replicas: tuple[int, ...] = replicas if max(replicas) > 1 else ()
        if self.replicas and arm.options.microbatches > 1:
            raise PipelagError(
                f"'{arm.method.name}' cannot be timed with microbatches over replicated stages; take a straight plan"
            )
        if self.replicas and ground.moving != "free":
            raise PipelagError(
                f"'{arm.method.name}' over replicated stages can only be timed without the cost of moving weights; set "
                "moving='free', or take a straight plan"
            )
        super().__init__(arm, ground, plan, self.replicas)
        self.delays = self.method.delays(len(replicas), arm.options.microbatches, self.replicas)

    def recomputing(self) -> Laid:
        """The same with recomputation: every forward runs again before its backward.

        As it is if the backwards are split, which need the activations until the gradients of the weights are there.
        """
        if self.splits:
            return self
        form = copy(self)
        form.options = self.options.model_copy(update={"recompute": True})
        return form

    def period(self, samples: int) -> float:
        """The seconds per minibatch, with `samples` in a pass.

        They are those of `pipelag partition` (`timed_period`). That does not know microbatches or the moving of
        weights; where there are any, the period is that of the proved steady state (`steady_seconds`).
        """
        if self.parts > 1 or self.ground.moving != "free":
            return steady_seconds(self.schedule, self.costs(samples), self.topology, self.options.clock)
        profile = self.ground.profiles.at(samples)
        return timed_period(profile, self.cluster, self.plan, self.unsummed, self.options.recompute)

    def unsummed(self, minibatches: int) -> Schedule:
        """The method's schedule without sums of gradients (S), which `timed_period` counts as part of the backward."""
        schedule = self.method.schedule(len(self.stages), minibatches, 1, self.replicas)
        rows = tuple(tuple(action for action in row if action.kind != "S") for row in schedule.workers)
        return Schedule(schedule.name, schedule.stages, minibatches, rows)

    def staleness(self, kind: Literal["F", "B"] = "F") -> tuple[int, ...]:
        """Per stage, the minibatches whose updates a pass misses: the delay in updates times minibatches per update."""
        lags = self.delays.forward if kind == "F" else self.delays.backward
        return tuple(lag * per // self.parts for lag, per in zip(lags, self.delays.periods, strict=True))


def recomputed(profile: Profile) -> Profile:
    """The profile with each layer's forward time added to its backward, for the search of a plan with recomputation."""
    return Profile(tuple(replace(layer, backward_ms=layer.backward_ms + layer.forward_ms) for layer in profile.layers))
