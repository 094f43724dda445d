"""The training methods, one short file per paper, with its equations. `pipelag.methods()` lists them."""

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
    """Lets `pipelag.methods()` return the registered methods: name -> one line."""

    def __call__(self) -> dict[str, str]:
        return {name: method.summary for name, method in METHODS.items()}

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        """Pickle this module by name, so that a user's function that refers to it can be sent to real workers."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Listing
