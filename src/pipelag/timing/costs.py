"""What the timed executor needs to know: the cost of a stage's passes, and the machine they run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelag.errors import PipelagError


@dataclass(frozen=True)
class StageCost:
    """One stage. Times in seconds and sizes in bytes, both per microbatch; `weight_bytes` per copy of the weights.

    output_bytes: what its output takes on a link; the gradient that comes back is as large.
    kept_bytes: the activations it keeps from a microbatch's forward to its backward.
    recompute: of an R action; the forward's time where it is not given.
    entering_bytes: the part of `kept_bytes` that is its input, all that the first stage of a recomputed segment keeps.
    """

    forward: float
    backward: float
    update: float = 0.0
    output_bytes: float = 0.0
    kept_bytes: float = 0.0
    weight_bytes: float = 0.0
    recompute: float | None = None
    entering_bytes: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 0:
                raise PipelagError(f"a stage's {name} cannot be negative, and {value} is")


@dataclass(frozen=True)
class Topology:
    """The links between workers.

    bandwidth: bytes per second of a link, one link per ordered pair of workers; latency: seconds per message.
    shared: all messages take turns on one medium (a bus, an Ethernet segment).
    overlap: a worker computes while its messages are on their way; otherwise sending holds it up.
    """

    bandwidth: float = float("inf")
    latency: float = 0.0
    shared: bool = False
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.bandwidth <= 0 or self.latency < 0:
            raise PipelagError(
                f"a link needs a bandwidth above 0 and a latency from 0 on, not {self.bandwidth} and {self.latency}"
            )

    def seconds(self, size: float) -> float:
        """How long a message of `size` bytes is on a free link."""
        return self.latency + size / self.bandwidth


def uniform(stages: int, forward: float = 1.0, backward: float = 2.0, **sizes: float) -> list[StageCost]:
    """Equal stages, as the papers' diagrams assume: by default a backward takes twice a forward's time."""
    return [StageCost(forward, backward, **sizes)] * stages


def check_costs(costs: Sequence[StageCost], stages: int) -> None:
    """Refuse costs for another number of stages."""
    if len(costs) != stages:
        raise PipelagError(
            f"the schedule has {stages} stages, and the costs are of {len(costs)}; cut the profile alike"
        )
