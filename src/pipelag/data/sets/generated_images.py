"""Image sets without a download: real digits that ship with scikit-learn, and procedural colour images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from pipelag.allocator import machine_memory
from pipelag.data.images.dataset import Dataset
from pipelag.errors import PipelagError

ROTATION = 0.42  # radians, either way; beyond pi/8 a square is closer to a diamond, and a cross to a diagonal cross
LABEL_NOISE = 0.05  # share of labels that are drawn again; one in ten of them stays right by chance
_BLOCK = 500  # images generated together, with a random generator of their own

_Floats = npt.NDArray[np.floating[Any]]  # float32 throughout


def digits(size: int = 28) -> Dataset:
    """The 1,797 real handwritten digits of scikit-learn (UCI, 8x8 pixels, greyscale), enlarged to `size` x `size`.

    The test set has 360 of them, the same in every run, and the same shares of the classes as the whole.

    Raises:
        PipelagError: the size is below 8.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

    if size < 8:
        raise PipelagError(f"digits have 8x8 pixels and can only be enlarged: size should be 8 or more, not {size}")
    raw = load_digits()
    images = F.interpolate(torch.from_numpy(raw.images).float().unsqueeze(1), (size, size), mode="bilinear")
    images = (images * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(raw.target).long()
    train, test = train_test_split(torch.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
    return Dataset(
        name="digits",
        title="UCI handwritten digits",
        release="the copy in scikit-learn",
        official=True,
        note=f"8x8 pixels, enlarged to {size}x{size}",
        classes=tuple(map(str, raw.target_names)),
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
    )


def shapes(
    train: int = 10_000, test: int = 2_000, difficulty: float = 1.0, size: int = 32, classes: int = 10, seed: int = 0
) -> Dataset:
    """Generated colour images of up to ten kinds of shapes in clutter, which a network learns in a few hundred steps.

    Place, size, rotation and colours vary. Smaller shapes lie behind the main one, a gradient and pixel noise over all.
    Colours say nothing about the class. Rotation makes some classes overlap. A share of the labels, training and test
    alike, is drawn again (5 % at difficulty 1), so that no classifier exceeds 95 %; good ones end near 90 %.

    An image depends only on (seed, part, index, difficulty, size, classes), so a smaller set is the beginning of a
    larger one.

    Args:
        train, test: images in each part.
        difficulty: a factor on rotation, clutter, gradient, noise and label noise; 0 gives clean shapes.
        size: height and width in pixels.
        classes: the number of kinds, taken from `SHAPES` in its order.

    Raises:
        PipelagError: an argument is out of range, or the images do not fit into this machine's memory.
    """
    if not 0 <= difficulty <= 4 or size < 8 or not 2 <= classes <= len(SHAPES) or min(train, test) < 1:
        raise PipelagError(
            f"shapes need difficulty 0 to 4, size 8 or more, 2 to {len(SHAPES)} classes and at least one image in each "
            f"part, not difficulty {difficulty}, size {size}, {classes} classes, {train} and {test} images"
        )
    if seed < 0:
        raise PipelagError(f"shapes need a seed of 0 or more, not {seed}")
    check_fits(train + test, size)
    (train_images, train_labels), (test_images, test_labels) = (
        _part(count, difficulty, size, classes, (seed, part)) for part, count in enumerate((train, test))
    )
    return Dataset(
        name="shapes",
        title=f"procedural shapes {size}x{size}",
        release=f"generated: difficulty {difficulty:g}, seed {seed}",
        official=True,
        note="generated images, no published data set",
        classes=tuple(SHAPES)[:classes],
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )


def check_fits(images: int, size: int) -> None:
    """Refuse images that do not fit into this machine's memory, before hours are spent on drawing them."""
    needed = 3 * max(images, 8 * _BLOCK) * size**2  # bytes; drawing a block takes a few float32 copies of it at a time
    if needed > machine_memory():
        raise PipelagError(
            f"{images:,} shapes of {size}x{size} take more than {needed / 2**30:,.0f} GiB, and this machine has "
            f"{machine_memory() / 2**30:,.0f} GiB of memory; take fewer, or smaller ones"
        )


def _part(
    count: int, difficulty: float, size: int, classes: int, seed: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = [_Block((*seed, block), difficulty, size, classes).draw() for block in range(-(-count // _BLOCK))]
    images, labels = (np.concatenate(parts)[:count] for parts in zip(*blocks, strict=True))
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.copy())


class _Block:
    """Draws `_BLOCK` images. Arrays are (n, channels, height, width), or 1 where they broadcast; colours are 0 to 1.

    NumPy draws with one thread. Several runs generate their data at the same time, and more threads would wait for each
    other.
    """

    def __init__(self, seed: tuple[int, ...], difficulty: float, size: int, classes: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.difficulty, self.size, self.classes = difficulty, size, classes
        grid = np.linspace(-1, 1, size, dtype=np.float32)
        self.y, self.x = grid.reshape(1, 1, -1, 1), grid.reshape(1, 1, 1, -1)

    def draw(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Images (n, 3, h, w) and labels (n,)."""
        kinds = self.kinds()
        # The background is darker than the foreground on average; otherwise networks stay at chance for a long time.
        image = self.uniform(0.0, 0.55, 3) + self.gradient()
        for _ in range(2):
            clutter = self.mask(self.kinds(), radius=(0.1, 0.25), reach=0.9) * min(self.difficulty, 1.0)
            image += (self.uniform(0.0, 1.0, 3) - image) * clutter
        image += (self.uniform(0.45, 1.0, 3) - image) * self.mask(kinds, radius=(0.4, 0.75), reach=0.3)
        image += 0.12 * self.difficulty * self.generator.standard_normal(image.shape, np.float32)
        relabelled = self.uniform(0.0, 1.0).ravel() < LABEL_NOISE * self.difficulty
        labels = np.where(relabelled, self.kinds(), kinds)
        return np.rint(image.clip(0, 1) * 255).astype(np.uint8), labels

    def uniform(self, low: float, high: float, channels: int = 1) -> _Floats:
        """(n, channels, 1, 1): random numbers, uniform between `low` and `high`."""
        return low + (high - low) * self.generator.random((_BLOCK, channels, 1, 1), np.float32)

    def kinds(self) -> npt.NDArray[np.int64]:
        """(n,): random numbers of shapes."""
        return self.generator.integers(self.classes, size=_BLOCK)

    def gradient(self) -> _Floats:
        """(n, 1, h, w): a gradient that is brighter towards a random side."""
        direction = self.uniform(-math.pi, math.pi)
        return 0.15 * self.difficulty * (self.x * np.cos(direction) + self.y * np.sin(direction))

    def mask(self, kinds: npt.NDArray[np.int64], radius: tuple[float, float], reach: float) -> _Floats:
        """(n, 1, h, w): 1 inside a shape of the given kind, 0 outside, with a soft edge of about a pixel."""
        angle = self.uniform(-1, 1) * ROTATION * self.difficulty
        scale = self.uniform(*radius)
        x, y = self.x - self.uniform(-reach, reach), self.y - self.uniform(-reach, reach)
        u = (x * np.cos(angle) + y * np.sin(angle)) / scale
        v = (y * np.cos(angle) - x * np.sin(angle)) / scale
        distance = np.empty_like(u)
        for kind, of in enumerate(list(SHAPES.values())[: self.classes]):
            chosen = kinds == kind
            distance[chosen] = of(u[chosen], v[chosen])
        return np.clip(0.5 - distance * scale * (self.size / 2), 0, 1)


# Approximate signed distances: negative inside a shape of size 1 around (0, 0); v points down.


def _box(u: _Floats, v: _Floats) -> _Floats:
    return np.maximum(np.abs(u), np.abs(v))


def _plus(u: _Floats, v: _Floats) -> _Floats:
    return np.maximum(np.minimum(np.abs(u), np.abs(v)) - 0.28, _box(u, v) - 1)


def _turned(u: _Floats, v: _Floats) -> tuple[_Floats, _Floats]:
    """The coordinates turned by 45 degrees."""
    return (u + v) * math.sqrt(0.5), (u - v) * math.sqrt(0.5)


def _stripes(u: _Floats, v: _Floats) -> _Floats:
    return np.maximum(_box(u, v) - 0.9, np.abs((v + 0.9) % 0.72 - 0.18) - 0.18)


SHAPES: dict[str, Callable[[_Floats, _Floats], _Floats]] = {
    "disc": lambda u, v: np.hypot(u, v) - 0.85,
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.68) - 0.2,
    "square": lambda u, v: _box(u, v) - 0.75,
    "frame": lambda u, v: np.abs(_box(u, v) - 0.65) - 0.18,
    "triangle": lambda u, v: np.maximum(v - 0.7, 0.89 * np.abs(u) - 0.45 * v - 0.45),
    "cross": _plus,
    "diagonal cross": lambda u, v: _plus(*_turned(u, v)),
    "stripes": _stripes,
    "diamond": lambda u, v: _box(*_turned(u, v)) - 0.75,
    "two discs": lambda u, v: np.hypot(np.abs(u) - 0.55, v) - 0.42,
}
