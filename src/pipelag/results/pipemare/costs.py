"""What a pipeline costs: utilisation and memory, from logged schedules and from counted weights and optimizer state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isinf
from statistics import fmean
from typing import Any

from pipelag.experiments.specs import evenly
from pipelag.results.arrivals import Arrival, Arrivals
from pipelag.results.context import Context
from pipelag.results.logs import Item, RunLog
from pipelag.results.pipemare.quality import DATASET_OF, TASK_OF, best, runs_of, scored, value_of
from pipelag.results.verdict import NotLogged, log_of

OPTIMIZER = {task: "SGD with momentum" if task in ("images", "ImageNet") else "Adam" for task in TASK_OF.values()}
SHARED = ("target embedding", "output")  # in WMT17's Transformer these reuse the first embedding's weights
BYTES = 4  # float32


def pipelines(context: Context, **labels: str) -> list[dict[str, Any]]:
    """The logged pipelines with these labels: a row per method, P and N."""
    return log_of(context, **({"task": "pipeline"} | labels)).rows


def pipeline(context: Context, method: str, **labels: str) -> dict[str, Any]:
    """The logged pipeline of a method."""
    return next(row for row in pipelines(context, **labels) if row["method"] == method)


def gpipe(context: Context, dataset: str) -> dict[str, Any]:
    """GPipe's pipeline on a data set; where the paper gives GPipe smaller microbatches of its own, with these."""
    items = context.select(dataset=dataset, task="pipeline", arm="GPipe")
    return pipeline(context, "GPipe", dataset=dataset, arm="GPipe" if items else "pipeline")


def step_memory(log: RunLog) -> tuple[float, float]:
    """What a training step holds without T2 (weights, gradients, optimizer state), and what T2 adds, as counted."""
    plain, corrected = log.rows
    return plain["weights"] + plain["gradients"] + plain["optimizer"], corrected["average"] - plain["average"]


def held(context: Context, task: str) -> tuple[float, float]:
    """What a training step holds and what T2 adds to it, in multiples of the weights' size (`step_memory`)."""
    log = log_of(context, what="copies", arm=OPTIMIZER[task])
    base, average = step_memory(log)
    return base / log.rows[0]["elements"], average / log.rows[0]["elements"]


def layers_of(context: Context, dataset: str) -> list[int]:
    """Parameters of each weighted operator of a data set's model, in topological order; shared weights count once."""
    rows = log_of(context, task="weights", **({"dataset": dataset} if context.values("dataset") else {})).rows
    shared = SHARED if dataset == "WMT17" else ()
    return [row["parameters"] for row in rows if row["name"] not in shared]


def stage_weights(layers: Sequence[int], stages: int) -> list[int]:
    """Parameters of each stage where the layers are dealt out evenly in their order (section 4.1)."""
    bounds = [0, *evenly(stages, len(layers)), len(layers)]
    return [sum(layers[a:b]) for a, b in pairwise(bounds)]


def memory(context: Context, method: str, task: str, row: Mapping[str, Any], layers: Sequence[int]) -> float:
    """Weight and optimizer memory of a method, in sizes of one parameter.

    It counts what a training step holds, T2's average and PipeDream's stashed versions.

    Args:
        row: the method's pipeline; its `copies` are the weight versions of each stage.
    """
    base, average = held(context, task)
    weights = stage_weights(layers, row["stages"])
    stashed = sum(w * (copies - 1) for w, copies in zip(weights, row["copies"], strict=True))
    return base * sum(weights) + stashed + (average * sum(weights) if method.startswith("PipeMare") else 0.0)


def memory_of(context: Context, dataset: str, method: str) -> float:
    """Weight and optimizer memory of a method on a data set, over GPipe's."""
    task, layers = TASK_OF[dataset], layers_of(context, dataset)
    kind = "PipeMare" if method == "PipeMareW" else method
    row = pipeline(context, kind, dataset=dataset, arm="pipeline")
    return memory(context, method, task, row, layers) / (held(context, task)[0] * sum(layers))


def megabytes(context: Context, dataset: str) -> float:
    """GPipe's weight and optimizer memory on a data set, in MiB (2^20 bytes)."""
    return BYTES * held(context, TASK_OF[dataset])[0] * sum(layers_of(context, dataset)) / 2**20


