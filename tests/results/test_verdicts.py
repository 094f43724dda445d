"""Judges over logs made in memory: every verdict can come out otherwise, and noise is not called a finding."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import pipelag.results.stale_weights  # noqa: F401  (registers the judges)
from pipelag.experiments import Arm, arms, load_paper, load_scale
from pipelag.results.logs import Context, Item, RunLog
from pipelag.results.verdict import JUDGES, Verdict, verdicts

ROOT = Path(__file__).resolve().parents[2]
PAPER = "stale_weights"


@pytest.fixture(autouse=True)
def _in_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    load_paper.cache_clear()
    load_scale.cache_clear()


def context(
    result: str, log: Callable[[Arm], RunLog | None], scale: str = "quick", seeds: Sequence[int] = (0,)
) -> Context:
    """A result's runs at a scale, with these logs."""
    paper = load_paper(PAPER)
    size = load_scale(scale).model_copy(update={"seeds": list(seeds)})
    items = [Item(arm, log(arm)) for arm in arms(paper, result, size)]
    return Context(paper, result, paper.results[result], size, items)


def judged(found: Context) -> dict[str, Verdict]:
    return {verdict.claim: verdict for verdict in verdicts(found)}


def run_log(rows: list[dict[str, Any]], **summary: Any) -> RunLog:
    return RunLog(Path("results/made-up"), rows, {"status": "finished", **summary}, {})


def trained(accuracy: float | None, rows: list[dict[str, Any]] | None = None) -> RunLog:
    final = None if accuracy is None else {"accuracy": accuracy}
    data = {"name": "x", "title": "X", "release": "official", "official": True, "note": ""}
    return run_log(rows or [], final=final, diverged_at=None if final else 195, data=data)


def timed(speedups: Sequence[float], whole: float = 1.1) -> Callable[[Arm], RunLog]:
    """Blocks whose non-pipelined minibatch takes a second; `whole`: the speedup of a hybrid block from end to end."""

    def log(arm: Arm) -> RunLog:
        steps = arm.spec.options["block_steps"]
        rows: list[dict[str, Any]] = []
        for block, times in enumerate(speedups):
            rows.append({"arm": "non-pipelined", "block": block, "steps": 10, "seconds": 10.0})
            rows.append({"arm": "pipelined", "block": block, "steps": 10, "seconds": 10.0 / times})
            both = {"steps": 20, "seconds": 10.0 + 10.0 / times, "whole_seconds": 2 * steps / whole}
            rows.append({"arm": "hybrid", "block": block} | both)
        return run_log(rows)

    return log


def speeds(by_depth: Mapping[str, Sequence[float]]) -> Context:
    """Table 5 with these speedups per block and no training runs."""
    wanted = dict(by_depth)

    def log(arm: Arm) -> RunLog | None:
        return timed(wanted[arm.labels["model"]])(arm) if arm.spec.kind == "speed" else None

    return context("table_5", log)


DEPTHS = ("ResNet-20", "ResNet-56", "ResNet-110", "ResNet-224", "ResNet-362")


def test_every_claim_has_a_judge_and_every_judge_a_claim() -> None:
    claims = {(PAPER, name, claim.id) for name, result in load_paper(PAPER).results.items() for claim in result.claims}
    assert claims == {key for key in JUDGES if key[0] == PAPER}


@pytest.mark.parametrize("result", list(load_paper(PAPER).results))
def test_without_logs_nothing_that_needs_them_is_judged(result: str) -> None:
    found = judged(context(result, lambda arm: None))
    from_the_config_alone = {"two_stages_per_register"}
    assert {v.verdict for v in found.values() if v.claim not in from_the_config_alone} <= {"cannot be judged"}


@pytest.mark.parametrize(
    ("shallow", "deep", "verdict"),
    [
        ([1.22, 1.24], [1.80, 1.83], "holds"),
        ([1.62, 1.98], [1.63, 1.71], "cannot be judged"),
        ([1.80, 1.83], [1.22, 1.24], "fails"),
        ([1.60, 1.62], [2.10, 2.12], "fails"),
    ],
)
def test_growth_needs_more_than_the_noise_between_blocks(shallow: list[float], deep: list[float], verdict: str) -> None:
    found = judged(speeds({depth: shallow if depth == DEPTHS[0] else deep for depth in DEPTHS}))
    assert found["speedup_grows_with_depth"].verdict == verdict
    assert f"{min(shallow):.2f} to {max(shallow):.2f}" in found["speedup_grows_with_depth"].why


def test_speeds_name_the_minibatch_that_is_not_the_papers() -> None:
    assert (
        "minibatches of 16 instead of 128"
        in judged(speeds(dict.fromkeys(DEPTHS, [1.7])))["deepest_uses_90_percent"].why
    )


def test_a_formula_put_together_like_the_measurement_is_not_confirmed_by_it() -> None:
    found = judged(context("text_hybrid_speedup_bound", timed([1.5], whole=1.1)))
    assert found["formula"].verdict == "cannot be judged"
    assert "ResNet-56 1.20, 1.10" in found["formula"].why  # 1 / (0.5 / 1.5 + 0.5), and end to end
    assert found["bound_4_3"].verdict == "holds"
    assert judged(context("text_hybrid_speedup_bound", timed([2.2])))["bound_4_3"].verdict == "fails"


