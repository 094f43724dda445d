"""Figures 6 and 8: PipeDream's and DualPipe's time units, and the weights that batch 5 reads."""

from __future__ import annotations

from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact
from pipelag.results.logs import Context
from pipelag.results.timelines import Row, draw, passes
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "spectrain"
BATCH = 5  # the batch that figure 8 follows, counted from 0: batch t enters GPU 0 at time unit t
GPUS = 3


def weights(row: Row) -> str:
    """W_u, u the time unit whose weights are read; predicted ones with a hat."""
    unit = int(row["unit"])
    return rf"$\hat{{W}}_{{{unit}}}$" if row["ahead"] else f"$W_{{{unit}}}$"


@drawing(PAPER, "figure_6a", "figure_6b")
def figure_6(context: Context) -> Drawn:
    """Time units of both pipelines, batches counted from 0."""
    return draw(context, name="GPU", first=0, follow=None, unit="time unit", numbered_from=0)


@drawing(PAPER, "figure_8a", "figure_8b", "figure_8c", "figure_8d")
def figure_8(context: Context) -> Drawn:
    """Batch 5 and the weights of each of its passes."""
    return draw(
        context, name="GPU", first=0, follow=BATCH + 1, label=weights, unit="time unit", numbered_from=0, until=12
    )


def followed(context: Context) -> list[Row]:
    """The passes of batch 5 in time order, its forward before its backward on the last GPU."""
    return sorted(passes(log_of(context), BATCH + 1), key=lambda row: (row["start"], row["kind"] == "B"))


@judge(PAPER, "figure_6a", "padded_forwards")
def padded(context: Context) -> Finding:
    """One task per unit, all units alike."""
    log = log_of(context)
    lengths = {row["end"] - row["start"] for row in log.rows}
    one = len({(row["worker"], row["start"]) for row in log.rows}) == len(log.rows)
    return exact(lengths == {1} and one, f"every task takes {sorted(lengths)} unit, one per GPU at a time")


@judge(PAPER, "figure_6b", "batch_per_unit")
def batch_per_unit(context: Context) -> Finding:
    """The units at which batches come back to GPU 0."""
    ends = sorted(row["end"] for row in passes(log_of(context), kind="B") if row["stage"] == 1)
    gaps = {b - a for a, b in zip(ends[:-1], ends[1:], strict=True)}
    return exact(gaps == {1}, f"batches finish {sorted(gaps)} unit apart")


@judge(PAPER, "figure_6b", "two_tasks")
def two_tasks(context: Context) -> Finding:
    """Every cell between the fill and the drain."""
    log = log_of(context)
    gpus = log.summary["workers"]
    cells: dict[tuple[int, int], list[Row]] = {}
    for row in log.rows:
        cells.setdefault((row["worker"], row["start"]), []).append(row)
    first = min(row["start"] for row in log.rows if row["kind"] == "B" and row["stage"] == 1)
    last = max(row["start"] for row in log.rows if row["kind"] == "F" and row["stage"] == 1)
    for unit in range(first, last + 1):
        for gpu in range(gpus):
            cell = cells.get((gpu, unit), [])
            batches = len({row["minibatch"] for row in cell})
            if sorted(row["kind"] for row in cell) != ["B", "F"] or batches != (1 if gpu == gpus - 1 else 2):
                return exact(False, f"GPU {gpu} at unit {unit} runs {[str(row['kind']) for row in cell]}")
    return exact(last >= first, f"units {first} to {last} on {gpus} GPUs")


def same_versions(context: Context) -> Finding:
    """The time units whose weights batch 5 reads."""
    found = sorted({int(row["unit"]) for row in followed(context)})
    return exact(found == context.result.reported["weights"], f"W{found}")


for _figure in ("figure_8a", "figure_8b", "figure_8c", "figure_8d"):
    judge(PAPER, _figure, "versions")(same_versions)


@judge(PAPER, "figure_8b", "round_trip")
def round_trip(context: Context) -> Finding:
    """From the first forward to the last backward."""
    rows = followed(context)
    units = rows[-1]["end"] - rows[0]["start"]
    return exact(units == 2 * GPUS - 1, f"{units} units on {log_of(context).summary['workers']} GPUs")


@judge(PAPER, "figure_8c", "stale")
def stale(context: Context) -> Finding:
    """How long after the weights it reads batch 5 is done, and the copies kept for it."""
    rows = followed(context)
    behind = rows[-1]["start"] - int(rows[-1]["unit"])
    copies = log_of(context).summary["weight_copies"]
    return exact(behind == 2 * GPUS - 2 and max(copies) > 1, f"{behind} units behind; weight copies per GPU {copies}")


@judge(PAPER, "figure_8d", "first_s")
def first_s(context: Context) -> Finding:
    """The first forward's distance."""
    s = followed(context)[0]["ahead"]
    return exact(s == context.result.reported["s_first_forward"], f"s = {s:g}")


@judge(PAPER, "figure_8d", "s_falls")
def s_falls(context: Context) -> Finding:
    """Along the round trip; on the last GPU forward and backward share a unit, and s."""
    rows = followed(context)
    by_unit = {row["start"]: row["ahead"] for row in rows}
    path = [by_unit[unit] for unit in sorted(by_unit)]
    alike = all(by_unit[row["start"]] == row["ahead"] for row in rows)
    falls = path == [len(path) - 1 - i for i in range(len(path))]
    return exact(falls and alike, f"s = {', '.join(f'{s:g}' for s in path)}")
