"""The loss as a part of a network's last layer, so that a profile counts its time and memory on the last stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pipelag.models.cut import name_of
from pipelag.tensors import as_tuple


class WithLoss(nn.Module):
    """A network's last layer followed by the cross-entropy over the last dimension of its output.

    The losses of several outputs are added up.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.label = layer, name_of(layer)

    def forward(self, value: Any) -> torch.Tensor:
        """The loss for arbitrary targets."""
        losses = []
        for scores in as_tuple(self.layer(value)):
            # Any valid classes will do. On the meta device the roofline would charge for writing them.
            make = torch.empty if scores.is_meta else torch.zeros
            targets = make(scores.shape[:-1], dtype=torch.long, device=scores.device)
            losses.append(nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten()))
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def with_loss(model: nn.Sequential | Sequence[nn.Module]) -> nn.Sequential:
    """The model with the loss added to its last layer, as a training's last stage computes it."""
    layers = list(model)
    return nn.Sequential(*layers[:-1], WithLoss(layers[-1]))
