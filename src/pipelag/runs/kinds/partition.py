"""Runs of kind `partition`: plan a profiled model on a cluster and time the plans, or methods side by side on one."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from pipelag.errors import PipelagError, unknown
from pipelag.partitioner.arms import Ground, checked_arms
from pipelag.partitioner.cluster import Cluster
from pipelag.partitioner.options import PlanOptions, ProfileOptions
from pipelag.partitioner.plan_rows import plan_rows
from pipelag.partitioner.side_by_side import arm_rows
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.optimizers import factory
from pipelag.runs.spec import RunSpec
from pipelag.timing.by_batch import Profiles
from pipelag.timing.layers import Profile
from pipelag.timing.sheets import data_sheet
from pipelag.typed import checked


def partition(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Log the profile (rows of `what` layer), the plans (plan) and the arms (arm); the summary says what was planned.

    Options (`pipelag.partitioner.options`, where all are checked before anything is computed; figures, tables and
    sections are PipeDream's):
        profile: {roofline: device, inputs: [...], precision: fp16, loss: true}, or {published: name, batch: the
            profile's minibatch}.
        device: another data sheet than the profile's. A published profile is of a V100; its times are scaled by the
            ratio of the peak rates.
        cluster: as `Cluster.of` takes it.
        search: false: no plan for the whole cluster, neither the partitioner's nor data parallelism.
        compare: also time the plans that PipeDream is compared with.
        given: plans to time, {name: {replicas: workers of each stage, cuts: last layers of all stages but the last}}.
            A cut may also be the name of the first layer after it. Without cuts, the plan takes those with the
            shortest period by the cost of ring all-reduces.
        depths: numbers of minibatches in flight, for the straight plan (Figure 18).
        data_parallel_over: numbers of workers, for data parallelism alone (Figures 1 and 12).
        overlap: false: data parallelism sums gradients after the whole backward, not while it runs (Table 3).
        sweep: time plans of all kinds, to compare predicted and timed throughput (Figure 15).
        gpipe: {memory: bytes of a worker}: also the straight plan under GPipe (section 5.4).
        arms: methods by name, each over one straight plan, and data parallelism; `ArmOptions` says what each takes.
            Arms need the run's optimizer.
        workers: numbers of GPUs for the arms (default: all of the cluster's).
        cuts: of the arms' straight plan (default: the partitioner's).
        memory: bytes of a GPU for the arms (default: the smaller of the cluster's and the data sheet's).
        moving: how copying, predicting and updating weights is charged: by operators (separate), as one kernel per
            step (fused), or not at all (free).
    """
    options = spec.asked(PlanOptions)
    source = checked(ProfileOptions, options.profile, "option of a plan's profile")
    cluster = Cluster.of(options.cluster)
    workers = options.workers or [cluster.workers]
    arms = checked_arms(options.arms, cluster, workers, spec.batch, options.cuts)
    if arms and spec.optimizer is None:
        raise PipelagError("the arms of a plan need an optimizer, whose state they hold; give the run an optimizer")
    sheet = data_sheet(options.device or source.roofline or "v100")
    profiles, notes = profiles_of(spec, source, options.device)
    profile = profiles.at(spec.batch)
    folder = RunFolder(out, spec)
    folder.rewind(0)
    for layer in profile.layers:
        folder.log({"what": "layer", **vars(layer)})
    started = time.perf_counter()
    rows = list(plan_rows(profile, cluster, options))
    for row in rows:
        row["bytes_per_sample"] = row.pop("bytes") / spec.batch
        row["samples_per_second"] = spec.batch / row["timed"]
        folder.log({"what": "plan", **row})
    if arms:
        assert spec.optimizer is not None
        memory = options.memory or min(cluster.memory, sheet.memory)
        make = factory(spec.optimizer)
        ground = Ground(profiles, cluster, sheet, memory, make, spec.batch, options.moving)
        for row in arm_rows(arms, ground, workers, options.cuts):
            folder.log({"what": "arm", **row})
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


def profiles_of(spec: RunSpec, source: ProfileOptions, device: str | None) -> tuple[Profiles, list[str]]:
    """The profiles that the options name, for minibatches of any size, and notes on what was merged to make them."""
    if source.published is not None:
        return published_profiles(source, device or "v100")
    if source.roofline is None:
        raise PipelagError("a plan needs options.profile: {roofline: device, inputs: [...]} or {published: name}")
    return roofline_profiles(spec, source, device or source.roofline), []


def published_profiles(source: ProfileOptions, device: str) -> tuple[Profiles, list[str]]:
    """A profile by PipeDream's authors, scaled: bytes by the minibatch, times by the minibatch and the peak rate."""
    from pipelag.data.files.fetch import fetch
    from pipelag.partitioner.published import chain, read_graph

    files = {path.as_posix(): path for path in fetch("pipedream_profiles").paths}
    fitting = [path for name, path in files.items() if name.endswith(f"/{source.published}/graph.txt")]
    if not fitting:
        raise unknown("published profile", str(source.published), [path.parent.name for path in files.values()])
    profile, notes = chain(read_graph(fitting[0]))
    rate = speed_of(device) / speed_of("v100")
    sizes = [math.prod(entry.shape) * (8 if entry.of == "words" else 4) for entry in source.inputs]
    return Profiles(lambda batch: profile.scaled(batch / source.batch).faster(rate), sum(sizes), scaled=True), notes


def roofline_profiles(spec: RunSpec, source: ProfileOptions, device: str) -> Profiles:
    """The roofline profiles of the spec's model for the device of a data sheet."""
    import torch

    from pipelag.models import build
    from pipelag.models.taking import taking
    from pipelag.timing.loss import with_loss
    from pipelag.timing.roofline import roofline

    assert spec.model is not None
    name, shapes = spec.model.name, [entry.shape for entry in source.inputs]
    half = source.precision == "fp16"
    kinds = [torch.long if entry.of == "words" else torch.half if half else torch.float for entry in source.inputs]
    with torch.device("meta"):
        model = build(spec.model.name, **spec.model.options)
        model = model.half() if half else model
    model = with_loss(model) if source.loss else model

    def make(samples: int) -> Profile:
        with torch.device("meta"):
            values = tuple(
                torch.empty(samples, *entry.shape, dtype=kind) for entry, kind in zip(source.inputs, kinds, strict=True)
            )
            with taking(name, f"the profile's inputs, {shapes}"):
                return roofline(model, values if len(values) > 1 else values[0], device)

    sizes = [math.prod(entry.shape) * kind.itemsize for entry, kind in zip(source.inputs, kinds, strict=True)]
    return Profiles(make, sum(sizes))


def speed_of(device: str) -> float:
    """The peak rate in a device's data sheet, in FLOP/s."""
    return data_sheet(device).flops
