"""Gradients at a simulated cut in the memory layout in which a message between workers brings them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from pipelag.tensors import as_tuple, in_channels_last


class Layouts:
    """Lays out the gradient of a stage's output as the output.

    The next stage may leave it transposed or expanded, and sums over it (a bias's gradient) would be rounded otherwise
    than on real workers. Hooks take time, so outputs have them only in some steps, and then where they were needed.

    Attributes:
        examining: whether all outputs have hooks: in a first step, and whenever guards examine the layers.
        otherwise: the stages (from 1) whose outputs' gradients come in another layout.
    """

    def __init__(self) -> None:
        self.examining, self.otherwise = True, set[int]()

    def answered_alike(self, value: Any, stage: int) -> Any:
        """A stage's output, whose gradient will come in its own layout."""
        if self.examining or stage in self.otherwise:
            for tensor in as_tuple(value):
                if tensor.grad_fn is not None:
                    tensor.register_hook(
                        partial(self.laid_out, stage, torch.channels_last if in_channels_last(tensor) else None)
                    )
        return value

    def laid_out(
        self, stage: int, layout: torch.memory_format | None, gradient: torch.Tensor | None
    ) -> torch.Tensor | None:
        """A gradient without gaps, contiguous or in this layout; None: as it is, or there is none."""
        layout = layout or torch.contiguous_format
        if gradient is None or gradient.is_contiguous(memory_format=layout):
            return None
        self.otherwise.add(stage)
        return gradient.contiguous(memory_format=layout)
