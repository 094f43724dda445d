"""The weight policy of a method carried out on one stage: the same object in every executor.

Between two updates a stage's weights have a version. `load` puts into the live weights what a pass reads, `restore`
puts the live version back, and `before_step`/`after_step` surround the optimizer's step; `prepare`, once the rate of
the coming update is set, makes what passes read of the new version. What a pass reads at a version is a function of the
stage's state at that version alone, so executors that agree on versions agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from pipelag.errors import PipelagError, shown
from pipelag.methods import Method
from pipelag.methods.carriers import Buffers, Memory, Reading, Term
from pipelag.methods.prediction import coupled_decay
from pipelag.methods.reads import Amounts, Correct, Predict
from pipelag.schedules import Delays
from pipelag.stage import together
from pipelag.stage.showing import ByReference, Copies, InPlace
from pipelag.stage.weights import FlatParameters
from pipelag.tensors import as_real

if TYPE_CHECKING:
    from pipelag.stage.flat_step import FlatState

Ring = list[Buffers]
Group = dict[str, Any]  # settings, as of `torch.optim.Optimizer.param_groups`
Content = tuple[str, int, float]  # ("live" | "F" | "B" | "R", version, amount)
M = TypeVar("M", bound=Memory)


class StageWeights:
    """What the passes of one stage read.

    Args:
        flat: the stage's parameters. They are the live weights.
        optimizer, parameters: the optimizer that updates this stage, and the parameters (in the order of `flat`,
            sharing its storage) whose gradients and state it has.
        back: how many updates older than the live weights a version can be that is still loaded.
        method, stage, stages, delays: decide the policy.
        by_reference: show old weights without copying where that can be (`pipelag.stage.showing`): for executors that
            say with each forward what its backward reads, and take no other pass between the two.

    Raises:
        PipelagError: an optimizer that the policy cannot work with.
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
        self.flat, self.live, self.method = flat, flat.buffers, method
        self.optimizer, self.parameters, self.back = optimizer, parameters, back
        self.size = sum(buffer.numel() for buffer in flat.buffers)  # in numbers
        self.complex = any(buffer.is_complex() for buffer in flat.buffers)
        self.laid: FlatState | None = None  # the optimizer's state, where it lies flat (`pipelag.stage.flat_step`)
        self.stage, self.delay = stage, delays.forward[stage - 1]
        self.distance = self.delay - delays.backward[stage - 1]
        self.single = delays.periods[stage - 1] == 1
        self.version = self.first = 0
        self.memories: dict[str, Memory] = {}
        self.along: list[torch.Tensor | None] = []  # see `gradients`
        self.steps = 0  # updates seen, for the bias correction of moments kept here
        self.prepared = False
        groups = optimizer.param_groups if optimizer is not None else []
        numbers = [number for number, group in enumerate(groups) if group["stage"] == stage]
        active = bool(flat.buffers) and bool(numbers)
        self.group_numbers = [numbers[group] for group in flat.groups] if active else []  # of each buffer
        self.stashed = method.backward_reads == "stashed" or method.random is not None
        # By how much the passes of each microbatch are changed, and what changes them.
        self.passes = {kind: method.passes(kind, stage, stages, delays) for kind in ("F", "B")}
        self.amounts: dict[str, Amounts] = {}
        self.readings: dict[str, Reading] = {}
        if active:
            self._read("F", method.forward_reads)
            if not self.stashed:
                self._read("B", method.backward_reads)
        self.change = method.update.change(self) if active and method.update is not None else None
        if "F" in self.readings and not self.stashed and max(delays.backward_lags[stage - 1]):
            raise PipelagError(
                f"method '{method.name}' predicts the forward's weights and reads old ones in the backward, which no "
                "executor keeps; let the backward read live or stashed weights"
            )
        moved = active and (back > 0 or bool(self.readings))
        as_they_are = "F" not in self.readings or 0 in self.amounts["F"]  # some forward reads a version itself
        self.plain: Ring = self._ring(back + 1 if as_they_are else 1) if moved else []
        self.seen: dict[float, Ring] = {amount: self._ring(back + 1) for amount in self._different("F")}
        forward, backward = self.readings.get("F"), self.readings.get("B")
        self.alike_made = forward is not None and backward is not None and forward.does_as(backward)
        ahead = (forward is not None and self.alike_made and forward.laborious) or not by_reference  # else as shown
        self.corrected: dict[float, Buffers] = self.ahead() if ahead else {}
        self.recomputed: dict[float, Ring] = {}  # of recomputation by segments, see correct_recomputation
        self.previous: Buffers = self.like() if any(m.needs_steps for m in self.memories.values()) else []
        self.begun = self.previous  # the weights that the update under way began with
        self.saved = -1  # the version whose copy `plain` holds last
        self.rested = False  # since the last pass: the live version is in its place, and kept where it has to be
        self.showing = ByReference(self) if by_reference else InPlace(self)

    @property
    def groups(self) -> list[Group]:
        """The optimizer's group of each of the weights' buffers.

        Not kept: restoring an optimizer replaces its groups by new ones.
        """
        assert self.optimizer is not None
        return [self.optimizer.param_groups[number] for number in self.group_numbers]

    @property
    def group(self) -> Group:
        """The optimizer's group of this stage, where that has one.

        Raises:
            PipelagError: there are several, each of buffers of its own.
        """
        if len(set(self.group_numbers)) > 1:
            raise PipelagError(
                f"stage {self.stage} has parameter groups whose settings may differ; ask `groups`, one for each of the "
                "weights' buffers, or `parameter_groups`"
            )
        return self.groups[0]

    @property
    def parameter_groups(self) -> list[Group]:
        """The optimizer's group of each parameter, in the order of `parameters`."""
        groups = self.groups
        return [groups[self.flat.places[parameter][0]] for parameter in self.flat.parameters]

    def state_beside(self, buffers: Sequence[Buffers], by_number: bool) -> Iterable[tuple[Any, ...]]:
        """(the optimizer's state, the group, that part of each of the buffers), parameter by parameter.

        by_number: or by larger pieces that the parameters lie in, for who treats every number by itself. A complex one
            is two of them, as torch's optimizers have it.
        """
        assert self.optimizer is not None
        parts: Iterable[tuple[Any, ...]]
        if by_number and self.laid is not None and self.laid.holds():
            parts = self.laid.parts(buffers)
        else:
            state = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
            parts = zip(state, self.parameter_groups, *[self.flat.views(each) for each in buffers], strict=True)
        return (tuple(map(as_real, part)) for part in parts) if by_number and self.complex else parts

    def gradients(self) -> list[torch.Tensor | None]:
        """Those of the coming update, as the optimizer steps along them; made once for all who remember them."""
        self.along = self.along or coupled_decay(self.parameters, self.parameter_groups, self.optimizer)
        return self.along

    @property
    def prediction(self) -> Reading | None:
        """What foresees weights so many updates ahead, where the method predicts."""
        return self.readings.get("F") if isinstance(self.method.forward_reads, Predict) else None

    def like(self) -> Buffers:
        """Zeros in the layout of the weights."""
        return self.flat.like()

    def remember(self, name: str, kind: Callable[[StageWeights], M]) -> M:
        """The memory of that name; whoever asks first makes it, by its class or any function of the stage.

        Raises:
            PipelagError: of that name, another kind is kept already.
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
        """Note what passes of a kind read instead of the live weights, unless that changes nothing."""
        if isinstance(reads, str):
            return
        amounts, microbatches = reads.amounts(self.passes[kind]), len(self.passes[kind].lags)
        numbers = isinstance(amounts, Sequence) and all(isinstance(a, Real) and isfinite(a) for a in amounts)
        if not numbers or len(amounts) != microbatches:
            raise PipelagError(
                f"{type(reads).__name__}.amounts of '{self.method.name}' gives {shown(amounts)} at stage {self.stage}, "
                f"and should give a finite number for each of {microbatches} microbatches"
            )
        if any(amounts):
            self.amounts[kind], self.readings[kind] = amounts, reads.carry(self)

    def _different(self, kind: str) -> list[float]:
        return sorted({amount for amount in self.amounts.get(kind, ()) if amount})

    # What a pass reads ---------------------------------------------------------------------------------------------

    def begin_at(self, version: int) -> None:
        """Count versions from this one, the live one; earlier ones are not there. The rate must be set."""
        self.version, self.first, self.prepared, self.rested = version, version, False, False
        self.showing.reset()
        self.prepare()

    def prepare(self) -> None:
        """Make what passes at the live version read of it; the coming update's rate must be set."""
        together.prepare([self])

    def made(self) -> list[Term]:
        """Make that, as far as it is no sum that those of other stages can be made with: these are given back."""
        forward = [(ring[self.version % len(ring)], amount) for amount, ring in self.seen.items()]
        backward = [(buffers, amount) for amount, buffers in self.corrected.items()]
        backward += [(ring[self.version % len(ring)], amount) for amount, ring in self.recomputed.items()]
        if forward and backward and self.alike_made:
            forward, backward = forward + backward, []
        terms = self.readings["F"].terms(forward) if forward else []
        return terms + (self.readings["B"].terms(backward) if backward else [])

    def _content(self, kind: str, version: int, j: int) -> Content:
        kind = "F" if kind == "B" and self.stashed else kind
        amount = self.amounts[kind][j] if kind in self.amounts else 0.0
        assert self.prepared or not amount, "prepare() comes before a pass reads what it makes"
        return (kind, version, amount) if amount else ("live", version, 0.0)

    def correct_recomputation(self, lags: Sequence[int]) -> None:
        """Let T2 correct what a recomputation ("R") reads, `lags` updates old per microbatch (PipeMare D.1).

        It goes back by tau_fwd - tau_recomp along the trajectory of the version that is recomputed, as in the paper's
        characteristic polynomial; the text's delta_t is not known yet when a recomputation starts.
        """
        if "B" not in self.readings or not isinstance(self.method.backward_reads, Correct):
            return
        amounts = self.method.backward_reads.amounts(replace(self.passes["B"], lags=tuple(lags)))
        if any(amounts):
            self.amounts["R"] = amounts
            self.recomputed = {amount: self._ring(self.back + 1) for amount in self._different("R")}
            self.prepared = False

    def ahead(self) -> dict[float, Buffers]:
        """Room for what backwards read of the live version, by amount."""
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

        `kind`: forward ("F"), backward ("B") or recomputation ("R"). For a stashed backward that is the version of its
        forward. The version is at most `back` updates old. `then`, with a forward: (version, j) of its backward.
        `copies`: some may be left to whoever makes them, for several stages together.
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
        """Whether a forward and a backward, each at (version, microbatch of a minibatch), read the same weights."""
        return self.reads("F", *forward) == self.reads("B", *backward)

    def reads(self, kind: str, version: int, j: int = 0) -> Content:
        """What `load` would show; equal where two passes read the same weights."""
        return self._content(kind, version, j) if self.plain else ("live", 0, 0.0)

    def restore(self, copies: Copies | None = None) -> None:
        """Let the parameters hold the live version again; `copies` as of `load`."""
        if self.plain and copies is not None:
            self.showing.restore(copies)
        elif self.plain:
            with Copies() as copied_now:
                self.showing.restore(copied_now)

    @property
    def alive(self) -> Content:
        """The live version."""
        return ("live", self.version, 0.0)

    def source(self, content: Content) -> Buffers | None:
        """Where it lies; of the live version, in the live buffers. None: `readings` make it as it is shown."""
        kind, version, amount = content
        if content == self.alive:
            return self.live
        if kind == "B":
            return self.corrected.get(amount)
        ring = self.plain if kind == "live" else {"F": self.seen, "R": self.recomputed}[kind][amount]
        return ring[version % len(ring)]

    def read_last(self, content: Content) -> bool:
        """Whether no pass or update to come has a use for it, so that its place may be written over.

        It is the oldest version, not live, of which one microbatch works for an update.
        """
        kind, version, _ = content
        oldest = version == self.version - self.back and content != self.alive
        return kind in ("live", "F") and oldest and self.single and self.change is None

    def save(self, copies: Copies) -> None:
        """Keep a copy of the live version before its place is taken."""
        if self.saved != self.version:
            copies.keep(self, self.plain[self.version % len(self.plain)])

    def begun_with(self) -> Buffers:
        """Where the weights lie that an update begins with, which may be kept anyway; else a copy has to be there."""
        return self.plain[self.version % len(self.plain)] if len(self.plain) > 1 else self.previous

    def stale_views(self) -> list[torch.Tensor]:
        """The parameters as the forward of the coming update read them; before the fill is over, the oldest kept."""
        old = max(self.first, self.version - self.delay)
        ring = self.seen[max(self.seen)] if self.seen else self.plain
        return self.flat.views(ring[old % len(ring)])

    # What an update does beyond the optimizer's step ---------------------------------------------------------------

    def rest(self, copies: Copies) -> None:
        """An update is coming: let the parameters hold the live version again, and keep what later passes read."""
        self.restore(copies)
        if len(self.plain) > 1:
            self.save(copies)
        self.rested = True

    @property
    def watched(self) -> bool:
        """Whether there is anything to do around the optimizer's step."""
        return self.change is not None or bool(self.memories)

    def before_step(self) -> None:
        """The gradients are complete and the optimizer is about to step; they may be changed here."""
        together.before_step([self])

    def complete(self) -> None:
        """What of that stages do one by one."""
        if not self.rested:
            with Copies() as copies:
                self.rest(copies)
        if self.watched:
            with torch.no_grad():
                self.along = []
                if self.change is not None:
                    self.change.before_step()
                    self.along = []  # they may be others now
                for memory in self.memories.values():
                    memory.before_step()

    def after_step(self) -> None:
        """The optimizer has stepped: the next version is live. `prepare` has to follow before a pass reads it."""
        together.after_step([self])

    def advance(self) -> None:
        """The next version is live, and all that looks on has seen the update."""
        self.along = []
        self.version += 1
        self.prepared = self.rested = False
        self.showing.reset()

    # Memory and state ----------------------------------------------------------------------------------------------

    @property
    def versions_held(self) -> int:
        """How many versions of the stage's weights are kept once the pipeline is full, the live one included."""
        distinct = self.back + 1
        return max(distinct, 2 if self.readings else 1) if self.plain else 1

    @property
    def rings(self) -> list[Ring]:
        """The older versions, and what passes read of them."""
        return [self.plain, *self.seen.values(), *self.recomputed.values()]

    @property
    def bytes(self) -> int:
        """Bytes of weight copies and of what the policy remembers, the live weights not counted."""
        remembered = [memory.buffers for memory in self.memories.values()]
        held = [buffers for ring in self.rings for buffers in ring]
        held += [*self.corrected.values(), *remembered, self.previous]
        return sum(buffer.numel() * buffer.element_size() for buffers in held for buffer in buffers)

    def state_dict(self) -> dict[str, Any]:
        """Everything beyond the live weights and the optimizer's state (between two steps).

        Raises:
            PipelagError: the last step broke off and has written over what it would read if it were taken again.
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
        """A ring's versions; nothing of the place into which the live one is written before it is read there."""
        free = self.version % len(ring) if ring and self.saved != self.version else -1
        return [[] if place == free else list(each) for place, each in enumerate(ring)]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore in place; the weights and the optimizer must have been restored before."""
        self.version, self.steps = state["version"], state["steps"]
        self.saved = state["saved"] if len(self.plain) > 1 else -1
        self.prepared = self.rested = False
        self.showing.reset()
        pairs = [
            pair
            for mine, saved in zip(self.rings, state["rings"], strict=True)
            for pair in zip(mine, saved, strict=bool(saved))  # older ones say nothing of a ring of one
            if pair[1]
        ]
        pairs += [(memory.buffers, state["memories"][name]) for name, memory in self.memories.items()]
        for mine, saved in pairs:
            for buffer, value in zip(mine, saved, strict=True):
                buffer.copy_(value)
