"""What a checkpoint tells of rates, loss and data: enough to know another from them, and no more."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pipelag.library.likeness import data_told, loss_told, rates_told, warn_of_others


def factors(rate: Callable[[int], float], total: int) -> list[list[float]]:
    return json.loads(rates_told(rate, total)["rates"])  # type: ignore[no-any-return]


def test_rates_are_told_of_each_of_a_thousand_steps_and_then_of_every_hundredth() -> None:
    assert factors(lambda step: 1.0 if step < 999 else 0.5, 2000) == [[0, 1.0], [999, 0.5]]
    assert factors(lambda step: 1.0 if step < 1250 else 0.5, 2000) == [[0, 1.0], [1300, 0.5]]
    assert factors(lambda step: 1.0 if step < 3 else 0.5, 3) == [[0, 1.0]]
    assert rates_told(lambda step: 1 / 0, 3) == {}


def warned(before: dict[str, str], now: dict[str, str], done: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_others("here", before, now, done)
    return [str(one.message) for one in caught]


def test_only_rates_of_steps_that_are_done_are_compared() -> None:
    plain, halved = (rates_told(lambda step, at=at: 0.5 if at <= step else 1.0, 20) for at in (99, 6))  # type: ignore[misc]
    dipped = rates_told(lambda step: 0.25 if step == 3 else 1.0, 20)
    assert warned(plain, halved, 6) == warned(halved, plain, 6) == []
    for one, other, sentence in (
        (plain, halved, "a rate factor of 1 at step 6, but this one has a factor of 0.5 there"),
        (halved, plain, "a rate factor of 0.5 at step 6, but this one has a factor of 1 there"),
        (halved, dipped, "a rate factor of 1 at step 3, but this one has a factor of 0.25 there"),
    ):
        assert warned(one, other, 7) == [
            f"the checkpoints in here are of a training with {sentence}: the result of continuing belongs to neither"
        ]
    assert warned({}, halved, 7) == []  # an older checkpoint says nothing


def test_an_epochs_length_matters_once_either_training_would_have_begun_again() -> None:
    four, six = ({"minibatches in an epoch": str(length)} for length in (4, 6))
    for before, now in ((four, six), (six, four)):
        assert warned(before, now, 4) == []  # all minibatches so far are the same ones
        assert len(warned(before, now, 5)) == 1
    assert warned(four, four, 9) == []


def scaled(factor: float) -> Callable[..., torch.Tensor]:
    return lambda output, target: factor * (output - target).square().mean()


def test_a_loss_is_told_by_its_settings() -> None:
    def told(loss: Any) -> str:
        return loss_told(loss)["loss"]

    assert told(scaled(1.0)) == told(scaled(1.0)) != told(scaled(2.0))
    losses: list[Any] = [lambda o, t: nn.functional.cross_entropy(o, t), lambda o, t: nn.functional.nll_loss(o, t)]
    assert told(losses[0]) != told(losses[1])  # by the names in them alone
    assert told(nn.CrossEntropyLoss(label_smoothing=0.1)) != told(nn.CrossEntropyLoss())
    assert told(nn.CrossEntropyLoss().eval()) == told(nn.CrossEntropyLoss())
    assert told(nn.functional.cross_entropy) == "cross_entropy"
    assert told(partial(nn.functional.cross_entropy, label_smoothing=0.1)) == "cross_entropy(label_smoothing=0.1)"


@pytest.mark.parametrize("kind", [tuple, dict])
def test_data_are_told_by_what_is_in_their_first_minibatch(kind: Any) -> None:
    def told(*values: torch.Tensor) -> dict[str, str]:
        inputs = tuple(values) if kind is tuple else {str(n): value for n, value in enumerate(values)}
        return data_told(5, (inputs, torch.ones(2)))

    one = told(torch.zeros(2, 3))
    assert one["minibatches in an epoch"] == "5" and "[2, 3] float32, [2] float32 (" in one["a first minibatch"]
    assert one == told(torch.zeros(2, 3)) and one != told(torch.zeros(2, 3) + 1e-6) and one != told(torch.zeros(3, 2))
    assert "minibatches in an epoch" not in data_told(None, (torch.zeros(1), torch.zeros(1)))
