"""Recomputation by segments: how old the weights are that it reads, what it leaves unchanged, and what is refused."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from torch import nn

import pipelag
from pipelag.distributed.feasible import check_workers
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.schedules.actions import in_flight
from pipelag.schedules.check import check
from pipelag.stage.phase import Phase
from pipelag.stage.recompute import recompute_lags, segments_of
from pipelag.timing.costs import uniform


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(7)), nn.Linear(6, 3))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(30)]


def trained(
    method: str,
    recompute: bool | int,
    cuts: tuple[int, ...] = tuple(range(1, 8)),
    microbatches: int = 2,
    device: str = "cpu",
) -> torch.Tensor:
    run = pipelag.train(
        model(),
        batches(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        method=method,
        cuts=cuts,
        steps=30,
        microbatches=microbatches,
        recompute=recompute,
        device=device,
    )
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_its_age_lies_between_backward_and_forward(size: int, microbatches: int) -> None:
    method, stages = get("pipemare_naive"), 11
    delays = method.delays(stages, microbatches)
    segments = segments_of(stages, size)
    lags = recompute_lags(method, stages, microbatches, size)
    assert [len(s) for s in segments] == [min(size, stages - first) for first in range(0, stages, size)]
    for stage, (forward, recomputed, backward) in enumerate(
        zip(delays.forward_lags, lags, delays.backward_lags, strict=True), start=1
    ):
        assert all(b <= a <= f for f, a, b in zip(forward, recomputed, backward, strict=True))
        length, j = len(segments[(stage - 1) // size]), (stage - 1) % size + 1
        # Section A.3: recomputed 2(S - j) cycles before the gradient arrives; the last stage "right at the time".
        assert recomputed == tuple(ceil((2 * (length - j) - k) / microbatches) for k in range(microbatches))


@pytest.mark.parametrize("size", [2, 3, 8])
def test_with_stashed_weights_recomputing_changes_nothing(size: int, device: str) -> None:
    recomputed, stored = (trained("pipedream_cycle", recompute, device=device) for recompute in (size, False))
    assert torch.equal(recomputed, stored)


def test_recomputing_with_newer_weights_is_another_gradient() -> None:
    assert not torch.allclose(trained("pipemare_naive", 3), trained("pipemare_naive", False))
    assert not torch.allclose(trained("pipemare_naive", 8), trained("pipemare_naive", False))


def test_t2_corrects_what_the_recomputation_reads() -> None:
    plain, corrected = trained("pipemare_t2", False), trained("pipemare_t2", 3)
    assert not torch.equal(plain, corrected)
    assert (plain - corrected).norm() < (plain - trained("pipemare_naive", 3)).norm()


def test_other_pipelines_are_refused() -> None:
    with pytest.raises(PipelagError, match="defined for PipeMare's pipeline"):
        trained("1f1b", 3)
    with pytest.raises(PipelagError, match="defined for PipeMare's pipeline"):
        check_workers(Phase(get("pipedream"), 4, (4,), recompute=2), 2)


@pytest.mark.parametrize(("stages", "size"), [(4, 2), (5, 2), (7, 3), (6, 6)])
def test_the_schedule_is_possible_and_keeps_what_the_paper_counts(stages: int, size: int) -> None:
    """The schedule can run, and every stage keeps as many activations as appendix A.3 counts.

    These are the inputs of its segment, where it is the first in it, and 2(S-j)+1 activations that wait for a gradient.
    """
    schedule = pipelag.schedule("pipemare", stages=stages, minibatches=4 * stages, segment=size)
    check(schedule)
    assert {action.stage for _, action in schedule if action.kind == "R"} == set(range(1, stages + 1))
    peaks = pipelag.time(schedule, uniform(stages, kept_bytes=1.0, entering_bytes=0.25)).peak_memory
    for worker, (row, peak) in enumerate(zip(schedule.workers, peaks, strict=True)):
        held = in_flight(row, "R")
        inputs = 0.25 * (in_flight(row) - held) if schedule.heads(worker + 1) else 0.0
        assert held - 1 <= peak <= held + inputs + 0.25
