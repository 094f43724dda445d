"""The objects that carry out on one stage what a method's `update` does beyond the optimizer's step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.optim import SGD

from pipelag.errors import PipelagError
from pipelag.methods.carriers import Difference
from pipelag.tensors import as_real

if TYPE_CHECKING:
    from pipelag.stage.policy import StageWeights


class Change:
    """What an update does beyond the optimizer's step."""

    def __init__(self, stage: StageWeights) -> None:
        self.stage = stage

    def before_step(self) -> None:
        """Called when the gradients are complete; may change them."""

    def after_step(self) -> None:
        """Called when the optimizer has stepped; may change the weights."""


class ByDelay(Change):
    """A change that depends on how late the gradient is, which has to be one number for the whole update."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        lags = stage.passes["F"].lags
        if len(set(lags)) > 1:
            raise PipelagError(
                f"the gradients in one update of stage {stage.stage} are {', '.join(map(str, lags))} updates late, but "
                f"'{stage.method.name}' compensates for a single delay; give the stage replicas that are equally "
                "late (as those of 1F1B are), or no replicas"
            )


class Spike(ByDelay):
    """Spike compensation: completes the step v that SGD has made to a v + b g (arXiv 2003.11666, SC_D)."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        if type(stage.optimizer) is not SGD or any(g["nesterov"] or g["dampening"] for g in stage.groups):
            raise PipelagError(
                f"spike compensation is defined for SGD with momentum v <- m v + g, not for "
                f"{type(stage.optimizer).__name__} with these settings; use torch.optim.SGD without nesterov and "
                "dampening"
            )
        self.gradients: list[torch.Tensor | None] = []

    def before_step(self) -> None:
        """Keep the gradients g."""
        self.gradients = [None if gradient is None else gradient.clone() for gradient in self.stage.gradients()]

    def after_step(self) -> None:
        """Subtract lr ((a - 1) v + b g), the part of the step that is still missing."""
        stage, optimizer = self.stage, self.stage.optimizer
        assert optimizer is not None
        each = zip(stage.parameters, stage.parameter_groups, self.gradients, strict=True)
        for parameter, group, gradient in each:
            if gradient is not None:
                momentum, rate = group["momentum"], group["lr"]
                a = momentum**stage.delay
                b = (1 - a) / (1 - momentum) if momentum != 1 else stage.delay  # 1 + m + ... + m^(D-1)
                step = optimizer.state[parameter].get("momentum_buffer")
                step = gradient if step is None else step
                parameter.data.sub_((a - 1) * step + b * gradient, alpha=rate)


class Compensation(ByDelay):
    """DC-ASGD: replaces g by g + strength * g * g * (w_now - w_stale)."""

    def __init__(self, stage: StageWeights, strength: float) -> None:
        super().__init__(stage)
        self.strength = strength

    def before_step(self) -> None:
        """Compensate the gradients."""
        stage = self.stage
        each = zip(stage.parameters, stage.parameter_groups, stage.stale_views(), strict=True)
        for parameter, group, old in each:
            if parameter.grad is not None:
                g, sign = as_real(parameter.grad), -1 if group.get("maximize") else 1
                g.addcmul_(g * g, as_real(parameter - old), value=sign * self.strength)


class DampedStep(Change):
    """w_{t+1} = w_t + gamma (w_t - w_{t-1}) + (1 - gamma) * (the optimizer's own step)."""

    def __init__(self, stage: StageWeights, gamma: float) -> None:
        super().__init__(stage)
        if any(group.get("momentum") for group in stage.groups):
            raise PipelagError(
                "nesterov_async has its own momentum; use an optimizer without momentum (SGD with momentum=0), or "
                "the method pipedream with NAdam"
            )
        self.gamma, self.difference = gamma, stage.remember("difference", Difference)

    def after_step(self) -> None:
        """Replace the optimizer's step by the damped one."""
        stage, gamma = self.stage, self.gamma
        made = [new - old for new, old in zip(stage.live, stage.begun, strict=True)]
        made = [gamma * d + (1 - gamma) * m for d, m in zip(self.difference.buffers, made, strict=True)]
        for live, old, step in zip(stage.live, stage.begun, made, strict=True):
            torch.add(old, step, out=live)
