"""Checkpoints of real pipelines: a broken run goes on from the newest complete set, bit for bit or as another one."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.distributed.checkpoints import Checkpoints, CheckpointWriter
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import WorkerFailed, launch
from pipelag.distributed.training import RealTraining
from pipelag.errors import PipelagError
from pipelag.files import alone
from pipelag.methods import get
from pipelag.stage.phase import Phase
from tests.distributed.test_real import REAL, SPLIT, optimizer_for
from tests.toy import Noise, convolutional, equal, sgd

STEPS, BROKEN, EVERY = 22, 17, 6


class Broken(RuntimeError):
    """What ends a run in the middle."""


class Breaking(Noise):
    """Its targets end at `BROKEN`; with replicas that is one replica's turn."""

    def targets(self, t: int) -> torch.Tensor:
        if t == BROKEN:
            raise Broken
        return super().targets(t)


def half_way(job: Job, cases: list[list[Phase]], folder: Path) -> list[dict[str, Any]]:
    """Every case in two halves, the second by another `RealTraining` from the first one's checkpoints."""
    ends = []
    for number, phases in enumerate(cases):
        marks = frozenset({*range(EVERY, STEPS, EVERY), 5, *accumulate(phase.steps for phase in phases)})
        checkpoints = Checkpoints(folder / str(number), marks)
        make, loss = optimizer_for(phases[-1].method.name), nn.functional.cross_entropy
        batches = Noise(device=str(job.device))
        shortened = []
        for phase in phases:
            left = BROKEN - sum(before.steps for before in shortened)
            if left > 0:
                shortened.append(replace(phase, steps=min(left, phase.steps)))
        rate = lambda step: 1.0 if step < 8 else 0.5 if step < 15 else 0.25  # noqa: E731
        whole = RealTraining(job, convolutional().train(), phases, make, loss, rate=rate, seed=5)
        whole.run(batches.inputs, batches.targets)
        RealTraining(
            job, convolutional().train(), shortened, make, loss, rate=rate, seed=5, checkpoints=checkpoints
        ).run(batches.inputs, batches.targets)
        second = RealTraining(
            job, convolutional(1).train(), phases, make, loss, rate=rate, seed=5, checkpoints=checkpoints
        )
        second.resume(max(checkpoints.steps()))
        second.run(batches.inputs, batches.targets)
        ends.append(
            {
                "name": phases[-1].method.name,
                "weights": equal(whole.model.state_dict(), second.model.state_dict()),
                "losses": whole.losses == second.losses and len(second.losses) == STEPS,
                "carriers": whole.carriers == second.carriers,
                "moments": all(
                    torch.equal(value, second.state[name][key])
                    for name, values in whole.state.items()
                    for key, value in values.items()
                    if isinstance(value, torch.Tensor)
                ),
            }
        )
    return ends


@pytest.mark.real
@pytest.mark.parametrize("cuts", [(3,), (1, 2, 4)], ids=["2 workers", "4 workers"])
def test_every_method_goes_on_bit_for_bit(in_memory: Path, cuts: tuple[int, ...], place: str) -> None:
    cases = [[Phase(get(name), STEPS, cuts, microbatches=SPLIT.get(name, 1))] for name in REAL]
    cases.append([Phase(get("gpipe"), 8, cuts, microbatches=4), Phase(get("spectrain"), STEPS - 8, cuts)])
    if len(cuts) == 3:
        cases.append([Phase(get("pipemare"), STEPS, cuts, recompute=2)])
        cases.append([Phase(get("pipedream_cycle"), STEPS, cuts, recompute=3)])
    if len(cuts) == 1:
        cases += [[Phase(get(name), STEPS, cuts, microbatches=2)] for name in ("gpipe_torch", "1f1b_torch")]
        cases.append([Phase(get("pipedream"), 10, cuts), Phase(get("bsp"), STEPS - 10)])
        cases.append([Phase(get("stale_weights"), 14, cuts), Phase(get("sequential"), STEPS - 14)])
    for end in launch(half_way, len(cuts) + 1, place, 1, cases=cases, folder=in_memory):
        assert end["weights"] and end["losses"] and end["moments"] and end["carriers"], end["name"]


