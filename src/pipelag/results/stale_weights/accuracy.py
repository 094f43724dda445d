"""Tables 1-4 and 7, figures 5-7: accuracy against staleness."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pandas as pd

from pipelag.report.frames import Axis, Lines
from pipelag.report.panels import MANY
from pipelag.report.tables import Cell, Col, table
from pipelag.results.context import Context, seeds_in_words
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import ahead, text_of
from pipelag.results.logs import Item
from pipelag.results.stale_weights.claims_accuracy import LENGTHS, PRECISIONS, gained, rounding
from pipelag.results.stale_weights.claims_hybrid import PIPELINED
from pipelag.results.stale_weights.reading import (
    BASELINE,
    CONTROL,
    PAPER,
    STAGES,
    as_run,
    name_as_run,
    rates_of,
)
from pipelag.results.verdict import if_logged

Row = dict[str, Cell]
INTERVAL = "mean ± half the 95 % interval over seeds, paired; with one seed, that of the test set's samples."
NOT_AVAILABLE = "N/A"  # the paper's mark for networks with too few layers for so many stages


def vector(cuts: Any) -> str:
    """A placement vector as the paper writes it."""
    return f"({', '.join(map(str, cuts))})"


def vector_of(context: Context, **labels: str) -> str | None:
    """The placement vector in a training run's log; None without a log."""
    log = context.log(**labels)
    return vector(log.phase["cuts"]) if log is not None else None


def drop_text(context: Context, arm: str, base: str = BASELINE, **labels: str) -> str | None:
    """An arm's drop in accuracy below `base`: mean over seeds, half its 95 % interval; None if a run is missing.

    With the number of seeds if it is not the table's usual one.
    """
    lost = if_logged(lambda: ahead(context, base, arm, **labels))
    if lost is None:
        return None
    other = f" ({seeds_in_words(lost.seeds)})" if lost.seeds != context.usual_seeds else ""
    return f"{lost.mean:.2f}" + (f" ± {lost.error:.2f}" if lost.error is not None else "") + other


def unlogged(context: Context) -> list[str]:
    """A note with the number of runs without a log. It skips runs that the scale leaves out: the footer names these."""
    missing = [item for item in context.items if item.log is None and not item.arm.left_out]
    return [f"–: no log; {len(missing)} of {len(context.items)} runs are not made at this scale."] if missing else []


def notes(context: Context, *more: str) -> list[str]:
    """A table's notes on our runs, in addition to the footer: missing logs and the spread over seeds; then `more`."""
    seeds = len({item.arm.seed for item in context.logged() if item.arm.spec.kind == "train"})
    spread = [f"Accuracies: mean ± standard deviation over {context.over_seeds}."] if seeds > 1 else []
    return [*unlogged(context), *spread, *more]


@drawing(PAPER, "table_1")
def table_1(context: Context) -> Drawn:
    """Placement vectors and numbers of layers: the paper's and those in our logs."""
    rows: list[Row] = []
    for line in context.result.reported:
        model = line["model"]
        counted = context.log(model=model, arm="count")
        paper: Row = {"model": model, "source": "paper", "layers": line["layers"]}
        ours: Row = {"model": model, "source": "ours", "layers": counted.summary["layers"] if counted else None}
        for key, arm in STAGES.items():
            paper[key] = vector(line[key]) if line[key] else NOT_AVAILABLE
            ours[key] = vector_of(context, model=model, arm=arm) if line[key] else NOT_AVAILABLE
        rows += [paper, ours]
    cols = [Col("CNN", "model"), Col("", "source"), Col("layers", "layers")]
    cols += [Col(name, key) for key, name in STAGES.items()]
    return Drawn.tabled(context, rows, cols, unlogged(context), rule_by="CNN")


