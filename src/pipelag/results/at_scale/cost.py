"""Tables and figures of the study `at_scale`: throughput, memory, staleness, bytes between servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Cell, Col
from pipelag.report.tables import table as tabulated
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.timing.sheets import data_sheet

PAPER = "at_scale"
WAITING = ("data parallelism", "GPipe", "1F1B with flush")  # these read no late weights
PAYS = 1.1  # times as fast, from which on asynchrony is said to pay
GIB, GB = 2**30, 1e9
SHARE = "throughput, % of ideal"
STYLES = {
    "data parallelism": (0, 0),
    "GPipe": (1, 1),
    "1F1B with flush": (2, 1),
    "PipeDream": (3, 0),
    "PipeDream-2BW": (4, 0),
    "PipeMare T2": (5, 2),
    "PipeOptim": (6, 2),
    "SpecTrain": (7, 2),
}

Row = dict[str, Any]


def rows_of(context: Context) -> Iterator[Row]:
    """Every method's row with what is drawn of it."""
    for model in context.values("model"):
        log = context.log(model=model)
        if log is None:
            continue
        options = context.select(model=model)[0].arm.spec.options
        for row in (row for row in log.rows if row["what"] == "method"):
            yield {"model": model, "batch": options["batch"]} | row | measures(row, options["batch"])


def measures(row: Row, batch: int) -> Row:
    """What follows from a row; nothing where no layout fits."""
    if "timed" not in row:
        return {}
    return {
        "samples_per_second": batch / row["timed"],
        "share": 100 * row["ideal"] / row["timed"],
        "paper": row["on_paper"] / row["timed"],
        "GiB": row["memory"] / GIB,
        "GB": row["leaving"] / GB,
        "layout": f"{row['stages']} x {row['replicas']}",
        "parts": f"{row['microbatches']} of {row['samples']}" + (" (R)" if row["recompute"] else ""),
    }


def percent(share: float | None) -> str | None:
    """Two digits, or as many as there are before the point."""
    if share is None:
        return None
    digits = next((digits for digits, least in ((0, 9.95), (1, 0.995)) if share >= least), 2)
    return f"{share:.{digits}f}"


def quickest(rows: Sequence[Row]) -> Row | None:
    """Of those that fit."""
    return max((row for row in rows if "timed" in row), key=lambda row: row["samples_per_second"], default=None)


def verdict(waiting: Row | None, free: Row | None) -> dict[str, Cell]:
    """One line of table 1: the two kinds of methods, side by side."""
    line: dict[str, Cell] = {}
    for name, row in (("waiting", waiting), ("free", free)):
        if row is not None:
            line |= {f"{name} {key}": row[key] for key in ("method", "layout", "share")}
    if waiting and free:
        gain = free["samples_per_second"] / waiting["samples_per_second"]
        line |= {"gain": gain, "pays": "yes" if gain >= PAYS else "no"}
        line["mend"] = f"{free['late']} ({free['gap']} within a minibatch)" if gain >= PAYS else None
    return line


@drawing(PAPER, "table_1")
def where_it_pays(context: Context) -> Drawn:
    """A line per model and number of GPUs."""
    rows, lines = list(rows_of(context)), []
    for model, gpus in dict.fromkeys((row["model"], row["gpus"]) for row in rows):
        mine = [row for row in rows if (row["model"], row["gpus"]) == (model, gpus)]
        waiting = quickest([row for row in mine if row["method"] in WAITING])
        free = quickest([row for row in mine if row["method"] not in WAITING])
        lines.append({"model": model, "gpus": gpus} | verdict(waiting, free))
    cols = [Col("model", "model"), Col("GPUs", "gpus")]
    for name, group in (("waiting", "synchronous"), ("free", "asynchronous")):
        cols += [
            Col("method", f"{name} method", group=group),
            Col("layout", f"{name} layout", group=group),
            Col("% of ideal", lambda row, key=f"{name} share": percent(row.get(key)), group=group),  # type: ignore[misc]
        ]
    cols += [Col("times as fast", "gain", "{:.2f}"), Col("pays", "pays"), Col("updates late, to be mended", "mend")]
    return Drawn(table=tabulated(lines, cols, context.result.caption, notes(rows), "model"))


def notes(rows: Sequence[Row]) -> list[str]:
    """What the words mean, and how far paper and timed executor are apart."""
    said = [
        f"Pays: at least {PAYS:g} times as fast. Late, to be mended: the updates that the first stage's forwards miss, "
        "which a method has to make up for; within a minibatch: of these, those that its backward does not miss.",
        "% of ideal: of what the GPUs could compute if none ever waited, sent, updated or computed anything twice.",
        "Layout: stages x replicas. Microbatches: so many of so many samples per replica and update; (R): activations "
        "are computed again.",
    ]
    off = [row["paper"] for row in rows if "paper" in row]
    if off:
        near = 100 * sum(abs(one - 1) <= 0.05 for one in off) / len(off)
        said.append(
            f"On paper an update takes {min(off):.2f} to {max(off):.2f} times as long as by the timed executor, "
            f"in {near:.0f} % of {len(off)} cases within 5 %."
        )
    return said


