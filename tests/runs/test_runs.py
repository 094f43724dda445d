"""Runs as the command line carries them out: logs, resume after kill -9, divergence, full disks, refusals."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag import checkpoint, methods
from pipelag.__main__ import main
from pipelag.errors import PipelagError
from pipelag.files import alone
from pipelag.runs.carry_out import carry_out
from pipelag.runs.folder import RunFolder, leaving_nothing
from pipelag.runs.kinds.theory import read_libsvm
from pipelag.runs.spec import RunSpec
from pipelag.simulate.training import SimulatedTraining
from pipelag.warm import WarmProcess
from tests.ending import alive
from tests.inputs import dying
from tests.workflow.test_warm import JOB, ROOT, wait_for

SPEC: dict[str, Any] = {
    "model": {"name": "alexnet", "options": {"width": 0.06}},
    "data": {"name": "shapes", "augment": True, "options": {"train": 400, "test": 100}},
    "batch": 20,
    "optimizer": {"lr": 0.01, "momentum": 0.9},
    "lr_schedule": {"name": "milestones", "milestones": [0.5]},
    "phases": [
        {"method": "stale_weights", "steps": 20, "cuts": [2, 5], "stage_lr": {1: 0.005}},
        {"method": "sequential", "steps": 10},
    ],
    "evaluate_every": 10,
    "options": {"save_model": True},
}


def run(out: Path, *, device: str = "cpu", **changes: Any) -> int:
    return main(["run", "--spec", json.dumps(SPEC | changes), "--out", str(out), "--device", device, "--threads", "1"])


def lines(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_run_leaves_the_log_that_the_docs_promise(tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "model.pt",
        "summary.json",
    ]
    assert [row["step"] for row in lines(tmp_path)] == [10, 20, 30]
    assert [row["phase"] for row in lines(tmp_path)] == [0, 0, 1]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["id"] == RunSpec.model_validate(SPEC).id
    assert summary["phases"][0]["forward_delays"] == [4, 2, 0]
    assert summary["data"]["name"] == "shapes" and summary["status"] == "finished"
    assert (
        json.loads((tmp_path / "environment.json").read_text())["versions"]["torch"] == torch.__version__.split("+")[0]
    )
    assert (
        main(["run", "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "again"), "--threads", "1"])
        == 0
    )
    assert lines(tmp_path / "again") == lines(tmp_path)  # a run's own config repeats it
    assert main(["run", "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "so")]) == 0
    threads = [json.loads((tmp_path / where / "environment.json").read_text())["threads"] for where in ("", "so")]
    assert threads == [1, 1]  # with as many threads as it had, whatever this machine has


LONG = SPEC | {"phases": [SPEC["phases"][0] | {"steps": 200}, SPEC["phases"][1] | {"steps": 100}]}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken")
    assert run(out, **LONG) == 0
    return out


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there is no warm process")
@pytest.mark.real
@pytest.mark.parametrize("touch", [100, 401])
def test_killed_and_resumed_equals_unbroken_bit_for_bit(
    tmp_path: Path, touch: int, unbroken: Path, warm: WarmProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork of the warm process kills itself at a touch of its folder; it writes a checkpoint after every step."""
    broken = tmp_path / "broken"
    words = ["run", "--spec", json.dumps(LONG), "--threads", "1", "--device", "cpu", "--out", str(broken)]
    orders = json.dumps({"folder": str(tmp_path), "who": "launcher", "touch": touch})
    plugin = {"PIPELAG_PLUGINS": dying.__name__, dying.VARIABLE: orders}
    killed = subprocess.run([*JOB, *words], cwd=ROOT, env=os.environ | plugin, stderr=subprocess.DEVNULL, check=False)
    assert killed.returncode == -signal.SIGKILL
    # One of the two checkpoints: killed between two renames, the run has the one before.
    assert not (broken / "summary.json").exists() and list((broken / "partial").glob("checkpoint*.pt"))
    done, step = list[int](), SimulatedTraining.step
    monkeypatch.setattr(SimulatedTraining, "step", lambda self, *batch: (done.append(self.done), step(self, *batch))[1])
    assert run(broken, **LONG) == 0
    assert lines(broken) == lines(unbroken) and 0 < done[0] == 300 - len(done)  # it did not begin anew
    ours, theirs = (torch.load(out / "model.pt") for out in (broken, unbroken))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_divergence_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first step, from 0, whose loss is no number; those before it count."""
    losses, step = list[float](), SimulatedTraining.step

    def noted(training: SimulatedTraining, *batch: Any) -> torch.Tensor:
        loss = step(training, *batch)
        losses.append(float(loss))
        return loss

    monkeypatch.setattr(SimulatedTraining, "step", noted)
    assert run(tmp_path, optimizer={"lr": 1e9}) == 0
    first = next(number for number, loss in enumerate(losses) if not math.isfinite(loss))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "diverged" and summary["final"] is None
    assert 0 < first == summary["diverged_at"] == summary["steps"]


def test_a_line_has_the_rate_of_the_step_that_ended_before_it(tmp_path: Path) -> None:
    """Steps count from 0: the milestone at half of 30 steps is of step 15, the 16th."""
    assert run(tmp_path, evaluate_every=5) == 0
    assert [(row["step"], row["lr"]) for row in lines(tmp_path)] == [
        *((step, 0.01) for step in (5, 10, 15)),
        *((step, pytest.approx(0.001)) for step in (20, 25, 30)),
    ]


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save({"step": 1}, path)

    def full(*words: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(PipelagError, match="could not be written .No space left on device.; the one before it is kept"):
        checkpoint.save({"step": 2}, path)
    assert checkpoint.load(path) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_write_that_really_fails_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save({"step": 1}, path)
    path.with_suffix(".tmp").symlink_to("/dev/full")
    with pytest.raises(PipelagError, match="could not be written"):
        checkpoint.save({"weights": torch.zeros(1_000_000)}, path)
    assert checkpoint.load(path) == {"step": 1}


def test_a_torn_checkpoint_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.with_suffix(".tmp").write_bytes(b"half")
    assert checkpoint.load(path) is None


@pytest.mark.real
def test_a_real_run_logs_what_the_simulated_one_does(tmp_path: Path) -> None:
    two = [{"method": "stale_weights", "steps": 16, "cuts": [3]}, {"method": "sequential", "steps": 8}]
    how: dict[str, Any] = {"phases": two, "evaluate_every": 6, "seed": 3}  # the milestone is at step 12
    assert run(tmp_path / "simulated", **how) == 0
    assert run(tmp_path / "real", **how, executor="real", workers=2) == 0
    simulated, real = lines(tmp_path / "simulated"), lines(tmp_path / "real")
    keys = ("step", "epoch", "phase", "lr", "accuracy", "test_loss")
    assert [[row[key] for key in keys] for row in real] == [[row[key] for key in keys] for row in simulated]
    assert [row["loss"] for row in real] == pytest.approx([row["loss"] for row in simulated])
    workers = json.loads((tmp_path / "real" / "summary.json").read_text())["workers"]
    for worker in workers:
        assert sum(worker["shares"].values()) == pytest.approx(1.0, abs=1e-3)
        assert min(worker["shares"].values()) >= 0.0
        assert min(worker["memory"][kind] for kind in ("weights", "optimizer", "activations")) > 0
    trace = json.loads((tmp_path / "real" / "trace.json").read_text())["traceEvents"]
    boxes = sorted((e["tid"], e["ts"], e["ts"] + e["dur"]) for e in trace if e["ph"] == "X")
    assert len(boxes) == 2 * 16 * 3  # forward, backward and update of 16 minibatches on 2 workers
    assert all(b[1] >= a[2] - 1 for a, b in zip(boxes[:-1], boxes[1:], strict=True) if a[0] == b[0])
    ours, theirs = (torch.load(tmp_path / out / "model.pt") for out in ("real", "simulated"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


KILLING = """
import os, signal, sys
me = os.environ.get("RANK", "launcher")
with open("pid-" + me, "w") as file:
    file.write(str(os.getpid()))

