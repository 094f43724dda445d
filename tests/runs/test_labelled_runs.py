"""Runs that judge texts: simulated with four stages, and real workers that learn the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag.__main__ import main

MODELS: dict[str, dict[str, Any]] = {
    "residual_lstm": {"layers": 4, "size": 8, "memory": 12},
    "sentiment_transformer": {"blocks": 1, "size": 8, "hidden": 12, "heads": 2},
}
CUTS = {"residual_lstm": [2, 3, 4], "sentiment_transformer": [4, 8, 13]}


def run(out: Path, model: str, cuts: list[int], **changes: Any) -> int:
    spec = {
        "model": {"name": model, "options": MODELS[model]},
        "data": {"name": "opinions", "options": {"train": 200, "test": 50, "length": 12}},
        "batch": 8,
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "phases": [{"method": "spectrain", "steps": 14, "cuts": cuts}],
        "evaluate_every": 7,
        "options": {"save_model": True},
    }
    return main(["run", "--spec", json.dumps(spec | changes), "--out", str(out), "--threads", "1"])


@pytest.mark.parametrize("model", MODELS)
def test_spectrain_with_four_stages(tmp_path: Path, model: str) -> None:
    assert run(tmp_path, model, CUTS[model]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["data"]["name"] == "opinions" and summary["data"]["length"] == 12
    assert summary["phases"][0]["stages"] == 4 and max(summary["phases"][0]["forward_delays"]) > 0
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == [7, 14]
    assert all(0 <= row["accuracy"] <= 100 and row["test_loss"] > 0 for row in rows)


@pytest.mark.real
@pytest.mark.parametrize("model", MODELS)
def test_two_workers_learn_bit_for_bit_what_the_simulator_does(tmp_path: Path, model: str) -> None:
    cuts = CUTS[model][1:2]
    assert run(tmp_path / "simulated", model, cuts) == 0
    assert run(tmp_path / "real", model, cuts, executor="real", workers=2) == 0
    ours, theirs = (torch.load(tmp_path / out / "model.pt") for out in ("real", "simulated"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    rows = [[json.loads(line) for line in (tmp_path / out / "metrics.jsonl").open()] for out in ("real", "simulated")]
    for metric in ("accuracy", "test_loss"):
        assert [row[metric] for row in rows[0]] == [row[metric] for row in rows[1]]
