"""An optimizer's step over stages' flat buffers: a few operations for all instead of a few per tensor or stage.

torch's optimizers go from tensor to tensor on a CPU and from group to group on a GPU, so that an update of many small
tensors spends most of its time on calls. An elementwise optimizer can step over the flat buffers instead, over those of
all stages with the same rate at once, with bit-identical results. `optimizer.state[parameter]` remains the optimizer's
state; once the first step has made its tensors, they become views of flat buffers. Predictions, which read that state,
use the same few pieces.

In all other cases the optimizer's own step is taken: for other optimizers and kernels, with hooks, for stages where
some parameter has no gradient, and for one step after somebody has replaced the state (from a checkpoint, say).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain, groupby
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer

from pipelag.stage.joined import Joined
from pipelag.stage.optimizers import CaffeSGD, hooked, others_code
from pipelag.stage.weights import Laid
from pipelag.tensors import GRADIENT

if TYPE_CHECKING:
    from pipelag.stage.policy import StageWeights

KINDS = (SGD, Adam, AdamW, NAdam, CaffeSGD)  # exactly these classes, since a subclass may do more
PIECE = 1 << 16  # elements per piece, so that the few tensors of an update stay in a core's cache
LARGE = 1 << 18  # mean elements per parameter from which a GPU's copies of gradients cost more than its calls
HALF = (torch.bfloat16, torch.float16)  # a CPU rounds these differently in the last elements of a tensor
State = dict[str, Any]


class FlatState:
    """The optimizer's state of one stage in flat buffers; on a CPU in pieces of at most `PIECE` elements.

    Args:
        weights: the stage. The optimizer must have made its state, in a step in which every parameter had a gradient.

    Raises:
        ValueError: some entry of the state is neither a tensor shaped like the parameter nor one number that all
            parameters have in common.
    """

    def __init__(self, weights: StageWeights) -> None:
        assert weights.optimizer is not None
        self.weights, self.optimizer, flat = weights, weights.optimizer, weights.flat
        self.pieces: list[torch.Tensor] = [torch.nn.Parameter(piece) for piece in _pieces(weights.live)]
        self.lies_in = [number for number, buffer in enumerate(weights.live) for _ in _pieces([buffer])]  # buffers
        places = zip(self.lies_in, self.pieces, strict=True)
        self.group_numbers = [weights.group_numbers[number] for number in self.lies_in]
        self.by_buffer = [(number, [piece for _, piece in some]) for number, some in groupby(places, itemgetter(0))]
        self.states: list[State] = [{} for _ in self.pieces]
        self.counts: dict[str, torch.Tensor] = {}  # [parameters]: a number that all have in common, such as the step
        states = [self.optimizer.state.get(parameter, {}) for parameter in weights.parameters]
        if any(state.keys() != states[0].keys() for state in states):
            raise ValueError
        laid: dict[str, list[torch.Tensor]] = {}
        for key in states[0]:
            values = [state[key] for state in states]
            if not all(isinstance(value, torch.Tensor) for value in values):
                raise ValueError
            if all(map(_like, values, weights.parameters)):
                buffers = weights.like()
                laid[key] = flat.views(buffers)
                torch._foreach_copy_(laid[key], values)
                for piece_state, piece in zip(self.states, _pieces(buffers), strict=True):
                    piece_state[key] = piece
            elif all(value.device.type == "cpu" and not value.dim() and value == values[0] for value in values):
                self.counts[key] = torch.stack(values)
                for piece_state in self.states:
                    piece_state[key] = values[0].clone()
            else:
                raise ValueError
        laid |= {key: list(counts.unbind()) for key, counts in self.counts.items()}
        for key, views in laid.items():  # only now that nothing has been raised; else the state stays as it was
            for state, view in zip(states, views, strict=True):
                state[key] = view
        self.entries = [(p, list(state.items())) for p, state in zip(weights.parameters, states, strict=True)]
        self.placed = False  # whether replayed passes have left the present gradients in their `places`
        self.watched = False  # True: `FlatStep.watching` has checked the state, and nobody else changes it meanwhile

    def holds(self) -> bool:
        """Whether the optimizer's state still consists of the tensors here."""
        if self.watched:
            return True
        for parameter, entries in self.entries:
            state = self.optimizer.state.get(parameter, {})
            if len(state) != len(entries):
                return False
            for key, value in entries:
                if state.get(key) is not value:
                    return False
        return True

    def given(self) -> list[torch.Tensor] | None:
        """The parameters' gradients; None if no step over the pieces is possible."""
        gradients = list(map(GRADIENT, self.weights.parameters))
        self.placed = "gathered" in vars(self.weights) and all(map(is_, gradients, self.places))
        if not self.placed and not all(g is not None and g.layout is torch.strided for g in gradients):
            return None
        return gradients if self.holds() else None

    @cached_property
    def places(self) -> list[torch.Tensor]:
        """Per parameter, where its gradient has to lie so that its piece has it (as in `FlatStep.places`)."""
        buffers = self.weights.gathered
        for piece, gradient in zip(self.pieces, _pieces(buffers), strict=True):
            piece.grad = gradient
        return self.weights.flat.views(buffers)

    def fits(self) -> bool:
        """Whether the groups' present settings allow a step over the pieces, and no step adds entries to the state."""
        begins = [group.get("momentum") and not state for state, group in self.parts([])]
        return not any(begins) and all(map(_plain, self.weights.groups))

    def parts(self, buffers: Sequence[Sequence[torch.Tensor]]) -> Iterator[tuple[Any, ...]]:
        """(state, group, piece of each of the buffers) for every piece; the buffers are laid out like the weights."""
        groups = [self.optimizer.param_groups[number] for number in self.group_numbers]
        return zip(self.states, groups, *[_pieces(each) for each in buffers], strict=True)

    def count(self) -> None:
        """Copy the numbers that a step over the pieces has counted into the parameters' state."""
        for key, counts in self.counts.items():
            counts.fill_(self.states[0][key])


