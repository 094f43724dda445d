"""Gradients of replicated stages, simulated: summed per replica over a round, then over the replicas, then the mean.

In this order real workers add them up, so that simulated and real agree bit for bit (two replicas; the sum over more
of them is made in another order by a real all-reduce). Each replica has buffers of its own, as it has there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from pipelag.schedules import Delays
from pipelag.stage.policy import StageWeights

Sums = list[list[list[torch.Tensor | None]]]  # per stage, replica and parameter


class Rounds:
    """The unfinished rounds of all stages."""

    def __init__(self, weights: Sequence[StageWeights], delays: Delays) -> None:
        self.weights, self.places, self.periods = weights, delays.places, delays.periods
        self.sums: Sums = [
            [[None] * len(w.flat.parameters) for _ in range(1 + max(place))]
            for w, place in zip(weights, self.places, strict=True)
        ]

    def collect(self, m: int) -> None:
        """Take the gradients that microbatch m has made."""
        for weights, sums, place in zip(self.weights, self.sums, self.places, strict=True):
            row = sums[place[m % len(place)]]
            for at, parameter in enumerate(weights.flat.parameters):
                before, gradient = row[at], parameter.grad
                row[at] = gradient if before is None else before if gradient is None else before + gradient
                parameter.grad = None

    def ending(self, t: int, microbatches: int) -> list[int]:
        """The stages whose round minibatch t ends, their parameters given the round's mean gradient."""
        done, ending = (t + 1) * microbatches, []
        for index, (weights, sums, period) in enumerate(zip(self.weights, self.sums, self.periods, strict=True)):
            if done % period:
                continue
            ending.append(index)
            minibatches = period // microbatches
            for at, parameter in enumerate(weights.flat.parameters):
                total: torch.Tensor | None = None
                for row in sums:
                    gradient, row[at] = row[at], None
                    total = gradient if total is None else total if gradient is None else total + gradient
                parameter.grad = total / minibatches if total is not None and minibatches > 1 else total
        return ending

    def restore(self, sums: Sums, device: torch.device) -> None:
        """Go on inside a round."""
        self.sums = [[[g if g is None else g.to(device) for g in row] for row in stage] for stage in sums]


Key = tuple[int, int]  # a stage, from 0, and its replica, from 1


class Buffers:
    """What the replicas of a stage have in their buffers; the first's are the module's.

    They begin a phase equal, and go apart where passes change them: running means, counters.
    """

    def __init__(self, stages: Sequence[nn.Module], places: Sequence[Sequence[int]]) -> None:
        self.places = places
        self.held = [[(part, name) for part in stage.modules() for name in part._buffers] for stage in stages]
        self.own: dict[Key, list[torch.Tensor | None]] = {}
        self.begin()

    def begin(self) -> None:
        """All have what the first has."""
        for index, place in enumerate(self.places):
            for replica in range(1, 1 + max(place)):
                buffers = [part._buffers[name] for part, name in self.held[index]]
                copies = {id(buffer): buffer.clone() for buffer in buffers if buffer is not None}
                self.own[index, replica] = [copies.get(id(buffer)) for buffer in buffers]

    @contextmanager
    def of(self, index: int, m: int) -> Iterator[None]:
        """Around a stage's forward of microbatch m: its module has the buffers of the replica whose that is."""
        place = self.places[index]
        key, held = (index, place[m % len(place)]), self.held[index]
        if key not in self.own:
            yield
            return
        first = [part._buffers[name] for part, name in held]
        _put(held, self.own[key])
        try:
            yield
        finally:
            self.own[key] = [part._buffers[name] for part, name in held]
            _put(held, first)

    def restore(self, own: Mapping[Key, Sequence[torch.Tensor | None]] | None, device: torch.device) -> None:
        """Go on with these; a checkpoint of before they were kept has none."""
        self.begin()
        for key, buffers in (own or {}).items():
            self.own[key] = [b if b is None else b.to(device, copy=True) for b in buffers]


def _put(held: Sequence[tuple[nn.Module, str]], buffers: Sequence[torch.Tensor | None]) -> None:
    for (part, name), buffer in zip(held, buffers, strict=True):
        part._buffers[name] = buffer
