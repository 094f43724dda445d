"""Split a minibatch into equal microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pipelag.errors import PipelagError


def split(value: Any, parts: int, what: str = "microbatches") -> list[Any]:
    """Equal parts of a minibatch along its first dimension; a tuple of tensors is split into tuples, a dict into dicts.

    what: the parts' name in messages.

    Raises:
        PipelagError: the size is not a multiple of `parts` (samples of unequal parts would have unequal weights), or
            the value has no batch dimension.
    """
    if parts == 1:
        return [value]
    if isinstance(value, tuple):
        return list(zip(*(split(item, parts, what) for item in value), strict=True))
    if isinstance(value, Mapping):
        return [dict(zip(value, part, strict=True)) for part in split(tuple(value.values()), parts, what)]
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        raise PipelagError(f"{what} need tensors with a batch dimension, not a {type(value).__name__}")
    if len(value) % parts:
        raise PipelagError(
            f"a minibatch of {len(value)} cannot be split into {parts} equal {what}; choose a batch size that is "
            f"a multiple of {parts}"
        )
    return list(value.chunk(parts))
