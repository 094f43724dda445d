"""The papers' own tables, given as logs: no claim fails by the numbers that it was taken from.

But for sentences by which a paper contradicts its own table; of claims on how curves run, which no table prints,
nothing is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pipelag.experiments import Arm, load_paper
from pipelag.results.loading import load_results
from pipelag.results.logs import RunLog
from pipelag.results.pipemare.quality import TASK_OF
from pipelag.results.verdict import judged
from tests.results.made_up import OFFICIAL, Make, context, log, trained

pytestmark = pytest.mark.usefixtures("in_project")
AGAINST_ITSELF = {
    "stale_weights.table_3.every_step_down",  # 10 -> 12 stages
    "spectrain.text_headline_accuracy.spectrain_none_but_lstm",  # ambiguity E11
}
OF_CURVES = {  # when a score is reached
    *(f"pipemare.table_2.{dataset}_gain" for dataset in ("imagenet", "iwslt", "wmt")),
    "pipemare.table_3.iwslt_t1_twice",
    "pipeoptim.figure_3b.stashing_below",
    "pipeoptim.figure_3c.stashing_below",
}
Scores = Mapping[tuple[str, ...], Any]


def reported(paper: str, result: str) -> Any:
    """What a result's paper prints."""
    return load_paper(paper).results[result].reported


def ends(scores: Scores, *keys: str) -> Make:
    """Trainings that end at the score of their labels, all seeds alike."""

    def make(arm: Arm) -> RunLog | None:
        value = scores.get(tuple(arm.labels.get(key, "") for key in keys)) if arm.spec.kind == "train" else None
        if value is None:
            return None
        translates = arm.labels.get("task") in ("translation", "WMT17") or arm.labels.get("model", "")[:4] == "GNMT"
        return trained(**{"bleu" if translates else "accuracy": value})

    return make


def stale_weights() -> dict[str, Make]:
    """Tables 2 to 5."""
    columns = {"non_pipelined": "non-pipelined", **{f"s{n}": f"{n}-stage" for n in (4, 6, 8, 10)}}
    two = {
        (row["model"], arm): row[key] for row in reported("stale_weights", "table_2") for key, arm in columns.items()
    }
    three = {(str(row["stages"]),): row["accuracy"] for row in reported("stale_weights", "table_3")}
    three["8-stage",] = two["ResNet-20", "8-stage"]
    four = {(row["arm"],): row["accuracy"] for row in reported("stale_weights", "table_4")}
    five = {
        (row["model"], key.removeprefix("acc_").replace("_", "-")): row[key]
        for row in reported("stale_weights", "table_5")
        for key in ("acc_non_pipelined", "acc_pipelined", "acc_hybrid")
    }
    by_model = {name: ends(two, "model", "arm") for name in ("table_2", "text_headline_accuracy_drop")}
    by_depth = {name: ends(five, "model", "arm") for name in ("table_5", "text_hybrid_average_gain")}
    return by_model | by_depth | {"table_3": ends(three, "arm"), "table_4": ends(four, "arm")}


def pipemare() -> dict[str, Make]:
    """Tables 2 and 3, and what is said of figure 19."""
    arms = {"GPipe": "Sync", "PipeMare": "T1+T2", "PipeMareW": "T1+T2+W"}
    scores = {
        (TASK_OF[row["dataset"]], arms.get(row["method"], row["method"])): row["quality"]
        for table in ("table_2", "table_3")
        for row in reported("pipemare", table)
    }
    for arm, key in (("Hogwild", "hogwild"), ("Hogwild+T1", "hogwild_T1")):
        scores |= {(TASK_OF[dataset], arm): value for dataset, value in reported("pipemare", "figure_19")[key].items()}
    make = ends(scores, "task", "arm")
    return dict.fromkeys(("table_2", "table_3", "text_quality_bound", "figure_19"), make)


def pipeoptim() -> dict[str, Make]:
    """Tables IV and VI."""
    scores = {
        (row["optimizer"], row["model"], arm): value
        for row in reported("pipeoptim", "table_4")
        for arm, value in row.items()
        if arm not in ("optimizer", "model")
    }
    largest = {(row["model"], row["approach"]): row["top1"] for row in reported("pipeoptim", "table_6")}
    figures = (f"figure_{letter}" for letter in ("3a", "3b", "3c", "4a", "4b", "4c", "5a", "5b", "5c"))
    tables = dict.fromkeys(("table_4", *figures), ends(scores, "optimizer", "model", "arm"))
    return tables | {"text_overall_accuracy": ends(largest, "model", "arm")}


def spectrain() -> dict[str, Make]:
    """Table 1, its PipeDream in both readings."""
    table = {model: row for model, row in reported("spectrain", "table_1").items() if model != "sizes"}

    def make(arm: Arm) -> RunLog | None:
        row = table[arm.labels["model"]].get(arm.labels["arm"].removesuffix(", stashing"))
        keys = ("loss", "test_loss", "accuracy")
        rows = [{"step": step, "epoch": 1.0} | dict(zip(keys, row, strict=True)) for step in (20, 40)]
        return log(rows, final=rows[-1], best=rows[-1], diverged_at=None, data=OFFICIAL, steps=arm.spec.steps)

    return dict.fromkeys(("table_1", "text_headline_accuracy"), make)


@pytest.mark.parametrize("tables", [stale_weights, pipemare, pipeoptim, spectrain])
def test_no_claim_fails_by_its_papers_own_numbers(tables: Any) -> None:
    paper, fails, holds = tables.__name__, set(), 0
    load_results(load_paper(paper))
    for result, make in tables().items():
        shown = context(paper, result, make)
        verdicts = {f"{paper}.{result}.{c.id}": judged(shown, c).verdict for c in shown.result.claims if not c.ours}
        fails |= {name for name, verdict in verdicts.items() if verdict == "fails"}
        holds += list(verdicts.values()).count("holds")
    assert fails - OF_CURVES == {name for name in AGAINST_ITSELF if name.startswith(paper)}
    assert holds > 8
