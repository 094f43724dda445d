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
from pipelag.distributed.launch.torchrun import Lead, everywhere, workers_here
from pipelag.distributed.training import RealTraining, check_precision, check_workers
from pipelag.distributed.workers.base import Job, Record, carried_by
from pipelag.errors import PipelagError
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
    """Launch `spec.workers` processes, train, and leave the same log as the simulated executor does.

    Every stage writes a checkpoint at each evaluation; a broken run goes on from the newest complete set, bit for bit.
    """
    assert spec.optimizer is not None
    for phase in phases_of(spec):  # now, not when they have been started
        check_workers(phase, spec.workers)
        check_precision(phase, in_bf16(spec))
    check_optimizer(phases_of(spec), optimizers.factory(spec.optimizer))
    partial = out / "partial"
    checkpoints = Checkpoints(partial / "checkpoints", frozenset(evaluations(spec) | ends_of(spec)), spec.id)
    per_worker = max(1, threads // workers_here(spec.workers))
    lead = _lead(spec, out, checkpoints, device, per_worker)
    return everywhere(_task, lead, spec.workers, device, per_worker, partial, spec=spec, checkpoints=checkpoints)


def _lead(spec: RunSpec, out: Path, checkpoints: Checkpoints, device: str, threads: int) -> Lead:
    """Open the run's folder, say where workers go on, and write down what came of it."""
    folder = RunFolder(out, spec)
    folder.rewind(0)
    rows, summary, state, trace = yield {"resume": checkpoints.rewind(evaluations(spec))}
    for row in rows:
        folder.log(row)
    write_trace(trace, out / "trace.json")
    if spec.asked(TrainOptions).save_model:
        checkpoint.save_whole(state, out / "model.pt")
    folder.finish(summary, environment(device, threads))
    return summary


def evaluations(spec: RunSpec) -> set[int]:
    """After how many steps the model is measured."""
    every = spec.evaluate_every or spec.steps
    return {*range(every, spec.steps, every), spec.steps}


def ends_of(spec: RunSpec) -> set[int]:
    """The steps that are done at the end of each phase."""
    return set(accumulate(phase.steps for phase in spec.phases))


def real_rows(records: dict[int, Record], microbatches: int, most: int) -> list[dict[str, Any]]:
    """Timeline rows of the first `most` minibatches of a phase as it ran, in seconds from its first action."""
    origin = min((record.spans[0][1] for record in records.values() if record.spans), default=0.0)
    rows = [
        row_of(rank, action, start - origin, end - origin, microbatches)
        for rank, record in records.items()
        for action, start, end in record.spans
    ]
    return sorted((row for row in rows if row["minibatch"] < most), key=lambda row: (row["start"], row["worker"]))


def worker_row(rank: int, phase: int, record: Record) -> dict[str, Any]:
    """What the summary says of a worker's part in a phase; null what a library did not tell."""
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
    """A phase's description; behind a parameter server its delays are what they were, no schedule's."""
    ages = [age for record in records.values() for age in record.ages]
    if not ages:
        return row
    return row | {"forward_delays": [max(ages)], "backward_delays": [max(ages)], "mean_delay": fmean(ages)}


def _task(
    job: Job, spec: RunSpec, checkpoints: Checkpoints, resume: int
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, torch.Tensor], list[dict[str, Any]]]:
    """What every worker does; rank 0's return value is the run's log."""
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
        return [], {}, {}, []
    diverged_at = next((step for step, loss in enumerate(training.losses) if not math.isfinite(loss)), None)
    final_state = {name: value.clone() for name, value in model.state_dict().items()}
    rows = list(_evaluated(task, training, checkpoints, resume, spec, rate))
    load_whole(model, final_state)
    if diverged_at is None and not all_finite(model):
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
        summary["resumed_at"] = resume  # the workers' figures of earlier phases are gone, and the trace begins there
    index = next((index for index, phase in enumerate(records) if phase), 0)
    trace = real_rows(records[index], phases[index].microbatches, TRACED)
    return rows, summary, {name: value.cpu() for name, value in final_state.items()}, trace


def _evaluated(
    task: Task,
    training: RealTraining,
    checkpoints: Checkpoints,
    resume: int,
    spec: RunSpec,
    rate: Callable[[int], float],
) -> Iterator[dict[str, Any]]:
    """A row for each evaluation, made after the training of the weights in its checkpoints; the model is left with the
    last ones."""
    assert spec.optimizer is not None
    model, ends, written, done = training.model, sorted(ends_of(spec)), set(checkpoints.steps()), 0
    for step in sorted(evaluations(spec)):
        if step not in written:
            if step < resume:  # of another pipeline, which was evaluated elsewhere
                continue
            raise PipelagError(
                f"the checkpoints of step {step} are missing from {checkpoints.folder}; start the run again"
            )
        load_whole(model, checkpoints.model(step))
        row = {"step": step, "epoch": round(task.batches.epoch(step), 4), "phase": sum(step > end for end in ends)}
        row |= {"lr": spec.optimizer.lr * rate(step - 1), "seconds": round(training.seconds * step / spec.steps, 3)}
        with computing(training.job.device, in_bf16(spec)):
            measured = task.measure(model)
        yield row | {"loss": sum(training.losses[done:step]) / (step - done)} | measured
        done = step
