"""Passes that must leave no trace in a module's buffers leave none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipelag.tensors import unchanged_buffers


class Counting(nn.Module):
    """Changes buffers in three ways: a new tensor, a write in place, and the input itself."""

    count: torch.Tensor
    written: torch.Tensor
    last: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("last", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        self.written += x.mean()
        self.last = x
        return x


def held(module: Counting) -> tuple[int, list[float], object]:
    return id(module.count), [float(module.count), *module.written.tolist()], module.last


def test_written_and_rebound_buffers_are_as_they_were() -> None:
    module = nn.Sequential(Counting(), nn.BatchNorm1d(2))
    before, names = held(module[0]), [name for name, _ in module.named_buffers()]
    statistics = {name: buffer.clone() for name, buffer in module[1].named_buffers()}
    with unchanged_buffers(module):
        module(torch.randn(4, 2) + 3)
        assert held(module[0])[1] != before[1]
    assert held(module[0]) == before and [name for name, _ in module.named_buffers()] == names
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in module[1].named_buffers())


def test_so_they_are_after_an_error() -> None:
    module = Counting()
    before = held(module)
    with pytest.raises(ValueError, match="stop"), unchanged_buffers(module):
        module(torch.ones(2))
        raise ValueError("stop")
    assert held(module) == before
