"""Adapters to libraries that need help to be imported or compared with. Such a library is imported only when used."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import Any


def lacking(model: str, options: Mapping[str, Any]) -> str:
    """Why a run with this model and these options cannot be made here: the library that is missing; empty if none is.

    `make env` builds fairseq, but leaves it out if there is no C++ compiler.
    """
    needs = model == "fairseq_transformer" or options.get("generator") == "fairseq"
    if not needs or installed("fairseq"):
        return ""
    return "fairseq is not installed here: make env builds it where there is a C++ compiler"


@lru_cache
def installed(library: str) -> bool:
    """Whether a library can be imported; it is not imported for that."""
    return find_spec(library) is not None
