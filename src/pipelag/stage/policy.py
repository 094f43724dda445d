"""A method's weight policy, carried out on one stage by the same object in every executor.

Every update makes a new version of a stage's weights. `load` lets the parameters hold what a pass reads, `restore` puts
the live version back, and `before_step` and `after_step` surround the optimizer's step. `prepare` computes what passes
read at the new version; the rate of the coming update must be set by then. What a pass reads at a version depends only
on the stage's state at that version, so executors that agree on versions agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from pipelag.errors import PipelagError, shown
from pipelag.methods import Method
from pipelag.methods.carriers import Buffers, Memory, Reading, Term
from pipelag.methods.reads import Amounts, Correct, Predict
from pipelag.schedules import Delays
from pipelag.stage import together
from pipelag.stage.optimized import OptimizedWeights
from pipelag.stage.showing import Aside, ByReference, Copies, InPlace
from pipelag.stage.weights import FlatParameters

Ring = list[Buffers]
Content = tuple[str, int, float]  # ("live" | "F" | "B" | "R", version, amount)
M = TypeVar("M", bound=Memory)


class StageWeights(OptimizedWeights):
    """The weights of one stage, with the versions and predictions that its passes read.

    Args:
        flat, optimizer, parameters: the stage's parameters and their optimizer, as in `OptimizedWeights`.
        back: by how many updates the oldest version that passes read is behind the live one.
        method, stage, stages, delays: what the policy follows from.
        by_reference: show old weights without copying them where possible (`pipelag.stage.showing`). For executors that
            say with each forward what its backward reads, and that run no other pass between the two.

    Raises:
        PipelagError: the policy cannot work with this optimizer.
    """

    def __init__(
        self,
        flat: FlatParameters,
        method: Method,
        stage: int,
        stages: int,
        delays: Delays,
        optimizer: Optimizer | None,
        parameters: list[nn.Parameter],
        back: int,
        by_reference: bool = False,
    ) -> None:
        super().__init__(flat, stage, optimizer, parameters)
        updated = bool(self.group_numbers)
        self.method, self.back = method, back
        self.delay = delays.forward[stage - 1]
        self.distance = self.delay - delays.backward[stage - 1]
        self.single = delays.periods[stage - 1] == 1
        self.version = self.first = 0
        self.memories: dict[str, Memory] = {}
        self.steps = 0  # updates made, for the bias correction of moments that are kept here
        self.prepared = False
        self.stashed = method.backward_reads == "stashed" or method.random is not None
        # How far what each microbatch's passes read is from a plain version, and the object that computes it.
        self.passes = {kind: method.passes(kind, stage, stages, delays) for kind in ("F", "B")}
        self.amounts: dict[str, Amounts] = {}
        self.readings: dict[str, Reading] = {}
        if updated:
            self._read("F", method.forward_reads)
            if not self.stashed:
                self._read("B", method.backward_reads)
        self.change = method.update.change(self) if updated and method.update is not None else None
        forward, backward = self.readings.get("F"), self.readings.get("B")
        if forward is not None and not self.stashed and max(delays.backward_lags[stage - 1]):
            raise PipelagError(
                f"method '{method.name}' predicts the forward's weights but reads old ones in the backward, which no "
                "executor keeps; its backward should read live or stashed weights"
            )
        # Room for plain versions, and by amount for what passes read in their place.
        as_they_are = forward is None or 0 in self.amounts["F"]  # some forward reads a plain version
        kept = back + 1 if as_they_are else 1
        self.plain: Ring = self._ring(kept) if updated and (back > 0 or self.readings) else []
        self.seen: dict[float, Ring] = {amount: self._ring(back + 1) for amount in self._different("F")}
        self.alike_made = forward is not None and backward is not None and forward.does_as(backward)
        # What backwards read is made ahead of them, or else at the moment when it is shown.
        by_reference = by_reference and not flat.reads_copies
        ahead = (forward is not None and self.alike_made and forward.laborious) or not by_reference
        self.corrected: dict[float, Buffers] = self.ahead() if ahead else {}
        self.recomputed: dict[float, Ring] = {}  # for recomputation by segments, see correct_recomputation
        self.previous: Buffers = self.like() if any(m.needs_steps for m in self.memories.values()) else []
        self.begun = self.previous  # the weights before the present update
        self.saved = -1  # the last version that was copied into `plain`
        self.rested = False  # whether `rest` has been called since the last pass
        self.showing = Aside(self) if flat.reads_copies else ByReference(self) if by_reference else InPlace(self)

    @property
    def prediction(self) -> Reading | None:
        """The reading that predicts forward weights some updates ahead; None if the method predicts none."""
        return self.readings.get("F") if isinstance(self.method.forward_reads, Predict) else None

    def remember(self, name: str, kind: Callable[[StageWeights], M]) -> M:
        """The memory of that name; the first call makes it, as `kind(self)`.

        Raises:
            PipelagError: a memory of another kind has that name already.
        """
        if name not in self.memories:
            self.memories[name] = kind(self)
        memory = self.memories[name]
        if isinstance(kind, type) and not isinstance(memory, kind):
            raise PipelagError(
                f"a stage remembers a {type(memory).__name__} as '{name}', not a {kind.__name__}; choose another name"
            )
        return memory  # type: ignore[return-value]

    def _ring(self, size: int) -> Ring:
        return [self.like() for _ in range(size)]

    def _read(self, kind: str, reads: Any) -> None:
        """Note what passes of a kind read instead of the live weights, unless all amounts are 0."""
        if isinstance(reads, str):
            return
        amounts, microbatches = reads.amounts(self.passes[kind]), len(self.passes[kind].lags)
        numbers = isinstance(amounts, Sequence) and all(isinstance(a, Real) and isfinite(a) for a in amounts)
        if not numbers or len(amounts) != microbatches:
            raise PipelagError(
                f"{type(reads).__name__}.amounts of '{self.method.name}' returns {shown(amounts)} at stage "
                f"{self.stage}; it should return a finite number for each of {microbatches} microbatches"
            )
        if any(amounts):
            self.amounts[kind], self.readings[kind] = amounts, reads.carry(self)

    def _different(self, kind: str) -> list[float]:
        return sorted({amount for amount in self.amounts.get(kind, ()) if amount})

    # What a pass reads ---------------------------------------------------------------------------------------------

    def begin_at(self, version: int) -> None:
        """Number the live version; no earlier one is kept. The rate of the coming update must be set."""
        self.version, self.first, self.prepared, self.rested = version, version, False, False
        self.showing.reset()
        self.prepare()

    def prepare(self) -> None:
        """Compute what passes read at the live version; the coming update's rate must be set."""
        together.prepare([self])

    def made(self) -> Iterable[Term]:
        """Compute what passes read at the live version, except for the sums that `add_all` can make: return these.

        The caller makes them together with those of other stages.
        """
        forward = [(ring[self.version % len(ring)], amount) for amount, ring in self.seen.items()]
        backward = [(buffers, amount) for amount, buffers in self.corrected.items()]
        backward += [(ring[self.version % len(ring)], amount) for amount, ring in self.recomputed.items()]
        if forward and backward and self.alike_made:
            forward, backward = forward + backward, []
        first = self.readings["F"].terms(forward) if forward else []
        return chain(first, self.readings["B"].terms(backward)) if backward else first

    def _content(self, kind: str, version: int, j: int) -> Content:
        kind = "F" if kind == "B" and self.stashed else kind
        amount = self.amounts[kind][j] if kind in self.amounts else 0.0
        assert self.prepared or not amount, "prepare() comes before a pass reads what it makes"
        return (kind, version, amount) if amount else ("live", version, 0.0)

    def correct_recomputation(self, lags: Sequence[int]) -> None:
        """Let T2 correct what recomputations ("R") read (PipeMare D.1).

        T2 goes back by tau_fwd - tau_recomp along the delta of the version that the recomputation reads, as the paper's
        characteristic polynomial has it. The delta_t of the paper's text is not known when a recomputation starts.

        Args:
            lags: tau_recomp of each microbatch, in updates.
        """
        if "B" not in self.readings or not isinstance(self.method.backward_reads, Correct):
            return
        amounts = self.method.backward_reads.amounts(replace(self.passes["B"], lags=tuple(lags)))
        if any(amounts):
            self.amounts["R"] = amounts
            self.recomputed = {amount: self._ring(self.back + 1) for amount in self._different("R")}
            self.prepared = False

    def ahead(self) -> dict[float, Buffers]:
        """Buffers for what backwards read at the live version, by amount."""
        return {amount: self.like() for amount in self._different("B")}

    def load(
        self,
        kind: str,
        version: int,
        j: int = 0,
        then: tuple[int, int] | None = None,
        copies: Copies | None = None,
    ) -> None:
        """Let the parameters hold what a pass at `version` reads, for the j-th microbatch of a minibatch.

        Args:
            kind: forward ("F"), backward ("B") or recomputation ("R").
            version: at most `back` updates old; for a stashed backward, that of its forward.
            then: for a forward, the (version, j) of its backward.
            copies: collects the copies that are to be made, for a caller that makes those of several stages together.
        """
        if self.plain:
            self.rested = False
            content = self._content(kind, version, j)
            follows = self._content("B", *then) if then is not None else self.showing.content
            if copies is not None:
                self.showing.show(content, content != follows, kind == "F", copies)
                return
            with Copies() as copied_now:
                self.showing.show(content, content != follows, kind == "F", copied_now)

    def alike(self, forward: tuple[int, int], backward: tuple[int, int]) -> bool:
        """Whether a forward and a backward, each as (version, microbatch of a minibatch), read the same weights."""
        return self.reads("F", *forward) == self.reads("B", *backward)

    def reads(self, kind: str, version: int, j: int = 0) -> Content:
        """What `load` would show, as a value that is equal for two passes that read the same weights."""
        return self._content(kind, version, j) if self.plain else ("live", 0, 0.0)

    def restore(self) -> None:
        """Let the parameters hold the live version again."""
        if self.plain:
            with Copies() as copied_now:
                self.showing.restore(copied_now)

    @property
    def alive(self) -> Content:
        """The live version, as a content."""
        return ("live", self.version, 0.0)

    def source(self, content: Content) -> Buffers | None:
        """The buffers that hold a content (the live buffers for the live version); None: made when it is shown."""
        kind, version, amount = content
        if content == self.alive:
            return self.live
        if kind == "B":
            return self.corrected.get(amount)
        ring = self.plain if kind == "live" else {"F": self.seen, "R": self.recomputed}[kind][amount]
        return ring[version % len(ring)]

    def read_last(self, content: Content) -> bool:
        """Whether no pass or update after the present microbatch's reads this content: its buffers may be overwritten.

        This holds for the oldest version, unless it is live, if one microbatch makes an update and the stage has no
        `change` (the method's `update`), which might read it again.
        """
        kind, version, _ = content
        oldest = version == self.version - self.back and content != self.alive
        return kind in ("live", "F") and oldest and self.single and self.change is None

    def save(self, copies: Copies) -> None:
        """Keep a copy of the live version before the live buffers are overwritten."""
        if self.saved != self.version:
            copies.keep(self, self.plain[self.version % len(self.plain)])

    def begun_with(self) -> Buffers:
        """The buffers for the weights before an update: their copy in `plain` if versions are kept, else `previous`."""
        return self.plain[self.version % len(self.plain)] if len(self.plain) > 1 else self.previous

    def stale_views(self) -> list[torch.Tensor]:
        """The parameters as the forward of the coming update read them; while the pipeline fills, the first version."""
        old = max(self.first, self.version - self.delay)
        ring = self.seen[max(self.seen)] if self.seen else self.plain
        return self.flat.views(ring[old % len(ring)])

    # What an update does beyond the optimizer's step ---------------------------------------------------------------

    def rest(self, copies: Copies) -> None:
        """Before an update: let the live buffers hold the live version again, and copy it if later passes read it."""
        if self.plain:
            self.showing.rest(copies)
        if len(self.plain) > 1:
            self.save(copies)
        self.rested = True

    @property
    def watched(self) -> bool:
        """Whether the policy does anything around the optimizer's step."""
        return self.change is not None or bool(self.memories)

    def before_step(self) -> None:
        """Call when the gradients are complete, before the optimizer steps; may change the gradients."""
        together.before_step([self])

    def complete(self) -> None:
        """The part of `before_step` that is done stage by stage; call it with autograd off."""
        if not self.rested:
            with Copies() as copies:
                self.rest(copies)
        if self.watched:
            self.along = []
            if self.change is not None:
                self.change.before_step()
                self.along = []  # the gradients may have changed
            for memory in self.memories.values():
                memory.before_step()

    def after_step(self) -> None:
        """Call when the optimizer has stepped: the next version becomes live. Call `prepare` before a pass reads it."""
        together.after_step([self])

    def advance(self) -> None:
        """Make the next version the live one; memories and changes have been told of the update."""
        self.along = []
        self.version += 1
        self.prepared = self.rested = False
        self.showing.reset()

    # Memory and state ----------------------------------------------------------------------------------------------

    @property
    def versions_held(self) -> int:
        """How many copies of the stage's weights are kept once the pipeline is full, including the live ones."""
        distinct = self.back + 1
        return max(distinct, 2 if self.readings else 1) if self.plain else 1

    @property
    def rings(self) -> list[Ring]:
        """The older versions, and what passes read in their place."""
        return [self.plain, *self.seen.values(), *self.recomputed.values()]

    @property
    def bytes(self) -> int:
        """Bytes of weight copies and of what the policy remembers, without the live weights."""
        remembered = [memory.buffers for memory in self.memories.values()]
        held = [buffers for ring in self.rings for buffers in ring]
        held += [*self.corrected.values(), *remembered, self.previous]
        return sum(buffer.numel() * buffer.element_size() for buffers in held for buffer in buffers)

    def state_dict(self) -> dict[str, Any]:
        """The policy's state between two steps, without the live weights and the optimizer's state.

        Raises:
            PipelagError: the last step broke off after it had overwritten weights that it would read if repeated.
        """
        self.showing.check()
        return {
            "version": self.version,
            "steps": self.steps,
            "saved": self.saved if len(self.plain) > 1 else -1,
            "rings": [self._ring_state(ring) for ring in self.rings],
            "memories": {name: list(memory.buffers) for name, memory in self.memories.items()},
        }

    def _ring_state(self, ring: Ring) -> list[Buffers]:
        """The versions in a ring; empty for the slot into which the live version is written before it is read."""
        free = self.version % len(ring) if ring and self.saved != self.version else -1
        return [[] if place == free else list(each) for place, each in enumerate(ring)]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state in place; restore the weights and the optimizer first."""
        self.version, self.steps = state["version"], state["steps"]
        self.saved = state["saved"] if len(self.plain) > 1 else -1
        self.prepared = self.rested = False
        self.showing.reset()
        pairs = [
            pair
            for mine, saved in zip(self.rings, state["rings"], strict=True)
            for pair in zip(mine, saved, strict=bool(saved))  # older checkpoints leave out a ring of one
            if pair[1]
        ]
        pairs += [(memory.buffers, state["memories"][name]) for name, memory in self.memories.items()]
        for mine, saved in pairs:
            for buffer, value in zip(mine, saved, strict=True):
                buffer.copy_(value)
