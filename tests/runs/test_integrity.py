"""Nothing is lost and nothing wrong is taken: damaged checkpoints, lost tails of logs, folders of other runs, seals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag import checkpoint
from pipelag.errors import PipelagError
from pipelag.experiments import arms, load_paper, load_scale, run_dir
from pipelag.results.logs import Context, Item, read_log
from pipelag.runs import folder as folders
from pipelag.runs.carry_out import carry_out
from pipelag.runs.kinds import train_simulated
from pipelag.runs.spec import RunSpec
from tests.runs.test_runs import SPEC, lines


class Interrupted(Exception):
    """What ends a run in the middle."""


def spec(**changes: Any) -> RunSpec:
    return RunSpec.model_validate(SPEC | {"evaluate_every": 5, "options": {}} | changes)


def trained(out: Path, **changes: Any) -> list[dict[str, Any]]:
    carry_out(spec(**changes), out, "cpu", 1)
    return lines(out)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken")
    trained(out)
    return out


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that ended in its 22nd step, with checkpoints after every step."""
    out = tmp_path / "broken"
    monkeypatch.setattr(train_simulated, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(train_simulated, "FLUSH_STEPS", 1)
    whole = train_simulated.SimulatedTraining.step

    def step(self: Any, *batch: Any) -> torch.Tensor:
        if self.done == 21:
            raise Interrupted
        return whole(self, *batch)

    with monkeypatch.context() as context:
        context.setattr(train_simulated.SimulatedTraining, "step", step)
        with pytest.raises(Interrupted):
            trained(out)
    return out


def zeroed(path: Path) -> None:
    """Lose a block in the middle, as a disk does."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 512] = bytes(512)
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_used(
    broken: Path, unbroken: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    newest = broken / "partial/checkpoint.pt"
    done = [torch.load(path)["training"]["done"] for path in (newest, checkpoint.before(newest))]
    assert done == [21, 20]
    zeroed(newest)
    assert trained(broken) == lines(unbroken)
    assert "is damaged and was set aside as checkpoint.damaged" in capfd.readouterr().err


def test_without_a_whole_checkpoint_a_run_starts_again(broken: Path, unbroken: Path) -> None:
    zeroed(broken / "partial/checkpoint.pt")
    (broken / "partial/checkpoint-before.pt").write_bytes(b"half")
    assert trained(broken) == lines(unbroken)


@pytest.mark.parametrize("left", [0, 100])
def test_a_log_that_lost_its_tail_is_written_again(broken: Path, unbroken: Path, left: int) -> None:
    log = broken / "partial/metrics.jsonl"
    log.write_bytes(log.read_bytes()[:left])
    assert trained(broken) == lines(unbroken)
    assert b"\0" not in (broken / "metrics.jsonl").read_bytes()


def test_a_run_that_failed_while_it_was_published_goes_on(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = folders.write_atomically

    def full(path: Path, text: str) -> None:
        if path.name == "summary.json":
            raise OSError(28, "No space left on device")
        write(path, text)

    with monkeypatch.context() as context:
        context.setattr(folders, "write_atomically", full)
        with pytest.raises(OSError, match="No space"):
            trained(tmp_path / "x")
    assert trained(tmp_path / "x") == lines(unbroken)


def test_a_folder_belongs_to_one_run(broken: Path, unbroken: Path) -> None:
    for changes in ({"seed": 3}, {"batch": 10}, {"optimizer": {"lr": 0.02}}):
        for folder in (broken, unbroken):
            before = {path: path.read_bytes() for path in folder.rglob("*.json*")}
            with pytest.raises(PipelagError, match=f"holds the run {spec().id}, and this is {spec(**changes).id}"):
                trained(folder, **changes)
            assert before == {path: path.read_bytes() for path in folder.rglob("*.json*")}


def test_weights_that_are_no_numbers_are_divergence_even_if_the_last_loss_was_one(tmp_path: Path) -> None:
    last = {"phases": [{"method": "sequential", "steps": 1}], "optimizer": {"lr": 1e38, "weight_decay": 1e38}}
    trained(tmp_path, **last)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "diverged" and summary["final"] is None and summary["diverged_at"] == 1


def shorter(rows: str) -> str:
    return "\n".join(rows.splitlines()[:-1]) + "\n"


def better(rows: str) -> str:
    first = json.loads(rows.splitlines()[0]) | {"accuracy": 1e9}
    return rows.replace(rows.splitlines()[0], json.dumps(first))


@pytest.mark.parametrize("change", [shorter, better, lambda rows: "", lambda rows: rows[:-9], lambda rows: "[1]\n"])
def test_a_log_that_is_not_what_its_run_wrote_is_not_read(tmp_path: Path, unbroken: Path, change: Any) -> None:
    shutil.copytree(unbroken, tmp_path / "copy")
    path = tmp_path / "copy/metrics.jsonl"
    path.write_text(change(path.read_text()))
    with pytest.raises(PipelagError, match=r"the log in .* (is damaged|is not what its run wrote)"):
        read_log(tmp_path / "copy")


def test_a_log_of_another_run_or_of_fewer_steps_is_not_read(unbroken: Path) -> None:
    assert read_log(unbroken, spec()) is not None
    with pytest.raises(PipelagError, match=f"is of the run {spec().id}; delete"):
        read_log(unbroken, spec(seed=4))
    summary = unbroken / "summary.json"
    told = summary.read_text()
    summary.write_text(told.replace('"steps": 30', '"steps": 10'))
    with pytest.raises(PipelagError, match="ends after 10 of 30 steps"):
        read_log(unbroken, spec())
    summary.write_text(told)


def test_what_is_drawn_says_which_log_it_did_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper, scale = load_paper("stale_weights"), load_scale("quick")
    arm = next(arm for arm in arms(paper, "figure_5a", scale) if arm.spec.kind == "train")
    monkeypatch.chdir(tmp_path)
    out = run_dir(scale, arm.spec.id)
    out.mkdir(parents=True)
    (out / "metrics.jsonl").write_text('{"step": 1}\n')
    (out / "summary.json").write_text('{"id": "000000000000"}')
    item = Item.of(arm, scale)
    assert item.log is None and "is of the run 000000000000" in item.damaged
    context = Context(paper, "figure_5a", paper.results["figure_5a"], scale, [item])
    assert "is of the run 000000000000" in context.footer()
