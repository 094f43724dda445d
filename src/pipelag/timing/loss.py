"""The loss as a part of a network's last layer: a training's last stage computes it, and keeps what it needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pipelag.models.cut import name_of
from pipelag.tensors import as_tuple


class WithLoss(nn.Module):
    """A network's last layer, and the cross-entropy of its output: over the last dimension, of several added up."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.label = layer, name_of(layer)

    def forward(self, value: Any) -> torch.Tensor:
        """The loss of any targets."""
        losses = []
        for scores in as_tuple(self.layer(value)):
            # Of no consequence, but classes that there are; on the meta device a write would be charged for.
            make = torch.empty if scores.is_meta else torch.zeros
            targets = make(scores.shape[:-1], dtype=torch.long, device=scores.device)
            losses.append(nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten()))
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def with_loss(model: nn.Sequential | Sequence[nn.Module]) -> nn.Sequential:
    """The model with as many layers, whose last one computes the loss too, as a training's last stage does."""
    layers = list(model)
    return nn.Sequential(*layers[:-1], WithLoss(layers[-1]))
