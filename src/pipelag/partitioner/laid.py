"""The time, memory and staleness of a method over a plan, straight or with replicated stages."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Literal, Self

from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.options import ArmOptions
from pipelag.partitioner.pipelined import Pipelined
from pipelag.partitioner.plan import Plan, timed_period
from pipelag.schedules import Delays, Schedule
from pipelag.timing.breakdown import steady_seconds
from pipelag.timing.layers import Profile
from pipelag.timing.memory import StageMemory


class Form:
    """A method over a plan, without recomputation or with it.

    options: the arm's, of which `recompute` differs between the two forms.
    parts: the microbatches of a minibatch.
    splits: whether backwards are computed in two parts.
    delays: of the method over these stages.
    holders: per stage, its worker (from 0), where a worker holds several; otherwise empty.
    """

    ground: Ground
    method: Method
    plan: Plan
    options: ArmOptions
    parts: int
    splits: bool
    delays: Delays
    holders: tuple[int, ...] = ()

    def memory(self, samples: int) -> list[StageMemory]:
        """The peak memory of a worker of each stage (of each worker, with `holders`), with `samples` in a pass."""
        raise NotImplementedError

    def period(self, samples: int) -> float:
        """The seconds per minibatch in the steady state, with `samples` in a pass."""
        raise NotImplementedError

    def recomputing(self) -> Self:
        """The same with recomputation: every forward runs again before its backward.

        As it is if the backwards are split, which need the activations until the gradients of the weights are there.
        """
        if self.splits:
            return self
        form = copy(self)
        form.options = self.options.model_copy(update={"recompute": True})
        return form

    def staleness(self, kind: Literal["F", "B"] = "F") -> tuple[int, ...]:
        """Per stage, the minibatches whose updates a pass misses: the delay in updates times minibatches per update."""
        lags = self.delays.forward if kind == "F" else self.delays.backward
        return tuple(lag * per // self.parts for lag, per in zip(lags, self.delays.periods, strict=True))


class Laid(Pipelined, Form):
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


def recomputed(profile: Profile) -> Profile:
    """The profile with each layer's forward time added to its backward, for the search of a plan with recomputation."""
    return Profile(tuple(replace(layer, backward_ms=layer.backward_ms + layer.forward_ms) for layer in profile.layers))
