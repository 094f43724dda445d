"""A step of torch's SGD, Adam or AdamW in a few calls for all groups, with the same bits as torch's `foreach` forms.

torch steps group by group. If stages have different rates (PipeMare's T1, section 3.1), each stage is a group, and on a
GPU eight stages launch eight times as many kernels as one. Here, everything that does not depend on the rate is done
for all groups at once. What torch finds out anew in each step is found out once (`sets_of`): where passes are replayed,
a GPU waits for Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

Group = dict[str, Any]
Tensors = list[torch.Tensor]
APART = ("params", "lr", "base_lr", "stage")  # the entries in which groups that step together may differ
OTHERS = ("fused", "capturable", "differentiable", "maximize", "amsgrad")  # with these torch computes differently


class Together(NamedTuple):
    """Groups that differ only in their rates, with all their parameters and the optimizer's state of each of these."""

    step: Joint
    groups: list[Group]
    parameters: Tensors
    states: list[dict[str, Any]]


def sets_of(optimizer: Optimizer) -> list[Together]:
    """The optimizer's groups as `step` takes them; empty if the optimizer's own step has to be taken.

    They stay valid until a group has another setting than its rate changed. The settings must be plain values.
    """
    joint, groups = JOINT.get(type(optimizer)), optimizer.param_groups
    if joint is None or not _by_foreach(groups):
        return []
    alike: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        settings = tuple([item for item in group.items() if item[0] not in APART])
        alike.setdefault(settings, []).append(group)
    sets = []
    for some in alike.values():
        parameters = [parameter for group in some for parameter in group["params"]]
        states = [optimizer.state[parameter] for parameter in parameters]
        needed = STATE[type(optimizer)] if some[0].get("momentum", 1) else set()
        if not all(needed <= state.keys() for state in states):
            return []  # the optimizer's own first step makes the state
        sets.append(Together(joint, some, parameters, states))
    return sets


@torch.no_grad()
def step(sets: Sequence[Together]) -> None:
    """One update of all groups; every parameter must have a dense gradient."""
    for each in sets:
        rates = [group["lr"] for group in each.groups for _ in group["params"]]
        each.step(each.groups[0], each.parameters, rates, each.states)


def _by_foreach(groups: Sequence[Group]) -> bool:
    """Whether torch would use its `foreach` implementations, in the form that is copied below."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    kinds = {(parameter.device, parameter.dtype) for parameter in parameters}
    if len(kinds) > 1 or parameters[0].is_complex():
        return False
    on_gpu = parameters[0].is_cuda  # where torch uses them by default
    for group in groups:
        if not (on_gpu if group.get("foreach") is None else group["foreach"]) or any(map(group.get, OTHERS)):
            return False
    return True


def gradients_of(parameters: Tensors) -> Any:
    """The parameters' gradients, in their order."""
    return [parameter.grad for parameter in parameters]


def _sgd(group: Group, parameters: Tensors, rates: Sequence[float], states: Sequence[dict[str, Any]]) -> None:
    """As `torch.optim.sgd._multi_tensor_sgd`."""
    gradients = gradients_of(parameters)
    if group["weight_decay"] != 0:
        gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
    if group["momentum"] != 0:
        buffers = [state["momentum_buffer"] for state in states]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, gradients, alpha=1 - group["dampening"])
        if group["nesterov"]:
            torch._foreach_add_(gradients, buffers, alpha=group["momentum"])
        else:
            gradients = buffers
    at = 0
    for rate, some in groupby(rates):  # torch multiplies and adds with one rounding; no call does so for several rates
        begin, at = at, at + len(list(some))
        torch._foreach_add_(parameters[begin:at], gradients[begin:at], alpha=-rate)


def _adam(group: Group, parameters: Tensors, rates: Sequence[float], states: Sequence[dict[str, Any]]) -> None:
    """As `torch.optim.adam._multi_tensor_adam`, also for AdamW."""
    beta1, beta2 = group["betas"]
    gradients = gradients_of(parameters)
    steps, averages, squares = ([state[key] for state in states] for key in ("step", "exp_avg", "exp_avg_sq"))
    torch._foreach_add_(steps, torch.ones((), device=steps[0].device), alpha=1.0)
    if group["weight_decay"] != 0 and group["decoupled_weight_decay"]:
        torch._foreach_mul_(parameters, [1 - rate * group["weight_decay"] for rate in rates])
    elif group["weight_decay"] != 0:
        gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
    torch._foreach_lerp_(averages, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
    counts = [count.item() for count in steps]
    below = torch._foreach_sqrt(squares)
    torch._foreach_div_(below, [(1 - beta2**count) ** 0.5 for count in counts])
    torch._foreach_add_(below, group["eps"])
    sizes = [(rate / (1 - beta1**count)) * -1 for rate, count in zip(rates, counts, strict=True)]
    torch._foreach_addcdiv_(parameters, averages, below, sizes)


Joint = Callable[[Group, Tensors, Sequence[float], Sequence[dict[str, Any]]], None]
JOINT: dict[type[Optimizer], Joint] = {SGD: _sgd, Adam: _adam, AdamW: _adam}
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
STATE = {SGD: {"momentum_buffer"}, Adam: MOMENTS, AdamW: MOMENTS}  # the state that a step reads, per parameter
