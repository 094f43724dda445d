"""LSTMs on data sheets: what a few steps tell of many equals what many steps say themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from pipelag import models
from pipelag.timing import unrolled
from pipelag.timing.layers import Profile
from pipelag.timing.roofline import Operator, roofline

STEPS = 9


class States(nn.Module):
    """An LSTM behind a linear layer, and which of its outputs go on."""

    def __init__(self, takes: str = "out", before: bool = True, stride: bool = False, **options: Any) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6) if before else nn.Identity()
        self.takes, self.stride = takes, stride
        self.lstm = nn.LSTM(6, 5, **({"batch_first": True} | options))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        out, (h, c) = self.lstm(x[:, ::2] if self.stride else x)
        return {"out": out, "last": h, "cells": c, "all": torch.cat([t.flatten() for t in (out, h, c)])}[self.takes]


CASES: dict[str, dict[str, Any]] = {
    "one way": {},
    "steps first": {"batch_first": False},
    "both ways": {"bidirectional": True},
    "projected": {"proj_size": 3},
    "two layers, dropout between": {"num_layers": 2, "dropout": 0.2},
    "both ways, two layers, no biases": {"num_layers": 2, "bidirectional": True, "bias": False},
    "the first layer of a network": {"before": False},
    "only the last state": {"takes": "last"},
    "only the last cells": {"takes": "cells"},
    "states and last state": {"takes": "all"},
    "every second step": {"stride": True},
}


def profiled(half: bool = False, **options: Any) -> Profile:
    with torch.device("meta"):
        model = nn.Sequential(States(**options), nn.Identity())
        batch = torch.empty(3, 2 * STEPS if options.get("stride") else STEPS, 6)
        return roofline(model.half() if half else model, batch.half() if half else batch, "v100")


def both(monkeypatch: pytest.MonkeyPatch, make: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Counted from short sequences, and run in full."""
    counted = make()
    monkeypatch.setattr(unrolled, "SHORT", (1000, 1001, 1002))
    return [vars(layer) for layer in counted.layers], [vars(layer) for layer in make().layers]


def same(counted: list[dict[str, Any]], full: list[dict[str, Any]]) -> None:
    assert len(counted) == len(full)
    for ours, theirs in zip(counted, full, strict=True):
        times = ("forward_ms", "backward_ms", "weight_ms")
        assert {k: v for k, v in ours.items() if k not in times} == {k: v for k, v in theirs.items() if k not in times}
        assert [ours[key] for key in times] == pytest.approx([theirs[key] for key in times], rel=1e-12)


@pytest.mark.parametrize(("case", "half"), [*((case, False) for case in CASES), ("both ways", True)])
def test_counting_equals_running_every_step(monkeypatch: pytest.MonkeyPatch, case: str, half: bool) -> None:
    counted, full = both(monkeypatch, lambda: profiled(half, **CASES[case]))
    assert full[0]["forward_ms"] > 0 and full[0]["backward_ms"] > 0 and full[0]["kept_bytes"] > 0
    same(counted, full)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [("gnmt", 2), ("awd_lm", 1), ("residual_lstm", 1)],
)
def test_so_it_does_in_whole_networks(monkeypatch: pytest.MonkeyPatch, name: str, inputs: int) -> None:
    def make() -> Profile:
        with torch.device("meta"):
            model = models.build(name, size=16)
            words = tuple(torch.empty(4, STEPS, dtype=torch.long) for _ in range(inputs))
            return roofline(model, words if inputs > 1 else words[0], "v100")

    same(*both(monkeypatch, make))


def test_no_long_sequence_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    run = unrolled.Call.run

    def noted(call: unrolled.Call) -> Any:
        lengths.append(call.sequence.shape[call.along])
        return run(call)

    monkeypatch.setattr(unrolled.Call, "run", noted)
    with torch.device("meta"):
        model = models.build("residual_lstm", layers=3, size=16, memory=20, words=50)
        first, second = (roofline(model, torch.empty(4, n, dtype=torch.long), "v100") for n in (100_000, 200_000))
    # Of three equal layers the first, which reads another layout, and the second; each also without the weights' part.
    assert lengths == [3, 4, 5] * 8
    for short, long in zip(first.layers[1:-1], second.layers[1:-1], strict=True):
        assert long.forward_ms == pytest.approx(2 * short.forward_ms, rel=1e-3)
        assert long.kept_bytes == pytest.approx(2 * short.kept_bytes, rel=1e-3)


def test_what_does_not_grow_evenly_is_run_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    full = profiled()

    def uneven(call: unrolled.Call, used: Any, wanted: Any, clock: Any) -> unrolled.Cost:
        lengths.append(call.sequence.shape[1])
        cost = traced(call, used, wanted, clock)
        if call.sequence.shape[1] == 4:
            cost.forward[next(iter(cost.forward))] += 1
        return cost

    traced, lengths = unrolled.traced, list[int]()
    monkeypatch.setattr(unrolled, "traced", uneven)
    with pytest.raises(unrolled.Crooked):
        unrolled.at(9, [1, 2, 4])
    assert unrolled.at(9, [1, 2, 3]) == 7
    same([vars(layer) for layer in profiled().layers], [vars(layer) for layer in full.layers])
    assert lengths == [3, 4, 5, STEPS]


def test_operators_keep_their_order_so_that_every_process_sums_alike() -> None:
    run = Counter({Operator(f"aten::{letter}", (), 1, 1): 1 for letter in "abcdefghijkl"})
    assert list(unrolled.operators([run] * 3, STEPS)) == list(run)