class FlatStep:
    """Takes an optimizer's steps, over flat buffers where that gives the same result.

    Args:
        optimizer: each of its groups belongs to one stage (`pipelag.stage.optimizers.group_by_stage`).
        stages: all stages that it updates.
    """

    def __init__(self, optimizer: Optimizer | None, stages: Sequence[StageWeights]) -> None:
        self.optimizer = optimizer
        flat = optimizer is not None and type(optimizer) in KINDS
        self.stages = [weights for weights in stages if flat and _small(weights)]
        self.flat = copy.copy(optimizer) if flat else None  # the same optimizer, to step over the pieces
        self.joined: Joined | None = None  # the pieces' groups in the last step
        self.every = list(stages)
        # The optimizer's state when `_intact` last found it whole. None at first: an empty state would match.
        self.seen: tuple[list[State], list[Any]] | None = None

    def places(self) -> list[torch.Tensor | None]:
        """Per parameter of all stages, where its gradient has to lie for a step over pieces, which saves a copy.

        None for parameters of stages that step by themselves.
        """
        places: list[torch.Tensor | None] = []
        for weights in self.every:
            steps = weights in self.stages
            places += weights.flat.views(weights.gathered) if steps else [None] * len(weights.parameters)
        return places

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A block in which nobody else changes the optimizer's state: whether the pieces hold it is checked once."""
        laid = [weights.laid for weights in self.stages if weights.laid is not None]
        intact = bool(laid) and self._intact(laid)
        for each in laid:
            each.watched = intact
        try:
            yield
        finally:
            for each in laid:
                each.watched = False

    def _intact(self, laid: Sequence[FlatState]) -> bool:
        """Whether all stages' pieces hold the state; compares the tensors' identities to save time per parameter."""
        assert self.optimizer is not None
        states, values = self.seen or ([], [])
        now: list[State] = list(self.optimizer.state.values())
        if self.seen is not None and len(now) == len(states) and all(map(is_, now, states)):
            there = list(chain.from_iterable(map(dict.values, now)))
            if len(there) == len(values) and all(map(is_, there, values)):
                return True
        if not all(each.holds() for each in laid):
            return False
        self.seen = now, list(chain.from_iterable(map(dict.values, now)))
        return True

    def step(self) -> bool:
        """Take one step. Returns whether some parameters still have their gradients, so that they must be cleared."""
        assert self.optimizer is not None
        if not self.stages or not _bare(self.optimizer):
            for weights in self.stages:
                weights.laid = None
            self._by_itself()
            return True
        laid = [weights.laid for weights in self.stages if weights.laid is not None]
        with self.watching():
            given = {each: gradients for each in laid if (gradients := each.given()) is not None}
        if given and (self.joined is None or not self.joined.serves(self.optimizer, list(given))):
            self.joined = None  # other settings, perhaps
            given = {each: gradients for each, gradients in given.items() if each.fits()}
        if given:
            self._over_pieces(given)
        rest = [weights for weights in self.stages if weights.laid not in given]  # these still have their gradients
        left = [weights for weights in rest if any(p.grad is not None for p in weights.parameters)]
        if not left and sum(len(set(each.group_numbers)) for each in self.stages) == len(self.optimizer.param_groups):
            return False
        self._by_itself()
        for weights in left:
            _lay(weights)
            if weights.laid is None:
                self.stages.remove(weights)
            else:
                self.seen = None  # the stage's state is in new pieces
        return True

    def _by_itself(self) -> None:
        """Take the optimizer's own step. Others' code there may replace weights: p.data = p.data - lr * p.grad."""
        assert self.optimizer is not None
        self.optimizer.step()
        if others_code(self.optimizer):
            for weights in self.every:
                weights.flat.take_back(weights.parameters)

    def _over_pieces(self, given: Mapping[FlatState, Sequence[torch.Tensor]]) -> None:
        """Step over the pieces of stages, of which these gradients are given; they are taken from the parameters."""
        assert self.optimizer is not None and self.flat is not None
        for each in given:
            for parameter in each.weights.parameters:
                parameter.grad = None
        self.joined = self.joined or Joined(self.flat, self.optimizer, list(given))
        self.joined.step(self.optimizer, list(given.values()))
        for each in given:
            each.count()


