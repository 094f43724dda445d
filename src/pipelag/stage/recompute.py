"""Activation recomputation by stage: only the stage's input is kept, and its forward runs again before the backward.

The second forward reads what the backward reads: the first forward's version if weights are stashed, otherwise the
weights that are live (or corrected, or predicted) by then.

With several stages in a segment (PipeMare Recompute, appendices A.3 and D) only the first stage's input is kept. The
segment's forwards run again shortly before the gradient arrives (`schedules.library.pipemare`), with weights of an age
in between: tau_bkwd <= tau_recomp < tau_fwd. T2 corrects what the recomputation reads by tau_fwd - tau_recomp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pipelag.errors import PipelagError
from pipelag.methods.base import Method
from pipelag.schedules import Action, Schedule
from pipelag.schedules.delays import versions
from pipelag.schedules.library import pipemare
from pipelag.tensors import as_tuple

Gradients = tuple[torch.Tensor | None, ...]


def fresh(value: Any) -> Any:
    """The same tensors as leaves of a new graph; those that required gradients still do."""
    if isinstance(value, Mapping):  # a minibatch's inputs, which need no gradient
        return value
    leaves = tuple(t.detach().requires_grad_(t.requires_grad) for t in as_tuple(value))
    return leaves if isinstance(value, tuple) else leaves[0]


def backward_through(output: Any, gradients: Gradients | None, inputs: Any) -> Gradients:
    """Run the backward of one stage; returns the gradients of its inputs that require one.

    Args:
        gradients: one for each output that requires one; None for an output that nothing was computed from. None in
            place of all: the output is the loss.
    """
    outputs = [t for t in as_tuple(output) if t.requires_grad]
    if gradients is None:
        torch.autograd.backward(outputs)
    else:
        used = [(t, gradient) for t, gradient in zip(outputs, gradients, strict=True) if gradient is not None]
        if used:
            torch.autograd.backward([t for t, _ in used], [gradient for _, gradient in used])
    return tuple(t.grad for t in differentiable(inputs))


def differentiable(inputs: Any) -> list[torch.Tensor]:
    """The inputs of a stage that require a gradient."""
    return [t for t in as_tuple(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]


def segments_of(stages: int, size: int) -> list[range]:
    """The stages (from 1) divided into segments of `size`; the last may be shorter."""
    return [range(first, min(first + size, stages + 1)) for first in range(1, stages + 1, size)]


def segmented(method: Method, stages: int, minibatches: int, microbatches: int, size: int) -> Schedule:
    """The method's schedule with recomputation in segments of `size` stages.

    Raises:
        PipelagError: the method's pipeline is not PipeMare's, or its forward reads anything but live weights.
    """
    if method.build is not pipemare or method.random is not None or method.held or method.forward_reads != "live":
        raise PipelagError(
            f"recomputation by segments is defined for PipeMare's pipeline (and its stashing variant), not for "
            f"'{method.name}'; use recompute with one stage per segment"
        )
    return pipemare(stages, minibatches, microbatches, size)


def recompute_lags(method: Method, stages: int, microbatches: int, size: int) -> list[tuple[int, ...]]:
    """Per stage and microbatch, tau_recomp: the updates between the weights that a recomputation reads and its update.

    It is derived from the schedule. With stashed weights, the recomputation reads what its forward read.
    """
    schedule = segmented(method, stages, -(-2 * stages // microbatches) + 4, microbatches, size)
    forward, read = method.delays(stages, microbatches).forward_lags, versions(schedule)
    total, lags = schedule.minibatches * microbatches, []
    for stage in range(1, stages + 1):
        if method.backward_reads == "stashed":
            lags.append(forward[stage - 1])
            continue
        ages = [m // microbatches - read[Action("R", stage, m)] for m in range(total)]
        lags.append(tuple(max(ages[j::microbatches]) for j in range(microbatches)))
    return lags
