"""Finds from a traceback where a user's code failed, at no cost to runs that do not fail."""

from __future__ import annotations

from collections.abc import Sequence
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.models.cut import name_of


def noted(error: BaseException, step: int, stages: Sequence[nn.Module]) -> None:
    """Add a note to an error: the minibatch, and the layer (with its input's shape), the loss or the update."""
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
    """(stage, layer and its input's shape) if the frame is in a stage's forward, else None."""
    known = frame.f_locals
    if frame.f_code.co_name != "forward" or "module" not in known:
        return None
    for number, stage in enumerate(stages, start=1):
        if known.get("self") is stage and isinstance(stage, nn.Sequential):
            before = sum(map(len, stages[: number - 1]))  # type: ignore[arg-type]
            layer = before + 1 + [*stage].index(known["module"])
            return number, f"layer {layer} ({name_of(known['module'])}), input {shape_of(known.get('input'))}"
    return None


def layer_of(error: BaseException, model: nn.Module) -> str:
    """The layer of a whole model in which an error was raised, with its input's shape."""
    layers = [layer_in(frame, [model]) for frame, _ in walk_tb(error.__traceback__)]
    return next((layer[1] for layer in layers if layer), "the model")


def shape_of(value: Any) -> str:
    """The shapes of a value that passes between layers, as text."""
    if isinstance(value, torch.Tensor):
        return str(list(value.shape))
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(shape_of, value))})"
    return type(value).__name__
