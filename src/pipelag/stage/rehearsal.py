"""Checks before the first step, instead of hours later, that each phase's method can work with the optimizer."""

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
    """Make the policy of every stage of every phase, over one stand-in parameter per stage.

    Raises:
        PipelagError: a policy refuses the optimizer (a prediction with an optimizer that has no rule, say).
    """
    for phase in phases:
        method = phase.method
        if method.workers != "stages":
            continue
        parameters = [[nn.Parameter(torch.zeros(1))] for _ in range(phase.stages)]
        numbers = range(1, phase.stages + 1)
        try:
            optimizer = group_by_stage(make, parameters, phase.stage_lr, numbers)
        except OtherParameters:  # the function looks for the model's own parameters
            continue
        except PipelagError:
            raise
        except Exception:  # a user's function may fail without the model's own parameters
            continue
        for number, stand_ins in zip(numbers, parameters, strict=True):
            flat = FlatParameters(stand_ins)
            StageWeights(flat, method, number, phase.stages, phase.delays, optimizer, stand_ins, back=0)
