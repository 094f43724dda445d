"""Carry out a run of kind `train` in the simulated executor: train, evaluate, log, checkpoint, resume."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from pipelag import data, methods, models, optim
from pipelag.allocator import keep_freed_memory
from pipelag.data.batches import Batches, Evaluation
from pipelag.data.dataset import Dataset
from pipelag.data.language import LanguageBatches, RunningText
from pipelag.data.text import Corpus, TextBatches
from pipelag.errors import PipelagError
from pipelag.models.cut import stale_percent
from pipelag.runs import checkpoint
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.spec import RunSpec
from pipelag.runs.translation import LanguageTest, TranslationTest, token_loss, word_loss
from pipelag.schedules.replicated import one_f_one_b_rounds, staleness
from pipelag.simulate.discrepancy import Discrepancy
from pipelag.simulate.pipeline import SimulatedPipeline
from pipelag.simulate.training import Phase, SimulatedTraining

CHECKPOINT_SECONDS = 30.0
FLUSH_STEPS = 50  # losses are read from the device, and looked at for divergence, this often


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


def open_data(
    spec: RunSpec, device: torch.device
) -> tuple[
    Dataset | Corpus | RunningText, Batches | TextBatches | LanguageBatches, Evaluation | TranslationTest | LanguageTest
]:
    """The spec's data set, its minibatches and its test set on `device`, images in channels_last.

    `options`: of images, standardise (default true): inputs with mean 0 and standard deviation 1; otherwise from 0 to
    1. Of parallel text, beam (default 1): hypotheses kept when translating. Of running text, length (35): of a stretch.
    """
    assert spec.data is not None
    dataset = data.load(spec.data.name, **spec.data.options)
    if isinstance(dataset, Corpus):
        test = TranslationTest(dataset, device, int(spec.options.get("beam", 1)))
        return dataset, TextBatches(dataset, spec.batch, spec.seed, device), test
    if isinstance(dataset, RunningText):
        length = int(spec.options.get("length", 35))
        stretches = LanguageBatches(dataset, spec.batch, length, spec.seed, device)
        return dataset, stretches, LanguageTest(dataset, device, length)
    standardise = bool(spec.options.get("standardise", True))
    batches = Batches(dataset, spec.batch, spec.seed, spec.data.augment, device, True, standardise)
    return dataset, batches, Evaluation(dataset, device=device, channels_last=True, standardise=standardise)


def loss_of(spec: RunSpec, dataset: Dataset | Corpus | RunningText) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    """Cross-entropy; of text over words, with `options.label_smoothing`."""
    if isinstance(dataset, Corpus):
        return token_loss(float(spec.options.get("label_smoothing", 0.0)))
    return word_loss if isinstance(dataset, RunningText) else nn.functional.cross_entropy


def build_model(spec: RunSpec, dataset: Dataset | Corpus | RunningText, device: torch.device) -> nn.Sequential:
    """The spec's model for that data, initialised from the run's seed, convolutions in channels_last."""
    assert spec.model is not None
    if isinstance(dataset, Corpus):
        sizes = {"source_words": len(dataset.source_words), "target_words": len(dataset.target_words)}
        return models.build(spec.model.name, seed=spec.seed, **(sizes | spec.model.options)).to(device)
    if isinstance(dataset, RunningText):
        return models.build(spec.model.name, seed=spec.seed, words=len(dataset.words), **spec.model.options).to(device)
    shape = {"classes": len(dataset.classes), "in_channels": int(dataset.train_images.shape[1])}
    model = models.build(spec.model.name, seed=spec.seed, **(shape | spec.model.options))
    return model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def describe_phases(model: nn.Sequential, phases: list[Phase]) -> list[dict[str, Any]]:
    """What the summary says of each phase, its staleness as derived from the schedule."""
    rows = []
    for phase in phases:
        lags = phase.method.delays(phase.stages, phase.microbatches)
        if phase.replicas:
            rows.append(replicated_row(model, phase))
            continue
        stale = stale_percent(model, phase.cuts) if any(lags.forward) else 0.0
        rows.append(
            {
                "method": phase.method.name,
                "cuts": list(phase.cuts),
                "steps": phase.steps,
                "stages": phase.stages,
                "forward_delays": list(lags.forward),
                "backward_delays": list(lags.backward),
                "stale_percent": round(stale, 4),
            }
        )
        if phase.method.random is None:
            rows[-1]["weight_copies"] = list(phase.method.weight_copies(phase.stages, phase.microbatches))
    return rows


def replicated_row(model: nn.Sequential, phase: Phase) -> dict[str, Any]:
    """The same of a phase of replicated stages; delays in updates of the stage, one of which is a round."""
    lags = staleness(one_f_one_b_rounds(phase.stages, phase.steps, phase.replicas), phase.replicas)
    delays = [max(stage) for stage in lags]
    return {
        "method": phase.method.name,
        "cuts": list(phase.cuts),
        "replicas": list(phase.replicas),
        "steps": phase.steps,
        "stages": phase.stages,
        "forward_delays": delays,
        "backward_delays": delays,
        "stale_percent": round(stale_percent(model, phase.cuts), 4),
    }


class Recorder:
    """Turns losses and evaluations into log lines; its state is part of the checkpoint.

    With `discrepancy`, lines also say how far the weights read are from the true ones; what was measured between the
    last line and a kill is measured again from the checkpoint on, so such a line rests on fewer samples.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.pending: list[torch.Tensor] = []
        self.total = torch.zeros((), dtype=torch.float64)
        self.count, self.seconds, self.offset = 0, 0.0, 0
        self.best: dict[str, float] | None = None
        self.last: dict[str, Any] = {}

    def flush(self, done: int) -> int | None:
        """Add the pending losses up; the first step with a loss that is no number, if any."""
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
        """Log an evaluation with the training loss since the last one."""
        row = row | {"loss": float(self.total / self.count) if self.count else None, "seconds": round(self.seconds, 3)}
        self.total, self.count = torch.zeros((), dtype=torch.float64), 0
        metric = "bleu" if "bleu" in row else "accuracy"
        if self.best is None or row[metric] > self.best[metric]:
            self.best = {key: row[key] for key in dict.fromkeys((metric, "accuracy", "step"))}
        self.last = row
        self.offset = self.folder.log(row)

    def state_dict(self) -> dict[str, Any]:
        """The sums since the last line, the clock, the length of the log."""
        names = ("total", "count", "seconds", "offset", "best", "last")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore, and cut lines off the log that were written after the checkpoint."""
        for name, value in state.items():
            setattr(self, name, value)
        self.folder.rewind(self.offset)


@torch.no_grad()
def evaluate(model: nn.Module, evaluation: Evaluation | TranslationTest | LanguageTest) -> dict[str, float]:
    """Top-1 accuracy (%) and mean cross-entropy over the test set, of text BLEU or perplexity too; live weights."""
    if isinstance(evaluation, TranslationTest | LanguageTest):
        return evaluation.measure(model)
    model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=evaluation.device)
    loss = torch.zeros((), dtype=torch.float64, device=evaluation.device)
    for inputs, targets in evaluation:
        logits = model(inputs)
        correct += (logits.argmax(1) == targets).sum()
        loss += nn.functional.cross_entropy(logits, targets, reduction="sum")
    model.train()
    return {
        "accuracy": round(100.0 * int(correct) / evaluation.samples, 4),
        "test_loss": float(loss) / evaluation.samples,
    }


def train(spec: RunSpec, out: Path, device: torch.device, threads: int) -> dict[str, Any]:
    """Run `spec` into the folder `out`, from its checkpoint where there is one; returns the summary.

    The end is bit-identical whether or not the run was interrupted: data, augmentation and dropout depend on the seed
    and the minibatch's number alone, and the checkpoint holds everything else.
    """
    assert spec.data is not None and spec.optimizer is not None
    keep_freed_memory()
    folder = RunFolder(out, spec)
    dataset, batches, evaluation = open_data(spec, device)
    model = build_model(spec, dataset, device)
    phases = phases_of(spec)
    rate = optim.factor(spec.lr_schedule, spec.steps)
    training = SimulatedTraining(
        model, phases, optim.factory(spec.optimizer), loss_of(spec, dataset), rate, spec.seed, device
    )
    recorder = Recorder(folder)
    saved = checkpoint.load(folder.checkpoint)
    if saved is not None:
        training.load_state_dict(saved["training"])
        recorder.load_state_dict(saved["recorder"])
    else:
        folder.rewind(0)

    watch = watcher(spec, training)

    def evaluate_now() -> None:
        position = {"step": training.done, "epoch": round(batches.epoch(training.done), 4), "phase": training.phase}
        measured = {"lr": spec.optimizer.lr * rate(training.done - 1)} | evaluate(model, evaluation)  # type: ignore[union-attr]
        recorder.line(position | measured | (watch() or {}))

    def save() -> None:
        checkpoint.save({"training": training.state_dict(), "recorder": recorder.state_dict()}, folder.checkpoint)

    diverged_at = advance(training, batches, recorder, spec, device, evaluate_now, save)
    summary = {
        "status": "finished" if diverged_at is None else "diverged",
        "diverged_at": diverged_at,
        "steps": training.done if diverged_at is None else diverged_at,
        "seconds": round(recorder.seconds, 3),
        "final": {
            key: recorder.last[key]
            for key in ("bleu", "perplexity", "accuracy", "loss", "test_loss")
            if key in recorder.last
        }
        if diverged_at is None
        else None,
        "best": recorder.best,
        "data": dataset.summary(),
        "phases": describe_phases(model, phases),
        "device": str(device),
    }
    if spec.options.get("save_model"):
        torch.save(model.state_dict(), out / "model.pt")
    folder.finish(summary, environment(str(device), threads))
    return summary


def watcher(spec: RunSpec, training: SimulatedTraining) -> Callable[[], dict[str, Any] | None]:
    """Measures weights read against true ones, as `options.discrepancy` asks: {horizons: [1, 2, 3], every: 10}."""
    asked = spec.options.get("discrepancy")
    if asked is None:
        return lambda: None
    watching: dict[SimulatedPipeline, Discrepancy] = {}

    def watch() -> dict[str, Any]:
        pipeline = training.pipeline
        if not isinstance(pipeline, SimulatedPipeline):
            raise PipelagError("options.discrepancy watches one worker per stage; leave it out with replicas")
        row = watching[pipeline].row() if pipeline in watching else None
        if row is None:
            watching.clear()
            watching[pipeline] = Discrepancy(pipeline, tuple(asked.get("horizons", ())), int(asked.get("every", 10)))
        return row or {}

    watch()
    return watch


def advance(
    training: SimulatedTraining,
    batches: Batches | TextBatches | LanguageBatches,
    recorder: Recorder,
    spec: RunSpec,
    device: torch.device,
    evaluate_now: Callable[[], None],
    save: Callable[[], None],
) -> int | None:
    """Train to the end, or to the first loss that is no number; returns that step, None at a good end."""
    model = training.model
    model.train()
    saved_at = tick = time.perf_counter()
    quiet = 10.0 if not sys.stderr.isatty() else 0.1
    with tqdm(total=training.total, initial=training.done, unit="step", mininterval=quiet, desc=spec.id) as bar:
        while training.done < training.total:
            recorder.pending.append(training.step(*batches[training.done]))
            done = training.done
            evaluating = done == training.total or (spec.evaluate_every and done % spec.evaluate_every == 0)
            if not evaluating and done % FLUSH_STEPS:
                continue
            bad = recorder.flush(done)  # waits for the device, so the clock below has seen the work
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
