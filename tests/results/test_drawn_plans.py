"""PipeDream's tables and figures of plans: numbers of logs made here, worked out beside them by hand."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from pipelag.experiments import Arm
from pipelag.results.drawing import draw
from pipelag.results.logs import RunLog
from pipelag.results.verdict import verdicts
from tests.results.cases.pipedream import ALIKE, PRINTED, RING, plans_as, training
from tests.results.made_up import Make, log
from tests.results.test_drawn_times import cells, made

pytestmark = pytest.mark.usefixtures("in_project")


def test_the_speedup_to_the_target_is_the_epochs_times_that_of_an_epoch() -> None:
    """Section 5.2. VGG-16 needs half of data parallelism's epochs, give or take one; the others need as many.

    Trained on 16 GPUs, and the language model on 4 with a minibatch of 80 in all: other rows have no such speedup.
    """
    plans = {
        ("VGG-16", "4x4 (A)"): {"15-1": 3.0, "data parallel": 1.0},
        ("VGG-16", "2x8 (B)"): {"15-1": 2.0, "data parallel": 1.0},
        ("GNMT-16", "1x4 (A)"): {"straight": 1.5, "data parallel": 1.0},
        ("GNMT-16", "4x4 (A)"): {"straight": 2.5, "data parallel": 1.0},
        ("AWD-LM", "1x4 (A)"): {"straight": 4.0, "data parallel": 1.0},
    }
    epochs = ALIKE | {("VGG-16", "PipeDream"): 20, ("VGG-16", "data parallelism"): 40}
    rows = cells(made("pipedream", "table_1", training(epochs, plans_as(plans))))
    to_target = {
        (row["Model"], row["Servers"]): row["ours, the paper's config: to target"]
        for row in rows
        if row["ours, the paper's config: epoch"] != "–"
    }
    half = fmean((39 / 19, 40 / 20, 41 / 21))
    assert to_target == {
        ("VGG-16", "4x4 (A)"): f"{3 * half:.2f}x",
        ("VGG-16", "2x8 (B)"): f"{2 * half:.2f}x",
        ("GNMT-16", "1x4 (A)"): "–",
        ("GNMT-16", "4x4 (A)"): "2.50x",
        ("AWD-LM (80 in all)", "1x4 (A)"): "4.00x",
        ("AWD-LM (80 per GPU)", "1x4 (A)"): "–",
    }


def only_of(model: str, servers: str, *rows: dict[str, Any], **summary: Any) -> Make:
    """The log of one row of table 1."""

    def make(arm: Arm) -> RunLog | None:
        own = [arm.labels.get(key) for key in ("what", "model", "servers")] == ["plan", model, servers]
        return log([{"what": "plan", **row} for row in rows], **summary) if own else None

    return make


def stages_of(*times: tuple[float, float]) -> list[dict[str, float]]:
    """By (forward, backward) milliseconds."""
    return [{"forward_ms": forward, "backward_ms": backward} for forward, backward in times]


def test_a_stage_without_work_is_named_by_its_number_from_1() -> None:
    """A stage without a forward may have a backward, and works then."""
    idle, working = stages_of((1, 2), (0, 0), (0, 1)), stages_of((1, 2), (0, 1), (1, 0))
    plans = [
        {"plan": PRINTED, "config": "14-1-1", "stages": idle, "samples_per_second": 1.0},
        {"plan": RING, "config": "8-4-4", "stages": working, "samples_per_second": 1.0},
    ]
    drawn = draw(made("pipedream", "table_1", only_of("GNMT-8", "2x8 (B)", *plans))).table
    assert drawn is not None
    (note,) = (note for note in drawn.notes if "computes nothing" in note)
    assert note.startswith("GNMT-8 on 2x8 (B), 14-1-1: stage 2 computes nothing")


def tied(found: float, papers: float) -> Make:
    """AlexNet's plan on 4x4 (A) and the paper's, predicted to take so many seconds by either cost."""
    predicted = ((PRINTED, "12-1-2-1", found), (RING, "12-1-2-1", found), ("15-1", "15-1", papers))
    plans = [
        {"plan": plan, "config": config, "predicted": {"paper": 2 * time, "ring": time}, "samples_per_second": 1.0}
        for plan, config, time in predicted
    ]
    plans = [plan | {"stages": stages_of((1, 2))} for plan in plans]
    return only_of("AlexNet", "4x4 (A)", *plans)


@pytest.mark.parametrize(("papers", "equal"), [(0.015, True), (0.0151, False)])
def test_a_plan_of_the_paper_that_is_predicted_to_be_as_fast_is_named(papers: float, equal: bool) -> None:
    """Which of two equal plans a search gives is chance, and no evidence against the other."""
    drawn = draw(made("pipedream", "table_1", tied(0.015, papers))).table
    assert drawn is not None
    notes = [note for note in drawn.notes if "predicted" in note]
    assert notes == ["AlexNet on 4x4 (A): 15-1 is predicted to be as fast as 12-1-2-1"] * equal


@pytest.mark.parametrize(("papers", "equal"), [(0.015, True), (0.0151, False)])
def test_a_verdict_on_a_plan_names_the_equal_one(papers: float, equal: bool) -> None:
    def make(arm: Arm) -> RunLog | None:
        slower = tied(0.015, papers)(arm)
        other = [("what", "plan"), ("model", "AlexNet"), ("servers", "2x8 (B)")]
        if not all(arm.labels.get(key) == value for key, value in other):
            return slower
        plans = [{"what": "plan", "plan": plan, "config": "14-1-1"} for plan in (PRINTED, RING)]
        return log(plans)

    judged = verdicts(made("pipedream", "table_1", make))
    why = next(verdict.why for verdict in judged if verdict.claim == "plan_alexnet")
    words = "printed 15-1, predicted to be as fast by the printed cost and by a ring's cost; 2x8 (B)"
    assert (words in why) is equal and ("printed 15-1; 2x8 (B)" in why) is not equal


@pytest.mark.parametrize("result", ["table_1", "text_communication_reduction"])
def test_plans_with_fewer_samples_than_the_rows_name_says_are_told(result: str) -> None:
    """The language model's search has 20 samples for each replica; only its straight pipeline is timed with 80."""
    found = {"2-2": 2, "straight": 1}
    rows = [
        {
            "plan": plan,
            "config": config,
            "stages": [{"replicas": found[config], "forward_ms": 1.0, "backward_ms": 2.0}],
            "samples_per_second": 1.0,
            "bytes_per_sample": 1.0,
        }
        for plan, config in ((PRINTED, "straight"), (RING, "2-2"))
    ]
    drawn = draw(made("pipedream", result, only_of("AWD-LM", "1x4 (A)", *rows, batch=20, workers=4))).table
    assert drawn is not None
    notes = [note for note in drawn.notes if note.startswith("AWD-LM (80 in all)")]
    each = "minibatches of 20, one for each replica of the first stage, so 40 in all"
    assert notes == [f"AWD-LM (80 in all), 2-2: {each}"]


