"""Tables 2, 4, 5 and 6, figure 9, and what follows from formulas over our models' weights (appendix A)."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

import pandas as pd

from pipelag.report.charts import bars
from pipelag.report.tables import Cell, Column, Table
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.logs import Context
from pipelag.results.pipemare.costs import gpipe_utilisation, memory_of, utilisation_of, weights_of
from pipelag.results.pipemare.quality import TASK_OF, gaps, needed, outcome, quality, trained_on
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipemare"


ARMS = {"PipeDream": "PipeDream", "GPipe": "Sync", "PipeMare": "T1+T2", "PipeMareW": "T1+T2+W"}


@drawing(PAPER, "table_2")
def table_2(context: Context) -> Drawn:
    """The paper's rows beside formulas over our models and what is trained here."""
    tasks = TASK_OF | {"WMT17": "WMT17"}
    rows: list[dict[str, Cell]] = []
    for row in context.result.reported:
        counts = weights_of(context, row["dataset"])
        base = 4 * row["copies"] * sum(layer["parameters"] for layer in counts) / 2**20 if counts else None
        task = tasks.get(row["dataset"])
        rows.append(
            {
                "dataset": row["dataset"],
                "method": row["method"],
                "quality": row["quality"],
                "own_quality": outcome(context, arm=ARMS[row["method"]], task=task) if task else None,
                "util": row["util"],
                "own_util": 100 * utilisation_of(row),
                "memory": row["memory"],
                "own_memory": memory_of(context, row),
                "megabytes": row.get("megabytes"),
                "own_megabytes": base if row["method"] == "GPipe" else None,
            }
        )
    columns = [
        Column("dataset", "Task"),
        Column("method", "Method"),
        Column("quality", "paper", "quality", "{:.1f}"),
        Column("own_quality", "ours", "quality"),
        Column("util", "paper", "utilisation (%)", "{:.0f}"),
        Column("own_util", "ours", "utilisation (%)", "{:.1f}"),
        Column("memory", "paper", "memory", "{:.2f}x"),
        Column("own_memory", "ours", "memory", "{:.2f}x"),
        Column("megabytes", "paper", "MB", "{:.0f}"),
        Column("own_megabytes", "ours", "MB", "{:.0f}"),
    ]
    notes = [
        "utilisation and memory by the formulas of appendix A.1, at the paper's P and N, over our models' weights; "
        "PipeDream's printed ratios do not follow from the printed formula (ambiguity B2)",
        "quality: " + "; ".join(title for task in tasks.values() if (title := trained_on(context, task))),
    ]
    starts = [i for i in range(1, len(rows)) if rows[i]["dataset"] != rows[i - 1]["dataset"]]
    return Drawn(table=Table(columns, rows, context.result.caption, notes, starts))


@judge(PAPER, "table_2", "utilisations")
def utilisations(context: Context) -> Finding:
    """All rows to whole percents."""
    if not context.logs():
        raise NotLogged("nothing is logged")
    wrong = [
        f"{row['dataset']} {row['method']} {100 * utilisation_of(row):.1f} for {row['util']}"
        for row in context.result.reported
        if abs(100 * utilisation_of(row) - row["util"]) > 0.55
    ]
    return not wrong, "; ".join(wrong) or f"all {len(context.result.reported)} rows as printed"


@judge(PAPER, "table_2", "t2_memory")
def t2_memory(context: Context) -> Finding:
    """(copies + 1) / copies; the copies are counted in text_t2_memory."""
    found = {row["copies"]: memory_of(context, row) for row in context.result.reported if row["method"] == "PipeMare"}
    if not context.logs():
        raise NotLogged("nothing is logged")
    return {k: round(v or 0, 2) for k, v in found.items()} == {3: 1.33, 4: 1.25}, ", ".join(
        f"{copies} copies: {value:.3f}x" for copies, value in found.items()
    )


@judge(PAPER, "table_2", "memory_order")
def memory_order(context: Context) -> Finding:
    """Data sets whose model is counted here."""
    texts, holds = [], True
    for dataset in dict.fromkeys(row["dataset"] for row in context.result.reported):
        found = {r["method"]: memory_of(context, r) for r in context.result.reported if r["dataset"] == dataset}
        if found["PipeDream"] is None:
            continue
        printed = next(
            r["memory"] for r in context.result.reported if (r["dataset"], r["method"]) == (dataset, "PipeDream")
        )
        holds &= found["PipeDream"] > (found["PipeMare"] or 0) > (found["GPipe"] or 0)
        texts.append(
            f"{dataset}: PipeDream {found['PipeDream']:.2f}x (printed {printed}x), PipeMare {found['PipeMare']:.2f}x"
        )
    if not texts:
        raise NotLogged("no model's weights are logged")
    return holds, "; ".join(texts)


