"""Translators trained as pipelines on a small corpus: what the tests of several models share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from pipelag.__main__ import main
from tests.toy import equal

METRICS = ("bleu", "accuracy", "test_loss")


def run(out: Path, **changes: Any) -> int:
    """`pipelag run` of ten steps on the made-up phrases; `changes` name at least the model, optimizer and phases."""
    spec: dict[str, Any] = {
        "data": {"name": "phrases", "options": {"train": 300, "test": 10, "most": 9999}},
        "batch": 6,
        "evaluate_every": 5,
        "options": {"beam": 2, "save_model": True},
    }
    return main(["run", "--spec", json.dumps(spec | changes), "--out", str(out), "--threads", "1"])


def check_two_workers_learn_what_the_simulator_does(out: Path, **changes: Any) -> None:
    """Bit for bit, in weights and in what is measured of them."""
    assert run(out / "simulated", **changes) == 0
    assert run(out / "real", **changes, executor="real", workers=2) == 0
    ours, theirs = (torch.load(out / executor / "model.pt") for executor in ("real", "simulated"))
    assert equal(ours, theirs)
    rows = [[json.loads(line) for line in (out / ran / "metrics.jsonl").open()] for ran in ("real", "simulated")]
    for metric in METRICS:
        assert [row[metric] for row in rows[0]] == [row[metric] for row in rows[1]]
