"""What would go unnoticed: things there twice, names that do not match, settings that nobody would read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import pipelag
from pipelag.__main__ import main
from pipelag.errors import PipelagError
from pipelag.experiments import check_workflow, load_paper, load_scale
from pipelag.runs.optimizers import OptimizerSpec
from pipelag.timing.layers import Profile
from tests.workflow.test_warm import JOB, ROOT

LINE = {"layer": 1, "name": "a", "forward_ms": 1.0, "backward_ms": 2.0, "output_bytes": 4, "weight_bytes": 4}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_file_that_says_that_it_is_another_is_refused(config: Path) -> None:
    change(config / "papers/stale_weights.yaml", "id: stale_weights", "id: stale_weight")
    with pytest.raises(PipelagError, match="says id: stale_weight; change this to stale_weights"):
        load_paper("stale_weights")
    change(config / "scales/quick.yaml", "name: quick", "name: fast")
    with pytest.raises(PipelagError, match="says name: fast; change this to quick"):
        load_scale("quick")


def test_seeds_claims_and_papers_that_stand_there_twice_are_refused(config: Path) -> None:
    change(config / "scales/paper.yaml", "\nseeds: [0, 1, 2]", "\nseeds: [0, 0]")
    with pytest.raises(PipelagError, match="seed 0 appears twice"):
        load_scale("paper")
    claim = "- {id: t2_lowers,"
    change(config / "papers/pipemare.yaml", claim, claim + " text: 'a claim'}\n    " + claim)
    with pytest.raises(PipelagError, match="claim t2_lowers appears twice"):
        load_paper("pipemare")
    workflow = {"scale": "quick", "device": "auto", "published": "cpu", "retrain": False, "threads_per_run": 1}
    workflow |= {"runs_per_gpu": 1, "plugins": [], "papers": ["pipemare", "pipemare"]}
    with pytest.raises(PipelagError, match="paper pipemare appears twice"):
        check_workflow(workflow)


@pytest.mark.parametrize("scale", ["quick", "standard", "paper"])
def test_a_device_of_published_logs_is_for_the_published_scale(scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that extends another, as `standard` does."""
    assert main(["list", "pipemare", "--scale", scale, "--published", "tpu"]) == 2
    assert f"the scale '{scale}' has no logs by device, such as 'tpu'" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{"nesterov": True}, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}])
def test_nesterov_needs_a_momentum(settings: dict[str, Any]) -> None:
    with pytest.raises(PipelagError, match="nesterov needs a momentum above 0"):
        OptimizerSpec(lr=0.1, **settings)


@pytest.mark.parametrize("missing", ["kept_bytes", "output_bytes", "weight_bytes"])
def test_a_profile_says_what_its_layers_hold(missing: str, tmp_path: Path) -> None:
    content = {key: value for key, value in ({"kept_bytes": 4} | LINE).items() if key != missing}
    path = tmp_path / "profile.jsonl"
    path.write_text(json.dumps(content) + "\n")
    with pytest.raises(PipelagError, match=missing):
        Profile.load(path)


def test_an_empty_folder_is_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["run", "--spec", json.dumps({"kind": "count", "model": {"name": "lenet5"}}), "--out", ""])
    assert end.value.code == 2 and "it is empty; give a path" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


ADVICE: list[tuple[list[str], str]] = [
    (["config/examples/vgg16_v100.jsonl", "--options", "{width: 0.5}"], "--options applies to a registered model"),
    (["config/examples/vgg16_v100.jsonl", "--data", "shapes"], "--data applies to a registered model"),
    (["config/examples/vgg16_v100.jsonl", "--model", "vgg61"], "unknown model 'vgg61'"),
    (["vgg16", "--model", "vgg16"], "--model applies to a profile's file"),
    (["vgg16", "--steps", "10"], "--steps applies to the run in --config"),
]


