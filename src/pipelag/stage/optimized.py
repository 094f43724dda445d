"""A stage's weights together with their optimizer's groups and state and their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from pipelag.errors import PipelagError
from pipelag.methods.carriers import Buffers
from pipelag.methods.prediction import coupled_decay
from pipelag.stage.weights import FlatParameters
from pipelag.tensors import as_real

if TYPE_CHECKING:
    from pipelag.stage.flat_step import FlatState

Group = dict[str, Any]  # an entry of `torch.optim.Optimizer.param_groups`


class OptimizedWeights:
    """The weights of one stage and the optimizer that updates them.

    Args:
        flat: the stage's parameters, which hold the live weights.
        stage: the stage's number, from 1.
        optimizer: the optimizer that updates the stage.
        parameters: the parameters that the optimizer knows, in the order of `flat` and sharing its storage; they have
            the gradients, and the optimizer's state is theirs.
    """

    def __init__(
        self, flat: FlatParameters, stage: int, optimizer: Optimizer | None, parameters: list[nn.Parameter]
    ) -> None:
        self.flat, self.live, self.stage = flat, flat.buffers, stage
        self.optimizer, self.parameters = optimizer, parameters
        self.size = sum(buffer.numel() for buffer in flat.buffers)  # in elements
        self.complex = any(buffer.is_complex() for buffer in flat.buffers)
        self.laid: FlatState | None = None  # the optimizer's state if it is in flat buffers (`pipelag.stage.flat_step`)
        self.along: list[torch.Tensor | None] = []  # see `gradients`
        groups = optimizer.param_groups if optimizer is not None else []
        numbers = [number for number, group in enumerate(groups) if group["stage"] == stage]
        self.group_numbers = [numbers[group] for group in flat.groups] if numbers else []  # of each buffer

    @property
    def groups(self) -> list[Group]:
        """The optimizer's group of each of the weights' buffers.

        They are looked up each time, since restoring an optimizer replaces its groups by new ones.
        """
        assert self.optimizer is not None
        return [self.optimizer.param_groups[number] for number in self.group_numbers]

    @property
    def group(self) -> Group:
        """The optimizer's group of this stage.

        Raises:
            PipelagError: the stage has several groups.
        """
        if len(set(self.group_numbers)) > 1:
            raise PipelagError(
                f"stage {self.stage} has parameter groups whose settings may differ; use `groups`, one for each of the "
                "weights' buffers, or `parameter_groups`"
            )
        return self.groups[0]

    @property
    def parameter_groups(self) -> list[Group]:
        """The optimizer's group of each parameter, in the order of `parameters`."""
        groups = self.groups
        return [groups[self.flat.places[parameter][0]] for parameter in self.flat.parameters]

    def state_beside(self, buffers: Sequence[Buffers], by_number: bool) -> Iterable[tuple[Any, ...]]:
        """For every parameter: (the optimizer's state, the group, the parameter's part of each of the buffers).

        Args:
            by_number: the caller computes elementwise, so that entries may be for larger pieces with several parameters
                instead. Complex tensors are then viewed as real ones, as in torch's optimizers.
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
        """The gradients that the coming update steps along, one per parameter; computed once for all memories."""
        self.along = self.along or coupled_decay(self.parameters, self.parameter_groups, self.optimizer)
        return self.along

    @cached_property
    def gathered(self) -> Buffers:
        """Buffers in the layout of the weights, in which the gradients of a step over flat buffers are gathered."""
        return self.like()

    def like(self) -> Buffers:
        """Zeros in the layout of the weights."""
        return self.flat.like()
