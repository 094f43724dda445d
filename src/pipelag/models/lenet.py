"""LeNet-5 (LeCun et al., 1998), five numbered layers, with ReLU and max pooling, as has been usual since Caffe."""

from __future__ import annotations

from torch import nn

from pipelag.models.layers import Layer, at_least, channels


def lenet5(width: float = 1.0, classes: int = 10, in_channels: int = 1, size: int = 28) -> nn.Sequential:
    """LeNet-5 on `size` x `size` images: convolutions of 6 and 16 channels, linear layers of 120, 84 and `classes`."""
    at_least("LeNet-5", size, 12)
    one, two = channels(6, width), channels(16, width)
    three, four = channels(120, width), channels(84, width)
    side = (size // 2 - 4) // 2
    return nn.Sequential(
        Layer(f"conv5x5 {in_channels}-{one}", nn.Conv2d(in_channels, one, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        Layer(f"conv5x5 {one}-{two}", nn.Conv2d(one, two, 5), nn.ReLU(), nn.MaxPool2d(2)),
        Layer(f"linear {two * side**2}-{three}", nn.Flatten(), nn.Linear(two * side**2, three), nn.ReLU()),
        Layer(f"linear {three}-{four}", nn.Linear(three, four), nn.ReLU()),
        Layer(f"linear {four}-{classes}", nn.Linear(four, classes)),
    )
