"""ResNets of bottleneck blocks (He et al., 2016; 50, 101 and 152), with one layer per weight as in PipeMare.

ResNet-50 has 107 layers: 53 convolutions, 53 batch norms and a classifier (PipeMare section 4.1), in topological order;
an operator's weight and bias are one layer. `split` cuts every weight into equal parts of its output channels, each a
layer: 214 layers for split = 2, 1,712 for 16 (PipeMare Figures 4 and 8). If there are fewer classes than parts, the
classifier is cut by its inputs. The initial weights are distributed as in the unsplit network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError, unknown
from pipelag.models.layers import Layer, Mean, channels, enlarged

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
STEMS = {"cifar": (3, 1, 1), "tiny": (3, 2, 1), "imagenet": (7, 2, 3)}  # kernel, stride, padding
Tensors = tuple[torch.Tensor, ...]


class Part(nn.Module):
    """One part of one operator of a block. The tuple (branch, skip, parts done of this operator) crosses boundaries.

    A block's first operator takes a tensor, which becomes both branch and skip.

    number, of: this part's number (from 0), and the number of parts.
    on: 0: the operator works on the branch; 1: on the skip.
    then: what follows the operator's last part: "relu"; "close", the sum of branch and skip; or "out", outside blocks,
        where only the branch goes on.
    """

    writes_output = False  # its modules are counted instead (`pipelag.models.count`)

    def __init__(self, label: str, module: nn.Module, number: int, of: int, on: int, then: str) -> None:
        super().__init__()
        self.label = label if of == 1 else f"{label}, part {number + 1} of {of}"
        self.module, self.number, self.of, self.on, self.then = module, number, of, on, then

    def forward(self, value: torch.Tensor | Tensors) -> torch.Tensor | Tensors:
        """The block's tensors after this part; after the last part of the block, its output."""
        state = (value, value) if isinstance(value, torch.Tensor) else value
        given = state[self.on]
        if isinstance(self.module, nn.BatchNorm2d) and self.of > 1:  # a part normalises only its own channels
            given = given.chunk(self.of, 1)[self.number]
        parts = (*state[2:], self.module(given))
        if self.number < self.of - 1:
            return (*state[:2], *parts)
        done = parts[0] if self.of == 1 else torch.cat(parts, 1)
        if self.then in ("relu", "out"):
            done = nn.functional.relu(done, inplace=True)
        if self.then == "out":
            return done
        branch, skip = (done, state[1]) if self.on == 0 else (state[0], done)
        if self.then == "close":
            return nn.functional.relu(branch + skip, inplace=True)
        return branch, skip


def resnet_bottleneck(
    depth: int = 50,
    width: float = 1.0,
    classes: int = 10,
    in_channels: int = 3,
    form: str = "cifar",
    split: int = 1,
    blocks: tuple[int, ...] | None = None,
    scale: int | None = None,
) -> nn.Sequential:
    """ResNet-`depth` of bottleneck blocks; `form` says for which images.

    Args:
        form: the first convolution. "cifar": 3x3, which keeps the size. "tiny", for Tiny-ImageNet's 64x64: 3x3 with
            stride 2, so that the rest is as for CIFAR. "imagenet": 7x7 with stride 2, and a pooling.
        scale: enlarges the images to so many pixels in height and width first.
        split: the number of parts of every weight; channels are rounded up to a multiple of it.
        blocks: the number of blocks per group, in place of those of `depth`.

    Raises:
        PipelagError: an unknown depth or form, no group of blocks, or images to enlarge in front of a split stem.
    """
    if blocks is None and depth not in BLOCKS:
        raise PipelagError(f"bottleneck ResNets have depth {', '.join(map(str, BLOCKS))}, not {depth}")
    if form not in STEMS:
        raise unknown("form", form, STEMS)
    groups = tuple(blocks) if blocks is not None else BLOCKS[depth]
    if not groups:
        raise PipelagError(
            "a bottleneck ResNet needs at least one group of blocks; give blocks, the number of blocks in each group"
        )
    layers: list[nn.Module] = []
    base = [even(channels(64 * 2**group, width), split) for group in range(len(groups))]
    stem = base[0]
    kernel, stride, pad = STEMS[form]
    start = operator("stem conv", lambda n: nn.Conv2d(in_channels, n, kernel, stride, pad, bias=False), stem, split)
    norms = operator("stem norm", nn.BatchNorm2d, stem, split, then="out")
    if scale is not None and split > 1:
        raise PipelagError("images cannot be enlarged before a stem that is split; leave out scale or split")
    if split == 1:  # what goes in does not travel along
        start = [Layer("stem conv", *enlarged(scale), start[0].module)]
    if form == "imagenet":
        norms[-1] = Layer(norms[-1].label, norms[-1], nn.MaxPool2d(3, 2, 1))
    layers += [*start, *norms]
    into = stem
    for group, (count, middle) in enumerate(zip(groups, base, strict=True)):
        for block in range(count):
            stride = 2 if group and not block else 1
            layers += bottleneck(f"{group + 1}.{block + 1}", into, middle, stride, split)
            into = 4 * middle
    layers += classifier(into, classes, split)
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if split > 1:  # as initialised with the fan of the whole weight
                with torch.no_grad():
                    module.weight.mul_(split**-0.5)
    return model


