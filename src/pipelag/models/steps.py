"""A model's operators as plain data that can be pickled, which `tracing` makes and `linearise` lays out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import nn

SCALARS = {"shape", "ndim", "dtype", "device", "size", "dim", "numel", "stride"}  # properties of a tensor


@dataclass(frozen=True)
class ByMode:
    """An argument of a step with one value in training and another in evaluation, such as `self.training`."""

    training: Any
    evaluation: Any


class Here(Enum):
    """An argument of a step that stands for the device of the layer's inputs."""

    DEVICE = "device"


@dataclass(frozen=True)
class Operator:
    """One of torch's own operators by name ("aten.linear.default"), because the operator itself cannot be pickled."""

    name: str

    @property
    def __name__(self) -> str:
        return self.name.split(".")[1]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator."""
        return _operator(self.name)(*args, **kwargs)


@cache
def _operator(name: str) -> Any:
    return attrgetter(name)(torch.ops)


class Ref(str):
    """An argument of a step that names another step's value."""


@dataclass(frozen=True)
class Step:
    """One operator of a model, `name` = `target`(`args`), in the notation of torch.fx.

    op: call_module, call_function, call_method or get_attr.
    inplace: whether the operator overwrites its first argument.
    several: whether its value is known to be a tuple.
    within: the path of the module that calls it, if that is known and has no children.
    gradients: whether it is computed with gradients, not under torch.no_grad.
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
        """The names of the values among the step's arguments."""
        return list(refs((self.args, self.kwargs)))

    def run(self, values: Mapping[str, Any], original: nn.Module, device: torch.device | None = None) -> Any:
        """Compute the step's value with the modules and parameters of `original`."""
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

    inputs: the names of its input values; asked: the same by the arguments' names in the model's forward.
    output: one `Ref`, or several in tuples.
    shapes: the shapes of values, where known, with a name for a size that differs between minibatches.
    sizes: the values that are such sizes, with the sizes' names.
    sized: the steps that depend on the inputs' sizes only, including those that compute `sizes`.
    """

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    output: Any
    asked: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    sized: frozenset[str] = frozenset()


def attribute(model: nn.Module, path: str) -> Any:
    """The parameter or buffer at a path in a model."""
    parent, _, name = path.rpartition(".")
    return getattr(model.get_submodule(parent), name)


def constant(value: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A constant tensor that the model makes itself, moved to a device if one is given."""
    return value if device is None else value.to(device)


def refs(value: Any) -> Iterator[str]:
    """The names of values in arguments, also within tuples, lists, dicts and slices."""
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
    """Arguments with `change` applied to every leaf."""
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
    """The trace in which a step that uses an overwritten value names the value of the overwriting operator."""
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
    """Arguments with values in place of their names, and with the present mode and device."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            return values[leaf]
        if isinstance(leaf, ByMode):
            return leaf.training if training else leaf.evaluation
        return device if leaf is Here.DEVICE else leaf

    return mapped(value, change)


def scalars(steps: Iterable[Step]) -> set[str]:
    """The names of values that are properties of tensors, such as sizes, or calculated only from such values."""
    names: set[str] = set()
    for step in steps:
        asked = step.called in SCALARS or (step.target is getattr and step.args[1] in SCALARS)
        calculated = step.op == "call_function" and step.target.__module__ in ("_operator", "math", "builtins")
        if asked or (calculated and step.uses and names.issuperset(step.uses)):
            names.add(step.name)
    return names
