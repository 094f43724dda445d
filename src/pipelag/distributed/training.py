"""A training on real workers: phase after phase, each stage on the worker that holds it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from pipelag.distributed.checkpoints import Checkpoints, CheckpointWriter, on_cpu, told_of, training_of
from pipelag.distributed.feasible import check_marks, check_messages, check_precision, check_workers
from pipelag.distributed.gather import gathered
from pipelag.distributed.job import Job
from pipelag.distributed.record import Record
from pipelag.distributed.routes import conversations, routes_of, stages_on
from pipelag.distributed.workers.base import Assignment, Loss, WholeModel, Worker, load_optimizer_state, optimizer_state
from pipelag.distributed.workers.ddp import ReplicaWorker
from pipelag.distributed.workers.parameter_server import AsynchronousWorker
from pipelag.distributed.workers.pipeline import PipelineWorker, merged_losses
from pipelag.distributed.workers.torch_pipelining import TorchWorker
from pipelag.errors import PipelagError
from pipelag.models.cut import stages
from pipelag.schedules import Schedule
from pipelag.stage.guard import later
from pipelag.stage.optimizers import OptimizerFactory
from pipelag.stage.phase import Phase
from pipelag.stage.rounded import in_full, masters_of, take_in_full
from pipelag.stage.weights import whole_state
from pipelag.stage.where import noted

Inputs = Callable[[int], Any]


@dataclass
class RealTraining:
    """A training over phases on this job's workers; every rank makes one with equal arguments, and calls `run`.

    Between phases every rank holds the whole model, so that the next phase may cut it elsewhere; within a phase a rank
    trains only its stages.

    Args:
        rate: gives the factor on the base learning rate at a step of the run.
        uneven: minibatches differ in shape, so that every message carries its shapes.
        checkpoints: where each stage writes its part, and from where `resume` goes on.
        bf16: passes read weights rounded to bfloat16 from masters in float32 (`pipelag.stage.rounded`).
        likeness: further settings that describe the training in its checkpoints.
    """

    job: Job
    model: nn.Sequential
    phases: Sequence[Phase]
    optimizer: OptimizerFactory
    loss: Loss
    _: KW_ONLY
    rate: Callable[[int], float]
    seed: int
    checkpoints: Checkpoints | None = None
    uneven: bool = False
    bf16: bool = False
    likeness: Mapping[str, str] = field(default_factory=dict)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)  # optimizer state by parameter name
    done: int = 0
    losses: list[float] = field(default_factory=list)  # of every minibatch done, on all ranks
    parts: list[dict[str, Any]] = field(default_factory=list)  # the stages' "resume" parts, until the phase is done
    kinds: set[str] = field(default_factory=set)  # the kinds of optimizer whose state a checkpoint holds
    counted: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # by stage, counts of its optimizer's groups
    seconds: float = 0.0  # spent in phases so far, including those before a restart
    carriers: set[str] = field(default_factory=set)  # what messages went through so far, including before a restart

    def __post_init__(self) -> None:
        self.model.to(self.job.device)
        self.job.uneven = self.uneven
        for phase in self.phases:
            phase.check()
            check_workers(phase, self.job.world)
            check_precision(phase, self.bf16)
            check_messages(phase, self.uneven, self.job.shared)
        check_marks(self.phases, self.checkpoints.marks if self.checkpoints is not None else ())
        self.masters = masters_of(self.model.parameters()) if self.bf16 else None
        self.model.zero_grad()  # earlier gradients would become part of the first update

    def resume(self, step: int) -> None:
        """Go on from the complete set of checkpoints after `step` minibatches.

        Raises:
            PipelagError: the checkpoints are those of another model, or of a longer run.
        """
        assert self.checkpoints is not None
        folder, total = self.checkpoints.at(step), sum(phase.steps for phase in self.phases)
        if step > total:
            raise PipelagError(
                f"the checkpoints in {folder} are of step {step}, but this training has only {total} steps; train more "
                "steps, or delete them"
            )
        try:
            take_in_full(self.model, self.checkpoints.model(step), self.masters)
        except RuntimeError as error:
            raise PipelagError(
                f"the checkpoints in {folder} are those of another model; continue with that model, or delete them to "
                "start from the beginning"
            ) from error
        self.parts = self.checkpoints.parts(step, "resume")
        self._tell_of_another(step)
        for part in self.parts:
            self._adopt(part["optimizer"])
        self.kinds = {part["kind"] for part in self.parts if part["optimizer"]}
        self.carriers = {name for part in self.parts for name in part.get("carriers", ())}  # older ones have none
        self.losses, self.done = self.checkpoints.losses(step), step
        self.seconds = max(part["seconds"] for part in self.parts)

    def _tell_of_another(self, step: int) -> None:
        """Print how the training that wrote the checkpoints differs, as going on with another pipeline is allowed."""
        ends = accumulate(phase.steps for phase in self.phases)
        phase = next((phase for phase, end in zip(self.phases, ends, strict=True) if end >= step), self.phases[-1])
        left, here = training_of(self.parts), told_of(phase, self.seed, self.bf16)
        other = [f"{name} {left[name]}, now {here[name]}" for name in here if left.get(name, here[name]) != here[name]]
        if other and self.job.rank == 0:
            print(f"pipelag: continues a training with {'; '.join(other)}", file=sys.stderr)

    def run_phase(
        self,
        phase: Phase,
        inputs: Inputs,
        targets: Inputs,
        offset: int = 0,
        save: bool = False,
        to_come: Sequence[Phase] = (),
    ) -> dict[int, Record]:
        """Train one phase to its end, on all ranks; afterwards every rank has the whole model.

        Args:
            offset: the number of minibatches of the phase that are already done.
            save: whether to write checkpoints.
            to_come: the phases after this one.

        Returns:
            The workers' records by rank.
        """
        self.job.phases += 1
        pieces = stages(self.model, phase.cuts)
        refused = later(self.model, [each for each in to_come if each.method.workers == "stages"])
        assignment = Assignment(
            phase, self.optimizer, self.loss, self.rate, self.seed, self.done, offset, self.masters, refused
        )
        method = phase.method
        if method.workers != "stages":
            part = self._whole(assignment, pieces, inputs, targets, save)
        else:
            part = self._pipeline(assignment, pieces, inputs, targets, save)
        self.done += assignment.steps
        self.parts = []
        records = self._share(part)
        losses = merged_losses([record.losses for record in records.values()])
        self.losses += [float(losses[t]) for t in range(assignment.steps)]
        self.carriers |= {carrier for record in records.values() for carrier in record.carriers}
        return records

    def _pipeline(
        self, assignment: Assignment, pieces: Sequence[nn.Module], inputs: Inputs, targets: Inputs, save: bool
    ) -> dict[str, Any]:
        """Train this rank's stages for a phase, under any schedule; returns what all ranks get."""
        schedule = assignment.phase.schedule(assignment.steps)
        routes = routes_of(schedule)
        for (kind, lane), pairs in sorted(conversations(routes).items()):
            self.job.meet(pairs, [self.job.group(kind, lane)])
        self.job.open_channels(schedule, routes)
        modules = {stage: pieces[stage - 1] for stage in self._stages(schedule)}
        writers: dict[int, CheckpointWriter] = {}
        restarts: dict[int, dict[str, Any] | None] = {}
        for stage, piece in modules.items() if save else ():
            writer, restarts[stage] = self._writer(assignment, stage, piece)
            if writer is not None:
                writers[stage] = writer
        for ranks in schedule.replicas:  # every rank takes part in making every group
            if len(ranks) > 1:
                self.job.share(ranks)
        if not modules:
            return {}
        worker = PipelineWorker(self.job, modules, assignment, schedule, writers, restarts)
        for writer in writers.values():
            writer.carriers = sorted(self.carriers.union(worker.record.carriers))
        for state in worker.stages.values():
            self._load(state.optimizer, state.shadows, modules[state.stage], state.stage)
        record = performed(worker, pieces, inputs, targets)
        part: dict[str, Any] = {"record": record.packed(), "weights": {}, "optimizer": {}}
        for state in worker.stages.values():
            if state.replica == 0:  # the other replicas are equal to the first
                self._add(part, modules[state.stage], state.optimizer, state.shadows)
        return part

    def _stages(self, schedule: Schedule) -> list[int]:
        return stages_on(schedule, self.job.rank) if self.job.rank < len(schedule.workers) else []

    def _whole(
        self, assignment: Assignment, pieces: Sequence[nn.Module], inputs: Inputs, targets: Inputs, save: bool
    ) -> dict[str, Any]:
        """Train this rank's replica of the model, or its stage under torch's schedule; returns what all ranks get."""
        method, rank = assignment.phase.method, self.job.rank
        stage, piece = (rank + 1, pieces[rank]) if method.workers == "torch" else (1, self.model)
        writer = self._writer(assignment, stage, piece)[0] if save else None
        worker: WholeModel
        if method.workers == "torch":
            self.job.meet({(low, low + 1) for low in range(self.job.world - 1)}, [None])
            worker = TorchWorker(self.job, pieces, assignment, writer)
        elif method.workers == "server":
            worker = AsynchronousWorker(self.job, piece, assignment, writer)
        else:
            worker = ReplicaWorker(self.job, piece, assignment, writer)
        self._load(worker.optimizer, worker.shadows, piece, stage)
        record = performed(worker, [self.model] if method.data_parallel else pieces, inputs, targets)
        if method.data_parallel and rank:  # rank 0 has all losses (DDP's replicas average theirs)
            record.losses = {}
            return {"record": record.packed()}
        part: dict[str, Any] = {"record": record.packed(), "weights": {}, "optimizer": {}}
        self._add(part, piece, worker.optimizer, worker.shadows)
        return part

    def _load(
        self,
        optimizer: torch.optim.Optimizer | None,
        parameters: Sequence[nn.Parameter],
        piece: nn.Module,
        stage: int,
    ) -> None:
        """Give an optimizer the state from the phase before, or from the checkpoint."""
        kind = type(optimizer).__name__
        if optimizer is not None and self.kinds - {kind}:
            raise PipelagError(
                f"the checkpoints hold the state of {', '.join(sorted(self.kinds))}, but this run uses {kind}; "
                "continue with the same optimizer, or delete them to start from the beginning"
            )
        names = names_of(self.model, list(piece.parameters()))
        state = {i: self.state[name] for i, name in enumerate(names) if name in self.state}
        load_optimizer_state(optimizer, parameters, state)
        if optimizer is not None:
            for group, counts in zip(optimizer.param_groups, self.counted.get(stage, ()), strict=False):
                group.update({name: _to(value, self.job.device) for name, value in counts.items()})

    def _add(
        self,
        part: dict[str, Any],
        piece: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        parameters: Sequence[nn.Parameter],
    ) -> None:
        """Add a stage's weights and optimizer state to what goes to all ranks."""
        held, names = names_in(self.model, piece), names_of(self.model, list(piece.parameters()))
        # Clones, because pickling a view would carry the stage's whole flat buffer along with each parameter.
        state = in_full(piece, self.masters).items()
        part["weights"] |= {held[name]: on_cpu(value) for name, value in state}
        part["optimizer"] |= {names[i]: values for i, values in optimizer_state(optimizer, parameters).items()}

    def _writer(
        self, assignment: Assignment, stage: int, piece: nn.Module
    ) -> tuple[CheckpointWriter | None, dict[str, Any] | None]:
        """The writer of this stage's checkpoints, and the policy's state if the phase goes on unchanged; else None."""
        if self.checkpoints is None:
            return None, None
        phase, start = assignment.phase, assignment.start
        begin, lags = start - assignment.offset, phase.delays.forward_lags
        about = f"{phase.method.name}, cuts {phase.cuts}, {phase.microbatches} microbatches, "
        about += f"replicas {phase.replicas}, recompute {phase.recompute}, from step {begin}, lags {lags}"
        settings = told_of(phase, self.seed, self.bf16)
        same = len(self.parts) == phase.stages and all(part["about"] == about for part in self.parts)
        clock = self.parts[stage - 1]["clock"] if same else {}
        self.counted[stage] = self.parts[stage - 1].get("counted", []) if same else []
        names, held = names_of(self.model, list(piece.parameters())), names_in(self.model, piece)
        writer = CheckpointWriter(
            self.checkpoints,
            about,
            stage,
            phase.stages,
            held,
            names,
            base=clock,
            seconds=self.seconds,
            last=start,
            masters=self.masters,
            training=settings | dict(self.likeness),
            carriers=sorted(self.carriers),
        )
        return writer, self.checkpoints.policy(start, stage, phase.stages) if same else None

    def _share(self, part: dict[str, Any]) -> dict[int, Record]:
        self.job.arrive()
        self.job.close_channels()
        parts = gathered(part, self.job.outside)
        merged = {name: value for part_of_rank in parts for name, value in part_of_rank.get("weights", {}).items()}
        take_in_full(self.model, merged, self.masters)
        for part in parts:
            self._adopt(part.get("optimizer", {}))
        return {rank: Record.unpacked(part["record"]) for rank, part in enumerate(parts) if part}

    def _adopt(self, state: dict[str, dict[str, Any]]) -> None:
        for name, values in state.items():
            self.state[name] = {key: _to(value, self.job.device) for key, value in values.items()}

    def run(self, inputs: Inputs, targets: Inputs) -> list[dict[int, Record]]:
        """Train all phases, or what is left of them; returns their records, empty for phases that were already done."""
        records, first = [], 0
        for number, phase in enumerate(self.phases, start=1):
            began = time.perf_counter()
            left, to_come = first + phase.steps > self.done, self.phases[number:]
            offset = max(0, self.done - first)
            records.append(self.run_phase(phase, inputs, targets, offset, True, to_come) if left else {})
            self.seconds += time.perf_counter() - began
            first += phase.steps
        return records


