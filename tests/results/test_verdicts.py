"""Judges over logs made in memory: every verdict can come out otherwise, and noise is not called a finding."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import pipelag.results.stale_weights  # noqa: F401  (registers the judges)
from pipelag.__main__ import main
from pipelag.experiments import Arm, arms, load_paper, load_scale
from pipelag.results.context import Accuracy, Context
from pipelag.results.judging import Difference, agreed, minus, on_gpus, over_models, sized, trend
from pipelag.results.logs import Item, RunLog, Share
from pipelag.results.verdict import Finding, Verdict, verdicts

pytestmark = pytest.mark.usefixtures("in_project")
PAPER = "stale_weights"


def context(
    result: str, log: Callable[[Arm], RunLog | None], scale: str = "quick", seeds: Sequence[int] = (0,)
) -> Context:
    """A result's runs at a scale, with these logs."""
    paper = load_paper(PAPER)
    size = load_scale(scale).model_copy(update={"seeds": list(seeds)})
    items = [Item(arm, log(arm)) for arm in arms(paper, result, size)]
    return Context(paper, result, paper.results[result], size, items)


def judged(runs: Context) -> dict[str, Verdict]:
    return {verdict.claim: verdict for verdict in verdicts(runs)}


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
    speedups = dict(by_depth)

    def log(arm: Arm) -> RunLog | None:
        return timed(speedups[arm.labels["model"]])(arm) if arm.spec.kind == "speed" else None

    return context("table_5", log)


DEPTHS = ("ResNet-20", "ResNet-56", "ResNet-110", "ResNet-224", "ResNet-362")


@pytest.mark.parametrize("result", list(load_paper(PAPER).results))
def test_without_logs_nothing_that_needs_them_is_judged(result: str) -> None:
    judgements = judged(context(result, lambda arm: None))
    assert {v.verdict for v in judgements.values()} == {"cannot be judged"}


STEADY = dict(zip(DEPTHS, ([1.2, 1.3], [1.4, 1.5], [1.6, 1.65], [1.7, 1.75], [1.8, 1.85]), strict=True))


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "holds"),
        ({"ResNet-110": [1.45, 1.65]}, "cannot be judged"),  # overlaps the depth before
        ({"ResNet-110": [1.35, 1.39]}, "fails"),  # though the deepest is far above the shallowest
        ({"ResNet-20": [1.9, 1.95]}, "fails"),
    ],
)
def test_growth_needs_every_step_and_more_than_the_noise_between_blocks(
    changed: dict[str, list[float]], verdict: str
) -> None:
    judgement = judged(speeds(STEADY | changed))["speedup_grows_with_depth"]
    assert judgement.verdict == verdict
    blocks = (STEADY | changed)["ResNet-110"]
    assert f"[{min(blocks):.2f}, {max(blocks):.2f}]" in judgement.why


def test_blocks_on_both_sides_of_a_bound_tell_nothing() -> None:
    judgements = judged(speeds(STEADY | {"ResNet-362": [1.9, 2.1]}))
    assert judgements["speedup_below_2"].verdict == "cannot be judged"
    judgements = judged(speeds(STEADY | {"ResNet-20": [0.9, 1.1]}))
    assert judgements["faster_at_every_depth"].verdict == "cannot be judged"


def test_speeds_name_the_minibatch_that_is_not_the_papers() -> None:
    assert (
        "minibatches of 16 instead of 128"
        in judged(speeds(dict.fromkeys(DEPTHS, [1.7])))["deepest_uses_90_percent"].why
    )


def test_hybrid_speedups_say_that_they_are_put_together() -> None:
    judgements = judged(speeds(STEADY))
    assert "put together from the times of their two halves" in judgements["hybrid_speedup_grows_with_depth"].why
    # The formula is judged by schedules: what is put together as it is would confirm it whatever was measured.
    only_times = context(
        "text_hybrid_speedup_bound", lambda arm: timed([1.5])(arm) if arm.spec.kind == "speed" else None
    )
    assert judged(only_times)["formula"].verdict == "cannot be judged"


def climb(step: int, final: float, end: int = 30_000) -> RunLog:
    """An arm that is lost until a step and at its end from there on."""
    return trained(final, [{"step": s, "accuracy": final if s >= step else 10.0} for s in range(100, end + 1, 100)])


