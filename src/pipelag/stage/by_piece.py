"""A step over the pieces of flat buffers on a CPU, one after another, with the same bits as torch's own steps.

An update reads and writes every weight and moment and computes little, so that a CPU waits for its memory. So here each
piece is finished before the next one begins. Its gradient is gathered into the same small tensor as the piece before's,
which takes the intermediate result as well: both stay in a core's cache, and no buffer holds a stage's gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from pipelag.stage.by_foreach import OTHERS
from pipelag.stage.optimizers import CaffeSGD

if TYPE_CHECKING:
    from pipelag.stage.flat_step import FlatState

Group = dict[str, Any]
State = dict[str, Any]
Gradients = Sequence[torch.Tensor]  # of a stage's parameters, in their order
Part = tuple[int, int, int]  # a parameter's number in its stage; begin and end in its memory


class Gathered:
    """What a piece's gradient consists of, and the place to which it is brought.

    Args:
        stage: the piece's stage.
        buffer, begin: the number of the piece's buffer, and where in it the piece begins.
        place: as large as the piece; pieces share its memory.
    """

    def __init__(self, stage: FlatState, buffer: int, begin: int, place: torch.Tensor) -> None:
        self.place, self.parts = place, list[Part]()
        self.parameters, self.to = stage.weights.parameters, list[torch.Tensor]()
        end, filled = begin + len(place), 0
        for number, (parameter, known) in enumerate(zip(self.parameters, stage.weights.flat.parameters, strict=True)):
            which, offset = stage.weights.flat.places[known]
            first, last = max(begin, offset), min(end, offset + parameter.numel())
            if which != buffer or first >= last:
                continue
            self.parts.append((number, first - offset, last - offset))
            whole = last - first == parameter.numel()
            size, stride = (parameter.size(), parameter.stride()) if whole else ((last - first,), (1,))
            self.to.append(place.as_strided(size, stride, place.storage_offset() + first - begin))
            filled += last - first
        self.gaps = filled < len(place)  # between parameters; they stay zero

    def gather(self, gradients: Gradients) -> torch.Tensor:
        """The piece's gradient, which may be overwritten; valid until another piece's is gathered."""
        if self.gaps:
            self.place.zero_()
        torch._foreach_copy_(self.to, [self._part(gradients, *part) for part in self.parts])
        return self.place

    def _part(self, gradients: Gradients, number: int, begin: int, end: int) -> torch.Tensor:
        gradient, parameter = gradients[number], self.parameters[number]
        if end - begin == parameter.numel():
            return gradient
        if gradient.stride() != parameter.stride():
            gradient = torch.empty_like(parameter).copy_(gradient)
        return gradient.as_strided((end - begin,), (1,), gradient.storage_offset() + begin)


class Piece(NamedTuple):
    """A piece of a stage's weights, and what its step takes.

    Args:
        stage: the number of the stage among those that step.
    """

    step: Callable[[Group, State, torch.Tensor, torch.Tensor], None]
    group: Group
    state: State
    weights: torch.Tensor
    stage: int
    gathered: Gathered


def pieces_of(optimizer: Optimizer, stages: Sequence[FlatState]) -> list[Piece]:
    """The stages' pieces as `step` takes them; empty if the optimizer's own step has to be taken.

    They stay valid until a group has another setting than its rate changed. The settings must be plain values.

    Args:
        optimizer: over the pieces, in their order within each of its groups.
    """
    kind, groups = STEPS.get(type(optimizer)), optimizer.param_groups
    if kind is None or any(group.get("foreach") or any(map(group.get, OTHERS)) for group in groups):
        return []
    group_of = {id(weights): group for group in groups for weights in group["params"]}
    place = torch.empty(0)
    pieces = []
    for number, stage in enumerate(stages):
        begins: dict[int, int] = {}
        for buffer, weights, state in zip(stage.lies_in, stage.pieces, stage.states, strict=True):
            if weights.device.type != "cpu" or weights.is_complex():
                return []
            if place.dtype != weights.dtype or len(place) < len(weights):
                place = torch.empty(len(weights), dtype=weights.dtype)
            begin = begins.get(buffer, 0)
            begins[buffer] = begin + len(weights)
            gathered = Gathered(stage, buffer, begin, place[: len(weights)])
            pieces.append(Piece(kind, group_of[id(weights)], state, weights, number, gathered))
    return pieces


@torch.no_grad()
def step(pieces: Sequence[Piece], gradients: Sequence[Gradients]) -> None:
    """One update of all pieces, given the gradients of each stage."""
    for one, group, state, weights, stage, gathered in pieces:
        one(group, state, weights, gathered.gather(gradients[stage]))


def _sgd(group: Group, state: State, weights: torch.Tensor, gradient: torch.Tensor) -> None:
    """As `torch.optim.sgd._single_tensor_sgd`."""
    if group["weight_decay"] != 0:
        gradient.add_(weights, alpha=group["weight_decay"])
    if group["momentum"] != 0:
        buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient, alpha=1 - group["dampening"])
        gradient = gradient.add_(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
    weights.add_(gradient, alpha=-group["lr"])


def _adam(group: Group, state: State, weights: torch.Tensor, gradient: torch.Tensor) -> None:
    """As `torch.optim.adam._single_tensor_adam`, also for AdamW."""
    (beta1, beta2), rate, decay = group["betas"], group["lr"], group["weight_decay"]
    average, square = state["exp_avg"], state["exp_avg_sq"]
    state["step"] += 1
    count = state["step"].item()
    if decay != 0 and group["decoupled_weight_decay"]:
        weights.mul_(1 - rate * decay)
    elif decay != 0:
        gradient.add_(weights, alpha=decay)
    average.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    below = torch.sqrt(square, out=gradient).div_((1 - beta2**count) ** 0.5).add_(group["eps"])
    weights.addcdiv_(average, below, value=-(rate / (1 - beta1**count)))


def _caffe(group: Group, state: State, weights: torch.Tensor, gradient: torch.Tensor) -> None:
    """As `CaffeSGD`."""
    momentum, velocity = group["momentum"], state["velocity"]
    gradient.add_(weights, alpha=group["weight_decay"])
    if group["nesterov"]:
        weights.add_(velocity, alpha=momentum)
    velocity.mul_(momentum).add_(gradient, alpha=group["lr"])
    weights.sub_(velocity, alpha=1 + momentum if group["nesterov"] else 1)


STEPS = {SGD: _sgd, Adam: _adam, AdamW: _adam, CaffeSGD: _caffe}
