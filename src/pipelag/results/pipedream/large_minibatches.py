"""Figure 13: data parallelism with large minibatches under LARS, against PipeDream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipelag.report.frames import Axis, Lines
from pipelag.results.arrivals import BETWEEN, Arrival, Arrivals, Gain, in_words, later
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, Difference, all_of, by_seed, sized, trend
from pipelag.results.logs import Item
from pipelag.results.pipedream.targets import PIPED, Efficiency, compared, goal_of
from pipelag.results.pipedream.training import TITLES, VGG, level, panel_of, points_of, styles_of
from pipelag.results.plans import SPEED, SPEED_WORDS, plan_in
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipedream"
LARS = {"LARS 1024": 1024, "LARS 4096": 4096, "LARS 8192": 8192}


@drawing(PAPER, "figure_13")
def figure_13(context: Context) -> Drawn:
    """Accuracy against epochs: a line per minibatch size under LARS, and PipeDream's."""
    rows = []
    items = context.select(what="training")
    panel = panel_of(VGG, items)
    for item in items:
        if item.log is not None:
            arm, batch, optimizer = item.arm.labels["arm"], item.arm.spec.batch, item.arm.spec.optimizer
            here = f" (here {batch})" if LARS.get(arm, batch) != batch else ""
            rate = f", rate {optimizer.lr:g}" if arm in LARS and optimizer is not None else ""
            named = Item(replace(item.arm, labels=dict(item.arm.labels) | {"arm": f"{arm}{here}{rate}"}), item.log)
            rows += points_of(named, "accuracy", panel)
    y = Axis("value", TITLES["accuracy"], levels=level(context, VGG, what="training", arm=PIPED))
    chart = Lines(Axis("epoch", "epoch"), y, line="arm", panel="panel", styles=styles_of(rows))
    return Drawn.of(chart, rows, items)


def lars_seconds(context: Context, arm: str) -> float:
    """The timed seconds per sample on 8 GPUs of Cluster-C, by data parallelism or PipeDream's 7-1 (ambiguity C11)."""
    log = log_of(context, what="time", arm=arm)
    if arm == PIPED:
        return 1 / plan_in(log, "7-1", "PipeDream's 7-1")["samples_per_second"]
    row = plan_in(log, "data parallel over 8", arm)
    return float(row["timed"]) / float(log.summary["batch"])


def lars(context: Context) -> dict[str, Efficiency]:
    """The epochs to the target of PipeDream and of each minibatch size under LARS."""
    goal = goal_of(context, VGG, {"what": "training", "arm": PIPED})
    labels: dict[str, Mapping[str, str]] = {arm: {"arm": arm, "what": "training"} for arm in (PIPED, *LARS)}
    return {arm: compared(context, goal, labels[PIPED], labels[arm]) for arm in LARS}


def lars_in_words(by_arm: Mapping[str, Efficiency]) -> str:
    """The epochs of all arms, in words."""
    first = next(iter(by_arm.values()))
    arms = {PIPED: first.first} | {arm: efficiency.second for arm, efficiency in by_arm.items()}
    return f"epochs to {first.goal.text}: " + "; ".join(f"{arm} {in_words(epochs)}" for arm, epochs in arms.items())


def reached(arrivals: Arrivals) -> bool | None:
    """Whether every seed reaches the target: False if none does, None if only some do."""
    values = [not one.never for one in arrivals.values()]
    return all(values) if len(set(values)) == 1 else None


def seconds_to(context: Context, by_arm: Mapping[str, Efficiency], arm: str) -> Arrivals:
    """When a LARS arm reaches the target by seed, in epochs times seconds per sample."""
    seconds = lars_seconds(context, arm)
    return {seed: one.times(seconds) for seed, one in by_arm[arm].second.items()}


@judge(PAPER, "figure_13", "reaches_1024")
def reaches_1024(context: Context) -> Finding:
    """Holds if a minibatch of 1024 reaches the target with every seed, and in less time than the others that reach it.

    Fails if it never does with any seed, or if another is faster.
    """
    by_arm = lars(context)
    holds = reached(by_arm["LARS 1024"].second)
    if holds:
        seconds = seconds_to(context, by_arm, "LARS 1024")
        others = [arm for arm in LARS if arm != "LARS 1024" and reached(by_arm[arm].second) is not False]
        holds = all_of([True, *(later(seconds_to(context, by_arm, arm), seconds) for arm in others)])
    return sized(context, holds, lars_in_words(by_arm), f"every seed, {BETWEEN}", what="training")


@judge(PAPER, "figure_13", "large_fail")
def large_fail(context: Context) -> Finding:
    """Holds if neither 4096 nor 8192 reaches the target with any seed; fails if either does with every seed."""
    by_arm = lars(context)
    outcomes = [reached(by_arm[arm].second) for arm in ("LARS 4096", "LARS 8192")]
    holds = all_of(None if outcome is None else not outcome for outcome in outcomes)
    return sized(context, holds, lars_in_words(by_arm), "every seed", what="training")


@judge(PAPER, "figure_13", "larger_end_lower_here")
def larger_end_lower(context: Context) -> Finding:
    """Holds if minibatches of 4096 and 8192 both end below 1024, paired over seeds."""
    ends = {arm: by_seed(context, what="training", arm=arm) for arm in LARS}
    below = {arm: Difference.of(ends["LARS 1024"], ends[arm]) for arm in ("LARS 4096", "LARS 8192")}
    why = f"points below LARS 1024: {', '.join(f'{arm} {gap.text()}' for arm, gap in below.items())}"
    return trend(context, all_of(gap.above() for gap in below.values()), why, SEEDS, what="training")


@judge(PAPER, "figure_13", "over_fastest")
def over_fastest(context: Context) -> Finding:
    """Holds if PipeDream reaches the target at least 2.4 times faster (within a factor of 1.2) than LARS.

    With each seed it is compared with the minibatch size under LARS that arrives first. A run of PipeDream that never
    arrives counts as 0 times as fast.
    """
    by_arm, printed = lars(context), context.result.reported["pipedream_speedup_over_fastest"]
    rivals = [seconds_to(context, by_arm, arm) for arm in LARS]
    fastest = {
        seed: Arrival(min(one.after for one in runs), min(one.by for one in runs), False)
        for seed in next(iter(by_arm.values())).first
        if (runs := [times[seed] for times in rivals if seed in times]) and not all(one.never for one in runs)
    }
    if not fastest:
        raise NotLogged("no minibatch under LARS reaches the target")
    seconds = lars_seconds(context, PIPED)
    piped = {seed: one.times(seconds) for seed, one in next(iter(by_arm.values())).first.items()}
    gain = Gain.of(piped, fastest)
    speeds = ", ".join(f"{arm} {1 / lars_seconds(context, arm):.0f} samples/s" for arm in (PIPED, *LARS))
    why = f"{gain.text()} times as fast for over {printed}x; {lars_in_words(by_arm)}; {speeds}"
    return sized(context, gain.above(printed / SPEED), why, f"{printed}x or more, {SPEED_WORDS}; {BETWEEN}")
