"""A model's operators as plain data that pickles: what `tracing` finds and `linearise` lays out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import nn

SCALARS = {"shape", "ndim", "dtype", "device", "size", "dim", "numel", "stride"}  # of a tensor, themselves none


@dataclass(frozen=True)
class ByMode:
    """Among a step's arguments: one value in training and another in evaluation, as `self.training` is."""

    training: Any
    evaluation: Any


class Here(Enum):
    """Stands for the device on which a layer's inputs lie, among a step's arguments."""

    DEVICE = "device"


@dataclass(frozen=True)
class Operator:
    """One of torch's own operators by its name ("aten.linear.default"), which pickles as the operator does not."""

    name: str

    @property
    def __name__(self) -> str:
        return self.name.split(".")[1]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the operator gives."""
        return _operator(self.name)(*args, **kwargs)


@cache
def _operator(name: str) -> Any:
    return attrgetter(name)(torch.ops)


class Ref(str):
    """The name of a value, among a step's arguments."""


@dataclass(frozen=True)
class Step:
    """One operator, `name` = `target`(`args`), as torch.fx writes it.

    op: call_module, call_function, call_method or get_attr. inplace: whether it overwrites its first argument.
    several: whether its value is known to be a tuple. within: the path of the module that calls it, where it is known
    and has no children. gradients: whether it is computed with them, not under torch.no_grad.
    """

    name: str
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inplace: bool = False
    several: bool = False
    within: str = ""
    gradients: bool = True

    @property
    def called(self) -> str:
        """The module's path in the model, or the function's or method's name."""
        return str(getattr(self.target, "__name__", self.target))

    @cached_property
    def uses(self) -> list[str]:
        """The values among its arguments."""
        return list(refs((self.args, self.kwargs)))

    def run(self, values: Mapping[str, Any], original: nn.Module, device: torch.device | None = None) -> Any:
        """Its value, with the modules and parameters of `original`."""
        if not self.gradients:
            with torch.no_grad():
                return replace(self, gradients=True).run(values, original, device)
        args, kwargs = filled((self.args, self.kwargs), values, original.training, device)
        if self.op == "call_module":
            return original.get_submodule(self.target)(*args, **kwargs)
        if self.op == "get_attr":
            return attribute(original, self.target)
        if self.op == "call_method":
            return getattr(args[0], self.target)(*args[1:], **kwargs)
        return self.target(*args, **kwargs)


@dataclass(frozen=True)
class Traced:
    """A model's operators.

    inputs: names of what it takes, by `asked` in the model's own words; output: `Ref`s, alone or in tuples.
    shapes: of values, where known: sizes, or names of sizes that differ from minibatch to minibatch. sizes: values that
    are such sizes, and their names. sized: the steps that follow from the inputs' sizes alone, these among them.
    """

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    output: Any
    asked: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    sized: frozenset[str] = frozenset()


def attribute(model: nn.Module, path: str) -> Any:
    """A parameter or buffer by its path."""
    parent, _, name = path.rpartition(".")
    return getattr(model.get_submodule(parent), name)


def constant(value: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A tensor that the model makes itself; where a device is named, there."""
    return value if device is None else value.to(device)


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


def renamed(traced: Traced) -> Traced:
    """Whoever uses a value after it was overwritten uses the operator's that did so."""
    now: dict[str, str] = {}
    rename = lambda value: mapped(value, lambda leaf: Ref(now.get(leaf, leaf)) if isinstance(leaf, Ref) else leaf)  # noqa: E731
    steps = []
    for step in traced.steps:
        step = replace(step, args=rename(step.args), kwargs=rename(step.kwargs))
        if step.inplace and step.uses:
            old = step.uses[0]
            now |= {name: step.name for name, current in now.items() if current == old} | {old: step.name}
        steps.append(step)
    return replace(traced, steps=tuple(steps), output=rename(traced.output))


def filled(value: Any, values: Mapping[str, Any], training: bool, device: torch.device | None = None) -> Any:
    """Arguments with the values in place of their names."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            return values[leaf]
        if isinstance(leaf, ByMode):
            return leaf.training if training else leaf.evaluation
        return device if leaf is Here.DEVICE else leaf

    return mapped(value, change)


def scalars(steps: Iterable[Step]) -> set[str]:
    """Values that are sizes and the like: asked of a tensor, or calculated from such alone."""
    names: set[str] = set()
    for step in steps:
        asked = step.called in SCALARS or (step.target is getattr and step.args[1] in SCALARS)
        calculated = step.op == "call_function" and step.target.__module__ in ("_operator", "math", "builtins")
        if asked or (calculated and step.uses and names.issuperset(step.uses)):
            names.add(step.name)
    return names
