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
from itertools import chain, compress
from operator import attrgetter, not_
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pipelag.errors import PipelagError
from pipelag.products import products
from pipelag.stage.weights import Divided, FlatParameters, Laid, load_whole, publish, shadows, whole_state
from pipelag.tensors import copy_each

Masters = Mapping[nn.Parameter, nn.Parameter]
CHANGES, HOOKS = attrgetter("_version"), attrgetter("_post_accumulate_grad_hooks")


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
        self.handles: dict[nn.Parameter, list[Any]] = {}  # of the hooks that are ours
        self.counts: list[int] = []  # each parameter's hooks when `settle` was called
        self.within = [False]  # whether a step is being taken
        self.seen: list[int] = []  # how often each parameter had been changed when `note` was called

    def note(self) -> None:
        """Take the parameters' values for those of their masters."""
        self.seen = list(map(CHANGES, self))

    def touched(self) -> list[nn.Parameter]:
        """The parameters that somebody has changed in place since `note` was called, but not through `data`."""
        now = list(map(CHANGES, self))
        if now == self.seen:
            return []
        return [parameter for parameter, a, b in zip(self, now, self.seen, strict=True) if a != b]

    def changed(self) -> list[nn.Parameter]:
        """Those among the `touched` that are no copies of their masters any more. Call it between two steps."""
        touched = self.touched()
        lost = [parameter for parameter in touched if not _copy_of(parameter, self[parameter])]
        if touched and not lost:  # other weights were there for a while
            self.note()
        return lost

    @contextmanager
    def step(self) -> Iterator[None]:
        """A block in which a step is taken. Hooks that others have registered before it see their gradients."""
        self.settle()
        self.within[0] = True
        try:
            yield
        finally:
            self.within[0] = False

    @property
    def rounded(self) -> list[nn.Parameter]:
        """The masters of the parameters that are rounded."""
        return [master for parameter, master in self.items() if parameter.dtype != master.dtype]

    def hook(self, parameter: nn.Parameter) -> None:
        """Let backwards give the parameter's gradients to its master.

        Hooks of others are shown what they see in float32: the sum so far, which they may change. Ours then have to be
        the first and the last.
        """
        there = HOOKS(parameter) or {}
        for handle in self.handles.get(parameter, ()):
            handle.remove()
        others, master, register = dict(there), self[parameter], parameter.register_post_accumulate_grad_hook
        there.clear()
        trained = parameter.requires_grad
        parameter.requires_grad_(True)  # a frozen one takes no hook, but may be thawed later
        self.handles[parameter] = [register(partial(_show, master) if others else partial(_give, self.within, master))]
        if others:
            HOOKS(parameter).update(others)
            self.handles[parameter].append(register(partial(_take, master)))
        parameter.requires_grad_(trained)

    def settle(self) -> None:
        """Call between two steps: put our hooks around those that others have registered meanwhile."""
        if list(map(len, map(HOOKS, self.handles))) == self.counts:
            return
        for parameter, handles in self.handles.items():
            hooks = HOOKS(parameter)
            if len(hooks) > 1 and (len(handles) == 1 or not hands_on(next(reversed(hooks.values())))):
                self.hook(parameter)
        self.counts = list(map(len, map(HOOKS, self.handles)))

    def forget_gradients(self) -> None:
        """Clear all gradients, also those of a backward that failed among the hooks."""
        for parameter, master in self.items():
            parameter.grad = master.grad = None
            _retype(parameter, parameter.dtype)

    def end(self) -> None:
        """Give the parameters their masters' float32 weights again."""
        self.forget_gradients()
        for handle in chain.from_iterable(self.handles.values()):
            handle.remove()
        for parameter, master in self.items():
            parameter.data = master.data
            if parameter.grad_dtype != parameter.dtype:  # it was set once, and would stay bfloat16
                parameter.grad_dtype = None  # whatever a backward makes


def _copy_of(parameter: torch.Tensor, master: torch.Tensor) -> bool:
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
            masters.hook(parameter)
    masters.note()
    return masters


def _give(within: list[bool], master: nn.Parameter, parameter: torch.Tensor) -> None:
    """The only hook of a parameter: add its gradient to the master's. within: whether a step is being taken."""
    if len(HOOKS(parameter)) > 1:
        if not within[0]:  # a callback's own backward; its gradients are cleared
            return
        raise PipelagError(
            f"a hook was registered on the gradient of a parameter of shape {tuple(parameter.shape)} within a step, "
            "which in bfloat16 would not see the gradient; register it between two steps, or train in float32"
        )
    assert parameter.grad is not None
    gradient = parameter.grad.to(master.dtype)
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
    parameter.grad = None


def _show(master: nn.Parameter, parameter: torch.Tensor) -> None:
    """The first of several hooks: make the sum of gradients the parameter's gradient, in the master's dtype."""
    assert parameter.grad is not None
    gradient = parameter.grad.to(master.dtype)
    total = gradient if master.grad is None else master.grad.add_(gradient)
    _lend(parameter, total)


