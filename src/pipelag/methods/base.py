"""A method is three small choices: a schedule, which weights a pass reads, and a learning-rate policy.

Methods know schedules and nothing else: no torch here, so that listing them is cheap. The executors ask a method
for its schedule and for `backward_reads`; every staleness follows from the schedule (`pipelag.schedules.delays`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pipelag.errors import PipelagError, unknown
from pipelag.schedules import Delays, Schedule, steady_delays

METHODS: dict[str, Method] = {}


@dataclass(frozen=True)
class Method:
    """A training method.

    build: `(stages, minibatches)` -> `Schedule` with one worker per stage.
    backward_reads: "live", the weights present when the backward runs; or "stashed", the version that the same
        minibatch's forward read, kept until then (PipeDream's weight stashing).
    learning_rate: the factor on a stage's base rate, from (stage, stages, step of the phase, forward delay).
    """

    name: str
    summary: str
    source: str
    build: Callable[[int, int], Schedule]
    backward_reads: Literal["live", "stashed"] = "live"
    learning_rate: Callable[[int, int, int, int], float] | None = None
    pipelined: bool = True  # False: stages are never at work together, so cuts change nothing but who computes

    def schedule(self, stages: int, minibatches: int) -> Schedule:
        """The schedule over `stages` stages; raises `PipelagError` for counts below 1."""
        if stages < 1 or minibatches < 1:
            raise PipelagError(f"a schedule needs at least 1 stage and 1 minibatch, not {stages} and {minibatches}")
        return self.build(stages, minibatches)

    def delays(self, stages: int) -> Delays:
        """Steady-state staleness per stage, as the weights policy leaves it."""
        derived = steady_delays(self.build, stages)
        if self.backward_reads == "live":
            return derived
        return Delays(derived.forward, derived.forward, derived.forward_versions, derived.forward_versions)


def register(method: Method) -> Method:
    """Make a method known by its name to every executor, to the config files and to the command line.

    Raises:
        PipelagError: the name is taken by another method.
    """
    if METHODS.get(method.name, method) != method:
        raise PipelagError(f"a method named '{method.name}' is registered already; choose another name")
    METHODS[method.name] = method
    return method


def get(name: str | Method) -> Method:
    """The method of that name (a `Method` passes through); unknown names are refused with the nearest known."""
    if isinstance(name, Method):
        return name
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
