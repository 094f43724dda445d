"""Carry out a run of kind `train` in the simulated executor: train, evaluate, log, write checkpoints, resume."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipelag import checkpoint, methods
from pipelag.allocator import keep_freed_memory
from pipelag.compat.bars import Bar
from pipelag.data.minibatches import Ahead, Minibatches
from pipelag.errors import PipelagError
from pipelag.files import is_watched, write_whole
from pipelag.models.cut import stale_percent
from pipelag.runs import optimizers, rates
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.kinds.options import TrainingOptions, TrainOptions
from pipelag.runs.spec import RunSpec
from pipelag.runs.tasks import best_of, check_data, final_of, open_task, told_of_data
from pipelag.simulate.discrepancy import Discrepancy
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from pipelag.stage.rounded import computing

CHECKPOINT_SECONDS = 30.0
FLUSH_STEPS = 50  # how often losses are read from the device and checked for divergence


def phases_of(spec: RunSpec) -> list[Phase]:
    """The phases of a spec with their methods looked up."""
    return [
        Phase(
            methods.get(p.method, **p.options),
            p.steps,
            p.cuts,
            dict(p.stage_lr),
            p.microbatches,
            p.recompute,
            p.replicas,
        )
        for p in spec.phases
    ]


def describe_phases(model: nn.Sequential, phases: list[Phase]) -> list[dict[str, Any]]:
    """Each phase for the summary, with its staleness as derived from the schedule; delays are in a stage's updates."""
    rows = []
    for phase in phases:
        lags = phase.delays
        stale = stale_percent(model, phase.cuts) if any(lags.forward) else 0.0
        row: dict[str, Any] = {"method": phase.method.name, "cuts": list(phase.cuts)}
        row |= {"replicas": list(phase.replicas)} if phase.replicas else {}
        row |= {"steps": phase.steps, "stages": phase.stages}
        row |= {"forward_delays": list(lags.forward), "backward_delays": list(lags.backward)}
        row["stale_percent"] = round(stale, 4)
        if phase.method.random is None:
            copies = phase.method.weight_copies(phase.stages, phase.microbatches, phase.replicas)
            row["weight_copies"] = list(copies)
        rows.append(row)
    return rows


class Recorder:
    """Turns training losses and evaluations into log lines; its state is part of the checkpoint."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.pending: list[torch.Tensor] = []
        self.total = torch.zeros((), dtype=torch.float64)
        self.count, self.seconds, self.offset, self.digest = 0, 0.0, 0, folder.written.hexdigest()
        self.best: dict[str, float] | None = None
        self.last: dict[str, Any] = {}

    def flush(self, done: int) -> int | None:
        """Add up the pending losses of the steps before `done`; returns the first step whose loss is not finite."""
        if not self.pending:
            return None
        losses = torch.stack(self.pending).double().cpu()
        self.pending.clear()
        bad = (~torch.isfinite(losses)).nonzero()
        if len(bad):
            return done - len(losses) + int(bad[0])
        self.total += losses.sum()
        self.count += len(losses)
        return None

    def line(self, row: dict[str, Any]) -> None:
        """Log an evaluation with the mean training loss since the last one."""
        row = row | {"loss": float(self.total / self.count) if self.count else None, "seconds": round(self.seconds, 3)}
        self.total, self.count = torch.zeros((), dtype=torch.float64), 0
        self.best = best_of(row, self.best)
        self.last = row
        self.offset = self.folder.log(row)
        self.digest = self.folder.written.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """The sums since the last line, the clock, the length of the log and its SHA-256."""
        names = ("total", "count", "seconds", "offset", "digest", "best", "last")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state, and cut off the log's lines that were written after the checkpoint."""
        for name, value in state.items():
            setattr(self, name, value)
        self.folder.rewind(self.offset)