def train(folder: Path | None, batches: Noise | None = None, start: int = 0, **how: Any) -> pipelag.TrainedRun:
    """start: the seed of the first weights; another one than before, for what goes on has those of its checkpoint."""
    how = {"method": "pipedream", "cuts": (3,), "steps": STEPS} | how
    if folder is not None:
        how = {"checkpoint_every": EVERY} | how
    return pipelag.train(
        convolutional(start), batches or Noise(), optimizer=sgd, executor="real", checkpoints=folder, seed=5, **how
    )


@pytest.mark.real
@pytest.mark.parametrize("replicas", [(), (2, 1)], ids=["one each", "replicated"])
def test_a_run_that_broke_goes_on(tmp_path: Path, replicas: tuple[int, ...]) -> None:
    with pytest.raises(WorkerFailed, match="Broken"):
        train(tmp_path, Breaking(), replicas=replicas)
    assert max(Checkpoints(tmp_path, frozenset()).steps()) == 12
    (tmp_path / "step-000000018").mkdir(exist_ok=True)  # one stage was quicker than the other
    (tmp_path / "step-000000018" / "stage-1-of-2.pt").write_bytes(b"half")
    resumed, whole = train(tmp_path, start=1, replicas=replicas), train(None, replicas=replicas)
    assert equal(resumed.model.state_dict(), whole.model.state_dict())
    assert resumed.metrics == whole.metrics and len(whole.metrics) == STEPS
    complete = {folder.name for folder in tmp_path.glob("step-*") if len(list(folder.glob("resume-*"))) == 2}
    # Two sets, for one may be damaged; of what is older ever more goes.
    assert complete >= {"step-000000018", "step-000000022"} and "step-000000006" not in complete


@pytest.mark.real
@pytest.mark.parametrize("kind", ["stage", "resume", "policy"])
def test_a_damaged_set_is_left_out_for_the_one_before_it(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WorkerFailed, match="Broken"):
        train(tmp_path, Breaking())
    (part,) = tmp_path.glob(f"step-000000012/{kind}-2-of-2.pt")
    content = bytearray(part.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    part.write_bytes(content)
    assert Checkpoints(tmp_path, frozenset()).rewind() == 6
    errors, aside = capfd.readouterr().err, part.parent.with_suffix(".damaged")
    assert f"{part} is damaged; its set is not used" in errors
    assert f"{part.parent} was set aside as {aside.name}" in errors and (aside / part.name).read_bytes() == content
    resumed, whole = train(tmp_path, start=1), train(None)
    assert equal(resumed.model.state_dict(), whole.model.state_dict()) and resumed.metrics == whole.metrics


@pytest.mark.real
def test_a_set_needs_what_is_before_it_and_its_own_files(tmp_path: Path) -> None:
    """Files that have each other's name, a part or a set before that is gone: none is taken for what it is not."""
    with pytest.raises(WorkerFailed, match="Broken"):
        train(tmp_path / "good", Breaking())
    one, two = ("step-000000006", "step-000000012")

    def left(change: Callable[[Path], object]) -> int:
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "good", copy)
        change(copy)
        newest = Checkpoints(copy, frozenset()).rewind()
        shutil.rmtree(copy)
        return newest

    def exchange(first: str, second: str) -> Callable[[Path], object]:
        def change(folder: Path) -> None:
            for source, target in ((first, "aside"), (second, first), ("aside", second)):
                (folder / source).rename(folder / target)

        return change

    assert left(lambda folder: None) == 12
    assert left(exchange(f"{one}/stage-1-of-2.pt", f"{two}/stage-1-of-2.pt")) == 0
    assert left(exchange(f"{two}/losses-1-of-2.pt", f"{two}/losses-2-of-2.pt")) == 6
    assert left(exchange(one, two)) == 0
    assert left(lambda folder: (folder / two / "policy-1-of-2.pt").unlink()) == 6
    assert left(lambda folder: (folder / one / "losses-2-of-2.pt").unlink()) == 0
    assert left(lambda folder: shutil.rmtree(folder / one)) == 0
    assert left(lambda folder: (folder / "step-x").mkdir()) == 12


