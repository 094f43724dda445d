"""A GPU that is none: tensors lie in the CPU's memory, and are taken for a GPU's.

Inside, `device="cuda"` makes such tensors: their `device` is `cuda:0`, and what is computed of them is one, too. So who
asks whether it is on a GPU takes the GPU's way, with numbers that can be compared. As on a GPU, operations over tensors
of both are refused; so are copies in one call to places of several types, which some versions of torch get wrong. What
a host would wait for is noted: reading a value, comparing, and copies but those from pinned memory for which nobody
waits. Of kernels, streams and graphs nothing is told; what C++ decides by the device (fused cells, autocast's lists) is
the CPU's, and what C++ makes of nothing lies there: packed sequences and DDP need a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import Any
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
ATEN = torch.ops.aten
# Of these the host has to know what comes of them.
READING = (ATEN._local_scalar_dense, ATEN.equal, ATEN.nonzero, ATEN.masked_select, ATEN._unique2, ATEN.is_nonzero)
STRICT = (ATEN.cat, ATEN.stack)  # take no number of the CPU's beside a GPU's
GETTERS: dict[Any, Callable[[bool], Any]] = {
    torch.Tensor.device.__get__: lambda there: CUDA if there else CPU,  # type: ignore[attr-defined]
    torch.Tensor.is_cuda.__get__: lambda there: there,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: lambda there: not there,  # type: ignore[attr-defined]
}


class Places:
    """Which memory is taken for a GPU's, and which for pinned; and what a host has waited for."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[int, StorageWeakRef]] = {"gpu": {}, "pinned": {}}
        self.waits: list[str] = []

    def put(self, value: Any, kind: str = "gpu", there: bool = True) -> Any:
        """All its tensors lie there, or do not."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if there:
                    self.kinds[kind][storage._cdata] = StorageWeakRef(storage)
                else:
                    self.kinds[kind].pop(storage._cdata, None)
        return value

    def on(self, tensor: torch.Tensor, kind: str = "gpu") -> bool:
        """Whether a tensor lies there."""
        if tensor.layout is not torch.strided:
            return False
        known = self.kinds[kind].get(tensor.untyped_storage()._cdata)
        return known is not None and not known.expired()

    def copied(self, source: torch.Tensor, there: bool, non_blocking: bool, what: str) -> None:
        """From one to the other."""
        if self.on(source) or (there and not (non_blocking and self.on(source, "pinned"))):
            self.waits.append(what)


class Named(TorchFunctionMode):
    """What Python calls: where tensors are made, moved and asked where they are."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        more, places = dict(kwargs or {}), self.places
        name = getattr(func, "__name__", "")
        if func in GETTERS:
            return GETTERS[func](places.on(args[0]))
        if func in (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda):
            target = {"cpu": ["cpu"], "cuda": ["cuda"]}.get(name, list(args[1:]))
            return self.moved(args[0], target, more)
        if func is torch.Tensor.pin_memory:
            assert not places.on(args[0])
            return places.put(args[0].clone(), "pinned")
        if func is torch.Tensor.is_pinned:
            return places.on(args[0], "pinned")
        if func in (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__) and places.on(args[0]):
            if name != "tolist":
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            places.waits.append(name)
        if func is torch._C._nn._parse_to:  # names a device, and makes nothing there
            return func(*args, **more)
        if func is torch._cudnn_rnn_flatten_weight:  # for cuDNN, which is not here
            return None
        pinned, device = more.pop("pin_memory", False), more.get("device")
        there = device is not None and torch.device(device).type == "cuda"
        if there:
            more["device"] = CPU
            if func in (torch.tensor, torch.as_tensor):
                places.waits.append(name)
        out = func(*args, **more)
        if there:
            places.put(out)
        elif device is not None:
            places.put(out, there=False)
        return places.put(out, "pinned") if pinned else out

    def moved(self, tensor: torch.Tensor, target: list[Any], more: dict[str, Any]) -> torch.Tensor:
        """`tensor.to(...)`."""
        copy, here = more.pop("copy", False), self.places.on(tensor)
        if target and isinstance(target[0], torch.Tensor):
            target = [CUDA if self.places.on(target[0]) else CPU, target[0].dtype, *target[1:]]
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*target, **more)
        there = here if device is None else device.type == "cuda"
        if there != here:
            self.places.copied(tensor, there, non_blocking, "to")
        layout = layout or torch.preserve_format
        out = tensor.to(dtype or tensor.dtype, copy=copy or there != here, memory_format=layout)
        return self.places.put(out, there=there) if there != here else out