@drawing(PAPER, "table_2", "text_headline_accuracy_drop")
def table_2(context: Context) -> Drawn:
    """Final accuracies of simulated pipelined training and their drops, the paper's beside ours."""
    arms = {"non_pipelined": BASELINE, **STAGES}
    arms = {key: arm for key, arm in arms.items() if arm in context.values("arm")}
    rows: list[Row] = []
    for line in context.paper.results["table_2"].reported:
        model = line["model"]
        printed = [key for key in arms if line.get(key) is not None]
        none: Row = dict.fromkeys([key for key in arms if key not in printed], NOT_AVAILABLE)
        ours = {key: context.accuracy(model=model, arm=arms[key]).text() for key in printed}
        rows.append({"model": model, "source": "paper", **none, **{key: line[key] for key in printed}})
        rows.append({"model": model, "source": "ours", **none, **ours})
        drop = {key: line["non_pipelined"] - line[key] for key in printed[1:]}
        our_drop = {key: drop_text(context, arms[key], model=model) for key in printed[1:]}
        rows += [{"model": model, "source": "drop, paper", **none, **drop}]
        rows += [{"model": model, "source": "drop, ours", **none, **our_drop}]
    cols = [Col("CNN", "model"), Col("", "source")]
    cols += [Col(arm, key, "{:.2f}") for key, arm in arms.items()]
    interval = f"Drops: {INTERVAL}"
    more = ([interval] if any("±" in str(r) for r in rows) else []) + [counted_twice(context, arms.values())]
    return Drawn.tabled(context, rows, cols, notes(context, *more), rule_by="CNN")


def counted_twice(context: Context, names: Iterable[str]) -> str:
    """A note on how the paper counts stages, with the number of workers of each arm."""
    pieces: dict[str, int] = {}
    for name in names:
        counts = {item.arm.spec.phases[-1].stages for item in context.select(arm=name) if name != BASELINE}
        if len(counts) == 1:
            pieces[name] = counts.pop()
    words = ", ".join(f"{name} {count}" for name, count in pieces.items())
    return (
        f"The paper counts a worker's forward and its backward as two stages, the last one's as well; workers: {words}."
    )


LATE = "8-stage"  # the arm of table 2


@drawing(PAPER, "table_3")
def table_3(context: Context) -> Drawn:
    """Fine-grained pipelining of ResNet-20."""
    rows: list[Row] = []
    for line in context.result.reported:
        arm = str(line["stages"])
        log = context.log(arm=arm)
        pipelined = arm != BASELINE
        rows.append(
            {
                "arm": f"{arm} stages" if pipelined else arm,
                "ppv": vector_of(context, arm=arm) if pipelined else "none",
                "stale": (log.phase["stale_percent"] if pipelined else 0.0) if log else None,
                "paper": line["accuracy"],
                "ours": context.accuracy(arm=arm).text(),
            }
        )
    late = context.log(arm=LATE)
    rows.append(
        {
            "arm": "8 stages, registers through the whole network",
            "ppv": vector_of(context, arm=LATE),
            "stale": late.phase["stale_percent"] if late else None,
            "ours": context.accuracy(arm=LATE).text(),
        }
    )
    stale = 0.0 if context.log(arm=CONTROL) else None
    rows.append({"arm": CONTROL, "ppv": "none", "stale": stale, "ours": context.accuracy(arm=CONTROL).text()})
    cols = [
        Col("pipeline", "arm"),
        Col("PPV", "ppv"),
        Col("stale weights %", "stale", "{:.2f}"),
        Col("paper", "paper", "{:.2f}", "accuracy %"),
        Col("ours", "ours", "{}", "accuracy %"),
    ]
    more = (
        "PPV: the paper prints (3, 5, 7) and that registers are added after every 2 layers. The last two rows are "
        "beside the paper's: table 2's eight stages, trained as long as the rows above, and a control, as the paper "
        "trains its baseline at ten times the pipelined arms' rate."
    )
    accuracies = table(rows, cols, context.result.caption, notes(context, more))
    accuracies.rules = [1, len(rows) - 2]
    return Drawn(accuracies)


@drawing(PAPER, "control")
def control(context: Context) -> Drawn:
    """Each arm's drop below the baseline, and below training without a pipeline at the arm's own learning rate."""
    rows: list[Row] = []
    for arm in context.values("arm"):
        row: Row = {"arm": arm, "ours": context.accuracy(arm=arm).text()}
        row["lost"] = drop_text(context, arm) if arm != BASELINE else None
        row["beyond"] = drop_text(context, arm, CONTROL) if arm not in (BASELINE, CONTROL) else None
        rows.append(row)
    rows = [row for row in rows if row["arm"] != CONTROL] + [row for row in rows if row["arm"] == CONTROL]
    cols = [
        Col("arm", "arm"),
        Col("accuracy %", "ours"),
        Col("to the baseline", "lost", "{}", "lost, points"),
        Col("at equal rates", "beyond", "{}", "lost, points"),
    ]
    more = f"Lost: {INTERVAL}"
    return Drawn.tabled(context, rows, cols, notes(context, more))


