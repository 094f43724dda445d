"""Carry out a run of kind `train` on real workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from pipelag import checkpoint
from pipelag.distributed.checkpoints import Checkpoints, training_of
from pipelag.distributed.feasible import check_marks, check_parts, check_precision, check_workers
from pipelag.distributed.job import Job
from pipelag.distributed.launch.torchrun import Lead, everywhere, workers_here
from pipelag.distributed.record import Record, carried_by
from pipelag.distributed.training import RealTraining
from pipelag.errors import PipelagError
from pipelag.files import write_whole
from pipelag.runs import optimizers, rates
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.kinds.options import TrainOptions
from pipelag.runs.kinds.train_simulated import all_finite, describe_phases, in_bf16, phases_of, precision_of
from pipelag.runs.spec import RunSpec
from pipelag.runs.tasks import Task, best_of, check_data, final_of, open_task, told_of_data
from pipelag.stage.rehearsal import check_optimizer
from pipelag.stage.rounded import computing
from pipelag.stage.weights import load_whole
from pipelag.timing.trace import row_of, write_trace

TRACED = 100  # minibatches of the first phase whose actions go into trace.json


def train(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Launch `spec.workers` processes, train, and leave a log like the simulated executor's; returns the summary.

    Every stage writes a checkpoint at each evaluation and at the end of each phase. A run that was interrupted resumes
    from the newest complete set, and ends bit for bit as it would have without the interruption.
    """
    assert spec.optimizer is not None
    for phase in phases_of(spec):  # before any process is started
        check_workers(phase, spec.workers)
        check_precision(phase, in_bf16(spec))
        check_parts(phase, spec.batch, spec.workers)
    marks = frozenset(evaluations(spec) | ends_of(spec))
    check_marks(phases_of(spec), marks)
    check_optimizer(phases_of(spec), optimizers.factory(spec.optimizer))
    partial = out / "partial"
    checkpoints = Checkpoints(partial / "checkpoints", marks, spec.id)
    per_worker = max(1, threads // workers_here(spec.workers))
    lead = _lead(spec, out, checkpoints, device, per_worker)
    return everywhere(_task, lead, spec.workers, device, per_worker, partial, spec=spec, checkpoints=checkpoints)


def _lead(spec: RunSpec, out: Path, checkpoints: Checkpoints, device: str, threads: int) -> Lead:
    """The run's lead (`everywhere`): open its folder, tell workers at which step to resume, then publish the run."""
    folder = RunFolder(out, spec)
    folder.rewind(0)
    rows, summary, state, trace, translations = yield {"resume": checkpoints.rewind(evaluations(spec))}
    for row in rows:
        folder.log(row)
    write_trace(trace, out / "trace.json")
    if spec.asked(TrainOptions).save_model:
        checkpoint.save_whole(state, out / "model.pt")
    if translations is not None:
        write_whole(out / "translations.tsv", translations)
    folder.finish(summary, environment(device, threads))
    return summary


def evaluations(spec: RunSpec) -> set[int]:
    """The numbers of steps after which the model is evaluated."""
    every = spec.evaluate_every or spec.steps
    return {*range(every, spec.steps, every), spec.steps}


def ends_of(spec: RunSpec) -> set[int]:
    """The number of steps done at the end of each phase."""
    return set(accumulate(phase.steps for phase in spec.phases))


def real_rows(records: dict[int, Record], microbatches: int, most: int) -> list[dict[str, Any]]:
    """Timeline rows of the first `most` minibatches of a phase as measured, in seconds from its first action."""
    origin = min((record.spans[0][1] for record in records.values() if record.spans), default=0.0)
    rows = [
        row_of(rank, action, start - origin, end - origin, microbatches)
        for rank, record in records.items()
        for action, start, end in record.spans
    ]
    return sorted((row for row in rows if row["minibatch"] < most), key=lambda row: (row["start"], row["worker"]))


def worker_row(rank: int, phase: int, record: Record) -> dict[str, Any]:
    """A worker's part in a phase, for the summary; null where a library does not report a value."""
    measured = not record.opaque
    return {
        "rank": rank,
        "phase": phase,
        "waited_seconds": record.waited if measured else None,
        "sent_bytes": record.sent_bytes if measured else None,
        "shares": {kind: round(share, 4) for kind, share in record.shares().items()},
        "memory": record.memory,
    }


def with_ages(row: dict[str, Any], records: dict[int, Record]) -> dict[str, Any]:
    """A phase's description; with a parameter server the delays in it are the measured ones, not a schedule's."""
    ages = [age for record in records.values() for age in record.ages]
    if not ages:
        return row
    return row | {"forward_delays": [max(ages)], "backward_delays": [max(ages)], "mean_delay": fmean(ages)}


def _task(
    job: Job, spec: RunSpec, checkpoints: Checkpoints, resume: int
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, torch.Tensor], list[dict[str, Any]], str | None]:
    """The work of one worker.

    Rank 0 returns the log's rows, the summary, the final weights, the trace's rows and the table of translations.
    """
    assert spec.optimizer is not None
    task = open_task(spec, job.device)
    model = task.model(spec, job.device)
    phases = phases_of(spec)
    rate, bf16 = rates.factor(spec.lr_schedule, spec.steps), in_bf16(spec)
    training = RealTraining(
        job,
        model,
        phases,
        optimizers.factory(spec.optimizer),
        task.loss,
        rate=rate,
        seed=spec.seed,
        checkpoints=checkpoints,
        uneven=task.batches.uneven,
        bf16=bf16,
        likeness={"data": told_of_data(task)},
    )
    if resume:
        training.resume(resume)
        check_data(training_of(training.parts).get("data"), task, checkpoints.at(resume))
    model.train()
    records = training.run(task.batches.inputs, task.batches.targets)
    if job.rank:
        return [], {}, {}, [], None
    diverged_at = next((step for step, loss in enumerate(training.losses) if not math.isfinite(loss)), None)
    final_state = {name: value.clone() for name, value in model.state_dict().items()}
    rows = list(_evaluated(task, training, checkpoints, spec, rate))
    load_whole(model, final_state)
    if diverged_at is None and not all_finite(model, rows[-1]):
        diverged_at = spec.steps
    best: dict[str, float] | None = None
    for row in rows:
        best = best_of(row, best)
    summary = {
        "status": "finished" if diverged_at is None else "diverged",
        "diverged_at": diverged_at,
        "steps": spec.steps,
        "seconds": round(training.seconds, 3),
        "final": final_of(rows[-1]) if diverged_at is None else None,
        "best": best,
        "data": task.summary(),
        "phases": [with_ages(row, phase) for row, phase in zip(describe_phases(model, phases), records, strict=True)],
        "device": str(job.device),
        "messages": carried_by(training.carriers),
        "workers": [worker_row(rank, i, record) for i, phase in enumerate(records) for rank, record in phase.items()],
    } | precision_of(spec)
    if resume:
        summary["resumed_at"] = resume  # the workers' records of earlier phases are lost, and the trace begins here
    index = next((index for index, phase in enumerate(records) if phase), 0)
    trace = real_rows(records[index], phases[index].microbatches, TRACED)
    translations = None if task.translations is None else task.translations.table()
    return rows, summary, {name: value.cpu() for name, value in final_state.items()}, trace, translations


def _evaluated(
    task: Task,
    training: RealTraining,
    checkpoints: Checkpoints,
    spec: RunSpec,
    rate: Callable[[int], float],
) -> Iterator[dict[str, Any]]:
    """A row for each evaluation, made after the training from the weights in its checkpoints.

    The model is left with the last of these weights.
    """
    assert spec.optimizer is not None
    model, ends, written, done = training.model, sorted(ends_of(spec)), set(checkpoints.steps()), 0
    for step in sorted(evaluations(spec)):
        if step not in written:
            raise PipelagError(
                f"the checkpoints of step {step} are missing from {checkpoints.folder}; start the run again"
            )
        load_whole(model, checkpoints.model(step))
        row = {"step": step, "epoch": round(task.batches.epoch(step), 4), "phase": sum(step > end for end in ends)}
        row |= {"lr": spec.optimizer.lr * rate(step - 1), "seconds": round(training.seconds * step / spec.steps, 3)}
        with computing(training.job.device, in_bf16(spec)):
            measured = task.evaluate(model, step)
        yield row | {"loss": sum(training.losses[done:step]) / (step - done)} | measured
        done = step
