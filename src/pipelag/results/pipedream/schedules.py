"""Figures 2, 3, 4, 5, 8 and 9: schedules, and the weight versions that a minibatch reads. All claims are exact."""

from __future__ import annotations

from itertools import pairwise

from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact, extent, listing
from pipelag.results.logs import RunLog
from pipelag.results.timelines import FOLLOWED, Row, at_once, busy_once_full, draw, passes
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipedream"
ALMOST = 1e-9  # time units, for rounding errors


def after(row: Row) -> str:
    """The label W(k) of a pass that reads the stage's weights after minibatch k's update."""
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
    """1F1B with minibatch 5 highlighted."""
    return draw(context, arm="weight stashing", until=24)


@drawing(PAPER, "figure_5")
def figure_5(context: Context) -> Drawn:
    """All workers with their transfers; the paper shows only the third."""
    return draw(context, follow=None, until=24)


@drawing(PAPER, "figure_8")
def figure_8(context: Context) -> Drawn:
    """1F1B-RR with two replicas of stage 1; minibatches are numbered from 0, so that worker 1 has the even ones."""
    return draw(context, follow=None, unit="time (one pass of stage 2 = 1)", numbered_from=0)


@drawing(PAPER, "figure_9")
def figure_9(context: Context) -> Drawn:
    """Minibatch 5 with the version of every pass."""
    return draw(context, label=after, until=24)


def of_worker(log: RunLog, worker: int, kinds: str = "FB") -> list[Row]:
    """A worker's passes of these kinds, in the order of time. worker: counted from 0."""
    rows = [row for row in log.rows if row["worker"] == worker and row["kind"] in kinds]
    return sorted(rows, key=lambda row: row["start"])


@judge(PAPER, "figure_2", "one_worker_at_a_time")
def one_at_a_time(context: Context) -> Finding:
    """Holds if never more than one worker is busy, while each of them computes at some time."""
    log = log_of(context)
    working, most = len({row["worker"] for row in log.rows if row["kind"] in "FB"}), at_once(log)
    why = f"at most {most} of {log.summary['workers']} are busy at a time, {working} of them at some time"
    return exact(most == 1 and working == log.summary["workers"] == context.result.reported["workers"], why)


def used(log: RunLog) -> float:
    """The share of time in which the workers compute, from the first pass to the last."""
    rows = [row for row in log.rows if row["kind"] in "FB"]
    span = max(row["end"] for row in rows) - min(row["start"] for row in rows)
    return sum(row["end"] - row["start"] for row in rows) / (span * log.summary["workers"])


@judge(PAPER, "figure_2", "a_quarter_used")
def quarter(context: Context) -> Finding:
    """Holds if the workers compute for exactly one over their number, a quarter, of their time."""
    share = used(log_of(context))
    one_worker = 1 / context.result.reported["workers"]
    return exact(abs(share - one_worker) < ALMOST, f"workers compute for {share:.4f} of their time")


@judge(PAPER, "figure_3", "idle_at_flush")
def flush_idles(context: Context) -> Finding:
    """Holds if every worker idles at every flush.

    Its idle time is counted from its first pass of a minibatch to its first pass of the next.
    """
    log = log_of(context, arm=str(context.result.reported["m"]))
    waits: list[float] = []
    for worker in range(log.summary["workers"]):
        rows = of_worker(log, worker)
        firsts = [next(row for row in rows if row["minibatch"] == m) for m in range(log.summary["minibatches"])]
        for first, following in pairwise(firsts):
            busy = sum(row["end"] - row["start"] for row in rows if row["minibatch"] == first["minibatch"])
            waits.append(following["start"] - first["start"] - busy)
    if not waits:
        raise NotLogged("fewer than two minibatches are logged, so there is no flush between them")
    why = f"{extent(min(waits), max(waits))} units of idle time per worker and flush"
    return exact(min(waits) > ALMOST, why)


