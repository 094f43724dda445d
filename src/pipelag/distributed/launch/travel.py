"""How a task travels to its workers: by cloudpickle, each storage once; what cannot is named."""

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
    """cloudpickle, but a storage travels once, whatever many tensors are views of it: torch sends it with each."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.storages: dict[int, TypedStorage] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Of a tensor's storage: one object for all its views, which pickle then knows again."""
        if type(obj) is TypedStorage:
            storage = obj._untyped_storage
            whole = self.storages.setdefault(storage._cdata, typed(storage, torch.uint8))
            if obj is not whole:
                return view, (whole, obj.dtype)
        return super().reducer_override(obj)


def typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> TypedStorage:
    """A storage as torch pickles it with a tensor."""
    return TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def view(whole: TypedStorage, dtype: torch.dtype) -> TypedStorage:
    """The same storage as one of another type."""
    return typed(whole._untyped_storage, dtype)


def pickled(value: Any) -> bytes:
    """What workers unpickle."""
    with BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def cannot_travel(
    arguments: Mapping[str, Any], error: Exception, way: Callable[[Any], object] = pickled
) -> PipelagError:
    """The refusal of what does not go through `way`, naming the layer or the argument that it lies in."""
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
