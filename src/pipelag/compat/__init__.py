"""Adapters to libraries that need help to be imported or compared with. What needs one imports it when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import Any


def lacking(model: str, options: Mapping[str, Any]) -> str:
    """Why a run with this model and these options cannot be made here; empty where it can.

    `make env` builds fairseq, or leaves it out where there is no C++ compiler.
    """
    needs = model == "fairseq_transformer" or options.get("generator") == "fairseq"
    if not needs or installed("fairseq"):
        return ""
    return "fairseq is not installed here: make env builds it where there is a C++ compiler"


@lru_cache
def installed(library: str) -> bool:
    """Whether a library can be imported, without doing so."""
    return find_spec(library) is not None
