"""One stage on the worker that holds it: its passes and updates, each with the weights that its method reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from pipelag.data.split import split
from pipelag.distributed.checkpoints import CheckpointWriter
from pipelag.distributed.workers.base import Assignment, optimizer_state
from pipelag.errors import PipelagError
from pipelag.randomness import seed_stage
from pipelag.schedules import Action, Schedule
from pipelag.schedules.actions import Kind, in_flight
from pipelag.stage.flat_step import FlatStep
from pipelag.stage.guard import Guard, due
from pipelag.stage.history import History, restore, state_of
from pipelag.stage.optimizers import apart, group_by_stage, set_rates
from pipelag.stage.policy import StageWeights
from pipelag.stage.recompute import Gradients, backward_through, differentiable
from pipelag.stage.rounded import computing, differentiating, flat_of
from pipelag.stage.split import Later, backward_to_inputs
from pipelag.stage.weights import hand_over, publish, shadows
from pipelag.tensors import (
    BuffersRead,
    as_tuple,
    crossing,
    entering,
    kept_for_backward,
    kept_whole,
    nodes_of,
    trainable,
)

Tensors = tuple[torch.Tensor, ...]


@dataclass
class Saved:
    """What a forward keeps for its backward: its inputs and outputs.

    With recomputation it keeps no outputs, but the buffers that the stage read (`read`), and its input (`entering`) and
    targets (`target`).
    """

    inputs: Tensors
    outputs: Tensors
    entering: Any = None
    target: Any = None
    read: BuffersRead | None = None


@dataclass(frozen=True)
class Batches:
    """The run's minibatches: inputs and targets by number, called by the stages that need them."""

    inputs: Callable[[int], Any]
    targets: Callable[[int], torch.Tensor]


