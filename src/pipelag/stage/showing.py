"""How a stage's parameters come to hold the weights that a pass reads: by copies in place or apart, or by reference.

A graph that waits for its backward has saved some weights as the parameter itself and some as a view of its memory. If
there are such views, other weights for the backward have to be written into the memory that the forward read. If there
are none, the parameters can be pointed at other memory, which takes no copy and leaves the live weights where they are.
In bfloat16 passes read copies in any case, so that nothing is ever written over the live weights.
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
    """Collects the copies of several stages, and makes them in a few calls when a `with` block ends or fails.

    The first call keeps live versions; the second overwrites the live buffers, or what passes read in their place. The
    second copy of a stage may read what the first one wrote. A stage asks for no third copy before these are made.
    """

    def __init__(self) -> None:
        self.to_keep: list[tuple[StageWeights, Buffers]] = []
        self.to_show: list[tuple[StageWeights, Buffers]] = []
        self.to_publish: list[tuple[Aside, Content, Buffers]] = []

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *exception: object) -> None:
        self.make()

    def keep(self, stage: StageWeights, there: Buffers) -> None:
        """Copy a stage's live version before the live buffers are overwritten."""
        self.to_keep.append((stage, there))

    def show(self, stage: StageWeights, what: Buffers) -> None:
        """Copy `what` into a stage's live buffers."""
        self.to_show.append((stage, what))

    def publish(self, showing: Aside, content: Content, what: Buffers) -> None:
        """Copy `what` to the copies that a stage's passes read, which are this content's from then on."""
        self.to_publish.append((showing, content, what))

    def make(self) -> None:
        """Make all copies that have been asked for."""
        to_keep, to_show, to_publish = self.to_keep, self.to_show, self.to_publish
        self.to_keep, self.to_show, self.to_publish = [], [], []
        if to_keep:
            there = [buffer for _, buffers in to_keep for buffer in buffers]
            torch._foreach_copy_(there, [buffer for stage, _ in to_keep for buffer in stage.live])
        for stage, _ in to_keep:
            stage.saved = stage.version
        if to_show:
            there = [buffer for stage, _ in to_show for buffer in stage.live]
            torch._foreach_copy_(there, [buffer for _, buffers in to_show for buffer in buffers])
        if to_publish:
            publish((showing.weights.flat, what) for showing, _, what in to_publish)
        for showing, content, _ in to_publish:
            showing.content = content


class ByCopies:
    """What the ways of showing that copy have in common."""

    ahead = False  # a forward may be shown without saying what its backward reads

    def __init__(self, weights: StageWeights) -> None:
        self.weights, self.content = weights, weights.alive

    def show(self, content: Content, apart: bool, forward: bool, copies: Copies) -> None:
        """Let the parameters hold a content, once the copies are made."""
        raise NotImplementedError

    def restore(self, copies: Copies) -> None:
        """Let the parameters hold the live version, once the copies are made."""
        self.show(self.weights.alive, False, False, copies)

    def check(self) -> None:
        """Does nothing: no version that is still needed is ever overwritten."""


class Aside(ByCopies):
    """Copies what a pass reads to memory of its own, which the parameters hold (`FlatParameters.shown`).

    The live buffers always hold the live version.
    """

    def __init__(self, weights: StageWeights) -> None:
        super().__init__(weights)
        self.buffers: Buffers = weights.live  # what the parameters are copies of

    def show(self, content: Content, apart: bool, forward: bool, copies: Copies) -> None:
        """Let the parameters hold a content, once the copies are made."""
        if content == self.content:
            return
        source = self.weights.source(content)
        assert source is not None
        self.content, self.buffers = UNKNOWN, source  # until the copies are made
        copies.publish(self, content, source)

    def rest(self, copies: Copies) -> None:
        """Call before an update, after which the new version is published: no pass reads the parameters till then."""
        if self.content != self.weights.alive:
            self.content, self.buffers = UNKNOWN, self.weights.live

    def reset(self) -> None:
        """Call when the live version is new or was loaded, and is or will be published before a pass reads it."""
        self.content, self.buffers = self.weights.alive, self.weights.live


class InPlace(ByCopies):
    """Copies what a pass reads into the live buffers; the parameters are always views of these.

    For executors with several graphs alive at once (real workers, recomputation) or with fixed addresses (CUDA graphs).
    """

    @property
    def buffers(self) -> Buffers:
        """The buffers that the parameters are views of."""
        return self.weights.live

    def show(self, content: Content, apart: bool, forward: bool, copies: Copies) -> None:
        """Let the parameters hold a content, once the copies are made."""
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
        elif weights.saved == weights.version:  # otherwise a step failed before the live version was overwritten
            copies.show(weights, weights.plain[weights.version % len(weights.plain)])

    def rest(self, copies: Copies) -> None:
        """Call before an update."""
        self.restore(copies)

    def reset(self) -> None:
        """Call when the live buffers hold the live version because it is new or was loaded."""
        self.content = self.weights.alive


