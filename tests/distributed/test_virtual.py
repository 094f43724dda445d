"""Several stages per worker: what the schedules must be, and that real workers learn what the simulator learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pipelag
from pipelag.distributed.routes import conversations, routes_of, stages_on
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.schedules import check, delays
from pipelag.schedules.virtual import Interleaved, bidirectional
from pipelag.stage.phase import Phase
from tests.toy import Noise, convolutional, equal, sgd


@pytest.mark.parametrize(("workers", "chunks", "microbatches"), [(2, 2, 2), (2, 2, 6), (4, 2, 8), (2, 3, 4), (3, 2, 6)])
@pytest.mark.parametrize("flush", [True, False])
def test_interleaving_is_possible_and_deals_stages_in_turn(
    workers: int, chunks: int, microbatches: int, flush: bool
) -> None:
    schedule = Interleaved(chunks, flush)(workers * chunks, 5, microbatches)
    check(schedule)
    routes_of(schedule)  # messages are taken in the order in which they are sent
    assert [stages_on(schedule, rank) for rank in range(workers)] == [
        list(range(rank + 1, workers * chunks + 1, workers)) for rank in range(workers)
    ]
    late = delays(schedule).forward
    assert set(late) == {0} if flush else list(late) == sorted(late, reverse=True) and late[0] > 0


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 2), (2, 8), (4, 4), (6, 12), (8, 8)])
def test_both_directions_share_the_workers(stages: int, microbatches: int) -> None:
    schedule = bidirectional(stages, 3, microbatches)
    check(schedule)
    routes_of(schedule)
    assert set(delays(schedule).forward) == {0}
    for rank in range(stages):
        assert stages_on(schedule, rank) == sorted({rank + 1, stages - rank})
    if stages > 1:  # even microbatches run down, odd ones up
        for m in range(microbatches):
            path = [schedule.places[pipelag.schedules.Action("F", stage, m)] for stage in range(1, stages + 1)]
            assert path == (list(range(stages)) if m % 2 == 0 else list(reversed(range(stages))))


def test_no_two_routes_between_two_workers_share_a_connection() -> None:
    """Of four stages on two workers outputs cross three times, and gradients: they come in no common order."""
    routes = routes_of(Interleaved(2, True)(4, 2, 2))
    assert [(one.kind, one.stage, one.source, one.target, one.count) for one in routes] == [
        *(("B", stage, 1 - stage % 2, stage % 2, 4) for stage in (2, 3, 4)),
        *(("F", stage, 1 - stage % 2, stage % 2, 4) for stage in (1, 2, 3)),
    ]
    assert [(one.kind, one.lane) for one in routes] == [*(("B", n) for n in range(3)), *(("F", n) for n in range(3))]
    assert conversations(routes) == {(kind, lane): {(0, 1)} for kind in ("B", "F") for lane in range(3)}


def test_two_directions_idle_less_than_one() -> None:
    """Units of a minibatch on 4 workers with 4 microbatches: 1F1B with a flush leaves bubbles that the other fills."""
    costs = pipelag.uniform(4)
    both = pipelag.time(bidirectional(4, 1, 4), costs).makespan
    one = pipelag.time(get("1f1b_flush").schedule(4, 1, 4), costs).makespan
    assert both < one


def trained(
    name: str, executor: str, cuts: tuple[int, ...], microbatches: int, recompute: bool
) -> dict[str, torch.Tensor]:
    model = convolutional()
    phases = [
        Phase(get("sequential"), 2),
        Phase(get(name), 6, cuts, microbatches=microbatches, recompute=recompute),
    ]
    workers = 2
    pipelag.train(
        model,
        Noise(),
        phases=phases,
        optimizer=sgd,
        executor=executor,
        workers=workers if executor == "real" else None,
        rate=lambda step: 1.0 if step < 5 else 0.5,
        seed=5,
    )
    return model.state_dict()


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "cuts", "microbatches", "recompute"),
    [
        ("1f1b_interleaved", (1, 2, 4), 4, False),
        ("1f1b_interleaved", (1, 2, 4), 2, True),
        ("pipedream_interleaved", (1, 2, 4), 2, False),
        ("bidirectional", (3,), 4, False),
        ("zb_v", (1, 2, 4), 4, False),
        ("zb_v", (1, 2, 4), 8, False),
        ("zb_v", (1, 2, 4), 1, False),
    ],
)
def test_real_equals_simulated_bit_for_bit(
    name: str, cuts: tuple[int, ...], microbatches: int, recompute: bool
) -> None:
    real, simulated = (trained(name, kind, cuts, microbatches, recompute) for kind in ("real", "simulated"))
    assert equal(real, simulated)


@pytest.mark.real
@pytest.mark.parametrize(("name", "cuts"), [("bidirectional", (3,)), ("zb_v", (1, 2, 4))])
def test_a_run_with_several_stages_per_worker_goes_on_from_its_checkpoints(
    tmp_path: Path, name: str, cuts: tuple[int, ...]
) -> None:
    def run(steps: int, folder: object, start: int = 0) -> pipelag.TrainedRun:
        return pipelag.train(
            convolutional(start), Noise(), method=name, cuts=cuts, microbatches=2, steps=steps,
            optimizer=sgd, executor="real", checkpoints=folder, checkpoint_every=3 if folder else 0, seed=5,
        )  # fmt: skip

    run(6, tmp_path)
    resumed, whole = run(9, tmp_path, start=1), run(9, None)  # whose weights are those of the checkpoint
    assert equal(resumed.model.state_dict(), whole.model.state_dict())
    assert [row["loss"] for row in resumed.metrics] == pytest.approx([row["loss"] for row in whole.metrics])


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(PipelagError, match="use a multiple of 2 stages and of 2 microbatches"):
        get("1f1b_interleaved").delays(4, 3)
    with pytest.raises(PipelagError, match="an even number of stages and of microbatches, not 3 and 4"):
        get("bidirectional").delays(3, 4)
    with pytest.raises(PipelagError, match="3 workers are more than the 2 that the 4 stages"):
        pipelag.train(
            convolutional(), Noise(), method="1f1b_interleaved", cuts=(1, 2, 4), microbatches=2, steps=2,
            executor="real", workers=3,
        )  # fmt: skip