@pytest.mark.parametrize(
    ("late", "final", "verdict"),
    [
        (1_400, 90.0, "holds"),
        (1_400, 80.0, "holds"),  # in as many iterations, to another end
        (1_600, 90.0, "fails"),
        (600, 90.0, "fails"),
        (100, 10.0, "fails"),  # holds still from the beginning, having learned nothing
    ],
)
def test_an_arm_converges_alike_by_its_own_end_but_must_have_learned(late: int, final: float, verdict: str) -> None:
    def log(arm: Arm) -> RunLog:
        return climb(late, final) if arm.labels["arm"] == "10-stage" else climb(1_000, 90.0)

    assert judged(context("figure_5a", log, "paper"))["converges_alike"].verdict == verdict


def test_where_it_depends_on_how_near_convergence_cannot_be_told() -> None:
    def log(arm: Arm) -> RunLog:
        run = climb(1_000, 90.0)
        if arm.labels["arm"] == "10-stage":  # within 2 points as soon as the baseline, within 1 much later
            for row in run.rows:
                row["accuracy"] -= 1.5 if 1_000 <= row["step"] < 9_000 else 0.0
        return run

    judgement = judged(context("figure_5a", log, "paper"))["converges_alike"]
    assert judgement.verdict == "cannot be judged" and "10-stage after 1,000, 9,000, 9,000" in judgement.why


@pytest.mark.parametrize(
    ("drops", "verdict"),
    [
        ((0.35, 0.40, 0.45), "holds"),  # a further pair of runs could lose 0.4, and none would lose nothing
        ((0.90, 1.00, 1.10), "fails"),
        ((-0.40, 0.40, 1.20), "cannot be judged"),  # 0.4 or nothing at all
        ((0.40,), "cannot be judged"),  # one seed has no spread
    ],
)
def test_a_printed_drop_is_met_as_near_as_the_seeds_let_one_say(drops: tuple[float, ...], verdict: str) -> None:
    def log(arm: Arm) -> RunLog:
        return trained(99.0 - (drops[arm.seed] if arm.labels["arm"] == "4-stage" else 0.0))

    judgement = judged(context("table_2", log, "paper", tuple(range(len(drops)))))["lenet5_4_stage_drop"]
    assert judgement.verdict == verdict and "printed 0.4" in judgement.why


@pytest.mark.parametrize(("ends", "verdict"), [((90.0, 91.0, 92.0), "cannot be judged"), ((90.4, 91.4, 92.4), "holds")])
def test_an_order_is_more_than_the_spread_over_seeds(ends: tuple[float, ...], verdict: str) -> None:
    """Paired: a difference of 0.6 in every seed counts, though seeds lie a point apart; one that varies does not."""

    def log(arm: Arm) -> RunLog:
        falls = {"non-pipelined": 0.0, "4-stage": 0.5, "6-stage": 1.0, "8-stage": 1.5}[arm.labels["arm"]]
        whole = ends[arm.seed] if arm.labels["arm"] == "non-pipelined" else 90.4 + arm.seed
        noise = 0.3 * (-1) ** arm.seed if verdict == "cannot be judged" else 0.0
        return trained(whole - falls + (noise if arm.labels["arm"] == "6-stage" else 0.0))

    assert judged(context("figure_5d", log, "paper", (0, 1, 2)))["order"].verdict == verdict


def test_seeds_that_survive_do_not_speak_for_those_that_diverged() -> None:
    def log(arm: Arm) -> RunLog:
        return trained(None if arm.labels["arm"] == "Pipelined 30k" and arm.seed == 2 else 90.0 + arm.seed)

    runs = context("table_4", log, seeds=(0, 1, 2))
    assert runs.accuracy(arm="Baseline 30k").text() == "91.00 ± 1.00"
    assert runs.accuracy(arm="Pipelined 30k").text() == "90.50 ± 0.71 (2 of 3 seeds, one diverges)"
    order = judged(runs)["pipelined_below_short_hybrid"]
    assert order.verdict == "cannot be judged" and "Pipelined 30k: only 90.50" in order.why


def test_a_missing_seed_is_counted() -> None:
    runs = context("table_4", lambda arm: None if arm.seed == 1 else trained(91.0), seeds=(0, 1, 2))
    assert runs.accuracy(arm="Baseline 30k").text() == "91.00 ± 0.00 (2 of 3 seeds)"
    assert judged(runs)["long_hybrid_reaches_baseline"].verdict == "cannot be judged"


def test_a_coarser_precision_than_the_papers_is_said() -> None:
    runs = context("figure_5d", lambda arm: trained(90.0), "paper")
    assert runs.shortfall() == ""
    options = {"options": {"precision": "bf16"}}
    items = [replace(i, arm=replace(i.arm, spec=i.arm.spec.model_copy(update=options))) for i in runs.items]
    assert replace(runs, items=items).shortfall() == "passes in bfloat16"
    assert context("precision", lambda arm: trained(90.0), "paper").shortfall() == ""  # asked for as such


