"""Tables and figures of the study `at_scale`: throughput, memory, staleness, bytes between servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelag.report.frames import Axis, Lines, Style
from pipelag.report.tables import Cell, Col
from pipelag.results import colours
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.timing.sheets import data_sheet

PAPER = "at_scale"
PLAIN = ("data parallelism", "GPipe", "1F1B with flush")  # synchronous methods that do nothing about a flush's bubble
ROOFLINE = "roofline"
PAYS = 1.1  # the least speedup at which asynchrony counts as worth it
GIB, GB = 2**30, 1e9
SHARE = "throughput, % of ideal"
TIMED, ON_PAPER = "timed", "on_paper"  # the two estimates of an update's seconds
LAYOUT = (
    "Layout: GPUs of a pipeline x replicas. A GPU has one stage, unless more stages are named (interleaved 1F1B, "
    "ZB-V), or tensor parallelism is: with tensor 2, every two GPUs of a pipeline share their stages. Sharded: the "
    "replicas share the optimizer's state (ZeRO's first stage)."
)
IDEAL = "% of ideal: of what the GPUs could compute if none ever waited, sent, updated or recomputed anything."
STYLES = {  # with different dashes, since many of these lines coincide; there are not colours enough for all methods
    "data parallelism": (colours.BASELINE, 0),
    "1F1B with flush": (colours.STALE_WEIGHTS, 4),  # free here, as stale weights are not drawn
    "interleaved 1F1B": (colours.UNMENDED, 1),  # free here, as no method lacks a remedy
    "ZB-V": (colours.TWO_BW, 0),  # free here; 2BW is drawn in the figure of staleness alone
    "PipeDream": (colours.PIPEDREAM, 0),
    "PipeMare T2": (colours.PIPEMARE, 2),
    "PipeOptim": (colours.PIPEOPTIM, 5),
    "SpecTrain": (colours.SPECTRAIN, 3),
}
LATE = {name: STYLES[name] for name in ("PipeDream", "PipeMare T2", "PipeOptim", "SpecTrain")} | {
    "PipeDream-2BW": (colours.TWO_BW, 1)
}

GAINS = (  # (label of runs, key of their verdict, name): what asynchrony is compared with in figure 6
    ("no", "gain plain", "than plain flushes"),
    ("no", f"gain {TIMED}", "than all, with shorter bubbles"),
    ("yes", f"gain {TIMED}", "than all, with shared layers and state"),
)

Row = dict[str, Any]


def rows_of(context: Context, **labels: str) -> Iterator[Row]:
    """The logged row of every method, with the values that are drawn, of the runs with these labels."""
    for model in context.values("model", **labels):
        log = context.log(model=model, **labels)
        if log is None:
            continue
        options = context.select(model=model, **labels)[0].arm.spec.options
        for row in (row for row in log.rows if row["what"] == "method"):
            yield {"model": model, "batch": options["batch"]} | row | measures(row, options["batch"])


def measures(row: Row, batch: int) -> Row:
    """The values that are drawn of a row; empty if no layout fits into memory."""
    if "timed" not in row:
        return {}
    return {
        "samples_per_second": batch / row["timed"],
        "share": 100 * row["ideal"] / row["timed"],
        "paper": row["on_paper"] / row["timed"],
        "GiB": row["memory"] / GIB,
        "GB": row["leaving"] / GB,
        "layout": layout_of(row),
        "parts": f"{row['microbatches']} of {row['samples']}" + (" (R)" if row["recompute"] else ""),
    }


def layout_of(row: Row) -> str:
    """A layout in words; rows of logs from before layers and states could be shared do not mention it."""
    tensor = row.get("tensor", 1)
    words = [f"{row['workers'] * tensor} x {row['replicas']}"]
    words += [f"{row['stages']} stages"] if row["stages"] > row["workers"] else []
    words += [f"tensor {tensor}"] if tensor > 1 else []
    words += ["sharded"] if row.get("sharded") else []
    return ", ".join(words)


def percent(share: float | None) -> str | None:
    """A percentage with two significant digits, or more if there are more before the point."""
    if share is None:
        return None
    digits = next((digits for digits, least in ((0, 9.95), (1, 0.995)) if share >= least), 2)
    return f"{share:.{digits}f}"


def rate(samples: float | None) -> str | None:
    """Samples per second with three significant digits, or more if there are more before the point."""
    if samples is None:
        return None
    digits = next((digits for digits, least in ((0, 99.5), (1, 9.95)) if samples >= least), 2)
    return f"{samples:,.{digits}f}"


def quickest(rows: Sequence[Row], by: str = TIMED) -> Row | None:
    """The fastest of the methods that fit; None if none does. by: the estimate of an update's seconds."""
    return min((row for row in rows if by in row), key=lambda row: row[by], default=None)


