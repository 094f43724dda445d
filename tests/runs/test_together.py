"""Several trainings in one process, in turns: no run knows of the others, and what ends one leaves the others be."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag.__main__ import main
from pipelag.runs.kinds import together, train_simulated
from tests.runs.test_runs import SPEC, lines

DROPPING = {
    "model": {"name": "alexnet", "options": {"width": 0.06, "dropout": 0.5}},
    "optimizer": {"lr": 0.001, "momentum": 0.9},  # whatever is dropped, on a GPU too, it does not diverge
}
PHRASES: dict[str, Any] = {
    "model": {"name": "transformer", "options": {"blocks": 1, "size": 32, "hidden": 32, "dropout": 0.1}},
    "data": {"name": "phrases", "options": {"train": 200, "test": 10}},
    "batch": 10,
    "optimizer": {"name": "adamw", "lr": 0.002},
    "phases": [{"method": "pipemare", "steps": 12, "cuts": [3, 6, 9, 12], "microbatches": 2}],
    "evaluate_every": 4,
    "options": {"save_model": True, "precision": "bf16", "beam": 1},
}
WATCHED = {"options": {"discrepancy": {"every": 2}}}
SPECS = {
    "two phases": SPEC,
    "dropout": SPEC | DROPPING | {"seed": 1},
    "hogwild": SPEC | {"phases": [{"method": "hogwild", "steps": 25, "cuts": [2, 5]}]},
    "watched": SPEC | {"phases": [{"method": "spectrain", "steps": 20, "cuts": [3]}]} | WATCHED,
    "words": PHRASES,
}


def words(folder: Path, names: list[str], device: str = "cpu", **changes: dict[str, Any]) -> list[str]:
    asked = [
        word
        for name in names
        for word in ("--spec", json.dumps(SPECS[name] | changes.get(name, {})), "--out", str(folder / name))
    ]
    return ["run", *asked, "--device", device, "--threads", "1"]


def same(ours: Path, theirs: Path) -> None:
    assert lines(ours) == lines(theirs)
    if (theirs / "model.pt").exists():
        model, expected = torch.load(ours / "model.pt"), torch.load(theirs / "model.pt")
        assert all(torch.equal(model[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    for name in SPECS:
        assert main(words(folder, [name])) == 0
    return folder


def test_runs_that_take_turns_end_as_each_does_alone(
    tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real = train_simulated.SimulatedTraining.step

    def step(training: Any, *minibatch: Any) -> torch.Tensor:
        order.append(training.phases[0].method.name)
        return real(training, *minibatch)

    monkeypatch.setattr(train_simulated.SimulatedTraining, "step", step)
    assert main(words(tmp_path, [*SPECS])) == 0
    assert len(set(order[:5])) == 4 and order[5:10] == order[:5]  # a step each, in turns
    for name in SPECS:
        same(tmp_path / name, alone / name)
        assert json.loads((tmp_path / name / "summary.json").read_text())["together"] == 5
        assert "together" not in json.loads((alone / name / "summary.json").read_text())


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_runs_on_streams_end_as_each_does_alone(tmp_path: Path, device: str) -> None:
    for name in SPECS:
        assert main(words(tmp_path / "alone", [name], device)) == 0
    assert main(words(tmp_path / "together", [*SPECS], device)) == 0
    for name in SPECS:
        summary = json.loads((tmp_path / "alone" / name / "summary.json").read_text())
        assert summary["status"] == "finished", name  # else its weights are no numbers, which equal nothing
        same(tmp_path / "together" / name, tmp_path / "alone" / name)


def test_the_end_of_one_run_is_not_that_of_the_others(
    tmp_path: Path, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"dropout": {"data": {"name": "shapes", "options": {"train": 10, "test": 5}}}}  # fewer than a minibatch
    wild = {"hogwild": {"optimizer": {"lr": 1e9}}}
    assert main(words(tmp_path, ["two phases", "dropout", "hogwild"], **small, **wild)) == 2
    printed = capsys.readouterr()
    assert (
        "does not fit" in printed.err and "1 of 3 runs did not finish" in printed.err and "Traceback" not in printed.err
    )
    assert printed.out.count("log: ") == 2 and "diverged at step" in printed.out
    assert not (tmp_path / "dropout" / "summary.json").exists()
    same(tmp_path / "two phases", alone / "two phases")


def test_what_nobody_foresaw_in_one_run_is_told_with_its_traceback(
    tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaking(spec: Any, *where: Any) -> Generator[None, None, dict[str, Any]]:
        if spec.seed:
            raise KeyError("a place that nobody knew")
        return (yield from train_simulated.in_turns(spec, *where))

    monkeypatch.setattr(together, "in_turns", breaking)
    assert main(words(tmp_path, ["dropout", "hogwild"])) == 1
    assert "a place that nobody knew" in capsys.readouterr().err
    same(tmp_path / "hogwild", alone / "hogwild")


def test_stopped_and_started_again_they_go_on(tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped by the keyboard at a turn, with a checkpoint after every tenth step; a run that had ended stands."""

    def stopping(spec: Any, *where: Any) -> Generator[None, None, dict[str, Any]]:
        turns = train_simulated.in_turns(spec, *where)
        for turn in range(1000):
            if turn == 27:
                raise KeyboardInterrupt
            try:
                next(turns)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            yield
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(together, "in_turns", stopping)
        patched.setattr(train_simulated, "CHECKPOINT_SECONDS", 0.0)
        assert main(words(tmp_path, ["two phases", "words", "hogwild"])) == 130
    assert (tmp_path / "words" / "summary.json").exists()
    assert (tmp_path / "two phases" / "partial" / "checkpoint.pt").exists()
    ended_at = (tmp_path / "words" / "summary.json").stat().st_mtime_ns
    seen: list[int] = []
    real = train_simulated.SimulatedTraining.step

    def step(training: Any, *minibatch: Any) -> torch.Tensor:
        seen.append(training.done)
        return real(training, *minibatch)

    monkeypatch.setattr(train_simulated.SimulatedTraining, "step", step)
    assert main(words(tmp_path, ["two phases", "words", "hogwild"])) == 0
    assert min(seen) == 20 and (tmp_path / "words" / "summary.json").stat().st_mtime_ns == ended_at
    for name in ("two phases", "words", "hogwild"):
        same(tmp_path / name, alone / name)