@judge(PAPER, "table_2", "pipedream_fails")
def pipedream_fails(context: Context) -> Finding:
    """Below a fifth of the synchronous BLEU."""
    found, text = gaps(context, ["PipeDream"], "translation")
    sync = needed(context, arm="Sync", task="translation")
    return sync - found["PipeDream"] < 0.2 * sync, text


@judge(PAPER, "table_2", "warmup_quality")
def warmup_quality(context: Context) -> Finding:
    """As trained here, on translation only."""
    found, text = gaps(context, ["T1+T2+W"], "translation")
    return found["T1+T2+W"] <= 0.1, text


@judge(PAPER, "table_2", "cifar_quality")
def cifar_quality(context: Context) -> Finding:
    """As trained here."""
    found, text = gaps(context, ["T1+T2", "PipeDream"])
    return found["T1+T2"] <= 0.1, text


@drawing(PAPER, "text_headline")
def headline(context: Context) -> Drawn:
    """Two ratios."""
    utilisation, memory = headline_ratios(context)
    rows: list[dict[str, Cell]] = [
        {
            "what": "utilisation, PipeMare over GPipe",
            "paper": context.result.reported["utilisation"],
            "own": utilisation,
        },
        {"what": "memory, PipeDream over PipeMare with T1", "paper": context.result.reported["memory"], "own": memory},
        {"what": "memory, PipeDream over PipeMare with T1 and T2", "paper": None, "own": memory and memory / (4 / 3)},
    ]
    columns = [Column("what", "Ratio"), Column("paper", "paper", "", "{:.1f}x"), Column("own", "ours", "", "{:.2f}x")]
    notes = ["the paper's 2.7 is over PipeMare without T2's buffer (ambiguity B3), and not what its formula gives (B2)"]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))


def headline_ratios(context: Context) -> tuple[float, float | None]:
    """(utilisation, memory) of PipeMare against GPipe and PipeDream on CIFAR-10."""
    table = context.paper.results["table_2"].reported
    row = next(r for r in table if (r["dataset"], r["method"]) == ("CIFAR10", "PipeDream"))
    return 1 / gpipe_utilisation(row["P"], row["N"]), memory_of(context, row)


@judge(PAPER, "text_headline", "ratios")
def ratios(context: Context) -> Finding:
    """The utilisation to 0.1; the memory as the formula gives it."""
    utilisation, memory = headline_ratios(context)
    if memory is None:
        raise NotLogged("the model's weights have no log")
    said = context.result.reported
    text = (
        f"utilisation {utilisation:.2f}x (paper {said['utilisation']}x), memory {memory:.2f}x (paper {said['memory']}x)"
    )
    return abs(utilisation - said["utilisation"]) < 0.1 and memory >= said["memory"], text


@drawing(PAPER, "figure_9")
def figure_9(context: Context) -> Drawn:
    """Two bars per stage."""
    log = context.log()
    if log is None:
        return not_logged("the counts have no log")
    row = log.rows[0]
    groups = {
        str(i): {"without recomputation": float(a), "with recomputation": float(b)}
        for i, (a, b) in enumerate(zip(row["without"], row["with"], strict=True), start=1)
    }
    figure = bars(groups, "cached activations (microbatches)", "{:.0f}", x="stage")
    data = pd.DataFrame({"stage": range(1, row["stages"] + 1), "without": row["without"], "with": row["with"]})
    return Drawn(figure=figure, data=data)


@judge(PAPER, "figure_9", "heads_only")
def heads_only(context: Context) -> Finding:
    """Inner stages stay below twice the segment; the sums."""
    row = log_of(context).rows[0]
    inner = [held for i, held in enumerate(row["with"]) if i % row["segment"]]
    text = f"inner stages at most {max(inner)}; sums {sum(row['with'])} against {sum(row['without'])}"
    return max(inner) <= 2 * row["segment"] and sum(row["with"]) < 0.6 * sum(row["without"]), text


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The last doubling's slope in log-log: the growth for large sizes."""
    return log2(values[-1] / values[-2]) / log2(sizes[-1] / sizes[-2])


def exponents(context: Context, what: str) -> tuple[float, float]:
    """(without, with) recomputation, over P or N."""
    rows = log_of(context, what=what).rows
    sizes = [row["microbatches"] or row["stages"] for row in rows]
    return tuple(exponent(sizes, [sum(row[key]) for row in rows]) for key in ("without", "with"))  # type: ignore[return-value]


