"""Whether each phase's method can work with the optimizer: seen before the first step, not hours later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.stage.optimizers import OptimizerFactory, OtherParameters, group_by_stage
from pipelag.stage.phase import Phase
from pipelag.stage.policy import StageWeights
from pipelag.stage.weights import FlatParameters


def check_optimizer(phases: Sequence[Phase], make: OptimizerFactory) -> None:
    """Make the policies of the phases' stages, each over one parameter that stands for the stage's.

    Raises:
        PipelagError: what a policy refuses (a prediction over an optimizer without a rule for it, say).
    """
    for phase in phases:
        method = phase.method
        if method.workers != "stages":
            continue
        parameters = [[nn.Parameter(torch.zeros(1))] for _ in range(phase.stages)]
        numbers = range(1, phase.stages + 1)
        try:
            optimizer = group_by_stage(make, parameters, phase.stage_lr, numbers)
        except OtherParameters:  # it looks for the model's own
            continue
        except PipelagError:
            raise
        except Exception:  # a function that wants to see the model's own parameters
            continue
        for number, stand_ins in zip(numbers, parameters, strict=True):
            flat = FlatParameters(stand_ins)
            StageWeights(flat, method, number, phase.stages, phase.delays, optimizer, stand_ins, back=0)
