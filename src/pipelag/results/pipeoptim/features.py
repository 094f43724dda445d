"""Tables I and II, algorithm 1 and the versions in the text: which weights PipeOptim predicts, reads and keeps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pipelag.report.tables import Col, Formula
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact, listing
from pipelag.results.logs import RunLog
from pipelag.results.pipeoptim.batches import weight_bytes
from pipelag.results.pipeoptim.throughput import STASHING, arm_rows
from pipelag.results.timelines import FOLLOWED, passes
from pipelag.results.verdict import Finding, NotLogged, judge, log_of
from pipelag.theory.foreseen import DAMPENING, DECAY, SIZE

PAPER = "pipeoptim"
PREDICTED = ("SGDM", "Adam", "AdamW")  # the optimizers of table I
# Weights and steps are float64: such errors come from rounding over some hundred steps and from Adam's eps.
ROUNDING = 1e-6


def listed(values: Sequence[Any]) -> str:
    """Numbers, one per GPU, in words."""
    return ", ".join(f"{value:g}" for value in values)


@drawing(PAPER, "table_1")
def table_1(context: Context) -> Drawn:
    """A row per optimizer: the printed direction, and how far its repetition ends from the true weights."""
    rows = []
    for optimizer in context.values("arm"):
        log = context.log(arm=optimizer)
        off = {row["horizon"]: row["share"] for row in log.rows} if log else {}
        printed = context.result.reported.get(optimizer)
        formula = Formula.of(printed["formula"], printed["latex"]) if printed else None
        rows.append({"optimizer": optimizer, "printed": formula, **off})
    cols = [Col("optimizer", "optimizer"), Col("direction of an update (paper)", "printed")]
    horizons = sorted({key for row in rows for key in row if isinstance(key, int)})
    cols += [Col(f"s = {s}", _entry(s), "{:.1e}", "distance from the true weights") for s in horizons]
    updates = listing(dict.fromkeys(item.arm.spec.options["steps"] for item in context.items))
    notes = [
        f"Distances are root mean squares over {SIZE} weights and the last third of {updates} updates along a "
        "constant gradient, over what the weights moved in s updates; 1 is what reading the old weights would give.",
        f"Dampened: tau = {DAMPENING:g}. Without decay AdamW makes Adam's own updates, so that its row says "
        "no more than Adam's.",
        f"Decay: AdamW with a decoupled weight decay of {DECAY:g}, which table I leaves out; the trainings' "
        "is in Table 3.",
    ]
    return Drawn.tabled(context, rows, cols, notes)


def _entry(key: Any) -> Any:
    """A column's value where the key of a row is not a string."""
    return lambda row: row.get(key)


@judge(PAPER, "table_1", "own_step_repeated")
def own_step_repeated(context: Context) -> Finding:
    """Holds if repeating the optimizer's own step gives the true weights at every horizon, for table I's optimizers.

    The gradients are constant here, so nothing but rounding may be left.
    """
    off = {name: max(row["share"] for row in log_of(context, arm=name).rows) for name in PREDICTED}
    why = "off by at most " + ", ".join(f"{value:.0e} with {name}" for name, value in off.items())
    holds = max(off.values()) < ROUNDING
    return exact(holds, f"{why}, in shares of the move", f"{ROUNDING:g}: rounding, and Adam's eps")


@drawing(PAPER, "table_2")
def table_2(context: Context) -> Drawn:
    """Two rows per approach: its features by the run's schedule and summary, and in the paper's words."""
    rows: list[dict[str, Any]] = []
    plan = arm_rows(context.log(what="bytes"))
    for arm, printed in context.result.reported.items():
        log = context.log(arm=arm)
        rows.append({"approach": arm, "whose": "ours"} | (features(log) if log else {}))
        if arm in plan:
            rows[-1]["bytes"] = ", ".join(f"{held / 1e6:.0f}" for held in weight_bytes(plan[arm]))
        rows.append({"approach": arm, "whose": "paper"} | printed | {"versions": listed(printed["versions"])})
    cols = [
        Col("approach", "approach"),
        Col("", "whose"),
        Col("schedule", "schedule"),
        Col("effective learning (ours: updates looked ahead)", "learning"),
        Col("inconsistency", "inconsistency"),
        Col("staleness per GPU", "staleness"),
        Col("versions per GPU", "versions"),
        Col("of a stage", "memory", group="weights memory"),
        Col("of ResNet-101 (MB per GPU)", "bytes", group="weights memory"),
    ]
    runs = [item.arm for item in context.items if item.arm.spec.phases]
    summed = {arm.labels["arm"]: arm.spec.phases[0].microbatches for arm in runs}
    notes = [
        *(f"{arm}'s updates sum {many} microbatches each." for arm, many in summed.items() if many > 1),
        "The paper's footnotes: SpecTrain does not work with other optimizers than SGDM; with others than Adam, "
        "XPipe's performance depends on the model.",
        "SpecTrain and XPipe look ahead in both passes (s = floor(k/2) + D-k-1 and floor(k/2) on GPU k), so that both "
        "read what the weights are foreseen to be at the end of the minibatch's round trip.",
    ]
    return Drawn.tabled(context, rows, cols, notes, rule_by="approach")


