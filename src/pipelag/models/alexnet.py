"""AlexNet (Krizhevsky et al., 2012) for 32x32 images: five convolutions and three linear layers, eight numbered layers.

The stale-weights paper gives no table of its CIFAR variant. This is the usual one, with 3x3 kernels and three poolings,
so that the last feature map is 4x4.
"""

from __future__ import annotations

from torch import nn

from pipelag.models.layers import Layer, at_least, channels


def alexnet(
    width: float = 1.0, classes: int = 10, in_channels: int = 3, dropout: float = 0.5, size: int = 32
) -> nn.Sequential:
    """AlexNet with 64, 192, 384, 256, 256 channels and linear layers of 1024, 1024 and `classes`."""
    at_least("AlexNet", size, 8)
    a, b, c, d, e = (channels(base, width) for base in (64, 192, 384, 256, 256))
    hidden, flat = channels(1024, width), channels(256, width) * (size // 8) ** 2

    def conv(into: int, out: int, *after: nn.Module) -> Layer:
        return Layer(f"conv3x3 {into}-{out}", nn.Conv2d(into, out, 3, padding=1), nn.ReLU(inplace=True), *after)

    model = nn.Sequential(
        conv(in_channels, a, nn.MaxPool2d(2)),
        conv(a, b, nn.MaxPool2d(2)),
        conv(b, c),
        conv(c, d),
        conv(d, e, nn.MaxPool2d(2)),
        Layer(f"linear {flat}-{hidden}", nn.Flatten(), nn.Dropout(dropout), nn.Linear(flat, hidden), nn.ReLU()),
        Layer(f"linear {hidden}-{hidden}", nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU()),
        Layer(f"linear {hidden}-{classes}", nn.Linear(hidden, classes)),
    )
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            module.bias.data.zero_()  # type: ignore[union-attr]
    return model
