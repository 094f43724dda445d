"""Gradients of replicated stages in the simulated executor: summed per replica over a round, then over the replicas.

The update uses the mean. Real workers add in the same order, so that both executors agree bit for bit with two
replicas; over more, a real all-reduce adds in another order. Each replica has its own buffers, as on real workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.schedules import Delays
from pipelag.stage.policy import StageWeights
from pipelag.stage.showing import BROKEN

Sums = list[list[list[torch.Tensor | None]]]  # per stage, replica and parameter


class Rounds:
    """The gradient sums of all stages' unfinished rounds."""

    def __init__(self, weights: Sequence[StageWeights], delays: Delays) -> None:
        self.weights, self.places, self.periods = weights, delays.places, delays.periods
        self.sums: Sums = [
            [[None] * len(w.flat.parameters) for _ in range(1 + max(place))]
            for w, place in zip(weights, self.places, strict=True)
        ]
        self.last = -1  # the microbatch whose gradients were added last

    def collect(self, m: int) -> None:
        """Add the gradients of microbatch m to its replicas' sums, and clear them in the parameters.

        Raises:
            PipelagError: a step that was interrupted is taken again; its gradients are in the sums already.
        """
        if m <= self.last:
            raise PipelagError(BROKEN)
        self.last = m
        for weights, sums, place in zip(self.weights, self.sums, self.places, strict=True):
            row = sums[place[m % len(place)]]
            for at, parameter in enumerate(weights.flat.parameters):
                before, gradient = row[at], parameter.grad
                row[at] = gradient if before is None else before if gradient is None else before + gradient
                parameter.grad = None

    def ending(self, t: int, microbatches: int) -> list[int]:
        """The stages whose round ends with minibatch t; gives their parameters the round's mean gradient."""
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
        """Continue from these sums, in the midst of rounds."""
        self.last = -1
        self.sums = [[[g if g is None else g.to(device) for g in row] for row in stage] for stage in sums]


Key = tuple[int, int]  # a stage, from 0, and its replica, from 1


class Buffers:
    """The buffers of every replica of every stage; those of a stage's first replica are the module's own.

    At the start of a phase they are equal. They diverge where passes change them (running means, counters).
    """

    def __init__(self, stages: Sequence[nn.Module], places: Sequence[Sequence[int]]) -> None:
        self.places = places
        self.held = [[(part, name) for part in stage.modules() for name in part._buffers] for stage in stages]
        self.own: dict[Key, list[torch.Tensor | None]] = {}
        self.begin()

    def begin(self) -> None:
        """Give every replica copies of the first one's buffers."""
        for index, place in enumerate(self.places):
            for replica in range(1, 1 + max(place)):
                buffers = [part._buffers[name] for part, name in self.held[index]]
                copies = {id(buffer): buffer.clone() for buffer in buffers if buffer is not None}
                self.own[index, replica] = [copies.get(id(buffer)) for buffer in buffers]

    @contextmanager
    def of(self, index: int, m: int) -> Iterator[None]:
        """A context for a stage's forward of microbatch m, in which the module has the buffers of m's replica."""
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
        """Continue with these buffers; None: an older checkpoint, without them."""
        self.begin()
        for key, buffers in (own or {}).items():
            self.own[key] = [b if b is None else b.to(device, copy=True) for b in buffers]


def _put(held: Sequence[tuple[nn.Module, str]], buffers: Sequence[torch.Tensor | None]) -> None:
    for (part, name), buffer in zip(held, buffers, strict=True):
        part._buffers[name] = buffer