def test_of_what_was_timed_a_smaller_minibatch_is_said_with_its_model() -> None:
    """In words, and under a figure; once for all where all models have it."""
    full = context("table_5", lambda arm: run_log([]) if arm.spec.kind == "speed" else None, "paper")
    assert full.shortfall() == ""

    def cut(*models: str) -> Context:
        less = {"batch": 32}
        items = [
            replace(i, arm=replace(i.arm, spec=i.arm.spec.model_copy(update=less)))
            if i.arm.spec.model and i.arm.spec.model.name in models
            else i
            for i in full.items
        ]
        return replace(full, items=items)

    two = "ResNet-110, ResNet-56 timed with minibatches of 32 instead of 128"
    assert cut("resnet56", "resnet110").shortfall() == two
    assert cut("resnet56", "resnet110").footer().endswith(f" Different from the paper: {two}.")
    every = cut(*(item.arm.spec.model.name for item in full.items if item.arm.spec.model))
    assert every.shortfall() == "timed with minibatches of 32 instead of 128"


def test_sizes_are_judged_at_the_papers_length_only() -> None:
    accuracies = {"8": 90.3, "8-stage": 83.0}

    def log(arm: Arm) -> RunLog:
        return trained(accuracies.get(arm.labels["arm"], 85.0))

    order, size, seeds = "early_registers_beat_late_ones", "early_by_about_7", (0, 1, 2)
    quick = judged(context("table_3", log, seeds=seeds))
    assert quick[order].verdict == "holds" and "shapes instead of CIFAR-10" in quick[order].why
    assert quick[size].verdict == "cannot be judged" and "only runs like the paper's" in quick[size].why
    assert judged(context("table_3", log, "paper", seeds))[size].verdict == "holds"
    accuracies["8"] = 83.1  # ahead, but not by about seven points
    full = judged(context("table_3", log, "paper", seeds))
    assert (full[order].verdict, full[size].verdict) == ("holds", "fails")


def counted(activations: int, batch: int) -> RunLog:
    rows = [{"layer": i, "parameters": 10_000, "activations": activations} for i in (1, 2, 3)]
    return run_log(rows, cuts=[1], batch=batch)


@pytest.mark.parametrize(("imagenet_activations", "order"), [(4000, "holds"), (1, "fails")])
def test_a_memory_model_fitted_to_the_claim_does_not_confirm_it(imagenet_activations: int, order: str) -> None:
    # Two minibatches under way in stage 1, one in stage 2: by its own schedule PipeDream keeps fewer activations
    passes = [("F", 1, 0, 1), ("F", 1, 1, 2), ("B", 1, 2, 3), ("F", 2, 1, 2), ("B", 2, 2, 3)]
    under_way = [{"kind": k, "stage": s, "start": a, "end": b, "minibatch": 0} for k, s, a, b in passes]

    def log(arm: Arm) -> RunLog:
        if arm.spec.kind == "timeline":
            return run_log(under_way, weight_copies=[2, 1] if arm.labels["arm"] == "PipeDream" else [1, 1])
        return counted(100 if arm.labels["dataset"] == "CIFAR-10" else imagenet_activations, arm.spec.batch)

    judgements = judged(context("text_memory_vs_pipedream", log))
    assert {judgements[f"saving_{data}"].verdict for data in ("cifar10", "imagenet")} == {"cannot be judged"}
    assert judgements["shrinks_with_activations"].verdict == order
    assert judgements["less_than_pipedream"].verdict == "cannot be judged"


def test_table_6_says_of_every_row_whether_it_is_as_printed() -> None:
    """67 % for ResNet-20 is in no count of ours: that claim fails, and the others are not drawn into it."""
    judgements = judged(Context.load(load_paper(PAPER), "table_6", load_scale("published", "cpu")))
    assert judgements["resnet20_is_the_exception"].verdict == "fails"
    assert "ResNet-20 58.48 (printed 67" in judgements["resnet20_is_the_exception"].why
    assert "2.58 MB is off the straight line" in judgements["resnet20_is_the_exception"].why
    assert judgements["deeper_percents_as_printed"].verdict == judgements["weights_as_printed"].verdict == "holds"
    assert judgements["activations_as_printed"].verdict == "fails"
    assert "equal to the printed digits: none" in judgements["activations_as_printed"].why