def pays(gain: float) -> str:
    """Whether asynchrony pays with this speedup, as "yes" or "no"."""
    return "yes" if gain >= PAYS else "no"


def verdict(rows: Sequence[Row]) -> dict[str, Cell]:
    """One row of table 1: the fastest synchronous and the fastest asynchronous method, and whether asynchrony pays.

    A method is synchronous if no forward of it reads late weights. The timed executor decides. If the formulas on paper
    would decide otherwise, the row says so.
    """
    line: dict[str, Cell] = {}
    fitting = [row for row in rows if TIMED in row]
    waiting = [row for row in fitting if not row["late"]]
    free = [row for row in fitting if row["late"]]
    best = {by: (quickest(waiting, by), quickest(free, by)) for by in (TIMED, ON_PAPER)}
    for name, row in zip(("waiting", "free"), best[TIMED], strict=True):
        if row is not None:
            line |= {f"{name} {key}": row[key] for key in ("method", "layout", "share")}
    gains = {by: slow[by] / fast[by] for by, (slow, fast) in best.items() if slow and fast}
    line |= {f"gain {by}": gain for by, gain in gains.items()}
    if gains:
        answer, other = pays(gains[TIMED]), pays(gains[ON_PAPER])
        line["pays"] = answer if answer == other else f"{answer} (on paper {other})"
        asynchronous = best[TIMED][1]
        if asynchronous and gains[TIMED] >= PAYS:
            line["mend"] = f"{asynchronous['late']} ({asynchronous['gap']} within a minibatch)"
        plain = quickest([row for row in waiting if row["method"] in PLAIN])
        if asynchronous and plain:
            line["gain plain"] = plain[TIMED] / asynchronous[TIMED]
    return line


def verdicts(rows: Sequence[Row]) -> Iterator[dict[str, Cell]]:
    """A verdict per model and number of GPUs."""
    for model, gpus in dict.fromkeys((row["model"], row["gpus"]) for row in rows):
        methods = [row for row in rows if (row["model"], row["gpus"]) == (model, gpus)]
        yield {"model": model, "gpus": gpus} | verdict(methods)


@drawing(PAPER, "table_1", "table_4", "table_5")
def where_it_pays(context: Context) -> Drawn:
    """Where asynchrony pays: a row per model and number of GPUs."""
    rows = list(rows_of(context))
    lines = list(verdicts(rows))
    cols = [Col("model", "model"), Col("GPUs", "gpus")]
    for name, group in (("waiting", "synchronous"), ("free", "asynchronous")):
        cols += [
            Col("method", f"{name} method", group=group),
            Col("layout", f"{name} layout", group=group),
            Col("% of ideal", lambda row, key=f"{name} share": percent(row.get(key)), group=group),  # type: ignore[misc]
        ]
    cols += [
        Col("timed", f"gain {TIMED}", "{:.3f}", "times as fast"),
        Col("on paper", f"gain {ON_PAPER}", "{:.3f}", "times as fast"),
        Col("than plain flushes", "gain plain", "{:.3f}", "times as fast"),
        Col("pays", "pays"),
        Col("updates late, to be mended", "mend"),
    ]
    notes = [
        f"Pays: at least {PAYS:g} times as fast by the timed executor, which also gives methods, layouts and % of "
        "ideal. On paper: the quickest method of either kind by the formulas, in the same layouts; where that changes "
        "the answer, its answer is in brackets. Than plain flushes: timed, compared with the quickest of "
        f"{', '.join(PLAIN[:-1])} and {PLAIN[-1]} alone, as if nothing shortened a flush's bubble. Updates late, to be "
        "mended: the updates that the first stage's forwards miss and a method has to make up for; within a minibatch: "
        "those that the backward does not miss.",
        IDEAL,
        LAYOUT,
        *apart(rows),
    ]
    return Drawn.tabled(context, lines, cols, notes, rule_by="model")


