"""How the parameters of a stage come to hold what a pass reads: by copies where they lie, or by reference.

A graph that waits for its backward keeps some weights as the parameter and some as a view of its memory. Where there
are such views, other weights have to be written into the memory that its forward read. Else parameters may as well be
pointed at other memory: that costs no copy, and the live weights stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pipelag.errors import PipelagError
from pipelag.methods.carriers import Buffers
from pipelag.stage.weights import publish

if TYPE_CHECKING:
    from pipelag.stage.policy import Content, StageWeights

UNKNOWN: Content = ("", -1, 0.0)
BROKEN = "this step was begun before and interrupted; continue from a checkpoint"


class Copies:
    """What stages copy, made in two calls for all of them at the end of a block, also of one that breaks off: versions
    that are kept, then what takes their place.

    A stage's second copy may read what its first wrote, and no third follows before they are made.
    """

    def __init__(self) -> None:
        self.to_keep: list[tuple[StageWeights, Buffers]] = []
        self.to_show: list[tuple[StageWeights, Buffers]] = []

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *exception: object) -> None:
        self.make()

    def keep(self, stage: StageWeights, there: Buffers) -> None:
        """Copy a stage's live version before its place is taken."""
        self.to_keep.append((stage, there))

    def show(self, stage: StageWeights, what: Buffers) -> None:
        """Copy into a stage's live buffers."""
        self.to_show.append((stage, what))

    def make(self) -> None:
        """Make them all."""
        to_keep, to_show, self.to_keep, self.to_show = self.to_keep, self.to_show, [], []
        if to_keep:
            there = [buffer for _, buffers in to_keep for buffer in buffers]
            torch._foreach_copy_(there, [buffer for stage, _ in to_keep for buffer in stage.live])
        for stage, _ in to_keep:
            stage.saved = stage.version
        if to_show:
            there = [buffer for stage, _ in to_show for buffer in stage.live]
            torch._foreach_copy_(there, [buffer for _, buffers in to_show for buffer in buffers])
        publish([(stage.flat, stage.live) for stage, _ in to_show])


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
        self.content, alive = content, weights.alive
        if before == alive:
            weights.save(copies)
        if content != alive:
            source = weights.source(content)
            assert source is not None
            copies.show(weights, source)
        elif weights.saved == weights.version:  # else a step broke off before the live version had left its place
            copies.show(weights, weights.plain[weights.version % len(weights.plain)])

    def restore(self, copies: Copies) -> None:
        """Let the parameters hold the live version, once the copies are made."""
        self.show(self.weights.alive, False, False, copies)

    def check(self) -> None:
        """No version is written over before its time."""

    def reset(self) -> None:
        """The live buffers hold the live version: it is new, or was loaded."""
        self.content = self.weights.alive


