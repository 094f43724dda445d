"""What each optimizer will do next, from its present state: the one place that knows (PipeOptim, table I).

A rule answers, for one parameter, with the step that the optimizer would repeat: the tensor that it subtracted from the
weights, as far as its state tells; or with a direction and the `factor` that makes it one, for a prediction is one
product and one sum then. s updates are foreseen as s such steps (PipeOptim, equations 3 and 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer

from pipelag.errors import PipelagError


class Scaled(NamedTuple):
    """factor * direction."""

    direction: torch.Tensor
    factor: float


Rule = Callable[[Mapping[str, Any], Mapping[str, Any]], torch.Tensor | Scaled | None]
RULES: dict[type[Optimizer], Rule] = {}
DECOUPLED = (torch.optim.Adafactor, torch.optim.Muon)  # of torch's those whose decay never is in the gradient
KEEP_VELOCITY: set[type[Optimizer]] = {Adam, NAdam}  # a smoothed gradient from the first step on
BY_MOMENTUM: set[type[Optimizer]] = {SGD}  # these keep a direction where their groups have a momentum


def prediction_rule(optimizer: type[Optimizer], velocity: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of an optimizer: (a parameter's state, its group) -> its step, or None before the first.

    The step is a tensor or `Scaled`.

    >>> @prediction_rule(torch.optim.Adagrad)
    ... def adagrad(state, group):
    ...     return None if "sum" not in state else group["lr"] * state["last"] / state["sum"].sqrt()

    velocity: it keeps a smoothed gradient in its state's `velocity`, the rate included, for SpecTrain's equation 4.
    """

    def add(rule: Rule) -> Rule:
        RULES[optimizer] = rule
        if velocity:
            KEEP_VELOCITY.add(optimizer)
        return rule

    return add


def rules_of_users() -> list[tuple[type[Optimizer], Rule, bool]]:
    """(optimizer, rule, whether it keeps a velocity) of the rules that a user's script or module has registered."""
    return [
        (kind, rule, kind in KEEP_VELOCITY)
        for kind, rule in RULES.items()
        if not str(getattr(rule, "__module__", "")).startswith("pipelag.")
    ]


def step_by(rule: Rule, state: Mapping[str, Any], group: Mapping[str, Any]) -> Scaled | None:
    """What a rule answers, as a direction and its factor."""
    step = rule(state, group)
    return Scaled(step, 1.0) if isinstance(step, torch.Tensor) else step


@prediction_rule(SGD)
def sgd(state: Mapping[str, Any], group: Mapping[str, Any]) -> Scaled | None:
    """lr m_t, m_t = u m_{t-1} + (1 - dampening) g_t (table I, SGDM). Nesterov's form settles to the same step."""
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
    """lr m / (1 - prod mu) / (sqrt(vhat) + eps): Adam's form with NAdam's own bias correction."""
    if "exp_avg" not in state:
        return None
    t = float(state["step"])
    bias, rate = 1 - group["betas"][1] ** t, group["lr"] / (1 - float(state["mu_product"]))
    return _over_root(state["exp_avg"], state["exp_avg_sq"], bias, group["eps"], rate)


def _over_root(first: torch.Tensor, second: torch.Tensor, bias: float, eps: float, rate: float) -> Scaled:
    """rate * first / (sqrt(second / bias) + eps), its constants taken out of the root."""
    second, bias = _unbiased(second, bias)
    root = math.sqrt(bias)
    below = second.sqrt().add_(eps * root)
    return Scaled(torch.div(first, below, out=below), rate * root)


def _unbiased(second: torch.Tensor, bias: float) -> tuple[torch.Tensor, float]:
    """second / bias as (tensor, number to divide it by): none in float16, in which eps times it would be nothing."""
    return (second / bias, 1.0) if second.dtype == torch.float16 else (second, bias)


def moments(state: Mapping[str, Any], group: Mapping[str, Any]) -> Scaled | None:
    """lr mhat / sqrt(vhat + eps), eps inside the root: XPipe's form over Adam's state (PipeOptim, equation 6)."""
    if "exp_avg" not in state:
        return None
    beta1, beta2 = group["betas"]
    t = float(state["step"])
    second, bias = _unbiased(state["exp_avg_sq"], 1 - beta2**t)
    below = second.add(bias * group["eps"]).sqrt_()  # mhat / sqrt(v / bias + eps) = sqrt(bias) mhat / this
    return Scaled(torch.div(state["exp_avg"], below, out=below), group["lr"] * math.sqrt(bias) / (1 - beta1**t))


def sgd_again(state: Mapping[str, Any], group: Mapping[str, Any], gradient: torch.Tensor) -> torch.Tensor | None:
    """lr (u m + (1 - dampening) g) with the last gradient g, which m holds already (PipeOptim, ambiguity D2)."""
    buffer = state.get("momentum_buffer")
    if buffer is None:
        return None
    return (buffer * group["momentum"]).add_(gradient, alpha=1 - group["dampening"]).mul_(group["lr"])


def coupled_decay(
    parameters: Sequence[torch.Tensor], groups: Sequence[Mapping[str, Any]], optimizer: Optimizer | None = None
) -> list[torch.Tensor | None]:
    """The gradients that the optimizer steps along, None of a parameter without. groups: that of each parameter.

    With the L2 term where the optimizer adds one, not with a decoupled decay, which torch's say in their groups, but
    for `DECOUPLED`; of one that maximizes, turned round.
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
    """The rule for this optimizer (the nearest base class that has one).

    Raises:
        PipelagError: there is none, or the optimizer keeps no direction (SGD without momentum).
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
    """lr times the smoothed gradient that the optimizer keeps, None where there is none yet (SpecTrain, equation 4)."""
    for key in ("momentum_buffer", "exp_avg"):
        if state.get(key) is not None:
            return Scaled(state[key], group["lr"])
    return state.get("velocity")


def keeps_velocity(optimizer: Optimizer) -> bool:
    """Whether `velocity` will find one after the first step."""
    if isinstance(optimizer, tuple(BY_MOMENTUM)):
        return all(group["momentum"] for group in optimizer.param_groups)
    return isinstance(optimizer, tuple(KEEP_VELOCITY))


# The rules that treat every number by itself: these may as well be given larger pieces than parameters.
BY_NUMBER: set[Rule] = {sgd, adam, nadam, moments, velocity}
AT_HAND: set[Rule] = {sgd, velocity}  # the state's own tensors, of which two predictions share no work