def apart(rows: Sequence[Row]) -> list[str]:
    """A note on how far the formulas on paper and the timed executor differ, with the extreme rows; or empty."""
    fitting = sorted((row for row in rows if "paper" in row), key=lambda row: float(row["paper"]))
    if not fitting:
        return []
    near = 100 * sum(abs(row["paper"] - 1) <= 0.05 for row in fitting) / len(fitting)
    least, most = (
        f"{row['paper']:.2f} ({row['model']} on {row['gpus']:,} GPUs by {row['method']})"
        for row in (fitting[0], fitting[-1])
    )
    return [
        f"On paper an update takes {least} to {most} times as long as by the timed executor; "
        f"in {near:.0f} % of {len(fitting)} cases the two agree within 5 %."
    ]


@drawing(PAPER, "table_2")
def every_method(context: Context) -> Drawn:
    """Every method's speed and costs: a row per model, number of GPUs and method."""
    cols = [
        Col("model", "model"),
        Col("GPUs", "gpus"),
        Col("method", "method"),
        Col("layout", lambda row: row.get("layout", row.get("why"))),
        Col("microbatches", "parts"),
        Col("samples/s", lambda row: rate(row.get("samples_per_second"))),
        Col("% of ideal", lambda row: percent(row.get("share"))),
        Col("on paper / timed", "paper", "{:.2f}"),
        Col("memory, GiB", "GiB", "{:.1f}"),
        Col("copies of weights", "copies"),
        Col("updates late", "late"),
        Col("within a minibatch", "gap"),
        Col("GB out of a server", "GB", "{:.2f}"),
    ]
    rows = list(rows_of(context))
    notes = [
        IDEAL,
        f"{LAYOUT} Microbatches: their number and their samples, per replica and update. (R): activations are "
        "recomputed.",
        *apart(rows),
    ]
    return Drawn.tabled(context, rows, cols, notes, rule_by="model")


@drawing(PAPER, "table_3")
def what_where(context: Context) -> Drawn:
    """The models and machines: a row per model."""
    rows = []
    for model in context.values("model"):
        log = context.log(model=model)
        options = context.select(model=model)[0].arm.spec.options
        machine, sheet = options["machine"], data_sheet(options["sheet"])
        row: Row = {"model": model, "batch": options["batch"], "sheet": options["sheet"]}
        row |= {"flops": sheet.flops / 1e12, "bandwidth": sheet.bandwidth / GB, "memory": sheet.memory / GIB}
        row |= {"efficiency": f"{100 * options['efficiency']:.0f}" if "efficiency" in options else ROOFLINE}
        row |= {"words": words_of(options["model"]), "server": machine["server"]}
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
        Col("data sheet", "sheet", group="GPU"),
        Col("TFLOP/s", "flops", "{:g}", "GPU"),
        Col("% of it that products reach", "efficiency", group="GPU"),
        Col("GB/s of its memory", "bandwidth", "{:g}", "GPU"),
        Col("memory, GiB", "memory", "{:g}", "GPU"),
        Col("GPUs", "server", group="server"),
        Col("GB/s inside", "inside", "{:g}", "server"),
        Col("GB/s of a port", "between", "{:g}", "server"),
        Col("ports", "ports", group="server"),
    ]
    notes = [
        "TFLOP/s and GB/s are from the GPU's data sheet (H100 in bfloat16 without sparsity, V100 in float32); GB/s of "
        "links are per direction. A port is a server's link to the others.",
        "A GPT's matrix products run at this share of the data sheet's TFLOP/s; all else in a pass is free. Roofline: "
        "every operator of a pass takes as long as its operations at these TFLOP/s or its bytes at these GB/s of "
        "memory, whichever is longer. Updates are bounded by the GB/s of memory.",
        "Words: of source and target, where there are two.",
    ]
    return Drawn.tabled(context, rows, cols, notes)


