"""Weights in one flat buffer per stage, the parameters as views into it.

Autograd keeps a saved weight by reference and checks a version counter that every in-place operation on the parameter
raises. Writing to the *flat buffer* changes what the parameter holds without touching the parameter's counter, which
is exactly "the backward pass runs with other weights than the forward pass".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn


class Laid(list[torch.Tensor]):
    """Flat buffers that keep the views of them that the parameters of a stage would be, once these are asked for."""

    views: list[torch.Tensor] | None = None
    pieces: list[torch.Tensor] | None = None  # as `pipelag.stage.flat_step` takes them
    rounded: list[torch.Tensor] | None = None  # of the views, as `pipelag.stage.rounded` takes them

    @property
    def cut(self) -> list[torch.Tensor]:
        """The views of them that are kept."""
        return [tensor for tensor in (*(self.views or ()), *(self.pieces or ())) if all(tensor is not b for b in self)]


class FlatParameters:
    """The parameters of one stage, made views of one buffer per (dtype, device, group of the optimizer).

    Sizes, strides (channels_last weights stay so) and values are unchanged, and the `Parameter` objects stay the same.
    `apart`: which of the stage's groups a parameter is in, where there are several (`pipelag.stage.optimizers.apart`).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], apart: Mapping[nn.Parameter, int] | None = None) -> None:
        self.parameters = list(dict.fromkeys(parameters))
        self.read = self.parameters  # what passes read of them, in the same order
        groups: dict[tuple[torch.dtype, torch.device, int], list[nn.Parameter]] = {}
        for parameter in self.parameters:
            group = apart.get(parameter, 0) if apart else 0
            groups.setdefault((parameter.dtype, parameter.device, group), []).append(parameter)
        self.groups = [group for _, _, group in groups]  # that of each buffer
        self.buffers = Laid()
        self.places: dict[nn.Parameter, tuple[int, int]] = {}  # the buffer that holds a parameter, and where in it
        for (dtype, device, _), members in groups.items():
            # Each view starts on a 64-byte boundary, so vector kernels split it as they split a tensor of its own:
            # without that, results could differ in the last bit from plain training.
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
        """The parameters' places in buffers of the same layout, in the order of `parameters`."""
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
        """What the weights take up."""
        return self.buffers

    def point(self, buffers: list[torch.Tensor]) -> None:
        """Let the parameters lie in other buffers of the same layout."""
        for parameter, view in zip(self.parameters, self.views(buffers), strict=True):
            parameter.data = view

    @property
    def pointed(self) -> Iterable[nn.Parameter]:
        """The parameters that `point` lets lie in other buffers."""
        return self.parameters

    def alone(self, buffers: list[torch.Tensor]) -> bool:
        """Whether in buffers that the parameters point at nobody else's tensors lie: no graph keeps a view of them."""
        uses = Counter(map(_memory, buffers))
        uses.update(map(_memory, self.pointed))
        uses.update(map(_memory, buffers.cut if isinstance(buffers, Laid) else ()))
        # One more is what `_memory` asks.
        return all(torch._C._storage_Use_Count(each) == uses[each] + 1 for each in map(_memory, buffers))  # type: ignore[attr-defined]

    def roundings(self, buffers: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """(all that shows weights otherwise, their places in these buffers); see `pipelag.stage.rounded`."""
        return [], []


def _memory(tensor: torch.Tensor) -> int:
    """The memory that a tensor lies in, which others may lie in, too."""
    return tensor.untyped_storage()._cdata


@torch.no_grad()
def publish(changed: Iterable[tuple[FlatParameters, list[torch.Tensor]]]) -> None:
    """Tell who shows stages' weights otherwise what they are in these buffers: in one call for all stages."""
    there, what = list[torch.Tensor](), list[torch.Tensor]()
    for flat, buffers in changed:
        shown, places = flat.roundings(buffers)
        there += shown
        what += places
    if there:
        torch._foreach_copy_(there, what)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the strides cover the storage exactly once (contiguous, channels_last, transposed)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def whole_state(module: nn.Module) -> dict[str, Any]:
    """A module's state, with the buffers that its `state_dict` leaves out: a running mean may be one of these."""
    state: dict[str, Any] = module.state_dict()
    return state | {name: buffer for name, buffer in module.named_buffers(remove_duplicate=False) if name not in state}


def load_whole(module: nn.Module, state: Mapping[str, Any]) -> None:
    """The inverse; of buffers that a `state_dict` leaves out, those that the state has.

    Raises:
        RuntimeError: it is another module's.
    """
    named = module.state_dict().keys()
    buffers = {name: buffer for name, buffer in module.named_buffers(remove_duplicate=False) if name not in named}
    module.load_state_dict({name: value for name, value in state.items() if name not in buffers})
    for name in buffers.keys() & state.keys():
        buffers[name].detach().copy_(state[name])


def shadows(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Parameters that share the given ones' storage but not their version counters.

    An optimizer steps on these, so that an update between a minibatch's forward and its backward does not trip
    autograd's check. Each `.grad` has to be handed over before the step (`hand_over`).
    """
    return [marked(nn.Parameter(p.data, requires_grad=p.requires_grad), p) for p in parameters]


def marked(parameter: nn.Parameter, like: nn.Parameter) -> nn.Parameter:
    """With the attributes that a user has given to another, by which an optimizer's groups may go."""
    parameter.__dict__.update({name: value for name, value in vars(like).items() if not name.startswith("_")})
    return parameter


def hand_over(parameters: Iterable[nn.Parameter], to: Iterable[nn.Parameter]) -> None:
    """Move the gradients from the model's parameters to their shadows."""
    for parameter, shadow in zip(parameters, to, strict=True):
        shadow.grad, parameter.grad = parameter.grad, None
