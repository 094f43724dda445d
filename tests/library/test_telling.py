"""What a training tells meanwhile: right, and without a trace in the training itself."""

from __future__ import annotations

import copy
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pipelag
from pipelag.errors import PipelagError
from pipelag.library.validation import Validation, accuracy
from tests.toy import Counted, Noise, convolutional, equal, sgd

HELD_OUT = [Noise(seed=9)[t] for t in range(3)]
HELD_OUT[2] = tuple(part[:3] for part in HELD_OUT[2])  # a smaller last minibatch, which weighs less


def train(model: nn.Sequential | None = None, batches: Any = None, **how: Any) -> pipelag.TrainedRun:
    how = {"method": "stale_weights", "cuts": (3,), "steps": 7, "optimizer": sgd, "seed": 5} | how
    return pipelag.train(model or convolutional(), batches or Noise(), **how)


def same(one: pipelag.TrainedRun, other: pipelag.TrainedRun) -> bool:
    return equal(one.model.state_dict(), other.model.state_dict()) and one.metrics == other.metrics


def margin(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One number for a minibatch."""
    return output.gather(1, targets[:, None]).mean()


class Restless:
    """Validation data that draw from every generator, as random crops do."""

    def __iter__(self) -> Iterator[Any]:
        for images, targets in HELD_OUT:
            random.random(), numpy.random.rand()
            yield images + 0.1 * torch.randn(images.shape), targets


class Drawing:
    """Training data that draw from every generator."""

    def __iter__(self) -> Iterator[Any]:
        for t in range(7):
            images, targets = Noise()[t]
            yield images + torch.randn(1) + random.random() + float(numpy.random.rand()), targets


def seeded() -> Drawing:
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    return Drawing()


@pytest.mark.parametrize("method", ["stale_weights", "pipemare", "spectrain", "pipedream"])
def test_what_is_told_changes_nothing_to_the_bit(method: str, tmp_path: Path) -> None:
    plain = train(batches=seeded(), method=method)
    after = torch.rand(2), random.random(), numpy.random.rand()
    observed = train(
        batches=seeded(), method=method, validation=Restless(), metrics=["accuracy"], evaluate_every=2,
        folder=tmp_path, on_step=lambda step, loss: torch.rand(3), on_evaluation=lambda step, row: torch.rand(3),
        progress=True,
    )  # fmt: skip
    assert same(plain, observed) and len(observed.evaluations) == 4 and plain.evaluations == []
    assert torch.equal(after[0], torch.rand(2)) and after[1:] == (random.random(), numpy.random.rand())


def test_evaluations_are_those_of_the_model_at_that_step(tmp_path: Path) -> None:
    """Against a training that ends there, its model measured by hand over all samples at once."""
    how: dict[str, Any] = {"validation": HELD_OUT, "metrics": {"margin": margin}, "evaluate_every": 3}
    run = train(folder=tmp_path, **how)
    assert [row["step"] for row in run.evaluations] == [3, 6, 7]
    images, targets = (torch.cat(parts) for parts in zip(*HELD_OUT, strict=True))
    for row in run.evaluations:
        model = train(steps=row["step"]).model.eval()
        with torch.no_grad():
            output = model(images)
        assert row["validation_loss"] == pytest.approx(float(nn.functional.cross_entropy(output, targets)), rel=1e-5)
        assert row["margin"] == pytest.approx(float(margin(output, targets)), rel=1e-5)
    losses = [row["loss"] for row in run.metrics]
    assert run.evaluations[1]["loss"] == sum(losses[3:6]) / 3 and run.evaluations[2]["loss"] == losses[6]
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == run.evaluations
    assert run.model.training
    with pytest.raises(pipelag.PipelagError, match="metrics.jsonl' holds the metrics of another training"):
        train(folder=tmp_path)


def test_a_log_holds_no_nan_which_json_has_not(tmp_path: Path) -> None:
    run = train(folder=tmp_path, validation=HELD_OUT, metrics={"mine": lambda output, targets: float("nan")})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["mine"] is None and "NaN" not in line
    assert run.evaluations[0]["mine"] != run.evaluations[0]["mine"]


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    with pytest.raises(pipelag.PipelagError, match=r"metrics.jsonl' cannot be written \(No such file or directory\)"):
        train(folder=folder, on_step=lambda step, loss: shutil.rmtree(folder, ignore_errors=True))
    (tmp_path / "file").write_text("")
    with pytest.raises(pipelag.PipelagError, match="cannot be used as a folder to write to"):
        train(folder=tmp_path / "file")


def test_accuracy_is_in_percent_and_epochs_are_counted() -> None:
    x = torch.eye(4)
    data = DataLoader(TensorDataset(x, torch.tensor([0, 1, 2, 0])), batch_size=2)
    still = nn.Sequential(nn.Linear(4, 4, bias=False))
    nn.init.eye_(still[0].weight)
    run = pipelag.train(
        still, data, optimizer=torch.optim.SGD, lr=1e-9, method="sequential", epochs=2, validation=data,
        metrics=["accuracy"], evaluate_every=1,
    )  # fmt: skip
    assert [row["accuracy"] for row in run.evaluations] == [75.0] * 4
    assert [row["epoch"] for row in run.evaluations] == [0.5, 1.0, 1.5, 2.0]
    with pytest.raises(pipelag.PipelagError, match=r"accuracy needs targets of shape \[2\]"):
        pipelag.train(still, data, validation=[(x[:2], x[:2])], metrics=["accuracy"], loss=nn.functional.mse_loss)


def test_a_metric_may_be_of_every_word_of_a_sentence() -> None:
    """Two sentences of three words, then one: of nine words six are right, whatever the minibatches."""
    from pipelag.library.supply import Supply

    words = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 1, 1]])
    said = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 1, 1]])  # 3 of 6, then 3 of 3
    outputs = 9.0 * nn.functional.one_hot(said, 3).transpose(1, 2)
    batches = [(outputs[:2], words[:2]), (outputs[2:], words[2:])]
    measured = Validation(Supply(batches), nn.functional.cross_entropy, {"accuracy": accuracy}, 0)
    row = measured.measure(nn.Sequential(nn.Identity()), torch.device("cpu"))
    assert row["accuracy"] == pytest.approx(100 * 6 / 9)


def test_callbacks_hear_of_every_step_in_order() -> None:
    heard: list[Any] = []
    run = train(
        validation=HELD_OUT, evaluate_every=4, on_step=lambda step, loss: heard.append((step, loss)),
        on_evaluation=lambda step, row: (heard.append((step, dict(row))), row.clear()),
    )  # fmt: skip
    steps = [(row["step"], row["loss"]) for row in run.metrics]
    first, last = run.evaluations
    assert heard == [*steps[:4], (4, first), *steps[4:], (7, last)]


def test_what_validation_draws_is_the_same_at_every_evaluation() -> None:
    """Of a model that stands still."""
    torch.manual_seed(0)
    still = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    run = train(
        still,
        cuts=(),
        method="sequential",
        optimizer=torch.optim.SGD,
        lr=1e-30,
        validation=Restless(),
        evaluate_every=2,
    )
    losses = [row["validation_loss"] for row in run.evaluations]
    assert len(losses) == 4 and len(set(losses)) == 1
    other = train(
        still, cuts=(), method="sequential", optimizer=torch.optim.SGD, lr=1e-30, validation=Restless(), seed=6
    )
    assert other.evaluations[0]["validation_loss"] != losses[0]


def test_a_mistake_in_a_metric_is_found_before_the_first_step() -> None:
    steps: list[int] = []

    def wrong(output: torch.Tensor, targets: torch.Tensor) -> float:
        raise KeyError("mine")

    model = convolutional()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KeyError, match="mine"):
        train(model, validation=HELD_OUT, metrics={"m": wrong}, on_step=lambda step, loss: steps.append(step))
    assert steps == [] and equal(model.state_dict(), before)


def test_measuring_leaves_modes_as_they_were() -> None:
    model = convolutional()
    model[0].eval()
    seen: list[bool] = []

    def look(output: Any, targets: Any) -> float:
        seen.extend(module.training for module in model.modules())
        return 0.0

    from pipelag.library.supply import Supply

    measured = Validation(Supply(HELD_OUT), nn.functional.cross_entropy, {"look": look}, 0)
    measured.measure(model, torch.device("cpu"))
    assert not any(seen) and model.training and model[1].training and not model[0].training


def test_measuring_leaves_statistics_as_they_were() -> None:
    from pipelag.library.supply import Supply

    model = nn.Sequential(Counted(), nn.Flatten(), nn.Linear(192, 4))
    Validation(Supply(HELD_OUT), nn.functional.cross_entropy, {}, 0).measure(model, torch.device("cpu"))
    assert float(model[0].calls) == 0.0  # type: ignore[arg-type]


def test_a_bar_is_shown_on_demand_and_on_a_terminal_alone(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train()
    assert capfd.readouterr().err == ""
    train(progress=True, validation=HELD_OUT)
    printed = capfd.readouterr().err
    assert "7/7" in printed and "validation_loss=" in printed
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    train()
    assert "7/7" in capfd.readouterr().err
    train(progress=False)
    assert capfd.readouterr().err == ""


def test_without_its_package_tensorboard_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith(("torch.utils.tensorboard", "tensorboard."))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        pipelag.PipelagError, match="needs the package tensorboard, which is not installed; pip install"
    ):
        train(tensorboard=tmp_path)


def test_tensorboard_gets_losses_and_evaluations(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(tensorboard=tmp_path, validation=HELD_OUT, metrics=[margin], evaluate_every=4)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    for name, key in (("validation_loss", "validation_loss"), ("validation_margin", "margin")):
        assert scalars.pop(name) == [(row["step"], pytest.approx(row[key])) for row in run.evaluations]
    assert scalars == {"loss": [(row["step"], pytest.approx(row["loss"])) for row in run.metrics]}


class Ended:
    """A callback that ends the training once it is called with this step, or one after it."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, list[int]()

    def __call__(self, step: int, *values: Any) -> None:
        self.seen.append(step)
        if step >= self.at:
            raise pipelag.Stop


def test_a_callback_ends_the_training_with_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    until, three = train(steps=4), Ended(3)
    stopped = train(on_step=three)
    assert same(stopped, until) and three.seen == [0, 1, 2, 3] and len(stopped.metrics) == 4
    four = Ended(4)
    stopped = train(on_evaluation=four, evaluate_every=2, validation=HELD_OUT)
    assert same(stopped, until) and four.seen == [2, 4]
    assert [row["step"] for row in stopped.evaluations] == [2, 4]
    assert capsys.readouterr() == ("", "")


@pytest.mark.real
@pytest.mark.parametrize("how", [{}, {"precision": "bf16"}], ids=["as it is", "bf16"])
def test_a_callback_ends_real_workers_at_the_checkpoint_told_of(how: dict[str, Any], tmp_path: Path) -> None:
    until, four = train(steps=4, **how), Ended(4)
    real = {"executor": "real", "evaluate_every": 2} | how
    stopped = train(on_evaluation=four, **real)
    assert same(stopped, until) and four.seen == [2, 4] and len(stopped.evaluations) == 2
    two = Ended(2)
    stopped = train(on_step=two, checkpoints=tmp_path, **real)
    assert same(stopped, until) and two.seen == [0, 1, 2] and len(stopped.evaluations) == 1
    assert same(train(convolutional(1), checkpoints=tmp_path, **real), train(**how))


def test_a_bar_starts_no_process() -> None:
    """tqdm's lock between processes does where these do not fork, as from Python 3.14 on: it wants to be tracked."""
    code = """
        import multiprocessing, torch, pipelag
        from multiprocessing import resource_tracker
        multiprocessing.set_start_method("forkserver")
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        pipelag.train(model, [(torch.ones(1, 2), torch.tensor([1]))], cuts=(), steps=1, progress=True)
        assert resource_tracker._resource_tracker._pid is None
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1/1" in done.stderr, done.stderr


def test_who_puts_something_else_for_standard_error_sees_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Log:
        """As loggers and notebooks put there."""

        def write(self, text: str) -> None: ...

        def flush(self) -> None: ...

    for stream in (Log(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert len(train().metrics) == 7


def cast_and_back(model: nn.Sequential) -> None:
    model.double().float()


def replace_parameter(model: nn.Sequential) -> None:
    model[0][0].weight = nn.Parameter(model[0][0].weight.detach().clone())


def replace_layer(model: nn.Sequential) -> None:
    model[0][0] = copy.deepcopy(model[0][0])


def train_anew(model: nn.Sequential) -> None:
    train(model)


@pytest.mark.parametrize("change", [cast_and_back, replace_parameter, replace_layer, train_anew])
def test_weights_that_would_not_be_trained_any_more_are_refused(change: Callable[[nn.Sequential], None]) -> None:
    model = convolutional()
    with pytest.raises(PipelagError, match="has replaced the model's '0.0.weight' by another tensor"):
        train(model, on_step=lambda step, loss: change(model) if step == 3 else None)


def test_weights_may_be_changed_in_place_and_swapped_for_a_while() -> None:
    model = convolutional()

    def averaged(step: int, loss: float) -> None:
        """As who measures a mean of weights: others in their place, and back."""
        held = [p.data for p in model.parameters()]
        for p in model.parameters():
            p.data = p.data / 2
        for p, data in zip(model.parameters(), held, strict=True):
            p.data = data
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})

    assert same(train(model, on_step=averaged), train())


@pytest.mark.parametrize("name", ["0.0.weight", "0.0.bias"])
@pytest.mark.parametrize("ends", [False, True])
def test_in_bfloat16_a_change_of_weights_that_would_be_lost_is_refused(name: str, ends: bool) -> None:
    """All parameters are copies of what is trained; that other weights are in them for a while does no harm."""
    model = convolutional()

    def changed(step: int, loss: float) -> None:
        weight = model.get_parameter(name)
        held = weight.detach().clone()
        with torch.no_grad():
            weight.add_(1)
            if step < 3:
                weight.copy_(held)
        if step == 3 and ends:
            raise pipelag.Stop

    with pytest.raises(PipelagError, match=f"the parameter '{name}' was changed by something other"):
        train(model, on_step=changed, precision="bf16")