@pytest.mark.real
def test_an_old_set_that_is_damaged_costs_no_more_than_from_before_it(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="Broken"):
        train(tmp_path / "good", Breaking(), checkpoint_every=2)
    assert Checkpoints(tmp_path / "good", frozenset()).steps() == [*range(2, BROKEN, 2)]

    def newest(kind: str, *measured: Any) -> int:
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "good", copy)
        (copy / "step-000000010" / f"{kind}-2-of-2.pt").write_bytes(b"damaged")
        step = Checkpoints(copy, frozenset()).rewind(*measured)
        shutil.rmtree(copy)
        return step

    assert newest("losses") == newest("losses", ()) == newest("stage") == newest("stage", {4, 10}) == 8
    assert newest("stage", ()) == newest("stage", {4}) == 16  # nobody measures these weights
    (tmp_path / "good" / "step-000000010" / "losses-2-of-2.pt").write_bytes(b"damaged")
    resumed, whole = train(tmp_path / "good"), train(None)
    assert equal(resumed.model.state_dict(), whole.model.state_dict()) and resumed.metrics == whole.metrics


def test_a_stage_that_finds_no_room_says_whether_a_set_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: object) -> None:
        raise OSError(28, "No space left on device")

    layer, held = nn.Linear(1, 1), {name: f"0.{name}" for name in ("weight", "bias")}
    writer = CheckpointWriter(Checkpoints(tmp_path, frozenset({1, 2})), "", 1, 1, held, [*held.values()], {}, 0.0, 0)
    for step, outcome in ((1, "none is kept"), (2, "the one before it is kept")):
        with monkeypatch.context() as context:
            context.setattr("os.fsync", full)
            with pytest.raises(PipelagError, match=rf"could not be written \(No space .*; {outcome}: free"):
                writer.save(step, layer, None, {}, [], {"seconds": 0.0}, None)
        writer.save(step, layer, None, {}, [], {"seconds": 0.0}, None)


@pytest.mark.real
def test_another_pipeline_goes_on_from_the_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """More stages and so more minibatches in flight: it fills anew, as after a drain at the checkpoint."""
    with pytest.raises(WorkerFailed):
        train(tmp_path, Breaking())
    resumed = train(tmp_path, start=1, cuts=(1, 2, 4))
    assert "continues a training with cuts [3], now [1, 2, 4]\n" in capfd.readouterr().err
    drained = [Phase(get("pipedream"), 12, (3,)), Phase(get("pipedream"), STEPS - 12, (1, 2, 4))]
    expected = pipelag.train(convolutional(), Noise(), phases=drained, optimizer=sgd, seed=5)
    assert resumed.metrics == expected.metrics and len(resumed.metrics) == STEPS
    with pytest.raises(PipelagError, match="are those of another model; continue with that model, or delete them"):
        pipelag.train(
            nn.Sequential(*convolutional()[:5], nn.Linear(16, 5)), Noise(), method="pipedream", cuts=(3,), steps=STEPS,
            executor="real", checkpoints=tmp_path,
        )  # fmt: skip


