"""Minibatches by number: what minibatch t holds depends on the seed and t alone, so a run can resume anywhere.

Images stay on the device as uint8 and are augmented and normalised there, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from pipelag.data.dataset import Dataset
from pipelag.errors import PipelagError
from pipelag.randomness import mix

PADDING = 4  # of the random crop (He et al., 2016, section 4.2)
_ORDER, _AUGMENT = 1, 2  # streams of random numbers


class _Images:
    """Images on a device, normalised on the way out."""

    def __init__(self, dataset: Dataset, images: torch.Tensor, device: torch.device, channels_last: bool) -> None:
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.images = images.to(device)
        scale = 1.0 / (255.0 * dataset.std.clamp_min(1e-6))
        self.scale = scale.to(device).view(1, -1, 1, 1)
        self.shift = (-dataset.mean * 255.0 * scale.cpu()).to(device).view(1, -1, 1, 1)

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 (N, C, H, W) -> float32 with mean 0 and standard deviation 1 per channel."""
        return torch.addcmul(self.shift, images.float(), self.scale).contiguous(memory_format=self.format)


class Batches(_Images):
    """The training minibatches, `batches[t] -> (inputs, targets)`, for t = 0, 1, 2, ... without end.

    Every epoch is a new permutation of the training set; the last, partial minibatch of an epoch is dropped.
    `inputs(t)` and `targets(t)` can be had apart: the first stage of a pipeline needs only the one, the last the other.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch: int,
        seed: int,
        augment: bool = False,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
    ) -> None:
        device = torch.device(device)
        super().__init__(dataset, dataset.train_images, device, channels_last)
        if not 1 <= batch <= len(dataset.train_labels):
            raise PipelagError(
                f"a minibatch of {batch} does not fit '{dataset.name}', which has "
                f"{len(dataset.train_labels)} training samples"
            )
        self.labels = dataset.train_labels.to(device)
        self.batch, self.seed, self.augment, self.device = batch, seed, augment, device
        self.permutation = lru_cache(maxsize=2)(self._permutation)

    def __len__(self) -> int:
        """Minibatches per epoch."""
        return len(self.labels) // self.batch

    def epoch(self, t: int) -> float:
        """Epochs done after `t` minibatches."""
        return t / len(self)

    def _permutation(self, epoch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(mix(self.seed, _ORDER, epoch))
        return torch.randperm(len(self.labels), generator=generator).to(self.device)

    def indices(self, t: int) -> torch.Tensor:
        """Which training samples minibatch `t` holds."""
        epoch, place = divmod(t, len(self))
        return self.permutation(epoch)[place * self.batch : (place + 1) * self.batch]

    def inputs(self, t: int) -> torch.Tensor:
        """float32 (batch, C, H, W)."""
        images = self.images[self.indices(t)]
        return self.normalised(self._augmented(images, t) if self.augment else images)

    def targets(self, t: int) -> torch.Tensor:
        """int64 (batch,)."""
        return self.labels[self.indices(t)]

    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs(t), self.targets(t)

    def _augmented(self, images: torch.Tensor, t: int) -> torch.Tensor:
        """A random crop out of the zero-padded image and a random horizontal flip, per image, by one gather."""
        count, channels, height, width = images.shape
        generator = torch.Generator().manual_seed(mix(self.seed, _AUGMENT, t))
        draw = torch.randint(0, 2 * PADDING + 1, (2, count, 1), generator=generator)
        flip = torch.rand(count, 1, generator=generator) < 0.5
        rows = torch.arange(height) + draw[0]
        columns = torch.arange(width) + draw[1]
        columns = torch.where(flip, columns.flip(1), columns).to(self.device)
        rows = rows.to(self.device)
        padded = torch.nn.functional.pad(images, (PADDING,) * 4)
        flat = rows.unsqueeze(2) * (width + 2 * PADDING) + columns.unsqueeze(1)
        source = padded.view(count, channels, -1)
        index = flat.view(count, 1, -1).expand(-1, channels, -1)
        return source.gather(2, index).view(count, channels, height, width)


class Evaluation(_Images):
    """The test set in minibatches of (inputs, targets)."""

    def __init__(
        self, dataset: Dataset, batch: int = 500, device: torch.device | str = "cpu", channels_last: bool = False
    ) -> None:
        self.device = torch.device(device)
        super().__init__(dataset, dataset.test_images, self.device, channels_last)
        self.labels = dataset.test_labels.to(self.device)
        self.batch = batch

    @property
    def samples(self) -> int:
        """Test samples."""
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for start in range(0, self.samples, self.batch):
            yield self.normalised(self.images[start : start + self.batch]), self.labels[start : start + self.batch]
