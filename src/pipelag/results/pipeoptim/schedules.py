"""Figures 1 and 2: the weights that minibatch 5 reads under each schedule."""

from __future__ import annotations

from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact, listing
from pipelag.results.timelines import FOLLOWED, Row, busy_once_full, draw, one_at_a_time, passes, reads_of
from pipelag.results.verdict import Finding, judge, log_of

PAPER = "pipeoptim"
MINIBATCH, MICROBATCH = (f"time (one {size}'s forward = 1)" for size in ("minibatch", "microbatch"))


def weights(row: Row) -> str:
    """A pass's label: the weights that it reads, numbered as in the paper.

    Initial weights are W_1; weights predicted s updates ahead of W_k are W^_{k+s}.
    """
    version = row["reads"] + 1
    ahead = int(row["ahead"])
    return rf"$\hat{{W}}_{{{version}+{ahead}}}$" if ahead else f"$W_{{{version}}}$"


@drawing(PAPER, "figure_1a")
def serial(context: Context) -> Drawn:
    """Serial execution."""
    return draw(context, name="GPU", first=0, label=weights, unit=MINIBATCH)


@drawing(PAPER, "figure_1c")
def naive(context: Context) -> Drawn:
    """Minibatches 4 and 5 of the naive execution, which take 12 units each."""
    return draw(context, name="GPU", first=0, label=weights, unit=MINIBATCH, since=36)


@drawing(PAPER, "figure_1b")
def figure_1b(context: Context) -> Drawn:
    """Minibatches 4 and 5 of GPipe, which take 21 units each; microbatches are numbered across minibatches."""
    return draw(context, name="GPU", first=0, micro=True, unit=MICROBATCH, since=63)


@drawing(PAPER, "figure_1d")
def figure_1d(context: Context) -> Drawn:
    """PipeDream with its stashed versions."""
    return draw(context, name="GPU", first=0, label=weights, unit=MINIBATCH, until=24, arm="weight stashing")


@drawing(PAPER, "figure_2")
def figure_2(context: Context) -> Drawn:
    """PipeOptim with its predicted weights."""
    return draw(context, name="GPU", first=0, label=weights, unit=MINIBATCH, until=24)


@judge(PAPER, "figure_1a", "reads_own_version")
def own_version(context: Context) -> Finding:
    """Holds if every pass of minibatch t reads W_t."""
    rows = passes(log_of(context))
    wrong = [row for row in rows if row["reads"] != row["minibatch"]]
    return exact(not wrong, f"{len(rows) - len(wrong)} of {len(rows)} passes read the version of their own number")


@judge(PAPER, "figure_1b", "bubbles")
def bubbles(context: Context) -> Finding:
    """Holds if each GPU is idle for some time of every minibatch, from its first pass until its flush is over."""
    log = log_of(context)
    shares = []
    for number in sorted({row["minibatch"] for row in log.rows}):
        rows = passes(log, number + 1)
        span = max(row["end"] for row in rows) - min(row["start"] for row in rows)
        busy = [sum(r["end"] - r["start"] for r in rows if r["worker"] == w) for w in range(log.summary["workers"])]
        shares += [1 - each / span for each in busy]
    why = f"of each minibatch's time until its flush every GPU is idle for {100 * min(shares):.0f} % or more"
    return exact(min(shares) > 0, why)


@judge(PAPER, "figure_1b", "microbatches_of_5")
def microbatches_of_5(context: Context) -> Finding:
    """Holds if minibatch 5 consists of the printed microbatches, counted from 1."""
    microbatches = sorted({row["microbatch"] + 1 for row in passes(log_of(context), FOLLOWED)})
    return exact(
        microbatches == context.result.reported["microbatches_of_minibatch_5"], f"microbatches {listing(microbatches)}"
    )


judge(PAPER, "figure_1c", "one_at_a_time")(one_at_a_time)


@judge(PAPER, "figure_1d", "forward_versions")
def forward_versions(context: Context) -> Finding:
    """Holds if the forwards of minibatch 5 read the printed weights on each GPU."""
    versions = [1 + version for version in reads_of(log_of(context, arm="weight stashing"), FOLLOWED, "F")]
    return exact(
        versions == context.result.reported["forward_weights_minibatch_5"],
        f"{listing(f'W{version}' for version in versions)} on GPUs 0 to {len(versions) - 1}",
    )


@judge(PAPER, "figure_1d", "backward_without_stashing")
def without_stashing(context: Context) -> Finding:
    """Holds if, without stashing, the backward of minibatch 5 on GPU 0 reads the printed weights."""
    version = 1 + reads_of(log_of(context, arm="no stashing"), FOLLOWED, "B")[0]
    return exact(version == context.result.reported["GPU0_weights_at_backward_without_stashing"], f"W{version}")


@judge(PAPER, "figure_1d", "stashed_versions")
def stashed_versions(context: Context) -> Finding:
    """Holds if rank r of D keeps D - r weight versions."""
    copies = log_of(context, arm="weight stashing").summary["weight_copies"]
    return exact(
        copies == [len(copies) - rank for rank in range(len(copies))],
        f"{listing(copies)} on ranks 0 to {len(copies) - 1}",
    )


@judge(PAPER, "figure_1d", "no_bubble")
def no_bubble(context: Context) -> Finding:
    """Holds if no GPU waits between the first minibatch's return and the entry of the last one."""
    holds, start, end = busy_once_full(log_of(context, arm="weight stashing"))
    words = "no GPU waits" if holds else "a GPU waits"
    return exact(
        holds, f"{words} between time {start:g}, when minibatch 1 is done, and {end:g}, when the last one enters"
    )


@judge(PAPER, "figure_2", "distances")
def distances(context: Context) -> Finding:
    """Holds if the forwards of minibatch 5 read the printed weights, predicted the printed numbers of updates ahead."""
    rows = passes(log_of(context), FOLLOWED, "F")
    predicted = [f"{row['reads'] + 1}+{int(row['ahead'])}" for row in rows]
    return exact(
        predicted == context.result.reported["predicted"],
        f"weights {listing(predicted)} on GPUs 0 to {len(predicted) - 1}",
    )


@judge(PAPER, "figure_2", "backward_reads_w5")
def backward_reads_w5(context: Context) -> Finding:
    """Holds if the backwards of minibatch 5 read the printed weights on every GPU."""
    versions = {1 + version for version in reads_of(log_of(context), FOLLOWED, "B")}
    return exact(
        versions == {context.result.reported["backward_weights"]},
        listing(f"W{version}" for version in sorted(versions)),
    )
