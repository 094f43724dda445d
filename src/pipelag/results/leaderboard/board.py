"""The leaderboard: what each method learns, how fast its pipeline is, what it keeps in memory, how stale it is."""

from __future__ import annotations

from statistics import mean

from pipelag import methods
from pipelag.report.tables import Cell, Column, Table
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.logs import Accuracy, Context, RunLog
from pipelag.results.verdict import Finding, judge, need
from pipelag.runs.spec import PhaseSpec
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.timed import Timing, time_schedule

PAPER = "leaderboard"
PERIODS = 40  # minibatches of a timed schedule: a few fills' worth
UNREMEDIED = ("1F1B, latest weights", "Stale weights")
LATER = ("SC", "LWP_v", "LWP_w + SC", "Nesterov look-ahead", "DC-ASGD")
OF_THE_FIVE = {  # the methods of each paper, and the unremedied pipeline on the same schedule
    "PipeDream": (("PipeDream", "PipeDream, vertical sync", "PipeDream-2BW"), "1F1B, latest weights"),
    "SpecTrain": (("SpecTrain", "SpecTrain on 1F1B"), "Stale weights"),
    "PipeOptim": (("PipeOptim",), "1F1B, latest weights"),
    "PipeMare": (("PipeMare T1", "PipeMare T2", "PipeMare T1+T2"), "Stale weights"),
}


def profile_of(context: Context) -> Profile | None:
    """The layers' times and sizes, from the profile run's log."""
    log = context.log(what="profile")
    if log is None:
        return None
    return Profile(tuple(LayerTime(**row) for row in log.rows))


def timed(phase: PhaseSpec, profile: Profile) -> Timing | None:
    """The phase's schedule over the profiled stages; None for methods whose staleness no schedule makes."""
    method = methods.get(phase.method, **phase.options)
    stages = len(phase.cuts) + 1
    if method.random is not None or method.name == "asp":
        return None
    plan = method.schedule(stages, PERIODS, phase.microbatches)
    costs = profile.cut(phase.cuts, phase.microbatches)
    return time_schedule(plan, costs, versions=method.weight_copies(stages, phase.microbatches))


def averaged(logs: list[RunLog], key: str) -> float | None:
    """A distance, over stages, log lines and the seeds that did not diverge, in thousandths."""
    values = [mean(row[key]) for log in logs if log.accuracy is not None for row in log.rows if row.get(key)]
    return 1e3 * mean(values) if values else None


def row_of(context: Context, arm: str, profile: Profile | None) -> dict[str, Cell]:
    """One method's line."""
    items = context.select(what="learning", arm=arm)
    logs = [item.log for item in items if item.log is not None]
    phase = items[0].arm.spec.phases[0]
    row: dict[str, Cell] = {
        "method": arm,
        "accuracy": Accuracy.of(items).text(),
        "distance": averaged(logs, "forward_distance"),
        "discrepancy": averaged(logs, "discrepancy"),
    }
    for log in logs[:1]:  # what a schedule makes is the same for every seed
        told = log.summary["phases"][0]
        row["staleness"] = ", ".join(map(str, told["forward_delays"]))
        row["copies"] = ", ".join(map(str, told["weight_copies"])) if "weight_copies" in told else None
    timing = timed(phase, profile) if profile is not None else None
    if timing is not None and profile is not None:
        alone = sum(layer.total_ms for layer in profile.layers) / 1e3
        row |= {"timed": alone / timing.steady_period, "memory": max(timing.peak_memory) / 2**20}
    for what in ("speed", "torch"):
        measured = context.log(what=what, arm=arm)
        if measured is not None:
            row[what] = measured.summary["speedup"]["pipelined"]
    return row


