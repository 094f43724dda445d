"""What was decoded is kept for the next run, and mapped: the processes of a run then share its pages."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pipelag.checkpoint import save_whole, whole
from pipelag.data.files.download import locked


def kept(path: Path, title: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The tensors and plain values that an earlier run left at `path`, else those that `make` gives.

    Args:
        title: of what is decoded, for whoever waits for another process that does so.
    """
    found = _load(path)
    if found is None:
        with locked(path, f"another process is decoding {title}; waiting for it"):
            found = _load(path)
            if found is None:
                found = make()
                save_whole(found, path)
    return found


def _load(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        if not whole(path):
            return None
        found = torch.load(path, mmap=True, weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError):
        return None  # unreadable: decode again
    return found if isinstance(found, dict) else None
