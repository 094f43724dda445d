"""A run on real workers: phase after phase, each stage on the worker that owns it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipelag.distributed.checkpoints import Checkpoints, Keeper
from pipelag.distributed.peers import TorchWorker
from pipelag.distributed.replicas import ReplicaWorker
from pipelag.distributed.replicated import ReplicatedWorker, places
from pipelag.distributed.server import AsynchronousWorker
from pipelag.distributed.stage import StageWorker, check_real
from pipelag.distributed.worker import Assignment, Job, Loss, Record, Worker
from pipelag.errors import PipelagError
from pipelag.models.cut import stages
from pipelag.optim import OptimizerFactory
from pipelag.recompute import segmented
from pipelag.schedules.replicated import check_replicas
from pipelag.simulate.replicated import check_replicable
from pipelag.simulate.training import Phase, check_stage_rates

Inputs = Callable[[int], Any]


@dataclass
class RealTraining:
    """Training over phases on this job's workers; every rank makes one with equal arguments, and calls `run`.

    Every rank holds the whole model between phases, so that the next phase may cut it elsewhere; within a phase a rank
    trains its stage only.

    Args:
        rate: the factor on the base rate at a step of the run.
        uneven: minibatches differ in shape, so that every message has to tell its own.
        checkpoints: where each stage writes its part, and whence `resume` goes on.
    """

    job: Job
    model: nn.Sequential
    phases: Sequence[Phase]
    optimizer: OptimizerFactory
    loss: Loss
    rate: Callable[[int], float]
    seed: int
    checkpoints: Checkpoints | None = None
    uneven: bool = False
    state: dict[str, dict[str, Any]] = field(default_factory=dict)  # optimizer state by parameter name
    done: int = 0
    losses: list[float] = field(default_factory=list)  # of every minibatch done, on all ranks
    parts: list[dict[str, Any]] = field(default_factory=list)  # the stages' restarts, until the phase goes on
    kinds: set[str] = field(default_factory=set)  # of optimizer, whose state a restart has found
    seconds: float = 0.0  # spent in phases so far, before a restart too

    def __post_init__(self) -> None:
        self.model.to(self.job.device)
        self.job.uneven = self.uneven
        if any(phase.recompute > 1 for phase in self.phases):
            self.job.recomputation()  # here, for all ranks make it or none
        for phase in self.phases:
            check_workers(phase, self.job.world)
            check_stage_rates(phase)

    def resume(self, step: int) -> None:
        """Go on from the complete set of checkpoints after `step` minibatches.

        Raises:
            PipelagError: they are another model's, or those of a longer run.
        """
        assert self.checkpoints is not None
        folder, total = self.checkpoints.at(step), sum(phase.steps for phase in self.phases)
        if step > total:
            raise PipelagError(
                f"the checkpoints in {folder} are of step {step}, and only {total} are to be trained; train more, or "
                "delete them"
            )
        try:
            self.model.load_state_dict(self.checkpoints.model(step))
        except RuntimeError as error:
            raise PipelagError(
                f"the checkpoints in {folder} are those of another model; go on with that model, or delete them to "
                "start anew"
            ) from error
        self.parts = self.checkpoints.parts(step, "resume")
        if not self.parts:
            raise PipelagError(
                f"{folder} lacks the files resume-*.pt, without which no restart is right; delete {folder}"
            )
        for part in self.parts:
            self._adopt(part["optimizer"])
        self.kinds = {part["kind"] for part in self.parts if part["optimizer"]}
        self.losses, self.done = self.checkpoints.losses(step), step
        self.seconds = max(part["seconds"] for part in self.parts)

    def run_phase(
        self, phase: Phase, inputs: Inputs, targets: Inputs, offset: int = 0, kept: bool = False
    ) -> dict[int, Record]:
        """One phase to its end, on all ranks; then every rank has the whole model. Returns the records by rank.

        Args:
            offset: minibatches of the phase that are done already. kept: write checkpoints.
        """
        self.job.phases += 1
        pieces = stages(self.model, phase.cuts)
        told = Assignment(phase, self.optimizer, self.loss, self.rate, self.seed, self.done, offset)
        if phase.method.data_parallel:
            stage, replica, piece = 1, self.job.rank, self.model
        elif phase.replicas:
            stage, replica = places(phase.replicas)[self.job.rank]
            piece = pieces[stage - 1]
        else:
            stage, replica = self.job.rank + 1, 0
            piece = pieces[stage - 1] if stage <= len(pieces) else nn.Sequential()
        part: dict[str, Any] = {}
        self.job.meet(*conversations(self.job, phase))
        if stage <= len(pieces):
            keeper, again = self._keeper(told, stage, replica, piece) if kept else (None, None)
            check_rounds(phase.replicas, told.marks(keeper))
            worker: Worker
            if phase.method.parameter_server:
                worker = AsynchronousWorker(self.job, piece, told, keeper)
            elif phase.method.data_parallel:
                worker = ReplicaWorker(self.job, piece, told, keeper)
            elif phase.method.torch_schedule:
                worker = TorchWorker(self.job, pieces, told, keeper)
            elif phase.replicas:
                worker = ReplicatedWorker(self.job, piece, told, keeper, again)
            else:
                worker = StageWorker(self.job, piece, told, keeper, again)
            part = self._perform(worker, piece, inputs, targets)
            if replica:  # equal to the first replica's, but for what the worker saw
                part = {"record": part["record"]}
        self.done += told.steps
        self.parts = []
        records = self._share(part)
        self.losses += [float(loss) for loss in losses_of(phase, records, self.job.world)]
        return records

    def _perform(self, worker: Worker, piece: nn.Module, inputs: Inputs, targets: Inputs) -> dict[str, Any]:
        """A worker's phase, and what of it goes to all ranks."""
        names = names_of(self.model, list(piece.parameters()))
        kind = type(worker.optimizer).__name__
        if worker.optimizer is not None and self.kinds - {kind}:
            raise PipelagError(
                f"the checkpoints hold the state of {', '.join(sorted(self.kinds))}, and this run has {kind}; go on "
                "with the same optimizer, or delete them to start anew"
            )
        worker.load_optimizer_state({i: self.state[n] for i, n in enumerate(names) if n in self.state})
        record = worker.run(inputs, targets)
        held = names_in(self.model, piece)
        return {
            "record": record,
            # Clones: pickling a view would carry the stage's whole flat buffer along with each parameter.
            "weights": {held[name]: value.detach().cpu().clone() for name, value in piece.state_dict().items()},
            "optimizer": {names[i]: values for i, values in worker.optimizer_state().items()},
        }

    def _keeper(
        self, told: Assignment, stage: int, replica: int, piece: nn.Module
    ) -> tuple[Keeper | None, dict[str, Any] | None]:
        """What writes this stage's checkpoints, and the policy's state where the phase goes on as it was."""
        if self.checkpoints is None:
            return None, None
        phase = told.phase
        begin, lags = told.start - told.offset, phase.method.delays(phase.stages, phase.microbatches).forward_lags
        about = (
            f"{phase.method.name}, cuts {phase.cuts}, {phase.microbatches} microbatches, replicas {phase.replicas}, "
        )
        about += f"recompute {phase.recompute}, from step {begin}, lags {lags}"
        same = len(self.parts) == phase.stages and all(part["about"] == about for part in self.parts)
        clock = self.parts[stage - 1]["clock"] if same and replica == 0 else {}
        names, held = names_of(self.model, list(piece.parameters())), names_in(self.model, piece)
        keeper = Keeper(self.checkpoints, about, stage, phase.stages, held, names, clock, self.seconds, told.start)
        return keeper, self.checkpoints.policy(told.start, stage, phase.stages) if same else None

    def _share(self, part: dict[str, Any]) -> dict[int, Record]:
        parts: list[dict[str, Any]] = [{}] * self.job.world
        self.job.arrive()
        dist.all_gather_object(parts, part)
        merged = {name: value for each in parts for name, value in each.get("weights", {}).items()}
        self.model.load_state_dict(merged)
        for each in parts:
            self._adopt(each.get("optimizer", {}))
        return {rank: each["record"] for rank, each in enumerate(parts) if each}

    def _adopt(self, state: dict[str, dict[str, Any]]) -> None:
        for name, values in state.items():
            self.state[name] = {key: _to(value, self.job.device) for key, value in values.items()}

    def run(self, inputs: Inputs, targets: Inputs) -> list[dict[int, Record]]:
        """All phases, or what is left of them; no records of those that were done before."""
        records, first = [], 0
        for phase in self.phases:
            began = time.perf_counter()
            left = first + phase.steps > self.done
            offset = max(0, self.done - first)
            records.append(self.run_phase(phase, inputs, targets, offset, kept=True) if left else {})
            self.seconds += time.perf_counter() - began
            first += phase.steps
        return records


