"""SNN, the self-normalising network of the SpecTrain paper (section 4.1): 32 fully connected layers of 2048 units."""

from __future__ import annotations

from torch import nn

from pipelag.models.layers import Layer, channels


def snn(width: float = 1.0, classes: int = 10, in_channels: int = 3, size: int = 32, layers: int = 32) -> nn.Sequential:
    """`layers` linear layers with SELU between (Klambauer et al., 2017), and initial weights of variance 1/inputs."""
    units = channels(2048, width)
    into = in_channels * size**2
    model = []
    for number in range(1, layers + 1):
        out = classes if number == layers else units
        linear = nn.Linear(into, out)
        nn.init.normal_(linear.weight, std=into**-0.5)
        nn.init.zeros_(linear.bias)
        first = [nn.Flatten()] if number == 1 else []
        last = [] if number == layers else [nn.SELU()]
        model.append(Layer(f"linear {into}-{out}", *first, linear, *last))
        into = out
    return nn.Sequential(*model)
