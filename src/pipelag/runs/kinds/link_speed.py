"""Runs of kind `speed` with `options.links`: a pipeline against data parallelism as the link between workers slows.

Scaling is weak, as in PipeDream (section 5.1): each data-parallel replica has a minibatch of its own, of the same size
as the pipeline's. Each measured rate is logged with the timed executor's, from a profile of this machine. Where the
machine allows no network namespaces, only the timed executor's rates are logged, and the summary says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from pipelag.distributed.gather import gathered
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.launch.namespaces import Links, NotMade, obstacle, reshape
from pipelag.distributed.training import RealTraining
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.partitioner.cluster import wait_free
from pipelag.runs import optimizers
from pipelag.runs.folder import RunFolder
from pipelag.runs.kinds.options import SpeedOptions
from pipelag.runs.kinds.train_simulated import in_bf16, phases_of
from pipelag.runs.spec import RunSpec
from pipelag.runs.speedup import finish
from pipelag.runs.tasks import Task, open_task
from pipelag.stage.phase import Phase
from pipelag.timing.costs import Topology, ring_seconds
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.profile import profile
from pipelag.timing.timed import time_schedule

BUCKETS = (1 << 20, 25 << 20)  # bytes of DistributedDataParallel's gradient buckets: the first, and all further ones
Row = dict[str, Any]


def measure(spec: RunSpec, out: Path, threads: int) -> Row:
    """Carry out a run over links of several rates.

    `options` (and defaults): links {gbit: [...], latency_ms: 0}, blocks (1), block_steps (the phase's steps).
    """
    options = spec.asked(SpeedOptions)
    assert options.links is not None
    if in_bf16(spec):
        raise PipelagError("a speed run over links is compared with data parallelism in fp32; leave precision out")
    steps, least = options.block_steps or spec.phases[0].steps, 4 * spec.workers
    if steps < least:
        raise PipelagError(
            f"blocks of {steps} steps end before the pipeline is full; use block_steps of {least} or more"
        )
    links = [Links(gbit, options.links.latency_ms) for gbit in options.links.gbit]
    folder = RunFolder(out, spec)
    folder.rewind(0)
    per_worker = max(1, threads // spec.workers)
    reason = obstacle(links[0])
    if reason is None:
        try:
            rows, described = launch(_task, spec.workers, "cpu", per_worker, links=links[0], spec=spec, every=links)
        except NotMade as error:
            reason = str(error)
    if reason is not None:
        rows, described = launch(_profile_only, 1, "cpu", per_worker, spec=spec, every=links)
    more = {"measured": reason is None, "why_not": reason}
    return finish(folder, spec, rows, per_worker, "cpu", described, **more)


def _task(job: Job, spec: RunSpec, every: Sequence[Links]) -> tuple[list[Row], Row]:
    assert spec.optimizer is not None
    task = open_task(spec, job.device)
    if task.batches.uneven:
        raise PipelagError("a speed run over links needs minibatches of one shape; use images or running text")
    model = task.model(spec, job.device)
    model.train()
    (pipelined,) = phases_of(spec)
    options = spec.asked(SpeedOptions)
    steps, blocks = options.block_steps or pipelined.steps, options.blocks or 1
    phases = {  # both train on the same minibatches
        "pipeline": replace(pipelined, steps=steps),
        "data parallelism": Phase(get("bsp"), steps // job.world),
    }
    training = RealTraining(
        job,
        model,
        list(phases.values()),
        optimizers.factory(spec.optimizer),
        task.loss,
        rate=lambda step: 1.0,
        seed=spec.seed,
    )
    rows: list[Row] = []
    layers: list[list[Row]] = []  # per block, a profile by this worker
    for block in range(blocks):  # a machine's speed drifts: every block has all links, and all workers profile at once
        dist.barrier()
        layers.append([asdict(layer) for layer in timed_layers(model, task, spec).layers])
        for links in every:
            reshape(links)
            for arm, phase in phases.items():
                dist.barrier()
                weak = phase.method.data_parallel
                records = training.run_phase(phase, *(joined(task, job.world) if weak else plain(task)))
                updated = records[0].updated
                fill = 1 if weak else 2 * (phase.stages - 1) + 1  # steady state: without fill and drain
                first, last = fill, len(updated) - (0 if weak else fill) - int(weak)
                seconds, samples = updated[last] - updated[first], spec.batch * (job.world if weak else 1)
                row = {"arm": arm, "measured": True, "gbit": links.gbit, "block": block, "steps": last - first}
                rows.append(row | {"seconds": seconds, "samples_per_second": samples * (last - first) / seconds})
    profiles = [
        Profile(tuple(LayerTime(**layer) for layer in block))
        for blocks_of_worker in gathered(layers, job.device)
        for block in blocks_of_worker
    ]
    return predicted(profiles, spec, pipelined, every) + rows, task.summary()


def _profile_only(job: Job, spec: RunSpec, every: Sequence[Links]) -> tuple[list[Row], Row]:
    task = open_task(spec, job.device)
    (pipelined,) = phases_of(spec)
    profile_here = timed_layers(task.model(spec, job.device).train(), task, spec)
    return predicted([profile_here], spec, pipelined, every), task.summary()


def plain(task: Task) -> tuple[Any, Any]:
    """The inputs and the targets of the task's minibatches, each by number."""
    return task.batches.inputs, task.batches.targets


def joined(task: Task, world: int) -> tuple[Any, Any]:
    """As `plain`, with `world` minibatches joined into one, which the replicas share out again."""
    many = lambda part: lambda step: torch.cat([part(step * world + rank) for rank in range(world)])  # noqa: E731
    return many(task.batches.inputs), many(task.batches.targets)


def timed_layers(model: Any, task: Task, spec: RunSpec) -> Profile:
    """The times of the model's layers on this machine, measured now."""
    return profile(model, task.batches.inputs(0), repeats=spec.asked(SpeedOptions).repeats, progress=False)


def predicted(profiles: Sequence[Profile], spec: RunSpec, pipelined: Phase, every: Sequence[Links]) -> list[Row]:
    """Rows with the rates of both arms by the timed executor, from the median of the profiles."""
    layers = []
    for same in zip(*(timed.layers for timed in profiles), strict=True):
        times = median(layer.forward_ms for layer in same), median(layer.backward_ms for layer in same)
        layers.append(replace(same[0], forward_ms=times[0], backward_ms=times[1]))
    typical = Profile(tuple(layers))
    rows = []
    for links in every:
        rates = {
            "pipeline": spec.batch / pipeline_period(typical, pipelined, links),
            "data parallelism": spec.workers * spec.batch / data_parallel_step(typical, spec.workers, links),
        }
        rows += [{"arm": a, "measured": False, "gbit": links.gbit, "samples_per_second": r} for a, r in rates.items()]
    return rows


def pipeline_period(times: Profile, phase: Phase, links: Links) -> float:
    """The pipeline's seconds per minibatch in the steady state."""
    topology = Topology(bandwidth=links.bandwidth, latency=links.latency_ms / 1e3)
    costs, half = times.cut(phase.cuts), 6 * phase.stages
    short, long = (
        time_schedule(phase.method.schedule(phase.stages, count, 1), costs, topology).makespan
        for count in (half, 2 * half)
    )
    return (long - short) / half


def data_parallel_step(times: Profile, workers: int, links: Links) -> float:
    """Seconds of a data-parallel step.

    The forward comes first. During the backward, ring all-reduces sum the gradients, a bucket as soon as it is full.
    """
    layers = times.layers
    sizes = bucketed([layer.weight_bytes for layer in layers])
    return sum(layer.forward_ms for layer in layers) / 1e3 + wait_free(
        [layer.backward_ms / 1e3 for layer in layers],
        sizes,
        lambda size: ring_seconds(size, workers, links.bandwidth, links.latency_ms / 1e3),
    )


def bucketed(sizes: Sequence[int]) -> list[int]:
    """For each layer, the bytes of whole buckets that its backward fills; the backward runs from the last layer."""
    ready, held, limit = [0] * len(sizes), 0, BUCKETS[0]
    for at in reversed(range(len(sizes))):
        held += sizes[at]
        if held >= limit or at == 0:
            ready[at], held, limit = held, 0, BUCKETS[1]
    return ready
