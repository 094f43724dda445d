"""What the drawings and judges of this paper read from logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from pipelag.results.context import Context
from pipelag.results.judging import ONE_MORE, Difference, by_seed, half_a_unit, logs_by_seed, over_models
from pipelag.results.logs import Item, RunLog
from pipelag.results.memory import increase
from pipelag.results.timelines import full_between
from pipelag.results.verdict import NotLogged, log_of
from pipelag.runs.speedup import speedups, spread

PAPER = "stale_weights"
BASELINE = "non-pipelined"
CONTROL = "non-pipelined at the pipelined rate"
STAGES = {"s4": "4-stage", "s6": "6-stage", "s8": "8-stage", "s10": "10-stage"}
PRINTED = re.compile(r"\d+k(\+\d+k)?")  # the paper's numbers of iterations in the name of an arm
DEPTHS = ("ResNet-20", "ResNet-56", "ResNet-110", "ResNet-224", "ResNet-362")


def name_as_run(item: Item) -> str:
    """A run's arm, with our numbers of iterations instead of the paper's in its name."""
    return PRINTED.sub("+".join(f"{phase.steps:,}" for phase in item.arm.spec.phases), item.arm.labels["arm"])


def as_run(context: Context, arm: str) -> str:
    """`name_as_run` for an arm given by its name in the config."""
    items = context.select(arm=arm)
    return name_as_run(items[0]) if items else arm


def rates_of(context: Context, name: Callable[[Item], str] = lambda item: item.arm.labels["arm"]) -> str:
    """The learning rates of the logged arms by phase, in a sentence; empty if no arm has several phases."""
    arms: dict[str, dict[str, None]] = {}  # by their rates
    several = False
    for item in context.logged():
        optimizer, phases = item.arm.spec.optimizer, item.arm.spec.phases
        if optimizer is None:
            continue
        several = several or len(phases) > 1
        rates = [{phase.stage_lr.get(stage, optimizer.lr) for stage in range(1, phase.stages + 1)} for phase in phases]
        words = ", then ".join(" and ".join(f"{rate:g}" for rate in sorted(each)) for each in rates)
        arms.setdefault(words, {})[name(item)] = None
    listing = "; ".join(f"{words} ({', '.join(names)})" for words, names in arms.items())
    return f"Learning rates before they fall (ambiguity A19): {listing}." if several else ""


def pipelined(context: Context, model: str) -> list[str]:
    """The pipelined arms of a model, in the config's order."""
    return [arm for arm in context.values("arm", model=model) if arm.endswith("-stage")]


def every_log(context: Context, **labels: str) -> list[RunLog]:
    """The logs of all seeds of an arm that the scale asks for; raises `NotLogged` if one is missing."""
    return list(logs_by_seed(context, ", ".join(labels.values()), **labels).values())


def lost(context: Context, arm: str, **labels: str) -> Difference:
    """By how many points an arm ends below the baseline, paired over seeds."""
    return Difference.of(by_seed(context, arm=BASELINE, **labels), by_seed(context, arm=arm, **labels))


def drops(context: Context, model: str, arms: Sequence[str] = ()) -> dict[str, Difference]:
    """The drops of a model's pipelined arms (default: all) below the baseline, by arm."""
    return {arm: lost(context, arm, model=model) for arm in arms or pipelined(context, model)}


def mean_gain(context: Context) -> Difference:
    """The hybrid's gain over the baseline, averaged over depths seed by seed."""
    means = (
        over_models(by_seed(context, model=model, kind="train", arm=arm) for model in DEPTHS)
        for arm in ("hybrid", BASELINE)
    )
    return Difference.of(*means)


def listed(differences: Mapping[str, Difference]) -> str:
    """Differences as words for a sentence, with the number of seeds once at the end if it is the same for all."""
    if len({d.seeds for d in differences.values()}) > 1:
        return ", ".join(f"{name} {d.text()}" for name, d in differences.items())
    errors = {name: f" ± {d.error:.2f}" if d.error is not None else "" for name, d in differences.items()}
    words = ", ".join(f"{name} {d.mean:+.2f}{errors[name]}" for name, d in differences.items())
    seeds = min(d.seeds for d in differences.values())
    return f"{words} ({seeds} seeds)" if seeds > 1 else f"{words} (one seed)"


def near(half: float) -> str:
    """The tolerance, in words, of a claim that a difference is about a printed one."""
    return f"{ONE_MORE}; {half_a_unit(half)}"


def numbers(values: Sequence[float], form: str = "{:.2f}") -> str:
    """Numbers for a sentence."""
    return ", ".join(form.format(value) for value in values)


# -- time --------------------------------------------------------------------------------------------------------------


def milliseconds(log: RunLog, arm: str) -> float:
    """Median time per minibatch of an arm of a `speed` run."""
    return median(1000 * row["seconds"] / row["steps"] for row in log.rows if row["arm"] == arm)


def blocks(context: Context, arm: str = "pipelined", **labels: str) -> list[float]:
    """The speedup of each timed block over the non-pipelined block beside it, sorted; raises `NotLogged` if none is."""
    values = [s for log in context.logs(**labels) for s in speedups(log.rows, arm)]
    if not values:
        raise NotLogged(f"the {arm} speedup of {', '.join(labels.values())} has no log")
    return sorted(values)


