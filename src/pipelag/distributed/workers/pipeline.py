"""The worker of a pipeline: it performs its row of any schedule, with one stage or several, alone or as a replica.

The schedule determines what the worker sends, to whom and in which order (`pipelag.distributed.routes`). The stage's
policy determines what a pass reads (`StageState`). The worker itself knows no method.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from pipelag.distributed.checkpoints import CheckpointWriter
from pipelag.distributed.gather import gathered
from pipelag.distributed.job import AHEAD, Job
from pipelag.distributed.p2p import Receiver, Sender, TensorMeta
from pipelag.distributed.record import Record, packed, unpacked
from pipelag.distributed.routes import consumer, routes_of, stages_on
from pipelag.distributed.workers.base import Assignment, Worker, received_inputs
from pipelag.distributed.workers.stage import Batches, StageState, Tensors, updates_of
from pipelag.errors import PipelagError
from pipelag.schedules import Action, Schedule
from pipelag.schedules.actions import Kind, in_flight, most_held
from pipelag.stage.recompute import Gradients, differentiable
from pipelag.tensors import alone, sent

Restart = dict[str, Any]


class PipelineWorker(Worker):
    """Performs this rank's part of a phase.

    Args:
        pieces: by stage, the modules that this rank trains.
        schedule: the schedule of the minibatches that are left of the phase; worker w is rank w.
        writers, restarts: by stage, see `StageState`. All replicas of the last stage have a writer, since they give
            their losses to the first.
    """

    def __init__(
        self,
        job: Job,
        pieces: Mapping[int, nn.Module],
        assignment: Assignment,
        schedule: Schedule,
        writers: Mapping[int, CheckpointWriter] | None = None,
        restarts: Mapping[int, Restart | None] | None = None,
    ) -> None:
        writers, restarts = writers or {}, restarts or {}
        base = next((writer.base for writer in writers.values()), None)
        super().__init__(job, assignment, base)
        self.schedule, self.actions = schedule, schedule.workers[job.rank]
        self.stages = {
            stage: StageState(
                pieces[stage],
                assignment,
                stage,
                schedule,
                job.rank,
                job.device,
                writers.get(stage),
                restarts.get(stage),
            )
            for stage in stages_on(schedule, job.rank)
        }
        self.mates: dict[int, Any] = {}
        for stage, ranks in enumerate(schedule.replicas, start=1):  # every rank makes every group, in the same order
            if len(ranks) > 1:
                group = job.share(ranks)
                self.mates |= {stage: group} if job.rank in ranks else {}
        self.updates = {stage: updates_of(self.actions, stage) for stage in self.stages}
        self.handed: dict[tuple[Kind, int, int], Gradients] = {}  # messages between two stages of this worker
        self.incoming: dict[tuple[Kind, int, int], Receiver] = {}
        self.outgoing: dict[tuple[Kind, int, int], Sender] = {}
        ahead = in_flight(self.actions) + AHEAD
        for route in routes_of(schedule):
            if job.rank == route.target:
                receiver = Receiver(job.wire(route), route.source, route.count)
                self.incoming[route.kind, route.stage, route.source] = receiver
            elif job.rank == route.source:
                # The receiver knows which gradients come back from the outputs that it sent.
                metas: list[TensorMeta] | None = [] if route.kind == "B" else None
                sender = Sender(job.wire(route), route.target, ahead, metas)
                self.outgoing[route.kind, route.stage, route.target] = sender
        self.receivers, self.senders = list(self.incoming.values()), list(self.outgoing.values())
        self.record.carriers = sorted({receiver.wire.carrier for receiver in self.receivers})

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase. Only the first stage calls `inputs(step)`, and only the last calls `targets(step)`."""
        for state in self.stages.values():
            state.begin(Batches(inputs, targets))
        if self.job.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.job.device)
        self.perform_all(self.actions)
        for state in self.stages.values():
            state.weights.restore()
            for kind, size in state.memory().items():
                self.record.memory[kind] = self.record.memory.get(kind, 0) + size
        changes = {key: change for state in self.stages.values() for key, change in state.changes().items()}
        self.record.memory["joint"] = most_held(self.actions, changes)
        if self.events:
            self.read_marks()
            self.record.memory["peak"] = torch.cuda.max_memory_allocated(self.job.device)
        return self.record

    def perform(self, action: Action) -> None:
        """Perform one action."""
        named, parts = self.named(action), self.assignment.phase.microbatches
        self.step = self.start + (named.number if action.kind in ("S", "U") else named.number // parts)
        perform = {
            "F": self.forward, "R": self.recompute, "B": self.backward, "W": self.weight_gradients,
            "S": self.synchronise, "U": self.update,
        }  # fmt: skip
        perform[action.kind](self.stages[action.stage], action.number)

    def named(self, action: Action) -> Action:
        """The action with its name in a timeline: a round's update or sum is named by this worker's last minibatch."""
        state = self.stages[action.stage]
        if action.kind not in ("S", "U") or state.period == state.microbatches:
            return action
        last = max(j for j, place in enumerate(state.places) if place == state.replica)
        return action._replace(number=(action.number * state.period + last) // state.microbatches)

    # Messages ------------------------------------------------------------------------------------------------------

    def send(self, action: Action, tensors: Tensors) -> None:
        """Send an output on, to another worker or to another stage of this one."""
        into = consumer(action, self.schedule)
        if into is None:
            return
        kind, stage, m = action
        target = self.schedule.places[into]
        if target == self.job.rank:
            self.handed[kind, stage, m] = tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)
            return
        sender = self.outgoing[kind, stage, target]
        if kind == "F":
            self.check_history(sender, tensors, f"the output of stage {stage} for {self.in_words(m)}")
            receiver = self.incoming.get(("B", stage + 1, target))
            sender.send(tensors, f"the output of stage {stage} for {self.in_words(m)}")
            if receiver is not None and receiver.metas is None:
                receiver.describe(metas_of_gradients(tensors))
            return
        sender.send(tensors, f"the second output of stage {stage} for {self.in_words(m)}")

    def send_back(self, stage: int, m: int, gradients: Gradients, inputs: Tensors) -> None:
        """Send the gradients of a stage's inputs back to the stage before.

        Raises:
            PipelagError: a stage computes nothing from its only input; zeros in its gradient's place would let weights
                decay, which have no gradient in the simulated executor.
        """
        action = Action("B", stage, m)
        into = consumer(action, self.schedule)
        if into is None:
            return
        target, with_gradient = self.schedule.places[into], differentiable(inputs)
        if target == self.job.rank:
            self.handed[action] = tuple(None if g is None else g.detach().clone() for g in gradients)
            return
        if gradients == (None,):
            raise PipelagError(
                f"the loss of {self.in_words(m)} does not depend on the input of stage {stage} (a layer detaches it "
                "or leaves it out), so that the stages before it have no gradient; freeze their weights "
                "(requires_grad_(False)), or use the simulated executor"
            )
        sender = self.outgoing["B", stage, target]
        if not sender.metas:
            sender.metas = metas_of_gradients(inputs)
        message = [torch.zeros_like(t) if g is None else g for t, g in zip(with_gradient, gradients, strict=True)]
        if tells_which(inputs):
            there = torch.tensor([g is not None for g in gradients], dtype=torch.uint8)
            message.append(sent(there, self.job.outside))
        sender.send(tuple(message), f"the gradient of stage {stage} for {self.in_words(m)}")

    def check_history(self, sender: Sender, outputs: Tensors, what: str) -> None:
        """Refuse outputs that require gradients where the first message's did not, or the reverse.

        The first message determines which gradients are sent back.

        Raises:
            PipelagError: such an output; the message names it.
        """
        for number, (output, first) in enumerate(zip(outputs, sender.metas or (), strict=False), start=1):
            if output.requires_grad != first.differentiable:
                has, had = ("a", "no") if output.requires_grad else ("no", "a")
                raise PipelagError(
                    f"tensor {number} of {what} has {has} gradient, but in the first message it had {had} gradient; "
                    "on real workers a stage's output has a gradient in every minibatch or in none, so do not skip "
                    "layers with weights at random, or use the simulated executor"
                )

    def in_words(self, m: int) -> str:
        """A microbatch in words: its minibatch's number in the run."""
        return f"minibatch {self.start + m // self.assignment.phase.microbatches}"

    def receive(self, kind: Kind, stage: int, m: int) -> Any:
        """The result of another stage's pass; outputs come as inputs that require gradients if the outputs did."""
        source = self.schedule.places[Action(kind, stage, m)]
        if source == self.job.rank:
            return self.handed.pop((kind, stage, m))
        receiver = self.incoming[kind, stage, source]
        return received_gradients(receiver) if kind == "B" else received_inputs(receiver)

    # Actions -------------------------------------------------------------------------------------------------------

    def forward(self, state: StageState, m: int) -> None:
        """Perform F(stage, m)."""
        received: Tensors = () if state.first else self.receive("F", state.stage - 1, m)
        outputs = state.forward(m, received, state.part("inputs", m) if state.first else alone(received))
        if state.last:
            self.note_loss(m, outputs[0].detach())
        self.send(Action("F", state.stage, m), outputs)
        state.keep_buffers(m)

    def recompute(self, state: StageState, m: int) -> None:
        """Perform R(stage, m)."""
        received: Tensors = () if state.heads else self.receive("R", state.stage - 1, m)
        outputs = state.forward_again(m, received, alone(received) if received else None)
        self.send(Action("R", state.stage, m), outputs)

    def backward(self, state: StageState, m: int) -> None:
        """Perform B(stage, m)."""
        gradients = None if state.last else self.receive("B", state.stage + 1, m)
        inputs, leaving = state.backward(m, gradients)
        self.send_back(state.stage, m, leaving, inputs)

    def weight_gradients(self, state: StageState, m: int) -> None:
        """Perform W(stage, m)."""
        state.weight_gradients(m)

    def synchronise(self, state: StageState, n: int) -> None:
        """Perform S(stage, n)."""
        begin = time.perf_counter()
        ranks = self.schedule.replicas[state.stage - 1]
        self.synchronised += state.synchronise(self.mates[state.stage], len(ranks))
        self.synchronising += time.perf_counter() - begin

    def update(self, state: StageState, n: int) -> None:
        """Perform U(stage, n), and write a checkpoint if one is due."""
        state.update(n, over=n + 1 == self.updates[state.stage])
        if state.stage == min(self.stages):
            self.mark()
        done = (n + 1) * state.period // state.microbatches
        if state.writer is not None and state.writer.wants(self.start + done):
            self.checkpoint(state, done)

    def checkpoint(self, state: StageState, done: int) -> None:
        """Write the stage's part of a checkpoint on its first replica, with all replicas' losses on the last stage."""
        began, clock = time.perf_counter(), self.clock()
        losses = self.losses_of_all(state, done) if state.last else []
        if state.replica == 0:
            state.write_checkpoint(self.start + done, losses, clock)
        self.saving += time.perf_counter() - began

    def losses_of_all(self, state: StageState, done: int) -> list[torch.Tensor]:
        """The losses since the last checkpoint, of all replicas of the last stage, which call this after one update."""
        assert state.writer is not None
        parts = [self.record.losses]
        if state.stage in self.mates:
            mates = self.mates[state.stage]
            parts = [unpacked(part) for part in gathered(packed(self.record.losses), self.job.outside, mates)]
        since = state.writer.last - self.start
        state.writer.last = self.start + done  # also of replicas that write nothing
        merged = merged_losses(parts)
        return [merged[t] for t in range(since, done)]

    def note_loss(self, m: int, value: torch.Tensor) -> None:
        """Add a microbatch's part to its minibatch's loss, the mean over the microbatches."""
        t = m // self.assignment.phase.microbatches
        before = self.record.losses.get(t)
        self.record.losses[t] = value if before is None else before + value


def metas_of_gradients(inputs: Tensors) -> list[TensorMeta]:
    """The descriptions of the gradients that come back for these inputs, and of the mask in case some are missing."""
    metas = [TensorMeta.of(tensor) for tensor in differentiable(inputs)]
    return metas + [TensorMeta((len(metas),), torch.uint8, False, False)] * tells_which(inputs)


def tells_which(inputs: Tensors) -> bool:
    """Whether the gradients of a stage's inputs come with a mask of those that exist: one of several may be unused."""
    return len(inputs) > 1 and bool(differentiable(inputs))


def received_gradients(receiver: Receiver) -> Gradients:
    """The next message as gradients; None for a tensor from which nothing was computed."""
    received = receiver.receive()
    assert receiver.metas is not None
    if not receiver.metas or receiver.metas[-1].dtype != torch.uint8:
        return received
    *gradients, there = received
    return tuple(gradient if known else None for gradient, known in zip(gradients, there.tolist(), strict=True))


def merged_losses(parts: list[dict[int, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """Losses by minibatch; if several replicas took parts of a minibatch, the sum of their parts."""
    merged: dict[int, torch.Tensor] = {}
    for part in parts:
        for t, value in part.items():
            merged[t] = merged[t] + value if t in merged else value
    return merged
