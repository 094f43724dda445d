"""bfloat16 with float32 masters: passes read rounded weights, updates are made in float32.

The optimizer and the weight policy work on the masters alone, so every version is kept in float32. A pass reads copies
of its version in memory of their own, to which autograd refers, so that a backward reads the weights of its own
version. Matrices and kernels are rounded in these copies. Vectors (biases, scales of norms) stay in float32: they are
small, and a norm that had to cast them would keep a copy of the forward's for its backward (`pipelag.stage.guard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import compress
from operator import attrgetter, not_
from typing import Any

import torch
from torch import nn

from pipelag.products import products
from pipelag.stage.weights import Divided, FlatParameters, Laid, load_whole, publish, shadows, whole_state
from pipelag.tensors import copy_each

Masters = Mapping[nn.Parameter, nn.Parameter]
CHANGES = attrgetter("_version")


def computing(device: torch.device, bf16: bool) -> AbstractContextManager[Any]:
    """A context for forwards. With bf16, matrix products and convolutions are in bfloat16, and autocast is on."""
    return _computing(device) if bf16 else nullcontext()


def differentiating(device: torch.device, bf16: bool) -> AbstractContextManager[Any]:
    """A context for the backwards of forwards that ran in `computing`."""
    return products(device) if bf16 else nullcontext()


@contextmanager
def _computing(device: torch.device) -> Iterator[None]:
    with products(device), torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
        yield


class Rounding(dict[nn.Parameter, nn.Parameter]):
    """Parameter -> its master, in float32 where the parameter is rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[Any] = []
        self.seen: list[int] = []  # how often each parameter had been changed when `note` was called

    def note(self) -> None:
        """Take the parameters' values for those of their masters."""
        self.seen = list(map(CHANGES, self))

    def changed(self) -> list[nn.Parameter]:
        """The parameters that are no copies of their masters any more because somebody has changed them in place.

        Call it between two steps. Changes through `data` are not seen.
        """
        now = list(map(CHANGES, self))
        if now == self.seen:
            return []
        touched = [parameter for parameter, a, b in zip(self, now, self.seen, strict=True) if a != b]
        lost = [parameter for parameter in touched if not _copy_of(parameter, self[parameter])]
        if not lost:  # other weights were there for a while
            self.seen = now
        return lost

    @property
    def rounded(self) -> list[nn.Parameter]:
        """The masters of the parameters that are rounded."""
        return [master for parameter, master in self.items() if parameter.dtype != master.dtype]

    def end(self) -> None:
        """Give the parameters their masters' float32 weights again."""
        for hook in self.hooks:
            hook.remove()
        for parameter, master in self.items():
            parameter.grad = None
            parameter.data = master.data


def _copy_of(parameter: nn.Parameter, master: nn.Parameter) -> bool:
    now, kept = parameter.detach(), master.detach().to(parameter.dtype)
    return torch.equal(now, kept) or torch.allclose(now, kept, rtol=0, atol=0, equal_nan=True)


def masters_of(parameters: Iterable[nn.Parameter]) -> Rounding:
    """Give every parameter a master, and round the float32 matrices among the parameters to bfloat16.

    As soon as a backward has made a gradient, a hook adds it to the master's gradient in the master's dtype.
    """
    masters = Rounding()
    for parameter in dict.fromkeys(parameters):
        (master,) = shadows([parameter])
        rounds = parameter.dim() > 1 and parameter.dtype == torch.float32
        parameter.data = parameter.data.bfloat16() if rounds else parameter.data.clone()
        masters[parameter] = master
        if parameter.is_floating_point() or parameter.is_complex():
            trained = parameter.requires_grad
            parameter.requires_grad_(True)  # a frozen one takes no hook, but may be thawed later
            masters.hooks.append(parameter.register_post_accumulate_grad_hook(partial(_give, master)))
            parameter.requires_grad_(trained)
    masters.note()
    return masters