class ByReference:
    """Parameters point at what their pass reads. Where a graph keeps views of what its forward read, and its backward
    reads other weights, these are written there: into the place of a version that no later pass reads, or into one
    buffer of their own, into which the forward's were copied. Convolutions and norms keep no views but the parameters
    themselves, so that their backward reads what these point at by then. Which it is, is asked of the memory at every
    backward until one finds somebody else's tensors there. Between two steps parameters lie in the live buffers.

    For an executor that takes one microbatch at a time through its forward and its backward.
    """

    def __init__(self, weights: StageWeights) -> None:
        self.weights, self.content = weights, weights.alive
        self.buffers: Buffers = weights.live
        self.scratch: Buffers = []
        self.apart: Buffers = []  # where a forward's weights lie that its backward writes over
        self.read = self.overwritten = weights.alive  # by the last forward whose backward reads other weights
        self.pointed: bool | None = None  # no backward has found views; None: none has looked for them yet

    @torch.no_grad()
    def show(self, content: Content, apart: bool, forward: bool, copies: Copies | None = None) -> None:
        """Let the parameters hold it, of a forward or a backward, at once. apart: these two read different weights.

        Raises:
            PipelagError: it was written over by a step that broke off.
        """
        if content == self.content and not apart:
            return
        self.content = UNKNOWN  # until it is there
        if not apart:
            place = self.weights.source(content)
            assert place is not None
            self._point(place)
        elif forward:
            self._begin(content)
        elif self.pointed is not False and self.weights.flat.alone(self.buffers):
            self.pointed = True
            self._point(self._place_of(content))
        else:
            self.pointed = False
            self._write(content)
        self.content = content

    def _point(self, place: Buffers) -> None:
        self.buffers = []  # so that `restore` points all of them again if this breaks off
        self.weights.flat.point(place)
        self.buffers = place

    def _begin(self, content: Content) -> None:
        """A forward whose backward reads other weights."""
        weights, place = self.weights, self.weights.source(content)
        assert place is not None
        self.apart, self.read = [], content
        if not self.pointed or place is weights.live:
            self.apart = self._apart(content, place)
            if place is not self.apart:
                torch._foreach_copy_(self.apart, place)
        self._point(self.apart or place)

    def _place_of(self, content: Content) -> Buffers:
        """Where a backward's weights lie by themselves."""
        weights, place = self.weights, self.weights.source(content)
        if place is None:
            ahead = weights.ahead()
            weights.readings[content[0]].write_all([(buffers, amount) for amount, buffers in ahead.items()])
            weights.corrected, place = ahead, ahead[content[2]]
        return place

    def _write(self, content: Content) -> None:
        """Let a backward's weights lie where its forward's did, of which there are views."""
        weights = self.weights
        if self.buffers is not self.apart:
            self._set_aside()
        if self.apart is not self.scratch:
            self.overwritten = self.read
        place = weights.source(content)
        if place is None:
            weights.readings[content[0]].write_all([(self.apart, content[2])])
        else:
            torch._foreach_copy_(self.apart, place)
        publish([(weights.flat, self.apart)])

    def _set_aside(self) -> None:
        """What the forward read may be written over; a version that later passes read goes on elsewhere."""
        if not self.weights.read_last(self.read):
            other = self.weights.like()
            torch._foreach_copy_(other, self.buffers)
            for ring in self.weights.rings:
                ring[:] = [other if each is self.buffers else each for each in ring]
            self.scratch = self.buffers
        self.apart = self.buffers

    def _apart(self, content: Content, place: Buffers) -> Buffers:
        """Where a forward's weights are to lie that its backward writes over."""
        weights = self.weights
        if not weights.read_last(content):
            self.scratch = self.scratch or (weights.plain[0] if len(weights.plain) == 1 else weights.like())
            return self.scratch
        if content == self.overwritten:
            raise PipelagError(BROKEN)
        self.scratch = []  # the pipeline is full: from now on, the oldest version is it
        return place

    def restore(self, copies: Copies | None = None) -> None:
        """Let the parameters hold the live version, where it lies."""
        weights = self.weights
        if self.buffers is not weights.live:
            if self.buffers is self.apart and self.content == weights.alive and len(weights.plain) > 1:
                self._keep()
            self.content = UNKNOWN
            self._point(weights.live)
        self.apart, self.content = [], weights.alive
        self.scratch = [] if self.pointed else self.scratch

    def _keep(self) -> None:
        """A backward read a copy of the live version: that is the one to keep, and its place is exchanged."""
        weights, copy = self.weights, self.apart
        if weights.saved == weights.version:
            return
        ring, place = weights.plain, weights.version % len(weights.plain)
        free, was_scratch = ring[place], copy is self.scratch
        self.scratch = [] if was_scratch else self.scratch
        ring[:] = [copy if n == place else free if each is copy else each for n, each in enumerate(ring)]
        weights.saved = weights.version
        self.scratch = free if was_scratch else self.scratch

    def check(self) -> None:
        """Raises `PipelagError` where a step that broke off has written over what it would read again."""
        if self.overwritten != self.weights.alive:
            raise PipelagError(BROKEN)

    def reset(self) -> None:
        """The live buffers hold the live version: it is new, or was loaded."""
        self.restore()
        self.overwritten = self.weights.alive
