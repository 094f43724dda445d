"""Runs of kind `plan`: a profile, a cluster, the partitioner's plans, and what the timed executor makes of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

from pipelag.errors import PipelagError, unknown
from pipelag.partitioner.cluster import SYNC, Cluster, ring_seconds
from pipelag.partitioner.plan import (
    Plan,
    PlanStage,
    bytes_per_minibatch,
    describe,
    links,
    memory_of,
    predict,
    rounds,
    stage_costs,
    timed_period,
)
from pipelag.partitioner.search import partition
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.spec import ModelSpec, RunSpec
from pipelag.schedules import Schedule
from pipelag.schedules.library import gpipe, one_f_one_b_rr, sequential
from pipelag.timing.layers import Profile
from pipelag.timing.timed import time_schedule

OPTIONS = (
    "profile",
    "device",
    "cluster",
    "search",
    "compare",
    "given",
    "depths",
    "data_parallel_over",
    "overlap",
    "sweep",
    "gpipe",
)
Row = dict[str, Any]


def plan(spec: RunSpec, out: Path) -> dict[str, Any]:
    """Log the profile (rows of `what` layer) and the plans (rows of `what` plan); the summary says what was planned.

    Options:
        profile: {roofline: device, inputs: [...], precision: fp16} or {published: name, batch: of the profile}.
        device: another data sheet than the profile's (of a published profile, a V100's, times go by the peak rates).
        cluster: as `Cluster.of` takes it.
        search: false: no plan for the whole cluster, neither searched for nor data parallel.
        compare: also the plans that PipeDream is compared with.
        given: {name: {replicas: workers of each stage, cuts: last layers of all stages but the last}}: plans to time. A
            cut may be the name of the layer behind it; without cuts, those with the shortest period by a ring's cost.
        depths: minibatches in flight of the straight plan (Figure 18).
        data_parallel_over: numbers of workers for data parallelism alone (Figures 1 and 12).
        overlap: false: these sum gradients after the whole backward, not while it runs (Table 3).
        sweep: plans of all kinds, for predicted against timed throughput (Figure 15).
        gpipe: {memory: bytes of a worker}: the straight plan under GPipe (section 5.4).
    """
    for option in spec.options:
        if option not in OPTIONS:
            raise unknown("option of a plan", option, OPTIONS)
    cluster = Cluster.of(spec.options.get("cluster", {}))
    profile, notes = profile_of(spec)
    folder = RunFolder(out, spec)
    folder.rewind(0)
    for layer in profile.layers:
        folder.log({"what": "layer", **vars(layer)})
    started = time.perf_counter()
    rows = list(plans(profile, cluster, spec.options))
    for row in rows:
        if "stages" in row:
            row["bytes_per_sample"] = row.pop("bytes") / spec.batch
        if row.get("timed"):
            row["samples_per_second"] = spec.batch / row["timed"]
        folder.log({"what": "plan", **row})
    summary = {
        "status": "finished",
        "layers": len(profile.layers),
        "batch": spec.batch,
        "forward_ms": sum(layer.forward_ms for layer in profile.layers),
        "backward_ms": sum(layer.backward_ms for layer in profile.layers),
        "weight_bytes": sum(layer.weight_bytes for layer in profile.layers),
        "workers": cluster.workers,
        "notes": notes,
        "seconds": round(time.perf_counter() - started, 3),
    }
    folder.finish(summary, environment("cpu", 1))
    return summary


def profile_of(spec: RunSpec) -> tuple[Profile, list[str]]:
    """The profile that the options name, for minibatches of `spec.batch`."""
    assert spec.model is not None
    source = dict(spec.options.get("profile", {}))
    if "published" in source:
        from pipelag.data.fetch import fetch
        from pipelag.partitioner.published import chain, read_graph

        wanted = f"{source['published']}/graph.txt"
        files = {path.as_posix(): path for path in fetch("pipedream_profiles").paths}
        found = [path for name, path in files.items() if name.endswith(f"/{wanted}")]
        if not found:
            raise unknown("published profile", source["published"], [path.parent.name for path in files.values()])
        profile, notes = chain(read_graph(found[0]))
        profile = profile.scaled(spec.batch / source["batch"])
        return profile.faster(speed_of(spec.options.get("device", "v100")) / speed_of("v100")), notes
    if "roofline" not in source:
        raise PipelagError("a plan needs options.profile: {roofline: device, inputs: [...]} or {published: name}")
    device = str(spec.options.get("device", source["roofline"]))
    return by_data_sheet(spec.model.model_dump_json(), spec.batch, json.dumps(source), device), []


@cache
def by_data_sheet(model_json: str, batch: int, source_json: str, device: str) -> Profile:
    """The roofline of a model, by the texts of its spec and of `options.profile`; made once: LSTMs take seconds."""
    import torch

    from pipelag.models import build
    from pipelag.timing.roofline import roofline

    wanted, source = ModelSpec.model_validate_json(model_json), json.loads(source_json)
    half = source.get("precision") == "fp16"
    with torch.device("meta"):
        model = build(wanted.name, **wanted.options)
        values = tuple(
            torch.empty(
                batch,
                *shape["shape"],
                dtype=torch.long if shape.get("of") == "words" else torch.half if half else torch.float,
            )
            for shape in source["inputs"]
        )
        return roofline(model.half() if half else model, values if len(values) > 1 else values[0], device)


def speed_of(device: str) -> float:
    """A data sheet's peak rate."""
    from pipelag.timing.roofline import data_sheet

    return data_sheet(device).flops


