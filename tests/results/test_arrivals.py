"""Who comes to a target first, as far as evaluations tell: between two of them, never, by a fall of the rate."""

from __future__ import annotations

import math

import pytest

from pipelag.results.arrivals import Arrival, Arrivals, Gain, later
from pipelag.results.verdict import TESTS, SeedTest

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


def test_a_run_comes_after_the_evaluation_before_or_the_start() -> None:
    rows = [{"epoch": epoch, "lr": rate, "score": epoch} for epoch, rate in ((2.0, 0.1), (4.0, 0.1), (6.0, 0.01))]
    ends = {goal: Arrival.of(rows, lambda row, goal=goal: row["score"] >= goal) for goal in (1.0, 3.0, 5.0, 7.0)}  # type: ignore[misc]
    assert ends[1.0] == Arrival(0.0, 2.0, False) and ends[3.0] == Arrival(2.0, 4.0, False)
    assert ends[5.0] == Arrival(4.0, 6.0, True) and ends[7.0] == Arrival(6.0, math.inf, False)
    assert Arrival.of([], lambda row: True) == Arrival(0.0, math.inf, False)


def test_hours_and_epochs_are_alike() -> None:
    assert Arrival(2.0, 3.0, True).times(0.5) == Arrival(1.0, 1.5, True)


def test_how_many_times_as_long_is_told_whenever_they_come() -> None:
    gain = Gain.of(at(3, 3, 3), at(6, 6, 6))
    assert (gain.least.mean, gain.evaluated.mean, gain.most.mean) == (pytest.approx(5 / 3), 2.0, 3.0)
    assert [gain.above(bound) for bound in (1.6, 2.0, 3.0)] == [True, None, False]
    assert [gain.below(bound) for bound in (1.6, 2.0, 3.0)] == [False, None, True]
    assert Gain.of(at(3), at(60)).above(1.0) is None  # one seed
    at_once = Gain.of(at(1, 1, 1), at(6, 6, 6))  # it may have come at the start
    assert [at_once.above(bound) for bound in (4.9, 1e9)] == [True, None] and at_once.below(1e9) is None
    never = Gain.of(at(None, None, None), at(6, 6, 6))
    assert never.evaluated.mean == 0.0 and never.above(0.6) is False and never.above(0.5) is None
    least = Gain.of(at(3, 3, 3), at(None, None, None))  # as long as it was trained, or longer
    assert least.evaluated.mean == pytest.approx(WHOLE / 3) and least.above(3.0) is True and least.above(4.0) is None


def test_over_models_the_geometric_mean_counts_at_both_ends() -> None:
    gain = Gain.over_models([(at(3, 3), at(6, 6)), (at(2, 2), at(16, 16))], 100.0)
    ends = [100 * math.sqrt(a * b) for a, b in ((5 / 3, 15 / 2), (2, 8), (6 / 2, 16 / 1))]
    assert [gain.least.mean, gain.evaluated.mean, gain.most.mean] == pytest.approx(ends)
    assert [gain.within(low, 1601.0) for low in (350.0, 400.0)] == [True, None]
    at_once = Gain.over_models([(at(3, 3), at(6, 6)), (at(1, 1), at(1, 1))])
    assert at_once.least.mean == 0.0 and math.isinf(at_once.most.mean)
    of_seeds_that_both_have = Gain.over_models([(at(3, 3), at(6, 6)), (at(2, 2, 9), at(16, 16, 9))])
    assert of_seeds_that_both_have.evaluated.seeds == 2


@pytest.mark.parametrize("bound", [1.0, 1.9, 9.0])
def test_the_two_ends_of_a_range_are_one_test(bound: float) -> None:
    tests: list[SeedTest] = []
    recording = TESTS.set(tests)
    try:
        said = Gain.of(at(3, 3.3, 3), at(6, 6, 6)).above(bound)
    finally:
        TESTS.reset(recording)
    ((favour, against),) = tests
    assert {True: favour < 0.05 and against == 1, False: against < 0.05 and favour == 1, None: favour == 1}[said]
