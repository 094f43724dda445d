"""What schedules cost, against PipeMare's table 1; and the studies that log it."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from pipelag.runs.kinds.theory import study
from pipelag.runs.spec import RunSpec
from pipelag.theory.pipelines import pipeline


def rows_of(out: Path, **options: Any) -> list[dict[str, Any]]:
    """What a study logs."""
    study(RunSpec(kind="theory", options=options), out, "cpu", 1)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (4, 1), (5, 3), (13, 8), (6, 40)])
def test_pipelines_cost_what_table_1_says(stages: int, microbatches: int) -> None:
    tau = tuple(ceil((2 * (stages - i) + 1) / microbatches) for i in range(1, stages + 1))
    none, one = (0,) * stages, (1,) * stages
    gpipe = pipeline("gpipe", stages, microbatches)
    assert gpipe.utilisation == pytest.approx(microbatches / (microbatches + stages - 1))
    assert (gpipe.forward_delays, gpipe.backward_delays, gpipe.copies) == (none, none, one)
    dream = pipeline("pipedream_cycle", stages, microbatches)
    assert dream.utilisation == pytest.approx(1.0)
    assert (dream.forward_delays, dream.backward_delays) == (tau, tau)
    assert dream.copies == tuple(1 + lag for lag in tau)
    mare = pipeline("pipemare_naive", stages, microbatches)
    assert (mare.utilisation, mare.copies) == (dream.utilisation, one)
    assert (mare.forward_delays, mare.backward_delays) == (tau, none)


def test_a_pipeline_with_a_slow_start_is_measured_when_it_is_full() -> None:
    assert pipeline("1f1b", 6, 1).utilisation == pytest.approx(1.0)
    assert pipeline("sequential", 4, 1).utilisation == pytest.approx(0.25)


def test_the_studies_log_what_they_say(tmp_path: Path) -> None:
    costs = rows_of(tmp_path / "pipelines", study="pipelines", pipelines=[[3, 2]])
    assert [(row["method"], row["stages"], row["microbatches"]) for row in costs] == [
        ("GPipe", 3, 2),
        ("PipeDream", 3, 2),
        ("PipeMare", 3, 2),
    ]
    pairs = rows_of(tmp_path / "pairs", study="stable_over_pairs", most=3, deltas=[0.0, 2.0])
    assert [(row["forward"], row["backward"]) for row in pairs[::2]] == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    assert all(row["T2"] >= row["original"] - 1e-12 for row in pairs)
    (compute,) = rows_of(tmp_path / "compute", study="compute", model="transformer", words=4)
    assert compute["backward"] == 2 * compute["forward"]  # two matrix products for one
    (compute,) = rows_of(tmp_path / "tuple", study="compute", model="bert", words=4)  # whose output is a tuple
    assert compute["backward"] == 2 * compute["forward"]
    lemma = rows_of(tmp_path / "lemmas", study="lemmas", taus=[12], deltas=[], betas=[1.0])
    assert lemma[0]["below"] < 1 < lemma[0]["above"] and lemma[1]["stable"] <= lemma[1]["bound"]