def goal(context: Context, task: str, sync: str = "Sync", **labels: str) -> float:
    """The target score: the same share of the best synchronous score here as the paper's target is of its own best."""
    dataset = next(name for name, value in TASK_OF.items() if value == task)
    paper_best, paper_target = context.result.options["targets"][dataset]
    return float(paper_target / paper_best * fmean(best(context, task=task, arm=sync, **labels).values()))


def reach(context: Context, task: str, target: float, sync: str = "Sync") -> str:
    """A target score in words, with the share of synchronous training's best that it is, here as in the paper.

    sync: what the result calls synchronous training.
    """
    paper_best, paper_target = context.result.options["targets"][DATASET_OF[task]]
    share = 100 * paper_target / paper_best
    return f"{target:.1f}, the {share:.1f} % of {sync}'s best that the paper's target is of its own"


def missed(
    context: Context, task: str, arm: str = "T1+T2+W", sync: str = "Sync", **labels: str
) -> tuple[str, str] | None:
    """Why a task has no amortised utilisation although its runs are logged, and the best score that falls short of it.

    None where it has one or has no logs. The second goes on with the sentence of the first.
    """
    try:
        target = goal(context, task, sync, **labels)
        runs = runs_of(context, task=task, arm=arm, **labels)
    except NotLogged:
        return None
    short = [item for item in runs.values() if arrival(item, target).never]
    if not short:
        return None
    most = max((value_of(row) for item in short for row in scored(item)), default=0.0)
    some = f"with {len(short)} of its {len(runs)} seeds " if len(short) < len(runs) else ""
    why = f"{arm} has no amortised utilisation, for {some}it never reaches {reach(context, task, target, sync)}"
    return f"{why}; the best of {'these' if some else 'its seeds'} comes to", f"{most:.1f}"


def unreached(context: Context, task: str) -> str:
    """The sentence of `missed` on a task among several; empty where it has an amortised utilisation or no logs."""
    short = missed(context, task)
    return f"{DATASET_OF[task]}: {' '.join(short)}" if short else ""


def arrival(item: Item, target: float) -> Arrival:
    """When a run first has a score of at least the target, in epochs."""
    return Arrival.of(scored(item), lambda row: value_of(row) >= target)


def arrivals(context: Context, target: float, **labels: str) -> Arrivals:
    """When the runs with these labels first have a score of at least the target, in epochs, by seed."""
    return {seed: arrival(item, target) for seed, item in runs_of(context, **labels).items()}


def amortised(context: Context, alone: float, target: float, **labels: str) -> dict[int, float]:
    """Utilisation by seed of runs that begin with synchronous warm-up epochs, until a target score (section 4).

    It is (E_async + E_sync) / (E_async + E_sync / Util_sync).

    Args:
        alone: Util_sync.

    Raises:
        NotLogged: a run never reaches the target.
    """
    utilisations = {}
    for seed, item in runs_of(context, **labels).items():
        total = arrival(item, target).by
        if isinf(total):
            raise NotLogged(f"the warmed-up run never reaches {target:.1f}")
        warm = min(total, epochs_of(item, "gpipe"))
        utilisations[seed] = total / (total - warm + warm / alone)
    return utilisations


def normalised(item: Item, alone: float) -> list[tuple[float, float]]:
    """(time, score) of a run's evaluations, in epochs of a fully used pipeline.

    A synchronous epoch takes 1/Util_sync of these; `alone` is Util_sync.
    """
    warm = epochs_of(item, "gpipe")
    return [(min(row["epoch"], warm) / alone + max(0.0, row["epoch"] - warm), value_of(row)) for row in scored(item)]


def epochs_of(item: Item, method: str) -> float:
    """How many epochs a run trains with a method before it changes to another; 0 where it begins with another."""
    rows = scored(item)
    if not rows:
        return 0.0
    steps = 0
    for phase in item.arm.spec.phases:
        if phase.method != method:
            break
        steps += phase.steps
    return float(steps * rows[-1]["epoch"] / rows[-1]["step"])