@drawing(PAPER, "hybrid_control")
def hybrid_control(context: Context) -> Drawn:
    """Each arm's final accuracy, and how far it is above pipelined training."""
    rows: list[Row] = []
    for arm in context.values("arm"):
        above = drop_text(context, PIPELINED, arm) if arm != PIPELINED else None
        rows.append({"arm": as_run(context, arm), "ours": context.accuracy(arm=arm).text(), "above": above})
    cols = [Col("training", "arm"), Col("accuracy %", "ours"), Col("above pipelined, points", "above")]
    more = f"Above: {INTERVAL}", "Pipelined at both rates: the pipeline goes on, at the rate at which the hybrid does."
    return Drawn.tabled(context, rows, cols, notes(context, *more))


@drawing(PAPER, "precision")
def precision(context: Context) -> Drawn:
    """The same arms in float32 and bfloat16, and the change in final accuracy."""
    rows: list[Row] = []
    for arm in context.values("arm"):
        each = {name: context.accuracy(arm=arm, precision=name).text() for name in PRECISIONS}
        rows.append({"arm": arm, **each, "change": text_of(partial(rounding, context, arm))})
    cols = [Col("arm", "arm"), *(Col(name, name, "{}", "final accuracy %") for name in PRECISIONS)]
    cols.append(Col("bfloat16 minus float32", "change", "{}"))
    return Drawn.tabled(context, rows, cols, notes(context))


@drawing(PAPER, "length")
def length(context: Context) -> Drawn:
    """The same arms at two lengths of training: what each gains, and its drop below the baseline at each."""
    rows: list[Row] = []
    for arm in context.values("arm"):
        row: Row = {"arm": arm, **{each: context.accuracy(arm=arm, length=each).text() for each in LENGTHS}}
        row["gained"] = text_of(partial(gained, context, arm))
        if arm != BASELINE:
            row |= {f"lost {each}": drop_text(context, arm, length=each) for each in LENGTHS}
        rows.append(row)
    titles = dict(zip(LENGTHS, ("as in table 2", "twice as long"), strict=True))
    cols = [Col("arm", "arm"), *(Col(titles[each], each, "{}", "final accuracy %, trained") for each in LENGTHS)]
    cols.append(Col("gained, points", "gained"))
    cols += [Col(titles[each], f"lost {each}", "{}", "lost to the baseline, points") for each in LENGTHS]
    more = (
        "Gained, lost: mean ± half the 95 % interval over the seeds that both have, paired; with one seed, that of the "
        "test set's samples."
    )
    return Drawn.tabled(context, rows, cols, notes(context, more))


@drawing(PAPER, "table_4")
def table_4(context: Context) -> Drawn:
    """Hybrid training of ResNet-20."""
    rows: list[Row] = []
    for line in context.result.reported:
        log = context.log(arm=line["arm"])
        phases = log.summary["phases"] if log else []
        names = {"sequential": BASELINE, "stale_weights": "pipelined"}
        rows.append(
            {
                "arm": line["arm"],
                "steps": " + ".join(f"{p['steps']:,} {names[p['method']]}" for p in phases) or None,
                "paper": line["accuracy"],
                "ours": context.accuracy(arm=line["arm"]).text(),
            }
        )
    cols = [
        Col("training", "arm"),
        Col("our iterations", "steps"),
        Col("paper", "paper", "{:.2f}", "accuracy %"),
        Col("ours", "ours", "{}", "accuracy %"),
    ]
    sentences = [*notes(context), *filter(None, [rates_of(context)])]
    return Drawn.tabled(context, rows, cols, sentences)


@drawing(PAPER, "table_7")
def table_7(context: Context) -> Drawn:
    """The learning rate of the stale partition, printed and used, and the accuracy with one rate in both partitions."""
    rows: list[Row] = []
    for line in context.result.reported:
        model = line["model"]
        items = context.logged(model=model, arm="pipelined")
        first = model == "ResNet-20"  # here both partitions have the same printed rate
        one_rate = context.accuracy(model=model, arm="pipelined" if first else "one rate")
        rows.append(
            {
                "model": model,
                "paper": line["bks2_lr"],
                "ours": first_rate(items[0]) if items else None,
                "with": context.accuracy(model=model, arm="pipelined").text(),
                "one": one_rate.text(),
            }
        )
    cols = [
        Col("ResNet", "model"),
        Col("paper", "paper", "{:g}", "BKS2 learning rate"),
        Col("ours", "ours", "{:g}", "BKS2 learning rate"),
        Col("with that rate", "with", "{}", "our accuracy %"),
        Col("one rate in both partitions", "one", "{}", "our accuracy %"),
    ]
    more = 'Printed as "071", "0701", "0.001", "0:001", "0.001". The other partition\'s rate is 0.1 in the paper.'
    return Drawn.tabled(context, rows, cols, notes(context, more))


