"""A stage's weights in flat buffers, with the parameters as views into them.

Autograd saves a weight by reference and checks a version counter that every in-place operation on the parameter
increments. Writing to the *flat buffer* changes what the parameter holds without touching the parameter's counter. That
lets a backward pass run with other weights than its forward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

ADDRESS = torch.Tensor.data_ptr  # called through `map`, it takes no call of Python for each of many tensors
Divided = tuple[list[torch.Tensor], list[torch.Tensor]]  # of the parameters that are rounded, of the others


class Laid(list[torch.Tensor]):
    """Flat buffers of a stage that keep their views, once these have been asked for."""

    views: list[torch.Tensor] | None = None  # one per parameter
    pieces: list[torch.Tensor] | None = None  # for `pipelag.stage.flat_step`
    divided: Divided | None = None  # the `views` for `pipelag.stage.rounded`

    @property
    def cut(self) -> list[torch.Tensor]:
        """The views that are kept, without the buffers themselves."""
        return [tensor for tensor in (*(self.views or ()), *(self.pieces or ())) if all(tensor is not b for b in self)]


class FlatParameters:
    """The parameters of one stage, made views of one buffer per (dtype, device, group of the optimizer).

    Sizes, strides (channels_last weights stay so) and values are unchanged, and the `Parameter` objects stay the same.

    Args:
        apart: if the stage has several groups in the optimizer, the one that each parameter is in
            (`pipelag.stage.optimizers.apart`).
    """

    reads_copies = False  # True: passes read copies and not these buffers (`pipelag.stage.rounded`)
    shown: Divided = ([], [])  # the copies that passes read

    def __init__(self, parameters: Iterable[nn.Parameter], apart: Mapping[nn.Parameter, int] | None = None) -> None:
        self.parameters = list(dict.fromkeys(parameters))
        self.read = self.parameters  # the parameters that passes read, in the same order
        groups: dict[tuple[torch.dtype, torch.device, int], list[nn.Parameter]] = {}
        for parameter in self.parameters:
            group = apart.get(parameter, 0) if apart else 0
            groups.setdefault((parameter.dtype, parameter.device, group), []).append(parameter)
        self.groups = [group for _, _, group in groups]  # of each buffer
        self.buffers = Laid()
        self.places: dict[nn.Parameter, tuple[int, int]] = {}  # index of a parameter's buffer, and offset in it
        for (dtype, device, _), members in groups.items():
            # Each view starts on a 64-byte boundary, so that vector kernels split it as they split a separate tensor.
            # Otherwise results could differ in the last bit from those of plain training.
            step = 64 // torch.empty((), dtype=dtype).element_size()
            sizes = [-(-parameter.numel() // step) * step for parameter in members]
            flat = torch.zeros(sum(sizes), dtype=dtype, device=device)
            offset = 0
            for parameter, size in zip(members, sizes, strict=True):
                dense = parameter.data if _dense(parameter) else parameter.data.contiguous()
                view = flat.as_strided(dense.size(), dense.stride(), offset)
                view.copy_(dense)
                parameter.data = view
                self.places[parameter] = (len(self.buffers), offset)
                offset += size
            self.buffers.append(flat)

    def like(self) -> Laid:
        """Zeros in the same layout."""
        return Laid(torch.zeros_like(buffer) for buffer in self.buffers)

    def views(self, buffers: list[torch.Tensor]) -> list[torch.Tensor]:
        """Views of buffers of the same layout, one per parameter, in the order of `parameters`."""
        if isinstance(buffers, Laid) and buffers.views is not None:
            return buffers.views
        views = [
            buffers[which].as_strided(parameter.size(), parameter.stride(), offset)
            for parameter in self.parameters
            for which, offset in [self.places[parameter]]
        ]
        if isinstance(buffers, Laid):
            buffers.views = views
        return views

    @property
    def held(self) -> list[torch.Tensor]:
        """The tensors that the weights occupy."""
        return self.buffers

    def point(self, buffers: list[torch.Tensor]) -> None:
        """Make the parameters views of other buffers of the same layout."""
        for parameter, view in zip(self.parameters, self.views(buffers), strict=True):
            parameter.data = view

    def displaced(self) -> list[nn.Parameter]:
        """The parameters whose `data` somebody has replaced, if passes read these buffers."""
        views = self.views(self.buffers)
        pairs = zip(self.parameters, map(ADDRESS, self.parameters), map(ADDRESS, views), strict=True)
        return [] if self.reads_copies else [parameter for parameter, now, place in pairs if now != place]

    @torch.no_grad()
    def take_back(self, parameters: Iterable[nn.Parameter]) -> None:
        """After others' code: make parameters whose `data` it has replaced views of the buffers again, with new values.

        Args:
            parameters: those of the stage, or others that stand for them, in the same order.
        """
        for parameter, place in zip(parameters, self.views(self.buffers), strict=True):
            if parameter.data_ptr() != place.data_ptr():
                place.copy_(parameter)
                parameter.data = place

    def alone(self, buffers: list[torch.Tensor]) -> bool:
        """Whether no autograd graph keeps a view of these buffers, which the parameters point at.

        It is so if the use count of their memory is explained by the buffers, their kept views and the parameters.
        """
        uses = Counter(map(_memory, buffers))
        uses.update(map(_memory, self.parameters))
        uses.update(map(_memory, buffers.cut if isinstance(buffers, Laid) else ()))
        # The call that asks for the count is one use more.
        return all(torch._C._storage_Use_Count(each) == uses[each] + 1 for each in map(_memory, buffers))  # type: ignore[attr-defined]

    def divided(self, buffers: list[torch.Tensor]) -> Divided:
        """The parts of these buffers of which `shown` has copies, in its order."""
        return [], []


def _memory(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage, which tensors that share memory have in common."""
    return tensor.untyped_storage()._cdata


