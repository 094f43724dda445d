"""What the timed executor needs to know: the cost of a stage's passes, and the machine they run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from pipelag.errors import PipelagError, expect, shown
from pipelag.typed import check_keywords

MOST = 1e30  # seconds or bytes; sums and quotients of values up to this stay finite


@dataclass(frozen=True)
class StageCost:
    """The cost of one stage: times in seconds and sizes in bytes, per microbatch unless stated otherwise.

    forward, backward: seconds of the passes.
    update: seconds of one update.
    output_bytes: the output that is sent to the next stage; the gradient that comes back is as large.
    kept_bytes: the activations that are kept from the forward to the backward.
    weight_bytes: one copy of the weights.
    recompute: seconds of a recomputation (an R action); None: those of the forward.
    weight_gradient: seconds of the gradients of the weights. A schedule that computes them apart (W) needs it; its B
        takes the rest of the backward.
    splitting: seconds that such a backward in two parts takes more than `backward`.
    entering_bytes: the part of `kept_bytes` that is the stage's input, all that the first stage of a recomputed segment
        keeps.
    until_w_bytes: what is kept from B to W, gradients of outputs included, in a schedule that computes the gradients of
        the weights apart; None: `kept_bytes`.
    """

    forward: float
    backward: float
    update: float = 0.0
    output_bytes: float = 0.0
    kept_bytes: float = 0.0
    weight_bytes: float = 0.0
    recompute: float | None = None
    entering_bytes: float = 0.0
    weight_gradient: float | None = None
    splitting: float = 0.0
    until_w_bytes: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_number = isinstance(value, Real)
            unsaid = name in ("recompute", "weight_gradient", "until_w_bytes") and value is None
            if not unsaid and not (is_number and 0 <= value <= MOST):
                raise PipelagError(
                    f"a stage's {name} is {shown(value)}; it should be a number from 0 on, at most {MOST:g}"
                )
        if self.weight_gradient is not None and self.weight_gradient > self.in_two_parts:
            more = " (backward and splitting)" if self.splitting else ""
            raise PipelagError(
                f"a stage's weight_gradient is {shown(self.weight_gradient)} s, but it is a part of the backward, "
                f"which takes {shown(self.in_two_parts)} s{more}"
            )

    @property
    def in_two_parts(self) -> float:
        """The seconds of B and W together, in a schedule that computes the gradients of the weights apart."""
        return self.backward + self.splitting


@dataclass(frozen=True)
class Topology:
    """The links between workers.

    bandwidth: bytes per second of a link; each ordered pair of workers has its own link.
    latency: seconds that every message takes besides.
    shared: True: all messages take turns on one medium, such as a bus or an Ethernet segment.
    overlap: True: a worker computes while its messages are on their way. False: sending blocks it.
    """

    bandwidth: float = float("inf")
    latency: float = 0.0
    shared: bool = False
    overlap: bool = True

    def __post_init__(self) -> None:
        numbers = isinstance(self.bandwidth, Real) and isinstance(self.latency, Real)
        if not (numbers and self.bandwidth >= 1 / MOST and 0 <= self.latency <= MOST):
            raise PipelagError(
                f"a link needs a bandwidth above 0 (from {1 / MOST:g} on) and a latency from 0 on (to {MOST:g}), not "
                f"{shown(self.bandwidth)} and {shown(self.latency)}"
            )
        for name in ("shared", "overlap"):
            expect(f"a link's {name}", getattr(self, name), bool, "True or False")

    def seconds(self, size: float) -> float:
        """The seconds that a message of `size` bytes takes over a free link."""
        return self.latency + size / self.bandwidth

    def ring_seconds(self, size: float, workers: int) -> float:
        """The seconds that so many workers take to sum gradients of `size` bytes in a ring of these links.

        See the function `ring_seconds`.
        """
        return ring_seconds(size, workers, self.bandwidth, self.latency)


def summed_bytes(size: float, workers: int) -> float:
    """The bytes that m workers send in all until each has the sum of their gradients: 2 (m-1) times their `size`.

    In a ring each worker sends 2 (m-1)/m of the size. If one of them is the server, the others send it their gradients
    and get the sum back.
    """
    return 2 * (workers - 1) * size


def summed_messages(workers: int) -> int:
    """The number of messages that follow one another in such a sum: 2 (m-1).

    In a ring each worker sends so many messages; with a server, its link carries so many.
    """
    return 2 * (workers - 1)


def ring_seconds(size: float, workers: int, bandwidth: float, latency: float = 0.0) -> float:
    """The seconds of a ring all-reduce of `size` bytes among m workers.

    Each worker sends 2 (m-1)/m of the size in 2 (m-1) messages, and receives as much at the same time. Nothing to sum
    takes no time. PipeDream's section 3.1 counts half of these bytes as sent, half as received (ambiguity C4).
    """
    return summed_bytes(size, workers) / workers / bandwidth + summed_messages(workers) * latency * (size > 0)


def uniform(stages: int, forward: float = 1.0, backward: float = 2.0, **sizes: float) -> list[StageCost]:
    """Costs of equal stages, as in the papers' diagrams: by default a backward takes twice as long as a forward.

    Half of a backward computes the gradients of the weights, unless `weight_gradient=` says otherwise.

    Args:
        stages: the number of stages.
        forward, backward: seconds per microbatch.
        sizes: other fields of `StageCost` by name, such as `output_bytes=` and `update=`.

    Raises:
        PipelagError: `stages` is not a whole number from 1 on, a time or size is not a number from 0 on, or `StageCost`
            has no such field.
    """
    if not isinstance(stages, Integral) or stages < 1:
        raise PipelagError(f"the number of stages is {shown(stages)}; it should be a whole number from 1 on")
    check_keywords(StageCost, 2, list(sizes), "cost of a stage")
    half = backward / 2 if isinstance(backward, Real) else None
    return [StageCost(forward, backward, **{"weight_gradient": half, **sizes})] * int(stages)


def check_costs(costs: Sequence[StageCost], stages: int) -> None:
    """Refuse costs that are not `StageCost`s, or that are not one per stage."""
    for number, cost in enumerate(costs, start=1):
        expect(f"cost {number}", cost, StageCost, "a pipelag.StageCost, such as those of pipelag.uniform(4)")
    if len(costs) != stages:
        raise PipelagError(
            f"the schedule has {stages} stages, but there are costs for {len(costs)}; cut the profile into {stages} "
            "stages"
        )
