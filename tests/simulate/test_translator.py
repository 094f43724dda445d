"""GNMT trains as a pipeline like other models: without delays, against the naive machine, and with real workers.

This checks that its LSTMs read the weights that they are given, as other layers do.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipelag import data, methods, models
from pipelag.data.text.parallel import Corpus, TextBatches
from pipelag.randomness import seed_stage
from pipelag.runs.text_metrics import token_loss
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from tests.models.translators import METRICS, check_two_workers_learn_what_the_simulator_does, run
from tests.simulate.test_simulated import naive_cycles
from tests.toy import equal, sgd

LAYERS = {"layers": 8, "size": 8}
STEPS = 16


@cache
def phrases() -> Corpus:
    corpus: Corpus = data.load("phrases", train=300, test=10, most=9999)
    return corpus


def translator() -> nn.Sequential:
    sides = {"source_words": len(phrases().source_words), "target_words": len(phrases().target_words)}
    return models.build("gnmt", seed=0, **LAYERS, **sides)


def batches() -> TextBatches:
    return TextBatches(phrases(), 6, seed=2)


def on(device: str, value: Any) -> Any:
    return tuple(on(device, part) for part in value) if isinstance(value, tuple) else value.to(device)


def simulated(method: str, cuts: tuple[int, ...], seed: int = 3, device: str = "cpu") -> nn.Sequential:
    model, phases = translator().to(device), [Phase(methods.get(method), STEPS, cuts)]
    training = SimulatedTraining(model, phases, sgd, token_loss(), seed=seed)
    for t in range(STEPS):
        training.step(*on(device, batches()[t]))
    return training.model


def test_zero_delay_equals_plain_pytorch_bit_for_bit(device: str) -> None:
    plain = translator().to(device)
    optimizer = sgd(plain.parameters())
    for t in range(STEPS):
        inputs, targets = on(device, batches()[t])
        seed_stage(3, t, 1, torch.device(device))
        token_loss()(plain(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    ours = simulated("sequential", (), device=device).state_dict()
    assert equal(ours, plain.state_dict())
    assert not equal(ours, simulated("stale_weights", (5,), device=device).state_dict())


@pytest.mark.parametrize("cuts", [(2,), (5,), (1, 4, 7)])
@pytest.mark.parametrize("stashed", [False, True])
def test_simulated_weights_equal_the_naive_machine(cuts: tuple[int, ...], stashed: bool) -> None:
    """Bit for bit, with dropout of 0.2; unless stashed, every backward reads the weights that are live then."""
    ours = simulated("stale_weights_stashed" if stashed else "stale_weights", cuts)
    naive = naive_cycles(translator(), cuts, batches(), STEPS, 3, stashed, token_loss())
    assert equal(ours.state_dict(), naive.state_dict())


GNMT: dict[str, Any] = {
    "model": {"name": "gnmt", "options": LAYERS},
    "optimizer": {"name": "adam", "lr": 0.005},
}


@pytest.mark.real
def test_two_workers_learn_bit_for_bit_what_the_simulator_does(tmp_path: Path) -> None:
    phases = [{"method": "stale_weights", "steps": 10, "cuts": [5]}]
    check_two_workers_learn_what_the_simulator_does(tmp_path, **GNMT, phases=phases)


def test_a_run_measures_bleu(tmp_path: Path) -> None:
    phases = [{"method": "pipeoptim", "steps": 10, "cuts": [4], "recompute": True}]
    assert run(tmp_path, **GNMT, phases=phases) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["data"]["name"] == "phrases" and summary["phases"][0]["stages"] == 2
    assert set(METRICS) <= summary["final"].keys()
