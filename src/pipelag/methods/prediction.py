"""Prediction rules: what each optimizer will do next, judged from its present state (PipeOptim, table I).

For one parameter, a rule returns the step that the optimizer would repeat: the tensor that its last update subtracted
from the weights, as far as its state tells. A rule may also return a direction and a `factor` whose product is the step
(`Scaled`), so that a prediction takes one product and one sum. s updates are predicted as s such steps (PipeOptim,
equations 3 and 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer

from pipelag.errors import PipelagError


class Scaled(NamedTuple):
    """The step factor * direction."""

    direction: torch.Tensor
    factor: float


Rule = Callable[[Mapping[str, Any], Mapping[str, Any]], torch.Tensor | Scaled | None]
RULES: dict[type[Optimizer], Rule] = {}
DECOUPLED = (torch.optim.Adafactor, torch.optim.Muon)  # torch's optimizers that never add weight decay to the gradient
KEEP_VELOCITY: set[type[Optimizer]] = {Adam, NAdam}  # these have a smoothed gradient from the first step on
BY_MOMENTUM: set[type[Optimizer]] = {SGD}  # these have one only in groups with momentum


def prediction_rule(optimizer: type[Optimizer], velocity: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of an optimizer: (a parameter's state, its group) -> the step, or None before the first one.

    The step is a tensor or `Scaled`.

    >>> @prediction_rule(torch.optim.Adagrad)
    ... def adagrad(state, group):
    ...     return None if "sum" not in state else group["lr"] * state["last"] / state["sum"].sqrt()

    velocity: True if the optimizer keeps a smoothed gradient, times the rate, as `velocity` in its state. Methods that
        predict by SpecTrain's equation 4 then use it.
    """

    def add(rule: Rule) -> Rule:
        RULES[optimizer] = rule
        if velocity:
            KEEP_VELOCITY.add(optimizer)
        return rule

    return add


def rules_of_users() -> list[tuple[type[Optimizer], Rule, bool]]:
    """(optimizer, rule, whether it keeps a velocity) for each rule that a user's script or module has registered."""
    return [
        (kind, rule, kind in KEEP_VELOCITY)
        for kind, rule in RULES.items()
        if not str(getattr(rule, "__module__", "")).startswith("pipelag.")
    ]


def step_by(rule: Rule, state: Mapping[str, Any], group: Mapping[str, Any]) -> Scaled | None:
    """The step that a rule returns, always as a direction and a factor."""
    step = rule(state, group)
    return Scaled(step, 1.0) if isinstance(step, torch.Tensor) else step


@prediction_rule(SGD)
def sgd(state: Mapping[str, Any], group: Mapping[str, Any]) -> Scaled | None:
    """lr m_t with m_t = u m_{t-1} + (1 - dampening) g_t (table I, SGDM); Nesterov's form settles to the same step."""
    buffer = state.get("momentum_buffer")
    return None if buffer is None else Scaled(buffer, group["lr"])


@prediction_rule(AdamW)
@prediction_rule(Adam)
def adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Scaled | None:
    """lr mhat / (sqrt(vhat) + eps); the decoupled weight decay is left out (table I, Adam and AdamW; ambiguity D4)."""
    if "exp_avg" not in state:
        return None
    beta1, beta2 = group["betas"]
    t = float(state["step"])
    second = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
    return _over_root(state["exp_avg"], second, 1 - beta2**t, group["eps"], group["lr"] / (1 - beta1**t))


@prediction_rule(NAdam)
def nadam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Scaled | None:
    """lr m / (1 - prod mu) / (sqrt(vhat) + eps): Adam's form with NAdam's bias correction."""
    if "exp_avg" not in state:
        return None
    t = float(state["step"])
    bias, rate = 1 - group["betas"][1] ** t, group["lr"] / (1 - float(state["mu_product"]))
    return _over_root(state["exp_avg"], state["exp_avg_sq"], bias, group["eps"], rate)


def _over_root(first: torch.Tensor, second: torch.Tensor, bias: float, eps: float, rate: float) -> Scaled:
    """rate * first / (sqrt(second / bias) + eps), with the constant `bias` moved out of the root."""
    second, bias = _unbiased(second, bias)
    root = math.sqrt(bias)
    below = second.sqrt().add_(eps * root)
    return Scaled(torch.div(first, below, out=below), rate * root)


def _unbiased(second: torch.Tensor, bias: float) -> tuple[torch.Tensor, float]:
    """second / bias as (tensor, divisor). In float16 it is divided at once, as eps times the bias would underflow."""
    return (second / bias, 1.0) if second.dtype == torch.float16 else (second, bias)


