"""ResNet for CIFAR (He et al., 2016, section 4.2), depth 6n + 2, as in the stale-weights paper (sections 6.1, 6.3).

Layer 1 is the first convolution, layers 2k and 2k+1 are the two convolutions of residual block k, and the last layer
is the average pooling with the classifier. So a register after an even layer lies inside a block.
"""

from __future__ import annotations

from torch import nn

from pipelag.catalogue import check_depth
from pipelag.models.layers import BranchEnd, BranchStart, Layer, Mean, channels


def resnet(depth: int, width: float = 1.0, classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """ResNet-`depth`: n = (depth - 2) / 6 blocks in each of three groups of 16, 32 and 64 channels times `width`.

    Raises:
        PipelagError: the depth is not 6n + 2; the message names the nearest depths that are.
    """
    check_depth(depth)
    blocks = (depth - 2) // 6
    into = channels(16, width)
    first = Layer(
        f"conv3x3 {in_channels}-{into}",
        nn.Conv2d(in_channels, into, 3, 1, 1, bias=False),
        nn.BatchNorm2d(into),
        nn.ReLU(inplace=True),
    )
    layers: list[nn.Module] = [first]
    for group, base in enumerate((16, 32, 64), start=1):
        out = channels(base, width)
        for block in range(1, blocks + 1):
            stride = 2 if group > 1 and block == 1 else 1
            name = f"(block {group}.{block})"
            layers.append(BranchStart(f"conv3x3 {into}-{out} {name}", into, out, stride))
            layers.append(BranchEnd(f"conv3x3 {out}-{out} {name}", into, out, stride))
            into = out
    layers.append(Layer(f"mean, linear {into}-{classes}", Mean(), nn.Linear(into, classes)))
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
    return model
