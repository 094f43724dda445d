"""What `pipelag timeline` draws is what the trace says: every pass, message and sum, in its units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelag.__main__ import main
from pipelag.commands.timeline import recorded, unit_of
from pipelag.report.timelines import timeline

LINK = {"topology": {"bandwidth": 4.0}, "costs": {"forward": 1.0, "backward": 2.0, "weight_bytes": 4.0}}


def run(out: Path, method: str, options: dict[str, Any], **phase: Any) -> Path:
    """A timeline's folder."""
    spec = {"kind": "timeline", "phases": [{"method": method, "steps": 2, "cuts": [1], **phase}], "options": options}
    assert main(["run", "--spec", json.dumps(spec), "--out", str(out)]) == 0
    return out


def test_a_schedule_whose_replicas_sum_gradients_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two stages in both directions: 2 x 2 microbatches, two passes each, of which some send; the sums take no time."""
    words = ["timeline", "bidirectional", "--stages", "2", "--microbatches", "2", "--minibatches", "2"]
    for end in ("svg", "json"):
        assert main([*words, "--transfer", "1", "--out", str(tmp_path / f"plan.{end}")]) == 0
        assert "16 actions and 8 messages on 2 workers" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "plan.json")]) == 0
    assert "plan.json: 16 actions on 2 workers\n" in capsys.readouterr().out


def test_sums_of_gradients_that_take_time_are_no_idle_time(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "bidirectional", LINK, microbatches=2)
    rows = recorded(folder)
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("worker", "start", "end", "kind", "stage", "minibatch")
    assert sorted([row[key] for key in keys] for row in rows) == sorted([row[key] for key in keys] for row in logged)
    sums = [row for row in rows if row["kind"] == "S"]
    assert len(sums) == 2 * 2 * 2 and {row["end"] - row["start"] for row in sums} == {1.0}
    figure = timeline(rows, ["worker 1", "worker 2"], number=lambda row: str(row["minibatch"]))
    axes = figure.axes[0]
    assert axes.get_xlim() == (0, json.loads((folder / "summary.json").read_text())["makespan"])
    _, boxes, _ = axes.collections
    assert len(boxes.get_paths()) == sum(row["kind"] != "send" for row in rows)
    assert "gradients summed" in {text.get_text() for text in figure.legends[0].get_texts()}


def test_what_takes_no_time_shares_no_cell_with_what_follows() -> None:
    rows = [
        {"worker": 0, "kind": "S", "minibatch": 0, "start": 0.0, "end": 0.0},
        {"worker": 0, "kind": "F", "minibatch": 1, "start": 0.0, "end": 2.0},
    ]
    figure = timeline(rows, ["worker 1"], number=lambda row: str(row["minibatch"]))
    _, boxes, _ = figure.axes[0].collections
    (box,) = boxes.get_paths()
    assert box.get_extents().height == pytest.approx(0.84)


def test_a_drawing_of_a_run_has_the_runs_units(tmp_path: Path) -> None:
    assert unit_of(run(tmp_path / "clocked", "stale_weights", {})) == "cycles"
    assert unit_of(run(tmp_path / "timed", "stale_weights", LINK)) == "time units"
    (tmp_path / "real").mkdir()  # what trains is timed in seconds; so is what says nothing
    assert unit_of(tmp_path / "real") == "seconds"
    (tmp_path / "real" / "config.yaml").write_text("kind: train\n")
    assert unit_of(tmp_path / "real") == "seconds"
