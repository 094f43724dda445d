"""Networks whose parameters do not tell how they are joined, against forwards that are written down here."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models.resnet import Bottleneck, ResNet

from pipelag import models
from pipelag.models.inception import scaled_conv
from pipelag.models.inception_v4 import block_b, block_c, pooled
from tests.models.test_gnmt import SOURCE, TARGET
from tests.models.test_gnmt import build as gnmt


@pytest.mark.parametrize("training", [True, False])
def test_a_bottleneck_resnet_is_torchvisions(training: bool) -> None:
    """Strides, paddings, sums and their order, which no count of weights shows."""
    groups = [2, 1, 2, 1]
    theirs = ResNet(Bottleneck, groups, num_classes=7).train(training)
    ours = models.build("resnet50", form="imagenet", classes=7, blocks=groups).train(training)
    with torch.no_grad():
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert a.shape == b.shape
            a.copy_(b)
        images = torch.randn(2, 3, 64, 64)
        torch.testing.assert_close(ours(images), theirs(images))


def test_a_cifar_resnet_adds_what_went_into_a_block() -> None:
    """He et al., 2016, section 4.2, option A: where a block halves, every second pixel, and zeros for new channels."""
    model = models.build("resnet20", seed=0, width=0.25).eval()
    first, *blocks, last = model
    images = torch.randn(2, 3, 32, 32)
    x = first(images)
    for one, two in zip(blocks[::2], blocks[1::2], strict=True):
        y = F.relu(one.norm(one.conv(x)))
        more = (y.shape[1] - x.shape[1]) // 2
        skip = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, more, more)) if more else x
        x = F.relu(two.norm(two.conv(y)) + skip)
    torch.testing.assert_close(model(images), last[-1](x.mean((2, 3))))


def test_gnmt_adds_inputs_from_the_third_lstm_of_each_side_on() -> None:
    """And every LSTM of the decoder reads what its first one attends to: encodings, by their projections."""
    model = gnmt(layers=8)
    x, padding, target = model[1](model[0]((SOURCE, TARGET)))
    x = model[2].lstm(x)[0]
    for layer in model[3:5]:
        x = layer.lstm(x)[0] + x
    start = model[5]
    y = start.lstm(start.embedding(target))[0]
    scores = start.query(y) @ start.key(x).mT / x.shape[-1] ** 0.5
    context = scores.masked_fill(padding[:, None, :], float("-inf")).softmax(-1) @ x
    y = model[6].lstm(torch.cat((y, context), -1))[0]
    for layer in model[7:9]:
        y = layer.lstm(torch.cat((y, context), -1))[0] + y
    torch.testing.assert_close(model((SOURCE, TARGET)), model[9].linear(y))


def test_s2vt_reads_each_word_beside_the_frame_of_its_time() -> None:
    model = models.build("s2vt", seed=0, features=5, embedding=4, size=6, words=9)
    frames, words = torch.randn(2, 7, 5), torch.randint(9, (2, 7))
    seen = model[1].lstm(model[0].linear(frames))[0]
    both = torch.cat((model[2].embedding(words), seen), -1)
    torch.testing.assert_close(model((frames, words)), model[3].linear(model[2].lstm(both)[0]))


@pytest.mark.parametrize("block", [block_b, block_c])
def test_inception_v4s_long_kernels_lie_as_often_as_they_stand(block: object) -> None:
    """A 7x7 convolution in two, a 3x3 side by side (Figures 5 and 6): on every way through a block both, or neither."""
    branches = block(scaled_conv(0.03125, 3)).branches  # type: ignore[operator]
    for branch in branches:
        kernels = [m.kernel_size for m in branch.modules() if isinstance(m, nn.Conv2d)]
        long = [kernel for kernel in kernels if kernel != (1, 1)]
        assert sorted(long) == sorted((width, height) for height, width in long)
        assert all(a == (b[1], b[0]) for a, b in zip(long[:-1:2], long[1::2], strict=False))  # one behind the other


def test_inception_v4s_mean_leaves_the_border_out() -> None:
    mean = pooled(scaled_conv(1.0, 3), 8, 4)[0]
    assert torch.equal(mean(torch.full((1, 8, 5, 5), 3.0)), torch.full((1, 8, 5, 5), 3.0))