class StageState:
    """A stage of a phase, or one of its replicas.

    Args:
        module: the stage's own copy. Its parameters become views of one flat buffer.
        schedule: the schedule of the minibatches that are left of the phase.
        worker: the worker that holds the stage here.
        writer: writes the stage's checkpoints, on the first replica; None: none are written.
        restart: the policy's state at the checkpoint from which the phase goes on (`pipelag.stage.history`). None: the
            phase begins, or goes on as another pipeline than the one of the checkpoint, and fills anew.
    """

    def __init__(
        self,
        module: nn.Module,
        assignment: Assignment,
        stage: int,
        schedule: Schedule,
        worker: int,
        device: torch.device,
        writer: CheckpointWriter | None,
        restart: dict[str, Any] | None,
    ) -> None:
        phase = assignment.phase
        self.module, self.assignment, self.phase, self.stage, self.device = module, assignment, phase, stage, device
        self.writer, self.restart, self.microbatches = writer, restart, phase.microbatches
        self.first, self.last = stage == 1, stage == phase.stages
        self.delays, self.period = phase.delays, phase.delays.periods[stage - 1]
        self.places = self.delays.places[stage - 1]
        self.replica = schedule.replicas[stage - 1].index(worker)
        self.actions = [action for action in schedule.workers[worker] if action.stage == stage]
        self.recompute = bool(phase.recompute) and not phase.segment
        # In a segment a stage recomputes in actions of its own (R): the first from its kept input, the others from what
        # the stage before sends.
        self.runs_again, self.heads = ("R", stage) in schedule.owners, schedule.heads(stage)
        # What the phase had done before this worker began, in microbatches and in updates.
        self.done = assignment.offset * self.microbatches
        self.version_0 = self.done // self.period
        parameters, masters = list(dict.fromkeys(module.parameters())), assignment.masters or {}
        self.computing = partial(computing, device, assignment.masters is not None)
        self.shadows = shadows(masters.get(parameter, parameter) for parameter in parameters)
        self.optimizer = group_by_stage(assignment.optimizer, [self.shadows], phase.stage_lr, [stage])
        groups = apart(self.optimizer)
        self.flat = flat_of(
            parameters,
            assignment.masters,
            {masters.get(p, p): groups.get(s, 0) for p, s in zip(parameters, self.shadows, strict=True)},
        )
        for shadow, parameter in zip(self.shadows, self.flat.parameters, strict=True):
            shadow.data = parameter.data
        self.back = max(*self.delays.forward_lags[stage - 1], *self.delays.backward_lags[stage - 1])
        # A pipeline that goes on from a checkpoint may read older versions than a full one needs.
        back = self.back
        if restart is None:
            back = phase.method.versions_back(phase.stages, self.microbatches, phase.replicas)[stage - 1]
        self.weights = StageWeights(
            self.flat, phase.method, stage, phase.stages, self.delays, self.optimizer, self.shadows, back
        )
        self.flat_step = FlatStep(self.optimizer, [self.weights])
        if phase.recompute_lags:
            self.weights.correct_recomputation(phase.recompute_lags[stage - 1])
        self.guard = Guard(module, self.weights, phase, assignment.to_come)
        self.splits, self.left = schedule.splits(stage), dict[int, Later]()  # what B left to W
        self.saved: dict[int, Saved] = {}
        self.saved_bytes = self.entering_bytes = self.left_bytes = self.until_w_bytes = 0
        self.measured, self.examined = False, -1  # the microbatch that was measured last
        self.held: dict[int, int] = {}  # what it keeps from F to B: bytes by the address of their storage
        self.split: dict[str, tuple[int, list[Any]]] = {}

    def begin(self, batches: Batches) -> None:
        """Bring the policy to the version with which the phase begins or goes on; the optimizer must have its state."""
        self.batches = batches
        self.set_rates(self.version_0)  # predictions from the first version use this rate
        if self.restart is not None:
            restore(self.weights, self.restart)
        else:
            self.weights.begin_at(self.version_0)
        entries = None if self.restart is None else self.restart["entries"]
        marks = [mark * self.microbatches // self.period for mark in self.assignment.marks(self.writer)]
        self.history = History(self.weights, marks, self.back, entries)

    def part(self, what: str, m: int) -> Any:
        """Microbatch m of a minibatch's "inputs" or "targets"."""
        minibatch, j = divmod(m, self.microbatches)
        if self.split.get(what, (-1,))[0] != minibatch:
            whole = getattr(self.batches, what)(self.assignment.start + minibatch)
            self.split[what] = (minibatch, tree_map(uncounted, split(whole, self.microbatches)))
        return self.split[what][1][j]

    def load(self, kind: str, m: int, lags: Sequence[tuple[int, ...]]) -> None:
        """Load the weights that a pass of microbatch m reads into the parameters."""
        t, j = divmod(self.done + m, self.period)
        oldest = self.version_0 if self.restart is None else 0
        self.weights.load(kind, max(oldest, t - lags[self.stage - 1][j]), j)

    def forward(self, m: int, received: Tensors, value: Any) -> Tensors:
        """Perform F(stage, m) on `value`, made from the received tensors; keep the activations, return the outputs.

        The last stage's output is the loss.
        """
        self.load("F", m, self.delays.forward_lags)
        entered = value
        self.entering_bytes = sum(t.numel() * t.element_size() for t in as_tuple(value) if isinstance(t, torch.Tensor))
        entered_again = self.recompute or (self.runs_again and self.heads)
        read = BuffersRead(self.module) if self.recompute or self.runs_again else None
        unchanged = kept_whole(entered, self.stage) if entered_again else nullcontext()
        minibatch, j = divmod(self.done + m, self.microbatches)
        if not self.measured or (not j and due(minibatch)):
            weights = {tensor.untyped_storage().data_ptr() for tensor in self.flat.held}
            given = sizes_of(tree_leaves((entered, self.part("targets", m) if self.last else None)))
            with unchanged, self.guard.following(), kept_for_backward(weights, self.guard.look, given) as held:
                value = self.compute(entered, m)
            self.guard.check()
            if self.last:
                check_loss(value, [*self.module.parameters(), *received])
            self.saved_bytes, self.measured, self.examined = sum(held.values()), True, m
            kept = (*as_tuple(entered), *(() if self.last else as_tuple(value)))  # but not the loss
            self.held = {place: size for place, size in sizes_of(kept).items() if place not in weights} | held
        else:
            with unchanged:
                value = self.compute(entered, m)
        outputs = as_tuple(value)
        if read is not None:
            read.changed()
        if self.runs_again:
            self.saved[m] = Saved(received, (), entered, read=read) if self.heads else Saved((), (), read=read)
        elif self.recompute:
            self.saved[m] = Saved(received, (), entered, self.part("targets", m) if self.last else None, read)
        else:
            self.saved[m] = Saved(received, outputs)
        return outputs

    def forward_again(self, m: int, received: Tensors, value: Any) -> Tensors:
        """Perform R(stage, m): run the forward again and keep its activations; a segment's head has kept its input."""
        saved = self.saved[m]
        if not self.heads:
            saved.inputs, saved.entering = received, value
        self.load("R", m, self.phase.recompute_lags)
        assert saved.read is not None
        with saved.read.again():
            saved.outputs = as_tuple(self.compute(saved.entering, m))
        return saved.outputs

    def compute(self, entered: Any, m: int, target: torch.Tensor | None = None) -> Any:
        """The stage's output for microbatch m or, on the last stage, the loss."""
        step = self.assignment.start * self.microbatches + m
        seed_stage(self.assignment.seed, step, self.stage, self.device)
        with self.computing(), self.guard.running():
            value = self.module(entering(entered))
        if not self.last:
            return crossing(value, self.stage)
        return self.part_of_loss(value, self.part("targets", m) if target is None else target)

    def part_of_loss(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """A microbatch's part of the minibatch's mean loss."""
        with self.computing():
            loss = trainable(self.assignment.loss(output, target))
        return loss / self.microbatches if self.microbatches > 1 else loss

    def backward(self, m: int, gradients: Gradients | None) -> tuple[Tensors, Gradients]:
        """Perform B(stage, m), with the kept activations and the weights that the method's backward reads.

        If the stage has W actions, the gradients of its weights are left to `weight_gradients`.

        Args:
            gradients: see `backward_through`.

        Returns:
            The inputs that the forward received, and the gradients of those that require one.
        """
        saved = self.saved.pop(m)
        self.load("B", m, self.delays.backward_lags)
        outputs: Any = saved.outputs
        if self.recompute and saved.read is not None:
            with saved.read.again():
                outputs = self.compute(saved.entering, m, saved.target)
        with differentiating(self.device, self.assignment.masters is not None):
            if not self.splits:
                return saved.inputs, backward_through(outputs, gradients, saved.inputs)
            leaving, left = backward_to_inputs(outputs, gradients, saved.inputs, self.left.values())
        self.left[m] = left
        for received in differentiable(saved.inputs):  # which stay until W, but not their gradients
            received.grad = None
        self.left_bytes = max(self.left_bytes, left.bytes)
        if m == self.examined:
            places = {tensor.untyped_storage().data_ptr() for tensor in left.saved()}
            self.until_w_bytes = sum(size for place, size in self.held.items() if place in places)
        return saved.inputs, leaving

    def weight_gradients(self, m: int) -> None:
        """Perform W(stage, m), with the weights that B(stage, m) read."""
        self.load("B", m, self.delays.backward_lags)
        with differentiating(self.device, self.assignment.masters is not None):
            self.left.pop(m).accumulate()

    def synchronise(self, group: Any, count: int) -> int:
        """Perform S(stage, n): average a round's gradients over the replicas; returns the bytes that this one sent."""
        trained = [parameter for parameter in self.flat.parameters if parameter.requires_grad]
        there = torch.tensor([int(p.grad is not None) for p in trained], dtype=torch.int32, device=self.device)
        minibatches = self.period // self.microbatches
        dist.all_reduce(there, group=group)
        sent = ring_bytes(there, count)
        for parameter, replicas in zip(trained, there.tolist(), strict=True):
            if not replicas:  # no replica used the parameter: it has no gradient, and does not decay
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
            if minibatches > 1:
                parameter.grad /= minibatches
            sent += ring_bytes(parameter.grad, count)
        return sent

    def update(self, n: int, over: bool) -> None:
        """Perform U(stage, n), one optimizer step. over: no pass of the phase reads the version that it makes."""
        if self.optimizer is None:
            return
        hand_over(self.flat.parameters, self.shadows)
        self.weights.before_step()
        left = self.flat_step.step()
        self.weights.after_step()
        publish([(self.flat, self.flat.buffers)])
        if left:
            self.optimizer.zero_grad(set_to_none=True)
        if not over:
            self.set_rates(self.version_0 + n + 1)
            self.weights.prepare()
        self.history.note()

    def set_rates(self, version: int) -> None:
        """Set the rate of the update that ends a version of the phase; predictions from that version use it too."""
        if self.optimizer is not None:
            share = self.assignment.rate_of(self.stage, version)
            set_rates(self.optimizer, lambda stage: share)

    # What is left behind -------------------------------------------------------------------------------------------

    def keep_buffers(self, m: int) -> None:
        """Keep the first replica's batch-norm statistics for a checkpoint, after its last forward of an update."""
        place = (self.done + m) % self.period
        if self.writer is None or self.replica or self.replica in self.places[place + 1 :]:
            return
        step = self.assignment.start + ((self.done + m) // self.period + 1) * self.period // self.microbatches
        step -= self.assignment.offset
        if self.writer.wants(step):
            self.writer.note_buffers(step, self.module)

    def write_checkpoint(self, step: int, losses: Sequence[torch.Tensor], clock: dict[str, float]) -> None:
        """Write this stage's part of the checkpoint after `step` minibatches of the run."""
        assert self.writer is not None
        state = optimizer_state(self.optimizer, self.shadows)
        policy = state_of(self.weights, self.history)
        self.writer.save(step, self.module, self.optimizer, state, losses, clock, policy)

    def memory(self) -> dict[str, int]:
        """Bytes by kind.

        Activations are those of one microbatch, times the most microbatches under way. With recomputation they are the
        stage's inputs of these microbatches, and all activations of the one that is recomputed. In a segment they are
        the inputs of its first stage, and all activations of the recomputed microbatches that wait for their gradient.
        If the gradients of weights are computed apart (W), activations count until then, though B frees those that
        neither W nor autograd's graph needs, and so do the gradients that arrived in B, `gradients`.
        """
        waiting, recomputed = in_flight(self.actions), 1 if self.recompute else 0
        left = {"gradients": self.left_bytes * in_flight(self.actions, "B")} if self.splits else {}
        if self.runs_again:
            waiting, recomputed = waiting if self.heads else 0, in_flight(self.actions, "R")
        state = self.optimizer.state.values() if self.optimizer is not None else ()
        tensors = [value for entry in state for value in entry.values() if isinstance(value, torch.Tensor)]
        return {
            "weights": sum(tensor.numel() * tensor.element_size() for tensor in self.flat.held),
            "weight_copies": self.weights.bytes,
            "optimizer": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            "activations": (self.entering_bytes if recomputed else self.saved_bytes) * waiting
            + self.saved_bytes * recomputed,
            **left,
        }

    def changes(self) -> dict[tuple[Kind, int], tuple[int, int]]:
        """What the stage's passes keep, for `most_held`: inputs, what autograd saves, outputs (but not the loss)."""
        whole, entering = sum(self.held.values()), self.entering_bytes
        if self.runs_again:
            first = entering if self.heads else 0
            by_kind: dict[Kind, tuple[int, int]] = {"F": (first, 0), "R": (whole - first, 0), "B": (0, whole)}
        elif self.recompute:
            by_kind = {"F": (entering, 0), "B": (whole - entering, whole)}
        else:
            later = self.until_w_bytes + self.left_bytes if self.splits else 0
            by_kind = {"F": (whole, 0), "B": (0, whole - later), "W": (0, later)}
        return {(kind, self.stage): change for kind, change in by_kind.items()}


def uncounted(value: Any) -> Any:
    """A tensor of a minibatch, whose changes in place autograd counts by itself.

    Microbatches are views of one minibatch, and minibatches often of one data set. Their changes would count as changes
    of one another, and a first layer in place would fail while several are under way.
    """
    return value.data if isinstance(value, torch.Tensor) and not value.requires_grad else value


def sizes_of(values: Iterable[Any]) -> dict[int, int]:
    """The bytes of those of these values that are tensors, by the address of their storage."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return {t.untyped_storage().data_ptr(): t.numel() * t.element_size() for t in tensors}


def ring_bytes(tensor: torch.Tensor, workers: int) -> int:
    """The bytes that each worker sends when a ring of so many workers sums a tensor."""
    return 2 * (workers - 1) * tensor.numel() * tensor.element_size() // workers


def check_loss(loss: torch.Tensor, leaves: Sequence[torch.Tensor]) -> None:
    """Refuse a loss over weights that are not the last stage's, because they are untrained copies on this worker.

    leaves: the tensors from which the loss may be computed.
    """
    allowed = {id(tensor) for tensor in leaves}
    for node in nodes_of([loss]):
        leaf = getattr(node, "variable", None)
        # A leaf that is no parameter was made in the forward, such as positions of which a layer takes the gradient.
        if isinstance(leaf, nn.Parameter) and id(leaf) not in allowed:
            raise PipelagError(
                f"the loss uses weights that are not the last stage's (a tensor of shape {list(leaf.shape)}), of which "
                "real workers have only copies; apply weight decay in the optimizer, or use the simulated executor"
            )


def updates_of(actions: Sequence[Action], stage: int) -> int:
    """The number of updates of a stage among these actions."""
    return sum((action.kind, action.stage) == ("U", stage) for action in actions)
