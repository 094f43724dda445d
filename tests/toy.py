"""Small models and data that the executors' tests share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.methods import METHODS
from pipelag.stage.phase import Phase


class Fork(nn.Module):
    """The first half of a residual block: passes the branch and the skip tensor across the boundary."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(self.norm(self.conv(x))), x


class Join(nn.Module):
    """The second half of a residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        branch, skip = pair
        return torch.relu(self.norm(self.conv(branch)) + skip)


def convolutional(seed: int = 0) -> nn.Sequential:
    """Six layers with batch norm, dropout, a residual block that can be cut inside, and a classifier."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        Fork(8),
        Join(8),
        nn.Sequential(
            nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.Dropout(0.2)
        ),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Dropout(0.1)),
        nn.Linear(16, 4),
    )
    return model.to(memory_format=torch.channels_last)


class Counted(nn.Module):
    """A buffer that says how often it was called."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x


class Placed(nn.Module):
    """Adds a table that is a buffer, as one of positions is."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.full((1,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


class Noise:
    """Learnable random minibatches by number: `inputs(t)`, `targets(t)` and `[t]`, the same numbers on every device."""

    def __init__(self, batch: int = 8, size: int = 8, seed: int = 0, device: str = "cpu") -> None:
        self.batch, self.size, self.seed, self.device = batch, size, seed, device

    def images(self, t: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + t)
        images = torch.randn(self.batch, 3, self.size, self.size, generator=generator)
        return images.to(memory_format=torch.channels_last)

    def inputs(self, t: int) -> torch.Tensor:
        return self.images(t).to(self.device)

    def targets(self, t: int) -> torch.Tensor:
        images = self.images(t)
        labels = (images[:, 0].mean((1, 2)) > 0).long() + 2 * (images[:, 1].mean((1, 2)) > 0).long()
        return labels.to(self.device)

    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs(t), self.targets(t)


def sgd(params: object) -> torch.optim.Optimizer:
    """Momentum and weight decay."""
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3)  # type: ignore[arg-type]


def adamw(params: object) -> torch.optim.Optimizer:
    """Small steps."""
    return torch.optim.AdamW(params, lr=0.002)  # type: ignore[arg-type]


def simulated(name: str, steps: int, cuts: Sequence[int], microbatches: int) -> bool:
    """Whether a method is simulated over these cuts, a minibatch in so many microbatches."""
    try:
        Phase(METHODS[name], steps, tuple(cuts), microbatches=microbatches).check()
    except PipelagError:
        return False
    return METHODS[name].workers == "stages"


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit for bit, parameters and buffers."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


VIRTUAL = ("1f1b_interleaved", "pipedream_interleaved", "bidirectional", "zb_v")  # several stages on a worker
# Methods that are themselves only with microbatches; the others take a minibatch in one piece as well.
PARTS = dict.fromkeys(("pipedream_2bw", *VIRTUAL), 4)


def parts_of(name: str) -> int:
    """The microbatches of a minibatch with which a method is tested on 2 and on 4 stages."""
    return PARTS.get(name, 1)