class ByReference:
    """Points the parameters at the weights that a pass reads, for executors that run one microbatch at a time.

    Convolutions and norms save the parameters themselves, so that their backward reads whatever these point at by then.
    Other layers save views of the memory that the forward read. If the backward is to read other weights, these are
    written to that memory. It then has to be either the place of a version that no later pass reads, or a scratch
    buffer into which the forward's weights were copied. Every backward checks by the memory's use count whether there
    are views, until one backward has found some. Between two steps the parameters are views of the live buffers.
    """

    ahead = True

    def __init__(self, weights: StageWeights) -> None:
        self.weights, self.content = weights, weights.alive
        self.buffers: Buffers = weights.live
        self.scratch: Buffers = []
        self.apart: Buffers = []  # holds the weights of a forward until its backward overwrites them
        self.read = self.overwritten = weights.alive  # of the last forward whose backward reads other weights
        self.pointed: bool | None = None  # True: no backward has found views; None: no backward has looked yet

    @torch.no_grad()
    def show(self, content: Content, apart: bool, forward: bool, copies: Copies | None = None) -> None:
        """Let the parameters hold what a forward or a backward reads, at once.

        Args:
            apart: whether this forward and its backward read different weights.

        Raises:
            PipelagError: a step that failed has overwritten the content.
        """
        if content == self.content and not apart:
            return
        self.content = UNKNOWN  # until the weights are in place
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
        self.buffers = []  # so that `restore` points all parameters anew if this fails
        self.weights.flat.point(place)
        self.buffers = place

    def _begin(self, content: Content) -> None:
        """Show what a forward reads whose backward reads other weights."""
        weights, place = self.weights, self.weights.source(content)
        assert place is not None
        self.apart, self.read = [], content
        if not self.pointed or place is weights.live:
            self.apart = self._apart(content, place)
            if place is not self.apart:
                torch._foreach_copy_(self.apart, place)
        self._point(self.apart or place)

    def _place_of(self, content: Content) -> Buffers:
        """The buffers with what a backward reads; computed now if it was not computed ahead."""
        weights, place = self.weights, self.weights.source(content)
        if place is None:
            ahead = weights.ahead()
            weights.readings[content[0]].write_all([(buffers, amount) for amount, buffers in ahead.items()])
            weights.corrected, place = ahead, ahead[content[2]]
        return place

    def _write(self, content: Content) -> None:
        """Write what a backward reads over what its forward read, since the graph has views of that memory."""
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

    def _set_aside(self) -> None:
        """Let the memory that the forward read be overwritten; first copy its version away if later passes read it."""
        if not self.weights.read_last(self.read):
            other = self.weights.like()
            torch._foreach_copy_(other, self.buffers)
            for ring in self.weights.rings:
                ring[:] = [other if each is self.buffers else each for each in ring]
            self.scratch = self.buffers
        self.apart = self.buffers

    def _apart(self, content: Content, place: Buffers) -> Buffers:
        """The buffers to hold what a forward reads, such that its backward may overwrite them."""
        weights = self.weights
        if not weights.read_last(content):
            self.scratch = self.scratch or (weights.plain[0] if len(weights.plain) == 1 else weights.like())
            return self.scratch
        if content == self.overwritten:
            raise PipelagError(BROKEN)
        self.scratch = []  # the pipeline is full: from now on, the oldest version's own buffers will do
        return place

    def restore(self, copies: Copies | None = None) -> None:
        """Point the parameters at the live buffers, which hold the live version."""
        weights = self.weights
        if self.buffers is not weights.live:
            if self.buffers is self.apart and self.content == weights.alive and len(weights.plain) > 1:
                self._keep()
            self.content = UNKNOWN
            self._point(weights.live)
        self.apart, self.content = [], weights.alive
        self.scratch = [] if self.pointed else self.scratch

    rest = restore  # what is called before an update

    def _keep(self) -> None:
        """Keep the copy of the live version that a backward has read, by exchanging buffers with the ring."""
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
        """Raise `PipelagError` if a step that failed has overwritten what it would read if it were repeated."""
        if self.overwritten != self.weights.alive:
            raise PipelagError(BROKEN)

    def reset(self) -> None:
        """Call when the live buffers hold the live version because it is new or was loaded."""
        self.restore()
        self.overwritten = self.weights.alive
