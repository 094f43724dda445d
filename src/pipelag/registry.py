"""Register things by name; a name that is taken is refused."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from pipelag.errors import PipelagError, a

T = TypeVar("T")


def entered(kind: str, name: str, registry: MutableMapping[str, Any]) -> Callable[[T], T]:
    """A decorator that registers what it decorates as `name`. `kind`: what such things are called in the refusal.

    Raises:
        PipelagError: when the decorator is applied, if the name is taken.
    """

    def add(thing: T) -> T:
        free(kind, name, registry)
        registry[name] = thing
        return thing

    return add


def free(kind: str, name: str, registry: MutableMapping[str, Any]) -> None:
    """Refuse a name that is in the registry already."""
    if name in registry:
        raise PipelagError(f"{a(kind)} named '{name}' is already registered; choose another name")
