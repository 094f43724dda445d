"""Figures 2, 3, 4, 5, 8 and 9: schedules, and the weight versions that a minibatch meets."""

from __future__ import annotations

from pipelag.results.drawing import Drawn, drawing
from pipelag.results.logs import Context
from pipelag.results.timelines import (
    FOLLOWED,
    Row,
    busy_once_full,
    draw,
    one_at_a_time,
    passes,
    reads_of,
)
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "pipedream"


def after(row: Row) -> str:
    """W(k): the stage's weights after minibatch k's update."""
    return f"W({row['reads']})"


@drawing(PAPER, "figure_2")
def figure_2(context: Context) -> Drawn:
    """Model parallelism."""
    return draw(context, follow=None)


@drawing(PAPER, "figure_3")
def figure_3(context: Context) -> Drawn:
    """GPipe with four microbatches."""
    return draw(context, follow=None, micro=True, arm="4")


@drawing(PAPER, "figure_4")
def figure_4(context: Context) -> Drawn:
    """1F1B; minibatch 5 strongly."""
    return draw(context, arm="weight stashing", until=24)


@drawing(PAPER, "figure_5")
def figure_5(context: Context) -> Drawn:
    """All workers with their transfers; the third is what the paper shows."""
    return draw(context, follow=None, until=24)


@drawing(PAPER, "figure_8")
def figure_8(context: Context) -> Drawn:
    """1F1B-RR on two replicas and one."""
    return draw(context, follow=None, unit="time (units of the figure)")


@drawing(PAPER, "figure_9")
def figure_9(context: Context) -> Drawn:
    """Minibatch 5 with the version of every pass."""
    return draw(context, label=after, until=24)


judge(PAPER, "figure_2", "one_worker_at_a_time")(one_at_a_time)


@judge(PAPER, "figure_2", "a_quarter_used")
def quarter(context: Context) -> Finding:
    """Busy time over worker time."""
    used = log_of(context).summary["utilisation"]
    return abs(used - 0.25) < 1e-9, f"utilisation {used:.3f}"


@judge(PAPER, "figure_3", "idle_at_flush")
def flush_idles(context: Context) -> Finding:
    """Between the last forward of a minibatch and the first of the next, worker 1 waits."""
    log = log_of(context, arm="4")
    rows = [row for row in log.rows if row["worker"] == 0]
    gaps = [b["start"] - a["end"] for a, b in zip(rows[:-1], rows[1:], strict=True) if b["start"] > a["end"]]
    flushes = log.summary["minibatches"]
    return len(
        gaps
    ) >= flushes, f"worker 1 waits {len(gaps)} times in {flushes} minibatches, {sum(gaps):g} units in all"


@judge(PAPER, "figure_3", "bubble_falls_with_m")
def bubble_falls(context: Context) -> Finding:
    """Over m = 1, 2, 4, 8, 16."""
    shares = [(arm, log_of(context, arm=arm).summary["bubble"]) for arm in context.values("arm")]
    falling = all(a[1] > b[1] for a, b in zip(shares[:-1], shares[1:], strict=True))
    return falling, "bubble by m: " + ", ".join(f"{m}: {100 * share:.0f} %" for m, share in shares)


@judge(PAPER, "figure_4", "noam")
def noam(context: Context) -> Finding:
    """Forwards of stage 1 before its first backward, with the one that then waits its turn."""
    log = log_of(context, arm="weight stashing")
    first_backward = min(row["start"] for row in log.rows if row["kind"] == "B" and row["stage"] == 1)
    admitted = sum(row["kind"] == "F" and row["stage"] == 1 and row["start"] < first_backward for row in log.rows)
    return admitted == context.result.reported["NOAM"], f"{admitted} minibatches enter before the first one comes back"


@judge(PAPER, "figure_4", "all_busy")
def all_busy(context: Context) -> Finding:
    """From the moment the first minibatch has come back until no more come in."""
    busy, start, end = busy_once_full(log_of(context, arm="weight stashing"))
    return busy, f"between time {start:g} and {end:g}"


@judge(PAPER, "figure_4", "updates_between")
def updates_between(context: Context) -> Finding:
    """What the forward and, without stashing, the backward of minibatch 5 read on stage 1."""
    log = log_of(context, arm="no stashing")
    forward, backward = reads_of(log, FOLLOWED, "F")[0], reads_of(log, FOLLOWED, "B")[0]
    reported = context.result.reported["stage1_minibatch5"]
    between = list(range(forward + 1, backward + 1))
    holds = (
        forward == reported["forward_after_update_of"]
        and between == reported["backward_without_stashing_after_updates_of"]
    )
    return holds, f"forward after update {forward}, backward after update {backward}"


