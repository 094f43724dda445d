"""Table 2: quality, utilisation and memory of PipeMare, PipeDream and GPipe together."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, exact, sized
from pipelag.results.pipemare.arms import about_zero, below_sync, best_below
from pipelag.results.pipemare.costs import amortised, goal, gpipe, megabytes, memory_of, pipeline, unreached
from pipelag.results.pipemare.quality import (
    CHOSEN,
    POINTS,
    TASK_OF,
    BySeed,
    best_of,
    cell,
    last_cell,
    reasons,
    trained_as,
)
from pipelag.results.verdict import Finding, if_logged, judge

PAPER = "pipemare"
ARMS = {"PipeDream": "PipeDream", "GPipe": "Sync", "PipeMare": "T1+T2", "PipeMareW": "T1+T2+W"}
DATASETS = tuple(TASK_OF)


def utilisation(context: Context, dataset: str, method: str) -> float:
    """Utilisation of a method on a data set at the paper's P and N.

    PipeMareW's is amortised until its runs here reach their target score (`goal`).
    """
    if method == "GPipe":
        return float(gpipe(context, dataset)["utilisation"])
    if method == "PipeMareW":
        return fmean(warmed_up(context, dataset).values())
    return float(pipeline(context, method, dataset=dataset, arm="pipeline")["utilisation"])


def warmed_up(context: Context, dataset: str) -> BySeed:
    """PipeMareW's amortised utilisation on a data set, by seed (section 4)."""
    task, alone = TASK_OF[dataset], gpipe(context, dataset)["utilisation"]
    return amortised(context, alone, goal(context, task), task=task, arm="T1+T2+W")


@drawing(PAPER, "table_2")
def table_2(context: Context) -> Drawn:
    """The paper's rows beside ours."""

    def quality(row: dict[str, Any]) -> str | None:
        return cell(context, task=TASK_OF[row["dataset"]], arm=ARMS[row["method"]])

    def end(row: dict[str, Any]) -> str | None:
        return last_cell(context, task=TASK_OF[row["dataset"]], arm=ARMS[row["method"]])

    def used(row: dict[str, Any]) -> float | None:
        return if_logged(lambda: 100 * utilisation(context, row["dataset"], row["method"]))

    def memory(row: dict[str, Any]) -> float | None:
        return if_logged(lambda: memory_of(context, row["dataset"], row["method"]))

    def size(row: dict[str, Any]) -> float | None:
        return if_logged(lambda: megabytes(context, row["dataset"])) if row["method"] == "GPipe" else None

    cols = [
        Col("Task", "dataset"),
        Col("Method", "method"),
        Col("paper", "quality", "{:.1f}", "accuracy (%) or BLEU"),
        Col(f"ours, {best_of(context)}", quality, "{}", "accuracy (%) or BLEU"),
        Col("ours, last", end, "{}", "accuracy (%) or BLEU"),
        Col("paper", "util", "{:.0f}", "utilisation (%)"),
        Col("ours", used, "{:.1f}", "utilisation (%)"),
        Col("paper", "memory", "{:.2f}x", "weights and optimizer"),
        Col("ours", memory, "{:.2f}x", "weights and optimizer"),
        Col("paper (MB)", lambda row: row.get("megabytes"), "{:.0f}", "weights and optimizer of GPipe"),
        Col("ours (MiB)", size, "{:.0f}", "weights and optimizer of GPipe"),
    ]
    notes = [
        CHOSEN,
        "utilisation from schedules of the paper's P and N; PipeMareW's amortised over the epochs that the runs here "
        "take to as large a share of their synchronous best as the paper's target is of its own",
        "memory from the schedules' weight copies, the parameters of full-size models and what a training step holds, "
        "in MiB of 2^20 bytes beside the paper's MB; its ratios of PipeDream do not follow from its formula",
        "PipeMare is table 3's T1+T2 and PipeMareW its T1+T2+W; figure 15 has one with the paper's own W and K",
    ]
    notes += trained_as(context, "trained here")
    notes += [why for task in TASK_OF.values() if (why := unreached(context, task))]
    notes += [*reasons(context), *filter(None, [context.releases()])]
    return Drawn.tabled(context, context.result.reported, cols, notes, rule_by="Task")


def at_least_sync(context: Context, task: str, arm: str) -> Finding:
    """Judge whether an arm's best score is at most 0.1 below Sync's, the bound that the claims state."""
    step, text = below_sync(context, arm, task)
    return sized(context, step.below(POINTS), text, f"below by at most 0.1, as the claim says; {SEEDS}", task=task)


for _claim, _task, _arm in (
    ("cifar_quality", "images", "T1+T2"),  # PipeMare, without warm-up; the others are of PipeMareW
    ("imagenet_quality", "ImageNet", "T1+T2+W"),
    ("iwslt_quality", "translation", "T1+T2+W"),
    ("wmt_quality", "WMT17", "T1+T2+W"),
):
    judge(PAPER, "table_2", _claim)(partial(at_least_sync, task=_task, arm=_arm))
judge(PAPER, "table_2", "iwslt_pipedream_fails")(partial(about_zero, arm="PipeDream", task="translation"))
judge(PAPER, "table_2", "wmt_pipedream_fails")(partial(about_zero, arm="PipeDream", task="WMT17"))


@judge(PAPER, "table_2", "imagenet_pipedream_below")
def imagenet_pipedream_below(context: Context) -> Finding:
    """Holds if PipeDream's best accuracy on ImageNet is below PipeMare's."""
    step, text = best_below(context, "PipeDream", "T1+T2", "PipeDream {} below", "ImageNet")
    return sized(context, step.above(), text, SEEDS, task="ImageNet")


