"""Data without a download: real digits that ship with scikit-learn, and procedural colour images."""

from __future__ import annotations

import math

import torch

from pipelag.data.dataset import Dataset
from pipelag.errors import PipelagError
from pipelag.randomness import mix

SHAPES = ("disc", "ring", "square", "frame", "triangle", "cross", "diagonal cross", "stripes", "diamond", "two discs")


def digits(size: int = 28) -> Dataset:
    """1,797 real handwritten digits (UCI, 8x8 pixels, from scikit-learn), enlarged; 360 are for testing."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = torch.from_numpy(raw.images).float().unsqueeze(1) * (255.0 / 16.0)
    images = torch.nn.functional.interpolate(images, (size, size), mode="bilinear", align_corners=False)
    images = images.round().clamp(0, 255).to(torch.uint8)
    labels = torch.from_numpy(raw.target).long()
    # Stratified: the same share of every digit, chosen once and for all.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test = torch.cat([order[labels[order] == digit][:36] for digit in range(10)])
    train = order[~torch.isin(order, test)]
    return Dataset(
        "digits",
        "UCI handwritten digits",
        "scikit-learn's copy",
        True,
        f"8x8 images enlarged to {size}x{size}; 1,437 for training, 360 for testing",
        tuple(str(digit) for digit in range(10)),
        images[train],
        labels[train],
        images[test],
        labels[test],
    )


def shapes(train: int = 10_000, test: int = 2_000, difficulty: float = 1.0, size: int = 32, seed: int = 0) -> Dataset:
    """Ten classes of shapes on cluttered backgrounds, generated: colour images that take a network to tell apart.

    Position, size, rotation and colours vary; a distractor shape, a colour gradient and pixel noise are laid over.
    Colours say nothing about the class. Part of the labels is replaced at random (8 % at difficulty 1, training and
    test alike), so no classifier reaches 100 %.

    Args:
        difficulty: scales noise, clutter and label noise; 0 is clean shapes.

    Raises:
        PipelagError: a negative difficulty or size below 8.
    """
    if difficulty < 0 or size < 8:
        raise PipelagError(f"shapes need difficulty >= 0 and size >= 8, not {difficulty} and {size}")
    parts = [_draw(count, difficulty, size, mix(seed, part)) for part, count in enumerate((train, test))]
    return Dataset(
        "shapes",
        f"procedural shapes {size}x{size}",
        f"generated (difficulty {difficulty:g}, seed {seed})",
        True,
        "not a real data set; a stand-in that needs no download",
        SHAPES,
        *parts[0],
        *parts[1],
    )


def _draw(count: int, difficulty: float, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    labels = torch.randint(0, len(SHAPES), (count,), generator=generator)
    grid = torch.linspace(-1, 1, size)
    y, x = grid.view(1, size, 1), grid.view(1, 1, size)

    def mask(kind: torch.Tensor, radius: torch.Tensor, reach: float) -> torch.Tensor:
        angle = uniform(-0.5, 0.5, 1, 1) * min(difficulty, 1.5)
        u0, v0 = x - uniform(-reach, reach, 1, 1), y - uniform(-reach, reach, 1, 1)
        u = (u0 * angle.cos() + v0 * angle.sin()) / radius
        v = (v0 * angle.cos() - u0 * angle.sin()) / radius
        return _inside(kind, u, v, 0.15)

    jitter = 0.4 * min(difficulty, 1.0)  # of colours: at 1 a shape may be darker than its background
    background, foreground = 0.3 + uniform(-jitter, jitter, 3, 1, 1), 0.7 + uniform(-jitter, jitter, 3, 1, 1)
    tilt = uniform(-math.pi, math.pi, 1, 1)
    gradient = 0.15 * difficulty * (x * tilt.cos() + y * tilt.sin())
    image = background + gradient.unsqueeze(1)
    other = torch.randint(0, len(SHAPES), (count,), generator=generator)
    clutter = mask(other, uniform(0.12, 0.25, 1, 1), 0.9).unsqueeze(1) * min(difficulty, 1.0)
    image = image * (1 - clutter) + uniform(0.0, 1.0, 3, 1, 1) * clutter
    shape = mask(labels, uniform(0.5, 0.75, 1, 1), 0.3 * min(difficulty, 1.0)).unsqueeze(1)
    image = image * (1 - shape) + foreground * shape
    image += 0.12 * difficulty * torch.randn(image.shape, generator=generator)
    wrong = torch.rand(count, generator=generator) < 0.08 * difficulty
    labels = torch.where(wrong, torch.randint(0, len(SHAPES), (count,), generator=generator), labels)
    return image.clamp(0, 1).mul(255).round().to(torch.uint8), labels


def _inside(kind: torch.Tensor, u: torch.Tensor, v: torch.Tensor, soft: float) -> torch.Tensor:
    """How much each pixel at (u, v) belongs to the shape `kind` of unit size: 1 inside, 0 outside, a soft edge."""
    r = (u * u + v * v).sqrt()
    box = torch.maximum(u.abs(), v.abs())
    plus = torch.maximum(torch.minimum(u.abs(), v.abs()) - 0.3, box - 1)
    s, d = (u + v) * math.sqrt(0.5), (u - v) * math.sqrt(0.5)
    times = torch.maximum(torch.minimum(s.abs(), d.abs()) - 0.3, torch.maximum(s.abs(), d.abs()) - 1)
    triangle = torch.maximum(v - 0.7, 2 * u.abs() - v - 0.9)
    stripes = torch.maximum(box - 0.9, 0.35 - (torch.remainder(v * 2.2 + 0.5, 1.0) - 0.5).abs() * 2 + 0.1)
    two = torch.minimum(((u - 0.55) ** 2 + v * v).sqrt(), ((u + 0.55) ** 2 + v * v).sqrt()) - 0.45
    distance = [
        r - 0.85,
        (r - 0.65).abs() - 0.22,
        box - 0.75,
        (box - 0.62).abs() - 0.2,
        triangle,
        plus,
        times,
        stripes,
        u.abs() + v.abs() - 1.0,
        two,
    ]
    chosen = torch.zeros_like(r)
    for number, values in enumerate(distance):
        chosen = torch.where((kind == number).view(-1, 1, 1), values, chosen)
    return (0.5 - chosen / soft).clamp(0, 1)
