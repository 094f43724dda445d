"""Keep decoded data for the next run. The file is memory-mapped, so that a run's processes share its pages."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pipelag.checkpoint import save_whole, whole
from pipelag.data.files.download import locked


def decoded_once(path: Path, title: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The tensors and plain values that an earlier run left at `path`; if there are none, make them and leave them.

    Args:
        title: the data's title, for the message while another process decodes them.
    """
    values = _load(path)
    if values is None:
        with locked(path, f"another process is decoding {title}; waiting for it"):
            values = _load(path)
            if values is None:
                values = make()
                save_whole(values, path)
    return values


def _load(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        if not whole(path):
            return None
        values = torch.load(path, mmap=True, weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError):
        return None  # unreadable: decode again
    return values if isinstance(values, dict) else None
