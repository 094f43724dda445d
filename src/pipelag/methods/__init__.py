"""The methods, one short file each, beside the equations of its paper. Calling the package lists them."""

import sys
from types import ModuleType

from pipelag.methods import sequential, stale_weights  # noqa: F401  (importing a method's file registers it)
from pipelag.methods.base import METHODS, Method, get, register

__all__ = ["METHODS", "Method", "get", "register"]


class _Listing(ModuleType):
    """Makes `pipelag.methods()` answer with the registered methods, name -> one line."""

    def __call__(self) -> dict[str, str]:
        return {name: method.summary for name, method in METHODS.items()}


sys.modules[__name__].__class__ = _Listing
