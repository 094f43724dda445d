"""Who comes to a target first, as far as evaluations tell: between two of them, never, by a fall of the rate."""

from __future__ import annotations

import math

import pytest

from pipelag.results.pipeoptim.targets import Arrival, Arrivals, later

WHOLE = 10.0


def at(*epochs: float | None, step: float = 1.0, by_rate: bool = False) -> Arrivals:
    """Arrivals by seed, by an evaluation at these epochs; None stands for never in `WHOLE`."""
    return {
        seed: Arrival(WHOLE, math.inf, False) if by is None else Arrival(by - step, by, by_rate)
        for seed, by in enumerate(epochs)
    }


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (at(8, 8.1, 8), at(3, 3.1, 3), True),
        (at(3, 3.1, 3), at(8, 8.1, 8), False),
        (at(3, 3.1, 3), at(3, 3.1, 3), None),  # by the same evaluation
        (at(4, 4.1, 4), at(3, 3.1, 3), None),  # one evaluation apart: they may have come together
        (at(4, 4.1, 4, step=0.1), at(3, 3.1, 3, step=0.1), True),
        (at(None, None, None), at(3, 3.1, 3), True),
        (at(3, 3.1, 3), at(None, None, None), False),
        (at(None, None, None), at(None, None, None), None),
        (at(None, 8, 8), at(3, 3, None), None),
        (at(20, 20.1, 20), at(None, None, None), None),  # of one that would have come after twelve, nobody knows
        (at(8, 8.1, 8, by_rate=True), at(3, 3.1, 3, by_rate=True), None),
        (at(8, 8.1, 8, by_rate=True), at(3, 3.1, 3), True),
        (at(9), at(1), None),  # one seed
        (at(None), at(1), None),
    ],
)
def test_later(first: Arrivals, second: Arrivals, verdict: bool | None) -> None:
    assert later(first, second) is verdict


def test_hours_and_epochs_are_alike() -> None:
    assert Arrival(2.0, 3.0, True).times(0.5) == Arrival(1.0, 1.5, True)