@drawing(PAPER, "table_4")
def table_4(context: Context) -> Drawn:
    """The paper's exponents beside those of the counts."""
    rows: list[dict[str, Cell]] = []
    for row in context.result.reported:
        line: dict[str, Cell] = {"mode": row["mode"], "in": row["in"], "without": row["without"], "with": row["with"]}
        if context.log(what=row["mode"]):
            line["own_without"], line["own_with"] = exponents(context, row["mode"])
        rows.append(line)
    columns = [
        Column("mode", "Pipeline"),
        Column("in", "grows with"),
        Column("without", "paper", "exponent without recomputation", "{:g}"),
        Column("own_without", "counted", "exponent without recomputation", "{:.2f}"),
        Column("with", "paper", "exponent with", "{:g}"),
        Column("own_with", "counted", "exponent with", "{:.2f}"),
    ]
    return Drawn(table=Table(columns, rows, context.result.caption))


@judge(PAPER, "table_4", "exponents")
def exponents_hold(context: Context) -> Finding:
    """Within 0.05."""
    texts, holds = [], True
    for row in context.result.reported:
        own = exponents(context, row["mode"])
        holds &= abs(own[0] - row["without"]) < 0.05 and abs(own[1] - row["with"]) < 0.05
        texts.append(f"{row['mode']}: {row['in']}^{own[0]:.2f} and {row['in']}^{own[1]:.2f}")
    return holds, "; ".join(texts)


@drawing(PAPER, "table_5")
def table_5(context: Context) -> Drawn:
    """The rule and the counts."""
    log = context.log()
    counted = {row["stages"]: sum(row["with"]) / sum(row["without"]) for row in log.rows} if log else {}
    rows: list[dict[str, Cell]] = [
        {
            "dataset": row["dataset"],
            "stages": row["stages"],
            "paper": row["with"],
            "rule": row["stages"] ** -0.5 if log else None,
            "counted": counted.get(row["stages"]),
        }
        for row in context.result.reported
    ]
    columns = [
        Column("dataset", "Task"),
        Column("stages", "P"),
        Column("paper", "paper", "", "{:.3f}"),
        Column("rule", "1/sqrt(P)", "", "{:.3f}"),
        Column("counted", "counted over the schedule", "", "{:.3f}"),
    ]
    notes = ["the paper's rule compares orders of growth; counted, heads and inner stages each hold about P^(3/2)"]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))


@judge(PAPER, "table_5", "one_over_root")
def one_over_root(context: Context) -> Finding:
    """The rule, to three digits."""
    log = log_of(context)
    wrong = [row for row in context.result.reported if abs(row["stages"] ** -0.5 - row["with"]) > 5.1e-4]
    counted = ", ".join(f"P = {row['stages']}: {sum(row['with']) / sum(row['without']):.3f}" for row in log.rows)
    return (
        not wrong,
        f"{len(context.result.reported) - len(wrong)} of {len(context.result.reported)} rows; counted {counted}",
    )


SETTINGS = {
    "optimizer": "optimizer",
    "lr": "rate",
    "momentum": "momentum",
    "weight_decay": "L2",
    "label_smoothing": "label smoothing",
    "dropout": "dropout",
    "warmup": "warm-up steps",
    "epochs": "epochs",
    "batch": "minibatch",
    "microbatch": "microbatch",
    "microbatches": "microbatches",
    "warmup_epochs": "synchronous epochs",
    "annealing_epochs": "annealing epochs",
    "D": "D",
}


@drawing(PAPER, "table_6", "table_7", "table_9")
def settings(context: Context) -> Drawn:
    """The paper's settings, and those in the spec of the run logged here."""
    rows: list[dict[str, Cell]] = [{"who": f"paper, {row['dataset']}", **row} for row in context.result.reported]
    item = next((item for item in context.items if item.log is not None), None)
    if item is not None and item.log is not None:
        spec = item.arm.spec
        assert spec.optimizer is not None and spec.data is not None and spec.model is not None
        last = item.log.rows[-1]
        per_step = last["epoch"] / last["step"]
        phase = spec.phases[-1]
        rows.append(
            {
                "who": f"run here, {spec.data.name}",
                "optimizer": spec.optimizer.name,
                "lr": spec.optimizer.lr,
                "momentum": spec.optimizer.momentum,
                "weight_decay": spec.optimizer.weight_decay,
                "label_smoothing": spec.options.get("label_smoothing"),
                "dropout": spec.model.options.get("dropout"),
                "warmup": spec.lr_schedule.warmup,
                "epochs": last["epoch"],
                "batch": spec.batch,
                "microbatch": spec.batch // phase.microbatches,
                "microbatches": phase.microbatches,
                "warmup_epochs": sum(p.steps for p in spec.phases[:-1]) * per_step,
                "annealing_epochs": phase.options.get("annealing", 0) * per_step,
                "D": phase.options.get("decay"),
            }
        )
    known = {key for row in context.result.reported for key in row}
    columns = [Column("who", "")]
    columns += [
        Column(key, title, "", "{}" if key == "optimizer" else "{:.3g}")
        for key, title in SETTINGS.items()
        if key in known
    ]
    return Drawn(table=Table(columns, rows, context.result.caption))


