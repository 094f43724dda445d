"""Where a user's own code failed, found from its traceback: nothing is spent on it while all goes well."""

from __future__ import annotations

from collections.abc import Sequence
from traceback import walk_tb
from types import FrameType
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
    place = ""
    for frame, _ in walk_tb(error.__traceback__):
        name, known, layer = frame.f_code.co_name, frame.f_locals, layer_in(frame, stages)
        if layer:
            place = f"stage {layer[0]}, {layer[1]}"
        elif name == "part_of_loss" and "target" in known:
            place = f"the loss, output {shape_of(known.get('output'))}, targets {shape_of(known['target'])}"
        elif name == "update":
            place = "the update"
    error.add_note(f"in step {step}" + (f": {place}" if place else ""))


def layer_in(frame: FrameType, stages: Sequence[nn.Module]) -> tuple[int, str] | None:
    """The stage whose forward a frame is in, and the layer that it calls there, with the shapes that came."""
    known = frame.f_locals
    if frame.f_code.co_name != "forward" or "module" not in known:
        return None
    for number, stage in enumerate(stages, start=1):
        if known.get("self") is stage and isinstance(stage, nn.Sequential):
            before = sum(map(len, stages[: number - 1]))  # type: ignore[arg-type]
            layer = before + 1 + [*stage].index(known["module"])
            name = getattr(known["module"], "label", type(known["module"]).__name__)
            return number, f"layer {layer} ({name}), input {shape_of(known.get('input'))}"
    return None


def layer_of(error: BaseException, model: nn.Module) -> str:
    """The layer of a whole model in which an error was raised, with the shapes that came."""
    layers = [layer_in(frame, [model]) for frame, _ in walk_tb(error.__traceback__)]
    return next((layer[1] for layer in layers if layer), "the model")


def shape_of(value: Any) -> str:
    """The shapes of what passes between layers."""
    if isinstance(value, torch.Tensor):
        return str(list(value.shape))
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(shape_of, value))})"
    return type(value).__name__
