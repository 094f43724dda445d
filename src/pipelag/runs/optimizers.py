"""Optimizers and learning rates as a run's spec names them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from pipelag.runs.spec import LRScheduleSpec, OptimizerSpec
from pipelag.stage.optimizers import LARS, CaffeSGD, OptimizerFactory


def factory(spec: OptimizerSpec) -> OptimizerFactory:
    """What makes the optimizer of a spec from parameters or parameter groups."""
    if spec.name == "caffe_sgd":
        return lambda params: CaffeSGD(params, spec.lr, spec.momentum, spec.weight_decay, spec.nesterov)
    own: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.weight_decay}
    if spec.name == "lars":
        own |= {"momentum": spec.momentum} | ({} if spec.trust is None else {"trust": spec.trust})
        return lambda params: LARS(params, **own)
    if spec.name == "sgd":
        own |= {"momentum": spec.momentum, "nesterov": spec.nesterov, "dampening": spec.dampening or 0.0}
        return lambda params: torch.optim.SGD(params, **own)
    own |= {key: value for key, value in (("betas", spec.betas), ("eps", spec.eps)) if value is not None}
    kind: Callable[..., Optimizer] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "nadam": torch.optim.NAdam,
    }[spec.name]
    return lambda params: kind(params, **own)


def factor(spec: LRScheduleSpec, total: int) -> Callable[[int], float]:
    """The factor on every base rate at step t (0-based over the whole run of `total` steps)."""
    horizon = spec.horizon or total
    bounds = [round(fraction * horizon) for fraction in spec.milestones]

    def at(step: int) -> float:
        warm = min(1.0, (step + 1) / spec.warmup) if spec.warmup else 1.0
        if spec.name == "inv":
            return warm * float((1 + spec.gamma * step) ** -spec.power)
        if spec.name == "inverse_sqrt":
            return warm * float((max(1, spec.warmup) / max(step + 1, spec.warmup, 1)) ** 0.5)
        if spec.name == "polynomial":
            return warm * float(max(0.0, 1 - step / horizon) ** spec.power)
        if spec.name == "cosine":
            return warm * 0.5 * (1 + math.cos(math.pi * min(1.0, step / horizon)))
        if spec.name == "milestones":
            return warm * float(spec.gamma ** sum(step >= bound for bound in bounds))
        return warm

    return at