@drawing(PAPER, "table_8")
def grids(context: Context) -> Drawn:
    """The paper's grids, and the arms tried here with their qualities."""
    rows: list[dict[str, Cell]] = []
    for paper in context.result.reported:
        arms = [
            arm
            for arm in context.values("arm")
            if arm.startswith(f"{paper['key']} =") and context.select(arm=arm, task=paper["task"])
        ]
        arms.sort(key=lambda arm: float(arm.split()[2]))
        found = {arm: value for arm in arms if (value := quality(context, arm=arm, task=paper["task"])) is not None}
        rows.append(
            {
                "dataset": paper["dataset"],
                "parameter": paper["parameter"],
                "grid": paper["grid"],
                "optimum": paper["optimum"],
                "own": ", ".join(f"{arm.split('= ')[1]}: {value:.1f}" for arm, value in found.items()),
                "best": max(found, key=lambda arm: found[arm]).split("= ")[1] if found else None,
            }
        )
    columns = [
        Column("dataset", "Task of the paper"),
        Column("parameter", "Parameter"),
        Column("grid", "grid", "paper"),
        Column("optimum", "best", "paper"),
        Column("own", "tried: best quality", "ours"),
        Column("best", "best", "ours"),
    ]
    notes = ["ours: annealing and warm-up as shares of the run"]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))


def added(context: Context, arm: str) -> float | None:
    """Percent of weights, gradients and optimizer state that T2's average adds."""
    log = context.log(arm=arm)
    if log is None:
        return None
    plain, corrected = log.rows
    held = plain["weights"] + plain["gradients"] + plain["optimizer"]
    return 100 * (corrected["average"] - plain["average"]) / held


@drawing(PAPER, "text_t2_memory")
def t2_buffer(context: Context) -> Drawn:
    """A row per optimizer."""
    rows: list[dict[str, Cell]] = [
        {"optimizer": arm, "paper": context.result.reported[arm], "own": added(context, arm)}
        for arm in context.values("arm")
    ]
    columns = [
        Column("optimizer", "Optimizer"),
        Column("paper", "paper (%)"),
        Column("own", "counted (%)", "", "{:.1f}"),
    ]
    return Drawn(table=Table(columns, rows, context.result.caption))


@judge(PAPER, "text_t2_memory", "third_and_quarter")
def third_and_quarter(context: Context) -> Finding:
    """Counted in a training step."""
    found = {arm: added(context, arm) for arm in context.values("arm")}
    if None in found.values():
        raise NotLogged("the copies have no log")
    text = ", ".join(f"{arm} {value:.1f} %" for arm, value in found.items())
    return all(round(value or 0) == context.result.reported[arm] for arm, value in found.items()), text


def share(context: Context) -> float | None:
    """Percent of the busy time that recomputation adds."""
    logs = [context.log(arm=arm) for arm in ("without", "with")]
    if None in logs:
        return None
    busy = [sum(row["end"] - row["start"] for row in log.rows if row["kind"] in "FBR") for log in logs if log]
    return 100 * (1 - busy[0] / busy[1])


@drawing(PAPER, "text_recompute_compute_share")
def compute_share(context: Context) -> Drawn:
    """One number."""
    rows: list[dict[str, Cell]] = [
        {"what": "share of recomputation", "paper": context.result.reported["share_percent"], "own": share(context)}
    ]
    columns = [
        Column("what", ""),
        Column("paper", "paper (%)"),
        Column("own", "timed (%)", "", "{:.1f}"),
    ]
    return Drawn(table=Table(columns, rows, context.result.caption, ["a backward twice a forward, recomputation one"]))


@judge(PAPER, "text_recompute_compute_share", "a_quarter")
def a_quarter(context: Context) -> Finding:
    """Busy time with and without."""
    value = share(context)
    if value is None:
        raise NotLogged("the timelines have no log")
    return abs(value - context.result.reported["share_percent"]) < 0.5, f"{value:.1f} %"