@judge(PAPER, "table_2", "gpipe_utilisations")
def gpipe_utilisations(context: Context) -> Finding:
    """Holds if every printed utilisation but PipeMareW's is the one of the schedule, rounded to a whole percent.

    GPipe's on WMT17 is of the smaller microbatches that the paper gives it (`gpipe`).
    """
    wrong, texts = [], []
    for row in context.result.reported:
        if row["method"] == "PipeMareW":
            continue
        ours = 100 * utilisation(context, row["dataset"], row["method"])
        if abs(ours - row["util"]) > 0.5:
            wrong.append(f"{row['dataset']} {row['method']} {ours:.1f} (printed {row['util']})")
        if row["method"] == "GPipe":
            texts.append(f"{row['dataset']} {ours:.1f}")
    text = "; ".join(wrong) or f"GPipe {', '.join(texts)} %, the others 100 %"
    return exact(not wrong, text, "half a unit of the last printed digit")


def printed(context: Context, dataset: str, method: str) -> float:
    """The utilisation that the paper prints, in percent."""
    return float(next(r["util"] for r in context.result.reported if (r["dataset"], r["method"]) == (dataset, method)))


@judge(PAPER, "table_2", "cifar_gain")
def cifar_gain(context: Context) -> Finding:
    """Holds if the schedules' utilisations are a factor of 14.3 apart; without warm-up, no training enters."""
    value = utilisation(context, "CIFAR10", "PipeMare") / utilisation(context, "CIFAR10", "GPipe")
    return exact(abs(value - 14.3) <= 0.05 + 1e-9, f"{value:.2f} times", "half a unit of the last printed digit")


def gain(context: Context, dataset: str) -> Finding:
    """Judge whether PipeMareW's utilisation over GPipe's, averaged over seeds, is what the printed percents allow.

    The paper prints both in whole percents. So each may be half a percent more or less, which gives a range of ratios.
    """
    alone = utilisation(context, dataset, "GPipe")
    ratios = [value / alone for value in warmed_up(context, dataset).values()]
    top, bottom = printed(context, dataset, "PipeMareW"), printed(context, dataset, "GPipe")
    low, high = (top - 0.5) / (bottom + 0.5), (top + 0.5) / (bottom - 0.5)
    value = fmean(ratios)
    text = f"{value:.2f} times, until {goal(context, TASK_OF[dataset]):.1f} is reached"
    why = f"{low:.2f} to {high:.2f}, of {top:g} % over {bottom:g} %, each within half a percent; the mean over seeds"
    return sized(context, low <= value <= high, text, why, task=TASK_OF[dataset])


for _claim, _dataset in (("imagenet_gain", "ImageNet"), ("iwslt_gain", "IWSLT14"), ("wmt_gain", "WMT17")):
    judge(PAPER, "table_2", _claim)(partial(gain, dataset=_dataset))


@judge(PAPER, "table_2", "t2_memory")
def t2_memory(context: Context) -> Finding:
    """Holds if a training step holds 1.33 times as much with T2 as without under SGD, and 1.25 times under Adam."""
    ratios = {
        name: memory_of(context, dataset, "PipeMare") for name, dataset in (("SGD", "CIFAR10"), ("Adam", "IWSLT14"))
    }
    holds = abs(ratios["SGD"] - 1.33) <= 0.005 and abs(ratios["Adam"] - 1.25) <= 0.005
    text = ", ".join(f"{name} {value:.3f}x" for name, value in ratios.items())
    return exact(holds, text, "half a unit of the last printed digit")


@judge(PAPER, "table_2", "memory_order")
def memory_order(context: Context) -> Finding:
    """Holds if the counted memory of PipeDream is above PipeMare's and that above GPipe's, on every data set."""
    texts, holds = [], True
    for dataset in DATASETS:
        ratios = {method: memory_of(context, dataset, method) for method in ("PipeDream", "PipeMare", "GPipe")}
        holds &= ratios["PipeDream"] > ratios["PipeMare"] > ratios["GPipe"]
        texts.append(f"{dataset} " + " > ".join(f"{value:.2f}x" for value in ratios.values()))
    return exact(holds, "PipeDream, PipeMare, GPipe: " + "; ".join(texts))


@judge(PAPER, "table_2", "pipedream_memory")
def pipedream_memory(context: Context) -> Finding:
    """Holds if PipeDream's counted memory over GPipe's is the printed ratio on every data set.

    The tolerance is half a unit of the ratio's last digit.
    """
    texts, holds = [], True
    for row in context.result.reported:
        if row["method"] == "PipeDream":
            ours = memory_of(context, row["dataset"], "PipeDream")
            holds &= abs(ours - row["memory"]) <= 0.005
            texts.append(f"{row['dataset']} {ours:.2f}x (printed {row['memory']:.2f}x)")
    return exact(holds, ", ".join(texts), "half a unit of the last printed digit")


@judge(PAPER, "table_2", "pipedream_twice")
def pipedream_twice(context: Context) -> Finding:
    """Holds if PipeDream's counted memory is more than twice PipeMare's on both translation tasks."""
    ratios = {d: memory_of(context, d, "PipeDream") / memory_of(context, d, "PipeMare") for d in ("IWSLT14", "WMT17")}
    text = ", ".join(f"{dataset} {value:.2f} times" for dataset, value in ratios.items())
    return exact(min(ratios.values()) > 2, text)
