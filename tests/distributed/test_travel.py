"""What travels to workers: each storage once, no minibatch that nobody asks for, and a name for what cannot."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.distributed.launch.travel import pickled
from pipelag.errors import PipelagError
from pipelag.library import real
from tests.toy import Noise, convolutional


def test_views_of_one_storage_take_its_room_once() -> None:
    whole = torch.randn(64, 16, 32)
    views = list(whole)
    text = pickled({"views": views, "half": whole[:, :8], "bits": whole.view(torch.int32)})
    assert len(text) < 1.5 * whole.untyped_storage().nbytes()  # each view by itself: 66 times
    arrived = pickle.loads(text)
    assert all(torch.equal(a, b) for a, b in zip(arrived["views"], views, strict=True))
    assert torch.equal(arrived["half"], whole[:, :8]) and torch.equal(arrived["bits"], whole.view(torch.int32))
    assert (
        len({each.untyped_storage().data_ptr() for each in (*arrived["views"], arrived["half"], arrived["bits"])}) == 1
    )


def test_tied_weights_and_functions_travel_as_ever() -> None:
    layer, bias = nn.Linear(3, 3), torch.ones(2)
    layer.tied = layer.weight
    arrived, function = pickle.loads(pickled((layer, lambda: bias)))
    assert (
        arrived.tied is arrived.weight and torch.equal(arrived.weight, layer.weight) and torch.equal(function(), bias)
    )


def test_minibatches_that_nobody_asks_for_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sent(Exception):
        pass

    def launch(*words: Any, batches: Any, **how: Any) -> None:
        sent.append(batches)
        raise Sent

    sent: list[Any] = []
    monkeypatch.setattr(real, "launch", launch)
    batches = [Noise()[t] for t in range(9)]
    for supplied, steps, epochs in ((batches, 4, None), (tuple(batches), 4, None), (batches, None, 2)):
        with pytest.raises(Sent):
            pipelag.train(convolutional(), supplied, steps=steps, epochs=epochs, cuts=(3,), executor="real")
    assert [len(supply.batches) for supply in sent] == [4, 4, 9]
    assert torch.equal(sent[0][3][0], batches[3][0]) and torch.equal(sent[2][11][0], batches[2][0])


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def holding(lock: Any) -> Any:
    return lambda *arguments: lock and nn.functional.cross_entropy(*arguments)


def taking(lock: Any) -> Any:
    return lambda pair: lock and pair


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ({"model": [*convolutional()[:5], Locked(), convolutional()[5]]}, r"layer 6 of the model \(Locked\)"),
        ({"loss": holding(threading.Lock())}, "loss"),
        ({"rate": holding(threading.Lock())}, "rate"),
        ({"unpack": taking(threading.Lock())}, "unpack"),
    ],
    ids=["layer", "loss", "rate", "unpack"],
)
def test_what_cannot_travel_is_named(how: dict[str, Any], name: str) -> None:
    how = {"model": convolutional(), "batches": [Noise()[0]], "cuts": (3,), "executor": "real"} | how
    sentence = f"^{name} cannot be sent to worker processes: cannot pickle .*lock.*; it should hold nothing of one"
    with pytest.raises(PipelagError, match=sentence):
        pipelag.train(**how)
