"""The library's main function, `train`, for a researcher with their own model. Runs from configs are in `runs/`."""

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

    model: the trained model, with the live version of every stage's weights. It is the same `nn.Sequential` that was
        given, with real workers too; if a list was given, a Sequential of its layers.
    metrics: one row per step done: `{"step", "loss"}`; steps count from 0.
    delays: the staleness of each stage in the last phase, in updates.
    diverged_at: the first step whose loss was not finite; None if there was none.
    evaluations: one row per evaluation: `{"step" (steps done), "epoch" (if the data have a length), "loss" (the mean
        training loss since the row before), "validation_loss", ...}` and each metric by its name.
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

    Evaluations, logs and callbacks do not change the training by a bit. The model is trained in training mode
    (`train()`), whatever mode it was given in; gradients that it already has are dropped.

    Args:
        model: an `nn.Sequential` or a list of layers; a layer may pass a tuple of tensors to the next.
        batches: minibatches as (inputs, targets): indexable by minibatch number, or any iterable, such as a
            `DataLoader`. The first dimension of every tensor is the batch. Inputs and targets are each a tensor, or a
            tuple or a dict of tensors; the first layer takes the inputs as one argument.
        loss: (output, targets) -> scalar, the mean over the minibatch.
        optimizer: an optimizer's class; a function called with parameter groups, one per stage; an instance over the
            model's parameters, of which only the class and the groups' settings are used; a registered name ("adamw");
            or a mapping as in the config files, {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01}. The default is SGD
            with rate 0.1 and momentum 0.9.
        lr: the base learning rate of a class, of a name, or of the default optimizer. Without it a class uses its own
            default, and a name is refused. A name's other settings have the defaults of the config files: no decay.
        method: a registered name or a `Method`; by default stale_weights.
        cuts: stage boundaries, each named by the layer before it, counted from 1: (2, 5) makes three stages.
        executor: "simulated", or "real" with processes on this machine, one per worker of the schedule: usually one per
            stage (see `workers`).
        microbatches: equal parts of each minibatch; their mean gradient makes one update.
        recompute: to save memory, keep only each stage's input and run its forward again before its backward. A number
            from 2 on does so for segments of that many stages (PipeMare Recompute).
        replicas: workers of each stage (PipeDream's 1F1B-RR, section 3.2): r replicas of a stage take its minibatches
            in turn, and every r minibatches make one update. Empty: one worker each.
        steps: minibatches to train on; by default, those of one epoch.
        epochs: how often to go through `batches`, instead of steps; they must have a length. Each time they are
            iterated again (a `DataLoader` shuffles). With phases: how often their steps may go through `batches`.
        phases: a list of `Phase`, e.g. for hybrid training. It replaces method, cuts, steps, microbatches, recompute,
            replicas and stage_lr, which are refused with it.
        rate: step -> the factor on all learning rates.
        stage_lr: base learning rates of single stages, by number.
        seed: dropout draws per (seed, minibatch, stage), the same in every executor. When numbered batches are looked
            up and unpacked, torch's, NumPy's and Python's generators draw per (seed, minibatch).
        device: "cpu", "cuda", or "auto", which is a GPU if there is one (for each worker). The real executor uses one
            GPU per stage; with "cuda:0" all stages use that one.
        precision: "fp32" or "bf16". With "bf16", passes, those of validation too, read the weights rounded to bfloat16.
            The optimizer updates master weights in float32, which the model holds in the end (docs/workflow.md).
        graphs: on a GPU, replay passes as CUDA graphs. This saves small models most of Python's time and does not
            change a bit. Steps that cannot be recorded run as usual (docs/workflow.md). Do not use it if the model or
            the loss depends on Python values outside of them that change from step to step.
        grouped: let microbatches of a minibatch that read the same weights share passes. This saves kernel launches and
            changes rounding. A model that mixes samples, except by batch norm, is detected and runs as usual.
        threads: CPU threads of each real worker.
        workers: the number of real processes. The default is the number of the schedule's workers: one per stage, or
            the sum of `replicas`, or fewer if a worker holds several stages (1f1b_interleaved). For data-parallel
            methods give the number of replicas.
        uneven: minibatches differ in shape (sentences), so real workers send the shapes with every message.
        checkpoints: a folder for checkpoints. If it holds any, training resumes from the newest, and the steps and
            evaluations before it are reported again. With real workers each stage writes its own; training resumes from
            the newest complete set: bit for bit with the same pipeline, or from its weights with another one (other
            cuts, more minibatches in flight; PipeDream, section 4). The simulated executor keeps two files, the newest
            checkpoint and the one before it; only the same training, or a longer one, can resume, bit for bit. A
            warning says so if the rates, the loss or the data have changed.
        checkpoint_every: minibatches between two checkpoints. In any case there is one at each evaluation and at the
            end of each phase (of the last one, if simulated).
        patience: seconds that a real worker may be silent before the run ends; None: PIPELAG_PATIENCE, or 30.
        unpack: makes (inputs, targets) from an item of `batches` or `validation`, e.g. from a dict.
        validation: a finite number of minibatches, in the form of `batches`. Every evaluation goes through all of them,
            with the model in evaluation mode (`eval()`).
        metrics: a mapping of names to functions, or a list of functions, "accuracy" (%) and registered names
            (`pipelag.runs.objectives`). A function takes (output, targets) and returns a number for each target, or
            their mean.
        evaluate_every: steps between two evaluations; there is also one at the end. 0: only that one, and only if
            validation, folder, on_evaluation or tensorboard needs it.
        folder: a folder whose `metrics.jsonl` gets a line per evaluation, as in `TrainedRun.evaluations`.
        on_step: called with each step's number, from 0, and its loss.
        on_evaluation: called with the number of steps done and the evaluation's row.
        on_checkpoint: called with the number of steps done and the folder of a complete set of checkpoints, or the
            newest file if simulated.
        progress: whether to show a progress bar on stderr; by default if that is a terminal.
        tensorboard: a folder for TensorBoard's event files; needs its package.

    With real workers, steps and evaluations are reported in order whenever a checkpoint is complete: at evaluations, at
    the end of phases, and every `checkpoint_every` minibatches. The calling process measures the model while the
    workers go on.

    A callback that raises `pipelag.Stop` ends the training (early stopping, a budget). The result is that after the
    step just done; with real workers, that after the step of the checkpoint that was reported.

    Raises:
        PipelagError: an argument does not fit (`pipelag.asked`), there are too few minibatches, or a worker failed. An
            exception from your own code is passed on, with a note of the step, stage, layer and shapes.

    >>> from torch import nn
    >>> data = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])) for _ in range(8)]
    >>> run = train([nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)], data, method="stale_weights", cuts=(1,))
    >>> run.delays.forward
    (2, 0)
    """
    # Arguments that can be checked one by one.
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
    # The phases: those given, or one made from the other arguments.
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
    # What is measured and reported meanwhile.
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
    """Each parameter by its name, and the address of its memory."""
    return {name: (value, value.data_ptr()) for name, value in model.named_parameters()}


@contextmanager
def _undisturbed(training: SimulatedTraining) -> Iterator[None]:
    """Around callbacks, which may compute with the model, in another mode and with gradients.

    Raises:
        PipelagError: a callback has replaced a tensor that is trained.
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
    """Train in this process; returns the losses and the evaluations. how: further arguments of `SimulatedTraining`."""
    total = sum(phase.steps for phase in phases)
    with ExitStack() as opened:
        marks = wishes.kept_at(every, [total], total)
        like = lambda: rates_told(how["rate"], total) | loss_told(how["loss"].function)  # noqa: E731
        store = opened.enter_context(checkpoint_in(checkpoints, marks, phases, how["seed"], how["bf16"], like))
        callers = opened.enter_context(callers_randomness(place))
        training = opened.enter_context(closing(SimulatedTraining(model.to(place), phases, device=place, **how)))
        if wishes.validation is not None:  # find a mistake in it now, not an hour later
            wishes.validation.measure(model, place, most=1)
        model.train()
        saved = store.resume(training) if store is not None else None
        telling = opened.enter_context(Telling(wishes, total, supply.length, bar=True, resumed=saved is not None))
        if store is not None and saved is None:  # from now on the log belongs to this training
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
