"""The costs of a pipeline: utilisation and memory, from logged schedules and counted weights and optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import isinf
from statistics import fmean
from typing import Any

from pipelag.experiments.specs import evenly
from pipelag.results.arrivals import Arrival
from pipelag.results.context import Context
from pipelag.results.logs import Item
from pipelag.results.pipemare.quality import DATASET_OF, TASK_OF, best, evaluations, log_in, runs_of, value_of
from pipelag.results.verdict import NotLogged, log_of

Rows = Sequence[Mapping[str, Any]]
OPTIMIZER = {task: "SGD with momentum" if task in ("images", "ImageNet") else "Adam" for task in TASK_OF.values()}
SHARED = ("target embedding", "output")  # layers of WMT17's Transformer that share the first embedding's weights
BYTES = 4  # float32


def or_none(value: Callable[[], float]) -> float | None:
    """A number, or None if it has no log."""
    try:
        return value()
    except NotLogged:
        return None


def pipelines(context: Context, **labels: str) -> list[dict[str, Any]]:
    """The rows of the logged pipelines with these labels, one per method, P and N."""
    return log_of(context, **({"task": "pipeline"} | labels)).rows


def pipeline(context: Context, method: str, **labels: str) -> dict[str, Any]:
    """The row of a method's pipeline with these labels."""
    return next(row for row in pipelines(context, **labels) if row["method"] == method)


def gpipe(context: Context, dataset: str) -> dict[str, Any]:
    """GPipe's pipeline on a data set, with its own microbatches if the paper gives it smaller ones."""
    items = context.select(dataset=dataset, task="pipeline", arm="GPipe")
    return pipeline(context, "GPipe", dataset=dataset, arm="GPipe" if items else "pipeline")


def held(context: Context, task: str) -> tuple[float, float]:
    """Memory in multiples of the weights', counted in a training step.

    Returns that of weights, gradients and optimizer state, and what T2 adds.
    """
    plain, corrected = log_of(context, what="copies", arm=OPTIMIZER[task]).rows
    base = plain["weights"] + plain["gradients"] + plain["optimizer"]
    return base / plain["elements"], (corrected["average"] - plain["average"]) / plain["elements"]


def layers_of(context: Context, dataset: str) -> list[int]:
    """The parameters of each operator with weights in a data set's model, in topological order."""
    rows = log_of(context, task="weights", **({"dataset": dataset} if context.values("dataset") else {})).rows
    shared = SHARED if dataset == "WMT17" else ()
    return [row["parameters"] for row in rows if row["name"] not in shared]


def stage_weights(layers: Sequence[int], stages: int) -> list[int]:
    """The parameters of each stage, with the layers split evenly in their order (section 4.1)."""
    bounds = [0, *evenly(stages, len(layers)), len(layers)]
    return [sum(layers[a:b]) for a, b in pairwise(bounds)]


def memory(context: Context, method: str, task: str, row: Mapping[str, Any], layers: Sequence[int]) -> float:
    """Weight and optimizer memory in numbers of values: weights, gradients, state, T2's average and stashed versions.

    row: the method's pipeline, with the number of copies that each stage holds. layers: parameters per layer.
    """
    base, average = held(context, task)
    weights = stage_weights(layers, row["stages"])
    stashed = sum(w * (copies - 1) for w, copies in zip(weights, row["copies"], strict=True))
    return base * sum(weights) + stashed + (average * sum(weights) if method.startswith("PipeMare") else 0.0)


def memory_of(context: Context, dataset: str, method: str) -> float:
    """A method's weight and optimizer memory on a data set, over GPipe's."""
    task, layers = TASK_OF[dataset], layers_of(context, dataset)
    kind = "PipeMare" if method == "PipeMareW" else method
    row = pipeline(context, kind, dataset=dataset, arm="pipeline")
    return memory(context, method, task, row, layers) / (held(context, task)[0] * sum(layers))


def megabytes(context: Context, dataset: str) -> float:
    """GPipe's weight and optimizer memory on a data set in MiB."""
    return BYTES * held(context, TASK_OF[dataset])[0] * sum(layers_of(context, dataset)) / 2**20


def goal(context: Context, task: str, sync: str = "Sync", **labels: str) -> float:
    """The target score: the same share of our synchronous best as the paper's target is of its synchronous best."""
    dataset = next(name for name, value in TASK_OF.items() if value == task)
    paper_best, paper_target = context.result.options["targets"][dataset]
    return float(paper_target / paper_best * fmean(best(context, task=task, arm=sync, **labels).values()))


def reach(context: Context, task: str, target: float) -> str:
    """A target score in words, with its share of the synchronous best."""
    paper_best, paper_target = context.result.options["targets"][DATASET_OF[task]]
    share = 100 * paper_target / paper_best
    return f"{target:.1f}, the {share:.1f} % of Sync's best that the paper's target is of its own"


def unreached(context: Context, task: str, arm: str = "T1+T2+W", sync: str = "Sync", **labels: str) -> str:
    """Why a task has no amortised utilisation although its runs are logged; empty if it has one, or no logs."""
    try:
        target = goal(context, task, sync, **labels)
        runs = runs_of(context, task=task, arm=arm, **labels)
    except NotLogged:
        return ""
    short = [item for item in runs.values() if arrival(item, target).never]
    if not short:
        return ""
    most = max((value_of(row) for item in short for row in evaluations(log_in(item))), default=0.0)
    name = f"{DATASET_OF[task]}: {arm} has no amortised utilisation"
    some = f"with {len(short)} of its {len(runs)} seeds " if len(short) < len(runs) else ""
    missed = f"for {some}it never reaches {reach(context, task, target)}"
    return f"{name}, {missed}; the best of {'these' if some else 'its seeds'} comes to {most:.1f}"


def arrival(item: Item, target: float) -> Arrival:
    """When a run reaches a score, in epochs."""
    return Arrival.of(evaluations(log_in(item)), lambda row: value_of(row) >= target)


def amortised(context: Context, alone: float, target: float, **labels: str) -> dict[int, float]:
    """The utilisation by seed of training with synchronous warm-up epochs, until a target score (section 4).

    (E_async + E_sync) / (E_async + E_sync / Util_sync), with Util_sync as `alone`. Raises `NotLogged` if a run never
    reaches the target.
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
    """Pairs (time, score) of a run's evaluations.

    Time is in epochs of a fully used pipeline, so a synchronous epoch takes 1/Util_sync. alone: Util_sync.
    """
    warm = epochs_of(item, "gpipe")
    return [
        (min(row["epoch"], warm) / alone + max(0.0, row["epoch"] - warm), value_of(row))
        for row in evaluations(log_in(item))
    ]


def epochs_of(item: Item, method: str) -> float:
    """The number of epochs that a run trains with a method before it changes to another."""
    rows = evaluations(log_in(item))
    if not rows:
        return 0.0
    steps = 0
    for phase in item.arm.spec.phases:
        if phase.method != method:
            break
        steps += phase.steps
    return float(steps * rows[-1]["epoch"] / rows[-1]["step"])
