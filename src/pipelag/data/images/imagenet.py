"""ImageNet, from the user's own folder in torchvision's ImageFolder layout: images in train/<class>/ and val/<class>/.

Images are decoded by several threads when a minibatch needs them, and are not kept. Training crops and flips are those
with which the networks of He et al. (2016) are usually trained: a random area of 8 to 100 % with a ratio of 3/4 to 4/3,
scaled to the size, and half of them flipped. Tests take the middle of an image whose shorter side is scaled to 8/7 of
the size.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from pipelag import cores
from pipelag.data import USERS_OWN
from pipelag.data.checks import check_range, check_some
from pipelag.data.files.compressed import reason
from pipelag.data.files.fetch import mirror_folders
from pipelag.data.minibatches import Shuffled
from pipelag.data.release import Released
from pipelag.errors import PipelagError
from pipelag.randomness import mix
from pipelag.tensors import sent

ENDS = (".jpeg", ".jpg", ".png")
FORMATS = ("JPEG", "PNG")  # whatever a file's name is; some of Pillow's other formats start programs
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's training images, as in torchvision's models
RATIOS = (3 / 4, 4 / 3)  # of a training crop's width to its height
_ORDER, _AUGMENTATION = 1, 2  # two streams of random numbers
Samples = tuple[tuple[Path, int], ...]  # (file, label)


@dataclass(frozen=True)
class ImageFolders(Released):
    """Labelled images in folders.

    Args:
        name, title, release, official, note: see `Released`.
        classes: the folders' names, in the order of the labels. train, test: files with their labels.
        size: height and width in pixels, as models see them.

    Raises:
        PipelagError: a part is empty, a label has no class, or the size is below 1.
    """

    classes: tuple[str, ...]
    train: Samples
    test: Samples
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise PipelagError(f"the images of '{self.name}' have a size of {self.size} pixels; it should be 1 or more")
        for part, samples in (("train", self.train), ("test", self.test)):
            check_some(self.name, f"{part} images", samples)
            labels = {label for _, label in samples}
            check_range(self.name, f"the labels in {part}", labels, len(self.classes), "classes")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image, as models see it."""
        return 3, self.size, self.size

    def summary(self) -> dict[str, Any]:
        """The entry of a run's summary about its data."""
        return self.described(train=len(self.train), test=len(self.test), classes=len(self.classes))


def imagenet(size: int = 224) -> ImageFolders:
    """ImageNet, from the folder `imagenet` of the first mirror that has one.

    Args:
        size: height and width in pixels to which images are scaled.

    Raises:
        PipelagError: no mirror has one, or it is not laid out as torchvision's ImageFolder.
    """
    root = next((folder / "imagenet" for folder in mirror_folders() if (folder / "imagenet/train").is_dir()), None)
    if root is None:
        raise PipelagError(USERS_OWN["imagenet"])
    classes = folders_of(root / "train")
    if not (root / "val").is_dir() or folders_of(root / "val") != classes:
        raise PipelagError(f"{root / 'val'} must have the same folders as {root / 'train'}, one per class")
    train, test = (samples_of(root / part, classes) for part in ("train", "val"))
    whole = (len(classes), len(train), len(test)) == (1000, 1_281_167, 50_000)
    note = "" if whole else f"{len(classes)} classes, {len(train):,} training images"
    release = "as ILSVRC 2012" if whole else "a part"
    return ImageFolders("imagenet", "ImageNet", release, whole, note, classes, train, test, size)


def folders_of(root: Path) -> tuple[str, ...]:
    """The classes: names of folders, sorted."""
    names = tuple(sorted(entry.name for entry in os.scandir(root) if entry.is_dir()))
    if len(names) < 2:
        raise PipelagError(f"{root} has {len(names)} folders; it should have one per class, and at least two")
    return names


def samples_of(root: Path, classes: Sequence[str]) -> Samples:
    """All images in the folders of the classes, with their labels."""
    samples = []
    for label, name in enumerate(classes):
        files = sorted(e.name for e in os.scandir(root / name) if e.name.lower().endswith(ENDS))
        if not files:
            raise PipelagError(f"{root / name} holds no image ({', '.join(ENDS)})")
        samples += [(root / name / file, label) for file in files]
    return tuple(samples)


