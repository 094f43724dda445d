"""A phase of a training: one method over one set of cuts, and everything that follows from the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from numbers import Real

import torch

from pipelag.errors import PipelagError, shown
from pipelag.methods import Method
from pipelag.schedules import Delays, Schedule
from pipelag.schedules.replicated import check_replicas
from pipelag.stage.recompute import recompute_lags, segmented
from pipelag.typed import check_passes

SHARES = "shares, one for each worker"


@dataclass(frozen=True)
class Phase:
    """A part of a training: one method over one set of cuts, for a number of minibatches.

    method: a `Method`, such as `pipelag.methods.get("pipedream")`.
    steps: the number of minibatches.
    cuts: the last layer of each stage but the last, counted from 1.
    stage_lr: base learning rates of single stages, by the number of the stage from 1.
    microbatches: equal parts of each minibatch; the mean of their gradients makes one update.
    recompute: True: keep only the input of each stage, and run its forward again before its backward. A number from 2
        on: keep only the input of every so many stages.
    replicas: the number of workers of each stage, which take minibatches in turn and make one update per round
        (PipeDream section 3.2). Empty: one worker per stage.
    """

    method: Method
    steps: int
    cuts: tuple[int, ...] = ()
    stage_lr: dict[int, float] = field(default_factory=dict)
    microbatches: int = 1
    recompute: bool | int = False
    replicas: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """The number of stages that the cuts make."""
        return len(self.cuts) + 1

    def parts(self, workers: int | None = None) -> tuple[int, str]:
        """Into how many equal parts a minibatch is split, and what these are called.

        workers: of the real executor, on which the replicas of a data-parallel method share each minibatch.
        """
        return (workers, SHARES) if workers and self.method.workers == "ddp" else (self.microbatches, "microbatches")

    @property
    def replicated(self) -> bool:
        """Whether some stage has several workers, by `replicas` or because the schedule runs in both directions."""
        return any(any(place) for place in self.delays.places)

    @property
    def segment(self) -> int:
        """How many stages are recomputed together from the first one's input; 0: one by one, or none."""
        return int(self.recompute) if self.recompute > 1 else 0

    @cached_property
    def delays(self) -> Delays:
        """The staleness of the phase's passes."""
        return self.method.delays(self.stages, self.microbatches, self.replicas)

    @cached_property
    def rate_taus(self) -> tuple[float, ...]:
        """Per stage, the tau that the method's learning-rate policy is given."""
        return self.method.rate_taus(self.stages, self.microbatches, self.replicas)

    @cached_property
    def recompute_lags(self) -> list[tuple[int, ...]]:
        """Per stage and microbatch, tau_recomp (in updates) under recomputation by segments; empty without segments."""
        if not self.segment:
            return []
        return recompute_lags(self.method, self.stages, self.microbatches, self.segment)

    def schedule(self, steps: int) -> Schedule:
        """The phase's schedule over `steps` minibatches."""
        if self.segment:
            return segmented(self.method, self.stages, steps, self.microbatches, self.segment)
        return self.method.schedule(self.stages, steps, self.microbatches, self.replicas)

    def updated_in(self, stage: int, version: int) -> int:
        """The minibatch, from 0, after whose last microbatch a stage makes the update that ends a version."""
        return ((version + 1) * self.delays.periods[stage - 1] - 1) // self.microbatches

    def rate_of(self, stage: int, version: int, rate: Callable[[int], float], start: int) -> float:
        """The factor on a stage's base rate for the update that ends a version.

        Args:
            rate: the rate schedule: step of the run -> factor.
            start: the step of the run at which the phase begins.

        Raises:
            PipelagError: a factor is not a finite number from 0 on.
        """
        minibatch, policy = self.updated_in(stage, version), self.method.learning_rate
        share = policy(stage, self.stages, minibatch, self.rate_taus[stage - 1]) if policy is not None else 1.0
        factor = rate(start + minibatch)
        if _is_rate(factor) and _is_rate(share):
            return factor * share
        what, value = ("the rate schedule", factor)
        if _is_rate(factor):
            what, value = (f"the rate policy of '{self.method.name}'", share)
        raise PipelagError(
            f"{what} returns {shown(value)} for stage {stage} in step {start + minibatch}; it should return a finite "
            "number from 0 on"
        )

    def apart(self, stage: int) -> bool:
        """Whether a stage's backwards read other weights than the forwards whose graphs they go through."""
        if self.method.backward_reads == "stashed" or self.method.random is not None:
            return False
        alone = bool(self.recompute) and not self.segment  # each backward follows a forward on the same weights
        return not alone and (self._made(stage) or self._lags("F", stage) != self._lags("B", stage))

    def several(self, stage: int) -> bool:
        """Whether a stage's passes read several versions of its weights."""
        return self._made(stage) or any(self._lags("F", stage)) or any(self._lags("B", stage))

    def _lags(self, kind: str, stage: int) -> tuple[int, ...]:
        return self.method.passes(kind, stage, self.stages, self.delays).lags

    def _made(self, stage: int) -> bool:
        """Whether some pass reads weights computed from a version instead of the version itself."""
        return any(any(self.method.amounts(kind, stage, self.stages, self.delays)) for kind in ("F", "B"))

    def check(self) -> None:
        """Refuse what no executor can do, before the run starts and not at the phase's start hours later."""
        for name, value in (("steps", self.steps), ("microbatches", self.microbatches)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PipelagError(f"{name} is {value!r}; it should be a whole number from 1 on")
        check_passes(self.stages, self.microbatches)
        wrong = [stage for stage in self.stage_lr if not 1 <= stage <= self.stages]
        if wrong:
            raise PipelagError(
                f"a learning rate is given for stage {wrong[0]}, but the cuts {list(self.cuts)} make stages 1 to "
                f"{self.stages}"
            )
        if self.replicas:
            check_replicas(self.replicas, self.stages, self.steps)
        if self.recompute and any(self.method.schedule(self.stages, 1, self.microbatches).split):
            raise PipelagError(
                f"method '{self.method.name}' keeps a microbatch's activations from its backward on until it computes "
                "the gradients of the weights, which recomputation does not allow; use recompute=False, or a method "
                "such as 1f1b_flush"
            )
        if self.segment and self.replicated:
            raise PipelagError("replicated stages cannot be recomputed in segments; use recompute=True")
        assert self.delays and self.recompute_lags is not None


def _is_rate(value: object) -> bool:
    """Whether a value is a finite number from 0 on; quick for floats, as it is called for every stage and step."""
    return (type(value) is float or isinstance(value, (Real, torch.Tensor))) and bool(0 <= value < inf)  # type: ignore[operator]