@judge(PAPER, "figure_3", "bubble_falls_with_m")
def bubble_falls(context: Context) -> Finding:
    """Holds if the share of idle time falls at each step of m, the number of microbatches."""
    shares = [(int(arm), 1 - used(log_of(context, arm=arm))) for arm in context.values("arm")]
    falling = all(a[0] < b[0] and a[1] > b[1] + ALMOST for a, b in pairwise(shares))
    return exact(falling, "idle share by m: " + ", ".join(f"{m}: {100 * share:.1f} %" for m, share in shares))


@judge(PAPER, "figure_4", "noam")
def noam(context: Context) -> Finding:
    """Holds if stage 1 begins exactly NOAM = 4 forwards before its first backward."""
    log = log_of(context, arm="weight stashing")
    first_backward = min(row["start"] for row in passes(log, kind="B") if row["stage"] == 1)
    admitted = sum(row["stage"] == 1 and row["start"] < first_backward for row in passes(log, kind="F"))
    return exact(
        admitted == context.result.reported["NOAM"], f"{admitted} minibatches enter before the first one's backward"
    )


@judge(PAPER, "figure_4", "all_busy")
def all_busy(context: Context) -> Finding:
    """Holds if no worker waits from the end of the first minibatch until the last one enters.

    This steady state must last at least as long as a forward and a backward.
    """
    log = log_of(context, arm="weight stashing")
    busy, start, end = busy_once_full(log)
    period = 1 + context.paper.results["figure_2"].reported["backward_over_forward"]
    if end - start < period:
        raise NotLogged(f"the log's steady state lasts {max(0.0, end - start):g} units, less than a minibatch")
    return exact(busy, f"{'no' if busy else 'some'} worker waits between time {start:g} and {end:g}")


def followed(log: RunLog, kind: str) -> list[Row]:
    """The forwards or backwards of minibatch 5, by stage. Raises `NotLogged` if there are none."""
    rows = passes(log, FOLLOWED, kind)
    if not rows:
        raise NotLogged(f"the log has no minibatch {FOLLOWED}")
    return rows


def versions_read(log: RunLog, kind: str) -> list[int]:
    """The weight version that minibatch 5's passes of a kind read, by stage: the number of updates that made it."""
    return [row["reads"] for row in followed(log, kind)]


def seen_by(log: RunLog, row: Row) -> int:
    """The number of updates that a pass's stage has made when the pass begins, counted by its finished backwards."""
    return sum(
        other["stage"] == row["stage"] and other["end"] <= row["start"] + ALMOST for other in passes(log, kind="B")
    )


def agreeing(log: RunLog, rows: list[Row]) -> bool:
    """Whether the logged version of each of these passes is the number of updates made by then (`seen_by`)."""
    return all(row["reads"] == seen_by(log, row) for row in rows)


@judge(PAPER, "figure_4", "updates_between")
def updates_between(context: Context) -> Finding:
    """Holds if, without stashing, minibatch 5's passes on stage 1 read the printed versions.

    The forward reads the version after minibatch 1's update, the backward that after those of 2, 3 and 4 as well. Both
    must also agree with the times of the updates (`agreeing`).
    """
    log = log_of(context, arm="no stashing")
    forward, backward = (followed(log, kind)[0] for kind in "FB")
    reported = context.result.reported["stage1_minibatch5"]
    between = list(range(forward["reads"] + 1, backward["reads"] + 1))
    holds = (
        agreeing(log, [forward, backward])
        and forward["reads"] == reported["forward_after_update_of"]
        and between == reported["backward_without_stashing_after_updates_of"]
    )
    why = f"forward reads after update {forward['reads']}, backward after {backward['reads']}; "
    return exact(holds, why + f"{seen_by(log, forward)} and {seen_by(log, backward)} updates were made by then")


