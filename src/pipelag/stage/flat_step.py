"""An optimizer's step over a stage's flat buffers: a few operations per stage instead of a few per tensor.

On a CPU torch's optimizers go from tensor to tensor, and an update of many small ones is mostly calls. An optimizer
that treats every number by itself may as well step over the buffer that they all lie in: bit for bit the same. Its
state stays its own, `optimizer.state[parameter]`; its tensors become views of flat buffers once the first step has made
them. Predictions, which go by that state, take the same few pieces.

Whatever else there is takes the optimizer's own step: other optimizers, devices and kernels, hooks, stages of which a
parameter has no gradient, and state that somebody has put in another's place (a checkpoint), until a step later.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer
from torch.optim import optimizer as torch_optimizer

from pipelag.stage.optimizers import CaffeSGD
from pipelag.stage.weights import Laid

if TYPE_CHECKING:
    from pipelag.stage.policy import StageWeights

BY_NUMBER = (SGD, Adam, AdamW, NAdam, CaffeSGD)  # these alone and no subclass, which may do more
PIECE = 1 << 16  # numbers of which an update's few tensors stay in a core's cache
State = dict[str, Any]


class FlatState:
    """The optimizer's state of one stage in flat buffers, by pieces of at most `PIECE` numbers.

    Args:
        weights: the stage. Its parameters' state is there, from a step in which all of them had a gradient.

    Raises:
        ValueError: the state is not one tensor like the parameter or one number for all, name by name.
    """

    def __init__(self, weights: StageWeights, optimizer: Optimizer) -> None:
        self.optimizer, self.parameters, flat = optimizer, weights.parameters, weights.flat
        states = [optimizer.state.get(parameter, {}) for parameter in self.parameters]
        self.views: dict[str, list[torch.Tensor]] = {}
        self.counts: dict[str, list[torch.Tensor]] = {}  # one number for all of a stage: the steps made, say
        self.states: list[State] = [{} for buffer in flat.buffers for _ in buffer.split(PIECE)]
        if any(state.keys() != states[0].keys() for state in states):
            raise ValueError
        for key in states[0]:
            values = [state[key] for state in states]
            if not all(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in values):
                raise ValueError
            if all(v.shape == p.shape and v.dtype == p.dtype for v, p in zip(values, self.parameters, strict=True)):
                buffers = flat.like()
                self.views[key] = flat.views(buffers)
                torch._foreach_copy_(self.views[key], values)
                for mine, piece in zip(self.states, _pieces(buffers), strict=True):
                    mine[key] = piece
            elif all(not value.dim() and value == values[0] for value in values):
                self.counts[key] = values
                for mine in self.states:
                    mine[key] = values[0].clone()
            else:
                raise ValueError
        for key, views in self.views.items():
            for state, view in zip(states, views, strict=True):
                state[key] = view
        self.kept = [(p, list(state.items())) for p, state in zip(self.parameters, states, strict=True)]

    def holds(self) -> bool:
        """Whether the optimizer's state still is what lies here."""
        for parameter, kept in self.kept:
            state = self.optimizer.state.get(parameter, {})
            if len(state) != len(kept):
                return False
            for key, value in kept:
                if state.get(key) is not value:
                    return False
        return True

    def parts(self, buffers: Sequence[Sequence[torch.Tensor]]) -> Iterator[tuple[Any, ...]]:
        """(state, that piece of each of the buffers), which are of the weights' layout."""
        return zip(self.states, *[_pieces(each) for each in buffers], strict=True)

    def count(self) -> None:
        """Tell the parameters' state what a step over the pieces has counted."""
        for key, values in self.counts.items():
            torch._foreach_copy_(values, [self.states[0][key]] * len(values))


class FlatStep:
    """`step` is the optimizer's, over flat buffers where that gives the same.

    Args:
        optimizer: with one group per stage (`pipelag.stage.optimizers.group_by_stage`).
        stages: all of its stages.
    """

    def __init__(self, optimizer: Optimizer | None, stages: Sequence[StageWeights]) -> None:
        self.optimizer = optimizer
        self.stages: list[StageWeights] = []
        if optimizer is None or type(optimizer) not in BY_NUMBER:
            return
        self.stages = [weights for weights in stages if _small(weights)]
        self.gradients = {id(weights): weights.like() for weights in self.stages}
        self.groups = {
            id(weights): weights.group | {"params": [torch.nn.Parameter(piece) for piece in _pieces(weights.live)]}
            for weights in self.stages
        }
        # The same optimizer, over the pieces.
        self.flat = copy.copy(optimizer)
        self.flat.param_groups, self.flat.state = list(self.groups.values()), defaultdict(dict)

    def step(self) -> None:
        """One update."""
        assert self.optimizer is not None
        if not self.stages or not _bare(self.optimizer):
            for weights in self.stages:
                weights.laid = None
            self.optimizer.step()
            return
        taken = [weights for weights in self.stages if self._take(weights)]
        if taken:
            self.flat.step()
        for weights in taken:
            assert weights.laid is not None
            weights.laid.count()
            for piece in self.groups[id(weights)]["params"]:
                piece.grad = None
        rest = [weights for weights in self.stages if any(p.grad is not None for p in weights.parameters)]
        if rest or len(self.stages) < len(self.optimizer.param_groups):
            self.optimizer.step()
        for weights in rest:
            self._lay(weights)

    def _take(self, weights: StageWeights) -> bool:
        """Give the stage's gradients to the pieces, if its state lies flat."""
        parameters, laid = weights.parameters, weights.laid
        gradients = [p.grad for p in parameters if p.grad is not None]
        if laid is None or len(gradients) < len(parameters) or not laid.holds():
            return False
        if any(g.layout is not torch.strided for g in gradients):
            return False
        group = self.groups[id(weights)]
        group |= {key: value for key, value in weights.group.items() if key != "params"}
        buffers = self.gradients[id(weights)]
        torch._foreach_copy_(weights.flat.views(buffers), gradients)
        for parameter in parameters:
            parameter.grad = None
        for piece, gradient, state in zip(group["params"], _pieces(buffers), laid.states, strict=True):
            piece.grad, self.flat.state[piece] = gradient, state
        return True

    def _lay(self, weights: StageWeights) -> None:
        """The optimizer has stepped over the stage's parameters: let the state that it made lie flat."""
        weights.laid = None
        if all(p.grad is not None for p in weights.parameters) and _plain(weights.group):
            try:
                assert self.optimizer is not None
                weights.laid = FlatState(weights, self.optimizer)
            except ValueError:
                self.stages.remove(weights)
        else:
            self.stages.remove(weights)


def _pieces(buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(buffers, Laid):
        buffers.pieces = buffers.pieces or _pieces(list(buffers))
        return buffers.pieces
    return [piece for buffer in buffers for piece in buffer.split(PIECE)]


def _small(weights: StageWeights) -> bool:
    """Whether a stage has several parameters, so small that calls are what an update of them costs, on the CPU."""
    parameters = weights.parameters
    if len(parameters) < 2 or weights.optimizer is None or any(p.device.type != "cpu" for p in parameters):
        return False
    return sum(p.numel() for p in parameters) < PIECE * len(parameters)


def _plain(group: State) -> bool:
    """Whether the update is torch's usual one. eps: what lies between parameters must not become 0 / 0."""
    return not any(group.get(key) for key in ("fused", "capturable", "differentiable")) and group.get("eps") != 0


def _bare(optimizer: Optimizer) -> bool:
    """Whether nobody looks on or has put another step in place."""
    hooks = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
    hooks += [torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks]
    return "step" not in vars(optimizer) and not any(hooks)
