"""Times to a target and what follows from several logs: each number is worked out beside it by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pipelag.experiments import Arm
from pipelag.results.drawing import draw
from pipelag.results.logs import RunLog
from tests.results.made_up import carried_out, log
from tests.results.test_drawn_times import NETWORKS, approaches, cells, made, networks, rate, speedup

pytestmark = pytest.mark.usefixtures("in_project")


def climbing(arm: Arm, at: int, epochs: float = 10.0) -> RunLog:
    """A training that is at 70 % from its evaluation of that number on, of eight, and below 50 % before."""
    rows: list[dict[str, Any]] = []
    for number in range(1, 9):
        accuracy = 70.0 if number >= at else 40.0 + number
        row = {"step": 100 * number, "epoch": epochs * number, "accuracy": accuracy, "top5": accuracy + 20, "lr": 0.1}
        rows.append(row | {"loss": 1.0, "test_loss": 1.0})
    ends = {"final": rows[-1], "best": rows[-1], "diverged_at": None, "steps": arm.spec.steps}
    return log(rows, data={"name": "x", "title": "X", "official": True, "release": "official", "note": ""}, **ends)


def test_spectrains_times_are_iterations_by_seconds_over_data_parallelisms() -> None:
    """Figure 13: SpecTrain, which DualPipe is trained as, and PipeDream, over Data P."""
    at = {"Data P.": 4, "PipeDream": 8, "PipeDream, stashing": 6, "SpecTrain": 2, "Vanilla DualPipe": 3}

    def make(arm: Arm) -> RunLog | None:
        return climbing(arm, at[arm.labels["arm"]]) if arm.spec.kind == "train" else networks(arm)

    data = draw(made("spectrain", "figure_13", make)).data
    assert data is not None
    checked = 0
    for row in data.to_dict("records"):
        model = next((m for m in NETWORKS if m.replace("-", "") == re.sub(r"[-\n]", "", row["model"])), None)
        trained = {"DualPipe": "SpecTrain"}.get(row["scheme"], row["scheme"])
        timed = row["scheme"].removesuffix(", stashing")
        if model is not None:
            share = speedup(model, "Data P.") / speedup(model, timed)
            assert row["time"] == pytest.approx(at[trained] / at["Data P."] * share), (model, row["scheme"])
            checked += 1
    assert checked >= 2 * 3 * 3


def test_pipeoptims_hours_to_the_target_are_epochs_at_the_simulated_rate() -> None:
    """Table 6: of 100,000 images an epoch; of an arm that a seed has no log of, no best accuracy is told."""

    def make(arm: Arm) -> RunLog | None:
        if arm.spec.kind != "train":
            return approaches(arm)
        if (arm.labels["arm"], arm.seed) == ("XPipe", 1):
            return None
        return climbing(arm, 3 if arm.labels["arm"] == "PipeOptim" else 5)

    rows = cells(made("pipeoptim", "table_6", make))
    for row in rows:
        if row["approach"] == "XPipe":
            assert row["top-1 (%): ours"] == row["top-5 (%): ours"] == "–"
            continue
        epochs = 30 if row["approach"] == "PipeOptim" else 50
        seconds = 100_000 / rate(row["approach"], row["model"])
        assert row["to the target: epochs"] == f"{epochs:.2f}"
        assert row["epoch (s): ours, simulated"] == f"{seconds:.0f}"
        assert row["to the target (h): ours, simulated"] == f"{epochs * seconds / 3600:.2g}"
        assert (row["top-1 (%): ours"], row["top-5 (%): ours"]) == ("70.00", "90.00")
    assert len(rows) == 12


def test_distances_of_weights_are_of_their_method_and_horizon() -> None:
    """SpecTrain's figure 9: stale weights of its own run, and what each method predicts, 1, 2 and 3 updates ahead."""
    methods: list[str] = []

    def make(arm: Arm) -> RunLog:
        if arm.labels["arm"] not in methods:
            methods.append(arm.labels["arm"])
        number = methods.index(arm.labels["arm"]) + 1
        row: dict[str, Any] = {"step": 20, "accuracy": 50.0}
        for s in (1, 2, 3):
            row |= {f"rmse_predicted_{s}": number + s / 10, f"rmse_stale_{s}": 10 * number + s / 10}
            row |= {f"rmse_stale_{s}_most": 99.0, f"rmse_predicted_{s}_most": 99.0}
        return log([row], final=row, best=row, diverged_at=None)

    drawn = draw(made("spectrain", "figure_9", make))
    assert drawn.data is not None and drawn.chart is not None and drawn.chart["y"]["log"]
    seen = {(row["weights"], row["s"]): row["rmse"] for row in drawn.data.to_dict("records")}
    expected = {
        (f"predicted, {method}", f"s = {s}"): number + s / 10
        for number, method in enumerate(methods, 1)
        for s in (1, 2, 3)
    }
    own = methods.index("SpecTrain") + 1
    expected |= {("stale (SpecTrain's run)", f"s = {s}"): 10 * own + s / 10 for s in (1, 2, 3)}
    assert seen == expected and len(methods) > 1


def test_stale_weights_bounds_and_savings_follow_from_their_formulas() -> None:
    """Half of the iterations at 2K + 1 times the speed; GPipe on two equal stages; savings, of PipeDream's bytes."""
    rows = {
        row["quantity"]: row for row in cells(made("stale_weights", "text_hybrid_speedup_bound", carried_out, "quick"))
    }
    by_k = {int(name.split()[-1]): row for name, row in rows.items() if name.startswith("by the schedule, K")}
    assert by_k
    for k, row in by_k.items():
        assert row["formula"] == row["ours"] == f"{2 / (1 + 1 / (2 * k + 1)):.2f}"
    rows = {row["quantity"]: row for row in cells(made("stale_weights", "text_vs_gpipe_speedup", carried_out, "quick"))}
    gpipe = {int(name.split()[-2]): row for name, row in rows.items() if "by schedule, GPipe" in name}
    assert gpipe and all(row["ours"] == f"{2 * m / (m + 1):.2f}" for m, row in gpipe.items())
    saved = [row for row in cells(made("stale_weights", "text_memory_vs_pipedream", carried_out, "quick"))]
    for row in saved:
        if not row["what PipeDream adds, and what both hold"].startswith("paper"):
            ours, theirs = (float(row[f"{name} (MB)"].replace(",", "")) for name in ("stale weights", "PipeDream"))
            assert float(row["saving (%)"]) == pytest.approx(100 * (theirs - ours) / theirs, abs=0.2)
    assert len(saved) > 4
