"""Snapshots of Python objects' attributes, and of the containers among them, to compare with and to restore."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

CONTAINERS = (dict, list, set, deque)
PLAIN = (bool, int, float, complex, str, bytes)


class Attributes:
    """A snapshot of objects' attributes. A module's buffers are compared by identity, not by their values."""

    def __init__(self, objects: Iterable[Any]) -> None:
        self.held = [(one, {name: (value, _copied(value)) for name, value in vars(one).items()}) for one in objects]

    def changed(self) -> str:
        """The first attribute that has changed since, as "'name' of Class"; empty if none has."""
        for one, before in self.held:
            now = vars(one)
            for name in {**before, **now}:
                there = name in before and name in now
                inside = _differing(before[name], now[name]) if there else ""
                if inside is not None:
                    return f"'{inside or name}' of {type(one).__name__}"
        return ""

    def restore(self) -> None:
        """Give the objects back the attributes and contents of the snapshot."""
        for one, before in self.held:
            now = vars(one)
            for name in [name for name in now if name not in before]:
                del now[name]
            for name, (value, content) in before.items():
                if name not in now or _differing((value, content), now[name]) is not None:
                    now[name] = value
                    _refill(value, content)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(value)
    return list(value) if isinstance(value, CONTAINERS) else None


def _differing(before: tuple[Any, Any], now: Any) -> str | None:
    """None if an attribute is unchanged; else the first key in it that has changed, or "" if there is no key."""
    value, content = before
    if not _same(value, now):
        return ""
    if content is None:
        return None
    if isinstance(content, dict):
        keys = [key for key in {**content, **now} if not _same(content.get(key, before), now.get(key, before))]
        return str(keys[0]) if keys else None
    same = len(content) == len(now) and all(_same(a, b) for a, b in zip(content, now, strict=True))
    return None if same else ""


def _same(a: Any, b: Any) -> bool:
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, PLAIN) and a == b


def _refill(value: Any, content: Any) -> None:
    """Restore a container's content."""
    if content is None:
        return
    value.clear()
    if isinstance(value, (dict, set)):
        value.update(content)
    else:
        value.extend(content)
