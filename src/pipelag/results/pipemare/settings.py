"""Tables 6 to 9: hyper-parameters of the paper and of the runs, and the grids with the scores that they give here."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from pipelag.experiments import arms
from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.logs import Item
from pipelag.results.pipemare.arms import grid
from pipelag.results.pipemare.quality import (
    DATASET_OF,
    best,
    last_evaluation,
    log_in,
    mean_text,
    reasons,
    scored,
    trained_as,
)
from pipelag.results.shortfall import annealed, started
from pipelag.results.verdict import NotLogged
from pipelag.runs.spec import RunSpec

PAPER = "pipemare"
SETTINGS = {
    "optimizer": "optimizer",
    "lr": "learning rate",
    "drop_epochs": "drop every (epochs)",
    "drop_factor": "drop factor",
    "momentum": "momentum",
    "betas": "betas",
    "weight_decay": "weight decay",
    "label_smoothing": "label smoothing",
    "dropout": "dropout",
    "warmup": "warm-up (minibatches)",
    "epochs": "epochs",
    "batch": "minibatch",
    "words": "target words per minibatch",
    "microbatch": "microbatch",
    "microbatch_tokens": "most tokens per microbatch",
    "microbatches": "microbatches",
    "warmup_epochs": "synchronous epochs",
    "D": "D",
    "annealing_epochs": "annealing epochs",
}


def settings_of(item: Item) -> dict[str, Any]:
    """The settings that a logged run was trained with."""
    spec, log = item.arm.spec, log_in(item)
    assert spec.optimizer is not None and spec.data is not None and spec.model is not None
    last, phase, schedule = last_evaluation(log), spec.phases[-1], spec.lr_schedule
    per_step = last["epoch"] / last["step"]
    tokens = spec.options.get("tokens")
    values = {
        "optimizer": spec.optimizer.name,
        "lr": spec.optimizer.lr,
        "momentum": spec.optimizer.momentum,
        "weight_decay": spec.optimizer.weight_decay,
        "label_smoothing": spec.options.get("label_smoothing"),
        "dropout": spec.model.options.get("dropout"),
        "warmup": schedule.warmup,
        "epochs": last["epoch"],
        "batch": spec.batch,
        "microbatch": spec.batch // phase.microbatches,
        "words": log.summary["data"].get("words_per_minibatch"),
        "microbatch_tokens": tokens // phase.microbatches if tokens else None,
        "microbatches": phase.microbatches,
        "warmup_epochs": sum(p.steps for p in spec.phases[:-1]) * per_step,
        "annealing_epochs": phase.options.get("annealing", 0) * per_step,
        "D": phase.options.get("decay"),
    }
    if spec.optimizer.betas is not None:
        values["betas"] = ", ".join(f"{beta:g}" for beta in spec.optimizer.betas)
    if schedule.milestones:
        values |= {"drop_epochs": schedule.milestones[0] * spec.steps * per_step, "drop_factor": schedule.gamma}
    return values


def large(value: Any) -> Any:
    """A number from 1000 on, written out with separators; anything else unchanged."""
    return f"{value:,.0f}" if isinstance(value, int | float) and abs(value) >= 1000 else value


@drawing(PAPER, "table_6", "table_7", "table_9")
def settings(context: Context) -> Drawn:
    """The paper's settings, and those of our logged runs."""
    rows: list[dict[str, Any]] = [{"who": f"paper, {row['dataset']}", **row} for row in context.result.reported]
    for task in context.values("task"):
        item = next((item for item in context.select(task=task) if item.log and scored(item)), None)
        if item is not None:
            title = log_in(item).summary["data"]["title"]
            rows.append({"who": f"here for {DATASET_OF.get(task, task)}: {title}", **settings_of(item)})
    rows = [{key: large(value) for key, value in row.items()} for row in rows]
    known = {key for row in context.result.reported for key in row}
    text = ("optimizer", "betas")
    cols = [Col("", "who")]
    cols += [Col(name, key, "{}" if key in text else "{:.3g}") for key, name in SETTINGS.items() if key in known]
    return Drawn.tabled(context, rows, cols, reasons(context))


def all_else(context: Context) -> str:
    """What the grids share with table 3, and where their warmed-up arms differ from its T1+T2+W, in words."""
    (item, *_) = context.select(arm="W = 10/60", task="translation")
    table_3 = arms(context.paper, "table_3", context.scale)
    warmed_up = next(arm.spec for arm in table_3 if arm.labels["arm"] == "T1+T2+W")

    def lengths(spec: RunSpec) -> list[str]:
        return [f"{60 * steps(spec) / spec.steps:.0f}/60" for steps in (started, annealed)]

    (warm, after), others = lengths(item.arm.spec), lengths(warmed_up)
    if [warm, after] == others:
        return "all else as in table 3"
    why = f"T1+T2+W of table 3 has a warm-up of {others[0]} and annealing over {others[1]}, so that its BLEU is another"
    grids = f"the warm-up's grid anneals over {after} after it, and the last one warms up over {warm} before"
    return f"all else as in table 3, but that {grids}, as in the paper; {why}"


@drawing(PAPER, "table_8")
def grids(context: Context) -> Drawn:
    """The paper's grids, and the arms that we tried with their best scores."""

    def tried(row: dict[str, Any]) -> dict[str, list[float]]:
        scores = {}
        for arm in grid(context, row["key"], row["task"]):
            value = arm.split("= ")[1].split("/")[0]
            try:
                if value in row["grid"].split(", "):  # figure 14 tries one value that the table does not list
                    scores[value] = list(best(context, arm=arm, task=row["task"]).values())
            except NotLogged:
                continue
        return scores

    def shown(row: dict[str, Any]) -> str:
        return ", ".join(f"{value}: {mean_text(scores)}" for value, scores in tried(row).items())

    def chosen(row: dict[str, Any]) -> str | None:
        means = {value: fmean(scores) for value, scores in tried(row).items()}
        return max(means, key=lambda value: means[value]) if len(means) == len(row["grid"].split(", ")) else None

    cols = [
        Col("Task of the paper", "dataset"),
        Col("Parameter", "parameter"),
        Col("grid", "grid", "{}", "paper"),
        Col("best", "optimum", "{}", "paper"),
        Col("tried: best accuracy (%) or BLEU", shown, "{}", "ours"),
        Col("best", chosen, "{}", "ours"),
    ]
    notes = trained_as(context, "ours", ("images", "translation"))
    if notes:
        notes.append("ours: one grid at a time, where the paper tunes one after the other; " + all_else(context))
    notes += ["the bold optima of the paper's table are lost in its text; they follow from sections 3.1, 4 and C.1"]
    return Drawn.tabled(context, context.result.reported, cols, notes, rule_by="Task of the paper")