def train(spec: RunSpec, out: Path, device: torch.device, threads: int) -> dict[str, Any]:
    """Train `spec` in the folder `out`, from its checkpoint if there is one; returns the summary.

    The result is bit-identical whether or not the run was interrupted: data, augmentation and dropout depend on the
    seed and the minibatch's number only, and the checkpoint holds everything else.
    """
    turns = in_turns(spec, out, device, threads)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def in_turns(
    spec: RunSpec, out: Path, device: torch.device, threads: int, together: int = 1
) -> Generator[None, None, dict[str, Any]]:
    """As `train`, but as a generator that yields before every step, so that other runs can take turns in the process.

    The result stays the same bit for bit. The seconds in the log are those of this run's own turns.

    Args:
        together: the number of runs that take turns in this process; it is noted in the summary.
    """
    assert spec.optimizer is not None
    keep_freed_memory()
    folder = RunFolder(out, spec)
    task = open_task(spec, device)
    model = task.model(spec, device)
    phases = phases_of(spec)
    rate = rates.factor(spec.lr_schedule, spec.steps)
    maker, spare = optimizers.factory(spec.optimizer), device.type != "cpu"
    bf16 = in_bf16(spec)
    # If minibatches differ in shape, few match a recorded graph, but every recording would keep its memory.
    graphs = spec.asked(TrainOptions).graphs == "auto" and device.type == "cuda" and not task.batches.uneven
    how = {"spare_memory": spare, "bf16": bf16, "graphs": graphs, "grouped": spec.asked(TrainOptions).grouped}
    training = SimulatedTraining(model, phases, maker, task.loss, rate, spec.seed, device, **how)
    recorder, watch = Recorder(folder), Watch(spec, training)
    saved = newest(folder)
    if saved is not None:
        check_data(saved.get("data"), task, folder.checkpoint)
        training.load_state_dict(saved["training"])
        recorder.load_state_dict(saved["recorder"])
        watch.load_state_dict(saved["watch"]) if "watch" in saved else watch.begin()  # older checkpoints have none
        if task.translations is not None:
            task.translations.by_step = saved.get("translations", {})
    else:
        folder.rewind(0)
        watch.begin()

    def evaluate_now() -> None:
        position = {
            "step": training.done,
            "epoch": round(task.batches.epoch(training.done), 4),
            "phase": training.phase,
        }
        with computing(device, bf16):
            measured = task.evaluate(model, training.done)
        measured = {"lr": spec.optimizer.lr * rate(training.done - 1)} | measured  # type: ignore[union-attr]
        recorder.line(position | measured | watch.row())

    def save() -> None:
        folder.sync()
        state: dict[str, Any] = {"training": training.state_dict(), "recorder": recorder.state_dict()}
        state |= {"watch": watch.state_dict(), "data": told_of_data(task)}
        state |= {"translations": task.translations.by_step} if task.translations is not None else {}
        checkpoint.save(state, folder.checkpoint, keep=True, of=spec.id)

    diverged_at = yield from advance(training, task.batches, recorder, spec, device, evaluate_now, save)
    if diverged_at is None and not all_finite(model, recorder.last):
        diverged_at = training.done
    summary = {
        "status": "finished" if diverged_at is None else "diverged",
        "diverged_at": diverged_at,
        "steps": training.done if diverged_at is None else diverged_at,
        "seconds": round(recorder.seconds, 3),
        "final": final_of(recorder.last) if diverged_at is None else None,
        "best": recorder.best,
        "data": task.summary(),
        "phases": [row | shortened(training, index) for index, row in enumerate(describe_phases(model, phases))],
        "device": str(device),
    } | precision_of(spec)
    if together > 1:
        summary["together"] = together
    elif device.type == "cuda":
        summary["peak_memory"] = torch.cuda.max_memory_allocated(device)  # bytes
    if spec.asked(TrainOptions).save_model:
        checkpoint.save_whole(model.state_dict(), out / "model.pt")
    if task.translations is not None:
        write_whole(out / "translations.tsv", task.translations.table())
    folder.finish(summary, environment(str(device), threads))
    return summary


def in_bf16(spec: RunSpec) -> bool:
    """Whether passes compute in bfloat16."""
    return spec.asked(TrainingOptions).precision == "bf16"


def precision_of(spec: RunSpec) -> dict[str, str]:
    """The summary's entry about precision; empty for float32."""
    return {"precision": "bf16 over fp32 masters"} if in_bf16(spec) else {}


def shortened(training: SimulatedTraining, phase: int) -> dict[str, str]:
    """Whether a phase's steps ran as CUDA graphs and with grouped microbatches ("used"), or why not, for the summary.

    There is no entry for what the spec did not ask for, nor for a phase that was over before a restart.
    """
    asked = {"graphs": training.graphs, "grouped": training.grouped}
    why = {"graphs": training.without_graphs(phase), "grouped": training.without_groups(phase)}
    return {name: reason or "used" for name, reason in why.items() if asked[name] and reason is not None}


