"""Activations cached, against the timed executor's memory and the paper's formulas."""

from __future__ import annotations

import pytest

from pipelag.errors import PipelagError
from pipelag.schedules.library import cycle
from pipelag.theory.caching import asynchronous, segment_of, synchronous


@pytest.mark.parametrize("stages", [1, 4, 16])
def test_without_recomputation_a_stage_caches_as_long_as_it_waits(stages: int) -> None:
    assert asynchronous(stages) == [2 * (stages - i) + 1 for i in range(1, stages + 1)]  # section A.2
    plan = cycle(stages, 4 * stages)
    assert plan.cycles is not None
    for worker, (row, cycles) in enumerate(zip(plan.workers, plan.cycles, strict=True)):
        held = most = 0
        events = sorted((now, action.kind == "B", action.kind) for action, now in zip(row, cycles, strict=True))
        for _, _, kind in events:  # in a cycle, the forward's activation is there before the backward frees one
            held += {"F": 1, "B": -1}.get(kind, 0)
            most = max(most, held)
        assert most == asynchronous(stages)[worker]


def test_with_recomputation_only_segment_heads_keep_long_queues() -> None:
    assert asynchronous(16, 4) == [31, 6, 4, 2, 23, 6, 4, 2, 15, 6, 4, 2, 7, 5, 3, 1]
    assert asynchronous(5, 1) == asynchronous(5)


def test_gpipe_keeps_all_microbatches() -> None:
    assert synchronous(3, 8) == [8, 8, 8]
    assert synchronous(4, 8, 2) == [8, 2, 8, 2]


def test_segments() -> None:
    assert (segment_of("root", 16), segment_of("root", 107), segment_of(4, 16)) == (4, 10, 4)
    with pytest.raises(PipelagError, match="1 to 16 stages"):
        segment_of(17, 16)
