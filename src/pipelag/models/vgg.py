"""VGG-16 (Simonyan and Zisserman, 2014), 13 convolutions and 3 linear layers: sixteen numbered layers.

It has batch norm after every convolution and dropout throughout, as the stale-weights paper trains it on CIFAR-10
(appendix A). The paper gives no rates; these are Liu and Deng's (2015): 0.3 after the first convolution, 0.4 between
those of a group, 0.5 around the linear layers.
"""

from __future__ import annotations

from torch import nn

from pipelag.models.layers import Layer, at_least, channels

GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(
    width: float = 1.0,
    classes: int = 10,
    in_channels: int = 3,
    size: int = 32,
    hidden: int = 512,
    dropout: float = 1.0,
) -> nn.Sequential:
    """VGG-16 on images of `size` x `size` pixels, 32 or more.

    Args:
        hidden: width of the two hidden linear layers: 512 for CIFAR, 4096 in the ImageNet original.
        dropout: a factor on all dropout rates, from 0 (no dropout) to 1.
    """
    at_least("VGG-16", size, 32)
    layers: list[nn.Module] = []
    into = in_channels
    for group in GROUPS:
        for place, base in enumerate(group):
            out = channels(base, width)
            last = place == len(group) - 1
            parts: list[nn.Module] = [
                nn.Conv2d(into, out, 3, padding=1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(inplace=True),
            ]
            parts.append(nn.MaxPool2d(2) if last else nn.Dropout(dropout * (0.4 if layers else 0.3)))
            layers.append(Layer(f"conv3x3 {into}-{out}", *parts))
            into = out
    flat, wide = into * (size // 32) ** 2, channels(hidden, width)
    layers += [
        Layer(
            f"linear {flat}-{wide}",
            nn.Flatten(),
            nn.Dropout(dropout * 0.5),
            nn.Linear(flat, wide, bias=False),
            nn.BatchNorm1d(wide),
            nn.ReLU(inplace=True),
        ),
        Layer(
            f"linear {wide}-{wide}",
            nn.Dropout(dropout * 0.5),
            nn.Linear(wide, wide, bias=False),
            nn.BatchNorm1d(wide),
            nn.ReLU(inplace=True),
        ),
        Layer(f"linear {wide}-{classes}", nn.Linear(wide, classes)),
    ]
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