@drawing(PAPER, "table_2")
def every_method(context: Context) -> Drawn:
    """A line per model, number of GPUs and method."""
    cols = [
        Col("model", "model"),
        Col("GPUs", "gpus"),
        Col("method", "method"),
        Col("stages x replicas", lambda row: row.get("layout", row.get("why"))),
        Col("microbatches", "parts"),
        Col("samples/s", "samples_per_second", "{:,.0f}"),
        Col("% of ideal", lambda row: percent(row.get("share"))),
        Col("on paper / timed", "paper", "{:.2f}"),
        Col("memory, GiB", "GiB", "{:.1f}"),
        Col("copies of weights", "copies"),
        Col("updates late", "late"),
        Col("within a minibatch", "gap"),
        Col("GB out of a server", "GB", "{:.2f}"),
    ]
    rows = list(rows_of(context))
    return Drawn(table=tabulated(rows, cols, context.result.caption, notes(rows)[1:], "model"))


@drawing(PAPER, "table_3")
def what_where(context: Context) -> Drawn:
    """A line per model."""
    rows = []
    for model in context.values("model"):
        log = context.log(model=model)
        options = context.select(model=model)[0].arm.spec.options
        machine, given = options["machine"], options["model"].get("gpt", {})
        row: Row = {"model": model, "batch": options["batch"], "sheet": options["sheet"]}
        row |= {"efficiency": 100 * options["efficiency"] if "efficiency" in options else None}
        row |= {"words": given.get("context", 2048) if given else None, "server": machine["server"]}
        row |= {"inside": machine["inside"] / GB, "between": machine["between"] / GB, "ports": machine["ports"]}
        if log is not None:
            counted = next(row for row in log.rows if row["what"] == "model")
            row |= {"parameters": counted["parameters"] / 1e6, "layers": counted["layers"]}
        rows.append(row)
    cols = [
        Col("model", "model"),
        Col("parameters, millions", "parameters", "{:,.0f}"),
        Col("layers", "layers"),
        Col("samples of an update", "batch"),
        Col("words of a sample", "words"),
        Col("data sheet", "sheet"),
        Col("% of its rate", "efficiency", "{:.0f}"),
        Col("GPUs of a server", "server"),
        Col("GB/s inside", "inside", "{:g}"),
        Col("GB/s of a port", "between", "{:g}"),
        Col("ports", "ports"),
    ]
    return Drawn(table=tabulated(rows, cols, context.result.caption))


def lines(context: Context, y: Axis | dict[str, Axis]) -> Drawn:
    """A panel per model, a line per method, over the GPUs. y: the same for all models, or one for each."""
    column = (y if isinstance(y, Axis) else next(iter(y.values()))).column
    rows = [row | {"seed": 0} for row in rows_of(context) if column in row]
    ticks = tuple(sorted({float(row["gpus"]) for row in rows}))
    chart = Lines(
        Axis("gpus", "GPUs", log=True, ticks=ticks),
        y,
        line="method",
        panel="model",
        styles=STYLES,
        shared_y=True,
    )
    kept = ["model", "method", "gpus", "layout", "parts", column, "seed"]
    return Drawn.of(chart, [{key: row[key] for key in kept} for row in rows])


@drawing(PAPER, "figure_1")
def throughput(context: Context) -> Drawn:
    """Share of the ideal."""
    return lines(context, Axis("share", SHARE, limits=(0, None)))


@drawing(PAPER, "figure_5")
def throughput_of_papers(context: Context) -> Drawn:
    """The same of networks of which thousands of GPUs leave less than a hundredth."""
    return lines(context, Axis("share", SHARE, log=True, ticks=(0.5, 1, 2, 5, 10, 20, 50, 100)))


@drawing(PAPER, "figure_2")
def memory(context: Context) -> Drawn:
    """Fullest GPU."""
    of = {}
    for model in context.values("model"):
        sheet = data_sheet(context.select(model=model)[0].arm.spec.options["sheet"])
        room = {f"what a GPU has, {sheet.memory / GIB:g} GiB": sheet.memory / GIB}
        of[model] = Axis("GiB", "memory of the fullest GPU, GiB", limits=(0, None), levels=room)
    return lines(context, of)


@drawing(PAPER, "figure_3")
def staleness(context: Context) -> Drawn:
    """Of the first stage's forwards."""
    return lines(context, Axis("late", "updates late"))


@drawing(PAPER, "figure_4")
def sent(context: Context) -> Drawn:
    """Out of the busiest server."""
    return lines(context, Axis("GB", "GB out of a server per update", log=True, ticks=(2, 5, 10, 20, 50, 100)))
