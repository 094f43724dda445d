"""What a user's script registers is there on real workers; what data without a length are told about epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import pipelag
from pipelag.errors import PipelagError
from pipelag.methods import prediction


def trained(executor: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    batches = [(x, (x.sum(1) > 0).long()) for x in torch.randn(8, 16, 8)]
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many as a worker has: the order of sums goes by them
    try:
        make = lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.9)  # noqa: E731
        pipelag.train(model, batches, method="pipeoptim", cuts=(1,), executor=executor, optimizer=make)
    finally:
        torch.set_num_threads(threads)
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.real
def test_a_prediction_rule_of_a_script_reaches_real_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "RULES", dict(prediction.RULES))

    def step(state: Any, group: Any) -> Any:
        buffer = state.get("momentum_buffer")
        return None if buffer is None else buffer * group["lr"]

    prediction.prediction_rule(torch.optim.RMSprop)(step)
    assert [rule for _, rule, _ in prediction.rules_of_users()] == [step]
    assert all(map(torch.equal, trained("simulated"), trained("real")))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for x in torch.randn(40, 8):
            yield x, (x.sum() > 0).long()


def test_epochs_of_data_without_a_length_are_refused_with_the_reason() -> None:
    loader, model = DataLoader(Stream(), batch_size=8), torch.nn.Sequential(torch.nn.Linear(8, 2))
    with pytest.raises(PipelagError, match=r"epochs=\.\.\. needs batches with a length"):
        pipelag.train(model, loader, method="sequential", epochs=2)
    with pytest.raises(PipelagError, match="there were only 5; train fewer steps, or give a list or a loader with a"):
        pipelag.train(model, loader, method="sequential", steps=30)


def test_a_method_that_changes_gradients_says_why_it_takes_no_microbatches() -> None:
    with pytest.raises(PipelagError, match="changes the gradient of a whole minibatch"):
        pipelag.methods.get("dc_asgd").delays(2, 2)
