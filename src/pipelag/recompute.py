"""Activation recomputation by stage: only the stage's input is kept, and its forward run again before the backward.

What the second forward reads is what the backward reads: the forward's own version where it is stashed, otherwise the
weights that are live (corrected, predicted) then. With PipeMare that is its Recompute variant (appendix D.1) with one
stage per checkpoint segment, where tau_recomp = tau_bkwd.
"""

from __future__ import annotations

from typing import Any

import torch

from pipelag.tensors import as_tuple


def fresh(value: Any) -> Any:
    """The same tensors without history: leaves that collect gradients where their originals had a history."""
    leaves = tuple(t.detach().requires_grad_(t.requires_grad) for t in as_tuple(value))
    return leaves if isinstance(value, tuple) else leaves[0]


def backward_through(output: Any, gradients: tuple[torch.Tensor | None, ...], inputs: Any) -> tuple[torch.Tensor, ...]:
    """Run the backward of one stage; returns the gradients of those of its inputs that want one."""
    torch.autograd.backward([t for t in as_tuple(output) if t.requires_grad], gradients)
    wanted = [t for t in as_tuple(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    return tuple(t.grad if t.grad is not None else torch.zeros_like(t) for t in wanted)