def moments(state: Mapping[str, Any], group: Mapping[str, Any]) -> Scaled | None:
    """lr mhat / sqrt(vhat + eps), with eps inside the root: XPipe's form on Adam's state (PipeOptim, equation 6)."""
    if "exp_avg" not in state:
        return None
    beta1, beta2 = group["betas"]
    t = float(state["step"])
    second, bias = _unbiased(state["exp_avg_sq"], 1 - beta2**t)
    below = second.add(bias * group["eps"]).sqrt_()  # mhat / sqrt(v / bias + eps) = sqrt(bias) mhat / below
    return Scaled(torch.div(state["exp_avg"], below, out=below), group["lr"] * math.sqrt(bias) / (1 - beta1**t))


def sgd_again(state: Mapping[str, Any], group: Mapping[str, Any], gradient: torch.Tensor) -> torch.Tensor | None:
    """lr (u m + (1 - dampening) g) with the last gradient g, which m already contains (PipeOptim, ambiguity D2)."""
    buffer = state.get("momentum_buffer")
    if buffer is None:
        return None
    return (buffer * group["momentum"]).add_(gradient, alpha=1 - group["dampening"]).mul_(group["lr"])


def coupled_decay(
    parameters: Sequence[torch.Tensor], groups: Sequence[Mapping[str, Any]], optimizer: Optimizer | None = None
) -> list[torch.Tensor | None]:
    """The gradients that the optimizer steps along, one per parameter; None for a parameter without a gradient.

    They include the L2 term if the optimizer adds weight decay to the gradient. A decoupled decay is left out: torch's
    optimizers note it in their groups, except for those in `DECOUPLED`. If a group maximizes, the sign is reversed.

    Args:
        groups: the optimizer's group of each parameter.
    """
    along = [parameter.grad for parameter in parameters]
    if any(group.get("maximize") for group in groups):
        pairs = zip(along, groups, strict=True)
        along = [-gradient if gradient is not None and group.get("maximize") else gradient for gradient, group in pairs]
    always = isinstance(optimizer, DECOUPLED)
    apart = [always or group.get("decoupled_weight_decay") for group in groups]
    decays = [
        0.0 if decoupled else group.get("weight_decay", 0.0) for decoupled, group in zip(apart, groups, strict=True)
    ]
    for decay in {decay for decay in decays if decay}:
        decayed = [(i, gradient) for i, gradient in enumerate(along) if gradient is not None and decays[i] == decay]
        if decayed:
            places, gradients = zip(*decayed, strict=True)
            added = torch._foreach_add(gradients, [parameters[i] for i in places], alpha=decay)
            for i, gradient in zip(places, added, strict=True):
                along[i] = gradient
    return along


def rule_of(optimizer: Optimizer) -> Rule:
    """The prediction rule of this optimizer's class, or of its nearest base class that has one.

    Raises:
        PipelagError: there is no rule, or the optimizer keeps no direction (SGD without momentum).
    """
    for kind in type(optimizer).__mro__:
        if kind in RULES:
            if kind in BY_MOMENTUM and any(not group["momentum"] for group in optimizer.param_groups):
                raise PipelagError(
                    f"{kind.__name__} without momentum keeps no direction to predict from; give it momentum, or use a "
                    "method that keeps one itself (spectrain, lwp_w)"
                )
            return RULES[kind]
    raise PipelagError(
        f"there is no prediction rule for the optimizer {type(optimizer).__name__}; register one with "
        "pipelag.methods.prediction.prediction_rule, or use a method that predicts nothing"
    )


def velocity(state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor | Scaled | None:
    """lr times the smoothed gradient that the optimizer keeps; None before the first step (SpecTrain, equation 4).

    An entry `velocity`, as a rule declares it, comes before the entries of torch's optimizers.
    """
    if state.get("velocity") is not None:
        return state["velocity"]
    key = next((key for key in ("momentum_buffer", "exp_avg") if state.get(key) is not None), None)
    return None if key is None else Scaled(state[key], group["lr"])


def keeps_velocity(optimizer: Optimizer) -> bool:
    """Whether `velocity` finds a smoothed gradient after the first step."""
    if isinstance(optimizer, tuple(BY_MOMENTUM)):
        return all(group["momentum"] for group in optimizer.param_groups)
    return isinstance(optimizer, tuple(KEEP_VELOCITY))


# Elementwise rules: they may be given pieces of a flat buffer instead of whole parameters.
BY_NUMBER: set[Rule] = {sgd, adam, nadam, moments, velocity}
AT_HAND: set[Rule] = {sgd, velocity}  # these return the state's own tensors, so two predictions have no work to share