@pytest.mark.parametrize(("words", "sentence"), ADVICE, ids=[sentence for _, sentence in ADVICE])
def test_advice_does_not_leave_out_what_it_is_told(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["advise", *words, "--cluster", "config/examples/one_server.yaml", "--batch", "64"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_trace_or_config_that_was_changed_is_not_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pipelag.results.logs import read_log

    spec: dict[str, Any] = {"kind": "timeline", "phases": [{"method": "pipedream", "steps": 2, "cuts": [1]}]}
    spec["options"] = {"costs": {"forward": 1, "backward": 2}}
    folder = tmp_path / "run"
    assert main(["run", "--spec", json.dumps(spec), "--out", str(folder)]) == 0
    assert main(["timeline", str(folder), "--out", str(tmp_path / "t.svg")]) == 0
    change(folder / "trace.json", '"dur":1000000.0', '"dur":7000000.0')
    assert main(["timeline", str(folder), "--out", str(tmp_path / "t.svg")]) == 2
    assert "is not what its run wrote" in capsys.readouterr().err
    assert read_log(folder) is not None
    change(folder / "config.yaml", "steps: 2", "steps: 3")
    with pytest.raises(PipelagError, match="is not what its run wrote"):
        read_log(folder)


PLUGINS: list[tuple[str, str, str]] = [
    ("import sys; sys.exit(0)", "mine", "the plugin 'mine' fails: SystemExit"),
    ("", "../mine.py", "the plugin '../mine.py' is not the name of a module"),
    (
        "from pipelag.runs.optimizers import optimizer\n\n@optimizer('theirs')\ndef theirs(spec):\n    pass\n",
        "mine",
        "the optimizer 'theirs' returns None; it should return a function",
    ),
]


@pytest.mark.real  # a fork has torch loaded
@pytest.mark.parametrize(("text", "name", "sentence"), PLUGINS, ids=[sentence for _, _, sentence in PLUGINS])
def test_a_plugin_that_fails_is_told_of(text: str, name: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    spec = {
        "model": {"name": "lenet5"}, "data": {"name": "digits"}, "batch": 20,
        "optimizer": {"name": "theirs", "lr": 0.1}, "phases": [{"method": "sequential", "steps": 2}],
    }  # fmt: skip
    environment = os.environ | {"PIPELAG_PLUGINS": name}
    command = [*JOB, "run", "--spec", json.dumps(spec), "--out", "run"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 2
    assert sentence in run.stderr and "Traceback" not in run.stderr


SCHEDULES: list[tuple[str, dict[str, Any], str]] = [
    ("1f1b_rr", {"replicas": "21"}, "should give each of the 2 stages"),
    ("1f1b_rr", {"depth": 1.5}, "depth, the minibatches in the pipeline, should be a whole number from 1 on, not 1.5"),
    ("asp", {"workers": 0}, "a parameter server needs a whole number of workers"),
    ("asp", {"workers": "2"}, "a parameter server needs a whole number of workers"),
    ("pipemare", {"segment": -2}, "segment, a number of stages, should be a whole number"),
    ("pipemare", {"segment": 1.5}, "segment, a number of stages, should be a whole number"),
    ("cycle", {"colocated": "no"}, "it should be True or False"),
]


@pytest.mark.parametrize(("name", "options", "sentence"), SCHEDULES)
def test_options_of_schedules_are_of_their_kind(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        pipelag.schedule(name, stages=2, minibatches=4, **options)


def test_delays_are_of_one_stage_or_more() -> None:
    with pytest.raises(PipelagError, match="at least 1 stage"):
        pipelag.methods.get("pipedream").delays(0)


def test_the_momentum_of_sparse_gradients_is_left_to_the_optimizer() -> None:
    torch.manual_seed(0)
    words = torch.nn.Embedding(10, 4, sparse=True)
    layers = torch.nn.Sequential(words, torch.nn.Flatten(), torch.nn.Linear(12, 2))
    plain = torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    plain.load_state_dict(layers.state_dict())
    batches = [(torch.randint(10, (8, 3)), torch.randint(2, (8,))) for _ in range(4)]
    pipelag.train(layers, batches, method="sequential", optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9})
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(plain(inputs), targets).backward()
        optimizer.step()
    for expected, trained in zip(plain.parameters(), layers.parameters(), strict=True):
        assert torch.equal(expected, trained)
