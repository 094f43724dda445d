"""Where a user's own code failed, found from its traceback: nothing is spent on it while all goes well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError


def noted(error: BaseException, step: int, stages: Sequence[nn.Module]) -> None:
    """Add a line to an error: the minibatch, and the layer or the loss or the update, with the shapes that came."""
    if isinstance(error, PipelagError) or any(
        str(note).startswith("in step ") for note in getattr(error, "__notes__", ())
    ):
        return
    place, trace = "", error.__traceback__
    while trace is not None:
        frame, known = trace.tb_frame, trace.tb_frame.f_locals
        if frame.f_code.co_name == "forward" and "module" in known:
            for number, stage in enumerate(stages, start=1):
                if known.get("self") is stage and isinstance(stage, nn.Sequential):
                    before = sum(len(list(other.children())) for other in stages[: number - 1])
                    layer = before + 1 + [*stage].index(known["module"])
                    name = getattr(known["module"], "label", type(known["module"]).__name__)
                    place = f"stage {number}, layer {layer} ({name}), input {shape_of(known.get('input'))}"
        elif frame.f_code.co_name == "part_of_loss" and "target" in known:
            place = f"the loss, output {shape_of(known.get('output'))}, targets {shape_of(known['target'])}"
        elif frame.f_code.co_name == "update":
            place = "the update"
        trace = trace.tb_next
    error.add_note(f"in step {step}" + (f": {place}" if place else ""))


def shape_of(value: Any) -> str:
    """The shapes of what passes between layers."""
    if isinstance(value, torch.Tensor):
        return str(list(value.shape))
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(shape_of, value))})"
    return type(value).__name__
