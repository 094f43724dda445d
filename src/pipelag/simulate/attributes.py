"""Snapshots of Python objects' attributes, and of what these hold in turn, to compare with and to restore."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

CONTAINERS = (dict, list, set, deque)
PLAIN = (bool, int, float, complex, str, bytes)
TORCHS = frozenset(vars(nn.Module()))  # the attributes that every module has
LONG, MANY = 1000, 100  # the longest container that is entered; the most places beside modules that are watched


class Attributes:
    """A snapshot of objects' attributes, and of containers, plain objects and closures among these, at any depth.

    A module's tensors are compared by identity, not by their values.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        # A place: (an object, a container or a function, the attribute that holds a container, whose it is, contents)
        self.held: list[tuple[Any, str, str, dict[Any, Any] | list[Any]]] = []
        todo = deque((one, "", getattr(one, "__name__", type(one).__name__)) for one in objects)
        seen, more = set[int](), 0
        while todo:
            one, name, owner = todo.popleft()
            torchs = isinstance(one, nn.Module) or name in TORCHS
            if id(one) in seen or (not torchs and more >= MANY):
                continue
            seen.add(id(one))
            more += not torchs
            content = contents_of(one)
            self.held.append((one, name, owner, content))
            if len(content) > LONG:
                continue
            for key, value in content.items() if isinstance(content, dict) else (("", value) for value in content):
                for inner in inside(value):
                    if isinstance(inner, CONTAINERS):
                        todo.append((inner, name if isinstance(one, CONTAINERS) else key, owner))
                    else:
                        todo.append((inner, "", getattr(inner, "__name__", type(inner).__name__)))

    def changed(self) -> str:
        """The first attribute that has changed since, as "'name' of Class"; empty if none has."""
        for one, name, owner, before in self.held:
            found = differing(before, contents_of(one))
            if found is not None:
                return f"'{found or name}' of {owner}"
        return ""

    def restore(self) -> None:
        """Give the objects back the attributes and contents of the snapshot."""
        for one, _, _, before in self.held:
            if differing(before, contents_of(one)) is not None:
                refill(one, before)


def contents_of(one: Any) -> dict[Any, Any] | list[Any]:
    """A copy of a container, or of the attributes of an object, or of those and the closure of a function."""
    if isinstance(one, FunctionType):
        cells = cells_of(one).items()
        return vars(one) | {name: cell.cell_contents for name, cell in cells if cell != type(cell)()}
    if isinstance(one, dict):
        return dict(one)
    return list(one) if isinstance(one, CONTAINERS) else dict(vars(one))


def cells_of(function: FunctionType) -> dict[str, Any]:
    """The variables that a function has from outside, as cells by name; some may have no value."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def inside(value: Any) -> list[Any]:
    """What may change inside a value: itself, or parts of it."""
    if isinstance(value, tuple):
        return [inner for item in value for inner in inside(item)]
    if isinstance(value, MethodType):
        return inside(value.__self__)
    if isinstance(value, partial):
        return inside((value.func, *value.args, *value.keywords.values()))
    if isinstance(value, (*CONTAINERS, nn.Module)):
        return [value]
    module = (value if isinstance(value, FunctionType) else type(value)).__module__ or ""
    fixed = isinstance(value, (type, ModuleType, torch.Tensor)) or module.startswith(("torch.", "logging"))
    return [value] if hasattr(value, "__dict__") and not fixed else []


def refill(one: Any, before: Any) -> None:
    """Give a container, an object or a function the contents that `contents_of` returned."""
    cells = cells_of(one) if isinstance(one, FunctionType) else {}
    for name, cell in cells.items():
        cell.cell_contents = before.get(name)
        if name not in before:  # it had no value
            del cell.cell_contents
    place = one if isinstance(one, CONTAINERS) else vars(one)
    place.clear()
    if isinstance(place, (dict, set)):
        place.update({key: before[key] for key in before if key not in cells} if cells else before)
    else:
        place.extend(before)


def differing(before: Any, now: Any) -> str | None:
    """None if contents are the same; else the first key that has changed, or "" if there are no keys."""
    if isinstance(before, dict):
        keys = [key for key in {**before, **now} if not _same(before.get(key, before), now.get(key, before))]
        return str(keys[0]) if keys else None
    same = len(before) == len(now) and all(_same(a, b) for a, b in zip(before, now, strict=True))
    return None if same else ""


def _same(a: Any, b: Any) -> bool:
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, PLAIN) and a == b