def conversations(job: Job, phase: Phase) -> tuple[set[tuple[int, int]], list[dist.ProcessGroup | None]]:
    """The pairs of ranks that send each other messages in a phase, and the groups in which they do."""
    if phase.method.data_parallel or phase.stages == 1:
        return set(), []  # collectives, in which all meet anyway
    if phase.method.torch_schedule:
        return {(rank, rank + 1) for rank in range(phase.stages - 1)}, [None]
    groups: list[dist.ProcessGroup | None] = [job.forward, job.backward]
    groups += [job.recomputation()] if phase.recompute > 1 else []
    counts = phase.replicas or (1,) * phase.stages
    first = [sum(counts[:stage]) for stage in range(phase.stages)]
    pairs = {
        (first[stage] + m % counts[stage], first[stage + 1] + m % counts[stage + 1])
        for stage in range(phase.stages - 1)
        for m in range(lcm(counts[stage], counts[stage + 1]))
    }
    return pairs, groups


def losses_of(phase: Phase, records: dict[int, Record], world: int) -> list[torch.Tensor]:
    """A phase's losses in the order of its minibatches."""
    if not phase.replicas:
        return records[0 if phase.method.data_parallel else max(records)].losses
    # The last stage's replicas took minibatches in turn.
    count = phase.replicas[-1]
    parts = [records[rank].losses for rank in range(world - count, world)]
    return [parts[m % count][m // count] for m in range(count * len(parts[0]))]


def check_workers(phase: Phase, workers: int) -> None:
    """Refuse a phase that does not fit: the real executor runs one stage per worker, or one stage on rank 0 alone."""
    check_real(phase.method, phase.stages)
    if phase.method.data_parallel and phase.cuts:
        raise PipelagError(
            f"method '{phase.method.name}' replicates the whole model, so the cuts {list(phase.cuts)} mean nothing to "
            "it; give none"
        )
    if phase.recompute > 1:
        segmented(phase.method, phase.stages, 1, phase.microbatches, int(phase.recompute))
    if phase.method.torch_schedule and phase.stages != workers:
        raise PipelagError(
            f"method '{phase.method.name}' needs a stage for each of the {workers} workers, not {phase.stages}; use "
            "gpipe or 1f1b_flush"
        )
    if phase.method.torch_schedule and phase.recompute:
        raise PipelagError(f"method '{phase.method.name}' keeps its activations; recompute with gpipe or 1f1b_flush")
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


def names_in(model: nn.Sequential, piece: nn.Module) -> dict[str, str]:
    """From a name within a stage to the name within the whole model, for parameters and buffers.

    A stage's layers are some of the model's, one after the other.
    """
    if piece is model:
        return {name: name for name in model.state_dict()}
    children, own = list(model._modules.items()), list(piece._modules.items())
    first = next(k for k in range(len(children)) if [c for _, c in children[k : k + len(own)]] == [c for _, c in own])
    return {
        f"{local}.{leaf}": f"{name}.{leaf}"
        for (local, layer), (name, _) in zip(own, children[first:], strict=False)
        if layer is not None
        for leaf in layer.state_dict()
    }


def check_rounds(replicas: Sequence[int], marks: Sequence[int]) -> None:
    """Refuse a checkpoint inside a round of the replicas, which then have no common weights."""
    rounds = lcm(*replicas)
    late = [mark for mark in marks if mark % rounds]
    if late:
        raise PipelagError(
            f"an evaluation after {late[0]} steps of the phase falls into a round of the replicas {list(replicas)}; "
            f"evaluate every {rounds} steps or a multiple of that"
        )


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) and value.dim() else value