COLUMNS = [
    Column("method", "method"),
    Column("accuracy", "accuracy, %"),
    Column("timed", "timed, 4 workers", "speedup", "{:.2f}"),
    Column("speed", "measured, 2 workers", "speedup", "{:.2f}"),
    Column("torch", "torch's own, 2 workers", "speedup", "{:.2f}"),
    Column("memory", "memory, MB", format="{:.1f}"),
    Column("copies", "weight copies per stage"),
    Column("staleness", "forward staleness per stage, updates"),
    Column("distance", "to own weights", "distance of the forward's weights", "{:.3f}"),
    Column("discrepancy", "to the backward's", "distance of the forward's weights", "{:.3f}"),
]
NOTES = [
    "Speedup: one worker's time per minibatch over the pipeline's. Timed: the schedule over layer times profiled on "
    "this machine, links for nothing; measured: 2 processes on this machine, cut in the middle; torch's own: the same "
    "schedule by torch.distributed.pipelining.",
    "One learning rate for all, that of sequential training: a method that needs a smaller one shows it here.",
    "With SGD and momentum LWP_v and PipeOptim are the same method: they foresee the same steps.",
    "Memory: the fullest worker's weight copies and kept activations, timed executor.",
]


@drawing(PAPER, "table_1", "table_2", "table_3")
def table(context: Context) -> Drawn:
    """A line per method, the most accurate first among those that finished."""
    profile = profile_of(context)
    arms = list(dict.fromkeys(i.arm.labels["arm"] for i in context.select(what="learning")))
    means = {arm: context.accuracy(what="learning", arm=arm).mean for arm in arms}
    order = sorted(arms, key=lambda arm: (means[arm] is None, -(means[arm] or 0.0)))
    rows = [row_of(context, arm, profile) for arm in order]
    columns = [column for column in COLUMNS if any(row.get(column.key) is not None for row in rows)]
    return Drawn(table=Table(columns, rows, context.result.caption, NOTES))


def score(context: Context, arm: str) -> float:
    """Mean accuracy over seeds. A diverged run counts as 0: it has learned nothing that lasts."""
    accuracy = context.accuracy(what="learning", arm=arm)
    if "diverged" in accuracy.note:
        return sum(accuracy.values) / accuracy.asked
    return need(accuracy.mean, arm)


@judge(PAPER, "table_1", "staleness_costs")
def staleness_costs(context: Context) -> Finding:
    """Both unremedied pipelines against sequential training."""
    base = score(context, "sequential")
    found = {arm: score(context, arm) for arm in UNREMEDIED}
    return all(value < base for value in found.values()), f"sequential {base:.2f} %; " + listed(found)


@judge(PAPER, "table_1", "remedies_help")
def remedies_help(context: Context) -> Finding:
    """Per paper that proposes a remedy, its best method."""
    words, holds = [], True
    for paper, (own, unremedied) in OF_THE_FIVE.items():
        best, without = max(score(context, arm) for arm in own), score(context, unremedied)
        holds &= best >= without
        words.append(f"{paper} {best:.2f} against {without:.2f}")
    return holds, "best of each, against the same schedule without: " + ", ".join(words)


@judge(PAPER, "table_1", "newer_beat_five")
def newer_beat_five(context: Context) -> Finding:
    """The best of each camp; within one standard deviation it cannot be said."""
    five = {arm: score(context, arm) for own, _ in OF_THE_FIVE.values() for arm in own}
    later = {arm: score(context, arm) for arm in LATER}
    a, b = max(later, key=lambda arm: later[arm]), max(five, key=lambda arm: five[arm])
    spread = max(context.accuracy(what="learning", arm=arm).spread or 0.0 for arm in (a, b))
    words = f"{a} {later[a]:.2f}, {b} {five[b]:.2f}, spread over seeds {spread:.2f}"
    if abs(later[a] - five[b]) <= spread:
        return None, words
    return later[a] > five[b], words


@judge(PAPER, "table_2", "pipeoptim_beats_pipedream")
def pipeoptim_beats_pipedream(context: Context) -> Finding:
    """Means over seeds."""
    ours, theirs = score(context, "PipeOptim"), score(context, "PipeDream")
    return ours >= theirs, f"PipeOptim {ours:.2f} %, PipeDream {theirs:.2f} %"


judge(PAPER, "table_3", "pipeoptim_beats_pipedream")(pipeoptim_beats_pipedream)


@judge(PAPER, "table_3", "t1_beats_stale")
def t1_beats_stale(context: Context) -> Finding:
    """Means over seeds."""
    ours, theirs = score(context, "PipeMare T1"), score(context, "Stale weights")
    return ours >= theirs, f"PipeMare T1 {ours:.2f} %, stale weights {theirs:.2f} %"


def listed(found: dict[str, float]) -> str:
    """name value, ..."""
    return ", ".join(f"{arm} {value:.2f} %" for arm, value in found.items())
