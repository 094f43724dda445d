"""Data sheets against what they follow from: units and clocks, memory buses and the rates of their lines."""

from __future__ import annotations

import pytest

from pipelag.timing.sheets import DEVICES


@pytest.mark.parametrize(
    ("name", "units", "gigahertz", "memory", "bits", "gigabits"),
    [
        ("v100", 5120, 1.53, 16, 4096, 1.754),
        ("v100_fp16", 640 * 64, 1.53, 16, 4096, 1.754),  # a tensor core makes 64 a cycle
        ("p100", 3584, 1.303, 16, 4096, 1.43),
        ("p100_sxm2", 3584, 1.48, 16, 4096, 1.43),
        ("p40", 3840, 1.531, 24, 384, 7.2),
        ("titan_x", 3584, 1.531, 12, 384, 10.0),
        ("1080ti", 3584, 1.582, 11, 352, 11.0),
        ("a100_bf16", 108 * 1024, 1.41, 80, 5120, 3.186),
        ("h100_bf16", 132 * 2048, 1.83, 80, 5120, 5.234),
    ],
)
def test_data_sheets_agree_with_units_clocks_and_buses(
    name: str, units: int, gigahertz: float, memory: int, bits: int, gigabits: float
) -> None:
    """A fused multiply-add is two operations a cycle; boost clocks, memory buses and rates of their lines (NVIDIA)."""
    assert DEVICES[name].flops == pytest.approx(2 * units * gigahertz * 1e9, rel=0.005)
    assert DEVICES[name].bandwidth == pytest.approx(bits * gigabits * 1e9 / 8, rel=0.005)
    assert DEVICES[name].memory == memory * 2**30


def test_every_sheet_is_held_to_that() -> None:
    (held,) = (mark.args[1] for mark in test_data_sheets_agree_with_units_clocks_and_buses.pytestmark)  # type: ignore[attr-defined]
    assert {row[0] for row in held} == set(DEVICES)
