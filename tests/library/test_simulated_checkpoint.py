"""A simulated training that is broken off goes on from its checkpoint as if it had not been, or says why not."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pipelag
from pipelag.checkpoint import before
from pipelag.errors import PipelagError
from pipelag.library.simulated_checkpoint import NAME
from tests.toy import Noise, convolutional, equal, sgd

STEPS = 11


def faster(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.2, momentum=0.9, weight_decay=1e-3)


class Broken(Exception):
    """What ends a training in its midst."""


class Recorder:
    """Callbacks that write down what they were called with; the training breaks off at one step."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.steps, self.evaluations = at, list[tuple[int, float]](), list[tuple[int, dict[str, float]]]()

    def step(self, step: int, loss: float) -> None:
        self.steps.append((step, loss))
        if step == self.at:
            raise Broken

    def evaluation(self, step: int, row: dict[str, float]) -> None:
        self.evaluations.append((step, row))


class Drawing:
    """By number, with the caller's random numbers."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        if step >= 20:
            raise IndexError
        images, targets = Noise()[step]
        return images + torch.randn(images.shape), targets


class Walked:
    """The same in order."""

    def __iter__(self) -> Iterator[Any]:
        yield from (Drawing()[step] for step in range(20))


def loader() -> Any:
    parts = [Noise()[step] for step in range(6)]
    images, targets = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    return DataLoader(TensorDataset(images, targets), batch_size=8, shuffle=True)


HYBRID = [
    pipelag.Phase(pipelag.methods.get("pipedream"), 5, (3,)),
    pipelag.Phase(pipelag.methods.get("sequential"), STEPS - 5, (3,)),
]


def train(recorder: Recorder | None = None, batches: Any = None, start: int = 0, **how: Any) -> pipelag.TrainedRun:
    """start: the seed of the first weights; another one than before, for what goes on has those of its checkpoint."""
    model = convolutional(start)
    torch.manual_seed(8)
    random.seed(8)
    calls = {} if recorder is None else {"on_step": recorder.step, "on_evaluation": recorder.evaluation}
    usual = {} if "phases" in how else {"method": "pipemare", "cuts": (1, 3), "steps": STEPS}
    arguments = (
        usual | {"optimizer": sgd, "seed": 5, "validation": [Noise(seed=9)[0]], "evaluate_every": 3} | calls | how
    )
    return pipelag.train(model, batches if batches is not None else Noise(), **arguments)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"method": "xpipe", "optimizer": "adamw", "lr": 1e-3, "precision": "bf16"},
        {"phases": HYBRID},
        {"batches": Drawing()},
        {"batches": Walked()},
        {"epochs": 3, "batches": "loader", "method": "1f1b", "steps": None},
    ],
    ids=["as it is", "bf16", "phases", "drawn by number", "drawn in order", "a loader"],
)
def test_what_is_broken_off_goes_on_as_if_it_had_not_been(how: dict[str, Any], tmp_path: Path) -> None:
    def run(recorder: Recorder, **more: Any) -> pipelag.TrainedRun:
        return train(recorder, **how | ({"batches": loader()} if how.get("batches") == "loader" else {}) | more)

    whole = Recorder()
    unbroken = run(whole)
    left = torch.rand(1)
    with pytest.raises(Broken):
        run(Recorder(at=8), checkpoints=tmp_path, checkpoint_every=2, folder=tmp_path)
    recorded = Recorder()
    resumed = run(recorded, start=1, checkpoints=tmp_path, checkpoint_every=2, folder=tmp_path)
    assert equal(resumed.model.state_dict(), unbroken.model.state_dict())
    assert (resumed.metrics, resumed.evaluations) == (unbroken.metrics, unbroken.evaluations)
    assert (recorded.steps, recorded.evaluations) == (whole.steps, whole.evaluations)
    assert torch.equal(torch.rand(1), left)  # the caller's random numbers are where they would be
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == len(unbroken.evaluations)


def test_a_damaged_checkpoint_is_set_aside(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    unbroken, seen = train(), list[tuple[int, str]]()
    with pytest.raises(Broken):
        train(
            Recorder(at=8),
            checkpoints=tmp_path,
            checkpoint_every=2,
            on_checkpoint=lambda step, path: seen.append((step, path.name)),
        )
    assert seen == [(step, NAME) for step in (2, 3, 4, 6, 8)]  # at evaluations, too
    whole = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(whole[: len(whole) // 2])
    resumed = train(start=1, checkpoints=tmp_path)  # from the one before
    assert "is damaged and was set aside" in capfd.readouterr().err
    assert resumed.metrics == unbroken.metrics and equal(resumed.model.state_dict(), unbroken.model.state_dict())


def test_a_finished_training_is_told_again_or_goes_on_longer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    short, long = train(steps=6, checkpoints=tmp_path), train()
    second = train(start=1, steps=6, checkpoints=tmp_path)
    assert second.metrics == short.metrics and second.evaluations == short.evaluations
    assert f"{tmp_path / NAME} holds all 6 steps already; there was nothing left to train" in capfd.readouterr().err
    longer = train(start=1, checkpoints=tmp_path)
    assert longer.metrics == long.metrics and longer.evaluations == long.evaluations
    assert equal(longer.model.state_dict(), long.model.state_dict())


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (
            {"method": "1f1b"},
            "is of a training with method pipemare, but this one has method 1f1b: the simulated executor",
        ),
        ({"cuts": (2,)}, r"with cuts \[1, 3\], but this one has cuts \[2\]"),
        ({"seed": 6}, "with seed 5, but this one has seed 6"),
        ({"precision": "bf16"}, "with precision fp32, but this one has precision bf16"),
        ({"optimizer": "adam", "lr": 0.1}, "with optimizer SGD, but this one has optimizer Adam"),
        (
            {"optimizer": faster},
            "with groups of the optimizer base_lr=0.05, but this one has groups of the optimizer base_lr=0.2:",
        ),
        ({"stage_lr": {2: 0.5}}, "with groups of the optimizer .*base_lr=0.05.*, but this one has .*base_lr=0.5"),
        ({"method": pipelag.methods.get("pipemare", decay=0.3)}, "with the method's settings .*decay=0.1.*decay=0.3"),
        ({"method": pipelag.methods.get("pipemare", annealing=3)}, "with the method's settings .*rates"),
        ({"steps": 5}, "is of step 6, but this training has only 5 steps; train more steps, or delete it"),
        (
            {"executor": "real"},
            "holds a checkpoint of the simulated executor; use executor='simulated', or name another",
        ),
    ],
)
def test_another_training_does_not_go_on(how: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    train(steps=6, checkpoints=tmp_path)
    checkpoint = (tmp_path / NAME).read_bytes()
    with pytest.raises(PipelagError, match=sentence):
        train(checkpoints=tmp_path, **how)
    assert (tmp_path / NAME).read_bytes() == checkpoint


def test_the_last_of_a_methods_settings_is_told_without_what_is_around_it(tmp_path: Path) -> None:
    """The brackets of the read or update that has it were told as a part of it."""
    damped = {"method": "dc_asgd", "checkpoints": tmp_path}
    train(steps=6, **damped)
    sentence = "with the method's settings strength=0.04, but this one has the method's settings strength=0.1: the sim"
    with pytest.raises(PipelagError, match=sentence):
        train(**(damped | {"method": pipelag.methods.get("dc_asgd", strength=0.1)}))


def squared(output: Any, targets: torch.Tensor) -> torch.Tensor:
    return (output - nn.functional.one_hot(targets, output.shape[1])).square().mean()


def halved(after: int) -> Any:
    return lambda step: 1.0 if step < after else 0.5


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (
            {"rate": halved(3)},
            "with a rate factor of 1 at step 3, but this one has a factor of 0.5 there: the result of continuing",
        ),
        ({"loss": squared}, "with loss cross_entropy, but this one has loss squared"),
        (
            {"batches": Noise(seed=9)},
            r"a first minibatch \[8, 3, 8, 8\] float32, .*, but this one has a first minibatch",
        ),
    ],
    ids=["rates", "loss", "data"],
)
def test_another_loss_rate_or_data_is_told(how: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    train(steps=6, checkpoints=tmp_path)
    with pytest.warns(UserWarning, match=sentence):
        train(checkpoints=tmp_path, **how)


@pytest.mark.parametrize("batches", [Drawing, Walked], ids=["by number", "in order"])
def test_the_same_training_goes_on_without_a_word(batches: Any, tmp_path: Path) -> None:
    """Also a longer one, at another rate from here on."""
    how: dict[str, Any] = {"batches": batches(), "loss": lambda output, targets: 2 * squared(output, targets)}
    with warnings.catch_warnings():  # not a mark: that would fail for a file that an earlier test has left open
        warnings.simplefilter("error")
        train(steps=6, checkpoints=tmp_path, **how)
        train(steps=8, checkpoints=tmp_path, rate=halved(6), **how)
        train(steps=11, checkpoints=tmp_path, rate=halved(6), **how)


def test_shorter_epochs_are_told_where_they_have_counted(tmp_path: Path) -> None:
    minibatches = [Noise()[step] for step in range(8)]
    train(batches=minibatches[:5], steps=4, checkpoints=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(batches=minibatches, steps=5, checkpoints=tmp_path)
        train(batches=minibatches, steps=7, checkpoints=tmp_path)
    with pytest.warns(UserWarning, match="minibatches in an epoch 8, but this one has minibatches in an epoch 6"):
        train(batches=minibatches[:6], epochs=2, steps=None, checkpoints=tmp_path)


def test_other_models_and_real_workers_folders_are_refused(tmp_path: Path) -> None:
    train(steps=6, checkpoints=tmp_path)
    other = nn.Sequential(*list(convolutional())[:-1], nn.Linear(16, 5))
    with pytest.raises(PipelagError, match="is of another model; continue with that model, or delete it"):
        pipelag.train(other, Noise(), steps=6, checkpoints=tmp_path)
    real = tmp_path / "real" / "step-000000003"
    real.mkdir(parents=True)
    (real / "stage-1-of-1.pt").write_bytes(b"")
    with pytest.raises(PipelagError, match="holds checkpoints of real workers; use executor='real', or name another"):
        train(checkpoints=real.parent)


def test_phases_before_are_compared_too(tmp_path: Path) -> None:
    train(phases=HYBRID, checkpoints=tmp_path)
    other = [pipelag.Phase(pipelag.methods.get("pipedream"), 4, (3,)), *HYBRID[1:]]
    with pytest.raises(PipelagError, match="of step 11, in phase 2, but this training is in another phase"):
        train(phases=[*other, HYBRID[1]], checkpoints=tmp_path)
    longer = [other[0], pipelag.Phase(HYBRID[1].method, 9, (3,))]
    with pytest.raises(PipelagError, match="with steps 5, but this one has steps 4"):
        train(phases=longer, checkpoints=tmp_path)


def test_numpys_numbers_are_kept_as_pythons(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "rate": lambda step: 0.5 * (1 + np.cos(np.pi * step / 40)),
        "optimizer": lambda groups: torch.optim.SGD(groups, lr=np.float64(0.05), weight_decay=np.float64(1e-3)),
        "metrics": {"mine": lambda output, targets: np.float32(output.mean())},
    }
    unbroken = train(**how)
    with pytest.raises(Broken):
        train(Recorder(at=8), checkpoints=tmp_path, **how)
    resumed = train(start=1, checkpoints=tmp_path, **how)
    assert resumed.metrics == unbroken.metrics and resumed.evaluations == unbroken.evaluations


def test_what_a_checkpoint_cannot_keep_is_refused_before_the_first_step(tmp_path: Path) -> None:
    def named(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([group | {"schedule": lambda step: step} for group in groups], lr=0.1)

    recorder = Recorder()
    with pytest.raises(PipelagError, match="the training's state, .* holds a function, which a checkpoint cannot hold"):
        train(recorder, optimizer=named, checkpoints=tmp_path)
    assert not recorder.steps


def test_a_stop_while_told_again_gives_what_the_checkpoint_holds(tmp_path: Path) -> None:
    whole = train(steps=8, checkpoints=tmp_path)

    def stop(step: int, loss: float) -> None:
        if step == 3:
            raise pipelag.Stop

    stopped = train(start=1, checkpoints=tmp_path, on_step=stop)
    assert stopped.metrics == whole.metrics and equal(stopped.model.state_dict(), whole.model.state_dict())
    assert [row["step"] for row in stopped.evaluations] == [3, 6]


def test_what_was_measured_is_told_again_at_the_steps_that_are_asked_for_now(tmp_path: Path) -> None:
    """Of a training measured after 3 and 6 steps, by one that measures after every second."""
    train(steps=6, checkpoints=tmp_path)
    how: dict[str, Any] = {"start": 1, "steps": 6, "evaluate_every": 2, "checkpoints": tmp_path}

    def stop(step: int, loss: float) -> None:
        raise pipelag.Stop

    assert [row["step"] for row in train(**how, on_step=stop).evaluations] == [6]
    assert [row["step"] for row in train(**(how | {"steps": 8})).evaluations] == [6, 8]


def test_the_checkpoint_before_is_one_of_the_simulated_executor_too(tmp_path: Path) -> None:
    train(steps=3, checkpoints=tmp_path)
    before(tmp_path / NAME).write_bytes((tmp_path / NAME).read_bytes())
    (tmp_path / NAME).unlink()
    with pytest.raises(PipelagError, match="holds a checkpoint of the simulated executor; use executor='simulated'"):
        train(checkpoints=tmp_path, executor="real")


def test_one_that_broke_off_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    unbroken = train()
    with pytest.raises(Broken):
        train(Recorder(at=1), checkpoints=tmp_path, folder=tmp_path)
    resumed = train(checkpoints=tmp_path, folder=tmp_path)
    assert resumed.metrics == unbroken.metrics
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == len(unbroken.evaluations)


class Counting(nn.Module):
    """A buffer that a model's state leaves out, and state that is no tensor."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += self.training
        return x * (1 + self.seen / 10)

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 2}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 2}


