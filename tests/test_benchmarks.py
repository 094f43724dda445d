"""The benchmarks' rows and their page; what they measure is measured by `make bench`, never by a test."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import all as every
from benchmarks import gpu_check, host_calls, page, recorded_steps, simulated_overhead
from benchmarks.ledger import VARIABLE, interval, note, reached, within_noise
from pipelag.methods import get
from pipelag.simulate.training import SimulatedTraining

ROOT = Path(__file__).resolve().parents[1]


def held(rows: list[dict[str, Any]]) -> dict[str, Any]:
    environment = {"device": "two cores", "versions": {"torch": "2"}, "commit": "abc", "date": "2026-01-02T00"}
    return {"runs": [{"command": "scaling", "load": 0.5, "seconds": 1.0, "environment": environment, "rows": rows}]}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    note("nobody asked", "a", [1.0])
    monkeypatch.setenv(VARIABLE, str(tmp_path / "rows.jsonl"))
    note("step / step", "ResNet", [1.02, 1.01, 1.2], most=1.03)
    note("step / step", "Transformer", [1.08], most=1.03)
    for work in (1_000, 10_000):
        note("planning", str(work), [work**2 * 1e-6], "CPU s", most=10.0, work=work)
    return [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]


def test_a_row_is_the_median_and_what_is_wanted_of_it(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    assert (first["median"], first["low"], first["high"], first["blocks"]) == (1.02, 1.01, 1.2, 3)
    assert [reached(row) for row in rows] == [True, False, True, False]
    assert reached(first | {"most": None}) is None and reached(first | {"most": None, "least": 1.5}) is False


def test_the_page_says_goals_and_exponents(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    text = page.text({"cpu": held(rows)})
    assert "2 of 4 goals are reached." in text
    assert "| ResNet | 1.02 | 1.01 to 1.2 | at most 1.03 | yes |" in text
    assert "| Transformer | 1.08 | 1.08 to 1.08 | at most 1.03 | **no** |" in text
    assert "to the power of 2.00" in text and "| scaling | abc | 2 | 2026-01-02 | 0.5 | 1.0 |" in text
    page.plot({"cpu": held(rows)}, tmp_path / "scaling.svg")
    assert "exponent 2.00" in (tmp_path / "scaling.svg").read_text()


def test_the_interval_of_a_median_holds_it_in_95_of_100_cases() -> None:
    """The ranks of the usual table of confidence intervals for a median, and by trial."""
    ranks = {1: None, 5: None, 6: (1, 6), 8: (1, 8), 9: (2, 8), 17: (5, 13), 25: (8, 18), 40: (14, 27)}
    assert {count: interval(range(count, 0, -1)) for count in ranks} == ranks
    random = torch.Generator().manual_seed(0)
    samples = torch.empty(2000, 41).log_normal_(0.0, 1.0, generator=random)  # of median 1, and skewed
    held = [low <= 1 <= high for low, high in (interval(sample) for sample in samples.tolist())]  # type: ignore[misc]
    assert 0.95 <= sum(held) / len(held) <= 0.99
    assert interval(range(5000)) == (2430, 2569)


def test_a_goal_within_the_noise_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "rows.jsonl"))
    steady, wide = [1.0] * 3 + [1.01] * 3, [0.9, 1.0, 1.0, 1.1, 1.1, 1.2]
    for case, values in (("steady", steady), ("wide", wide), ("few", [0.9, 1.2])):
        note("step / step", case, values, most=1.03)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [within_noise(row) for row in rows] == [False, True, False]
    text = page.text({"cpu": held(rows)})
    assert "1 of 3 goals are reached; for 1 of the 3 the answer is uncertain." in text
    assert "| 1.05 | 0.9 to 1.2 | 0.9 to 1.2 | at most 1.03 | **no** (uncertain) |" in text
    assert "| 1.05 | 0.9 to 1.2 | – | at most 1.03 | **no** |" in text
    assert not within_noise(rows[1] | {"most": None})


def test_pairs_follow_until_the_median_is_known() -> None:
    close, apart = [1 + 0.001 * k for k in range(10)], [1 + 0.1 * k for k in range(10)]
    assert simulated_overhead.precise(close, 0.01) and not simulated_overhead.precise(apart, 0.01)
    assert not simulated_overhead.precise(close[:5], 0.01)


def test_a_device_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    titles = {"cuda:0": "NVIDIA H100 80GB HBM3", "cuda:1": "NVIDIA GeForce RTX 4090", "cuda:2": "NVIDIA GPU"}
    monkeypatch.setattr(every, "device_title", titles.__getitem__)
    assert [every.named(device) for device in ("cpu", *titles)] == ["cpu", "h100", "4090", "gpu"]


@pytest.mark.parametrize("more", ["", "--bf16"])
def test_recorded_steps_are_compared_with_both(
    more: str, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, where nothing is recorded, without goals."""
    small = f"--device cpu --batch 4 --steps 1 --rounds 2 --width 0.25 {more}"
    monkeypatch.setattr(sys, "argv", ["recorded_steps", *small.split()])
    recorded_steps.main()
    recorded = [json.loads(line) for line in Path(os.environ[VARIABLE]).read_text().splitlines()][len(rows) :]
    assert len(recorded) == 6 + 5 + 4 and all(reached(row) is None and row["blocks"] == 2 for row in recorded)
    seconds, eager, alone = (
        {row["case"]: row["median"] for row in recorded if word in row["what"]}
        for word in ("iterations", "eager plain", "without a pipeline")
    )
    assert len(seconds) == 6 and len(eager) == 5 and len(alone) == 4


