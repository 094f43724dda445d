"""Algorithm 1: DualPipe's program on every GPU, line by line, beside one time unit of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from pipelag.report.tables import Cell, Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact
from pipelag.results.logs import RunLog
from pipelag.results.timelines import Row, passes
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "spectrain"
# Lines of the algorithm, what they do, and the value in the log: in the row of a GPU's forward or backward.
Line = tuple[str, str, str, Callable[[Row], Cell]]
LINES: Sequence[Line] = (
    ("6", "fetch the forward's input: batch", "F", lambda row: int(row["minibatch"])),
    ("7", "fetch the backward's input: batch", "B", lambda row: int(row["minibatch"])),
    ("17", "s of the forward", "F", lambda row: int(row["ahead"])),
    ("18, 20", "forward with the weights predicted for the start of unit", "F", lambda row: int(row["unit"])),
    ("25", "s of the backward", "B", lambda row: int(row["ahead"])),
    ("26, 28", "backward with the weights predicted for the start of unit", "B", lambda row: int(row["unit"])),
    ("8, 9", "updates in the weights that both threads start from", "F", lambda row: int(row["reads"])),
    ("11", "updates in the weights after both are done", "B", lambda row: row["writes"]),
)


def cells(log: RunLog) -> dict[tuple[int, float], dict[str, Row]]:
    """The rows of the steady state by (GPU, time unit) and kind.

    Its units are those with a forward and a backward on every GPU.
    """
    tasks: dict[tuple[int, float], dict[str, Row]] = {}
    for row in passes(log):
        tasks.setdefault((row["worker"], row["start"]), {})[row["kind"]] = row
    gpus = log.summary["workers"]
    units = {unit for _, unit in tasks if all(len(tasks.get((gpu, unit), ())) == 2 for gpu in range(gpus))}
    return {(gpu, unit): rows for (gpu, unit), rows in tasks.items() if unit in units}


def in_cell(rows: dict[str, Row]) -> Callable[[Line], Cell]:
    """A column's value: what a line did on one GPU in a time unit."""
    return lambda line: line[3](rows[line[2]])


@drawing(PAPER, "algorithm_1")
def algorithm_1(context: Context) -> Drawn:
    """A row per step and a column per GPU, for the first unit of the steady state."""
    log = context.log()
    steady = cells(log) if log is not None else {}
    unit = min((unit for _, unit in steady), default=0)
    gpus = sorted({gpu for gpu, _ in steady})
    cols = [Col("Lines", lambda line: line[0]), Col("Step", lambda line: line[1])]
    cols += [Col(f"GPU {gpu}", in_cell(steady[gpu, unit]), group=f"time unit {unit:g}") for gpu in gpus]
    notes = [
        "not traced: lines 1 to 3 initialise, 4 and 14 loop, 10 and 13 wait for all GPUs, 21 and 29 send to the "
        "neighbours, 30 fills the buffer of gradients that line 11 reads; the rest are comments, heads and ends",
        "W_u are the weights of time unit u as it starts: those that line 11 of unit u - 1 has made",
        "line 12, the smoothed gradient, stands after the update in the algorithm; the momentum SGD of the experiments "
        "steps along the gradient that it has just smoothed",
    ]
    return Drawn.tabled(context, LINES, cols, notes)


def every_cell(context: Context) -> dict[tuple[int, float], dict[str, Row]]:
    """`cells` of the only run. Raises `NotLogged` if it has no log."""
    return cells(log_of(context))


@judge(PAPER, "algorithm_1", "together")
def together(context: Context) -> Finding:
    """Holds if in every unit of the steady state both tasks of a GPU read the same version and end together."""
    pairs = every_cell(context)
    alike = [
        rows["F"]["reads"] == rows["B"]["reads"] and rows["F"]["end"] == rows["B"]["end"] for rows in pairs.values()
    ]
    words = f"{sum(alike)} of {len(alike)} pairs of tasks start together, from the same weights"
    return exact(bool(alike) and all(alike), words)


@judge(PAPER, "algorithm_1", "distances")
def distances(context: Context) -> Finding:
    """Holds if on every GPU forwards and backwards predict as far ahead as lines 17 and 25 say."""
    pairs, gpus = every_cell(context), log_of(context).summary["workers"]
    as_written = [
        (rows["F"]["ahead"], rows["B"]["ahead"]) == (2 * gpus - gpu - 2, gpu) for (gpu, _), rows in pairs.items()
    ]
    by_gpu = {gpu: (int(rows["F"]["ahead"]), int(rows["B"]["ahead"])) for (gpu, _), rows in pairs.items()}
    words = ", ".join(f"GPU {gpu} {forward} and {backward}" for gpu, (forward, backward) in sorted(by_gpu.items()))
    return exact(bool(as_written) and all(as_written), words)


@judge(PAPER, "algorithm_1", "update_after_both")
def update_after_both(context: Context) -> Finding:
    """Holds if both tasks read the weights that a unit's backward made from the next unit on, and not before."""
    pairs = every_cell(context)
    steps = []
    for gpu in sorted({gpu for gpu, _ in pairs}):
        units = sorted(unit for other, unit in pairs if other == gpu)
        for now, after in pairwise(units):
            written = pairs[gpu, now]["B"]["writes"]
            steps.append(written == pairs[gpu, now]["F"]["reads"] + 1 == pairs[gpu, after]["F"]["reads"])
    return exact(bool(steps) and all(steps), f"{sum(steps)} of {len(steps)} updates are read from the next unit on")
