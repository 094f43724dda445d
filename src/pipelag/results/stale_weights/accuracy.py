"""Tables 1-4 and 7, Figures 5-7: accuracy against staleness."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipelag.report.figures import Curve, curves, scatter
from pipelag.report.tables import Cell, Column, Table
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.logs import Context, Item, tidy

PAPER = "stale_weights"
STAGES = {"s4": "4-stage", "s6": "6-stage", "s8": "8-stage", "s10": "10-stage"}


def difference(a: float | None, b: float | None) -> float | None:
    """a - b where both are there."""
    return None if a is None or b is None else a - b


def cuts_text(item: Item | None) -> str | None:
    """A run's placement vector as the paper writes it."""
    return f"({', '.join(map(str, item.arm.spec.phases[0].cuts))})" if item else None


@drawing(PAPER, "table_1")
def table_1(context: Context) -> Drawn:
    """Placement vectors: the paper's, and those of the runs here."""
    rows: list[dict[str, Cell]] = []
    for line in context.result.reported:
        paper: dict[str, Cell] = {"model": line["model"], "layers": line["layers"], "source": "paper"}
        ours: dict[str, Cell] = {"model": line["model"], "source": "ours"}
        for key, arm in STAGES.items():
            printed = line.get(key)
            paper[key] = f"({', '.join(map(str, printed))})" if printed else None
            ours[key] = cuts_text(next(iter(context.select(model=line["model"], arm=arm)), None))
        rows += [paper, ours]
    columns = [Column("model", "CNN"), Column("source", ""), Column("layers", "Layers")]
    columns += [Column(key, name) for key, name in STAGES.items()]
    return Drawn(Table(columns, rows, context.result.caption, rules=range(2, len(rows), 2)))


@drawing(PAPER, "table_2", "text_headline_accuracy_drop")
def table_2(context: Context) -> Drawn:
    """Final accuracy of simulated pipelined training, the paper's beside ours, and the drops."""
    reported = context.paper.results["table_2"].reported
    arms = {"non_pipelined": "non-pipelined", **STAGES}
    arms = {key: arm for key, arm in arms.items() if arm in context.values("arm")}
    rows: list[dict[str, Cell]] = []
    for line in reported:
        model = line["model"]
        ours = {key: context.accuracy(model=model, arm=arm) for key, arm in arms.items()}
        rows.append({"model": model, "source": "paper", **{key: line.get(key) for key in arms}})
        rows.append({"model": model, "source": "ours", **{key: value.text() for key, value in ours.items()}})
        drop: dict[str, Cell] = {"model": model, "source": "drop, paper"}
        own: dict[str, Cell] = {"model": model, "source": "drop, ours"}
        for key in list(arms)[1:]:
            drop[key] = difference(line["non_pipelined"], line.get(key))
            own[key] = difference(ours["non_pipelined"].mean, ours[key].mean)
        rows += [drop, own]
    columns = [Column("model", "CNN"), Column("source", "")]
    columns += [Column(key, arm, format="{:.2f}") for key, arm in arms.items()]
    return Drawn(
        Table(columns, rows, context.result.caption, notes(context), rules=range(4, len(rows), 4)),
        data=tidy(context.items),
    )


def notes(context: Context) -> list[str]:
    """What a reader must know of our runs."""
    return [f"Ours: {text}." for text in (context.shortfall(), context.releases()) if text]


@drawing(PAPER, "table_3")
def table_3(context: Context) -> Drawn:
    """Fine-grained pipelining of ResNet-20."""
    rows: list[dict[str, Cell]] = []
    for line in context.result.reported:
        arm = str(line["stages"])
        items = context.select(arm=arm)
        value = context.accuracy(arm=arm)
        logs = context.logs(arm=arm)
        stale = logs[0].summary["phases"][0]["stale_percent"] if logs else None
        name = arm if arm == "non-pipelined" else f"{arm} stages"
        rows.append(
            {
                "arm": name,
                "ppv": cuts_text(items[0]) if arm != "non-pipelined" else None,
                "stale": stale,
                "paper": line["accuracy"],
                "ours": value.text(),
            }
        )
    control = "non-pipelined at the pipelined rate"
    rows.append({"arm": control, "ours": context.accuracy(arm=control).text()})
    columns = [
        Column("arm", "Pipeline"),
        Column("ppv", "PPV"),
        Column("stale", "stale weights %", format="{:.2f}"),
        Column("paper", "paper", "accuracy %", "{:.2f}"),
        Column("ours", "ours", "accuracy %"),
    ]
    more = ["The last row is a control: the paper trains its baseline at ten times the pipelined arms' rate."]
    return Drawn(
        Table(columns, rows, context.result.caption, notes(context) + more, rules=[1, len(rows) - 1]),
        data=tidy(context.items),
    )