def all_finite(model: nn.Module, last: dict[str, Any]) -> bool:
    """Whether every weight is finite and the loss of the last evaluation, too: an update comes after its loss.

    last: the log's last line.
    """
    weights = all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    return weights and math.isfinite(last.get("test_loss", 0.0))


def newest(folder: RunFolder) -> dict[str, Any] | None:
    """The newest intact checkpoint that matches the log; None: the run starts from the beginning."""
    for path in (folder.checkpoint, checkpoint.before(folder.checkpoint)):
        saved = checkpoint.load(path, of=folder.spec.id)
        if saved is not None and folder.holds(saved["recorder"]["offset"], saved["recorder"]["digest"]):
            return saved
        if saved is not None:
            print(
                f"pipelag: {folder.metrics} has changed since {path.name} was written, so that checkpoint is not used",
                file=sys.stderr,
            )
    return None


class Watch:
    """Measures how far the weights that passes read are from the right ones, as `options.discrepancy` asks.

    Raises:
        PipelagError: stages have replicas.
    """

    def __init__(self, spec: RunSpec, training: SimulatedTraining) -> None:
        self.asked, self.training = spec.asked(TrainOptions).discrepancy, training
        self.measuring: Discrepancy | None = None
        if self.asked is not None and any(phase.replicated for phase in training.phases):
            raise PipelagError("options.discrepancy needs one worker per stage; leave it out, or the replicas")

    def begin(self) -> Discrepancy | None:
        """Start to measure the current phase, if the options ask for it."""
        if self.asked is not None:
            self.measuring = Discrepancy(self.training.pipeline, tuple(self.asked.horizons), self.asked.every)
        return self.measuring

    @property
    def current(self) -> Discrepancy | None:
        """The measurement of the current phase; None if the phase began after the last log line."""
        latest = self.measuring
        return latest if latest is not None and latest.pipeline is self.training.pipeline else None

    def row(self) -> dict[str, Any]:
        """What was measured since the last log line, for the next one; nothing yet if the phase is new."""
        if self.current is not None:
            return self.current.row()
        self.begin()
        return {}

    def state_dict(self) -> dict[str, Any] | None:
        """What was measured since the last line, and what is still to be compared; None if the phase is new."""
        return self.current.state_dict() if self.current is not None else None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Resume the measurement of a checkpoint."""
        if state is not None and (measuring := self.begin()) is not None:
            measuring.load_state_dict(state)


def advance(
    training: SimulatedTraining,
    batches: Minibatches,
    recorder: Recorder,
    spec: RunSpec,
    device: torch.device,
    evaluate_now: Callable[[], None],
    save: Callable[[], None],
) -> Generator[None, None, int | None]:
    """Train to the end, or to the first loss that is not finite; returns that step, or None if all are finite."""
    model = training.model
    model.train()
    ahead = Ahead(batches, training.total, device)
    saved_at = tick = time.perf_counter()
    quiet = 10.0 if not is_watched() else 0.1
    with Bar(total=training.total, initial=training.done, unit="step", mininterval=quiet, desc=spec.id) as bar:
        while training.done < training.total:
            left = time.perf_counter()
            yield
            tick += time.perf_counter() - left
            recorder.pending.append(training.step(*ahead.take(training.done)))
            done = training.done
            ahead.make(done)
            evaluating = done == training.total or (spec.evaluate_every and done % spec.evaluate_every == 0)
            if not evaluating and done % FLUSH_STEPS:
                continue
            bad = recorder.flush(done)  # waits for the device, so the time read below includes its work
            now = time.perf_counter()
            recorder.seconds += now - tick
            bar.update(done - bar.n)
            if bad is not None:
                return bad
            if evaluating:
                evaluate_now()
                last = recorder.last
                bar.set_postfix(accuracy=f"{last['accuracy']:.2f}", loss=f"{last['loss'] or math.nan:.3f}")
            if now - saved_at > CHECKPOINT_SECONDS and done < training.total:
                save()
                saved_at = time.perf_counter()
            tick = time.perf_counter()
    return None