@pytest.mark.parametrize(("name", "stages", "microbatches"), [("pipedream", 4, 1), ("stale_weights", 8, 1)])
def test_a_simulated_step_is_measured_once_the_pipeline_is_full(
    name: str, stages: int, microbatches: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many small minibatches go ahead as there are before every pass reads updated weights."""
    delays = get(name).delays(stages, microbatches)
    steps: list[int] = []  # samples of each
    step = SimulatedTraining.step
    monkeypatch.setattr(SimulatedTraining, "step", lambda self, x, y: steps.append(len(x)) or step(self, x, y))
    words = f"--model transformer --stages {stages} --batch 4 --microbatches {microbatches} --rounds 2 --seconds 0"
    words += f" --methods {name}"
    monkeypatch.setattr(sys, "argv", ["simulated_overhead", *words.split()])
    simulated_overhead.main()
    full = len(steps) - simulated_overhead.WARM - 2
    assert steps == [2] * full + [4] * (simulated_overhead.WARM + 2) and name in capsys.readouterr().out
    assert min(full - lag for lag in (*delays.forward, *delays.backward)) == 1  # the oldest version that is read


def test_what_python_does_in_a_replayed_step_is_counted(
    rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same whenever it is counted; a method takes more calls than none. The CPU still records nothing after."""
    monkeypatch.setattr(sys, "argv", ["host_calls", "--steps", "3"])
    host_calls.main()
    counted = [json.loads(line) for line in Path(os.environ[VARIABLE]).read_text().splitlines()][len(rows) :]
    together, counted = counted[-4:], counted[:-4]
    by_method = {row["case"]: row["median"] for row in counted if "of torch" in row["what"] and "SGD" in row["what"]}
    assert set(by_method) == {host_calls.ALONE, *host_calls.METHODS}
    assert len(counted) == 2 * len(host_calls.OPTIMIZERS) * len(by_method)
    assert 0 < 2 * together[3]["median"] < together[1]["median"], (
        "operations for a minibatch, made with others or alone"
    )
    assert host_calls.calls("spectrain", "SGD", 3)[1] == by_method["spectrain"] > by_method[host_calls.ALONE] > 0
    assert host_calls.graphs.recorder_of(torch.device("cpu")) is None


@pytest.mark.real
@pytest.mark.parametrize("name", ["_random", "_taken", "_auto", "_divided"])
def test_what_a_gpu_is_asked_holds_on_the_cpu(name: str) -> None:
    function = {each.__name__: each for _, each in gpu_check.CHECKS}[name]
    function(torch.device("cpu"))


def test_the_committed_page_is_what_the_measurements_say() -> None:
    files = {each.stem: json.loads(each.read_text()) for each in sorted((ROOT / page.FOLDER).glob("*.json"))}
    if not files:
        pytest.skip("no measurements are committed")
    assert (ROOT / "docs/benchmarks.md").read_text() == page.text(files)


def test_every_table_of_the_committed_page_says_what_it_compares() -> None:
    files = [json.loads(each.read_text()) for each in sorted((ROOT / page.FOLDER).glob("*.json"))]
    titles = {row["what"] for each in files for row in page.rows_of(each)}
    assert [title for title in sorted(titles) if not title.startswith(tuple(page.ABOUT))] == []
