"""The library's face: `train` for a researcher with a model of their own (the config-driven runs are in `runs/`)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipelag import methods
from pipelag.checkpoint import alone
from pipelag.errors import PipelagError, unknown
from pipelag.methods import Method
from pipelag.models.cut import layers_of
from pipelag.models.cut import stages as cut_stages
from pipelag.randomness import preserved_randomness
from pipelag.schedules import Delays
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.optimizers import OptimizerFactory
from pipelag.stage.phase import Phase

EXECUTORS = ("simulated", "real")


@dataclass(frozen=True)
class TrainedRun:
    """What `train` returns.

    model: the trained model, live version of every stage (the very object given, for the simulated executor).
    metrics: one row per step: `{"step", "loss"}`.
    delays: the staleness per stage of the (last) phase, in updates.
    diverged_at: the first step whose loss was no number; None where there is none.
    """

    model: nn.Sequential
    metrics: list[dict[str, float]]
    delays: Delays
    diverged_at: int | None


def train(
    model: nn.Sequential | Sequence[nn.Module],
    batches: Any,
    *,
    loss: Callable[[Any, torch.Tensor], torch.Tensor] = nn.functional.cross_entropy,
    optimizer: OptimizerFactory = lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    method: str | Method = "stale_weights",
    cuts: Sequence[int] = (),
    executor: str = "simulated",
    microbatches: int = 1,
    recompute: bool | int = False,
    replicas: Sequence[int] = (),
    steps: int | None = None,
    phases: Sequence[Phase] | None = None,
    rate: Callable[[int], float] = lambda step: 1.0,
    stage_lr: dict[int, float] | None = None,
    seed: int = 0,
    device: str = "cpu",
    threads: int = 1,
    workers: int | None = None,
    uneven: bool = False,
    checkpoints: str | Path | None = None,
    checkpoint_every: int = 0,
) -> TrainedRun:
    """Train a model as a pipeline would.

    Args:
        model: an `nn.Sequential` or a list of layers; a layer may pass a tuple of tensors to the next.
        batches: minibatches as (inputs, targets): indexable by minibatch number, or any iterable.
        loss: (output, targets) -> scalar.
        optimizer: called with parameter groups, one per stage.
        method: a registered name or a `Method`.
        cuts: stage boundaries, "after layer p" counted from 1: (2, 5) makes three stages.
        executor: "simulated", or "real" with one process per stage on this machine.
        microbatches: equal parts of each minibatch; their mean gradient makes one update.
        recompute: keep each stage's input alone and run its forward again before its backward, to save memory; a
            number from 2 on: that of so many stages together (PipeMare Recompute).
        replicas: workers of each stage (PipeDream's 1F1B-RR, section 3.2): r replicas of a stage take its minibatches
            in turn and make one update of every r. None: one each.
        steps: minibatches to train on; needed unless `batches` has a length or `phases` are given.
        phases: instead of method, cuts and steps: a list of `Phase`, e.g. hybrid training.
        rate: the factor on all learning rates at a step.
        stage_lr: base learning rates of single stages.
        seed: of dropout: draws are made per (seed, minibatch, stage), the same in every executor.
        device: "cpu" or "cuda"; the real executor then uses one GPU per stage.
        threads: CPU threads of each real worker.
        workers: real processes; one per stage by default, and the number of replicas of data-parallel methods.
        uneven: minibatches differ in shape (sentences): real workers then tell each other the shapes of every message.
        checkpoints: a folder in which each real stage writes its own; where it holds a complete set, training goes on
            from the newest: bit for bit with the same pipeline, with another one (other cuts, more minibatches in
            flight) from its weights (PipeDream section 4).
        checkpoint_every: minibatches between two checkpoints; there is one at the end of each phase anyway.

    Raises:
        PipelagError: cuts that do not fit the model, an unknown method or executor, too few minibatches,
            a failed worker.

    >>> from torch import nn
    >>> data = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])) for _ in range(8)]
    >>> run = train([nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)], data, method="stale_weights", cuts=(1,))
    >>> run.delays.forward
    (2, 0)
    """
    if executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    if phases is None:
        if steps is None:
            if not hasattr(batches, "__len__"):
                raise PipelagError("how long to train is not given: pass steps=..., since the batches have no length")
            steps = len(batches)
        phases = [
            Phase(
                methods.get(method), steps, tuple(cuts), dict(stage_lr or {}), microbatches, recompute, tuple(replicas)
            )
        ]
    for phase in phases:
        phase.check()
    total = sum(phase.steps for phase in phases)
    sequence = model if isinstance(model, nn.Sequential) else nn.Sequential(*layers_of(model))
    for phase in phases:
        cut_stages(sequence, phase.cuts)
    sequence.train()
    if executor == "simulated":
        if checkpoints is not None:
            raise PipelagError(
                "checkpoints are written by the stages of executor='real'; leave them out here, or use `pipelag run`, "
                "which keeps simulated runs safe too"
            )
        place = torch.device(device)
        with preserved_randomness(place) as callers:
            training = SimulatedTraining(sequence.to(place), phases, optimizer, loss, rate, seed, place)
            losses = []
            for inputs, targets in callers.while_drawing(_first(batches, total)):
                losses.append(training.step(_to(inputs, place), _to(targets, place)))
        values = torch.stack(losses).double().tolist()
    else:
        kept = _checkpoints(checkpoints, checkpoint_every, phases)
        how = {"phases": list(phases), "optimizer": optimizer, "loss": loss, "rate": rate, "seed": seed}
        how |= {"uneven": uneven, "checkpoints": kept}
        with alone(kept.folder) if kept is not None else nullcontext():
            values = _train_real(sequence, batches, total, workers, device, threads, how)
    last = phases[-1]
    diverged_at = next((step for step, value in enumerate(values) if not math.isfinite(value)), None)
    rows = [{"step": step, "loss": value} for step, value in enumerate(values)]
    return TrainedRun(sequence, rows, last.delays, diverged_at)


def _train_real(
    model: nn.Sequential,
    batches: Any,
    total: int,
    count: int | None,
    device: str,
    threads: int,
    how: dict[str, Any],
) -> list[float]:
    from pipelag.distributed.launch.launch import launch
    from pipelag.distributed.training import check_workers

    phases, kept = how["phases"], how["checkpoints"]
    workers = count or max(sum(phase.replicas) or phase.stages for phase in phases)
    for phase in phases:
        check_workers(phase, workers)
    indexed = batches if hasattr(batches, "__getitem__") else list(_first(batches, total))
    resume = kept.rewind() if kept is not None else 0
    alike = copy.deepcopy(model).cpu()
    state, values = launch(_real_task, workers, device, threads, model=alike, batches=indexed, resume=resume, **how)
    model.load_state_dict(state)
    return values  # type: ignore[no-any-return]


def _real_task(job: Any, model: nn.Sequential, batches: Any, **how: Any) -> tuple[dict[str, torch.Tensor], list[float]]:
    from pipelag.distributed.training import RealTraining

    resume = how.pop("resume")
    training = RealTraining(job, model.train(), **how)
    if resume:
        training.resume(resume)
    training.run(
        lambda step: _to(batches[step][0], job.device),
        lambda step: _to(batches[step][1], job.device),
    )
    return {name: value.cpu() for name, value in model.state_dict().items()}, training.losses


def _checkpoints(folder: str | Path | None, every: int, phases: Sequence[Phase]) -> Any:
    from pipelag.distributed.checkpoints import Checkpoints

    if folder is None:
        return None
    ends = list(accumulate(phase.steps for phase in phases))
    return Checkpoints(Path(folder), frozenset({*range(every, ends[-1], every), *ends} if every else ends))


def _first(batches: Any, count: int) -> Iterable[tuple[Any, torch.Tensor]]:
    """The first `count` minibatches, by number or in order; too few are refused."""
    if hasattr(batches, "__getitem__"):
        if hasattr(batches, "__len__") and len(batches) < count and not hasattr(batches, "epoch"):
            raise PipelagError(
                f"{count} steps need {count} minibatches, and there are {len(batches)}; train fewer steps"
            )
        yield from (batches[step] for step in range(count))
        return
    taken = 0
    for pair in islice(batches, count):
        taken += 1
        yield pair
    if taken < count:
        raise PipelagError(f"{count} steps need {count} minibatches, and there were only {taken}; train fewer steps")


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(_to(item, device) for item in value)
    return value.to(device) if isinstance(value, torch.Tensor) else value
