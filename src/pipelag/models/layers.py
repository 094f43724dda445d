"""The numbered layers of the models, each a convolution or linear layer with what follows it.

A layer's forward takes one argument: a tensor, or the tuple that crosses a stage boundary inside a residual block.
"""

from __future__ import annotations

import torch
from torch import nn

from pipelag.errors import PipelagError


def channels(base: int, width: float) -> int:
    """A channel count scaled by `width`, at least 4."""
    return max(4, round(base * width))


def at_least(model: str, size: int, least: int) -> None:
    """Refuse images of fewer than `least` pixels a side, of which pooling leaves nothing."""
    if size < least:
        raise PipelagError(f"{model} needs images of at least {least}x{least} pixels, not {size}x{size}")


def enlarged(scale: int | None) -> list[nn.Module]:
    """The module, in a list, that enlarges images bilinearly to `scale` x `scale` pixels; None: an empty list."""
    return [] if scale is None else [nn.Upsample((scale, scale), mode="bilinear", align_corners=False)]


class Layer(nn.Sequential):
    """One numbered layer, with a label for tables and messages."""

    def __init__(self, label: str, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.label = label

    def extra_repr(self) -> str:
        """The label."""
        return self.label


class BranchStart(nn.Module):
    """The first convolution of a residual block: x -> (relu(bn(conv x)), x). Both tensors cross a boundary after it."""

    writes_output = False  # the activation is in place, and the skip tensor passes through (`pipelag.models.count`)

    def __init__(self, label: str, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.label = label
        self.conv = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(branch, skip)."""
        return nn.functional.relu(self.norm(self.conv(x)), inplace=True), x


class Shortcut(nn.Module):
    """The parameter-free shortcut (option A of He et al., 2016) of a block that changes the size.

    It takes every `stride`-th pixel, and pads the new channels with zeros.
    """

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.stride, self.before = stride, (out - into) // 2
        self.after = out - into - self.before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, into, H, W) -> (N, out, H / stride, W / stride)."""
        pad = nn.functional.pad
        if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
            # Slice in the order in memory, since the backward of another slice would lose the memory format. A pooling
            # of single pixels would keep the format too, but takes longer.
            lying = x.permute(0, 2, 3, 1)[:, :: self.stride, :: self.stride]
            return pad(lying, (self.before, self.after)).permute(0, 3, 1, 2)
        return pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class BranchEnd(nn.Module):
    """The second convolution of a residual block: (h, x) -> relu(bn(conv h) + shortcut x)."""

    def __init__(self, label: str, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.label = label
        self.conv = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.shortcut = nn.Identity() if into == out and stride == 1 else Shortcut(into, out, stride)

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The block's output."""
        branch, skip = pair
        return nn.functional.relu(self.norm(self.conv(branch)) + self.shortcut(skip), inplace=True)


class Mean(nn.Module):
    """Global average pooling: (N, C, H, W) -> (N, C)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean over height and width."""
        return x.mean((2, 3))
