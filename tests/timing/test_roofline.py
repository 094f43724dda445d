"""Profiles from data sheets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.timing.profile import profile
from pipelag.timing.roofline import Device, Roofline, roofline


def test_an_operator_takes_the_longer_of_computing_and_moving() -> None:
    a, b = torch.empty(64, 32, device="meta"), torch.empty(32, 16, device="meta")
    with Roofline(Device(flops=1.0, bandwidth=1e30)) as computing:
        a @ b
    assert computing.seconds == 2 * 64 * 32 * 16
    with Roofline(Device(flops=1e30, bandwidth=1.0)) as moving:
        a @ b
    assert moving.seconds == 4 * (64 * 32 + 32 * 16 + 64 * 16)


def test_views_take_no_time() -> None:
    with Roofline(Device(1.0, 1.0)) as clock:
        torch.empty(8, 8, device="meta").view(64).unsqueeze(0)
    assert clock.seconds == 0


def test_sizes_are_those_of_a_measured_profile() -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Flatten(), nn.Linear(144, 5)),
        )

    measured = profile(build(), torch.randn(2, 3, 8, 8), repeats=1, warmup=0)
    with torch.device("meta"):
        counted = roofline(build(), torch.empty(2, 3, 8, 8), "v100")
    for ours, theirs in zip(counted.layers, measured.layers, strict=True):
        assert (ours.output_bytes, ours.weight_bytes) == (theirs.output_bytes, theirs.weight_bytes)
        assert ours.kept_bytes == theirs.kept_bytes
        assert ours.forward_ms > 0 and ours.backward_ms > 0


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(PipelagError, match="did you mean 'v100'"):
        roofline(nn.Sequential(nn.Linear(2, 2)), torch.empty(1, 2, device="meta"), "v10")
