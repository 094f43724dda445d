"""A model's operators as plain data that pickles: what `tracing` finds and `linearise` lays out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn


class Mode(Enum):
    """Stands for `self.training` among a step's arguments."""

    IN_TRAINING = "training"


class Ref(str):
    """The name of a value, among a step's arguments."""


@dataclass(frozen=True)
class Step:
    """One operator, `name` = `target`(`args`), as torch.fx writes it.

    op: call_module, call_function, call_method or get_attr. inplace: whether it overwrites its first argument.
    """

    name: str
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inplace: bool = False

    @property
    def called(self) -> str:
        """The module's path in the model, or the function's or method's name."""
        return str(getattr(self.target, "__name__", self.target))

    @property
    def uses(self) -> list[str]:
        """The values among its arguments."""
        return list(refs((self.args, self.kwargs)))

    def run(self, values: Mapping[str, Any], original: nn.Module) -> Any:
        """Its value, with the modules and parameters of `original`."""
        args, kwargs = filled((self.args, self.kwargs), values, original.training)
        if self.op == "call_module":
            return original.get_submodule(self.target)(*args, **kwargs)
        if self.op == "get_attr":
            return attribute(original, self.target)
        if self.op == "call_method":
            return getattr(args[0], self.target)(*args[1:], **kwargs)
        return self.target(*args, **kwargs)


@dataclass(frozen=True)
class Traced:
    """A model's operators. inputs: names of what it takes; output: `Ref`s, alone or in tuples."""

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    output: Any


def attribute(model: nn.Module, path: str) -> Any:
    """A parameter or buffer by its path."""
    parent, _, name = path.rpartition(".")
    return getattr(model.get_submodule(parent), name)


def constant(value: torch.Tensor) -> torch.Tensor:
    """A tensor that the model makes itself."""
    return value


def refs(value: Any) -> Iterator[str]:
    """The values named in arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from refs(item)
    elif isinstance(value, dict):
        yield from refs(tuple(value.values()))
    elif isinstance(value, slice):
        yield from refs((value.start, value.stop, value.step))


def mapped(value: Any, change: Any) -> Any:
    """Arguments with every leaf changed."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        items = [mapped(item, change) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(mapped(item, change) for item in (value.start, value.stop, value.step)))
    return change(value)


def filled(value: Any, values: Mapping[str, Any], training: bool) -> Any:
    """Arguments with the values in place of their names."""
    return mapped(
        value,
        lambda leaf: values[leaf] if isinstance(leaf, Ref) else training if leaf is Mode.IN_TRAINING else leaf,
    )