def test_clusters_have_the_papers_gpus_and_links() -> None:
    """Table 2: 4 V100s by PCIe and 10 Gbps between servers, 8 by NVLink and 25 Gbps, 1 Titan X and 40 Gbps."""
    rows = cells(made("pipedream", "table_2", lambda arm: log()))
    told = [
        tuple(row[f"planned for: {key}"] for key in ("GPUs per server", "inside (GB/s)", "between (Gbps)"))
        for row in rows
    ]
    assert told == [("4", "3", "10"), ("8", "30", "25"), ("1", "–", "40")]
    for row, (gpus, _, gbps) in zip(rows, told, strict=True):
        assert row["paper: GPUs"].startswith(f"{gpus}x ") and row["paper: between (Gbps)"] == gbps


def test_the_workflow_tells_milliseconds_and_megabytes() -> None:
    stages = [{"versions": 2}, {"versions": 1}]
    plan = {"plan": PRINTED, "config": "15-1", "search_seconds": 0.004, "timed": 0.0125, "stages": stages}
    sizes = {"layers": 19, "forward_ms": 100.0, "backward_ms": 200.0, "weight_bytes": 528e6, "workers": 16}
    drawn = draw(made("pipedream", "figure_6", only_of("VGG-16", "4x4 (A)", plan, **sizes)))
    assert drawn.data is not None
    assert dict(zip(drawn.data["step"], drawn.data["gave"], strict=True)) == {
        "profile": "19 layers, 300 ms\n528 MB of weights",
        "optimiser": "2 stages on 15-1 workers\nfound in 4 ms",
        "runtime": "2 minibatches in flight\nper input replica,\n12.5 ms per minibatch",
    }


def test_no_overhead_is_below_0_by_rounding() -> None:
    rows = [{"what": "plan", "plan": "x", "workers": gpus, "overhead": of} for gpus, of in ((1, -2e-16), (2, 0.25))]
    drawn = draw(made("pipedream", "figure_1", lambda arm: log(rows), "quick"))
    assert drawn.data is not None and sorted(set(drawn.data["percent"])) == [0.0, 25.0]
    assert min(str(value) for value in drawn.data["percent"]) == "0.0"