@drawing(PAPER, "table_4")
def table_4(context: Context) -> Drawn:
    """Hybrid training of ResNet-20."""
    rows: list[dict[str, Cell]] = []
    for line in context.result.reported:
        items = context.select(arm=line["arm"])
        steps = (
            " + ".join(f"{p.steps:,} {p.method.replace('_', ' ')}" for p in items[0].arm.spec.phases) if items else None
        )
        ours = context.accuracy(arm=line["arm"])
        rows.append({"arm": line["arm"], "steps": steps, "paper": line["accuracy"], "ours": ours.text()})
    columns = [
        Column("arm", "Training"),
        Column("steps", "our steps"),
        Column("paper", "paper", "accuracy %", "{:.2f}"),
        Column("ours", "ours", "accuracy %"),
    ]
    return Drawn(Table(columns, rows, context.result.caption, notes(context)), data=tidy(context.items))


@drawing(PAPER, "table_7")
def table_7(context: Context) -> Drawn:
    """The rate of the stale partition, printed and used."""
    rows: list[dict[str, Cell]] = []
    for line in context.result.reported:
        items = context.select(model=line["model"])
        used = None
        if items:
            spec = items[0].arm.spec
            assert spec.optimizer is not None
            used = spec.phases[0].stage_lr.get(1, spec.optimizer.lr)
        rows.append({"model": line["model"], "paper": line["bks2_lr"], "ours": used})
    columns = [
        Column("model", "ResNet"),
        Column("paper", "paper", "BKS2 learning rate"),
        Column("ours", "ours", "BKS2 learning rate"),
    ]
    return Drawn(Table(columns, rows, context.result.caption))


def curve_of(items: list[Item], label: str) -> Curve | None:
    """Accuracy against iterations, the mean over seeds with its spread; None without a log."""
    logs = [item.log for item in items if item.log is not None]
    if not logs:
        return None
    frame = pd.concat([pd.DataFrame(log.rows).assign(seed=i) for i, log in enumerate(logs)])
    by_step = frame.groupby("step")["accuracy"]
    mean, spread = by_step.mean(), by_step.std()
    phases = items[0].arm.spec.phases
    marks = [sum(p.steps for p in phases[: i + 1]) for i in range(len(phases) - 1)]
    return Curve(label, list(mean.index), list(mean), list(spread) if len(logs) > 1 else None, marks)


@drawing(PAPER, "accuracy_curves")
def accuracy_curves(context: Context) -> Drawn:
    """Figures 5a-5d and 7: test accuracy against iterations, an arm per line."""
    made = {arm: curve_of(context.select(arm=arm), arm) for arm in context.values("arm")}
    lines = [curve for curve in made.values() if curve is not None]
    data = pd.DataFrame(
        [{"arm": c.label, "step": x, "accuracy": y} for c in lines for x, y in zip(c.x, c.y, strict=True)]
    )
    title = context.result.options.get("model", "ResNet-20")
    first = next((item.log for item in context.items if item.log), None)
    if first:
        title += f" on {first.summary['data']['title']}"
    figure = curves(lines, "iterations", "test accuracy (%)", title, y_from_percentile=0.12)
    return Drawn(figure=figure, data=data)


@drawing(PAPER, "figure_6")
def figure_6(context: Context) -> Drawn:
    """Accuracy against the percentage of stale weights: more stages, or one register that slides."""
    lines: list[dict[str, Any]] = []
    meaning = {
        "Increasing Stages": "Increasing Stages (their number)",
        "Sliding Stage": "Sliding Stage (register after layer)",
    }
    series: dict[str, list[tuple[float, float, str]]] = {name: [] for name in meaning.values()}
    for curve in meaning:
        for arm in dict.fromkeys(i.arm.labels["arm"] for i in context.select(curve=curve)):
            value, logs = context.accuracy(curve=curve, arm=arm), context.logs(curve=curve, arm=arm)
            if value.mean is None:
                continue
            phase = logs[0].summary["phases"][0]
            label = str(phase["stages"] * 2 if curve == "Increasing Stages" else phase["cuts"][-1])
            series[meaning[curve]].append((phase["stale_percent"], value.mean, label))
            lines.append(
                {
                    "curve": curve,
                    "arm": arm,
                    "stale_percent": phase["stale_percent"],
                    "accuracy": value.mean,
                    "degree_of_staleness": max(phase["forward_delays"]),
                }
            )
    baseline = context.accuracy(curve="baseline").mean
    level = ("non-pipelined", baseline) if baseline is not None else None
    figure = scatter(series, "percentage of stale weights", "test accuracy (%)", level)
    return Drawn(figure=figure, data=pd.DataFrame(lines))