def first_rate(item: Item) -> float:
    """The base learning rate of a run's first stage."""
    spec = item.arm.spec
    assert spec.optimizer is not None
    return spec.phases[0].stage_lr.get(1, spec.optimizer.lr)


ACCURACY = "inference accuracy (%)"


@drawing(PAPER, "accuracy_curves")
def accuracy_curves(context: Context) -> Drawn:
    """Figures 5a-5d and 7: test accuracy against iterations, one line per arm; vertical lines mark changes of phase."""
    model = context.result.options.get("model", "ResNet-20")
    rows: list[dict[str, Any]] = []
    for item in context.items:
        if item.log is None:
            continue
        panel = f"{model} on {item.log.summary['data']['title']}"
        phases = item.arm.spec.phases
        switch = phases[0].steps if len(phases) > 1 else None
        rows += [
            {"panel": panel, "arm": name_as_run(item), "seed": item.arm.seed, "switch": switch}
            | {"iteration": row["step"], "accuracy": row["accuracy"]}
            for row in item.log.rows
        ]
    frame = pd.DataFrame(rows)
    chart = Lines(
        Axis("iteration", "number of iterations", limits=(0, None)),
        Axis("accuracy", ACCURACY, limits=end_of(frame)),
        line="arm",
        panel="panel",
        vertical="switch",
        vertical_title="switch",
        smooth=True,
        height=2.6,
    )
    cut = "The axis shows the ends of the curves; their rise lies below it." if end_of(frame) != (None, None) else ""
    return Drawn.of(chart, frame, note=cut or rates_of(context, name_as_run))


def end_of(frame: pd.DataFrame) -> tuple[float | None, float | None]:
    """The limits of the accuracy axis: long curves show only their end, not their rise; short ones are shown whole."""
    if frame.empty or frame.groupby(["arm", "seed"]).size().max() <= MANY:
        return None, None
    low, top = float(frame["accuracy"].quantile(0.03)), float(frame["accuracy"].max())
    return low - 0.03 * (top - low), top + 0.1 * (top - low) + 1e-9


def at_rate(context: Context) -> str:
    """The control's name with its learning rate and the baseline's, if each has only one."""
    rates = [
        {item.arm.spec.optimizer.lr for item in context.select(curve=curve) if item.arm.spec.optimizer is not None}
        for curve in ("control", "baseline")
    ]
    if any(len(each) != 1 for each in rates):
        return CONTROL
    return f"{CONTROL}, {rates[0].pop():g} instead of {rates[1].pop():g}"


@drawing(PAPER, "figure_6")
def figure_6(context: Context) -> Drawn:
    """Accuracy against the percentage of stale weights, for more and more stages and for one register that slides."""
    names = {
        "Increasing Stages": "Increasing Stages (label: stages)",
        "Sliding Stage": "Sliding Stage (label: register after layer)",
    }
    rows: list[dict[str, Any]] = []
    for curve, name in names.items():
        for arm in context.values("arm", curve=curve):
            for item in context.select(curve=curve, arm=arm):
                if item.log is None or item.log.accuracy is None:
                    continue
                phase = item.log.phase
                rows.append(
                    {
                        "curve": name,
                        "arm": arm,
                        "seed": item.arm.seed,
                        "stale_percent": phase["stale_percent"],
                        "accuracy": item.log.accuracy,
                        "degree_of_staleness": max(phase["forward_delays"]),
                        "label": str(2 * phase["stages"] if curve == "Increasing Stages" else phase["cuts"][-1]),
                    }
                )
    levels = {BASELINE: context.accuracy(curve="baseline").mean}
    levels[at_rate(context)] = context.accuracy(curve="control").mean
    log = context.log()
    frame = pd.DataFrame(rows)
    if log is not None and rows:
        frame["panel"] = f"ResNet-20 on {log.summary['data']['title']}"
    chart = Lines(
        Axis("stale_percent", "percentage of stale weights", limits=(0, 103)),
        Axis("accuracy", ACCURACY),
        line="curve",
        panel="panel",
        label="label",
        styles={names["Increasing Stages"]: (1, 0), names["Sliding Stage"]: (2, 1)},
        levels={name: mean for name, mean in levels.items() if mean is not None},
        height=2.7,
    )
    return Drawn.of(chart, frame)