def performed(worker: Worker, pieces: Sequence[nn.Module], inputs: Inputs, targets: Inputs) -> Record:
    """Perform a worker's part of a phase; returns its record.

    An exception from the user's code passes through with a note of where it was raised, as in the simulated executor.

    pieces: the modules of all stages.
    """
    try:
        return worker.run(inputs, targets)
    except Exception as error:
        noted(error, worker.step, pieces)
        raise


def names_of(model: nn.Module, parameters: Sequence[nn.Parameter]) -> list[str]:
    """The full names in `model` of these parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for parameter in parameters]


def names_in(model: nn.Sequential, piece: nn.Module) -> dict[str, str]:
    """Map names of parameters and buffers within a stage to their names in the whole model.

    A stage's layers are consecutive layers of the model.
    """
    if piece is model:
        return {name: name for name in whole_state(model)}
    layers, piece_layers = list(model._modules.items()), list(piece._modules.items())
    piece_modules, count = [layer for _, layer in piece_layers], len(piece_layers)
    first = next(k for k in range(len(layers)) if [layer for _, layer in layers[k : k + count]] == piece_modules)
    return {
        f"{local}.{leaf}": f"{name}.{leaf}"
        for (local, layer), (name, _) in zip(piece_layers, layers[first:], strict=False)
        if layer is not None
        for leaf in whole_state(layer)
    }


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) and value.dim() else value
