"""What `pipelag timeline` draws is what the trace says: every pass, message and sum, in its units."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipelag.__main__ import main
from pipelag.commands.timeline import recorded, unit_of
from pipelag.errors import PipelagError
from pipelag.methods import METHODS, get
from pipelag.report.timelines import timeline
from pipelag.results.logs import RunLog
from pipelag.results.timelines import under_way
from pipelag.runs.kinds.timeline import lay_out, rows_of, topology_of
from pipelag.runs.spec import RunSpec
from pipelag.timing.costs import Topology

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


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_a_pass_reads_a_version_in_the_units_that_have_it(method: str, microbatches: int) -> None:
    """SpecTrain, section 3.2: W_u are the weights at the start of time unit u, so all updates before it are in them."""
    try:
        plan = get(method).schedule(4, 6, microbatches)
    except PipelagError:
        return
    if plan.cycles is None:
        return
    updates: dict[int, list[int]] = {stage: [] for stage in range(1, 5)}
    for row, cycles in zip(plan.workers, plan.cycles, strict=True):
        for action, cycle in zip(row, cycles, strict=True):
            if action.kind == "U":
                updates[action.stage].append(cycle)
    rows = rows_of(plan, get(method))
    assert sorted({row["minibatch"] for row in rows}) == [*range(6)]
    for row in rows:
        if "units" in row:  # the rows of replicas name no versions
            first, last = row["units"]
            assert {sum(cycle < u for cycle in updates[row["stage"]]) for u in range(first, last + 1)} == {row["reads"]}
            assert first <= row["unit"] - row["ahead"] <= last


def test_a_runs_trace_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path / "run", "pipedream", {"costs": {"forward": 1, "backward": 2}})
    assert main(["timeline", str(folder), "--out", str(tmp_path / "x.json")]) == 0
    assert (tmp_path / "x.json").read_bytes() == (folder / "trace.json").read_bytes()
    assert "x.json: 8 actions on 2 workers" in capsys.readouterr().out


def test_a_timelines_costs_links_and_form_are_refused_by_name(tmp_path: Path) -> None:
    costs, accelerators = {"forward": 1, "backward": 2}, {"form": "2K+1"}
    for options, phase, sentence in (
        ({"costs": {"forward": 1, "back": 2}}, {}, "unknown cost 'back' of a stage; did you mean 'backward'"),
        ({"costs": [{"forward": 1}] * 2}, {}, "the cost 'backward' of a stage is missing"),
        ({"costs": costs, "topology": {"bandwith": 1}}, {}, "unknown setting 'bandwith' of a topology; did you mean"),
        (accelerators, {}, "the form 2K\\+1 belongs to the method stale_weights, not to 'pipedream'"),
        (accelerators, {"method": "stale_weights", "microbatches": 2}, "the form 2K\\+1 has whole minibatches and no"),
        (
            accelerators | {"replicas": [2, 1]},
            {"method": "stale_weights"},
            "the form 2K\\+1 has whole minibatches and no",
        ),
        ({"replicas": [2, 1], "costs": costs}, {"method": "gpipe"}, "replicas belong to PipeDream's 1F1B-RR, not to"),
        ({}, {"replicas": [2, 1]}, "a timeline takes its replicas from options.replicas"),
    ):
        phases = [{"method": "pipedream", "steps": 2, "cuts": [1]} | phase]
        spec = RunSpec.model_validate({"kind": "timeline", "phases": phases, "options": options})
        with pytest.raises(PipelagError, match=sentence):
            lay_out(spec, tmp_path / "run", "cpu", 1)


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


SPLIT = {"costs": {"forward": 1.0, "backward": 2.0, "weight_gradient": 0.5}}


@pytest.mark.parametrize("method", ["zb_h1", "zb_v"])
def test_a_run_whose_backwards_are_split_is_read_back_with_both_parts(tmp_path: Path, method: str) -> None:
    folder = run(tmp_path / "run", method, SPLIT, microbatches=2)
    rows = recorded(folder)
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("worker", "start", "end", "kind", "stage", "minibatch", "microbatch", "writes")
    assert sorted(json.dumps([row.get(key) for key in keys]) for row in rows) == sorted(
        json.dumps([row.get(key) for key in keys]) for row in logged
    )
    lengths = {(row["kind"], row["end"] - row["start"]) for row in rows}
    assert lengths == {("F", 1.0), ("B", 1.5), ("W", 0.5)}
    # a minibatch's gradient is whole with the last of its gradients of weights, and not before
    writers = [(row["kind"], row["stage"], row["microbatch"]) for row in logged if row["writes"] is not None]
    assert sorted(writers) == [("W", stage, m) for stage in (1, 2) for m in (1, 3)]


def test_activations_are_under_way_until_the_gradients_of_weights_are_there(tmp_path: Path) -> None:
    """ZB-H1's second stage: 2F0 2B0 2F1 2B1 2W0 2W1."""
    folder = run(tmp_path / "run", "zb_h1", SPLIT, microbatches=2)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert under_way(RunLog(folder, rows, {}, {})) == [2, 2]


