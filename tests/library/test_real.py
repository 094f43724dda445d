"""What is told of real workers is what is told of the simulated ones, while they are at work."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import pipelag
from pipelag.distributed.launch.launch import WorkerFailed
from tests.library.test_telling import HELD_OUT, margin, same, train
from tests.toy import Noise, convolutional, equal

pytestmark = pytest.mark.real


def heard(**how: Any) -> tuple[pipelag.TrainedRun, list[Any]]:
    calls: list[Any] = []
    run = train(
        validation=HELD_OUT, metrics={"margin": margin}, evaluate_every=3,
        on_step=lambda step, loss: calls.append((step, loss)),
        on_evaluation=lambda step, row: calls.append((step, row)),
        **how,
    )  # fmt: skip
    return run, calls


@pytest.mark.parametrize(
    "how",
    [{}, {"method": "pipemare", "cuts": (1, 4)}, {"method": "pipedream", "precision": "bf16"}],
    ids=["2 stages", "3 stages", "bf16"],
)
def test_real_workers_tell_what_simulated_ones_do(how: dict[str, Any], tmp_path: Path) -> None:
    real, calls = heard(executor="real", folder=tmp_path / "real", **how)
    simulated, expected = heard(folder=tmp_path / "simulated", **how)
    assert same(real, simulated) and same(real, train(executor="real", **how))
    assert calls == expected and real.evaluations == simulated.evaluations and len(real.evaluations) == 3
    logs = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("real", "simulated")]
    assert logs[0] == logs[1] and len(logs[0].splitlines()) == 3


@pytest.mark.parametrize(
    "how",
    [
        {"method": "bsp", "cuts": (), "workers": 2},
        {"method": "asp", "cuts": (), "workers": 2},
        {"method": "pipedream", "replicas": (2, 1), "evaluate_every": 2, "steps": 6},
        {"method": "gpipe", "microbatches": 4},
    ],
    ids=lambda how: how["method"],
)
def test_other_workers_tell_all_steps(how: dict[str, Any]) -> None:
    steps: list[int] = []
    losses: list[float] = []

    def note(step: int, loss: float) -> None:
        steps.append(step)
        losses.append(loss)

    run = train(executor="real", validation=HELD_OUT, on_step=note, **({"evaluate_every": 3} | how))
    assert steps == list(range(len(run.metrics))) and losses == [row["loss"] for row in run.metrics]
    last = train(steps=1).model
    last.load_state_dict(run.model.state_dict())
    last.eval()
    images, targets = (torch.cat(parts) for parts in zip(*HELD_OUT, strict=True))
    with torch.no_grad():
        expected = float(torch.nn.functional.cross_entropy(last(images), targets))
    assert run.evaluations[-1]["validation_loss"] == pytest.approx(expected, rel=1e-5)


class Waiting(Noise):
    """Minibatch 6 comes only when the evaluation after 3 steps has been told of."""

    def __init__(self, sign: Path) -> None:
        super().__init__()
        self.sign = sign

    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        end = time.monotonic() + 240
        while t >= 6 and not self.sign.exists():
            assert time.monotonic() < end, "nobody has told of step 3 while the workers were at work"
            time.sleep(0.05)
        return super().__getitem__(t)


def test_evaluations_are_told_while_the_workers_go_on(tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    run = train(
        batches=Waiting(sign), executor="real", validation=HELD_OUT, evaluate_every=3,
        on_evaluation=lambda step, row: sign.touch(), method="sequential", cuts=(), steps=9,
    )  # fmt: skip
    assert len(run.evaluations) == 3


def test_a_callback_that_fails_ends_the_workers() -> None:
    def fails(step: int, loss: float) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(executor="real", steps=2000, evaluate_every=2, on_step=fails)


class Breaking(Noise):
    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        if t == 8:
            raise RuntimeError("Broken")
        return super().__getitem__(t)


def test_after_a_restart_all_is_told_from_the_beginning(tmp_path: Path) -> None:
    how: dict[str, Any] = {"executor": "real", "folder": tmp_path, "checkpoints": tmp_path / "kept", "steps": 10}
    sets: list[Any] = []
    note = lambda step, path: sets.append((step, path.is_dir()))  # noqa: E731
    with pytest.raises(WorkerFailed, match="Broken"):
        heard(batches=Breaking(), **how)
    resumed, calls = heard(model=convolutional(1), on_checkpoint=note, checkpoint_every=5, **how)
    whole, expected = heard(steps=10)
    assert resumed.evaluations == whole.evaluations and same(resumed, whole) and calls == expected
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == len(whole.evaluations)
    assert [step for step, there in sets if there][-2:] == [9, 10] and (3, True) in sets


def test_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = train(executor="real", validation=HELD_OUT, evaluate_every=2)
    assert len(run.evaluations) == 4 and list(tmp_path.iterdir()) == []
    assert equal(run.model.state_dict(), train().model.state_dict())
