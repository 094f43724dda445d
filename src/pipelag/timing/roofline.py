"""A model's profile without running it: every operator takes as long as its device's data sheet allows.

The roofline of Williams et al. (2009): an operator lasts max(operations / peak rate, bytes moved / memory bandwidth).
Runs on the meta device, so that an ImageNet network is profiled in a second on any machine. It says what a perfect
library would reach: small or oddly shaped operators are slower in truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from pipelag.errors import unknown
from pipelag.models.cut import name_of
from pipelag.tensors import as_tuple, own_outputs, weight_bytes
from pipelag.timing.layers import LayerTime, Profile


@dataclass(frozen=True)
class Device:
    """A data sheet: floating-point operations (float32, if the name says no other) and bytes per second; bytes."""

    flops: float
    bandwidth: float
    memory: float = float("inf")


GIB = 2**30  # what the sheets call a GB of memory

# As NVIDIA's data sheets have them, at boost clocks. A sheet that rounds its rate is left for cores x 2 x boost clock.
DEVICES = {
    "v100": Device(15.7e12, 900e9, 16 * GIB),  # NVIDIA V100 SXM2
    "v100_fp16": Device(125e12, 900e9, 16 * GIB),  # its tensor cores; for models and inputs of half precision
    "p100": Device(9.3e12, 732e9, 16 * GIB),  # NVIDIA Tesla P100 for PCIe, 16 GB
    "p100_sxm2": Device(10.6e12, 732e9, 16 * GIB),  # NVIDIA Tesla P100 with NVLink
    "p40": Device(11.76e12, 346e9, 24 * GIB),  # NVIDIA Tesla P40: 3840 cores at 1.531 GHz; the sheet says 12 TFLOPS
    "titan_x": Device(10.97e12, 480e9, 12 * GIB),  # NVIDIA Titan X (Pascal)
    "1080ti": Device(11.34e12, 484e9, 11 * GIB),  # NVIDIA GTX 1080 Ti
}


class Roofline(TorchDispatchMode):
    """Adds up the seconds of the operators that run inside."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device, self.seconds = device, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.is_view or func.name().startswith(("aten::detach", "aten::empty", "aten::_unsafe_view", "aten::lift")):
            return out
        moved = sum(t.numel() * t.element_size() for t in tree_leaves((args, kwargs, out)) if torch.is_tensor(t))
        counter = flop_registry.get(func._overloadpacket)
        operations = counter(*args, **(kwargs or {}), out_val=out) if counter else 0
        self.seconds += max(operations / self.device.flops, moved / self.device.bandwidth)
        return out


def data_sheet(name: str) -> Device:
    """A device by name; the nearest is named where it is not known."""
    if name not in DEVICES:
        raise unknown("device with a data sheet", name, DEVICES)
    return DEVICES[name]


def roofline(model: nn.Sequential | Sequence[nn.Module], batch: Any, device: str) -> Profile:
    """The profile of a model on the meta device, `batch` its input there.

    Raises:
        PipelagError: unknown device (the nearest is named).
    """
    sheet = data_sheet(device)
    nn.ModuleList(model).zero_grad(set_to_none=True)  # or gradients of before would be added to, which takes time
    rows, value = [], batch
    once = weight_bytes(list(model))
    for number, layer in enumerate(model, start=1):
        received = _detached(value, number > 1)
        keep = _Kept({id_of(p) for p in layer.parameters()} | {id_of(t) for t in as_tuple(received)})
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), Roofline(sheet) as forward:
            value = layer(received)
        outputs, given = own_outputs(value, [torch.empty_like(t) for t in as_tuple(value) if t.requires_grad], received)
        with Roofline(sheet) as backward:
            torch.autograd.backward(outputs, given)
        out = sum(t.numel() * t.element_size() for t in as_tuple(value))
        handed = {id_of(t): t.untyped_storage().nbytes() for t in as_tuple(value)}
        inside = sum(size for place, size in keep.bytes.items() if place not in handed)
        new = sum(size for place, size in handed.items() if place not in {id_of(t) for t in as_tuple(received)})
        rows.append(
            LayerTime(
                number,
                name_of(layer),
                1e3 * forward.seconds,
                1e3 * backward.seconds,
                out,
                inside + (0 if number == len(model) else new),  # what only passes through is kept once
                once[number - 1],
            )
        )
    return Profile(tuple(rows))


class _Kept:
    """What autograd keeps: bytes by storage, each once; on the meta device they have no address, but an identity."""

    def __init__(self, but: set[int]) -> None:
        self.but, self.bytes = but, dict[int, int]()
        self.alive: list[torch.Tensor] = []  # an identity is given again once its storage is gone

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        place = id_of(tensor)
        if place not in self.but:
            self.bytes[place] = tensor.untyped_storage().nbytes()
            self.alive.append(tensor)
        return tensor


def id_of(tensor: torch.Tensor) -> int:
    """A storage's identity."""
    return int(tensor.untyped_storage()._cdata)


def _detached(value: Any, differentiable: bool) -> Any:
    copies = tuple(t.detach().requires_grad_(differentiable and t.is_floating_point()) for t in as_tuple(value))
    return copies if isinstance(value, tuple) else copies[0]
