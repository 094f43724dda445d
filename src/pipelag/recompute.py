"""Activation recomputation by stage: only the stage's input is kept, and its forward run again before the backward.

What the second forward reads is what the backward reads: the forward's own version where it is stashed, otherwise the
weights that are live (corrected, predicted) then.

With several stages to a segment (PipeMare Recompute, appendices A.3 and D) only the first stage's input is kept. The
j-th of S stages (from 0) runs again 2(S - j) cycles before its gradient arrives, so its weights are as old then as
those of a forward at the stage that is S - j from the end of the pipeline: tau_bkwd < tau_recomp < tau_fwd. T2 corrects
what the recomputation reads by tau_fwd - tau_recomp. In the last segment the forward's activations are still there.
"""

from __future__ import annotations

from typing import Any

import torch

from pipelag.errors import PipelagError
from pipelag.methods.base import Method
from pipelag.schedules.delays import Delays
from pipelag.schedules.library import cycle
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


def segments_of(stages: int, size: int) -> list[range]:
    """The stages (from 1) in segments of `size`; the last may be shorter."""
    return [range(first, min(first + size, stages + 1)) for first in range(1, stages + 1, size)]


def recompute_lags(method: Method, delays: Delays, segments: list[range]) -> list[tuple[int, ...]]:
    """Per stage and microbatch, how many updates lie between what its recomputation reads and its own update.

    Raises:
        PipelagError: a method whose pipeline is not PipeMare's, or whose forward reads anything but live weights.
    """
    if method.build is not cycle or method.random is not None or method.forward_reads != "live":
        raise PipelagError(
            f"recomputation by segments is defined for PipeMare's pipeline (and its stashing variant), not for "
            f"'{method.name}'; use recompute with one stage per segment"
        )
    stages, lags = len(delays.forward_lags), []
    for segment in segments:
        for number in segment:
            left = len(segment) - (number - segment[0])
            stashed = method.backward_reads == "stashed" or segment[-1] == stages
            lags.append(delays.forward_lags[(number if stashed else stages - left) - 1])
    return lags