@torch.no_grad()
def publish(changed: Iterable[tuple[FlatParameters, list[torch.Tensor]]]) -> None:
    """Copy stages' weights, as these buffers have them, to the copies that passes read.

    One call for all that is rounded, and one for all that is not: a GPU copies tensors together if they agree in dtype.
    """
    there: Divided = [], []
    what: Divided = [], []
    for flat, buffers in changed:
        parts = getattr(buffers, "divided", None) or flat.divided(buffers)
        for kind in (0, 1):
            there[kind].extend(flat.shown[kind])
            what[kind].extend(parts[kind])
    for places, values in zip(there, what, strict=True):
        if places:
            torch._foreach_copy_(places, values)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the strides cover the storage exactly once (contiguous, channels_last, transposed)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def whole_state(module: nn.Module) -> dict[str, Any]:
    """A module's state, including the buffers that its `state_dict` leaves out (a running mean may be one)."""
    state: dict[str, Any] = module.state_dict()
    return state | {name: buffer for name, buffer in module.named_buffers(remove_duplicate=False) if name not in state}


def load_whole(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Load what `whole_state` returned; buffers that a `state_dict` leaves out may be missing from it.

    Raises:
        RuntimeError: the state is another module's.
    """
    named = module.state_dict().keys()
    buffers = {name: buffer for name, buffer in module.named_buffers(remove_duplicate=False) if name not in named}
    module.load_state_dict({name: value for name, value in state.items() if name not in buffers})
    for name in buffers.keys() & state.keys():
        buffers[name].detach().copy_(state[name])


def shadows(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """New parameters that share the storage of the given ones but not their version counters.

    The optimizer steps on these, so that an update between a minibatch's forward and its backward does not fail
    autograd's check. Hand the gradients over to them before each step (`hand_over`).
    """
    return [marked(nn.Parameter(p.data, requires_grad=p.requires_grad), p) for p in parameters]


def marked(parameter: nn.Parameter, like: nn.Parameter) -> nn.Parameter:
    """Copy to a parameter the attributes that a user has set on another, since optimizers may form groups by them."""
    parameter.__dict__.update({name: value for name, value in vars(like).items() if not name.startswith("_")})
    return parameter


def hand_over(parameters: Iterable[nn.Parameter], to: Iterable[nn.Parameter]) -> None:
    """Move the gradients from the model's parameters to their shadows."""
    for parameter, shadow in zip(parameters, to, strict=True):
        shadow.grad, parameter.grad = parameter.grad, None
