"""Pickle a task for its workers with cloudpickle, each storage once, and name the part that cannot be pickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from io import BytesIO
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.storage import TypedStorage

from pipelag.errors import PipelagError
from pipelag.models.cut import name_of


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle that sends a storage only once for all tensors that are views of it; torch sends it with each."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.storages: dict[int, TypedStorage] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Replace a tensor's storage by one object for all its views, which pickle then recognises."""
        if type(obj) is TypedStorage:
            storage = obj._untyped_storage
            whole = self.storages.setdefault(storage._cdata, typed(storage, torch.uint8))
            if obj is not whole:
                return view, (whole, obj.dtype)
        return super().reducer_override(obj)


def typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> TypedStorage:
    """A storage in the form in which torch pickles it with a tensor."""
    return TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def view(whole: TypedStorage, dtype: torch.dtype) -> TypedStorage:
    """The same storage with another type."""
    return typed(whole._untyped_storage, dtype)


def pickled(value: Any) -> bytes:
    """The value in the form that workers unpickle."""
    with BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def cannot_travel(
    arguments: Mapping[str, Any], error: Exception, way: Callable[[Any], object] = pickled
) -> PipelagError:
    """The error for arguments that `way` cannot pickle; its message names the layer or argument at fault."""
    parts: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, nn.Sequential):
            parts |= {
                f"layer {number} of the model ({name_of(layer)})": layer for number, layer in enumerate(value, start=1)
            }
        else:
            ours = is_dataclass(value) and type(value).__module__.startswith("pipelag.")
            parts |= vars(value) if ours else {name: value}
    culprit = "the model, its data or a function of yours"
    for name, part in parts.items():
        try:
            way(part)
        except Exception as refusal:
            culprit, error = name, refusal
            break
    reason = (
        f"{' '.join(str(error).split())}; it should hold nothing of one process alone, such as a lock or an open file"
    )
    if isinstance(part := parts.get(culprit), nn.Module) and any(map(is_parametrized, part.modules())):
        reason = (
            "torch cannot pickle a parametrized module; call torch.nn.utils.parametrize.remove_parametrizations first"
        )
    return PipelagError(f"{culprit} cannot be sent to worker processes: {reason}")
