"""A run on real workers: phase after phase, each stage on the worker that owns it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipelag.distributed.replicas import ReplicaWorker
from pipelag.distributed.replicated import ReplicatedWorker, places
from pipelag.distributed.worker import Job, Loss, Record, StageWorker, check_real
from pipelag.errors import PipelagError
from pipelag.models.cut import stages
from pipelag.optim import OptimizerFactory
from pipelag.schedules.replicated import check_replicas
from pipelag.simulate.replicated import check_replicable
from pipelag.simulate.training import Phase, check_stage_rates

Inputs = Callable[[int], Any]


@dataclass
class RealTraining:
    """Training over phases on this job's workers; every rank makes one with equal arguments, and calls `run`.

    Every rank holds the whole model between phases, so that the next phase may cut it elsewhere; within a phase a rank
    trains its stage only.
    """

    job: Job
    model: nn.Sequential
    phases: Sequence[Phase]
    optimizer: OptimizerFactory
    loss: Loss
    rate: Callable[[int], float]
    seed: int
    snapshot_after: frozenset[int] = frozenset()
    state: dict[str, dict[str, Any]] = field(default_factory=dict)  # optimizer state by parameter name
    done: int = 0

    def __post_init__(self) -> None:
        self.model.to(self.job.device)
        for phase in self.phases:
            check_workers(phase, self.job.world)
            check_stage_rates(phase)

    def run_phase(self, phase: Phase, inputs: Inputs, targets: Inputs) -> dict[int, Record]:
        """One phase to its end, on all ranks; then every rank has the whole model. Returns the records by rank."""
        pieces = stages(self.model, phase.cuts)
        if phase.method.data_parallel:
            return self._run_replicas(phase, inputs, targets)
        self.job.phases += 1
        if phase.replicas:
            return self._run_replicated(phase, pieces, inputs, targets)
        mine = self.job.rank < len(pieces)
        part: dict[str, Any] = {}
        if mine:
            piece = pieces[self.job.rank]
            worker = StageWorker(
                self.job,
                self.job.rank + 1,
                len(pieces),
                piece,
                phase.method,
                self.optimizer,
                self.loss,
                self.rate,
                self.seed,
                self.done,
                phase.steps,
                phase.stage_lr,
                self.snapshot_after,
                phase.microbatches,
                bool(phase.recompute),
            )
            part = self._perform(worker, piece, inputs, targets)
        self.done += phase.steps
        return self._share(part)

    def _perform(
        self, worker: StageWorker | ReplicatedWorker, piece: nn.Module, inputs: Inputs, targets: Inputs
    ) -> dict[str, Any]:
        """A worker's phase, and what of it goes to all ranks."""
        names = names_of(self.model, worker.flat.parameters)
        worker.load_optimizer_state({i: self.state[n] for i, n in enumerate(names) if n in self.state})
        record = worker.run(inputs, targets)
        held = names_in(self.model, piece)
        record.snapshots = {
            step: {held[name]: value.cpu() for name, value in kept.items()} for step, kept in record.snapshots.items()
        }
        return {
            "record": record,
            # Clones: pickling a view would carry the stage's whole flat buffer along with each parameter.
            "weights": {held[name]: value.detach().cpu().clone() for name, value in piece.state_dict().items()},
            "optimizer": {names[i]: values for i, values in worker.optimizer_state().items()},
        }

    def _run_replicated(
        self, phase: Phase, pieces: list[nn.Sequential], inputs: Inputs, targets: Inputs
    ) -> dict[int, Record]:
        """A phase of replicated stages; the model is that of each stage's first replica."""
        rounds = lcm(*phase.replicas)
        late = [step for step in self.snapshot_after if step % rounds]
        if late:
            raise PipelagError(
                f"an evaluation after {min(late)} steps falls into a round of the replicas {list(phase.replicas)}; "
                f"evaluate every {rounds} steps or a multiple of that"
            )
        stage, replica = places(phase.replicas)[self.job.rank]
        piece = pieces[stage - 1]
        worker = ReplicatedWorker(
            self.job,
            phase.replicas,
            piece,
            self.optimizer,
            self.loss,
            self.rate,
            self.seed,
            self.done,
            phase.steps,
            phase.stage_lr,
            self.snapshot_after,
        )
        part = self._perform(worker, piece, inputs, targets)
        self.done += phase.steps
        records = self._share(part if replica == 0 else {"record": part["record"]})
        # The last stage's replicas took minibatches in turn: their losses, in the order of the minibatches.
        count, world = phase.replicas[-1], self.job.world
        parts = [records[rank].losses for rank in range(world - count, world)]
        ordered = [parts[m % count][m // count] for m in range(count * len(parts[0]))]
        records[world - 1].losses = ordered
        return records

    def _run_replicas(self, phase: Phase, inputs: Inputs, targets: Inputs) -> dict[int, Record]:
        """A data-parallel phase; rank 0's copy is the model (all have equal weights, its running statistics count)."""
        job, start = self.job, self.done
        worker = ReplicaWorker(
            job, self.model, self.optimizer, self.loss, self.rate, self.seed, start, phase.steps, self.snapshot_after
        )
        names = names_of(self.model, worker.parameters)
        if worker.optimizer is not None:
            for parameter, name in zip(worker.parameters, names, strict=True):
                if name in self.state:
                    worker.optimizer.state[parameter] = self.state[name]
        record = worker.run(inputs, targets)
        self.done += phase.steps
        if job.rank:
            return self._share({})
        state = worker.optimizer.state if worker.optimizer is not None else {}
        return self._share(
            {
                "record": record,
                "weights": {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()},
                "optimizer": {n: state[p] for p, n in zip(worker.parameters, names, strict=True) if p in state},
            }
        )

    def _share(self, part: dict[str, Any]) -> dict[int, Record]:
        parts: list[dict[str, Any]] = [{}] * self.job.world
        dist.all_gather_object(parts, part)
        merged = {name: value for each in parts for name, value in each.get("weights", {}).items()}
        self.model.load_state_dict(merged)
        for each in parts:
            for name, values in each.get("optimizer", {}).items():
                self.state[name] = {key: _to(value, self.job.device) for key, value in values.items()}
        return {rank: each["record"] for rank, each in enumerate(parts) if each}

    def run(self, inputs: Inputs, targets: Inputs) -> list[dict[int, Record]]:
        """All phases."""
        return [self.run_phase(phase, inputs, targets) for phase in self.phases]


def check_workers(phase: Phase, workers: int) -> None:
    """Refuse a phase that does not fit: the real executor runs one stage per worker, or one stage on rank 0 alone."""
    check_real(phase.method, phase.stages)
    if phase.method.data_parallel and phase.cuts:
        raise PipelagError(
            f"method '{phase.method.name}' replicates the whole model, so the cuts {list(phase.cuts)} mean nothing to "
            "it; give none"
        )
    if phase.recompute > 1:
        raise PipelagError(
            f"real workers recompute stage by stage (recompute=True), not {int(phase.recompute)} stages together; the "
            "simulated executor does both"
        )
    if phase.replicas:
        check_replicable(phase.method, phase.microbatches, phase.recompute)
        check_replicas(phase.replicas, phase.stages, phase.steps)
        if sum(phase.replicas) != workers:
            raise PipelagError(
                f"the replicas {list(phase.replicas)} need {sum(phase.replicas)} workers, not {workers}; a phase of "
                "replicated stages uses all workers"
            )
        return
    if phase.stages == workers or phase.stages == 1:
        return
    if workers > phase.stages:
        raise PipelagError(
            f"{workers} workers are more than the {phase.stages} stages that the cuts {list(phase.cuts)} make; "
            f"use {phase.stages} workers or add cuts"
        )
    raise PipelagError(
        f"{phase.stages} stages need {phase.stages} workers in the real executor, not {workers}; "
        f"use {phase.stages} workers, or {workers - 1} cuts"
    )


def names_of(model: nn.Module, parameters: Sequence[nn.Parameter]) -> list[str]:
    """The full names in `model` of these parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for parameter in parameters]


def names_in(model: nn.Module, piece: nn.Module) -> dict[str, str]:
    """From a name within a stage to the name within the whole model, for parameters and buffers.

    Stages share their layers with the model, so modules are matched by identity.
    """
    whole = {id(module): name for name, module in model.named_modules()}
    names = {}
    for name in piece.state_dict():
        path, _, leaf = name.rpartition(".")
        owner = whole[id(piece.get_submodule(path))]
        names[name] = f"{owner}.{leaf}" if owner else leaf
    return names


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) and value.dim() else value
