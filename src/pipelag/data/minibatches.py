"""Minibatches by number: what minibatch t holds depends on the seed and t alone, so a run can resume anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Minibatches(ABC):
    """`batches[t] -> (inputs, targets)` for t = 0, 1, 2, ... without end; `len` is the number in an epoch.

    Inputs and targets can be had apart: the first stage of a pipeline needs only the one, the last the other.
    """

    uneven = False  # whether minibatches differ in shape

    @abstractmethod
    def __len__(self) -> int:
        """Minibatches per epoch."""

    @abstractmethod
    def inputs(self, t: int) -> Any:
        """What the first layer takes of minibatch `t`."""

    @abstractmethod
    def targets(self, t: int) -> Any:
        """What the loss takes of minibatch `t` beside the output: a tensor, or a tuple of tensors."""

    def summary(self) -> dict[str, Any]:
        """What a run's summary says of its minibatches, beside its data."""
        return {}

    def __getitem__(self, t: int) -> tuple[Any, Any]:
        """Inputs and targets of minibatch `t`."""
        return self.inputs(t), self.targets(t)

    def epoch(self, t: int) -> float:
        """Epochs done after `t` minibatches."""
        return t / len(self)