def test_a_claim_about_equality_is_three_valued() -> None:
    close = Difference.of({0: 1.0, 1: 1.1, 2: 1.2}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert close.within(0.5, 1.5) is True and close.within(2.0, 3.0) is False and close.within(1.1, 1.5) is None
    assert close.matches(1.4) is True and close.matches(2.0) is False and close.matches(1.8, slack=0.3) is True
    assert Difference.of({0: 1.0}, {0: 0.0}).matches(1.0) is None
    # What a printed value is granted does not make a difference nearer to none.
    assert Difference(0.6, 0.25, 3).matches(0.5, slack=0.3) is True
    assert Difference(0.4, 0.25, 3).matches(0.5, slack=0.3) is None


def test_readings_that_do_not_agree_tell_nothing() -> None:
    for one in (True, False, None):
        assert agreed(one, one) is one and agreed(one) is one
    assert agreed(True, False) is agreed(False, True) is agreed(True, None) is agreed(None, False) is None


def test_rates_given_to_the_runs_are_not_found_by_them() -> None:
    judgements = judged(context("table_7", lambda arm: trained(90.0)))
    assert judgements["other_partition_keeps_its_rate"].verdict == "cannot be judged"


def space_time(minibatches: int) -> list[dict[str, Any]]:
    """K = 1 on three accelerators, written down cycle by cycle."""
    rows: list[dict[str, Any]] = []
    for m in range(minibatches):
        for worker, cycle, kind, stage in ((0, m, "F", 1), (1, m + 1, "F", 2), (1, m + 1, "B", 2), (2, m + 2, "B", 1)):
            place = {"worker": worker, "start": cycle, "end": cycle + 1, "kind": kind, "stage": stage, "minibatch": m}
            rows.append(place | {"reads": max(0, m - 2) if (kind, stage) == ("F", 1) else m})
    return rows


def test_two_cores_do_not_judge_what_belongs_to_gpus() -> None:
    def verdict(device: str) -> Finding:
        timed = replace(run_log([]), environment={"device": device})
        runs = context("table_5", lambda arm: timed if arm.spec.kind == "speed" else None, "paper")
        return on_gpus(runs, True, "", "", kind="speed")

    assert verdict("NVIDIA H200").holds is True and verdict("Some CPU (2 cores)").holds is None


def test_an_order_on_data_of_another_release_says_so() -> None:
    def conditions(official: bool) -> str:
        ended = trained(90.0)
        data = ended.summary["data"] | {"official": official, "note": "resized"}
        made = replace(ended, summary=ended.summary | {"data": data})
        runs = context("figure_5d", lambda arm: made if arm.labels["arm"] == "8-stage" else trained(90.0), "paper")
        found = trend(runs, True, "", "", arm="8-stage")
        assert found.holds is True and trend(runs, True, "", "", arm="6-stage").conditions == ""
        assert sized(runs, True, "", "", arm="8-stage").conditions == found.conditions
        return found.conditions

    assert conditions(True) == "" and "resized" in conditions(False)


def test_an_idle_accelerator_is_seen() -> None:
    def log(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Callable[[Arm], RunLog]:
        def make(arm: Arm) -> RunLog:
            rows = [changed for row in space_time(arm.spec.steps) if (changed := change(row)) is not None]
            return run_log(rows, stages=2, workers=3)

        return make

    assert {v.verdict for v in judged(context("figure_4", log(lambda row: row))).values()} == {"holds"}
    lazy = judged(context("figure_4", log(lambda row: None if (row["worker"], row["start"]) == (2, 3) else row)))
    assert lazy["no_idle_in_steady_state"].verdict == lazy["cells"].verdict == "fails"
    # The update comes a cycle later: weights three cycles old, and a cycle more in all.
    late = judged(
        context(
            "figure_4",
            log(lambda row: row | {"start": row["start"] + 1, "end": row["end"] + 1} if row["worker"] == 2 else row),
        )
    )
    assert late["fs1_two_cycles_stale"].verdict == late["m_plus_2_cycles"].verdict == "fails"
    assert late["last_stage_up_to_date"].verdict == "holds"


def test_reading_results_loads_neither_torch_nor_pyplot() -> None:
    code = (
        "import sys, pipelag.results.stale_weights; print('torch' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(("samples", "above"), [(500, None), (10_000, True), (None, None)])
def test_one_seed_tells_no_less_than_the_samples_of_its_test_set(samples: int | None, above: bool | None) -> None:
    """90 % and 88 %: of 500 images 2.7 points apart would be chance, of 10,000 0.8; of who knows how many anything."""
    better, worse = ({0: Share.of(percent, samples)} for percent in (90.0, 88.0))
    difference = Difference.of(better, worse)
    assert difference.above() is above and Difference.of(worse, better).above() is (above and False)
    if samples:
        p, q = 0.90, 0.88
        assert difference.error == pytest.approx(196 * ((p * (1 - p) + q * (1 - q)) / samples) ** 0.5, rel=0.02)
    assert difference.matches(2.0) is None and "one seed" in difference.text()


def test_a_mean_over_models_is_surer_than_each() -> None:
    alone, four = Share.of(90.0, 500), over_models([{0: Share.of(90.0, 500)}] * 4)[0]
    assert isinstance(four, Share) and alone.error and four.error == pytest.approx(alone.error / 2)
    mixed = Difference.of(over_models([{0: Share.of(90.0, 500)}, {0: 80.0}]), {0: 10.0})
    assert mixed.error is None and mixed.above() is None and "error unknown" in mixed.text()


def test_a_difference_is_less_sure_than_either() -> None:
    one, other = Share.of(90.0, 500), Share.of(70.0, 500)
    assert one.error is not None and other.error is not None
    assert minus(one, other).error == minus(other, one).error == pytest.approx(math.hypot(one.error, other.error))
    assert minus(one, 70.0).error is minus(90.0, other).error is None


def test_all_right_is_not_sure() -> None:
    difference = Difference.of({0: Share.of(100.0, 100)}, {0: Share.of(99.0, 100)})
    assert difference.above() is None
    assert Share.of(50.0, 98).error == 5.0  # of 98 and two more: sqrt(0.5 * 0.5 / 100)


def test_a_log_knows_how_sure_its_accuracy_is_but_not_of_words() -> None:
    log = run_log([], final={"accuracy": 50.0}, data={"test": 100})
    assert isinstance(log.accuracy, Share) and log.accuracy.error == pytest.approx(5.0, rel=0.02)
    words = run_log([], final={"accuracy": 50.0, "bleu": 3.0}, data={"test": 100})
    assert isinstance(words.accuracy, Share) and words.accuracy.error is None
    scores = [words.bleu(row) for row in ({"bleu": 3.0, "bleu_error": 0.4}, {"bleu": 3.0})]
    assert scores == [3.0, 3.0] and [score.error for score in scores] == [0.4, None]  # older logs have none


def test_one_seed_beside_means_over_more_is_told_to_be_one() -> None:
    one, *others = context("table_4", lambda arm: trained(91.0), seeds=(0, 1, 2)).items[:3]
    left = [replace(item, arm=replace(item.arm, left_out="one seed is enough"), log=None) for item in others]
    assert Accuracy.of([one, *left]).text() == "91.00 (one seed)"
    assert Accuracy.of([one]).text() == "91.00" and Accuracy.of([one, *others]).text() == "91.00 ± 0.00"


def test_a_scale_may_ask_for_more_seeds_than_one() -> None:
    runs = context("table_4", far_apart)
    alone = {claim: verdict.verdict for claim, verdict in judged(runs).items()}
    asked = runs.scale.model_copy(update={"least_seeds": {PAPER: 2}})
    more = judged(replace(runs, scale=asked))
    turned = [claim for claim, verdict in alone.items() if verdict != more[claim].verdict]
    assert turned and all(more[claim].verdict == "cannot be judged" for claim in turned)
    assert any("one seed, too few to tell" in more[claim].why for claim in turned)
    assert {
        claim: verdict.verdict for claim, verdict in judged(runs).items()
    } == alone  # it is asked for that scale only


def far_apart(arm: Arm) -> RunLog:
    """Accuracies that know their error: the baseline far above the others."""
    end = 90.0 if "Baseline" in arm.labels.get("arm", "") else 60.0
    run = trained(end)
    return replace(run, summary=run.summary | {"data": run.summary["data"] | {"test": 10000}})


@pytest.mark.parametrize(
    ("registry", "key", "where"),
    [
        (
            "verdict.JUDGES",
            (PAPER, "table_2", "vgg16_monotone"),
            "in the judge of stale_weights table_2: vgg16_monotone",
        ),
        ("drawing.DRAWINGS", (PAPER, "table_2"), "in the drawing of stale_weights table_2"),
    ],
)
def test_an_error_in_a_judge_or_a_drawing_says_in_which(
    registry: str,
    key: tuple[str, ...],
    where: str,
    nothing_logged: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`pipelag digest` asks all judges of all papers in one call."""

    def broken(context: Context) -> Any:
        return max(item.log.rows for item in context.items if item.log is not None)

    module, _, name = registry.partition(".")
    assert key in (functions := getattr(import_module(f"pipelag.results.{module}"), name))
    monkeypatch.setitem(functions, key, broken)
    assert main(["result", PAPER, "table_2"]) == 1
    error = capsys.readouterr().err
    assert "ValueError: max()" in error and f" ({where})" in error
