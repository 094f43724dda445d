"""Figures 4, 7, 8, 12-14 and 19, and table 3: training with fine-grained asynchrony."""

from __future__ import annotations

import pandas as pd

from pipelag.report.charts import lines
from pipelag.report.tables import Cell, Column, Table
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.logs import Context
from pipelag.results.pipemare.quality import (
    TASK_OF,
    TASKS,
    area,
    gaps,
    learned,
    needed,
    outcome,
    points,
    quality,
    stages_of,
    trained_on,
)
from pipelag.results.verdict import Finding, judge

PAPER = "pipemare"


@drawing(PAPER, "figure_4", "figure_7", "figure_8", "figure_12", "figure_13", "figure_14", "figure_19")
def curves(context: Context) -> Drawn:
    """Quality against epochs, a line per arm, a panel per task."""
    panels, data = {}, []
    for task, metric in TASKS.items():
        series = {arm: points(context.log(arm=arm, task=task)) for arm in context.values("arm")}
        series = {arm: line for arm, line in series.items() if line}
        if not series:
            continue
        model = next(i.arm.spec.model.name for i in context.select(task=task) if i.arm.spec.model)
        panels[f"{model}, {stages_of(context, task)}: {metric}"] = series
        data += [(task, arm, *point) for arm, line in series.items() for point in line]
    if not data:
        return not_logged("no run is logged")
    figure = lines(panels, "epoch", "quality", marker="", shared_y=False)
    return Drawn(figure=figure, data=pd.DataFrame(data, columns=["task", "arm", "epoch", "quality"]))


@judge(PAPER, "figure_4", "finest_diverges")
def finest_diverges(context: Context) -> Finding:
    """It never gets beyond 1.5 times chance."""
    arm = "most stages, no discrepancy"
    return not learned(context, arm=arm), f"best accuracy {outcome(context, arm=arm)}"


@judge(PAPER, "figure_4", "plain_does_not")
def plain_does_not(context: Context) -> Finding:
    """It learns."""
    arm = "P stages, no discrepancy"
    return learned(context, arm=arm), f"best accuracy {outcome(context, arm=arm)}"


@judge(PAPER, "figure_4", "discrepancy_diverges")
def discrepancy_diverges(context: Context) -> Finding:
    """It does not learn."""
    worse, better = outcome(context, arm="neither"), outcome(context, arm="P stages, no discrepancy")
    return not learned(context, arm="neither"), f"best accuracy {worse} with discrepancy, {better} without"


@judge(PAPER, "figure_7", "all_reach_sync")
def all_reach_sync(context: Context) -> Finding:
    """T1 and T1+T2."""
    found, text = gaps(context, ["T1", "T1+T2", "neither"])
    return max(found["T1"], found["T1+T2"]) <= 0.1, text


@judge(PAPER, "figure_7", "convergence_order")
def convergence_order(context: Context) -> Finding:
    """Mean BLEU over the epochs as a measure of speed."""
    found = {arm: area(context, arm) for arm in ("Sync", "T1+T2+W", "T1+T2", "T1", "neither")}
    text = "mean BLEU over the epochs: " + ", ".join(f"{arm} {value:.1f}" for arm, value in found.items())
    return min(found["Sync"], found["T1+T2+W"]) > found["T1+T2"] > found["T1"], text


@judge(PAPER, "figure_8", "transformer_needs_t2")
def transformer_needs_t2(context: Context) -> Finding:
    """T1 at most half of T1+T2."""
    found, text = gaps(context, ["T1", "T1+T2", "T1+T2+W"], "translation")
    sync = needed(context, arm="Sync", task="translation")
    return sync - found["T1"] < 0.5 * (sync - found["T1+T2"]), text


@judge(PAPER, "figure_8", "t2_needed")
def t2_needed(context: Context) -> Finding:
    """T1 alone learns nothing or diverges."""
    _, text = gaps(context, ["T1", "T1+T2"])
    return not learned(context, arm="T1") and learned(context, arm="T1+T2"), text


SPLITS = ("images", "images, a stage per weight")


@judge(PAPER, "figure_8", "t2_worth_more")
def t2_worth_more(context: Context) -> Finding:
    """T1+T2 minus T1, here against a stage per weight (figure 7's runs)."""
    here, there = (needed(context, task=task, arm="T1+T2") - needed(context, task=task, arm="T1") for task in SPLITS)
    return here > there, f"T2 adds {here:.1f} points with split weights, {there:.1f} without"


@judge(PAPER, "figure_12", "t2_reaches_sync")
def t2_reaches_sync(context: Context) -> Finding:
    """Within 0.1, and T1 fails."""
    found, text = gaps(context, ["T1", "T1+T2"])
    return found["T1+T2"] <= 0.1 and not learned(context, arm="T1"), text


@judge(PAPER, "figure_13", "resnet_small_k")
def resnet_small_k(context: Context) -> Finding:
    """The best K for images is smaller than that for translation."""
    best, texts = {}, []
    for task in TASKS:
        arms = [arm for arm in context.values("arm") if arm.startswith("K") and context.select(arm=arm, task=task)]
        arms.sort(key=lambda arm: float(arm.split()[2]))
        found = {arm: needed(context, arm=arm, task=task) for arm in arms}
        best[task] = float(max(found, key=lambda arm: found[arm]).split()[2])
        texts.append(f"{task}: " + ", ".join(f"{arm} {value:.1f}" for arm, value in found.items()))
    return best["images"] < best["translation"], "; ".join(texts)