@judge(PAPER, "figure_4", "versions_by_stage")
def versions_by_stage(context: Context) -> Finding:
    """The last update that minibatch 5's forward has seen."""
    seen = reads_of(log_of(context, arm="weight stashing"), FOLLOWED, "F")
    return seen == context.result.reported["minibatch_5_versions"], f"updates up to {seen} on stages 1 to {len(seen)}"


@judge(PAPER, "figure_5", "overlap")
def overlap(context: Context) -> Finding:
    """The share of worker 3's transfer time in which it computes for another minibatch."""
    log = log_of(context)
    own = [row for row in log.rows if row["worker"] == 2]
    sent, covered = 0.0, 0.0
    for send in (row for row in own if row["kind"] == "send"):
        sent += send["end"] - send["start"]
        covered += sum(
            max(0.0, min(row["end"], send["end"]) - max(row["start"], send["start"]))
            for row in own
            if row["kind"] != "send" and row["minibatch"] != send["minibatch"]
        )
    return covered > 0.5 * sent, f"{covered:g} of {sent:g} units of worker 3's transfers pass while it computes"


@judge(PAPER, "figure_8", "round_robin")
def round_robin(context: Context) -> Finding:
    """Who takes which minibatches."""
    log = log_of(context)
    taken = [sorted({row["minibatch"] for row in log.rows if row["worker"] == w}) for w in range(3)]
    every = list(range(log.summary["minibatches"]))
    holds = taken[0] == every[::2] and taken[1] == every[1::2] and taken[2] == every
    return holds, f"minibatches from 1: {[[m + 1 for m in row] for row in taken]} (the paper's ids start elsewhere)"


@judge(PAPER, "figure_8", "same_replica")
def same_replica(context: Context) -> Finding:
    """Forward and backward per minibatch and stage."""
    places: dict[tuple[int, int], set[int]] = {}
    for row in passes(log_of(context)):
        places.setdefault((row["stage"], row["minibatch"]), set()).add(row["worker"])
    split = sum(len(workers) > 1 for workers in places.values())
    return split == 0, f"{split} of {len(places)} minibatches change replica between forward and backward"


@judge(PAPER, "figure_8", "two_units_each")
def two_units(context: Context) -> Finding:
    """The spacing of each stage's backwards."""
    log = log_of(context)
    periods = []
    for stage in (1, 2):
        ends = sorted(row["end"] for row in passes(log, kind="B") if row["stage"] == stage)
        periods.append((ends[-1] - ends[0]) / (len(ends) - 1))
    within = all(abs(period - 2) <= 2 / (log.summary["minibatches"] - 1) + 1e-9 for period in periods)
    return within, f"one minibatch per {periods[0]:.2f} and {periods[1]:.2f} units"


@judge(PAPER, "figure_8", "noam_two")
def noam_two(context: Context) -> Finding:
    """Forwards of each input replica before its first backward."""
    log = log_of(context)
    admitted = []
    for worker in (0, 1):
        own = [row for row in log.rows if row["worker"] == worker and row["kind"] != "send"]
        first = min(row["start"] for row in own if row["kind"] == "B")
        admitted.append(sum(row["kind"] == "F" and row["start"] < first for row in own))
    expected = context.result.reported["derived_NOAM"]
    return admitted == [expected] * 2, f"{admitted[0]} and {admitted[1]} minibatches"


@judge(PAPER, "figure_9", "same_within_stage")
def same_within(context: Context) -> Finding:
    """Forward against backward."""
    log = log_of(context)
    forward, backward = reads_of(log, FOLLOWED, "F"), reads_of(log, FOLLOWED, "B")
    return forward == backward, f"forward reads after minibatches {forward}, backward {backward}"


@judge(PAPER, "figure_9", "different_across")
def different_across(context: Context) -> Finding:
    """Stages 1 and 2, as reported."""
    seen = reads_of(log_of(context), FOLLOWED, "F")
    reported = context.result.reported["minibatch_5_versions"]
    holds = len(set(seen)) == len(seen) and [f"after minibatch {seen[0]}", f"after minibatch {seen[1]}"] == [
        reported["stage_1"],
        reported["stage_2"],
    ]
    return holds, f"after minibatches {seen} on stages 1 to {len(seen)}"