@pytest.mark.real
def test_a_finished_training_is_told_again_and_never_as_another(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = train(tmp_path, steps=6)
    second = train(tmp_path, start=1, steps=6)
    assert second.metrics == first.metrics and equal(second.model.state_dict(), first.model.state_dict())
    assert f"{tmp_path} holds all 6 steps already; there was nothing left to train" in capfd.readouterr().err
    ours: dict[str, Any] = {"method": "pipedream", "cuts": (3,), "steps": 6, "optimizer": sgd, "seed": 5}
    slower = lambda params: torch.optim.SGD(params, lr=0.01)  # noqa: E731
    bare = lambda groups: sgd([group | {"weight_decay": 0.5} for group in groups])  # noqa: E731
    for changes, difference in (
        ({"method": "gpipe"}, "with method pipedream, but this one has method gpipe"),
        ({"cuts": (2,)}, r"with cuts \[3\], but this one has cuts \[2\]"),
        ({"seed": 7}, "with seed 5, but this one has seed 7"),
        ({"optimizer": slower}, r"with optimizer SGD\(lr=0.05, .*, but this one has optimizer SGD\(lr=0.01\)"),
        ({"optimizer": bare}, "with groups all alike, but this one has groups weight_decay=0.5"),
        ({"optimizer": "adam", "lr": 0.1}, r"with optimizer SGD\(.*, but this one has optimizer Adam\(lr=0.1, .*"),
    ):
        with pytest.raises(PipelagError, match=f"hold all 6 steps of a training {difference} and no steps left to tr"):
            pipelag.train(convolutional(), Noise(), executor="real", checkpoints=tmp_path, **(ours | changes))
    longer = train(tmp_path, start=1, steps=9, method="gpipe", cuts=(1, 4))
    assert longer.metrics[:6] == first.metrics and len(longer.metrics) == 9


@pytest.mark.real
def test_another_loss_rate_or_data_is_told(tmp_path: Path) -> None:
    train(tmp_path, steps=6)
    other: dict[str, Any] = {"loss": nn.MultiMarginLoss(), "rate": lambda step: 0.5 if step > 2 else 1.0}
    with pytest.warns(UserWarning, match="but this one has") as warned:
        train(tmp_path, Noise(seed=9), steps=9, **other)
    sentences = " ".join(str(warning.message) for warning in warned)
    assert "with a rate factor of 1 at step 3, but this one has a factor of 0.5 there" in sentences
    assert "with loss cross_entropy, but this one has" in sentences
    assert "with a first minibatch [8, 3, 8, 8] float32" in sentences
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(tmp_path, Noise(seed=9), steps=9, **other)


@pytest.mark.real
def test_what_cannot_go_on_is_refused(tmp_path: Path) -> None:
    train(tmp_path, steps=6)
    with pytest.raises(
        PipelagError, match="are of step 6, but this training has only 4 steps; train more steps, or delete them"
    ):
        train(tmp_path, steps=4)
    with pytest.raises(PipelagError, match="hold the state of SGD, but this run uses Adam; continue with the same"):
        pipelag.train(
            convolutional(), Noise(), optimizer=lambda params: torch.optim.Adam(params), method="pipedream", cuts=(3,),
            steps=9, executor="real", checkpoints=tmp_path,
        )  # fmt: skip
    with alone(tmp_path), pytest.raises(PipelagError, match="another process is at work in"):
        train(tmp_path, steps=9)


class Tied(nn.Module):
    """A layer that holds one weight by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(16, 16)
        self.two = nn.Linear(16, 16)
        self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x)))


@pytest.mark.real
def test_tied_frozen_and_repeated_layers_are_kept(tmp_path: Path) -> None:
    def model(start: int) -> nn.Sequential:
        layers, relu = list(convolutional(start)), nn.ReLU()
        layers[0].requires_grad_(False)
        return nn.Sequential(*layers[:3], relu, layers[3], relu, layers[4], Tied(), nn.Identity(), layers[5])

    def run(executor: str, batches: Noise, start: int = 0, **how: Any) -> nn.Sequential:
        rate = lambda step: 1.0 if step < 4 else 0.3  # noqa: E731
        how = {"method": "spectrain", "cuts": (4,), "steps": STEPS, "rate": rate, "seed": 5} | how
        return pipelag.train(model(start), batches, optimizer=sgd, executor=executor, **how).model

    with pytest.raises(WorkerFailed):
        run("real", Breaking(), checkpoints=tmp_path, checkpoint_every=EVERY)
    resumed, simulated = run("real", Noise(), start=1, checkpoints=tmp_path), run("simulated", Noise())
    assert equal(resumed.state_dict(), simulated.state_dict())