@judge(PAPER, "figure_14", "half_matches")
def half_matches(context: Context) -> Finding:
    """Within 0.1 of Sync."""
    found, text = gaps(context, ["no correction", "D = 0.1", "D = 0.5", "D = 0.9"])
    return found["D = 0.5"] <= 0.1, text


@judge(PAPER, "figure_14", "small_d_converges")
def small_d_converges(context: Context) -> Finding:
    """Mean BLEU over the epochs."""
    found = {arm: area(context, arm) for arm in ("no correction", "D = 0.01", "D = 0.1", "D = 0.5")}
    text = "mean BLEU over the epochs: " + ", ".join(f"{arm} {value:.1f}" for arm, value in found.items())
    return min(found["D = 0.01"], found["D = 0.1"]) > found["no correction"], text


@judge(PAPER, "figure_19", "t1_helps")
def t1_helps(context: Context) -> Finding:
    """Best accuracy and BLEU."""
    texts, holds = [], True
    for task in TASKS:
        found, text = gaps(context, ["Hogwild", "Hogwild+T1"], task)
        holds &= found["Hogwild+T1"] < found["Hogwild"]
        texts.append(f"{task}: {text}")
    return holds, "; ".join(texts)


@drawing(PAPER, "table_3")
def table_3(context: Context) -> Drawn:
    """The paper's rows; ours where they are trained here, with the two arms that it leaves out."""
    paper_rows = context.result.reported
    rows: list[dict[str, Cell]] = []
    for dataset, task in TASK_OF.items():
        own = [{"dataset": dataset, "method": arm} for arm in ("Sync", "neither")]
        for paper in own + [row for row in paper_rows if row["dataset"] == dataset]:
            rows.append(
                {
                    "dataset": dataset,
                    "method": paper["method"],
                    "paper": paper.get("quality"),
                    "own": outcome(context, arm=paper["method"], task=task),
                    "util": paper.get("util"),
                    "memory": paper.get("memory"),
                }
            )
    columns = [
        Column("dataset", "Task of the paper"),
        Column("method", "Method"),
        Column("paper", "paper", "best quality", "{:.1f}"),
        Column("own", "ours", "best quality"),
        Column("util", "utilisation (%), paper"),
        Column("memory", "memory, paper", "", "{:.2f}x"),
    ]
    titles = {task: title for task in TASKS if (title := trained_on(context, task))}
    notes = [f"ours: {'; '.join(titles.values())}", "utilisation and memory are recomputed in table 2"]
    notes += [context.releases()] if context.releases() else []
    starts = [i for i in range(1, len(rows)) if rows[i]["dataset"] != rows[i - 1]["dataset"]]
    return Drawn(table=Table(columns, rows, context.result.caption, notes, starts))


@judge(PAPER, "table_3", "t1_best_neither_worst")
def t1_best(context: Context) -> Finding:
    """T2 only < T1 only, T1+T2 within 0.1 of T1 or above, and neither fails."""
    found = {arm: needed(context, arm=arm) for arm in ("neither", "T2", "T1", "T1+T2")}
    text = ", ".join(f"{arm} {outcome(context, arm=arm)}" for arm in found)
    holds = found["T2"] < found["T1"] <= found["T1+T2"] + 0.1 and not learned(context, arm="neither")
    return holds, text


@judge(PAPER, "table_3", "t2_alone_fails")
def t2_alone_fails(context: Context) -> Finding:
    """T2 alone and neither stay below a fifth of Sync."""
    found, text = gaps(context, ["T2", "neither", "T1", "T1+T2"], "translation")
    sync = needed(context, arm="Sync", task="translation")
    return max(sync - found["T2"], sync - found["neither"]) < 0.2 * sync, text


@judge(PAPER, "table_3", "warmup_closes")
def warmup_closes(context: Context) -> Finding:
    """Above T1+T2, and within 0.5 of Sync."""
    found, text = gaps(context, ["T1+T2", "T1+T2+W"], "translation")
    return found["T1+T2+W"] < found["T1+T2"] and found["T1+T2+W"] <= 0.5, text


@judge(PAPER, "text_quality_bound", "within")
def within(context: Context) -> Finding:
    """The best variant against Sync."""
    found, text = gaps(context, ["T1", "T2", "T1+T2"])
    return min(found.values()) <= context.result.reported["max_top1_difference"], text


@drawing(PAPER, "text_quality_bound")
def quality_bound(context: Context) -> Drawn:
    """One row per variant."""
    sync = quality(context, arm="Sync")
    rows: list[dict[str, Cell]] = []
    for arm in ("T1", "T2", "T1+T2"):
        own = quality(context, arm=arm)
        rows.append({"arm": arm, "own": own, "gap": sync - own if sync is not None and own is not None else None})
    columns = [
        Column("arm", "Method"),
        Column("own", "best accuracy (%)", "", "{:.1f}"),
        Column("gap", "below Sync", "", "{:.1f}"),
    ]
    notes = [f"the paper: at most {context.result.reported['max_top1_difference']} below on images"]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))
