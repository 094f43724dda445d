"""Runs whose minibatches are counted in tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag.__main__ import main

SPEC: dict[str, Any] = {
    "model": {"name": "transformer", "options": {"blocks": 1, "size": 16, "hidden": 16, "heads": 2, "dropout": 0.0}},
    "data": {"name": "phrases", "options": {"train": 200, "test": 20}},
    "batch": 4,
    "optimizer": {"name": "sgd", "lr": 0.1},
    "options": {"tokens": 160, "label_smoothing": 0.1, "beam": 2, "save_model": True},
}


def run(out: Path, microbatches: int = 1, **changes: Any) -> int:
    phases = [{"method": "gpipe", "steps": 12, "cuts": [5, 9], "microbatches": microbatches}]
    return main(["run", "--spec", json.dumps(SPEC | {"phases": phases} | changes), "--out", str(out), "--threads", "1"])


def test_microbatches_make_no_difference_to_a_synchronous_run(tmp_path: Path) -> None:
    """Gradients are the mean over the minibatch's words, however they are spread over the microbatches."""
    for microbatches in (1, 2, 4):
        assert run(tmp_path / str(microbatches), microbatches) == 0
    whole, *parted = (torch.load(tmp_path / str(n) / "model.pt") for n in (1, 2, 4))
    for other in parted:
        for name, value in whole.items():
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6)
    summary = json.loads((tmp_path / "4" / "summary.json").read_text())
    assert summary["data"]["minibatches"] > 5 and "bleu" in summary["final"]
    assert summary["data"]["words_per_minibatch"] <= 160 and summary["data"]["left_over"] < 4


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tokens": 12}, "the longest training sentence of 'phrases' has"),
        ({"tokens": "4096"}, "option 'tokens' of a train run is '4096'; it should be a whole number"),
        ({"tokens": 0}, "option 'tokens' of a train run is 0; it should be 1 or more"),
    ],
)
def test_bad_limits_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], complaint: str
) -> None:
    assert run(tmp_path, options=options) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.real
@pytest.mark.parametrize("options", [{"tokens": 160}, {}], ids=["tokens", "sentences"])
def test_real_workers_take_minibatches_of_uneven_shapes(tmp_path: Path, options: dict[str, Any]) -> None:
    """Sentences differ in length: three workers learn bit for bit what the simulator does, dropout included."""
    model = SPEC["model"] | {"options": SPEC["model"]["options"] | {"dropout": 0.1}}
    phases = [
        {"method": "gpipe", "steps": 6, "cuts": [5, 9], "microbatches": 2},
        {"method": "pipemare", "steps": 10, "cuts": [5, 9], "microbatches": 2},
    ]
    changes = {"model": model, "phases": phases, "options": SPEC["options"] | options, "evaluate_every": 8}
    if not options:
        changes["options"] = {key: value for key, value in SPEC["options"].items() if key != "tokens"}
    assert run(tmp_path / "simulated", **changes) == 0
    assert run(tmp_path / "real", **changes, executor="real", workers=3) == 0
    ours, theirs = (torch.load(tmp_path / out / "model.pt") for out in ("real", "simulated"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    rows = [[json.loads(line) for line in (tmp_path / out / "metrics.jsonl").open()] for out in ("real", "simulated")]
    assert [row["bleu"] for row in rows[0]] == [row["bleu"] for row in rows[1]]
    assert [row["loss"] for row in rows[0]] == pytest.approx([row["loss"] for row in rows[1]])
