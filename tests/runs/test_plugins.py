"""A user's module: what it registers can be named in a run, and mistakes in it are one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipelag.plugins import VARIABLE, named_plugins
from tests.workflow.test_warm import JOB

pytestmark = pytest.mark.real  # but for the first, forks of the warm process
PLUGIN = """
from dataclasses import replace
from torch import nn
from pipelag import models
from pipelag.methods import get, register

register(replace(get("1f1b"), name="timid", learning_rate=lambda stage, stages, step, tau: 0.5))

@models.register("mine")
def mine(classes=10, in_channels=1):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Tanh(), nn.Linear(16, classes))
"""
SPEC = {
    "kind": "train",
    "model": {"name": "mine"},
    "data": {"name": "digits"},
    "batch": 32,
    "optimizer": {"lr": 0.1},
    "phases": [{"method": "timid", "steps": 4, "cuts": [2]}],
}


def run(folder: Path, plugins: str, start: Sequence[str] = JOB) -> subprocess.CompletedProcess[str]:
    command = [*start, "run", "--spec", json.dumps(SPEC), "--out", "run", "--threads", "1"]
    environment = {**os.environ, "PIPELAG_PLUGINS": plugins}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_what_a_plugin_registers_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    done = run(tmp_path, "my_plugin", [sys.executable, "-m", "pipelag"])
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["phases"][0]["method"] == "timid"


def test_without_it_the_names_are_unknown(tmp_path: Path) -> None:
    refused = run(tmp_path, "")
    assert refused.returncode == 2 and "unknown" in refused.stderr


def test_a_plugin_that_is_not_there_or_fails_is_named(tmp_path: Path) -> None:
    refused = run(tmp_path, "my_plugin")
    assert refused.returncode == 2
    assert "the plugin 'my_plugin' cannot be imported" in refused.stderr
    (tmp_path / "my_plugin.py").write_text("1 / 0")
    refused = run(tmp_path, "my_plugin")
    assert refused.returncode == 2
    assert "the plugin 'my_plugin' fails: ZeroDivisionError: division by zero" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("makes", "sentence"),
    [
        (
            "@models.register('odd')\ndef odd(**options): return nn.Linear(784, 10)",
            "model 'odd' returns a Linear; it should return an",
        ),
        ("@models.register('odd')\ndef odd(**options): return [nn.Linear(784, 10)]", "model 'odd' returns a list"),
        ("@data.register('odd')\ndef odd(): return None", "the data set 'odd' returns None; it should return"),
    ],
)
def test_what_a_plugin_gives_is_looked_at(makes: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "my_plugin.py").write_text(PLUGIN + "from pipelag import data\n" + makes)
    changed = {"data": {"name": "odd"}} if "data" in sentence else {"model": {"name": "odd"}}
    environment = {**os.environ, "PIPELAG_PLUGINS": "my_plugin"}
    command = [*JOB, "run", "--spec", json.dumps(SPEC | changed), "--out", "run", "--threads", "1"]
    refused = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert refused.returncode == 2 and sentence in refused.stderr and "Traceback" not in refused.stderr


def test_the_variable_counts_before_the_config_even_where_it_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text("plugins: [theirs]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert named_plugins() == ["theirs"]
    for text, names in (("", []), ("mine, ours", ["mine", "ours"])):
        monkeypatch.setenv(VARIABLE, text)
        assert named_plugins() == names