def words_of(model: Mapping[str, Any]) -> str | None:
    """The words of a sample, of source and target separately; None for images."""
    if "gpt" in model:
        return str(model["gpt"].get("context", 2048))
    return " + ".join(str(size["shape"][0]) for size in model["inputs"] if size.get("of") == "words") or None


def lines(context: Context, y: Axis | dict[str, Axis], styles: Mapping[str, Style] = STYLES) -> Drawn:
    """A value against the number of GPUs: a panel per model, a line per method that has a style.

    y: one axis for all models, or each.
    """
    column = (y if isinstance(y, Axis) else next(iter(y.values()))).column
    rows = [row | {"seed": 0} for row in rows_of(context) if column in row and row["method"] in styles]
    ticks = tuple(sorted({float(row["gpus"]) for row in rows}))
    chart = Lines(
        Axis("gpus", "GPUs", log=True, ticks=ticks),
        y,
        line="method",
        panel="model",
        styles=styles,
        shared_y=True,
    )
    columns = ["model", "method", "gpus", "layout", "parts", column, "seed"]
    return Drawn.of(chart, [{key: row[key] for key in columns} for row in rows])


@drawing(PAPER, "figure_1")
def throughput(context: Context) -> Drawn:
    """Throughput as a percentage of the ideal."""
    return lines(context, Axis("share", SHARE, limits=(0, None)))


@drawing(PAPER, "figure_5")
def throughput_of_papers(context: Context) -> Drawn:
    """Throughput as in figure 1, for networks whose share falls below one percent on thousands of GPUs."""
    return lines(context, Axis("share", SHARE, log=True, ticks=(0.5, 1, 2, 5, 10, 20, 50, 100)))


@drawing(PAPER, "figure_2")
def memory(context: Context) -> Drawn:
    """The memory of the fullest GPU."""
    of = {}
    for model in context.values("model"):
        sheet = data_sheet(context.select(model=model)[0].arm.spec.options["sheet"])
        room = {f"what a GPU has, {sheet.memory / GIB:g} GiB": sheet.memory / GIB}
        of[model] = Axis("GiB", "memory of the fullest GPU, GiB", limits=(0, None), levels=room)
    return lines(context, of)


@drawing(PAPER, "figure_3")
def staleness(context: Context) -> Drawn:
    """The staleness of the first stage's forwards."""
    return lines(context, Axis("late", "updates late"), LATE)


@drawing(PAPER, "figure_4")
def sent(context: Context) -> Drawn:
    """The bytes that leave the busiest server per update."""
    return lines(context, Axis("GB", "GB out of a server per update", log=True, ticks=(2, 5, 10, 20, 50, 100, 200)))


@drawing(PAPER, "figure_6")
def gained(context: Context) -> Drawn:
    """What asynchrony gains over synchronous methods, which may do more from line to line."""
    rows = [
        {"model": line["model"], "compared with": name, "gpus": line["gpus"], "gain": line[gain], "seed": 0}
        for shared, gain, name in GAINS
        for line in verdicts(list(rows_of(context, shared=shared)))
        if gain in line
    ]
    ticks = tuple(sorted({float(row["gpus"] or 0) for row in rows}))
    y = Axis("gain", "times as fast by asynchrony", limits=(0, None), levels={f"pays from {PAYS:g} on": PAYS})
    x = Axis("gpus", "GPUs", log=True, ticks=ticks)
    styles = {name: (number, number) for number, (_, _, name) in enumerate(GAINS)}
    return Drawn.of(Lines(x, y, line="compared with", panel="model", styles=styles, shared_y=True), rows)