def _give(master: nn.Parameter, parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    gradient = parameter.grad.to(master.dtype)
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
    parameter.grad = None


def gradients_of(
    loss: torch.Tensor, stages: Iterable[FlatParameters], places: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The gradients of `loss`, one per master of the stages and in its dtype; None where there is none.

    They do not pass through the hooks of `masters_of`, but are copied in one call for all rounded parameters and one
    for all others.

    Args:
        places: per parameter, the tensor to copy its gradient to; None: a new one.
    """
    pairs = [pair for flat in stages for pair in zip(flat.read, flat.parameters, strict=True)]
    wanted = [read for read, _ in pairs if read.requires_grad]
    gradients = dict(zip(wanted, torch.autograd.grad(loss, wanted, allow_unused=True), strict=True))
    given = [
        None if gradients.get(read) is None else torch.empty_like(master) if place is None else place
        for (read, master), place in zip(pairs, places, strict=True)
    ]
    copies = list(zip(given, pairs, strict=True))
    for rounded in (True, False):
        copy_each(
            (place, gradients[read])
            for place, (read, master) in copies
            if place is not None and (read.dtype != master.dtype) == rounded
        )
    return given


def hands_on(hook: Any) -> bool:
    """Whether a parameter's hook is the one that `masters_of` registers."""
    return isinstance(hook, partial) and hook.func is _give


def in_full(module: nn.Module, masters: Masters | None) -> dict[str, Any]:
    """A module's whole state, with masters in place of parameters; the tensors are not copies."""
    state = whole_state(module)
    for name, parameter in module.named_parameters(remove_duplicate=False) if masters else ():
        state[name] = masters.get(parameter, parameter).data  # type: ignore[union-attr]
    return state


def take_in_full(module: nn.Module, state: Mapping[str, Any], masters: Masters | None) -> None:
    """Load what `in_full` returned: into the masters as it is, into the parameters rounded where they are."""
    load_whole(module, state)
    for name, parameter in module.named_parameters() if masters else ():
        if parameter in masters:  # type: ignore[operator]
            masters[parameter].data.copy_(state[name])  # type: ignore[index]


class RoundedParameters(FlatParameters):
    """A stage's masters in flat buffers; the model's parameters are copies of them, rounded where they are matrices."""

    reads_copies = True

    def __init__(
        self, parameters: Iterable[nn.Parameter], masters: Masters, apart: Mapping[nn.Parameter, int] | None = None
    ) -> None:
        distinct = list(dict.fromkeys(parameters))
        super().__init__((masters[parameter] for parameter in distinct), apart)
        self.read = distinct
        self.rounds = [read.dtype != master.dtype for read, master in zip(distinct, self.parameters, strict=True)]
        self.shown = self._divided([parameter.data for parameter in distinct])
        publish([(self, self.buffers)])

    @property
    def held(self) -> list[torch.Tensor]:
        """The tensors that the weights occupy, with their copies."""
        return self.buffers + self.shown[0] + self.shown[1]

    def _divided(self, each: list[torch.Tensor]) -> Divided:
        return list(compress(each, self.rounds)), list(compress(each, map(not_, self.rounds)))

    def divided(self, buffers: list[torch.Tensor]) -> Divided:
        """The parts of these buffers of which `shown` has copies: those that it rounds, and the others.

        Copying into the parameters' data does not raise the parameters' version counters.
        """
        parts = self._divided(self.views(buffers))
        if isinstance(buffers, Laid):
            buffers.divided = parts
        return parts


def flat_of(
    parameters: Iterable[nn.Parameter], masters: Masters | None, apart: Mapping[nn.Parameter, int] | None = None
) -> FlatParameters:
    """A stage's weights in flat buffers; in bfloat16, its masters. `apart`: as in `FlatParameters`, of masters."""
    return FlatParameters(parameters, apart) if masters is None else RoundedParameters(parameters, masters, apart)
