"""A labelled image set in memory, as the rest of pipelag sees it: uint8 images, labels, and their release."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from pipelag.data.checks import check_labels, check_some
from pipelag.data.release import Released
from pipelag.errors import PipelagError


@dataclass(frozen=True)
class Dataset(Released):
    """A labelled image set in memory.

    Args:
        name, title, release, official, note: see `Released`.
        classes: the classes' names, in the order of the labels.
        train_images, test_images: uint8 (N, C, H, W).
        train_labels, test_labels: int64 (N,), from 0.

    Raises:
        PipelagError: a tensor has another type or shape, or a label has no class.
    """

    classes: tuple[str, ...]
    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    def __post_init__(self) -> None:
        for part, images, labels in (
            ("train", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if images.dtype != torch.uint8 or images.ndim != 4:
                raise PipelagError(
                    f"{part}_images of '{self.name}' are {images.dtype} {tuple(images.shape)}; they should be "
                    "torch.uint8 (N, C, H, W)"
                )
            check_some(self.name, f"{part} images", images)
            check_labels(self.name, part, labels, len(images), "image", len(self.classes))
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise PipelagError(
                f"the training images of '{self.name}' are {tuple(self.train_images.shape[1:])}, the test images "
                f"{tuple(self.test_images.shape[1:])}; they should have the same shape (C, H, W)"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    @cached_property
    def mean(self) -> torch.Tensor:
        """float32 (C,): the mean per channel of the training images, scaled to [0, 1]."""
        counts, values = self._histogram, _VALUES
        return ((counts @ values) / counts.sum(1)).float()

    @cached_property
    def std(self) -> torch.Tensor:
        """float32 (C,): the standard deviation per channel of the training images, scaled to [0, 1]."""
        counts, values = self._histogram, _VALUES
        total = counts.sum(1)
        return ((counts @ values**2) / total - ((counts @ values) / total) ** 2).clamp_min(0).sqrt().float()

    @cached_property
    def _histogram(self) -> torch.Tensor:
        """float64 (C, 256): how often each value occurs. Exact, and without a float copy of all images."""
        channels = self.train_images.unbind(1)
        return torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in channels]).double()

    def summary(self) -> dict[str, Any]:
        """The entry of a run's summary about its data."""
        return self.described(train=len(self.train_labels), test=len(self.test_labels), classes=len(self.classes))


_VALUES = torch.arange(256, dtype=torch.float64) / 255
