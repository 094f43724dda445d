"""What a data set is to the rest of pipelag: uint8 images and labels, and which release they are from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch


@dataclass(frozen=True)
class Dataset:
    """A labelled image set in memory.

    train_images, test_images: uint8 (N, C, H, W); train_labels, test_labels: int64 (N,).
    release: which files it was read from; official: whether those are the publisher's own; note: what differs.
    """

    name: str
    title: str
    release: str
    official: bool
    note: str
    classes: tuple[str, ...]
    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    @cached_property
    def mean(self) -> torch.Tensor:
        """Per channel, of the training images scaled to [0, 1]."""
        return self.train_images.double().mean((0, 2, 3)).div(255).float()

    @cached_property
    def std(self) -> torch.Tensor:
        """Per channel, of the training images scaled to [0, 1]."""
        return self.train_images.double().std((0, 2, 3)).div(255).float()

    def summary(self) -> dict[str, Any]:
        """What a run's summary records of its data."""
        return {
            "name": self.name,
            "title": self.title,
            "release": self.release,
            "official": self.official,
            "note": self.note,
            "train": len(self.train_labels),
            "test": len(self.test_labels),
        }