def _lay(weights: StageWeights) -> None:
    """After the optimizer's own step: move the stage's state into flat buffers if possible."""
    weights.laid = None
    if all(p.grad is not None for p in weights.parameters) and all(map(_plain, weights.groups)):
        with suppress(ValueError):
            weights.laid = FlatState(weights)


def _pieces(buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(buffers, Laid):
        buffers.pieces = buffers.pieces or _pieces(list(buffers))
        return buffers.pieces
    return [piece for buffer in buffers for piece in (buffer.split(PIECE) if buffer.device.type == "cpu" else [buffer])]


def _small(weights: StageWeights) -> bool:
    """Whether a stage's parameters are so small that calls dominate the cost of updating them."""
    parameters, cpu = weights.parameters, all(p.device.type == "cpu" for p in weights.parameters)
    if len(parameters) < (2 if cpu else 1) or weights.optimizer is None:  # on a GPU, one may join other stages'
        return False
    if cpu and any(p.dtype in HALF for p in parameters):
        return False
    if not all(p.dim() for p in parameters):  # a scalar's state looks like a number that all parameters share
        return False
    return sum(p.numel() for p in parameters) < (PIECE if cpu else LARGE) * len(parameters)


def _like(value: torch.Tensor, parameter: torch.Tensor) -> bool:
    alike = (value.shape, value.dtype, value.device) == (parameter.shape, parameter.dtype, parameter.device)
    return alike and value.layout is torch.strided  # sparse gradients have a sparse momentum


def _plain(group: State) -> bool:
    """Whether a group's update is torch's usual one; with eps = 0, the padding between parameters would give 0 / 0."""
    return not any(group.get(key) for key in ("fused", "capturable", "differentiable")) and group.get("eps") != 0


def _bare(optimizer: Optimizer) -> bool:
    """Whether the optimizer has no hooks and its `step` and `zero_grad` are its class's own."""
    return not {"step", "zero_grad"} & vars(optimizer).keys() and not hooked(optimizer)
