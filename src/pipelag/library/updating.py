"""Turns the optimizer that a user gives, in any form, into a function that makes one over stages' parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from inspect import Parameter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pipelag.asked import check_optimizer, check_rate
from pipelag.errors import PipelagError, unknown
from pipelag.runs import optimizers
from pipelag.stage.optimizers import SCHEDULED, OptimizerFactory
from pipelag.typed import checked, signature_of


def usual(params: Iterable[Any], lr: float = 0.1) -> Optimizer:
    """The default optimizer: SGD with momentum 0.9."""
    return torch.optim.SGD(params, lr=lr, momentum=0.9)


def factory_of(optimizer: Any, lr: float | None, model: nn.Module) -> OptimizerFactory:
    """The function that makes the optimizer from parameter groups.

    Args:
        optimizer: a class; a function of parameters; an instance over the model's parameters, of which the class and
            the groups' settings are used and which is not changed; a registered name; or a mapping as in the config
            files: {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01}.
        lr: the base rate for a class or a name; None: the class's default.

    Raises:
        PipelagError: the optimizer is none of these; `lr` is given beside an optimizer that has its own rate; or a name
            is given without a rate.
    """
    if lr is not None:
        lr = check_rate("lr", lr)
    if isinstance(optimizer, (str, Mapping)):
        return _named(optimizer, lr)
    if optimizer is usual or (isinstance(optimizer, type) and issubclass(optimizer, Optimizer)):
        return optimizer if lr is None else partial(optimizer, lr=lr)  # type: ignore[call-arg]
    if lr is not None:
        raise PipelagError("lr is given, but the optimizer has its own learning rate; leave one of them out")
    if isinstance(optimizer, Optimizer):
        return _like(optimizer, model)
    check_optimizer(optimizer)
    return optimizer  # type: ignore[no-any-return]


def _named(optimizer: str | Mapping[str, Any], lr: float | None) -> OptimizerFactory:
    settings = {"name": optimizer} if isinstance(optimizer, str) else dict(optimizer)
    name = settings.get("name")
    if isinstance(name, str) and name not in optimizers.OPTIMIZERS:  # first, as its settings could not be checked
        raise unknown("optimizer", name, optimizers.OPTIMIZERS)
    if lr is not None and "lr" in settings:
        raise PipelagError("lr is given, but the optimizer has its own learning rate; leave one of them out")
    settings |= {} if lr is None else {"lr": lr}
    if name in optimizers.OPTIMIZERS and "lr" not in settings:
        raise PipelagError(f"the optimizer '{name}' has no learning rate; give one too, such as lr=0.1")
    return optimizers.factory(checked(optimizers.OptimizerSpec, settings, "setting of the optimizer"))


def _like(given: Optimizer, model: nn.Module) -> OptimizerFactory:
    """The function that makes optimizers like an instance: of its class, with its settings.

    Raises:
        PipelagError: the instance does not tell all its settings, has taken steps, or has other parameters.
    """
    kind, instead = type(given), "give a function instead, such as lambda params: torch.optim.SGD(params, lr=0.1)"
    covered = {id(p) for group in given.param_groups for p in group["params"]}
    learning = {id(p) for p in model.parameters() if p.requires_grad}
    if not learning <= covered <= {id(p) for p in model.parameters()}:
        raise PipelagError(f"the {kind.__name__} optimizer given is over other parameters than the model's; {instead}")
    if given.state:
        raise PipelagError(
            f"the {kind.__name__} optimizer has already taken steps, and its state would be lost; {instead}"
        )
    if "step" in vars(given):
        raise PipelagError(SCHEDULED.format(kind.__name__))
    arguments = list(signature_of(kind).parameters.values())[1:]
    settings = given.defaults | given.param_groups[0]
    various = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    named = [argument.name for argument in arguments if argument.kind not in various]
    untold = [name for name in named if name not in settings]
    if untold:
        raise PipelagError(
            f"the {kind.__name__} optimizer does not show which {untold[0]} it was built with; {instead}"
        )
    make = partial(kind, **{name: settings[name] for name in named})
    return make if len(given.param_groups) == 1 else partial(_parted, make, _settings(given, model))


def settings_told(optimizer: Any) -> list[str]:
    """The settings of each group of an instance, as text; nothing for anything else than an instance."""
    groups = optimizer.param_groups if isinstance(optimizer, Optimizer) else []
    return [repr({name: value for name, value in group.items() if name != "params"}) for group in groups]


def _settings(given: Optimizer, model: nn.Module) -> list[dict[str, Any]]:
    """The settings of each group of an instance.

    Each parameter is marked with its group's number, which is copied to parameters that later stand for it.
    """
    for parameter in model.parameters():
        parameter.pipelag_group = None  # type: ignore[attr-defined]
    for number, group in enumerate(given.param_groups):
        for parameter in group["params"]:
            parameter.pipelag_group = number
    whole = ("params", "param_names")  # these describe the whole group and not the part in a stage
    return [{name: value for name, value in group.items() if name not in whole} for group in given.param_groups]


def _parted(make: OptimizerFactory, settings: list[dict[str, Any]], groups: Iterable[dict[str, Any]]) -> Optimizer:
    """An optimizer over stages' groups, each of them split as the groups of the instance were."""
    parts: list[dict[str, Any]] = []
    for group in groups:
        rate = {"lr": group["lr"]} if "lr" in group else {}  # a stage's own rate goes before the groups' rates
        for number, group_settings in enumerate(settings):
            members = [p for p in group["params"] if p.pipelag_group == number]
            parts += [group | group_settings | rate | {"params": members}] if members else []
    return make(parts)
