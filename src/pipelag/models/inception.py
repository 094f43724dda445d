"""GoogLeNet, Inception v3 (torchvision's) and Inception v4 (Szegedy et al., 2016) as rows of layers (`linearise`).

`form` chooses the size of images. "imagenet" is the original. For small images the stem keeps the size, as is common
for CIFAR, and the rest of the network stays the same: "cifar" takes 32x32, and "tiny" takes 64x64 (Tiny-ImageNet),
which its first convolution halves. GoogLeNet's small stem is one 3x3 convolution; the Inceptions' small stems have
their convolutions without stride and with padding, and no poolings. `scale` first enlarges the images, bilinearly:
PipeOptim trains the ImageNet forms on Tiny-ImageNet at 224x224 (section V-A). `blocks` is the number of blocks in each
group. If a group has fewer than in the original, its last ones remain, so that the group's output is as wide as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from pipelag.errors import PipelagError, unknown
from pipelag.models.layers import enlarged
from pipelag.models.linearise import linearise

FORMS = ("imagenet", "tiny", "cifar")
Conv = Callable[..., nn.Module]


class ConvNorm(nn.Module):
    """A convolution with batch norm and ReLU, as in torchvision's Inceptions."""

    def __init__(self, into: int, out: int, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, bias=False, **options)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return F.relu(self.bn(self.conv(x)), inplace=True)


def scaled_conv(width: float, in_channels: int) -> Conv:
    """A maker of `ConvNorm`s whose channels are multiplied by `width`; 3 input channels, the image's, become
    `in_channels`.
    """

    def conv(into: int, out: int, **options: Any) -> nn.Module:
        return ConvNorm(in_channels if into == 3 else scaled(into, width), scaled(out, width), **options)

    return conv


def scaled(channels: int, width: float) -> int:
    """Channels times `width`, without rounding, because the channels of joined branches must add up.

    Raises:
        PipelagError: the product is not a whole number from 1 on.
    """
    count = channels * width
    if count != int(count) or count < 1:
        raise PipelagError(
            f"{channels} channels times a width of {width:g} is not a whole number; choose a width such as 0.25"
        )
    return int(count)


def row(network: nn.Module, crossing: int | None, scale: int | None) -> nn.Sequential:
    """The network as a row of layers; with `scale`, the first one enlarges the images."""
    return linearise(nn.Sequential(*enlarged(scale), network) if scale else network, crossing=crossing)


def check(form: str) -> None:
    """Refuse an unknown form."""
    if form not in FORMS:
        raise unknown("form", form, FORMS)


