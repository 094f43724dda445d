"""What messages and sums cost on paper: zero-bubble schedules, interleaving, gradients in more bytes than weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelag.partitioner.layouts import Layout
from pipelag.timing.costs import uniform
from tests.partitioner.test_large import FREE, WORK, fleet


@pytest.mark.parametrize(("stage", "update", "longer"), [(1, 5.0, 5.0), (4, 8.0, 0.0), (4, 9.0, 0.75)])
def test_a_later_stages_update_hides_behind_messages_too(stage: int, update: float, longer: float) -> None:
    """Of three microbatches over four stages. The last stage begins, and has its last B, three times 2.25 s of F and B
    before the first, and six messages of half a second; it has two more W's of 0.75 s left: 8.25 s earlier in all.
    """
    layout, one = Layout((1, 2, 3), 1, 3, 1, recompute=False), fleet("zb_h1", 4, replace(FREE, inside=2.0))
    costs = uniform(4, 1.0, 2.0, weight_gradient=0.75, output_bytes=1.0)
    changed = [*costs]
    changed[stage - 1] = replace(costs[0], update=update)
    assert one.seconds(layout, changed) - one.seconds(layout, costs) == pytest.approx(longer, abs=1e-9)
    assert one.timed(layout, changed) - one.timed(layout, costs) == pytest.approx(longer, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "microbatches", "message", "pace"),
    [("zb_h1", 1, 1.0, 0.0), ("zb_h1", 4, 0.5, 11 / 4), ("zb_h2", 4, 0.5, 2.0), ("zb_h2", 4, 10.0, 10.0)],
)
def test_zero_bubble_schedules_wait_for_messages_there_and_back(
    name: str, microbatches: int, message: float, pace: float
) -> None:
    """Four stages, F, B and W of a second: the first microbatch has 8 s and six messages to go, and its W follows.

    Others come at the pace of F and B, of a round trip by four (ZB-H2: seven) microbatches, or of a message.
    """
    layout = Layout((1, 2, 3), 1, microbatches, 1, recompute=False)
    one = fleet(name, 4, replace(FREE, inside=1 / message))
    costs = uniform(4, 1.0, 2.0, output_bytes=1.0)
    assert one.seconds(layout, costs) == pytest.approx(8 + 6 * message + (microbatches - 1) * pace + 1)
    assert one.timed(layout, costs) == pytest.approx(one.seconds(layout, costs), rel=0.02)


def test_the_busiest_interleaved_worker_sets_the_pace() -> None:
    """Worker 0's stages take 6 s, worker 1's 3 s; the bubble is of a mean stage."""
    layout, one = Layout((1, 2, 3), 1, 8, 1, recompute=False, chunks=2), fleet("1f1b_interleaved", 2, FREE)
    costs = [*uniform(1, 2.0, 4.0), *uniform(1, 1.0, 2.0)] * 2
    assert one.seconds(layout, costs) == pytest.approx(8 * 12 + 4.5)
    assert one.timed(layout, costs) == pytest.approx(one.seconds(layout, costs), rel=0.05)


def test_gradients_may_be_summed_in_more_bytes_than_weights_have() -> None:
    """In twice as many here: a ring of two sends 8,000 bytes each way for 4,000 of weights, and no pass changes."""
    layout, wide = Layout((4,), 8, 1, 4, recompute=False), replace(WORK, summed=8)
    one, other = fleet("1f1b_flush", 16), fleet("1f1b_flush", 16, work=wide)
    for cost, wider in zip(one.costs(layout), other.costs(layout), strict=True):
        assert wider.update - cost.update == pytest.approx(2 * 7 / 8 * 4000 / 1e8)
        assert replace(wider, update=cost.update) == cost
    two = Layout((1, 2, 3, 4, 5, 6, 7), 2, 4, 4, recompute=False)
    assert other.leaving(two, other.costs(two)) == 4 * 8 + 2 * 4 * 4000
