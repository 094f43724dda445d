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
from pipelag.library.sizes import check_sizes
from pipelag.library.supply import Supply, noted, to
from pipelag.library.telling import Telling, Wishes
from pipelag.library.updating import factory_of, settings_told, usual
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

    model: the trained model, with the live version of every stage's weights. It is the `nn.Sequential` that was given,
        also after training on real workers; for a list of layers, it is an `nn.Sequential` of them.
    metrics: one row per step: `{"step", "loss"}`. Steps count from 0.
    delays: the staleness of each stage in the last phase, in updates.
    diverged_at: the first step whose loss was not a finite number; None if there is none.
    evaluations: one row per evaluation: `{"step", "epoch", "loss", "validation_loss", ...}` and the metrics by name.
        "step" is the number of steps done, "epoch" is present where the data have a length, and "loss" is the mean
        training loss since the row before.
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

    The model is put into training mode (`train()`) and stays in it; gradients that it already has are
    dropped. Evaluation, callbacks, logs and the progress bar do not change the training by a single bit.

    Args:
        model: an `nn.Sequential` or a list of layers. A layer may pass a tuple of tensors to the next.
        batches: minibatches as pairs (inputs, targets): a sequence that is indexed by the number of the minibatch, or
            any iterable, such as a `DataLoader`. Inputs and targets are each a tensor, or a tuple or a dict of tensors,
            and the first layer takes the inputs as one argument. The first dimension of every tensor is the batch.
        loss: a function (output, targets) -> scalar, the mean over the minibatch.
        optimizer: one of the following; by default SGD with learning rate 0.1 and momentum 0.9.
            An optimizer class, or a function that is called with parameter groups, one per stage.
            An optimizer over the model's parameters, of which the class and the settings of its groups are used.
            A registered name ("adamw"), or a mapping as in the config files, {"name": "adamw", "lr": 1e-3,
            "weight_decay": 0.01}. Settings that are left out have the defaults of the config files, so there is no
            weight decay.
        lr: the base learning rate, for an optimizer class, a registered name or the default optimizer. If it is left
            out, a class keeps its own default, and a registered name is refused.
        method: the name of a registered method, or a `Method`; "stale_weights" by default.
        cuts: the boundaries between stages: each number is the last layer of a stage, counted from 1. (2, 5) makes
            three stages.
        executor: "simulated", or "real", which starts one process per worker on this machine (see `workers`).
        microbatches: equal parts of each minibatch; the mean of their gradients makes one update.
        recompute: True: keep only the input of each stage, and run its forward again before its backward, to save
            memory. A number from 2 on: keep only the input of every so many stages (PipeMare Recompute).
        replicas: the number of workers of each stage (PipeDream's 1F1B-RR, section 3.2): the r replicas of a stage take
            minibatches in turn and make one update every r minibatches. Empty: one worker per stage.
        steps: the number of minibatches to train on; one epoch by default.
        epochs: how many times to go through the batches, which need a length; give it instead of `steps`. The batches
            are iterated anew for each epoch, so a `DataLoader` shuffles again. With `phases`: how many times their
            steps may go through the batches.
        phases: a list of `Phase`, for hybrid training. It replaces method, cuts, steps, microbatches, recompute,
            replicas and stage_lr, which cannot be given with it.
        rate: a function of the step (from 0), whose value multiplies all learning rates.
        stage_lr: base learning rates of single stages, by the number of the stage from 1.
        seed: of the random numbers. Dropout draws by (seed, minibatch, stage), the same in every executor. Numbered
            batches and their `unpack` draw from torch's, NumPy's and Python's generators by (seed, minibatch).
        device: "cpu", "cuda", or "auto" for a GPU where there is one (one for each worker). The real executor uses one
            GPU per worker with "cuda", and a single GPU for all workers with "cuda:0".
        precision: "fp32" or "bf16". With "bf16", passes (of validation too) use the weights rounded to bfloat16, while
            the optimizer updates float32 weights, which the trained model holds (docs/workflow.md).
        graphs: on a GPU, replay passes as CUDA graphs. This saves most of Python's time for small models and changes
            no bit of the result; steps that cannot be recorded run as usual (docs/workflow.md). Do not use it if the
            model or the loss depends on Python values outside of both that change from step to step.
        grouped: let the microbatches of a minibatch that read the same weights share passes. This saves kernel launches
            and changes rounding. Models that mix samples in other ways than batch norm are detected and run as usual.
        threads: CPU threads of each real worker.
        workers: the number of real processes. By default, the number of workers of the schedule: one per stage, or the
            sum of `replicas`; fewer where a worker holds several stages (1f1b_interleaved). Data-parallel methods need
            it: it is their number of replicas.
        uneven: minibatches differ in shape (sentences, say), so real workers send the shapes with every message.
        checkpoints: a folder for checkpoints, from which a later call continues, losses and evaluations included.
            Real workers: each stage writes its own files, and training continues from the newest complete set. It is
            bit-identical with the same pipeline; another pipeline (other cuts, more minibatches in flight) continues
            from the weights (PipeDream section 4).
            Simulated executor: the folder holds the newest checkpoint and the one before it, and only the same
            training (which may be longer) continues, bit-identically.
            A warning says if the rates, the loss or the data differ.
        checkpoint_every: minibatches between two checkpoints. Checkpoints are also written at evaluations and at the
            end of each phase (simulated: of the last phase).
        patience: seconds that a real worker may be silent before the run ends; by default the environment variable
            PIPELAG_PATIENCE, or 30.
        unpack: a function that turns an item of `batches` or `validation`, such as a dict, into (inputs, targets).
        validation: minibatches, as for `batches`, with an end. Each evaluation goes through all of them with the model
            in evaluation mode (`eval()`).
        metrics: functions (output, targets) -> one number per target, or their mean. Give a mapping from names to
            functions, or a list of functions, "accuracy" (%) and registered names (`pipelag.runs.objectives`).
        evaluate_every: steps between two evaluations; there is always one at the end. 0: only the one at the end, and
            only if validation, folder, on_evaluation or tensorboard needs it.
        folder: a folder for `metrics.jsonl`, which gets one line per evaluation, as in `TrainedRun.evaluations`.
        on_step: called with the number of each step, from 0, and its loss.
        on_evaluation: called with the number of steps done and the evaluation's values.
        on_checkpoint: called with the number of steps done and the folder of a complete set of checkpoints (real
            workers) or the newest file (simulated).
        progress: whether to show a progress bar on stderr; by default if stderr is a terminal.
        tensorboard: a folder for TensorBoard's event files; needs the package tensorboard.

    With real workers, callbacks and logs follow when a checkpoint is complete, in order: at evaluations, at the end of
    phases and every `checkpoint_every` minibatches. The calling process evaluates the model while the workers continue.

    A callback may raise `pipelag.Stop` to end the training (early stopping, a budget). `train` then returns the state
    after that step; with real workers, the state after the step of the checkpoint that the callback was told about.

    Raises:
        PipelagError: an argument that does not fit (`pipelag.asked`), too few minibatches, or a worker that failed.
            Exceptions of your own code are raised unchanged, with a note that names step, stage, layer and shapes.

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
        raise PipelagError("checkpoint_every is given, but no checkpoints are written; give checkpoints=... too")
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
                f"no cuts are given, so the method '{chosen.name}' trains one stage, where no weights are stale; give "
                "cuts=...",
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
        raise PipelagError("metrics are given, but there is no data to measure them on; give validation=... too")
    wishes = Wishes(measured, evaluate_every, folder, on_step, on_evaluation, on_checkpoint, progress, tensorboard)
    wishes.check(checkpointed=checkpoints is not None)
    # The minibatches, and the training.
    sends = any(phase.cuts and not phase.method.data_parallel for phase in phases)
    even = executor == "real" and not uneven and sends
    check_sizes(batches, phases, even, workers, unpack is not None)
    supply = Supply(batches, asked.epochs_of(epochs), unpack, seed)
    settings = settings_told(optimizer)
    how: dict[str, Any] = {"loss": asked.Loss(loss), "optimizer": make, "rate": rate, "seed": seed, "bf16": bf16}
    if executor == "simulated":
        how |= {"graphs": graphs, "grouped": grouped, "checkpoints": checkpoints, "every": checkpoint_every}
        values, evaluations = _simulated(sequence, supply, phases, wishes, place, **how)
    else:
        from pipelag.library.real import train_real

        how |= {"uneven": uneven, "threads": threads, "patience": patience}
        how |= {"workers": workers, "device": device, "checkpoints": checkpoints, "every": checkpoint_every}
        values, evaluations = train_real(sequence, supply, phases, wishes, **how)
    if settings_told(optimizer) != settings:
        warnings.warn(
            "the settings of the optimizer given were changed during the training, which had no effect: it only shows "
            "the settings at the start; give rate=lambda step: ..., a factor on its learning rate",
            stacklevel=2,
        )
    diverged_at = next((step for step, value in enumerate(values) if not math.isfinite(value)), None)
    if diverged_at is not None:
        warnings.warn(
            f"the loss at step {diverged_at} is not a finite number: the training diverged (see diverged_at)",
            stacklevel=2,
        )
    rows = [{"step": step, "loss": value} for step, value in enumerate(values)]
    return TrainedRun(sequence, rows, phases[-1].delays, diverged_at, evaluations)


def _places(model: nn.Module) -> dict[str, tuple[torch.Tensor, int]]:
    """Each parameter by its name, and the address of its memory."""
    return {name: (value, value.data_ptr()) for name, value in model.named_parameters()}


@contextmanager
def _undisturbed(training: SimulatedTraining, called: bool = True) -> Iterator[None]:
    """Around callbacks, which may compute with the model, in another mode and with gradients.

    Args:
        called: whether there are any this time, so that a longer look at the weights is worth its time.

    Raises:
        PipelagError: a callback has replaced a tensor that is trained, or has changed a copy of one.
    """
    before = _places(training.model)
    try:
        with unchanged_modes(training.model):
            yield
        training.refuse_lost_changes(called)
    except Stop:
        training.refuse_lost_changes()  # such as a return to the best weights
        raise
    finally:
        training.forget_gradients()
    after = _places(training.model)
    for name in before | after:
        was, now = before.get(name), after.get(name)
        if was is None or now is None or was[0] is not now[0] or was[1] != now[1]:
            raise PipelagError(
                f"a callback has replaced the model's '{name}' by another tensor, which would not be trained; "
                "change weights in place (copy_, load_state_dict), and move or cast only a copy of the model"
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
                with _undisturbed(training):
                    retell(saved, telling)
            seen = None if store is None else lambda pair: store.seen(data_told(supply.length, pair))
            pairs = noted(supply.first(total, training.done, seen), training.done)
            for inputs, targets in callers.while_drawing(pairs, waiting=supply.length is None):
                with TURN:
                    loss = training.step(to(inputs, place), to(targets, place))
                called = wishes.on_step is not None or training.done in telling.marks
                with _undisturbed(training, called) if wishes.follows else nullcontext():
                    telling.step(loss)
                    if telling.due:
                        telling.evaluate(model, place)
                if store is not None and training.done in store.marks:
                    with _undisturbed(training) if wishes.on_checkpoint is not None else nullcontext():
                        store.save(training, telling)
        return telling.losses(), telling.evaluations
