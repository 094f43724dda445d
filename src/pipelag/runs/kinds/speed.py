"""Runs of kind `speed`: one worker against several, interleaved block by block in one launch.

A machine's speed drifts; a ratio of two times taken minutes apart measures the drift too. So one launch alternates
    non-pipelined block (rank 0 alone trains the whole model; the others wait without computing),
    pipelined block (all ranks),
    hybrid block (the pipelined half, the hand-over, the non-pipelined half), unless `options.hybrid` is false,
and logs the time of every block as a line. Times per step are those of the steady state, from the first update after
the pipeline has filled to the last before it drains: in the paper's long runs, fill and drain would not be noticeable.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from pipelag.distributed.feasible import check_precision, check_workers
from pipelag.distributed.job import Job
from pipelag.distributed.launch.torchrun import Lead, everywhere, workers_here
from pipelag.distributed.record import Record, carried_by
from pipelag.distributed.training import RealTraining
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.runs import optimizers
from pipelag.runs.folder import RunFolder
from pipelag.runs.kinds import link_speed
from pipelag.runs.kinds.options import SpeedOptions
from pipelag.runs.kinds.train_simulated import in_bf16, phases_of, precision_of
from pipelag.runs.spec import RunSpec
from pipelag.runs.speedup import finish, speedups
from pipelag.runs.tasks import open_task
from pipelag.stage.phase import Phase


def measure(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Time the blocks of a spec with one pipelined phase; returns the summary.

    `options` (and defaults): blocks (3), block_steps (the phase's steps), hybrid (true). With `options.links`,
    `pipelag.runs.kinds.link_speed` measures instead.
    """
    if len(spec.phases) != 1 or spec.phases[0].stages != spec.workers:
        raise PipelagError(
            f"a speed run of {spec.workers} workers needs one phase with {spec.workers} stages, that is "
            f"{spec.workers - 1} cuts"
        )
    if device.startswith("cuda:") and spec.workers > 1:
        raise PipelagError(
            f"workers that share {device} are no faster than one; use --device cuda, with one GPU per worker"
        )
    (pipelined,) = phases_of(spec)
    check_workers(pipelined, spec.workers)  # here and below: before any process is started
    check_precision(pipelined, in_bf16(spec))
    if spec.asked(SpeedOptions).links is not None:
        return link_speed.measure(spec, out, threads)
    steps, fill = steps_of(spec), fill_of(pipelined)
    if steps <= 2 * fill:
        raise PipelagError(
            f"blocks of {steps} steps are too short for a pipeline that takes {fill} steps to fill; use block_steps "
            f"of {2 * fill + 1} or more"
        )
    per_worker = max(1, threads // workers_here(spec.workers))
    lead = _lead(spec, out, device, per_worker)
    return everywhere(_task, lead, spec.workers, device, per_worker, out / "partial", spec=spec)


def _lead(spec: RunSpec, out: Path, device: str, threads: int) -> Lead:
    """The run's lead (`everywhere`): open the run's folder, then log what the workers measured and publish the run."""
    folder = RunFolder(out, spec)
    folder.rewind(0)
    rows, described, messages = yield {}
    arms = ("pipelined", "hybrid") if spec.asked(SpeedOptions).hybrid else ("pipelined",)
    per_arm = {arm: speedups(rows, arm) for arm in arms}
    medians = {arm: median(values) for arm, values in per_arm.items()}
    more = {"speedup": medians, "speedups": per_arm, "messages": messages} | precision_of(spec)
    return finish(folder, spec, rows, threads, device, described, **more)


def steps_of(spec: RunSpec) -> int:
    """The minibatches of a block."""
    return spec.asked(SpeedOptions).block_steps or spec.phases[0].steps


def fill_of(pipelined: Phase) -> int:
    """The minibatches until the pipeline is full."""
    return 2 * (pipelined.stages - 1) + 1


def _task(job: Job, spec: RunSpec) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    assert spec.optimizer is not None
    task = open_task(spec, job.device)
    model = task.model(spec, job.device)
    model.train()
    (pipelined,) = phases_of(spec)
    options = spec.asked(SpeedOptions)
    steps, fill = steps_of(spec), fill_of(pipelined)
    pipelined = replace(pipelined, steps=steps)
    alone = Phase(get("sequential"), steps)
    training = RealTraining(
        job,
        model,
        [pipelined, alone],
        optimizers.factory(spec.optimizer),
        task.loss,
        rate=lambda step: 1.0,
        seed=spec.seed,
        uneven=task.batches.uneven,
        bf16=in_bf16(spec),
    )

    def timed(phase: Phase) -> tuple[float, int, dict[int, Record]]:
        dist.barrier()
        records = training.run_phase(phase, task.batches.inputs, task.batches.targets)
        updated = records[0].updated
        first, last = (fill, len(updated) - fill) if phase is pipelined else (1, len(updated) - 1)
        return updated[last] - updated[first], last - first, records

    rows: list[dict[str, Any]] = []

    def log(arm: str, block: int, workers: int, seconds: float, measured: int, more: dict[str, Any]) -> None:
        row = {"arm": arm, "block": block, "workers": workers, "steps": measured, "seconds": seconds}
        rows.append(row | {"samples_per_second": spec.batch * measured / seconds} | more)

    timed(Phase(alone.method, max(3, steps // 4)))  # warm-up: allocators, kernel choices
    for block in range(options.blocks or 3):
        seconds, measured, _ = timed(alone)
        log("non-pipelined", block, 1, seconds, measured, {})
        began = time.perf_counter()
        p_seconds, p_measured, records = timed(pipelined)
        waited = [records[rank].waited for rank in sorted(records)]
        sent = [records[rank].sent_bytes / steps for rank in sorted(records)]
        log(
            "pipelined",
            block,
            job.world,
            p_seconds,
            p_measured,
            {"waited_seconds": waited, "sent_bytes_per_step": sent},
        )
        if not options.hybrid:
            continue
        switched = time.perf_counter()
        n_seconds, n_measured, _ = timed(alone)
        # Half the steps are pipelined, half are not (section 6.5): the two times per step weigh the same.
        half = min(p_measured, n_measured)
        seconds = half * (p_seconds / p_measured + n_seconds / n_measured)
        log(
            "hybrid",
            block,
            job.world,
            seconds,
            2 * half,
            {"whole_seconds": time.perf_counter() - began, "switched_at": switched - began},
        )
    return rows, task.summary(), carried_by(training.carriers)