def looks_ahead(log: RunLog, kind: str) -> list[float]:
    """How many updates ahead the forwards ("F") or backwards ("B") of the followed minibatch predict, per GPU."""
    rows = passes(log, FOLLOWED, kind)
    return [max(row["ahead"] for row in rows if row["stage"] == stage) for stage in sorted({r["stage"] for r in rows})]


def features(log: RunLog) -> dict[str, Any]:
    """An approach's cells of table II, read from its schedule and summary."""
    copies, forward, backward = (log.summary[key] for key in ("weight_copies", "forward_delays", "backward_delays"))
    ahead = {name: looks_ahead(log, kind) for name, kind in (("forward", "F"), ("backward", "B"))}
    foreseen = [f"{name} {listed(updates)}" for name, updates in ahead.items() if any(updates)]
    aims = [[row["reads"] + row["ahead"] for row in passes(log, FOLLOWED, kind)] for kind in "FB"]
    same, bridged = forward == backward, aims[0] == aims[1]
    least, most = min(copies), max(copies)
    return {
        "schedule": "1F1B" if is_1f1b(log) else "other",
        "learning": f"prediction: {'; '.join(foreseen)}" if foreseen else "weight stashing" if same else "none",
        "inconsistency": "same weights in both passes" if same else "bridged by prediction" if bridged else "unsolved",
        "staleness": listed(forward) + (f" (backward {listed(backward)})" if not same else ""),
        "versions": listed(copies),
        "memory": f"{most}M" if least == most else f"[{least}M, {most}M]",
    }


def is_1f1b(log: RunLog) -> bool:
    """Whether every GPU, after its first forwards, alternates backwards and forwards until no more minibatches come."""
    rows, workers = sorted(passes(log), key=lambda row: row["start"]), log.summary["workers"]
    orders = ("".join(row["kind"] for row in rows if row["worker"] == worker) for worker in range(workers))
    return all(re.fullmatch(rf"F{{1,{workers}}}(BF)*B+", order) for order in orders)


@judge(PAPER, "table_2", "all_1f1b")
def all_1f1b(context: Context) -> Finding:
    """Holds if the passes of every GPU are in 1F1B order under each approach (`is_1f1b`)."""
    arms = {arm: is_1f1b(log_of(context, arm=arm)) for arm in context.result.reported}
    others = [arm for arm, holds in arms.items() if not holds]
    return exact(not others, f"not so under {', '.join(others)}" if others else f"so under {', '.join(arms)}")


@judge(PAPER, "table_2", "versions_per_gpu")
def versions_per_gpu(context: Context) -> Finding:
    """Holds if each approach keeps the printed number of weight versions on every GPU."""
    differing = []
    for arm, reported in context.result.reported.items():
        versions = log_of(context, arm=arm).summary["weight_copies"]
        if versions != reported["versions"]:
            differing.append(f"{arm} {listing(versions)} instead of {listing(reported['versions'])}")
    return exact(not differing, "; ".join(differing) or "all five as reported")


@judge(PAPER, "table_2", "bytes_per_gpu")
def bytes_per_gpu(context: Context) -> Finding:
    """Holds if the bytes of all weight versions over those of one are the printed number of versions on every GPU."""
    plan, by_arm = arm_rows(log_of(context, what="bytes")), {}
    for arm in context.result.reported:
        if arm not in plan:
            raise NotLogged(f"{arm} has no logged bytes")
        alone = [stage["memory"]["weights"] for stage in plan[arm]["stages"]]
        by_arm[arm] = [held / one for held, one in zip(weight_bytes(plan[arm]), alone, strict=True)]
    why = "; ".join(f"{arm} {listed(times)} M" for arm, times in by_arm.items())
    return exact(by_arm == {arm: printed["versions"] for arm, printed in context.result.reported.items()}, why)


def delays(context: Context, arm: str) -> tuple[list[int], list[int]]:
    """How many updates old the weights are that (forwards, backwards) read, per GPU."""
    summary = log_of(context, arm=arm).summary
    return summary["forward_delays"], summary["backward_delays"]


@judge(PAPER, "table_2", "stashing_consistent")
def stashing_consistent(context: Context) -> Finding:
    """Holds if both passes read equally old weights on every GPU, under each approach that stashes."""
    by_arm = {arm: delays(context, arm) for arm in STASHING}
    why = "; ".join(f"{arm}: forward {listing(f)}; backward {listing(b)} updates old" for arm, (f, b) in by_arm.items())
    return exact(all(f == b for f, b in by_arm.values()), why)


@judge(PAPER, "table_2", "stashing_stale")
def stashing_stale(context: Context) -> Finding:
    """Holds if forwards read weights that are updates old on some GPU, under each approach that stashes."""
    by_arm = {arm: delays(context, arm)[0] for arm in STASHING}
    why = "; ".join(f"{arm} {listing(lags)}" for arm, lags in by_arm.items())
    return exact(
        all(max(lags) > 0 for lags in by_arm.values()), f"forwards read weights that are so many updates old: {why}"
    )