def test_what_was_measured_before_a_stop_counts_after_it(
    tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped half way between two evaluations, and so soon that predictions wait to be compared."""
    foreseen = {"options": {"discrepancy": {"horizons": [1, 3], "every": 2}}}
    for after in (7, 13):
        assert main(words(tmp_path / "whole", ["watched"], watched=foreseen)) == 0
        with monkeypatch.context() as patched:
            patched.setattr(train_simulated, "CHECKPOINT_SECONDS", 0.0)
            patched.setattr(train_simulated, "FLUSH_STEPS", after)
            real, steps = train_simulated.SimulatedTraining.step, []

            def step(training: Any, *minibatch: Any, real: Any = real, steps: Any = steps, most: int = after) -> Any:
                steps.append(training.done)
                if len(steps) == most + 2:
                    raise KeyboardInterrupt
                return real(training, *minibatch)

            patched.setattr(train_simulated.SimulatedTraining, "step", step)
            assert main(words(tmp_path / str(after), ["watched"], watched=foreseen)) == 130
        assert main(words(tmp_path / str(after), ["watched"], watched=foreseen)) == 0
        rows = lines(tmp_path / str(after) / "watched")
        assert rows == lines(tmp_path / "whole" / "watched") and "rmse_predicted_3" in rows[-1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"executor": "real", "workers": 2}, "run 2 is a training on real workers, but only simulated trainings"),
        (
            {"kind": "count", "data": None, "optimizer": None, "phases": [], "options": {}}
            | {"lr_schedule": {}, "evaluate_every": 0},
            "run 2 is a count run",
        ),
    ],
)
def test_what_cannot_take_turns_is_refused(
    change: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = {"phases": [{"method": "pipedream", "steps": 20, "cuts": [3]}]}
    assert main(words(tmp_path, ["two phases", "hogwild"], hogwild=phases | change)) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "two phases").exists() or not [*(tmp_path / "two phases").iterdir()]


def test_each_run_wants_a_folder_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = words(tmp_path, ["two phases", "hogwild"])
    assert main([*arguments, "--out", str(tmp_path / "third")]) == 2
    assert "the number of runs is 2, but that of folders (--out) 3; give each run its own" in capsys.readouterr().err
    arguments[arguments.index(str(tmp_path / "hogwild"))] = str(tmp_path / "." / "two phases")
    assert main(arguments) == 2
    assert "is given to two runs" in capsys.readouterr().err


def test_a_folder_at_which_another_process_works_keeps_its_run_alone_back(tmp_path: Path, alone: Path) -> None:
    from pipelag.files import alone as locked

    with locked(tmp_path / "dropout" / "partial"):
        assert main(words(tmp_path, ["dropout", "hogwild"])) == 2
    same(tmp_path / "hogwild", alone / "hogwild")
