"""Figures 6 and 8: PipeDream's and DualPipe's time units, and the weights that batch 5 reads. Claims are exact."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact, listing
from pipelag.results.logs import Item, RunLog
from pipelag.results.spectrain.below import delays_of
from pipelag.results.timelines import Row, draw, full_between, passes
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "spectrain"
BATCH = 5  # the batch that figure 8 follows, counted from 0; batch t enters GPU 0 at time unit t
GPUS = 3


def weights(row: Row) -> str:
    """The label of a pass: W_u, with the time unit u whose weights it reads; predicted weights have a hat."""
    unit = int(row["unit"])
    return rf"$\hat{{W}}_{{{unit}}}$" if row["ahead"] else f"$W_{{{unit}}}$"


@drawing(PAPER, "figure_6a")
def figure_6a(context: Context) -> Drawn:
    """PipeDream with one clock for all GPUs, in units of a backward; a GPU idles for the rest of a forward's unit."""
    drawn = draw(
        in_backwards(context),
        name="GPU",
        first=0,
        follow=None,
        unit="time (one backward = 1)",
        numbered_from=0,
        until=14,
    )
    return with_note(
        context, drawn, "Time units are as long as their longest pass: before the first backward, a forward."
    )


def in_backwards(context: Context) -> Context:
    """The same runs with times in units of a backward instead of a forward."""

    def scaled(item: Item) -> Item:
        if item.log is None:
            return item
        unit = max(row["end"] - row["start"] for row in passes(item.log, kind="B"))
        rows = [row | {"start": row["start"] / unit, "end": row["end"] / unit} for row in item.log.rows]
        return replace(item, log=replace(item.log, rows=rows))

    return replace(context, items=[scaled(item) for item in context.items])


@drawing(PAPER, "figure_6b")
def figure_6b(context: Context) -> Drawn:
    """DualPipe's time units, with batches counted from 0."""
    unit = "time unit (a forward and a backward)"
    drawn = draw(context, name="GPU", first=0, follow=None, unit=unit, numbered_from=0, arm="DualPipe")
    return with_note(context, drawn, "Units are longer than those of figure 6a.")


@drawing(PAPER, "figure_8a", "figure_8b", "figure_8c", "figure_8d")
def figure_8(context: Context) -> Drawn:
    """Batch 5 and the weights of each of its passes."""
    drawn = draw(
        context, name="GPU", first=0, follow=BATCH + 1, label=weights, unit="time unit", numbered_from=0, until=12
    )
    return with_note(context, drawn, "Pale: other batches.")


def with_note(context: Context, drawn: Drawn, also: str) -> Drawn:
    """Add the note below a timeline: its colours, and the first logged run's method and delays."""
    logged = context.logged()
    if not logged or logged[0].log is None:
        return drawn
    method, missed = logged[0].arm.spec.phases[0].method, delays_of(logged[0].log.summary)
    return replace(drawn, note=f"Grey: idle. {also} Method: {method}; updates that passes miss, GPU by GPU: {missed}.")


def followed(context: Context) -> list[Row]:
    """The passes of batch 5 in the order of time, with the forward before the backward in a shared unit."""
    return sorted(passes(log_of(context), BATCH + 1), key=lambda row: (row["start"], row["kind"] == "B"))


def unit_starts(log: RunLog) -> list[float]:
    """The starts of the steady state's time units."""
    start, end = full_between(log)
    return sorted({row["start"] for row in passes(log) if start <= row["start"] <= end})


@judge(PAPER, "figure_6a", "one_task")
def one_task(context: Context) -> Finding:
    """Holds if no GPU begins two tasks in one unit, and every task ends within its unit."""
    log = log_of(context)
    starts = sorted({row["start"] for row in passes(log)})
    tasks = [(row["worker"], row["start"]) for row in passes(log)]
    apart = all(row["end"] <= min([s for s in starts if s > row["start"]], default=row["end"]) for row in passes(log))
    return exact(len(set(tasks)) == len(tasks) and apart, f"{len(tasks)} tasks in {len(starts)} units")


@judge(PAPER, "figure_6a", "padded_forwards")
def padded(context: Context) -> Finding:
    """Holds if, between fill and drain, units are as long as backwards, forwards are shorter, and GPUs idle."""
    log = log_of(context)
    starts = unit_starts(log)
    units = {b - a for a, b in pairwise(starts)}
    length = {kind: {row["end"] - row["start"] for row in passes(log, kind=kind)} for kind in "FB"}
    gpus = log.summary["workers"]
    inside = [row for row in passes(log) if starts[0] <= row["start"] < starts[-1]]
    idle = 1 - sum(row["end"] - row["start"] for row in inside) / (gpus * (starts[-1] - starts[0]))
    words = f"units of {listing(sorted(units))}, forwards of {listing(sorted(length['F']))}: "
    words += f"GPUs idle {100 * idle:.0f} % of the time"
    return exact(units == length["B"] and max(length["F"]) < min(units) and idle > 1e-9, words)