def decoded(path: Path, box: Any, size: int) -> torch.Tensor:
    """uint8 (3, size, size): the part of an image that `box` chooses, scaled and perhaps flipped.

    box: (width, height) -> ((left, top, right, bottom), whether to flip).
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            area, flip = box(*image.size)
            pixels = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, area)
    except Exception as error:  # on foreign bytes Pillow raises what it likes
        raise PipelagError(f"{path} cannot be read as an image ({reason(error)})") from error
    array = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)
    return array.flip(2) if flip else array


def random_box(draw: random.Random) -> Any:
    """A training crop: a random area and ratio at a random place; half of the crops are flipped.

    As in torchvision's RandomResizedCrop: after ten tries the whole image is taken, or its middle if the image's ratio
    is outside the range.
    """

    def box(width: int, height: int) -> tuple[tuple[float, float, float, float], bool]:
        flip = draw.random() < 0.5
        for _ in range(10):
            area = width * height * draw.uniform(0.08, 1.0)
            ratio = math.exp(draw.uniform(*map(math.log, RATIOS)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, top = draw.randint(0, width - w), draw.randint(0, height - h)
                return (left, top, left + w, top + h), flip
        w, h = min(width, round(height * RATIOS[1])), min(height, round(width / RATIOS[0]))
        left, top = (width - w) // 2, (height - h) // 2
        return (left, top, left + w, top + h), flip

    return box


def middle_box(width: int, height: int) -> tuple[tuple[float, float, float, float], bool]:
    """A test crop: the square in the middle whose side is 7/8 of the image's shorter side."""
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return (left, top, left + side, top + side), False


class _Folders:
    """Decodes on threads, normalises on the device."""

    def __init__(self, folders: ImageFolders, device: torch.device, channels_last: bool) -> None:
        self.folders, self.device = folders, device
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.threads = ThreadPoolExecutor(min(16, cores.count()))
        self.mean = 255 * torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
        self.std = 255 * torch.tensor(STD, device=device).view(1, 3, 1, 1)

    def images(self, samples: Sequence[tuple[Path, int]], boxes: Sequence[Any]) -> torch.Tensor:
        """float32 (n, 3, size, size)."""
        size = self.folders.size
        parts = list(self.threads.map(lambda sample, box: decoded(sample[0], box, size), samples, boxes))
        whole = sent(torch.stack(parts), self.device).float()
        return whole.sub_(self.mean).div_(self.std).contiguous(memory_format=self.format)


class FolderBatches(_Folders, Shuffled):
    """The training minibatches; arguments as for `pipelag.data.images.batches.Batches`.

    augment: crop and flip at random; otherwise take the middle of each image.
    """

    def __init__(
        self,
        folders: ImageFolders,
        batch: int,
        seed: int,
        augment: bool = False,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
    ) -> None:
        Shuffled.__init__(self, folders.name, len(folders.train), batch, seed, _ORDER, torch.device("cpu"))
        _Folders.__init__(self, folders, torch.device(device), channels_last)
        self.augment = augment

    def inputs(self, t: int) -> torch.Tensor:
        """float32 (batch, 3, size, size)."""
        samples = [self.folders.train[i] for i in self.indices(t).tolist()]
        draws = [random.Random(mix(self.seed, _AUGMENTATION, t, place)) for place in range(len(samples))]
        return self.images(samples, [random_box(draw) if self.augment else middle_box for draw in draws])

    def targets(self, t: int) -> torch.Tensor:
        """int64 (batch,)."""
        return sent(torch.tensor([self.folders.train[i][1] for i in self.indices(t).tolist()]), self.device)


class FolderEvaluation(_Folders):
    """The test images, in order, in minibatches of (inputs, targets); the last one may be smaller."""

    def __init__(
        self,
        folders: ImageFolders,
        batch: int = 100,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
    ) -> None:
        super().__init__(folders, torch.device(device), channels_last)
        self.batch = batch

    @property
    def samples(self) -> int:
        """The number of test samples."""
        return len(self.folders.test)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Minibatches of float32 (n, 3, size, size) and int64 (n,)."""
        for first in range(0, self.samples, self.batch):
            some = self.folders.test[first : first + self.batch]
            labels = torch.tensor([label for _, label in some], device=self.device)
            yield self.images(some, [middle_box] * len(some)), labels