class Computed(TorchDispatchMode):
    """What is computed, also by a backward: where it is, and that all of it is of one device."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        more, packet, places = kwargs or {}, func.overloadpacket, self.places
        if packet is ATEN.copy_:
            places.copied(args[1], places.on(args[0]), bool((*args, False)[2]), "copy_") if self.apart(args[:2]) else 0
            return func(*args, **more)
        if packet is ATEN._foreach_copy_:
            kinds = [{tensor.dtype for tensor in each} for each in args[:2]]
            if len(kinds[0]) > len(kinds[1]) == 1 and any(map(places.on, args[0])):
                raise RuntimeError("places of several types: torch before its pull request 173531 takes them for one")
            for pair in zip(*args[:2], strict=True):
                places.copied(pair[1], places.on(pair[0]), False, "copy_") if self.apart(pair) else None
            return func(*args, **more)
        name = str(packet)
        if "_foreach" in name or "_fused" in name:
            return self.each(func, name, args, more)
        tensors = [t for t in tree_leaves((args, more)) if isinstance(t, torch.Tensor)]
        there = self.checked(name, packet, tensors, func._schema.is_mutable)
        if there and packet in READING:
            places.waits.append(name)
        out = func(*args, **more)
        return places.put(out) if there else out

    def apart(self, pair: Sequence[torch.Tensor]) -> bool:
        return self.places.on(pair[0]) != self.places.on(pair[1])

    def checked(self, name: str, packet: Any, tensors: Sequence[torch.Tensor], mutable: bool) -> bool:
        """Whether an operation is a GPU's. Numbers alone may come from the CPU, and the places that are looked up."""
        there = [self.places.on(tensor) for tensor in tensors]
        if not any(there) or all(there):
            return any(there)
        if packet in (ATEN.index, ATEN.index_put_, ATEN._index_put_impl_) and there[0]:
            self.places.waits.append(name)
            return True
        numbers = all(on or not tensor.dim() for on, tensor in zip(there, tensors, strict=True))
        if not numbers or packet in STRICT or (mutable and not there[0]):
            raise RuntimeError(f"Expected all tensors to be on the same device, cuda:0 and cpu, in {name}")
        return True

    def each(self, func: Any, name: str, args: Any, more: Any) -> Any:
        """Over lists, whose members may lie apart."""
        lists = [arg for arg in args if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], torch.Tensor)]
        rows = [[t for t in row if t is not None] for row in zip_longest(*lists)]
        numbers = [arg for arg in args if isinstance(arg, torch.Tensor)]
        there = [self.checked(name, None, [*row, *numbers], True) for row in rows]
        out = func(*args, **more)
        for on, made in zip(there, out or (), strict=False):
            self.places.put(made, there=on)
        return out


class Event:
    """A GPU's, which has come as soon as it is recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.time = 0.0

    def record(self) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, later: Event) -> float:
        return 1000 * (later.time - self.time)


@contextmanager
def pretended() -> Iterator[list[str]]:
    """Inside there is a GPU, `cuda:0`. Gives what a host has waited for, in the order of its waiting."""
    places, generators = Places(), (torch.default_generator,)
    with ExitStack() as stack:
        for name, stand_in in {
            "default_generators": generators,
            "current_device": lambda: 0,
            "Event": Event,
            "synchronize": lambda device=None: places.waits.append("synchronize"),
            "reset_peak_memory_stats": lambda device: None,
            "max_memory_allocated": lambda device: 0,
            "get_rng_state": lambda device: torch.get_rng_state(),
            "set_rng_state": lambda state, device: torch.set_rng_state(state),
        }.items():
            stack.enter_context(patch.object(torch.cuda, name, stand_in))
        autocast = torch.autocast
        stack.enter_context(patch.object(torch, "autocast", lambda kind, *rest, **more: autocast("cpu", *rest, **more)))
        stack.enter_context(Computed(places))
        stack.enter_context(Named(places))
        yield places.waits
