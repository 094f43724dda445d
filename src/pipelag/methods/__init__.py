"""The training methods, one file for each paper, next to its equations. `pipelag.methods()` lists them by name."""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from pipelag.methods import (  # noqa: F401  (importing a method's file registers it)
    beyond,
    data_parallel,
    pipedream,
    pipemare,
    pipeoptim,
    sequential,
    spectrain,
    stale_weights,
    synchronous,
    virtual,
)
from pipelag.methods.base import METHODS, Method, get, random_for_real, register

__all__ = ["METHODS", "Method", "get", "random_for_real", "register"]


class _Listing(ModuleType):
    """Makes `pipelag.methods()` answer with the registered methods, name -> one line."""

    def __call__(self) -> dict[str, str]:
        return {name: method.summary for name, method in METHODS.items()}

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        """Pickled by name, as modules are: a user's function that mentions this one travels to the workers."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Listing
