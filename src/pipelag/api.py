"""The library's face: `train` for a researcher with a model of their own (the config-driven runs are in `runs/`)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipelag import asked, methods
from pipelag.errors import PipelagError, Stop, expect, unknown
from pipelag.library.likeness import data_told, loss_told, rates_told
from pipelag.library.simulated_checkpoint import checkpoint_in, retell
from pipelag.library.supply import Supply, noted, to
from pipelag.library.telling import Telling, Wishes
from pipelag.library.updating import factory_of, usual
from pipelag.library.validation import Metric, Validation, metrics_of
from pipelag.methods import Method
from pipelag.models.cut import stages as cut_stages
from pipelag.randomness import TURN, callers_randomness
from pipelag.schedules import Delays
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.optimizers import OptimizerFactory
from pipelag.stage.phase import Phase
from pipelag.tensors import unchanged_modes
from pipelag.typed import MOST_BATCH

EXECUTORS = ("simulated", "real")


@dataclass(frozen=True)
class TrainedRun:
    """What `train` returns.

    model: the trained model, live version of every stage: the very `nn.Sequential` given, with real workers too; of a
        list, a Sequential of its layers.
    metrics: one row per step done: `{"step", "loss"}`; steps count from 0.
    delays: the staleness per stage of the (last) phase, in updates.
    diverged_at: the first step whose loss was no number; None where there is none.
    evaluations: one row per evaluation: `{"step" (steps done), "epoch" (where the data have a length), "loss" (of
        training, mean since the row before), "validation_loss", ...}` and each metric by its name.
    """

    model: nn.Sequential
    metrics: list[dict[str, float]]
    delays: Delays
    diverged_at: int | None
    evaluations: list[dict[str, float]] = field(default_factory=list)


def train(
    model: nn.Sequential | Sequence[nn.Module],
    batches: Any,
    *,
    loss: Callable[[Any, Any], torch.Tensor] = nn.functional.cross_entropy,
    optimizer: OptimizerFactory | torch.optim.Optimizer | str | Mapping[str, Any] = usual,
    lr: float | None = None,
    method: str | Method | None = None,
    cuts: Sequence[int] = (),
    executor: str = "simulated",
    microbatches: int = 1,
    recompute: bool | int = False,
    replicas: Sequence[int] = (),
    steps: int | None = None,
    epochs: int | None = None,
    phases: Sequence[Phase] | None = None,
    rate: Callable[[int], float] = lambda step: 1.0,
    stage_lr: dict[int, float] | None = None,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "fp32",
    graphs: bool = False,
    grouped: bool = False,
    threads: int = 1,
    workers: int | None = None,
    uneven: bool = False,
    checkpoints: str | Path | None = None,
    checkpoint_every: int = 0,
    patience: float | None = None,
    unpack: Callable[[Any], tuple[Any, Any]] | None = None,
    validation: Any = None,
    metrics: Mapping[str, Metric] | Iterable[str | Metric] = (),
    evaluate_every: int = 0,
    folder: str | Path | None = None,
    on_step: Callable[[int, float], Any] | None = None,
    on_evaluation: Callable[[int, dict[str, float]], Any] | None = None,
    on_checkpoint: Callable[[int, Path], Any] | None = None,
    progress: bool | None = None,
    tensorboard: str | Path | None = None,
) -> TrainedRun:
    """Train a model as a pipeline would.

    What is measured, told and shown meanwhile changes nothing in the training, to the bit. The model is trained in its
    mode for that (`train()`), in whichever it was given; gradients that it has are dropped.

    Args:
        model: an `nn.Sequential` or a list of layers; a layer may pass a tuple of tensors to the next.
        batches: minibatches as (inputs, targets): indexable by minibatch number, or any iterable, such as a
            `DataLoader`. The first dimension of every tensor is the batch. Inputs, which the first layer takes as one
            argument, and targets are a tensor, or a tuple or a dict of such.
        loss: (output, targets) -> scalar, the mean over the minibatch.
        optimizer: a class, or a function called with parameter groups, one per stage; or an instance over the model's
            parameters, of which the kind and its groups' settings count; or a registered name ("adamw") or a mapping as
            in the config files, {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01}. Else SGD, rate 0.1, momentum 0.9.
        lr: the base rate of a class, of a name or of the optimizer that is used where none is given. Without it a class
            keeps its own, and a name is refused. A name's other settings are those of the config files: nothing decays.
        method: a registered name or a `Method`; else stale_weights.
        cuts: stage boundaries, "after layer p" counted from 1: (2, 5) makes three stages.
        executor: "simulated", or "real" with one process per worker of the schedule on this machine: mostly one per
            stage (`workers`).
        microbatches: equal parts of each minibatch; their mean gradient makes one update.
        recompute: keep each stage's input alone and run its forward again before its backward, to save memory; a
            number from 2 on: that of so many stages together (PipeMare Recompute).
        replicas: workers of each stage (PipeDream's 1F1B-RR, section 3.2): r replicas of a stage take its minibatches
            in turn and make one update of every r. Empty: one each.
        steps: minibatches to train on; by default, those of one epoch.
        epochs: instead of steps, for batches with a length: how often to go through them, each time as they are
            iterated anew (a `DataLoader` shuffles). Beside phases: how often their steps may.
        phases: instead of method, cuts, steps, microbatches, recompute, replicas and stage_lr, which are refused beside
            it: a list of `Phase`, e.g. hybrid training.
        rate: the factor on all learning rates at a step.
        stage_lr: base learning rates of single stages.
        seed: of dropout: draws are made per (seed, minibatch, stage), the same in every executor; and of what numbered
            batches draw as they are looked up, and `unpack` from them, from torch's, NumPy's and Python's generators:
            per (seed, minibatch).
        device: "cpu", "cuda", or "auto", which is a GPU where there is one (for each worker); the real executor uses
            one GPU per stage, or for "cuda:0" that one for all.
        precision: "bf16": passes, of validation too, read the weights rounded to bfloat16, over masters in float32, on
            which the optimizer steps, and which the model has in the end (docs/workflow.md).
        graphs: on a GPU, replay passes as CUDA graphs, which spares small models most of Python's time and changes no
            bit; steps that cannot be are computed as ever (docs/workflow.md). Not for a model or loss that goes by
            something of Python's that changes from step to step and lies outside of both.
        grouped: microbatches of a minibatch that read the same weights share passes, which spares launches and changes
            rounding; a model that mixes samples otherwise than by batch norm is found, and computed as ever.
        threads: CPU threads of each real worker.
        workers: real processes; by default as many as the schedule has workers: one per stage, the sum of `replicas`,
            fewer where a worker holds several stages (1f1b_interleaved). Of data-parallel methods the number of
            replicas, to be given.
        uneven: minibatches differ in shape (sentences): real workers then tell each other the shapes of every message.
        checkpoints: a folder in which each real stage writes its own; where it holds a complete set, training goes on
            from the newest: bit for bit with the same pipeline, with another one (other cuts, more minibatches in
            flight) from its weights (PipeDream section 4). What was before it is told again. The simulated executor
            keeps two files there, the newest checkpoint and the one before it, and goes on with the same training alone
            (it may be longer), bit for bit. Other rates, another loss and other data are told in a warning.
        checkpoint_every: minibatches between two checkpoints; there is one at evaluations and at the end of each phase
            anyway (where simulated, of the last).
        patience: seconds that a real worker may be silent before the run ends; None: PIPELAG_PATIENCE, or 30.
        unpack: makes (inputs, targets) of what `batches` and `validation` hold, e.g. of a dict.
        validation: minibatches with an end, as `batches`; all of them are gone through at every evaluation, the model
            being in its mode for that (`eval()`).
        metrics: (output, targets) -> a number for each target, or their mean: functions by name, or a list of
            functions, of "accuracy" (%) and of registered names (`pipelag.runs.objectives`).
        evaluate_every: steps between two evaluations, the last of which is at the end. 0: that one alone, and only
            where validation, folder, on_evaluation or tensorboard asks for it.
        folder: where `metrics.jsonl` gets a line per evaluation, as in `TrainedRun.evaluations`.
        on_step: called with each step's number, from 0, and its loss.
        on_evaluation: called with the steps done and what was found.
        on_checkpoint: called with the steps done and the folder of a complete set of checkpoints, or the newest file.
        progress: a bar on stderr; by default where that is a terminal.
        tensorboard: a folder for TensorBoard's event files; needs its package.

    With real workers all this is told whenever a checkpoint is complete, in order: at evaluations, at the end of phases
    and every `checkpoint_every`; the model is measured by the calling process, while the workers go on.

    A callback that raises `pipelag.Stop` ends the training (early stopping, a budget). What is returned is as after
    that step; with real workers, after the step of the checkpoint that was told of.

    Raises:
        PipelagError: anything given that does not fit (`pipelag.asked`), too few minibatches, a failed worker. What
            your own code raises goes on as it is, with a note: step, stage, layer, shapes.

    >>> from torch import nn
    >>> data = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])) for _ in range(8)]
    >>> run = train([nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)], data, method="stale_weights", cuts=(1,))
    >>> run.delays.forward
    (2, 0)
    """
    # What can be checked by itself.
    if executor not in EXECUTORS:
        raise unknown("executor", str(executor), EXECUTORS)
    asked.check_numbers(seed, threads, workers, checkpoint_every)
    asked.check_folder("checkpoints", checkpoints, empty=False)
    if checkpoint_every and checkpoints is None:
        raise PipelagError("checkpoint_every is given, and no checkpoints are written; give checkpoints=...")
    expect("uneven", uneven, bool, "True or False")
    expect("patience", patience, (int, float, type(None)), "a number of seconds, or None")
    microbatches = asked.whole("microbatches", microbatches, 1, MOST_BATCH)
    recompute = asked.check_recompute(recompute)
    asked.check_passes(executor, graphs=graphs, grouped=grouped)
    stage_rates = asked.check_rates(stage_lr if stage_lr is not None else {})
    asked.check_functions(loss=loss, rate=rate, **({"unpack": unpack} if unpack is not None else {}))
    asked.check_batches(batches)
    place = asked.check_device(device)
    sequence = asked.check_model(model)
    if executor == "real":
        asked.check_travels(sequence, place)
    else:
        asked.check_gradients()
    make, bf16 = factory_of(optimizer, lr, sequence), asked.check_precision(precision, sequence)
    cuts, replicas = asked.wholes("cuts", cuts), asked.wholes("replicas", replicas)
    # The phases: those given, or one of what is given instead.
    if phases is None:
        count = asked.steps_of(batches, steps, epochs)
        chosen = methods.get("stale_weights" if method is None else method)
        phases = [Phase(chosen, count, cuts, stage_rates, microbatches, recompute, replicas)]
        if method is not None and not cuts and workers is None and (chosen.pipelined or chosen.data_parallel):
            warnings.warn(
                f"the method '{chosen.name}' has one stage here, as no cuts are given, so that no weights are late",
                stacklevel=2,
            )
    else:
        beside_phases = {
            "method": method is not None,
            "steps": steps is not None,
            "cuts": bool(cuts),
            "replicas": bool(replicas),
            "microbatches": microbatches != 1,
            "recompute": bool(recompute),
            "stage_lr": bool(stage_rates),
        }
        phases = asked.check_phases(phases, beside_phases)
    for phase in phases:
        cut_stages(sequence, phase.cuts)
        phase.check()
    asked.refuse_ignored(phases, executor, workers)
    # What is measured and told meanwhile.
    measured, measures = None, metrics_of(metrics)
    if validation is not None:
        measured = Validation(Supply(validation, unpack=unpack, seed=seed), loss, measures, seed, bf16)
    elif measures:
        raise PipelagError("metrics are given, and nothing to measure them on; give validation=...")
    wishes = Wishes(measured, evaluate_every, folder, on_step, on_evaluation, on_checkpoint, progress, tensorboard)
    wishes.check(checkpointed=checkpoints is not None)
    # The minibatches, and the training.
    sends = any(phase.cuts and not phase.method.data_parallel for phase in phases)
    even = executor == "real" and not uneven and sends
    asked.check_sizes(batches, sum(phase.steps for phase in phases), phases, even)
    supply = Supply(batches, asked.epochs_of(epochs), unpack, seed)
    how: dict[str, Any] = {"loss": asked.Loss(loss), "optimizer": make, "rate": rate, "seed": seed, "bf16": bf16}
    if executor == "simulated":
        how |= {"graphs": graphs, "grouped": grouped, "checkpoints": checkpoints, "every": checkpoint_every}
        values, evaluations = _simulated(sequence, supply, phases, wishes, place, **how)
    else:
        from pipelag.library.real import train_real

        how |= {"uneven": uneven, "threads": threads, "patience": patience}
        how |= {"workers": workers, "device": device, "checkpoints": checkpoints, "every": checkpoint_every}
        values, evaluations = train_real(sequence, supply, phases, wishes, **how)
    diverged_at = next((step for step, value in enumerate(values) if not math.isfinite(value)), None)
    if diverged_at is not None:
        warnings.warn(
            f"the loss is no number from step {diverged_at} on: the training diverged (see diverged_at)",
            stacklevel=2,
        )
    rows = [{"step": step, "loss": value} for step, value in enumerate(values)]
    return TrainedRun(sequence, rows, phases[-1].delays, diverged_at, evaluations)


def _places(model: nn.Module) -> dict[str, tuple[torch.Tensor, int]]:
    """Each parameter, and where it lies."""
    return {name: (value, value.data_ptr()) for name, value in model.named_parameters()}


@contextmanager
def _undisturbed(training: SimulatedTraining) -> Iterator[None]:
    """Around what is told: callbacks may compute with the model, in another mode and with gradients.

    Raises:
        PipelagError: one has put other tensors into the place of those that are trained.
    """
    before = _places(training.model)
    try:
        with unchanged_modes(training.model):
            yield
    finally:
        training.forget_gradients()
    after = _places(training.model)
    for name in before | after:
        was, now = before.get(name), after.get(name)
        if was is None or now is None or was[0] is not now[0] or was[1] != now[1]:
            raise PipelagError(
                f"a callback has put another tensor into the place of the model's '{name}', which is not "
                "trained; change weights in place (copy_, load_state_dict), and move or cast a copy of the model"
            )


def _simulated(
    model: nn.Sequential,
    supply: Supply,
    phases: Sequence[Phase],
    wishes: Wishes,
    place: torch.device,
    checkpoints: str | Path | None,
    every: int,
    **how: Any,
) -> tuple[list[float], list[dict[str, float]]]:
    """Train in this process; returns the losses and the evaluations. how: more that `SimulatedTraining` is told."""
    total = sum(phase.steps for phase in phases)
    with ExitStack() as opened:
        marks = wishes.kept_at(every, [total], total)
        like = lambda: rates_told(how["rate"], total) | loss_told(how["loss"].function)  # noqa: E731
        store = opened.enter_context(checkpoint_in(checkpoints, marks, phases, how["seed"], how["bf16"], like))
        callers = opened.enter_context(callers_randomness(place))
        training = opened.enter_context(closing(SimulatedTraining(model.to(place), phases, device=place, **how)))
        if wishes.validation is not None:  # an hour later would be late for a mistake
            wishes.validation.measure(model, place, most=1)
        model.train()
        saved = store.resume(training) if store is not None else None
        telling = opened.enter_context(Telling(wishes, total, supply.length, bar=True, resumed=saved is not None))
        if store is not None and saved is None:  # from here on the log is this training's
            store.save(training, telling)
        with suppress(Stop):
            if saved is not None:
                retell(saved, telling)
            seen = None if store is None else lambda pair: store.seen(data_told(supply.length, pair))
            pairs = noted(supply.first(total, training.done, seen), training.done)
            for inputs, targets in callers.while_drawing(pairs, waiting=supply.length is None):
                with TURN:
                    loss = training.step(to(inputs, place), to(targets, place))
                with _undisturbed(training) if wishes.follows else nullcontext():
                    telling.step(loss)
                    if telling.due:
                        telling.evaluate(model, place)
                if store is not None and training.done in store.marks:
                    store.save(training, telling)
        return telling.losses(), telling.evaluations