def even(count: int, split: int) -> int:
    """The number of channels rounded up to a multiple of `split`."""
    return -(-count // split) * split


def operator(
    label: str,
    build: Callable[[int], nn.Module],
    out: int,
    split: int,
    on: int = 0,
    then: str = "",
) -> list[Any]:
    """The parts of an operator, with `out` / `split` channels each."""
    return [Part(label, build(out // split), i, split, on, then) for i in range(split)]


def bottleneck(name: str, into: int, middle: int, stride: int, split: int) -> Iterator[nn.Module]:
    """A block: conv1x1, conv3x3, conv1x1, each with a batch norm; a convolution on the skip if the size changes."""
    out, changes = 4 * middle, stride != 1 or into != 4 * middle
    sizes = [(into, middle, 1, 1), (middle, middle, 3, stride), (middle, out, 1, 1)]
    for place, (a, b, kernel, step) in enumerate(sizes, start=1):
        yield from operator(
            f"block {name} conv{place}",
            lambda n, a=a, kernel=kernel, step=step: nn.Conv2d(a, n, kernel, step, kernel // 2, bias=False),  # type: ignore[misc]
            b,
            split,
        )
        then = "relu" if place < 3 else "" if changes else "close"
        yield from operator(f"block {name} norm{place}", nn.BatchNorm2d, b, split, then=then)
    if changes:
        yield from operator(
            f"block {name} skip conv", lambda n: nn.Conv2d(into, n, 1, stride, bias=False), out, split, on=1
        )
        yield from operator(f"block {name} skip norm", nn.BatchNorm2d, out, split, on=1, then="close")


class Pooled(nn.Module):
    """A part of the classifier: the mean over the pixels, then the scores of some classes, or a sum over some features.

    features: the range of features (first, last + 1) from which this part scores all classes; None: the part scores its
        own classes from all features.
    """

    def __init__(
        self, label: str, linear: nn.Linear, number: int, of: int, features: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.label = label if of == 1 else f"{label}, part {number + 1} of {of}"
        self.mean, self.linear, self.number, self.of, self.features = Mean(), linear, number, of, features

    def forward(self, value: torch.Tensor | Tensors) -> torch.Tensor | Tensors:
        """(features, logits so far); after the last part, the logits."""
        state = (self.mean(value),) if isinstance(value, torch.Tensor) else value
        features = state[0] if self.features is None else state[0][:, slice(*self.features)]
        state = (*state, self.linear(features))
        if self.number < self.of - 1:
            return state
        if self.of == 1:
            return state[1]
        return torch.cat(state[1:], 1) if self.features is None else torch.stack(state[1:]).sum(0)


def classifier(into: int, classes: int, split: int) -> list[nn.Module]:
    """The parts of the classifier, divided by classes or, if there are more parts than classes, by features."""
    if split <= classes:
        sizes = [len(range(i, classes, split)) for i in range(split)]
        return [Pooled("mean, linear", nn.Linear(into, size), i, split) for i, size in enumerate(sizes)]
    bounds = [into * i // split for i in range(split + 1)]
    layers: list[nn.Module] = []
    for i, ends in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        linear = nn.Linear(ends[1] - ends[0], classes, bias=i == split - 1)
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -(into**-0.5), into**-0.5)  # as nn.Linear does for the whole
        layers.append(Pooled("mean, linear", linear, i, split, ends))
    return layers