def whole(profile: Profile, workers: int) -> Plan:
    """Data parallelism: one stage on all workers."""
    return Plan((PlanStage(1, len(profile.layers), workers),))


def plans(profile: Profile, cluster: Cluster, options: dict[str, Any]) -> Iterator[Row]:
    """A row per plan."""
    count = cluster.workers
    measure = partial(row_of, profile, cluster)
    if count > 1 and options.get("search", True):
        yield measure("data parallel", whole(profile, count))
        for name, communication in (("PipeDream", "paper"), ("PipeDream, ring", "ring")):
            begun = time.perf_counter()
            chosen = partition(profile, cluster, communication)
            yield measure(name, chosen) | {"search_seconds": time.perf_counter() - begun}
    if options.get("compare"):
        yield from compared(profile, cluster)
    for name, one in options.get("given", {}).items():
        yield measure(name, plan_given(profile, cluster, name, one))
    straight = count <= len(profile.layers) and (options.get("depths") or options.get("gpipe"))
    if straight:
        line = partition(profile, cluster, "ring", straight=True)
        for depth in options.get("depths", ()):
            at = partial(one_f_one_b_rr, len(line.stages), replicas=[1] * count, depth=depth)
            held = {"depth": depth, "versions": line.versions(depth)}
            yield measure(f"depth {depth}", line, lambda n, at=at: at(n), memory=memory_of(profile, line, depth)) | held  # type: ignore[misc]
        if options.get("gpipe"):
            yield from under_gpipe(profile, cluster, line, float(options["gpipe"]["memory"]))
    for n in options.get("data_parallel_over", ()):
        part = cluster.first(n)
        (cost,) = stage_costs(profile, part, whole(profile, n))
        compute = sum(layer.total_ms for layer in profile.layers) / 1e3
        step = cost.forward + cost.backward
        if not options.get("overlap", True) and n > 1:
            step = compute + ring_seconds(cost.weight_bytes, n, part.bandwidth(0, n - 1))
        timed = None if options.get("overlap", True) else step / n
        alone = row_of(profile, part, f"data parallel over {n}", whole(profile, n), timed=timed)
        yield alone | {"workers": n, "overhead": 1 - compute / step}
    if options.get("sweep"):
        for number, one in enumerate(swept(profile, count), start=1):
            yield measure(f"partition {number}", one)


def plan_given(profile: Profile, cluster: Cluster, name: str, content: Any) -> Plan:
    """The plan that `options.given` writes down; refused with its name where it is none for this profile."""
    layers = len(profile.layers)
    try:
        replicas = [int(count) for count in content["replicas"]]
        if "cuts" in content:
            return plan_of([last_before(profile, cut) for cut in content["cuts"]], replicas, layers)
        if not 1 < len(replicas) < 4:
            raise ValueError(f"cuts are looked for with 2 or 3 stages, not {len(replicas)}")
        tried = [plan_of(cuts, replicas, layers) for cuts in combinations(range(1, layers), len(replicas) - 1)]
        return min(tried, key=lambda one: predict(profile, cluster, one, "ring"))
    except (KeyError, TypeError, ValueError, PipelagError) as error:
        raise PipelagError(
            f"options.given: '{name}' takes replicas, the workers of each stage, and cuts, the last layers of all "
            f"stages but the last of a profile of {layers} layers ({error})"
        ) from error