@judge(PAPER, "figure_6b", "unit_cost")
def unit_cost(context: Context) -> Finding:
    """Holds if batches finish as far apart as the slowest GPU's forward and backward take, in the steady state."""
    log = log_of(context, arm="stages of different costs")
    costs: dict[int, float] = {}
    for kind in "FB":
        taken = {row["stage"]: row["end"] - row["start"] for row in passes(log, kind=kind)}
        costs = {stage: costs.get(stage, 0.0) + time for stage, time in taken.items()}
    done = sorted(row["end"] for row in passes(log, kind="B") if row["stage"] == 1)
    low, high = full_between(log)
    gaps = {round(b - a, 9) for a, b in pairwise(done) if low <= a and b <= high}
    words = (
        f"batches finish {listing(sorted(gaps))} apart; forward and backward take {listing(costs.values())} on the GPUs"
    )
    return exact(gaps == {max(costs.values())}, words)


@judge(PAPER, "figure_6b", "batch_per_unit")
def batch_per_unit(context: Context) -> Finding:
    """Holds if batches finish exactly one time unit apart."""
    ends = sorted(row["end"] for row in passes(log_of(context, arm="DualPipe"), kind="B") if row["stage"] == 1)
    gaps = {b - a for a, b in pairwise(ends)}
    return exact(gaps == {1}, f"batches finish {listing(sorted(gaps))} unit apart")


@judge(PAPER, "figure_6b", "two_tasks")
def two_tasks(context: Context) -> Finding:
    """Holds if between fill and drain every GPU runs a forward and a backward in each unit, of two batches.

    On the last GPU they are of the same batch.
    """
    log = log_of(context, arm="DualPipe")
    gpus = log.summary["workers"]
    cells: dict[tuple[int, int], list[Row]] = {}
    for row in log.rows:
        cells.setdefault((row["worker"], row["start"]), []).append(row)
    first, last = full_between(log)
    for unit in range(first, last + 1):
        for gpu in range(gpus):
            cell = cells.get((gpu, unit), [])
            batches = len({row["minibatch"] for row in cell})
            if sorted(row["kind"] for row in cell) != ["B", "F"] or batches != (1 if gpu == gpus - 1 else 2):
                return exact(
                    False, f"GPU {gpu} at unit {unit} runs {listing(row['kind'] for row in cell) or 'nothing'}"
                )
    return exact(last >= first, f"units {first} to {last} on {gpus} GPUs")


def same_versions(context: Context) -> Finding:
    """A judge that decides whether batch 5 reads exactly the weights of the printed time units."""
    units = sorted({int(row["unit"]) for row in followed(context)})
    return exact(units == context.result.reported["weights"], listing(f"W{unit}" for unit in units))


for _figure in ("figure_8a", "figure_8b", "figure_8c", "figure_8d"):
    judge(PAPER, _figure, "versions")(same_versions)


@judge(PAPER, "figure_8b", "round_trip")
def round_trip(context: Context) -> Finding:
    """Holds if batch 5 takes 2N - 1 units from its first forward to its last backward."""
    rows = followed(context)
    units = rows[-1]["end"] - rows[0]["start"]
    return exact(units == 2 * GPUS - 1, f"{units} units on {log_of(context).summary['workers']} GPUs")


@judge(PAPER, "figure_8c", "stale")
def stale(context: Context) -> Finding:
    """Holds if batch 5's last pass starts 2N - 2 units after the weights that it reads, and some GPU keeps copies."""
    rows = followed(context)
    behind = rows[-1]["start"] - int(rows[-1]["unit"])
    copies = log_of(context).summary["weight_copies"]
    return exact(
        behind == 2 * GPUS - 2 and max(copies) > 1, f"{behind} units behind; weight copies per GPU {listing(copies)}"
    )


@judge(PAPER, "figure_8d", "first_s")
def first_s(context: Context) -> Finding:
    """Holds if the first forward of batch 5 predicts the printed number of versions ahead."""
    s = followed(context)[0]["ahead"]
    return exact(s == context.result.reported["s_first_forward"], f"s = {s:g}")


@judge(PAPER, "figure_8d", "s_falls")
def s_falls(context: Context) -> Finding:
    """Holds if s falls by one per unit along batch 5's round trip and ends at 0.

    On the last GPU the forward and the backward share a unit, so they must share s too.
    """
    rows = followed(context)
    by_unit = {row["start"]: row["ahead"] for row in rows}
    path = [by_unit[unit] for unit in sorted(by_unit)]
    alike = all(by_unit[row["start"]] == row["ahead"] for row in rows)
    falls = path == [len(path) - 1 - i for i in range(len(path))]
    return exact(falls and alike, f"s = {', '.join(f'{s:g}' for s in path)}")
