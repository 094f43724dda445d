"""Learning-rate schedules by name. No torch: the workflow reads this at every `snakemake` call.

A user's own schedule is a function of the spec, the run's number of steps and its own options. It returns a function
from a step to the factor on the base learning rate at that step:

    @rate_schedule("triangle")
    def triangle(spec, total, peak=0.3):
        return lambda step: ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from pydantic import Field, model_validator

from pipelag.errors import unknown
from pipelag.registry import entered
from pipelag.typed import MOST_STEPS, Options, Tuple, Typed, check_keywords

Course = Callable[[int], float]  # the factor on every base rate at step t, 0-based over the whole run
RATES: dict[str, Callable[..., Course]] = {}


def rate_schedule(name: str) -> Callable[[Callable[..., Course]], Callable[..., Course]]:
    """Register the decorated schedule by name: (spec, total, **options) -> (step -> factor)."""

    return entered("rate schedule", name, RATES)


class LRScheduleSpec(Typed):
    """A learning-rate schedule: the factor on the base rate at step t (0-based, in minibatches over the whole run).

    constant: 1. inverse_sqrt: sqrt(warmup / (t + 1)) after the warm-up (fairseq's). inv: (1 + gamma t)^-power (Caffe).
    polynomial: (1 - t / horizon)^power. cosine: (1 + cos(pi t / horizon)) / 2. milestones: gamma^(number of milestones
    <= t); milestones are fractions of `horizon`, so that a shortened run keeps its shape. `horizon` is in steps; null
    is the run's own total. Each factor is multiplied by the warm-up. `rate_schedule` registers others, which get
    `options`.
    """

    name: str = "constant"
    gamma: float = Field(default=0.1, ge=0, le=1e6)
    power: float = Field(default=0.75, ge=0, le=100)
    milestones: Tuple[Annotated[float, Field(ge=0, le=1)]] = ()
    horizon: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    warmup: int = Field(default=0, ge=0, le=MOST_STEPS)  # steps of linear warm-up from lr/warmup
    options: Options = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> LRScheduleSpec:
        if self.name not in RATES:
            raise unknown("rate schedule", self.name, RATES)
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones, shares of the horizon, should increase, not be {list(self.milestones)}")
        check_keywords(RATES[self.name], 2, self.options, f"option of the rate schedule '{self.name}'")
        return self


def factor(spec: LRScheduleSpec, total: int) -> Course:
    """The factor on every base rate at step t (0-based over the whole run of `total` steps), warm-up included."""
    course = RATES[spec.name](spec, total, **spec.options)
    if not spec.warmup:
        return course
    return lambda step: min(1.0, (step + 1) / spec.warmup) * course(step)


@rate_schedule("constant")
def constant(spec: LRScheduleSpec, total: int) -> Course:
    """Always 1."""
    return lambda step: 1.0


@rate_schedule("inv")
def inv(spec: LRScheduleSpec, total: int) -> Course:
    """(1 + gamma t)^-power: Caffe's."""
    return lambda step: float((1 + spec.gamma * step) ** -spec.power)


@rate_schedule("inverse_sqrt")
def inverse_sqrt(spec: LRScheduleSpec, total: int) -> Course:
    """sqrt(warmup / (t + 1)) after the warm-up: fairseq's, whose steps count from 1."""
    return lambda step: float((max(1, spec.warmup) / max(step + 1, spec.warmup, 1)) ** 0.5)


@rate_schedule("polynomial")
def polynomial(spec: LRScheduleSpec, total: int) -> Course:
    """(1 - t / horizon)^power."""
    horizon = spec.horizon or total
    return lambda step: float(max(0.0, 1 - step / horizon) ** spec.power)


@rate_schedule("cosine")
def cosine(spec: LRScheduleSpec, total: int) -> Course:
    """(1 + cos(pi t / horizon)) / 2."""
    horizon = spec.horizon or total
    return lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / horizon)))


@rate_schedule("milestones")
def milestones(spec: LRScheduleSpec, total: int) -> Course:
    """gamma^(number of milestones <= t), milestones as fractions of the horizon."""
    bounds = [round(fraction * (spec.horizon or total)) for fraction in spec.milestones]
    return lambda step: float(spec.gamma ** sum(step >= bound for bound in bounds))
