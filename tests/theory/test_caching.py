"""Activations cached, against counts over the schedule and the paper's formulas."""

from __future__ import annotations

from math import sqrt

import pytest

from pipelag.errors import PipelagError
from pipelag.schedules.actions import in_flight
from pipelag.schedules.library import pipemare
from pipelag.theory.caching import asynchronous, segment_of, synchronous


@pytest.mark.parametrize("stages", [1, 4, 16])
@pytest.mark.parametrize("segment", [0, 1, 3, 4])
def test_a_stage_caches_as_many_as_are_under_way_in_the_schedule(stages: int, segment: int) -> None:
    plan = pipemare(stages, 4 * stages, segment=segment)
    expected = [
        in_flight(row) if not segment or worker % segment == 0 else in_flight(row, "R")
        for worker, row in enumerate(plan.workers)
    ]
    assert asynchronous(stages, segment or None) == expected
    assert asynchronous(stages) == [2 * (stages - i) + 1 for i in range(1, stages + 1)]  # section A.2


def test_with_recomputation_only_segment_heads_keep_long_queues() -> None:
    """Figure 9: nowhere more than without recomputation, whose bars are stacked on these."""
    assert asynchronous(16, 4) == [31, 5, 3, 1, 23, 5, 3, 1, 15, 5, 3, 1, 7, 5, 3, 1]
    assert asynchronous(5, 1) == asynchronous(5)


def test_gpipe_keeps_all_microbatches() -> None:
    assert synchronous(3, 8) == [8, 8, 8]
    assert synchronous(4, 8, 2) == [8, 1, 8, 1]
    assert synchronous(8, 4, 4) == [4, 4, 3, 1] * 2


def test_segments() -> None:
    assert (segment_of("root", 16), segment_of("root", 107), segment_of(4, 16)) == (4, 10, 4)
    with pytest.raises(PipelagError, match="1 to 16 stages"):
        segment_of(17, 16)


@pytest.mark.parametrize("count", range(1, 200))
def test_the_root_is_rounded_to_the_nearest(count: int) -> None:
    assert segment_of("root", count) == round(sqrt(count))


@pytest.mark.parametrize("count", [16, 64, 144])
def test_segments_of_the_root_take_the_least_memory(count: int) -> None:
    """Of square counts exactly (A.3), by sums over all lengths of a segment."""
    lengths = range(1, count + 1)
    assert min(lengths, key=lambda S: sum(asynchronous(count, S))) == round(sqrt(count))
    assert min(lengths, key=lambda S: sum(synchronous(count, count, S))) == round(sqrt(count))
