"""Which log a number is from: a record names, of every run, its own folder, seed, machine, day and commit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipelag.commands.result import record
from pipelag.experiments import Arm
from pipelag.report.gather import Chapter, Entry, Record, Run
from pipelag.results.drawing import draw
from pipelag.results.loading import load_results
from pipelag.results.logs import RunLog
from tests.results.made_up import OFFICIAL, context, trained

pytestmark = pytest.mark.usefixtures("in_project")


def logged(arm: Arm) -> RunLog | None:
    """A log that says of everything whose it is; one arm has none, and one seed of another."""
    label, name, seed = arm.labels["arm"], arm.spec.id, arm.seed
    if label == "6-stage" or (label, seed) == ("4-stage", 2):
        return None
    data = OFFICIAL | {"title": f"data of {arm.labels['model']}", "release": f"release {seed}"}
    phases = [{"method": p.method, "cuts": list(p.cuts), "steps": p.steps, "stages": p.stages} for p in arm.spec.phases]
    run = trained(90.0, steps=arm.spec.steps, phases=phases, kind="train", seconds=3600.0 + seed, id=name)
    environment = {"device": f"device {seed}", "date": f"2026-01-0{seed + 1}", "commit": f"commit {name}"}
    return replace(
        run, folder=Path(f"results/x/runs/{name}"), environment=environment, summary=run.summary | {"data": data}
    )


def test_the_results_page_says_which_logs_are_not_from_two_cores() -> None:
    """Of all logs under results/published/cpu, by the machines and versions that they name themselves."""
    logs = [
        json.loads(path.read_text()) for path in sorted(Path("results/published/cpu/runs").glob("*/environment.json"))
    ]
    others = [log for log in logs if not log["device"].endswith("(2 cores)")]
    assert {log["device"] for log in others} == {"Intel(R) Xeon(R) Processor (16 cores)"}
    versions = [{log["versions"]["torch"].rsplit(".", 1)[0] for log in some} for some in (others, logs)]
    assert versions == [{"2.11"}, {"2.11", "2.15"}]
    assert all(log in others or log["versions"]["torch"].startswith("2.15") for log in logs)
    page = " ".join(Path("docs/results.md").read_text().split())
    words = f"{len(others)} of these logs are from sixteen cores beside an H100, and from an older PyTorch"
    assert words in page


def test_a_record_names_of_every_run_its_own_log() -> None:
    runs = context("stale_weights", "table_2", logged)
    load_results(runs.paper)
    drawn = draw(runs)
    told = record(runs, drawn, "")
    by_id = {run["id"]: run for run in told["runs"]}
    first = {item.arm.spec.id: item for item in reversed(runs.items)}  # a run that is used twice, as it is first
    assert set(by_id) == set(first) and len(told["runs"]) == len(by_id)
    for item in first.values():
        run, seed = by_id[item.arm.spec.id], item.arm.seed
        assert (run["seed"], run["labels"]) == (seed, item.arm.labels)
        if item.log is None:
            assert run["status"] == "no log" and "folder" not in run
            continue
        assert run["folder"] == f"results/x/runs/{item.arm.spec.id}"
        assert (run["device"], run["date"]) == (f"device {seed}", f"2026-01-0{seed + 1}")
        assert (run["commit"], run["steps"]) == (f"commit {item.arm.spec.id}", item.arm.spec.steps)
        assert (run["seconds"], run["data"]) == (3600.0 + seed, f"data of {item.arm.labels['model']}")
        assert (run["release"], run["status"], run["kind"]) == (f"release {seed}", "finished", "train")
    there = [item for item in first.values() if item.log is not None]
    assert (told["logged"], told["asked"]) == (len(there), len(first))
    assert told["devices"] == ["device 0", "device 1", "device 2"]
    models = {item.arm.labels["model"] for item in there}
    assert set(told["data"]) == {f"data of {model} (release {seed})" for model in models for seed in (0, 1, 2)}
    assert told["table"]["rows"] == drawn.table.texts()["rows"] if drawn.table else False
    hours = Chapter(runs.paper, [Entry(runs.paper, "table_2", Path("x"), Record.model_validate(told))]).hours
    assert hours == pytest.approx(sum(3600.0 + item.arm.seed for item in there) / 3600)


def test_a_commit_is_shortened_and_keeps_that_there_were_changes() -> None:
    one = Run(id="x", labels={}, seed=0, status="finished", commit="0123456789abcdef+")
    assert one.source == "012345678+"