@judge(PAPER, "figure_4", "versions_by_stage")
def versions_by_stage(context: Context) -> Finding:
    """Holds if minibatch 5's forward reads the printed version on every stage, and the times of updates agree."""
    log = log_of(context, arm="weight stashing")
    rows = followed(log, "F")
    read = [row["reads"] for row in rows]
    holds = read == context.result.reported["minibatch_5_versions"] and agreeing(log, rows)
    updates = listing(seen_by(log, row) for row in rows)
    return exact(holds, f"updates up to {listing(read)} on stages 1 to {len(read)}, made {updates}")


@judge(PAPER, "figure_4", "vertical_sync")
def vertical_sync(context: Context) -> Finding:
    """Holds if both passes of minibatch 5 read the first stage's printed version on every stage."""
    log = log_of(context, arm="vertical sync")
    read = {kind: versions_read(log, kind) for kind in "FB"}
    first = context.result.reported["minibatch_5_versions"][0]
    holds = all(version == first for versions in read.values() for version in versions)
    return exact(holds, f"updates up to {listing(read['F'])} by forwards, {listing(read['B'])} by backwards")


@judge(PAPER, "figure_4", "staleness")
def staleness(context: Context) -> Finding:
    """Holds if every pass after the first n minibatches reads the version of the printed formulas.

    Minibatch t + 1 makes w(t+1). Both with weight stashing and with vertical sync (ambiguity C10).
    """
    words, holds = [], True
    for arm, each_its_own in (("weight stashing", True), ("vertical sync", False)):
        log = log_of(context, arm=arm)
        stages = max(row["stage"] for row in passes(log))
        rows = [row for row in passes(log) if row["minibatch"] >= stages]
        if not rows:
            raise NotLogged(f"the log has no minibatch after the first {stages}")
        off = sum(row["reads"] != row["minibatch"] - stages + (row["stage"] if each_its_own else 1) for row in rows)
        holds = holds and off == 0
        words.append(f"{arm}: {off} of {len(rows)} passes read another version")
    return exact(holds, "; ".join(words))


def sent_and_covered(log: RunLog, worker: int, kind: str) -> tuple[float, float]:
    """How long a worker sends the outputs of passes of a kind, and for how much of that it computes another minibatch.

    Both in time units of its steady state, from the end of its first backward until its last forward.
    """
    rows = of_worker(log, worker)
    start = min(row["end"] for row in rows if row["kind"] == "B")
    end = max(row["start"] for row in rows if row["kind"] == "F")
    sent = covered = 0.0
    for send in of_worker(log, worker, "send"):
        length = send["end"] - send["start"]
        source = next(row for row in rows if row["kind"] == kind and row["minibatch"] == send["minibatch"])
        of_kind = abs(source["end"] - send["start"]) <= length  # at most one other send goes before it
        if not of_kind or not start <= send["start"] <= end:
            continue
        sent += length
        covered += sum(
            max(0.0, min(row["end"], send["end"]) - max(row["start"], send["start"]))
            for row in rows
            if row["minibatch"] != send["minibatch"]
        )
    return sent, covered


@judge(PAPER, "figure_5", "overlap")
def overlap(context: Context) -> Finding:
    """Holds if worker 3 computes another minibatch during at least half of its sending, and some in each direction.

    This is our reading of "significant overlap", in the worker's steady state.
    """
    log = log_of(context)
    parts = {what: sent_and_covered(log, 2, kind) for what, kind in (("activations", "F"), ("gradients", "B"))}
    missing = [what for what, (sent, _) in parts.items() if not sent]
    if missing:
        raise NotLogged(f"worker 3 sends no {missing[0]} in its steady state")
    sent, covered = (sum(part[i] for part in parts.values()) for i in (0, 1))
    by_kind = ", ".join(f"{covered:g} of {sent:g} of {what}" for what, (sent, covered) in parts.items())
    why = f"in its steady state worker 3 computes another minibatch in {covered:g} of {sent:g} units of sending"
    return exact(
        covered >= 0.5 * sent and all(covered > 0 for _, covered in parts.values()),
        f"{why} ({by_kind})",
        "the paper's 'significant overlap' is read as at least half of the time, and some in either direction",
    )


