"""How the parameters of a stage come to hold what a pass reads: by copies where they lie, or by reference.

A graph that waits for its backward keeps some weights as the parameter and some as a view of its memory. So while one
is alive, other weights have to be written into the memory that its forward read. Where no graph is alive, parameters
may as well be pointed at other memory: that costs no copy, and the live weights stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pipelag.errors import PipelagError
from pipelag.methods.carriers import Buffers
from pipelag.stage.weights import publish

if TYPE_CHECKING:
    from pipelag.stage.policy import Content, StageWeights


class Copies:
    """What stages copy, made in two calls for all of them at the end of a block, also of one that breaks off: versions
    that are kept, then what takes their place.

    A stage's second copy may read what its first wrote, and no third follows before they are made.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[StageWeights, Buffers]] = []
        self.shown: list[tuple[StageWeights, Buffers]] = []

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *exception: object) -> None:
        self.make()

    def keep(self, stage: StageWeights, there: Buffers) -> None:
        """Copy a stage's live version before its place is taken."""
        self.kept.append((stage, there))

    def show(self, stage: StageWeights, what: Buffers) -> None:
        """Copy into a stage's live buffers."""
        self.shown.append((stage, what))

    def make(self) -> None:
        """Make them all."""
        kept, shown, self.kept, self.shown = self.kept, self.shown, [], []
        if kept:
            there = [buffer for _, buffers in kept for buffer in buffers]
            torch._foreach_copy_(there, [buffer for stage, _ in kept for buffer in stage.live])
        for stage, _ in kept:
            stage.saved = stage.version
        if shown:
            there = [buffer for stage, _ in shown for buffer in stage.live]
            torch._foreach_copy_(there, [buffer for _, buffers in shown for buffer in buffers])
        publish([(stage.flat, stage.live) for stage, _ in shown])


class InPlace:
    """Everything is copied into the live buffers, where parameters always lie: with several graphs alive (real workers,
    recomputation), or where memory has an address for good (CUDA graphs)."""

    def __init__(self, weights: StageWeights) -> None:
        self.weights, self.content = weights, weights.alive

    @property
    def buffers(self) -> Buffers:
        """What the parameters hold."""
        return self.weights.live

    def show(self, content: Content, apart: bool, forward: bool, copies: Copies) -> None:
        """Let the parameters hold it, once the copies are made."""
        weights, before = self.weights, self.content
        if content == before:
            return
        self.content = content
        if before == weights.alive:
            weights.save(copies)
        if content != weights.alive:
            source = weights.source(content)
            assert source is not None
            copies.show(weights, source)
        elif weights.saved == weights.version:  # else a step broke off before the live version had left its place
            copies.show(weights, weights.plain[weights.version % len(weights.plain)])

    def restore(self, copies: Copies) -> None:
        """Let the parameters hold the live version, once the copies are made."""
        self.show(self.weights.alive, False, False, copies)

    def reset(self) -> None:
        """The live buffers hold the live version: it is new, or was loaded."""
        self.content = self.weights.alive


class ByReference:
    """Parameters point at what their pass reads, if its backward reads the same or what they point at by then
    (`StageWeights.pointed`). Else the backward's weights are written where the forward's lay: in the place of a version
    that no later pass reads, or in one buffer of their own, into which the forward's were copied. Between two steps
    parameters lie in the live buffers.

    For an executor that takes one microbatch at a time through its forward and its backward.
    """

    def __init__(self, weights: StageWeights) -> None:
        self.weights, self.content = weights, weights.alive
        self.buffers: Buffers = weights.live
        self.own: Buffers = []
        self.apart: Buffers = []  # where a forward's weights lie that its backward writes over
        self.read = self.overwritten = weights.alive  # by the last forward whose backward reads other weights

    @torch.no_grad()
    def show(self, content: Content, apart: bool, forward: bool, copies: Copies | None = None) -> None:
        """Let the parameters hold it, of a forward or a backward, at once. apart: these two read different weights.

        Raises:
            PipelagError: it was written over by a step that broke off.
        """
        weights = self.weights
        apart &= not weights.pointed
        if content == self.content and (not apart or self.buffers is self.apart):
            return
        self.content, place = content, weights.source(content)
        if place is None and weights.pointed:
            weights.correct_ahead()
            weights.readings[content[0]].write_all([(kept, amount) for amount, kept in weights.corrected.items()])
            place = weights.source(content)
        if place is None or apart:
            if forward:
                self.apart, self.read = self._apart(content, place), content
            else:
                self.overwritten = self.read
            if place is None:
                weights.readings[content[0]].write_all([(self.apart, content[2])])
            elif place is not self.apart:
                torch._foreach_copy_(self.apart, place)
            place = self.apart
        if place is self.buffers:
            publish([(weights.flat, place)])
        else:
            weights.flat.point(place)
        self.buffers = place

    def _apart(self, content: Content, place: Buffers | None) -> Buffers:
        """Where a forward's weights are to lie that its backward writes over."""
        weights = self.weights
        if place is None or not weights.read_last(content):
            self.own = self.own or (weights.plain[0] if len(weights.plain) == 1 else weights.like())
            return self.own
        if content == self.overwritten:
            raise PipelagError("this step was begun before and broke off; go on from a checkpoint")
        self.own = []  # the pipeline is full: from now on, the oldest version is it
        return place

    def restore(self, copies: Copies | None = None) -> None:
        """Let the parameters hold the live version, where it lies."""
        weights = self.weights
        if self.buffers is not weights.live:
            if self.buffers is self.apart and self.content == weights.alive and len(weights.plain) > 1:
                self._keep()
            self.buffers, self.apart = weights.live, []
            weights.flat.point(self.buffers)
        self.content, self.own = weights.alive, [] if weights.pointed else self.own

    def _keep(self) -> None:
        """A backward read a copy of the live version: that is the one to keep, and its place is exchanged."""
        weights = self.weights
        if weights.saved == weights.version:
            return
        ring, place = weights.plain, weights.version % len(weights.plain)
        free, ring[place] = ring[place], self.apart
        if self.apart is self.own:
            self.own = free
        else:
            ring[self.overwritten[1] % len(ring)] = free
        weights.saved = weights.version

    def reset(self) -> None:
        """The live buffers hold the live version: it is new, or was loaded."""
        self.restore()
        self.overwritten = self.weights.alive