@pytest.mark.parametrize(
    ("late", "verdict", "said"),
    [(240, "holds", "10-stage 240"), (280, "fails", "10-stage 280"), (None, "fails", "10-stage never")],
)
def test_an_arm_that_never_learns_does_not_converge(late: int | None, verdict: str, said: str) -> None:
    def log(arm: Arm) -> RunLog:
        start = late if arm.labels["arm"] == "10-stage" else 100
        rows = [
            {"step": step, "accuracy": 90.0 if start is not None and step >= start else 20.0}
            for step in range(20, 401, 20)
        ]
        return trained(rows[-1]["accuracy"], rows)

    found = judged(context("figure_5a", log))["converges_alike"]
    assert found.verdict == verdict and said in found.why


def test_seeds_that_survive_do_not_speak_for_those_that_diverged() -> None:
    def log(arm: Arm) -> RunLog:
        return trained(None if arm.labels["arm"] == "Pipelined 30k" and arm.seed == 2 else 90.0 + arm.seed)

    found = context("table_4", log, seeds=(0, 1, 2))
    assert found.accuracy(arm="Baseline 30k").text() == "91.00 ± 1.00"
    assert found.accuracy(arm="Pipelined 30k").text() == "90.50 ± 0.71 (2 of 3 seeds, diverged at step 195)"
    order = judged(found)["order"]
    assert order.verdict == "cannot be judged" and "Pipelined 30k: only 90.50" in order.why


def test_a_missing_seed_is_counted() -> None:
    found = context("table_4", lambda arm: None if arm.seed == 1 else trained(91.0), seeds=(0, 1, 2))
    assert found.accuracy(arm="Baseline 30k").text() == "91.00 ± 0.00 (2 of 3 seeds)"
    assert judged(found)["order"].verdict == "cannot be judged"


def test_sizes_are_judged_at_the_papers_length_only() -> None:
    accuracies = {"8": 90.3, "8-stage": 83.0}

    def log(arm: Arm) -> RunLog:
        return trained(accuracies.get(arm.labels["arm"], 85.0))

    claim = "early_registers_beat_late_ones"
    assert judged(context("table_3", log))[claim].why.count("only the order is judged") == 1
    assert judged(context("table_3", log, "paper"))[claim].verdict == "holds"
    accuracies["8"] = 83.1  # ahead, but not by about seven points
    assert judged(context("table_3", log))[claim].verdict == "holds"
    assert judged(context("table_3", log, "paper"))[claim].verdict == "fails"


def counted(weights: int, activations: int, batch: int) -> RunLog:
    rows = [{"layer": i, "parameters": weights, "activations": activations} for i in (1, 2, 3)]
    return run_log(rows, cuts=[1], batch=batch)


@pytest.mark.parametrize(("imagenet_activations", "order"), [(4000, "holds"), (1, "fails")])
def test_a_memory_model_fitted_to_the_claim_does_not_confirm_it(imagenet_activations: int, order: str) -> None:
    def log(arm: Arm) -> RunLog:
        activations = 100 if arm.labels["dataset"] == "CIFAR-10" else imagenet_activations
        return counted(10_000, activations, arm.spec.batch)

    found = judged(context("text_memory_vs_pipedream", log))
    assert found["savings"].verdict == "cannot be judged" and "agreeing is no evidence" in found["savings"].why
    assert found["shrinks_with_activations"].verdict == order


def test_rates_given_to_the_runs_are_not_found_by_them() -> None:
    found = judged(context("table_7", lambda arm: None))["deeper_needs_smaller_rate"]
    assert found.verdict == "cannot be judged" and "as printed" in found.why


def space_time(minibatches: int) -> list[dict[str, Any]]:
    """K = 1 on three accelerators, written down cycle by cycle."""
    rows: list[dict[str, Any]] = []
    for m in range(minibatches):
        for worker, cycle, kind, stage in ((0, m, "F", 1), (1, m + 1, "F", 2), (1, m + 1, "B", 2), (2, m + 2, "B", 1)):
            rows.append(
                {"worker": worker, "start": cycle, "end": cycle + 1, "kind": kind, "stage": stage, "minibatch": m}
            )
    return rows


def test_an_idle_accelerator_is_seen() -> None:
    summary = {"stages": 2, "workers": 3, "cycles": 7, "minibatches": 5, "forward_delays": [2, 0]}
    rows = space_time(5)
    found = judged(context("figure_4", lambda arm: run_log(rows, **summary)))
    assert {v.verdict for v in found.values()} == {"holds"}
    lazy = [row for row in rows if (row["worker"], row["start"]) != (2, 3)]
    found = judged(context("figure_4", lambda arm: run_log(lazy, **summary | {"cycles": 8, "forward_delays": [3, 0]})))
    assert {v.verdict for v in found.values()} == {"fails"}


def test_reading_results_loads_neither_torch_nor_pyplot() -> None:
    code = (
        "import sys, pipelag.results.stale_weights; print('torch' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]