def _take(master: nn.Parameter, parameter: torch.Tensor) -> None:
    """The last of several hooks: take what the others have left for the master's gradient."""
    master.grad, parameter.grad = parameter.grad, None
    _retype(parameter, parameter.dtype)


def _lend(parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Make a tensor the parameter's gradient although the two may differ in dtype."""
    assert gradient is not None
    parameter.grad = None
    _retype(parameter, gradient.dtype)
    parameter.grad = gradient


def _retype(parameter: torch.Tensor, dtype: torch.dtype) -> None:
    """Let a parameter that has no gradient take those of a dtype."""
    if parameter.grad_dtype != dtype:
        parameter.grad_dtype = dtype


@contextmanager
def lent(stages: Iterable[FlatParameters], optimizer: Optimizer) -> Iterator[None]:
    """A block in which the parameters that passes read have their masters' gradients, the same tensors.

    It is for code that reaches the model's gradients from an optimizer's step, to clip them, say. What hooks that run
    before the step put in their place, None too, becomes the masters' gradients.
    """
    pairs = [pair for flat in stages for pair in zip(flat.read, flat.parameters, strict=True)]
    there = [(parameter, master) for parameter, master in pairs if master.grad is not None]
    for parameter, master in there:
        _lend(parameter, master.grad)
    lent_ones = [master.grad for _, master in there]

    def take(*_: object) -> None:
        for number, (parameter, master) in enumerate(there):
            if parameter.grad is not lent_ones[number]:
                lent_ones[number] = master.grad = parameter.grad

    handle = optimizer.register_step_pre_hook(take)  # the last of them
    try:
        yield
        pairs_after = zip(there, lent_ones, strict=True)
        replaced = [p for (p, _), gradient in pairs_after if p.grad is not None and p.grad is not gradient]
    finally:
        handle.remove()
        for parameter, _ in there:
            parameter.grad = None
            _retype(parameter, parameter.dtype)
    if replaced:
        raise PipelagError(
            f"the optimizer's step has put another tensor in place of the gradient of a parameter of shape "
            f"{tuple(replaced[0].shape)}, which in bfloat16 would be lost; change gradients in place, or change those "
            "of the optimizer's own parameters"
        )


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


def refuse_lost(changed: Sequence[nn.Parameter], modules: Iterable[nn.Module]) -> None:
    """Raise `PipelagError` if some parameters of the modules have been `changed`, which are copies."""
    named = chain.from_iterable(module.named_parameters() for module in modules) if changed else ()
    for name in (name for name, parameter in named if parameter is changed[0]):
        raise PipelagError(
            f"the parameter '{name}' was changed by something other than the optimizer, which would be lost: in "
            "bfloat16 the model's parameters are copies of those that the optimizer steps on; change these, train in "
            "float32, or change weights after the training"
        )


class Examined:
    """Looks in single updates whether passes, hooks or the optimizer's step change what passes read.

    over: whether it is done for now.
    """

    def __init__(self) -> None:
        self.over = False
        self.before: list[tuple[nn.Parameter, torch.Tensor]] = []

    def begin(self, shown: Iterable[tuple[FlatParameters, list[torch.Tensor]]]) -> list[nn.Parameter]:
        """Call before the update, with what passes have read; returns the parameters that have been changed."""
        shown = list(shown)
        self.before = [(p, p.detach().clone()) for flat, _ in shown for p in flat.read if not p.is_meta]
        return unlike(shown)

    def end(self) -> list[nn.Parameter]:
        """Call after the optimizer's step; returns the parameters that it has changed."""
        before, self.before, self.over = self.before, [], True
        return [parameter for parameter, value in before if not _copy_of(parameter, value)]


def hands_on(hook: Any) -> bool:
    """Whether a parameter's hook is one of those that `masters_of` registers."""
    return isinstance(hook, partial) and hook.func in (_give, _show, _take)


@torch.no_grad()
def unlike(shown: Iterable[tuple[FlatParameters, list[torch.Tensor]]]) -> list[nn.Parameter]:
    """The parameters of stages that are no copies of these buffers, which passes read in them. Waits for the device."""
    every = [pair for flat, buffers in shown for pair in zip(flat.read, flat.views(buffers), strict=True)]
    pairs = [pair for pair in every if not pair[0].is_meta]
    if pairs and all(parameter.is_floating_point() for parameter, _ in pairs):  # a few calls for all
        norms: list[torch.Tensor] = []
        # By type: on a GPU, torch takes mixed lists tensor by tensor, or, before its pull request 173531, for one type.
        for dtype in {parameter.dtype for parameter, _ in pairs}:
            parameters, values = zip(*((p.detach(), value) for p, value in pairs if p.dtype == dtype), strict=True)
            apart = [torch.empty_like(parameter) for parameter in parameters]
            torch._foreach_copy_(apart, values)
            torch._foreach_sub_(apart, parameters)
            norms += torch._foreach_norm(apart, 1)
        if not bool((torch.stack(norms) != 0).any()):  # NaN is looked at below
            return []
    return [parameter for parameter, value in pairs if not _copy_of(parameter, value)]


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