def blocks_by_depth(context: Context, arm: str = "pipelined") -> dict[str, list[float]]:
    """The speedups of timed blocks (`blocks`) at every depth of table 5."""
    return {model: blocks(context, arm, model=model, kind="speed") for model in DEPTHS}


def ranges(by_name: Mapping[str, Sequence[float]]) -> str:
    """The median and range of blocks, as words for a sentence."""
    return ", ".join(f"{name} {spread(blocks)}" for name, blocks in by_name.items())


def above(values: Sequence[float], bound: float) -> bool | None:
    """Whether all blocks are above a bound: False if none is, None if only some are."""
    if min(values) > bound:
        return True
    return False if max(values) <= bound else None


def below(values: Sequence[float], bound: float) -> bool | None:
    """Whether all blocks are at or below a bound: False if none is, None if only some are."""
    over = above(values, bound)
    return None if over is None else not over


def whole_blocks(context: Context, model: str) -> float | None:
    """The median speedup of whole hybrid blocks, with hand-over, fill and drain; None if they are not logged."""
    values = []
    for item in context.select(model=model, kind="speed"):
        if item.log is None:
            continue
        spec = item.arm.spec
        steps = 2 * int(spec.options.get("block_steps", spec.steps))  # a pipelined block, then a non-pipelined one
        alone = {r["block"]: r["seconds"] / r["steps"] for r in item.log.rows if r["arm"] == BASELINE}
        hybrid = [r for r in item.log.rows if r["arm"] == "hybrid" and "whole_seconds" in r]
        values += [steps * alone[r["block"]] / r["whole_seconds"] for r in hybrid]
    return median(values) if values else None


# -- schedules, counts -------------------------------------------------------------------------------------------------


def accelerator_names(log: RunLog) -> list[str]:
    """The work of each accelerator, such as "A1: FS2+BKS1"."""
    stages = log.summary["stages"]
    work: dict[int, list[str]] = {}
    for row in log.rows:
        name = f"FS{row['stage']}" if row["kind"] == "F" else f"BKS{stages - row['stage'] + 1}"
        if name not in work.setdefault(row["worker"], []):
            work[row["worker"]].append(name)
    return [f"A{worker}: {'+'.join(names)}" for worker, names in sorted(work.items())]


def busy_per_cycle(log: RunLog) -> list[int]:
    """The number of busy accelerators in each cycle."""
    length = max(row["end"] for row in log.rows)
    return [len({row["worker"] for row in log.rows if row["start"] <= cycle < row["end"]}) for cycle in range(length)]


def steady(log: RunLog) -> range:
    """The cycles in which the pipeline is full: from the first minibatch's last pass until the last minibatch enters.

    Raises NotLogged if the last minibatch enters before that.
    """
    first, last = full_between(log)
    if last < first:
        raise NotLogged("the pipeline is never full")
    return range(first, last + 1)


def finished_in(log: RunLog) -> list[int]:
    """The cycles in which minibatches finish, by their last pass, the first stage's backward."""
    return sorted(row["start"] for row in log.rows if row["kind"] == "B" and row["stage"] == 1)


def staleness(log: RunLog, stage: int) -> set[int]:
    """The numbers of updates that a stage's forwards miss in the full pipeline.

    They are counted in two ways, by the cycles of the updates and by the version that a forward reads. The set has one
    element if both agree for all forwards.
    """
    full = steady(log)
    updates = [row["end"] for row in log.rows if row["kind"] == "B" and row["stage"] == stage]
    passes = [row for row in log.rows if (row["kind"], row["stage"]) == ("F", stage) and row["start"] in full]
    by_clock = {row["minibatch"] - sum(end <= row["start"] for end in updates) for row in passes}
    return by_clock | {row["minibatch"] - row["reads"] for row in passes}


def cycles_each(log: RunLog) -> tuple[float, float]:
    """The cycles per minibatch on one accelerator that does all the work, and in the full pipeline."""
    ends = finished_in(log)
    together = len({(row["worker"], row["start"]) for row in log.rows})  # FS_{K+1} and BKS_1 take one cycle, not two
    return together / len(ends), (ends[-1] - ends[0]) / (len(ends) - 1)


def speed_when_full(log: RunLog) -> float:
    """The full pipeline's speedup over one worker that does all of a minibatch's passes."""
    rows = [row for row in log.rows if row["minibatch"] == 0 and row["kind"] in ("F", "B")]
    return float(sum(row["end"] - row["start"] for row in rows) / log.summary["period"])


def by_k(context: Context) -> dict[int, RunLog]:
    """The schedules of K register pairs on 2K + 1 accelerators, by K."""
    return {int(k): log_of(context, K=k) for k in context.values("K")}


def memory_of(context: Context, model: str) -> dict[str, float] | None:
    """Table 6's memory of a model (`results.memory.increase`), from its count log; None without a log."""
    log = context.log(model=model)
    return increase(log.rows, log.summary["cuts"], log.summary["batch"]) if log is not None else None


def early_share(context: Context, first: int = 2) -> float | None:
    """The percentage of ResNet-20's time in its first three residual functions, layers 2 to 7; None without a log.

    Args:
        first: the first layer that is counted; 1 includes the first convolution.
    """
    log = context.log()
    if log is None:
        return None
    total = {row["layer"]: row["forward_ms"] + row["backward_ms"] for row in log.rows}
    return 100 * sum(ms for layer, ms in total.items() if first <= layer <= 7) / sum(total.values())