def look(event, words):
    if event == "os.rename" and str(words[1]).endswith("step-000000040/stage-1-of-2.pt"):
        with open("pid-launcher") as file:
            os.kill(int(file.read()), signal.SIGKILL)

if me == "0":
    sys.addaudithook(look)
"""


@pytest.mark.real
def test_a_real_run_that_was_killed_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """A plugin kills the launcher while its workers write a checkpoint; they end with it."""
    two = [{"method": "pipedream", "steps": 120, "cuts": [3]}, {"method": "bsp", "steps": 40}]
    spec = SPEC | {"phases": two, "executor": "real", "workers": 2}
    command = [sys.executable, "-m", "pipelag", "run", "--spec", json.dumps(spec), "--threads", "2", "--device", "cpu"]
    broken, unbroken = tmp_path / "broken", tmp_path / "unbroken"
    (tmp_path / "killing.py").write_text(KILLING)
    killed = subprocess.run(
        [*command, "--out", str(broken)],
        cwd=tmp_path,
        env=os.environ | {"PIPELAG_PLUGINS": "killing"},
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL and not (broken / "summary.json").exists()
    wait_for(lambda: not any(alive(int(path.read_text())) for path in tmp_path.glob("pid-?")))
    for out in (broken, unbroken):
        assert run(out, **spec) == 0
    assert lines(broken) == lines(unbroken) and len(lines(broken)) == 16
    ours, theirs = (torch.load(out / "model.pt") for out in (broken, unbroken))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    resumed = json.loads((broken / "summary.json").read_text())["resumed_at"]
    assert 20 <= resumed < 160 and "resumed_at" not in json.loads((unbroken / "summary.json").read_text())
    assert not (broken / "partial").exists()


@pytest.mark.real
def test_a_real_run_is_repeated_with_as_many_threads_as_it_had(tmp_path: Path) -> None:
    """Which its log counts by worker, and --threads for all of them together."""
    how: dict[str, Any] = {
        "phases": [{"method": "pipedream", "steps": 1, "cuts": [3]}],
        "executor": "real",
        "workers": 2,
    }
    words = [
        "run",
        "--spec",
        json.dumps(SPEC | how),
        "--out",
        str(tmp_path / "first"),
        "--device",
        "cpu",
        "--threads",
        "4",
    ]
    assert main(words) == 0
    config = str(tmp_path / "first/config.yaml")
    assert main(["run", "--config", config, "--out", str(tmp_path / "again"), "--device", "cpu"]) == 0
    threads = [json.loads((tmp_path / out / "environment.json").read_text())["threads"] for out in ("first", "again")]
    assert threads == [2, 2]


@pytest.mark.real
def test_a_real_runs_timeline_names_the_stages_that_are_replicated(tmp_path: Path) -> None:
    phases = [{"method": "pipedream", "steps": 8, "cuts": [3], "replicas": [2, 1]}]
    assert run(tmp_path, phases=phases, executor="real", workers=3) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [[e["name"] for e in events if e["ph"] == "X" and e["tid"] == worker] for worker in range(3)]
    for replica in (0, 1):  # every other minibatch, and one synchronisation and update a round
        expected = {f"1{kind}{minibatch}" for minibatch in range(replica, 8, 2) for kind in "FBSU"}
        assert sorted(names[replica]) == sorted(expected)
    assert sorted(names[2]) == sorted(f"2{kind}{minibatch}" for minibatch in range(8) for kind in "FBU")


@pytest.mark.real
def test_a_speed_run_logs_interleaved_blocks(tmp_path: Path) -> None:
    phases = [{"method": "stale_weights", "steps": 12, "cuts": [3]}]
    assert run(tmp_path, kind="speed", phases=phases, executor="real", workers=2, options={"blocks": 2}) == 0
    assert [row["arm"] for row in lines(tmp_path)] == ["non-pipelined", "pipelined", "hybrid"] * 2
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary["speedup"]) == {"pipelined", "hybrid"} and len(summary["speedups"]["pipelined"]) == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"name": "alexnett"}}, "unknown model 'alexnett'; did you mean 'alexnet'"),
        ({"data": {"name": "shape"}}, "unknown data set 'shape'; did you mean 'shapes'"),
        ({"phases": [{"method": "stale", "steps": 1}]}, "unknown method 'stale'; did you mean"),
        (
            {"phases": [{"method": "stale_weights", "steps": 1, "cuts": [5, 2]}]},
            "should increase from 1 on, not be [5, 2]",
        ),
        ({"options": {"discrepancy": {"horizons": [0]}}}, "horizons.0' of a train run is 0; it should be 1 or more"),
        ({"batch": 0}, "the run's spec is wrong: batch is 0; it should be above 0"),
        ({"optimiser": {}}, "the run's spec is wrong: unknown key 'optimiser'; did you mean 'optimizer'?"),
        (
            {"executor": "real", "workers": 4, "phases": [{"method": "stale_weights", "steps": 4, "cuts": [3]}]},
            "4 workers are more than the 2 that the 2 stages",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], sentence: str
) -> None:
    assert run(tmp_path, **changes) == 2
    error = capsys.readouterr().err
    assert sentence in error and "Traceback" not in error


@pytest.mark.parametrize(
    "more", [{}, {"kind": "profile", "evaluate_every": 0, "phases": [], "options": {}}], ids=["a training", "a profile"]
)
def test_where_nothing_was_computed_nothing_is_left(tmp_path: Path, more: dict[str, Any]) -> None:
    """Data that do not fit are known when they are open; what stood there before stays."""
    few = {"data": {"name": "shapes", "options": {"train": 10, "test": 5}}} | more  # fewer than a minibatch
    assert run(tmp_path / "a" / "b", **few) == 2 and list(tmp_path.iterdir()) == []
    (tmp_path / "c" / "partial").mkdir(parents=True)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine.txt").write_text("kept")
    assert run(tmp_path / "c", **few) == run(tmp_path / "d", **few) == 2
    assert (tmp_path / "c" / "partial" / "id").exists() and [*(tmp_path / "d").iterdir()] == [tmp_path / "d/mine.txt"]


def test_what_was_computed_is_left(tmp_path: Path) -> None:
    """Lines without a checkpoint, too."""
    out = tmp_path / "a"
    with pytest.raises(PipelagError, match="refused"), leaving_nothing(out):
        RunFolder(out, RunSpec.model_validate(SPEC)).log({"step": 1})
        raise PipelagError("refused")
    assert (out / "partial" / "metrics.jsonl").read_text() == '{"step": 1}\n' and (out / "partial" / "id").exists()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(PipelagError, match="refused"), leaving_nothing(out):
        raise PipelagError("refused")
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_what_another_process_makes_meanwhile_is_left(tmp_path: Path) -> None:
    a = tmp_path / "a"
    with pytest.raises(PipelagError, match="refused"), leaving_nothing(a), alone(a / "partial"):
        raise PipelagError("refused")
    assert list(tmp_path.iterdir()) == []
    with ExitStack() as stack:
        with pytest.raises(PipelagError, match="refused"), leaving_nothing(a):
            stack.enter_context(alone(a / "partial"))
            raise PipelagError("refused")
        assert (a / "partial" / "lock").exists()


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            {"name": "lenet5"},
            "model 'lenet5' cannot take the images of 'shapes', of 3x32x32: layer 3 (linear 400-120) says "
            "'addmm: mat1 and mat2 shapes cannot be multiplied (1x576 and 400x120)'; set its option size to that of "
            "the images",
        ),
        (
            {"name": "alexnet_imagenet"},
            "model 'alexnet_imagenet' cannot take the images of 'shapes', of 3x32x32: layer 5 (conv3x3 256-256) says "
            "'Given input size: (256x1x1). Calculated output size: (256x0x0). Output size is too small'; take a model "
            "or a data set of another size",
        ),
        (
            {"name": "torchvision", "options": {"network": "vit_b_32"}},
            "model 'torchvision' cannot take the images of 'shapes', of 3x32x32: layer 1 (conv_proj) says 'Wrong image "
            "height! Expected 224",
        ),
    ],
)
def test_images_of_a_size_that_the_model_cannot_take_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: dict[str, Any], sentence: str
) -> None:
    assert run(tmp_path, model=model, phases=[{"method": "sequential", "steps": 1}]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "3 1:1\n", "3 1:1\n3 1:2\n", "1 1:nan\n2 1:3\n", "inf 1:1\n1 1:2\n"])
def test_a_regression_set_that_has_nothing_to_learn_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.svm").write_text(text)
    with pytest.raises(PipelagError, match="a.svm' is not a regression set: it should have at least two samples"):
        read_libsvm(str(tmp_path / "a.svm"))


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert run(tmp_path, device="cuda") == 2
    assert "torch sees no GPU here; use --device cpu or auto" in capsys.readouterr().err


def test_a_run_measures_how_far_the_weights_it_reads_are_from_the_true_ones(tmp_path: Path) -> None:
    """With a method, its settings, microbatches and recomputation from the spec; restored runs go on measuring."""
    phase = {"method": "pipeoptim", "steps": 20, "cuts": [2, 4], "microbatches": 2, "recompute": True}
    watch = {"discrepancy": {"horizons": [1, 2], "every": 2}}
    optimizer = {"name": "adamw", "lr": 0.001, "weight_decay": 0.01}
    assert run(tmp_path, phases=[phase], options=watch, optimizer=optimizer, evaluate_every=10) == 0
    for row in lines(tmp_path):
        assert len(row["forward_distance"]) == len(row["discrepancy"]) == 3
        assert row["forward_distance"][0] > 0 == row["forward_distance"][2]
        assert 0 < row["rmse_predicted_1"] <= row["rmse_predicted_1_most"]
        assert row["rmse_stale_2"] > row["rmse_stale_1"] > 0
    assert json.loads((tmp_path / "summary.json").read_text())["phases"][0]["method"] == "pipeoptim"


def test_settings_of_a_method_and_of_an_optimizer_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mare = {"method": "pipemare", "steps": 4, "cuts": [2]}
    assert run(tmp_path / "good", phases=[mare | {"options": {"annealing": 2, "decay": 0.5}}]) == 0
    assert run(tmp_path / "a", phases=[mare | {"options": {"anealing": 2}}]) == 2
    assert run(tmp_path / "b", optimizer={"name": "adam", "lr": 0.1, "momentum": 0.9}) == 2
    assert run(tmp_path / "c", phases=[mare | {"microbatches": 3}]) == 2
    errors = capsys.readouterr().err
    assert "did you mean 'annealing'?" in errors
    assert "the optimizer 'adam' has no momentum" in errors
    assert "cannot be split into 3 equal microbatches" in errors


def test_a_timeline_without_costs_needs_a_schedule_with_a_clock(tmp_path: Path) -> None:
    spec = RunSpec(kind="timeline", phases=[{"method": "pipedream", "steps": 6, "cuts": [1, 2]}])  # type: ignore[list-item]
    with pytest.raises(PipelagError, match="the schedule '1f1b' has no clock, .*; give the timeline costs"):
        carry_out(spec, tmp_path / spec.id, "cpu", 1)


def test_replicas_of_a_timeline_count_in_its_delays_and_its_rows_claim_no_version_of_theirs(tmp_path: Path) -> None:
    """Stages of 3, 2 and 1 workers: alone they lag by 2, 1, 0 updates; a round of several minibatches is one update."""
    phase = {"method": "pipedream", "steps": 12, "cuts": [1, 2]}
    options = {"costs": {"forward": 1, "backward": 1}, "replicas": [3, 2, 1]}
    spec = RunSpec.model_validate({"kind": "timeline", "phases": [phase], "options": options})
    summary = carry_out(spec, tmp_path, "cpu", 1)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    of_rounds = methods.get("pipedream").delays(3, 1, (3, 2, 1))
    assert summary["forward_delays"] == list(of_rounds.forward) == [1, 1, 0]
    assert summary["backward_delays"] == list(of_rounds.backward)
    assert summary["weight_copies"] == list(methods.get("pipedream").weight_copies(3, 1, (3, 2, 1)))
    assert {row["stage"] for row in rows if "reads" in row} == {3}
    own = [row for row in rows if row["stage"] == 3 and row["kind"] in "FB"]
    assert all(row["reads"] == row["minibatch"] for row in own) and len(own) == 24
    within = {"replicas": [3, 2, 1]}
    unfit = {
        "options.replicas": phase | within,
        "whole minibatches": phase | {"microbatches": 2},
        "do not make whole rounds": phase | {"steps": 13},
    }
    for why, odd in unfit.items():
        wrong = RunSpec.model_validate({"kind": "timeline", "phases": [odd], "options": options})
        with pytest.raises(PipelagError, match=why):
            carry_out(wrong, tmp_path / "wrong", "cpu", 1)


def test_graphs_are_asked_for_on_a_gpu_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "plain") == run(tmp_path / "without", options={"graphs": False}) == 0
    phases = [json.loads((tmp_path / name / "summary.json").read_text())["phases"] for name in ("plain", "without")]
    assert phases[0] == phases[1] and not any("graphs" in phase for phase in phases[0])
    assert run(tmp_path / "wrong", options={"graphs": True}) == 2
    assert "graphs" in capsys.readouterr().err


def test_a_run_whose_microbatches_share_passes_says_so(tmp_path: Path) -> None:
    phases = [
        {"method": "pipemare", "steps": 20, "cuts": [1, 2], "microbatches": 2},
        {"method": "sequential", "steps": 10},
    ]
    for name, options in (("apart", {}), ("grouped", {"grouped": True})):
        assert run(tmp_path / name, options=options, phases=phases) == 0
    logged = json.loads((tmp_path / "grouped/summary.json").read_text())["phases"]
    assert [phase["grouped"] for phase in logged] == ["used", "a minibatch goes through in one piece"]
    assert not any("grouped" in phase for phase in json.loads((tmp_path / "apart/summary.json").read_text())["phases"])
    apart, grouped = (lines(tmp_path / name)[-1] for name in ("apart", "grouped"))
    assert grouped["loss"] == pytest.approx(apart["loss"], rel=1e-4)
    assert len({json.loads((tmp_path / name / "summary.json").read_text())["id"] for name in ("apart", "grouped")}) == 2


def test_a_run_in_bfloat16_says_so_and_computes_otherwise(tmp_path: Path) -> None:
    assert run(tmp_path / "full") == 0
    assert run(tmp_path / "half", options={"precision": "bf16", "save_model": True}) == 0
    summary = json.loads((tmp_path / "half/summary.json").read_text())
    assert summary["precision"] == "bf16 over fp32 masters"
    assert {t.dtype for t in torch.load(tmp_path / "half/model.pt").values()} == {torch.bfloat16, torch.float32}
    full, half = (lines(tmp_path / name)[-1] for name in ("full", "half"))
    assert half["loss"] != full["loss"] and half["loss"] == pytest.approx(full["loss"], rel=0.05)
