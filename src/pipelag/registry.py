"""Entering things by name: whoever brings one whose name is taken is told so."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from pipelag.errors import PipelagError, a

T = TypeVar("T")


def entered(kind: str, name: str, registry: MutableMapping[str, Any]) -> Callable[[T], T]:
    """A decorator that puts what it decorates into the registry.

    Raises:
        PipelagError: when it is used, where the name is taken; `kind` is what such things are called.
    """

    def add(thing: T) -> T:
        free(kind, name, registry)
        registry[name] = thing
        return thing

    return add


def free(kind: str, name: str, registry: MutableMapping[str, Any]) -> None:
    """Refuse a name that is taken."""
    if name in registry:
        raise PipelagError(f"{a(kind)} named '{name}' is already registered; choose another name")
