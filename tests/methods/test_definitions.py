"""A method that cannot be what its author meant is refused where it is written, not trained as something else."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.methods.reads import Correct, Predict
from pipelag.schedules import Action, Schedule
from pipelag.schedules.library import cycle


def written(**parts: Any) -> Method:
    return Method(**({"name": "own", "summary": "", "source": "", "build": cycle} | parts))


class NoCarry:
    def amounts(self, passes: Any) -> tuple[float, ...]:
        return (1.0,) * len(passes.lags)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: written(backward_reads="stashd"),
            "unknown backward_reads 'stashd' of method 'own'; did you mean 'stash",
        ),
        (
            lambda: written(forward_reads="stashed"),
            "unknown forward_reads 'stashed' of method 'own'; it should be live",
        ),
        (lambda: written(forward_reads=lambda passes: 1), "forward_reads of method 'own' is a function"),
        (lambda: written(backward_reads=NoCarry()), "or have the methods amounts and carry"),
        (lambda: written(update=5), "update of method 'own' is an int; it should have a method change"),
        (lambda: written(workers="dpp"), "unknown workers 'dpp' of method 'own'; did you mean 'ddp'?"),
        (lambda: written(workers=2), "unknown workers '2' of method 'own'; it should be ddp, server, stages or torch"),
        (lambda: written(learning_rate=0.5), "learning_rate of method 'own' is a float; it should be a function"),
        (lambda: written(build="cycle"), "build of method 'own' is a str"),
        (lambda: written(build=None), "build of method 'own' is None"),
        (lambda: written(held=3), "held of method 'own' is an int"),
        (lambda: written(name="two words"), "it should be a single word"),
        (lambda: Predict("velocty"), "unknown direction 'velocty' of a prediction; did you mean 'velocity'"),  # type: ignore[arg-type]
        (lambda: Predict("update", "round tripp"), "unknown horizon 'round tripp' of a prediction"),  # type: ignore[arg-type]
        (lambda: Correct(reading="printd"), "unknown reading 'printd' of a correction"),  # type: ignore[arg-type]
    ],
)
def test_a_part_that_would_be_taken_for_another_is_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        make()


def test_parts_of_ones_own_are_taken() -> None:
    method = written(backward_reads="stashed", forward_reads=Predict("update", lambda stage, stages, lag: lag))
    assert method.weight_copies(3) == (5, 3, 1)


def backward_first(stages: int, minibatches: int) -> Schedule:
    rows = [[Action(k, s, m) for m in range(minibatches) for k in ("B", "F", "U")] for s in range(1, stages + 1)]
    return Schedule("BF", stages, minibatches, tuple(map(tuple, rows)))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [(backward_first, "schedule 'BF' deadlocks"), (lambda stages, minibatches: None, "build returns None")],
)
def test_a_schedule_that_is_none_is_not_trained(build: Any, sentence: str) -> None:
    batches = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))] * 2
    with pytest.raises(PipelagError, match=sentence):
        pipelag.train([nn.Linear(2, 2), nn.Linear(2, 2)], batches, method=written(build=build), cuts=(1,))


def test_a_training_that_diverges_says_so() -> None:
    batches = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))] * 2
    with pytest.warns(UserWarning, match="the loss at step 1 is not a finite number: the training diverged"):
        run = pipelag.train([nn.Linear(2, 2)], batches, loss=Rising(), method="sequential")
    assert run.diverged_at == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pipelag.train([nn.Linear(2, 2)], batches, method="sequential").diverged_at is None


class Rising:
    """A loss that is NaN from the second minibatch on."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(output, target) * (1.0 if self.calls < 2 else float("nan"))


def test_the_page_on_methods_has_a_line_for_each() -> None:
    homes = [module for name, module in sys.modules.items() if name.startswith("pipelag.methods.")]
    ours = {each.name for home in homes for each in vars(home).values() if isinstance(each, Method)}
    page = Path(__file__).resolve().parents[2] / "docs/methods.md"
    named: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", page.read_text(), re.M):
        first, *others = re.findall(r"`(\w+)`", row)
        named |= {first, *(first + each if each.startswith("_") else each for each in others)}
    assert len(ours) > 30
    assert ours <= named, f"docs/methods.md has no line for {', '.join(sorted(ours - named))}: add it to its table"