def last_before(profile: Profile, cut: Any) -> int:
    """A cut as the number of a stage's last layer; a word stands for the first layer whose name begins like it."""
    if not isinstance(cut, str):
        return int(cut)
    numbers = [layer.layer for layer in profile.layers if layer.name.lower().startswith(cut.lower())]
    if not numbers:
        raise ValueError(f"no layer is named like '{cut}'")
    return numbers[0] - 1


def plan_of(cuts: Sequence[int], replicas: Sequence[int], layers: int) -> Plan:
    """Stages that end at the cuts, with so many workers each."""
    bounds = zip([0, *cuts], [*cuts, layers], replicas, strict=True)
    return Plan(tuple(PlanStage(before + 1, last, count) for before, last, count in bounds))


def compared(profile: Profile, cluster: Cluster) -> Iterator[Row]:
    """Model parallelism, a straight pipeline, the best plan of several stages, and that without pipelining."""
    count = cluster.workers
    measure = partial(row_of, profile, cluster)
    several = partition(profile, cluster, "ring", data_parallel=False)
    yield measure("several stages", several)
    replicas = [stage.replicas for stage in several.stages]
    yield measure("several stages, not pipelined", several, lambda n: rounds(replicas, n))
    if count <= len(profile.layers):
        line = partition(profile, cluster, "ring", straight=True)
        yield measure("straight", line)
        yield measure("model parallel", line, lambda n: sequential(len(line.stages), n))


def under_gpipe(profile: Profile, cluster: Cluster, line: Plan, memory: float) -> Iterator[Row]:
    """The straight plan with flushes: NOAM microbatches between them, or as many as memory holds.

    A microbatch is a minibatch of the profile. The backward runs the forward again (GPipe recomputes), so that a stage
    keeps the inputs of all microbatches and the activations of one.
    """
    stages = len(line.stages)
    costs = [
        replace(cost, backward=cost.backward + cost.forward, kept_bytes=kept)
        for cost, kept in zip(stage_costs(profile, cluster, line), entering(profile, line), strict=True)
    ]
    alone = memory_of(profile, line, 1)  # weights, gradients, and the activations of one
    room = [(memory - own) // cost.kept_bytes for own, cost in zip(alone, costs, strict=True) if cost.kept_bytes]
    most = max(1, int(min([*room, 8 * stages])))  # no further: the bubble is down to a ninth
    for name, micro in (("GPipe, NOAM", line.noam), ("GPipe, most that fit", most)):
        short, long = (time_schedule(gpipe(stages, n, micro), costs, links(cluster, line)).makespan for n in (2, 4))
        held = [own + micro * cost.kept_bytes for own, cost in zip(alone, costs, strict=True)]
        yield row_of(profile, cluster, name, line, memory=held, timed=(long - short) / (2 * micro)) | {
            "microbatches": micro
        }


def entering(profile: Profile, line: Plan) -> list[float]:
    """Bytes of each stage's input; none into the first."""
    return [0.0, *(float(profile.layers[stage.last - 1].output_bytes) for stage in line.stages[:-1])]


def row_of(
    profile: Profile,
    cluster: Cluster,
    name: str,
    chosen: Plan,
    schedule: Callable[[int], Schedule] | None = None,
    memory: list[float] | None = None,
    timed: float | None = None,
) -> Row:
    """What is logged of a plan: stages, predictions by both forms of the cost, timed period, bytes, memory.

    Args:
        schedule: of so many minibatches, where it is not 1F1B-RR; memory, timed: where the plan's own do not hold.
    """
    return {
        "plan": name,
        "config": chosen.config,
        "stages": describe(profile, chosen),
        "predicted": {form: predict(profile, cluster, chosen, form) for form in SYNC},
        "timed": timed_period(profile, cluster, chosen, schedule) if timed is None else timed,
        "bytes": bytes_per_minibatch(profile, chosen),
        "memory": memory or memory_of(profile, chosen),
    }


def swept(profile: Profile, workers: int) -> Iterator[Plan]:
    """Partitions of all kinds: data parallelism, two stages cut at every layer, three stages with a thin tail."""
    layers = len(profile.layers)
    yield whole(profile, workers)
    for cut in range(1, layers):
        for tail in sorted({1, 2, workers // 4, workers // 2}):
            yield Plan((PlanStage(1, cut, workers - tail), PlanStage(cut + 1, layers, tail)))
    for cut in range(2, layers - 1, 2):
        yield Plan((PlanStage(1, cut, workers - 2), PlanStage(cut + 1, layers - 1, 1), PlanStage(layers, layers, 1)))