def test_a_trace_names_actions_by_their_microbatch(tmp_path: Path) -> None:
    """As `Action` and the guide write them: 1B3 is stage 1's backward of microbatch 3, the second minibatch's last."""
    words = ["--stages", "2", "--microbatches", "2", "--minibatches", "2"]
    assert main(["timeline", "zb_h1", *words, "--out", str(tmp_path / "x.json")]) == 0
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    names = sorted(event["name"] for event in events if event["ph"] == "X")
    assert names == sorted(f"{stage}{kind}{m}" for stage in (1, 2) for kind in "FBW" for m in range(4))


def test_the_part_of_the_gradients_of_weights_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lengths(*more: str) -> dict[str, float]:
        words = ["timeline", "zb_h2", "--backward", "3", "--microbatches", "2", "--out", str(tmp_path / "plan.json")]
        assert main([*words, *more]) == 0
        events = json.loads((tmp_path / "plan.json").read_text())["traceEvents"]
        return {event["cat"]: event["dur"] / 1e6 for event in events if event["ph"] == "X"}

    assert lengths() == {"forward": 1.0, "backward": 1.5, "gradients of weights": 1.5}
    assert lengths("--weight-gradient", "1") == {"forward": 1.0, "backward": 2.0, "gradients of weights": 1.0}
    for words, sentence in (
        (("zb_h1", "--weight-gradient", "3"), "--weight-gradient is 3, but it is a part of a backward, which takes 2"),
        (("1f1b", "--weight-gradient", "1"), "--weight-gradient applies to schedules with W actions, such as zb_h1"),
        ((str(tmp_path), "--weight-gradient", "1"), "--weight-gradient applies to a schedule, and '"),
    ):
        assert main(["timeline", *words, "--out", str(tmp_path / "none.svg")]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "none.svg").exists()


@pytest.mark.parametrize(
    ("words", "stages"),
    [
        (("zb_v", "--stages", "4", "--microbatches", "2"), {"s1", "s2", "s3", "s4"}),
        (("bidirectional", "--stages", "2", "--microbatches", "2", "--transfer", "1"), {"s1", "s2"}),
        (("1f1b", "--stages", "4", "--transfer", "1"), set()),
        (("1f1b_rr", "--replicas", "2,1"), set()),
    ],
)
def test_passes_are_marked_with_their_stage_where_a_worker_has_several(
    tmp_path: Path, words: tuple[str, ...], stages: set[str]
) -> None:
    assert main(["timeline", *words, "--minibatches", "2", "--out", str(tmp_path / "plan.svg")]) == 0
    written = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "plan.svg").read_text())
    assert {text for text in written if re.fullmatch(r"s\d", text)} == stages
    (axis,) = (text for text in written if text.startswith("time ("))
    assert axis.endswith("; s: the stage") is bool(stages)


def test_marks_that_could_not_be_read_are_left_out() -> None:
    rows = [{"worker": 0, "kind": "F", "minibatch": m, "start": m, "end": m + 1} for m in range(1000)]
    figure = timeline(rows, ["worker 1"], number=lambda row: "1", label=lambda row: "s1")
    assert not figure.axes[0].texts


def test_a_link_may_be_infinitely_fast() -> None:
    assert topology_of({"bandwidth": float("inf")}) == Topology()