@judge(PAPER, "table_2", "prediction_bridges")
def prediction_bridges(context: Context) -> Finding:
    """Holds if, on every GPU, the version read plus the updates predicted is the version that the backward reads.

    These are the passes of the followed minibatch, which comes once the pipeline is full.
    """
    log = log_of(context, arm="PipeOptim")
    forwards = passes(log, FOLLOWED, "F")
    aims = [row["reads"] + row["ahead"] for row in forwards]
    goals = [row["reads"] for row in passes(log, FOLLOWED, "B")]
    aimed, read = (listed([1 + version for version in versions]) for versions in (aims, goals))
    return exact(aims == goals, f"forwards of minibatch {FOLLOWED} aim at versions {aimed}; backwards read {read}")


def steps_of(log: RunLog) -> list[dict[str, Any]]:
    """The steps of algorithm 1 for the followed minibatch, per rank. Versions count from W_1, as in the paper."""
    depth, copies = log.summary["stages"], log.summary["weight_copies"]
    steps = []
    for rank in range(depth):
        (forward,) = (row for row in passes(log, FOLLOWED, "F") if row["stage"] == rank + 1)
        (backward,) = (row for row in passes(log, FOLLOWED, "B") if row["stage"] == rank + 1)
        version, ahead = forward["reads"] + 1, int(forward["ahead"])
        predicts = ahead > 0
        steps.append(
            {
                "rank": rank,
                "s": depth - rank - 1,
                "cached": f"W{version}" if predicts else "",
                "ahead": ahead,
                "forward": f"Ŵ{version}+{ahead}" if predicts else f"W{version}",
                "recovered": f"W{version}" if predicts else "",
                "backward": f"W{backward['reads'] + 1}",
                "next": f"W{backward['writes'] + 1}",
                "copies": copies[rank],
                "newest": backward["delay"] == 0 and backward["writes"] == backward["reads"] + 1,
            }
        )
    return steps


@drawing(PAPER, "algorithm_1")
def algorithm_1(context: Context) -> Drawn:
    """A row per rank with its steps; numbers in brackets are lines of the algorithm."""
    log = context.log()
    cols = [
        Col("rank", "rank"),
        Col("caches [5]", "cached"),
        Col("s [6]", "s"),
        Col("forward on [8, 9, 12]", "forward"),
        Col("recovers [10]", "recovered"),
        Col("backward on [14]", "backward"),
        Col("makes [15]", "next"),
        Col("versions kept", "copies"),
    ]
    notes = [
        "The algorithm prints forward and backward of one t in turn (D13); under 1F1B D - rank - 1 other backwards lie "
        "between them, so that the weights of line 14 are newer than those of line 5 by s updates.",
        "Line 8 writes W^_t for what line 9 and equation 5 call W^_{t+s} (D12).",
    ]
    return Drawn.tabled(context, steps_of(log) if log else [], cols, notes)


@judge(PAPER, "algorithm_1", "workflow")
def workflow(context: Context) -> Finding:
    """Holds if every rank takes algorithm 1's steps for the followed minibatch, and no pass of the run departs from it.

    Every forward must predict D - rank - 1 updates ahead, and every backward must read the newest weights.
    """
    log = log_of(context)
    steps = steps_of(log)
    right = all(
        step["ahead"] == step["s"] and step["newest"] and bool(step["cached"]) == (step["rank"] < len(steps) - 1)
        for step in steps
    )
    far = {row["stage"]: {f["ahead"] for f in passes(log, kind="F") if f["stage"] == row["stage"]} for row in log.rows}
    always = all(distances == {len(steps) - stage} for stage, distances in far.items())
    live = all(row["delay"] == 0 and row["ahead"] == 0 for row in passes(log, kind="B"))
    why = "; ".join(f"rank {s['rank']}: forward on {s['forward']}, backward on {s['backward']}" for s in steps)
    return exact(right and always and live, why)


@drawing(PAPER, "text_two_versions")
def text_two_versions(context: Context) -> Drawn:
    """The number of versions per rank, ours beside the paper's."""
    log = context.log()
    held = log.summary["weight_copies"] if log else []
    printed = context.result.reported["versions"]
    rows = [{"rank": rank, "ours": held[rank], "paper": paper} for rank, paper in enumerate(printed)] if held else []
    cols = [Col("rank", "rank"), Col("ours", "ours", group="versions"), Col("paper", "paper", group="versions")]
    return Drawn.tabled(context, rows, cols)


@judge(PAPER, "text_two_versions", "two_but_for_the_last")
def two_but_for_the_last(context: Context) -> Finding:
    """Holds if every rank keeps the printed number of weight versions."""
    copies = log_of(context).summary["weight_copies"]
    return exact(
        copies == context.result.reported["versions"], f"{listing(copies)} versions on ranks 0 to {len(copies) - 1}"
    )
