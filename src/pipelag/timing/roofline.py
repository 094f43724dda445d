"""A model's profile without running it: every operator takes the least time that its device's data sheet allows.

This is the roofline of Williams et al. (2009): an operator takes max(operations / peak rate, bytes moved / memory
bandwidth). The model is on the meta device, so that an ImageNet network is profiled in a second on any machine. The
times are those of a perfect library; in truth small or oddly shaped operators are slower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from pipelag.models.cut import name_of
from pipelag.stage.recompute import fresh
from pipelag.stage.split import backward_to_inputs
from pipelag.tensors import as_it_is, as_tuple, own_outputs, weight_bytes
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import Device, data_sheet
from pipelag.timing.storages import Saved, id_of
from pipelag.timing.unrolled import Unrolled

# These read from their first tensor only as many elements as their result has (the loss: as there are targets).
PICKING = {"aten::embedding", "aten::index", "aten::index_select", "aten::gather", "aten::nll_loss_forward"}
OVERWRITING = ("aten::copy_", "aten::fill_", "aten::zero_")  # these do not read what they write


@dataclass(frozen=True)
class Operator:
    """An operator that has run: its name, the shapes of its tensors, floating-point operations and bytes moved."""

    name: str
    shapes: tuple[torch.Size, ...]
    operations: int
    moved: int


class Roofline(TorchDispatchMode):
    """Counts the operators that run inside, in the order of first use; `seconds` is the time that they take."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device, self.operators = device, Counter[Operator]()
        self.counting = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        free = ("aten::detach", "aten::empty", "aten::_unsafe_view", "aten::lift")
        if not self.counting or func.is_view or func.name().startswith(free):
            return out
        tensors = [t for t in tree_leaves((args, kwargs, out)) if torch.is_tensor(t)]
        moved = moved_bytes(func.name(), args, kwargs or {}, out)
        counter = flop_registry.get(func._overloadpacket)
        operations = counter(*args, **(kwargs or {}), out_val=out) if counter else 0
        self.operators[Operator(func.name(), tuple(t.shape for t in tensors), operations, moved)] += 1
        return out

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what runs inside."""
        self.counting = False
        try:
            yield
        finally:
            self.counting = True

    @property
    def seconds(self) -> float:
        """The time of all operators counted."""
        flops, bandwidth = self.device.flops, self.device.bandwidth
        return sum(n * max(o.operations / flops, o.moved / bandwidth) for o, n in self.operators.items())


def moved_bytes(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """The bytes that an operator reads and writes: all its tensors, except elements that it does not touch.

    A broadcast tensor counts with the size of its storage.
    """
    read, written = ([t for t in tree_leaves(each) if torch.is_tensor(t)] for each in ((args, kwargs), out))
    if name.startswith(OVERWRITING):
        return sum(map(_bytes, read))  # among them the tensor that is written
    moved = sum(map(_bytes, read + written))
    if name.split(".")[0] in PICKING:
        table, second = read[:2]
        picked = second if name.startswith("aten::nll_loss") else written[0]
        moved -= max(0, _bytes(table) - picked.numel() * table.element_size())
    return moved


def _bytes(tensor: torch.Tensor) -> int:
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def roofline(model: nn.Sequential | Sequence[nn.Module], batch: Any, device: str) -> Profile:
    """The roofline profile of a model on the meta device.

    Args:
        batch: the model's input, on the meta device.
        device: the name of a data sheet (`pipelag.timing.sheets`).

    Raises:
        PipelagError: an unknown device (the message names the nearest).
    """
    sheet = data_sheet(device)
    nn.ModuleList(model).zero_grad(set_to_none=True)  # adding to earlier gradients would count
    rows, value = [], batch
    once = weight_bytes(list(model))
    unrolled = Unrolled()
    for number, layer in enumerate(model, start=1):
        received = fresh(value)
        keep = Saved({id_of(p) for p in layer.parameters()} | {id_of(t) for t in as_tuple(received)})
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, as_it_is)
        with hooks, Roofline(sheet) as forward, unrolled.into(forward):
            value = layer(received)
        outputs, output_gradients = own_outputs(
            value, [torch.empty_like(t) for t in as_tuple(value) if t.requires_grad], received
        )
        inputs = [t for t in as_tuple(received) if t.requires_grad]
        with Roofline(sheet) as alone, unrolled.into(alone, weights=False):  # without the gradients of the weights
            if inputs and outputs:
                torch.autograd.grad(outputs, inputs, output_gradients, retain_graph=True, allow_unused=True)
        before = [(t, t.grad) for t in (*layer.parameters(), *inputs)]
        with unrolled.into(Roofline(sheet)):  # what is kept if the backward is in two parts; no operator counts
            _, left = backward_to_inputs(tuple(outputs), tuple(output_gradients), received)
            gradient_bytes, places = left.bytes, {id_of(t) for t in left.saved()}
        for tensor, gradient in before:
            tensor.grad = gradient
        with Roofline(sheet) as backward, unrolled.into(backward):
            torch.autograd.backward(outputs, output_gradients)
        out = sum(t.numel() * t.element_size() for t in as_tuple(value))
        handed = {id_of(t): t.untyped_storage().nbytes() for t in as_tuple(value)}
        inside = sum(size for place, size in keep.bytes.items() if place not in handed)
        new = sum(size for place, size in handed.items() if place not in {id_of(t) for t in as_tuple(received)})
        kept = inside + (0 if number == len(model) else new)  # what only passes through a layer is kept once
        rows.append(
            LayerTime(
                number,
                name_of(layer),
                1e3 * forward.seconds,
                1e3 * backward.seconds,
                out,
                kept,
                once[number - 1],
                1e3 * max(0.0, backward.seconds - alone.seconds),
                gradient_bytes=gradient_bytes,
                freed_bytes=max(0, kept - sum(keep.bytes[place] for place in places & {*keep.bytes})) if inputs else 0,
            )
        )
    return Profile(tuple(rows))
