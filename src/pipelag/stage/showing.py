"""How the parameters of a stage come to hold what a pass reads: by copies where they lie, or by reference.

A graph that waits for its backward keeps some weights as the parameter and some as a view of its memory. So while one
is alive, other weights have to be written into the memory that its forward read. Where no graph is alive, parameters
may as well be pointed at other memory: that costs no copy, and the live weights stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pipelag.methods.carriers import Buffers

if TYPE_CHECKING:
    from pipelag.stage.policy import Content, StageWeights


class InPlace:
    """Everything is copied into the live buffers, where parameters always lie: with several graphs alive (real workers,
    recomputation), or where memory has an address for good (CUDA graphs)."""

    def __init__(self, weights: StageWeights) -> None:
        self.weights, self.content = weights, weights.alive

    @property
    def buffers(self) -> Buffers:
        """What the parameters hold."""
        return self.weights.live

    def show(self, content: Content, apart: bool) -> None:
        """Let the parameters hold it."""
        weights = self.weights
        if content == self.content:
            return
        if self.content == weights.alive:
            weights.save()
        kept = weights.plain[weights.version % len(weights.plain)]
        source = kept if content == weights.alive else weights.source(content)
        assert source is not None
        torch._foreach_copy_(weights.live, source)
        weights.flat.publish(weights.live)
        self.content = content

    def restore(self) -> None:
        """Let the parameters hold the live version."""
        self.show(self.weights.alive, False)

    def begun(self) -> Buffers:
        """The weights that an update begins with, kept until it is made."""
        torch._foreach_copy_(self.weights.previous, self.weights.live)
        return self.weights.previous

    def reset(self) -> None:
        """The live buffers hold the live version: it is new, or was loaded."""
        self.content = self.weights.alive


class ByReference:
    """Parameters point at what their pass reads, if its backward reads the same; else at one buffer of their own, into
    which that of the forward is copied, and then that of the backward. Between two steps they lie in the live buffers.

    For an executor that takes one microbatch at a time through its forward and its backward.
    """

    def __init__(self, weights: StageWeights) -> None:
        self.weights, self.content = weights, weights.alive
        self.buffers: Buffers = weights.live
        self.own: Buffers = []

    @torch.no_grad()
    def show(self, content: Content, apart: bool) -> None:
        """Let the parameters hold it. apart: the forward that comes and its backward read different weights."""
        weights = self.weights
        if content == self.content and (not apart or self.buffers is self.own):
            return
        self.content, place = content, weights.source(content)
        if place is None or apart:
            self.own = self.own or (weights.plain[0] if len(weights.plain) == 1 else weights.like())
            if place is None:
                weights.readings[content[0]].write_all([(self.own, content[2])])
            else:
                torch._foreach_copy_(self.own, place)
            place = self.own
        if place is self.buffers:
            weights.flat.publish(place)
        else:
            weights.flat.point(place)
        self.buffers = place

    def restore(self) -> None:
        """Let the parameters hold the live version, where it lies."""
        if self.buffers is not self.weights.live:
            self.buffers = self.weights.live
            self.weights.flat.point(self.buffers)
        self.content = self.weights.alive

    def begun(self) -> Buffers:
        """The weights that an update begins with, which may be kept anyway."""
        weights = self.weights
        if len(weights.plain) > 1 and weights.saved == weights.version:
            return weights.plain[weights.version % len(weights.plain)]
        torch._foreach_copy_(weights.previous, weights.live)
        return weights.previous

    def reset(self) -> None:
        """The live buffers hold the live version: it is new, or was loaded."""
        self.restore()