def unstride(conv: ConvNorm, stride: int = 1) -> None:
    """Change a `ConvNorm` so that it keeps the size of its input, or divides it by `stride`."""
    conv.conv.stride, conv.conv.padding = (stride, stride), (conv.conv.kernel_size[0] // 2,) * 2


class Groups:
    """Makes the blocks of a network in torchvision's order, except those that are left out.

    Args:
        original: the number of blocks in each group of the original.
        blocks: the wanted number of blocks in each group.
        channels: the input channels of the next block, before the factor `width`.

    Raises:
        PipelagError: another number of groups than the original has, or more blocks in a group.
    """

    def __init__(self, model: str, original: tuple[int, ...], blocks: Iterable[int], channels: int) -> None:
        wanted = tuple(blocks)
        if len(wanted) != len(original) or any(not 0 <= n <= most for n, most in zip(wanted, original, strict=True)):
            raise PipelagError(f"{model} has up to {list(original)} blocks in its groups, not {list(wanted)}")
        self.stays = iter(
            [place >= most - n for n, most in zip(wanted, original, strict=True) for place in range(most)]
        )
        self.channels = channels

    def block(self, make: Conv, gives: Callable[..., int], between: bool = False) -> Conv:
        """The function that torchvision calls to make a block.

        Args:
            make: makes the block from its number of input channels and torchvision's other arguments.
            gives: the block's number of output channels, from the same arguments.
            between: the block lies between groups, and is never left out.
        """

        def made(into: int, *sizes: int, **named: int) -> nn.Module:
            if not between and not next(self.stays):
                return nn.Identity()
            block = make(self.channels, *sizes, **named)
            self.channels = gives(self.channels, *sizes, *named.values())
            return block

        return made


def googlenet(
    width: float = 1.0,
    classes: int = 1000,
    in_channels: int = 3,
    form: str = "imagenet",
    dropout: float = 0.2,
    crossing: int | None = None,
    scale: int | None = None,
    blocks: Iterable[int] = (2, 5, 2),
) -> nn.Sequential:
    """torchvision's GoogLeNet, with batch norm and without auxiliary outputs: 6,624,904 parameters at 1000 classes.

    Args:
        width: a factor on the channels; multiples of 1/8 give whole numbers.
        form, scale, blocks: see the module.
        crossing: the most tensors that may cross a boundary; with 1 the layers are whole blocks.

    Raises:
        PipelagError: an unknown form, a width that gives no whole number of channels, or more blocks than there are.
    """
    from torchvision.models.googlenet import GoogLeNet, Inception, InceptionAux

    check(form)
    conv, groups = scaled_conv(width, in_channels), Groups("GoogLeNet", (2, 5, 2), blocks, 192)
    network = GoogLeNet(
        num_classes=classes,
        aux_logits=False,
        init_weights=True,
        blocks=[conv, groups.block(partial(Inception, conv_block=conv), joined), InceptionAux],
        dropout=dropout,
    )
    if width != 1 or groups.channels != 1024:
        network.fc = classifier(scaled(groups.channels, width), classes, 0.01)
    if form != "imagenet":
        network.conv1 = conv(3, 192, kernel_size=3, padding=1, stride=2 if form == "tiny" else 1)
        nn.init.trunc_normal_(network.conv1.conv.weight, std=0.01, a=-2, b=2)
        for name in ("maxpool1", "conv2", "conv3", "maxpool2"):
            setattr(network, name, nn.Identity())
    return row(network, crossing, scale)


def joined(into: int, one: int, before3: int, three: int, before5: int, five: int, pooled: int) -> int:
    """The output channels of GoogLeNet's block, from the arguments of its convolutions."""
    return one + three + five + pooled


def inception_v3(
    width: float = 1.0,
    classes: int = 1000,
    in_channels: int = 3,
    form: str = "imagenet",
    dropout: float = 0.5,
    crossing: int | None = None,
    scale: int | None = None,
    blocks: Iterable[int] = (3, 4, 2),
) -> nn.Sequential:
    """torchvision's Inception v3, without auxiliary outputs: 23,834,568 parameters at 1000 classes.

    Arguments and errors are those of `googlenet`, but `width` must be a multiple of 1/16.
    """
    from torchvision.models.inception import (
        Inception3,
        InceptionA,
        InceptionAux,
        InceptionB,
        InceptionC,
        InceptionD,
        InceptionE,
    )

    check(form)
    conv, groups = scaled_conv(width, in_channels), Groups("Inception v3", (3, 4, 2), blocks, 192)
    a, b, c, d, e = (
        partial(block, conv_block=conv) for block in (InceptionA, InceptionB, InceptionC, InceptionD, InceptionE)
    )
    network = Inception3(
        num_classes=classes,
        aux_logits=False,
        init_weights=True,
        inception_blocks=[
            conv,
            groups.block(a, lambda into, pooled: 64 + 64 + 96 + pooled),
            groups.block(b, lambda into: 384 + 96 + into, between=True),
            groups.block(c, lambda into, inner: 4 * 192),
            groups.block(d, lambda into: 320 + 192 + into, between=True),
            groups.block(e, lambda into: 320 + 4 * 384 + 192),
            InceptionAux,
        ],
        dropout=dropout,
    )
    if width != 1 or groups.channels != 2048:
        network.fc = classifier(scaled(groups.channels, width), classes, 0.1)
    if form != "imagenet":
        unstride(network.Conv2d_1a_3x3, 2 if form == "tiny" else 1)
        unstride(network.Conv2d_2a_3x3)
        unstride(network.Conv2d_4a_3x3)
        network.maxpool1, network.maxpool2 = nn.Identity(), nn.Identity()
    return row(network, crossing, scale)


def classifier(into: int, classes: int, std: float) -> nn.Linear:
    """torchvision's classifier for another number of channels, initialised as torchvision does."""
    linear = nn.Linear(into, classes)
    nn.init.trunc_normal_(linear.weight, std=std, a=-2, b=2)
    return linear
