"""Plain Python values in a model's modules: a forward may change them, but a row of layers would not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

PLAINLY = (bool, int, float, complex, str, bytes)
Values = dict[tuple[str, str], Any]  # by a module's path and an attribute


@contextmanager
def unchanged_attributes(model: nn.Module) -> Iterator[None]:
    """Restore the modules' attributes and buffers afterwards: which they are, not the contents of tensors."""
    kept = [(module, vars(module).copy(), module._buffers.copy()) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes, buffers in kept:
            module._buffers.clear()
            module._buffers.update(buffers)
            vars(module).clear()
            vars(module).update(attributes)


def values_of(model: nn.Module) -> Values:
    """The attributes of a model's modules that are plain Python values."""
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if value is None or type(value) in PLAINLY
    }


def differing(before: Values, after: Values) -> str:
    """The path of the first attribute whose value differs, or an empty text; only plain values after count."""
    for key, value in after.items():
        if key not in before or (before[key] is not value and before[key] != value):  # NaN is itself
            return ".".join(filter(None, key))
    return ""
