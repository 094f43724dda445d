"""Carry out a run of kind `train` on real workers."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch

from pipelag import optim
from pipelag.distributed.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.distributed.worker import Job, Record
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.spec import RunSpec
from pipelag.runs.tasks import best_of, final_of, open_task
from pipelag.runs.train import describe_phases, phases_of
from pipelag.timing.trace import row_of, write_trace

TRACED = 100  # minibatches of the first phase whose actions go into trace.json


def train(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Launch `spec.workers` processes, train, and leave the same log as the simulated executor does."""
    folder = RunFolder(out, spec)
    folder.rewind(0)
    each = max(1, threads // spec.workers)
    rows, summary, state, trace = launch(_task, spec.workers, device, each, spec=spec)
    for row in rows:
        folder.log(row)
    write_trace(trace, out / "trace.json")
    if spec.options.get("save_model"):
        torch.save(state, out / "model.pt")
    folder.finish(summary, environment(device, each))
    return summary


def real_rows(records: dict[int, Record], microbatches: int, most: int) -> list[dict[str, Any]]:
    """Timeline rows of the first `most` minibatches of a phase as it ran, in seconds from its first action."""
    origin = min((record.spans[0][1] for record in records.values() if record.spans), default=0.0)
    rows = [
        row_of(rank, action, start - origin, end - origin, microbatches)
        for rank, record in records.items()
        for action, start, end in record.spans
    ]
    return sorted((row for row in rows if row["minibatch"] < most), key=lambda row: (row["start"], row["worker"]))


def _task(
    job: Job, spec: RunSpec
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, torch.Tensor], list[dict[str, Any]]]:
    """What every worker does; rank 0's return value is the run's log."""
    assert spec.optimizer is not None
    task = open_task(spec, job.device)
    model = task.model(spec, job.device)
    phases = phases_of(spec)
    rate = optim.factor(spec.lr_schedule, spec.steps)
    every = spec.evaluate_every or spec.steps
    marks = frozenset(range(every, spec.steps, every)) | {spec.steps}
    training = RealTraining(job, model, phases, optim.factory(spec.optimizer), task.loss, rate, spec.seed, marks)
    model.train()
    start = time.perf_counter()
    records = training.run(task.batches.inputs, task.batches.targets)
    seconds = time.perf_counter() - start
    if job.rank:
        return [], {}, {}, []
    losses = [float(loss) for phase in records for loss in phase[max(phase)].losses]
    snapshots: dict[int, dict[str, torch.Tensor]] = {}
    for phase in records:
        for record in phase.values():
            for step, values in record.snapshots.items():
                snapshots.setdefault(step, {}).update(values)
    diverged_at = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    final_state = {name: value.clone() for name, value in model.state_dict().items()}
    best: dict[str, float] | None = None
    rows, ends, done = [], [sum(p.steps for p in phases[: i + 1]) for i in range(len(phases))], 0
    for step in sorted(snapshots):
        model.load_state_dict(snapshots[step])
        row = {"step": step, "epoch": round(task.batches.epoch(step), 4), "phase": sum(step > end for end in ends)}
        row |= {"lr": spec.optimizer.lr * rate(step - 1), "seconds": round(seconds * step / spec.steps, 3)}
        rows.append(row | {"loss": sum(losses[done:step]) / (step - done)} | task.measure(model))
        best = best_of(rows[-1], best)
        done = step
    model.load_state_dict(final_state)
    summary = {
        "status": "finished" if diverged_at is None else "diverged",
        "diverged_at": diverged_at,
        "steps": spec.steps,
        "seconds": round(seconds, 3),
        "final": final_of(rows[-1]) if diverged_at is None else None,
        "best": best,
        "data": task.summary(),
        "phases": describe_phases(model, phases),
        "device": str(job.device),
        "workers": [
            {"rank": rank, "phase": index, "waited_seconds": record.waited, "sent_bytes": record.sent_bytes}
            | {"shares": {kind: round(share, 4) for kind, share in record.shares().items()}, "memory": record.memory}
            for index, phase in enumerate(records)
            for rank, record in phase.items()
        ],
    }
    trace = real_rows(records[0], phases[0].microbatches, TRACED)
    return rows, summary, {name: value.cpu() for name, value in final_state.items()}, trace
