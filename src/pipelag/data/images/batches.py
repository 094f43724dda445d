"""Minibatches of images.

Images stay on the device as uint8, and are augmented and normalised there, a minibatch at a time. The global random
state is never touched. Random numbers are drawn on the CPU, so that every device sees the same minibatches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch.nn import functional as F

from pipelag.data.images.dataset import Dataset
from pipelag.data.images.imagenet import random_box
from pipelag.data.minibatches import Shuffled
from pipelag.errors import unknown
from pipelag.randomness import mix
from pipelag.tensors import sent

PADDING = 4  # pixels on each side for the random crop (He et al., 2016, section 4.2)
_ORDER, _AUGMENTATION = 1, 2  # two streams of random numbers
MOST = 8  # minibatches that are made together
ROOM = 16 << 20  # bytes that their inputs may take


class _Images:
    """Images on a device, normalised on the way out."""

    def __init__(
        self, dataset: Dataset, images: torch.Tensor, device: torch.device, channels_last: bool, standardise: bool
    ) -> None:
        self.device = device
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.images = images.to(device)
        mean, std = (dataset.mean, dataset.std) if standardise else (torch.zeros(1), torch.ones(1))
        scale = 1 / (255 * std.clamp_min(1e-6))
        self.scale = scale.view(1, -1, 1, 1).to(device)
        self.shift = (-255 * mean * scale).view(1, -1, 1, 1).to(device)

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """Images (N, C, H, W) with values from 0 to 255, as float32.

        Each channel gets mean 0 and standard deviation 1 over the training set. Without standardisation values lie
        between 0 and 1, as in Caffe's MNIST example.
        """
        # The memory format is changed last: with few channels, broadcasting over channels_last is many times slower.
        return images.float().mul_(self.scale).add_(self.shift).contiguous(memory_format=self.format)


class Batches(_Images, Shuffled):
    """The training minibatches: `batches[t] -> (inputs, targets)` for t = 0, 1, 2, ... without end.

    Every epoch is a new permutation of the training set; the last, partial minibatch of an epoch is dropped.

    Args:
        batch: samples in a minibatch.
        seed: of the order and the augmentation.
        augment: True: crop at random from the image padded with 4 pixels of zero, and flip half of the images
            horizontally. "crop": instead take a random part of the image, with at least 8 % of its area, and enlarge it
            to the image's size, as for ImageNet.
        channels_last: the memory format of the inputs.
        standardise: give every channel mean 0 and standard deviation 1; otherwise inputs lie between 0 and 1.

    Raises:
        PipelagError: the training set is smaller than a minibatch, or the augmentation is unknown.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch: int,
        seed: int,
        augment: bool | str = False,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        standardise: bool = True,
    ) -> None:
        if isinstance(augment, str) and augment != "crop":
            raise unknown("augmentation", augment, ("crop",))
        place = torch.device(device)
        Shuffled.__init__(self, dataset.name, len(dataset.train_labels), batch, seed, _ORDER, place)
        _Images.__init__(self, dataset, dataset.train_images, place, channels_last, standardise)
        self.labels, self.augment = dataset.train_labels.to(place), augment
        size = 4 * batch * self.images[0].numel()
        # A GPU would wait for Python to launch the small kernels of one minibatch. A CPU would leave its caches.
        self.together = max(1, min(MOST, ROOM // size)) if place.type == "cuda" else 1
        self.several = lru_cache(maxsize=1)(self._several)

    def inputs(self, t: int) -> torch.Tensor:
        """float32 (batch, C, H, W)."""
        if self.together == 1:
            return self._made([t])
        first = t - t % self.together
        # What one stream makes, another must not read. A copy is given, since a layer may change its input in place.
        return self.several(first, _stream(self.device))[t - first].clone()

    def _several(self, first: int, stream: int) -> Sequence[torch.Tensor]:
        """The inputs of `together` minibatches."""
        return self._made(range(first, first + self.together)).split(self.batch)

    def _made(self, numbers: Sequence[int]) -> torch.Tensor:
        """The inputs of the minibatches of these numbers, one after another."""
        places = [self.indices(t) for t in numbers]
        images = self.images.index_select(0, torch.cat(places) if len(places) > 1 else places[0])
        if self.augment == "crop":
            return self.normalised(self._enlarged(images, numbers))
        return self.normalised(self._augmented(images, numbers) if self.augment else images)

    def targets(self, t: int) -> torch.Tensor:
        """int64 (batch,)."""
        return self.labels.index_select(0, self.indices(t))

    def _augmented(self, images: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor:
        """Crop and flip with one gather, whose index is each pixel's place in its padded image."""
        count, channels, height, width = images.shape
        drawn = [self._crops(t) for t in numbers]
        (top, left), flip = torch.cat([corner for corner, _ in drawn], 1), torch.cat([flip for _, flip in drawn])
        rows = top + torch.arange(height)
        columns = left + torch.where(flip, torch.arange(width).flip(0), torch.arange(width))
        rows, columns = sent(rows, self.device), sent(columns, self.device)
        source = (rows.unsqueeze(2) * (width + 2 * PADDING) + columns.unsqueeze(1)).view(count, 1, -1)
        padded = F.pad(images, (PADDING,) * 4).flatten(2)
        return padded.gather(2, source.expand(-1, channels, -1)).view(images.shape)

    def _crops(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(int64 (2, batch, 1): the crops' tops and lefts, bool (batch, 1): whether to flip) in minibatch `t`."""
        generator = torch.Generator().manual_seed(mix(self.seed, _AUGMENTATION, t))
        corner = torch.randint(0, 2 * PADDING + 1, (2, self.batch, 1), generator=generator)
        return corner, torch.randint(0, 2, (self.batch, 1), generator=generator, dtype=torch.bool)

    def _enlarged(self, images: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor:
        """Random parts of the images, enlarged bilinearly to the images' size: float32, from 0 to 255."""
        _, _, height, width = images.shape
        places = ((t, place) for t in numbers for place in range(self.batch))
        draws = (random.Random(mix(self.seed, _AUGMENTATION, t, place)) for t, place in places)
        parts = [random_box(draw)(width, height) for draw in draws]
        boxes = torch.tensor([box for box, _ in parts], dtype=torch.float32)
        flip = torch.tensor([flipped for _, flipped in parts])
        rows = _places(boxes[:, 1], boxes[:, 3], height)
        columns = _places(boxes[:, 0], boxes[:, 2], width)
        columns = torch.where(flip.unsqueeze(1), columns.flip(1), columns)
        grid = torch.stack((columns.unsqueeze(1).expand(-1, height, -1), rows.unsqueeze(2).expand(-1, -1, width)), -1)
        return F.grid_sample(images.float(), sent(grid, self.device), align_corners=False)


def _stream(device: torch.device) -> int:
    """The identity of the stream on which the device's operations are launched now."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def _places(first: torch.Tensor, last: torch.Tensor, size: int) -> torch.Tensor:
    """(N, size): where to sample along an axis, from -1 to 1, to enlarge the parts [first, last) to `size` pixels."""
    extent = (last - first).unsqueeze(1)
    inside = (torch.arange(size) + 0.5) * extent / size - 0.5
    pixels = first.unsqueeze(1) + inside.clamp_min(0).minimum(extent - 1)
    return (2 * pixels + 1) / size - 1


# The most numbers (images times pixels times channels) in a test minibatch on a CPU. With more, activations no longer
# fit its caches: in minibatches of 500 CIFAR-10 images instead of 100, an image takes 1.8 times as long with a
# ResNet-101 and 1.3 times with a ResNet-20.
TESTED_ON_CPU = 300_000


class Evaluation(_Images):
    """The test set, in order, in minibatches of (inputs, targets); the last one may be smaller.

    `batch`: samples in a minibatch; by default 500, and fewer on a CPU if images are large.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch: int | None = None,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        standardise: bool = True,
    ) -> None:
        super().__init__(dataset, dataset.test_images, torch.device(device), channels_last, standardise)
        self.labels = dataset.test_labels.to(self.device)
        most = TESTED_ON_CPU // dataset.test_images.shape[1:].numel() if self.device.type == "cpu" else 500
        self.batch = max(1, min(most, 500)) if batch is None else batch

    @property
    def samples(self) -> int:
        """The number of test samples."""
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Minibatches of float32 (n, C, H, W) and int64 (n,)."""
        for images, labels in zip(self.images.split(self.batch), self.labels.split(self.batch), strict=True):
            yield self.normalised(images), labels
