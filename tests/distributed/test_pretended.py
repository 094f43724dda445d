"""What a worker does on a GPU, on one that is pretended (`tests.pretended`)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pipelag.distributed.workers.pipeline import PipelineWorker
from pipelag.methods import get
from tests.pretended import CPU, CUDA, pretended


@pytest.mark.parametrize("outside", [CPU, CUDA])
def test_what_tells_which_gradients_there_are_is_sent_without_waiting(outside: torch.device) -> None:
    """It begins where messages lie, of workers that share a GPU in the CPU's memory."""
    sent: list[tuple[torch.Tensor, ...]] = []
    worker = PipelineWorker.__new__(PipelineWorker)
    worker.__dict__ |= {
        "job": SimpleNamespace(rank=1, device=CUDA, outside=outside),
        "schedule": get("stale_weights").schedule(2, 3),
        "assignment": SimpleNamespace(phase=SimpleNamespace(microbatches=1)),
        "outgoing": {("B", 2, 0): SimpleNamespace(metas=[], send=lambda message, what: sent.append(message))},
        "start": 0,
    }
    with pretended() as waits:
        inputs = tuple(torch.ones(2, device="cuda").requires_grad_() for _ in range(2))
        worker.send_back(2, 0, (torch.ones(2, device="cuda"), None), inputs)
        assert not waits
        (message,) = sent
        assert message[-1].device == outside
        assert message[-1].tolist() == [1, 0]