def test_buffers_that_a_models_state_leaves_out_are_kept(tmp_path: Path) -> None:
    def run(recorder: Recorder | None = None, start: int = 0, **how: Any) -> pipelag.TrainedRun:
        calls = {"on_step": recorder.step} if recorder is not None else {}
        model = [*convolutional(start), Counting()]
        return pipelag.train(model, Noise(), cuts=(3,), steps=9, optimizer=sgd, evaluate_every=2, **calls, **how)

    unbroken = run()
    with pytest.raises(Broken):
        run(Recorder(at=6), checkpoints=tmp_path)
    assert run(start=1, checkpoints=tmp_path).metrics == unbroken.metrics


class Masked(nn.Module):
    """Has a buffer that is not part of its state, as tables of positions and masks often are not."""

    def __init__(self, size: int) -> None:
        super().__init__()
        if size:
            self.register_buffer("mask", torch.ones(size), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * getattr(self, "mask", torch.ones(1))[:1]


def test_buffers_outside_a_models_state_may_be_new_but_not_of_another_shape(tmp_path: Path) -> None:
    def run(steps: int, size: int, folder: Path | None = tmp_path) -> pipelag.TrainedRun:
        model = [*convolutional(), Masked(size)]
        return pipelag.train(model, Noise(), cuts=(3,), steps=steps, optimizer=sgd, checkpoints=folder)

    run(3, 0)
    assert run(5, 2).metrics == run(5, 2, None).metrics
    with pytest.raises(PipelagError, match="is of another model; continue with that model, or delete it"):
        run(7, 3)
