"""Inception v4 (Szegedy et al., 2016, section 3.1, figures 3 to 9), which SpecTrain trains on CIFAR-10."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.models.inception import Conv, ConvNorm, check, row, scaled, scaled_conv, unstride

STRIDED = {"kernel_size": 3, "stride": 2}


class Branches(nn.Module):
    """The outputs of branches over the same input, joined along the channels; a branch may fork at its end."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def chain(conv: Conv, into: int, *steps: tuple[int, int | tuple[int, int]]) -> nn.Sequential:
    """Convolutions one after another, each given by (channels, kernel), which keep the size."""
    modules = []
    for out, kernel in steps:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        modules.append(conv(into, out, kernel_size=(height, width), padding=(height // 2, width // 2)))
        into = out
    return nn.Sequential(*modules)


def pooled(conv: Conv, into: int, out: int) -> nn.Sequential:
    """A 3x3 average pooling, in which padding does not count, and a 1x1 convolution."""
    return nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), conv(into, out, kernel_size=1))


def stem(conv: Conv) -> list[nn.Module]:
    """The stem of figure 3: from images of 299x299 to 384 channels of 35x35."""
    return [
        conv(3, 32, **STRIDED),
        conv(32, 32, kernel_size=3),
        conv(32, 64, kernel_size=3, padding=1),
        Branches(nn.MaxPool2d(3, 2), conv(64, 96, **STRIDED)),
        Branches(
            nn.Sequential(conv(160, 64, kernel_size=1), conv(64, 96, kernel_size=3)),
            nn.Sequential(chain(conv, 160, (64, 1), (64, (1, 7)), (64, (7, 1))), conv(64, 96, kernel_size=3)),
        ),
        Branches(conv(192, 192, **STRIDED), nn.MaxPool2d(3, 2)),
    ]


def small_stem(conv: Conv, first: int) -> list[nn.Module]:
    """The stem for small images: only the first convolution has a stride, `first`, and all have padding."""
    modules = stem(conv)
    strides = [first]
    for module in nn.Sequential(*modules).modules():
        if isinstance(module, nn.MaxPool2d):
            module.stride, module.padding = 1, 1
        elif isinstance(module, ConvNorm) and module.conv.kernel_size == (3, 3):
            unstride(module, strides.pop() if strides else 1)
    return modules


def block_a(conv: Conv) -> nn.Module:
    """The Inception-A block of figure 4."""
    return Branches(
        pooled(conv, 384, 96),
        chain(conv, 384, (96, 1)),
        chain(conv, 384, (64, 1), (96, 3)),
        chain(conv, 384, (64, 1), (96, 3), (96, 3)),
    )


def reduction_a(conv: Conv) -> nn.Module:
    """The Reduction-A block of figure 7 with k, l, m, n = 192, 224, 256, 384 (table 1)."""
    long = nn.Sequential(chain(conv, 384, (192, 1), (224, 3)), conv(224, 256, **STRIDED))
    return Branches(nn.MaxPool2d(3, 2), conv(384, 384, **STRIDED), long)


def block_b(conv: Conv) -> nn.Module:
    """The Inception-B block of figure 5."""
    return Branches(
        pooled(conv, 1024, 128),
        chain(conv, 1024, (384, 1)),
        chain(conv, 1024, (192, 1), (224, (1, 7)), (256, (7, 1))),
        chain(conv, 1024, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
    )


def reduction_b(conv: Conv) -> nn.Module:
    """The Reduction-B block of figure 8."""
    short = nn.Sequential(chain(conv, 1024, (192, 1)), conv(192, 192, **STRIDED))
    long = nn.Sequential(chain(conv, 1024, (256, 1), (256, (1, 7)), (320, (7, 1))), conv(320, 320, **STRIDED))
    return Branches(nn.MaxPool2d(3, 2), short, long)


def block_c(conv: Conv) -> nn.Module:
    """The Inception-C block of figure 6."""
    fork = lambda into: Branches(chain(conv, into, (256, (1, 3))), chain(conv, into, (256, (3, 1))))  # noqa: E731
    return Branches(
        pooled(conv, 1536, 256),
        chain(conv, 1536, (256, 1)),
        nn.Sequential(chain(conv, 1536, (384, 1)), fork(384)),
        nn.Sequential(chain(conv, 1536, (384, 1), (448, (1, 3)), (512, (3, 1))), fork(512)),
    )


def inception_v4(
    width: float = 1.0,
    classes: int = 1000,
    in_channels: int = 3,
    form: str = "imagenet",
    dropout: float = 0.2,
    crossing: int | None = None,
    scale: int | None = None,
    blocks: Iterable[int] = (4, 7, 3),
) -> nn.Sequential:
    """Inception v4: 42,679,816 parameters at 1000 classes.

    Args:
        width: a factor on the channels; multiples of 1/32 give whole numbers.
        blocks: the numbers of A, B and C blocks; fewer make a smaller network. For other arguments see `googlenet`.

    Raises:
        PipelagError: an unknown form, a width that gives no whole number of channels, or other than three groups.
    """
    check(form)
    conv = scaled_conv(width, in_channels)
    groups = tuple(blocks)
    if len(groups) != 3:
        raise PipelagError(f"Inception v4 has three groups of blocks, not {len(groups)}: {list(groups)}")
    first, second, third = groups
    network = nn.Sequential(
        *(stem(conv) if form == "imagenet" else small_stem(conv, 2 if form == "tiny" else 1)),
        *(block_a(conv) for _ in range(first)),
        reduction_a(conv),
        *(block_b(conv) for _ in range(second)),
        reduction_b(conv),
        *(block_c(conv) for _ in range(third)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(scaled(1536, width), classes),
    )
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return row(network, crossing, scale)