@judge(PAPER, "figure_8", "round_robin")
def round_robin(context: Context) -> Finding:
    """Holds if worker 1 takes the even minibatches, worker 2 the odd ones and worker 3 all, numbered from 0."""
    log = log_of(context)
    taken = [sorted({row["minibatch"] for row in of_worker(log, worker)}) for worker in range(3)]
    every = list(range(log.summary["minibatches"]))
    holds = len(every) > 1 and taken == [every[::2], every[1::2], every]
    return exact(holds, f"workers 1, 2 and 3 take {'; '.join(map(listing, taken))}, numbered from 0")


@judge(PAPER, "figure_8", "same_replica")
def same_replica(context: Context) -> Finding:
    """Holds if for every minibatch and stage the forward and the backward run on the same worker."""
    places: dict[tuple[int, int], dict[str, set[int]]] = {}
    for row in passes(log_of(context)):
        places.setdefault((row["stage"], row["minibatch"]), {}).setdefault(row["kind"], set()).add(row["worker"])
    split = sum(len(kinds.get("F", set()) | kinds.get("B", set())) != 1 or len(kinds) != 2 for kinds in places.values())
    return exact(split == 0, f"{split} of {len(places)} passes through a stage change their worker in between")


@judge(PAPER, "figure_8", "two_units_each")
def two_units(context: Context) -> Finding:
    """Holds if each stage finishes one minibatch per 2 time units in the steady state.

    This is the time between a worker's backwards, divided by the number of workers of its stage.
    """
    log = log_of(context)
    stage_of = {row["worker"]: row["stage"] for row in passes(log)}
    rates: list[float] = []
    for worker, stage in sorted(stage_of.items()):
        count = list(stage_of.values()).count(stage)
        ends = [row["end"] for row in of_worker(log, worker, "B")]
        admitted = sum(row["start"] < ends[0] for row in of_worker(log, worker, "F"))
        steady = ends[: len(ends) - admitted + 1]  # without those after the last minibatch has entered
        if len(steady) < 2:
            raise NotLogged("too few minibatches are logged for a steady state")
        rates += [(b - a) / count for a, b in pairwise(steady)]
    why = f"one minibatch per {extent(min(rates), max(rates))} units in both stages"
    return exact(all(abs(rate - 2) < ALMOST for rate in rates), why)


@judge(PAPER, "figure_8", "noam_two")
def noam_two(context: Context) -> Finding:
    """Holds if each replica of the input stage begins exactly NOAM = 2 forwards before its first backward."""
    log = log_of(context)
    admitted = []
    for worker in (0, 1):
        first = min(row["start"] for row in of_worker(log, worker, "B"))
        admitted.append(sum(row["start"] < first for row in of_worker(log, worker, "F")))
    expected = context.result.reported["derived_NOAM"]
    return exact(admitted == [expected] * 2, f"{admitted[0]} and {admitted[1]} minibatches before a backward")


@judge(PAPER, "figure_9", "same_within_stage")
def same_within(context: Context) -> Finding:
    """Holds if minibatch 5's forward and backward read the same version on every stage.

    The forward's version must also agree with the times of the updates (`agreeing`).
    """
    log = log_of(context)
    forward, backward = (versions_read(log, kind) for kind in "FB")
    holds = forward == backward and agreeing(log, followed(log, "F"))
    return exact(holds, f"forward reads after minibatches {listing(forward)}; backward {listing(backward)}")


@judge(PAPER, "figure_9", "different_across")
def different_across(context: Context) -> Finding:
    """Holds if minibatch 5 reads a different version on every stage, and the printed ones on stages 1 and 2."""
    seen = versions_read(log_of(context), "F")
    reported = context.result.reported["minibatch_5_versions"]
    printed = [reported["stage_1"], reported["stage_2"]]
    holds = len(set(seen)) == len(seen) and [f"after minibatch {version}" for version in seen[:2]] == printed
    return exact(holds, f"after minibatches {listing(seen)} on stages 1 to {len(seen)}")
