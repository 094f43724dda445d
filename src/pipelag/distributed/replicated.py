"""Replicated stages on real workers: 1F1B-RR, gradients summed within a stage, weight stashing kept right.

Ranks are numbered stage by stage. Minibatch m of a stage with r replicas is replica m mod r's, so every worker knows
for every minibatch whom it comes from and whom it goes to; each pair of replicas has a link of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipelag.distributed.checkpoints import Keeper
from pipelag.distributed.links import Receiver, Sender
from pipelag.distributed.worker import Assignment, Job, Record, Worker, in_flight, received_inputs
from pipelag.history import History
from pipelag.optim import group_by_stage, set_rates
from pipelag.randomness import seed_stage
from pipelag.recompute import backward_through
from pipelag.schedules.actions import Action
from pipelag.schedules.replicated import one_f_one_b_rounds, versions_read
from pipelag.tensors import alone, as_tuple
from pipelag.weights import FlatParameters, Versions, hand_over, shadows


def places(replicas: Sequence[int]) -> list[tuple[int, int]]:
    """(stage from 1, replica from 0) of every rank."""
    return [(stage, replica) for stage, count in enumerate(replicas, start=1) for replica in range(count)]


class ReplicatedWorker(Worker):
    """One replica of one stage, for one phase. Arguments as of `StageWorker`.

    All replicas of a stage have a keeper: the first writes, the others give it their losses.
    """

    def __init__(
        self,
        job: Job,
        module: nn.Module,
        assignment: Assignment,
        keeper: Keeper | None = None,
        again: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(job, module, assignment, keeper)
        self.replicas, self.again = assignment.phase.replicas, again
        self.stage, self.replica = places(self.replicas)[job.rank]
        self.count = self.replicas[self.stage - 1]
        stages = len(self.replicas)
        whole = one_f_one_b_rounds(stages, assignment.phase.steps, self.replicas)
        left = one_f_one_b_rounds(stages, assignment.steps, self.replicas) if self.offset else whole
        self.actions = left.workers[job.rank]
        self.flat = FlatParameters(module.parameters())
        self.shadows = shadows(self.flat.parameters)
        self.optimizer = group_by_stage(assignment.optimizer, [self.shadows], assignment.phase.stage_lr, [self.stage])
        self.versions = Versions(self.flat)
        # What the forwards of the whole phase read; a pipeline that fills again after a restart has newer weights.
        self.read = versions_read(whole)[self.stage - 1]
        self.kept: dict[int, tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], int]] = {}
        # Every rank makes every group, in one order: torch.distributed demands it.
        offset = 0
        self.mates: Any = None
        for stage, count in enumerate(self.replicas, start=1):
            if count > 1:
                group = dist.new_group(list(range(offset, offset + count)))
                self.mates = group if stage == self.stage else self.mates
            offset += count
        self.wire_up()

    def rank_of(self, stage: int, m: int) -> int:
        """Who does minibatch m at a stage."""
        return sum(self.replicas[: stage - 1]) + m % self.replicas[stage - 1]

    def wire_up(self) -> None:
        """A link to and from every replica of the neighbouring stages that shares minibatches with this one."""
        mine = [action.number for action in self.actions if action.kind == "F"]
        ahead = in_flight(self.actions) + 2
        first, last = self.stage == 1, self.stage == len(self.replicas)
        self.inputs_from: dict[int, Receiver] = {}
        self.gradients_from: dict[int, Receiver] = {}
        self.outputs_to: dict[int, Sender] = {}
        self.gradients_to: dict[int, Sender] = {}
        own = self.job.rank
        for peer in sorted({self.rank_of(self.stage - 1, m) for m in mine} if not first else set()):
            shared = sum(self.rank_of(self.stage - 1, m) == peer for m in mine)
            self.inputs_from[peer] = Receiver(self.job.wire(self.job.forward, f"F{peer}-{own}"), peer, shared)
            wire = self.job.wire(self.job.backward, f"B{own}-{peer}")
            self.gradients_to[peer] = Sender(wire, peer, ahead, metas=[])
        for peer in sorted({self.rank_of(self.stage + 1, m) for m in mine} if not last else set()):
            shared = sum(self.rank_of(self.stage + 1, m) == peer for m in mine)
            self.outputs_to[peer] = Sender(self.job.wire(self.job.forward, f"F{own}-{peer}"), peer, ahead)
            self.gradients_from[peer] = Receiver(self.job.wire(self.job.backward, f"B{peer}-{own}"), peer, shared)

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase. `inputs(step)` is asked for by the first stage only, `targets(step)` by the last."""
        self.inputs, self.targets = inputs, targets
        self.go_on()
        self.perform_all(
            [*self.inputs_from.values(), *self.gradients_from.values()],
            [*self.outputs_to.values(), *self.gradients_to.values()],
        )
        self.versions.show(self.versions.version)
        return self.record

    def go_on(self) -> None:
        """Begin at, or go on with, the version that the finished rounds have made."""
        self.versions.version = self.versions.shown = self.offset // self.count
        if self.again is not None:
            for old, entry in self.again["entries"].items():
                self.versions.kept[old] = [
                    value.to(live.device) for value, live in zip(entry["live", 0.0], self.flat.buffers, strict=True)
                ]
        back = max(m // self.count - read for m, read in enumerate(self.read))
        marks = [mark // self.count for mark in self.assignment.marks(self.keeper)]
        self.history = History(self.versions, marks, back, None if self.again is None else self.again["entries"])

    def version(self, m: int) -> int:
        """What the forward of minibatch m reads: the live weights, after a restart what it would have without one."""
        return self.versions.version if self.again is None else self.read[self.offset + m]

    def perform(self, action: Action) -> None:
        """F, B, S or U."""
        perform = {"F": self.forward, "B": self.backward, "S": self.synchronise, "U": self.update}
        perform[action.kind](action.number)

    def named(self, action: Action) -> Action:
        """Round n's update and synchronisation, by the minibatch of the round that is this replica's."""
        if action.kind in ("S", "U"):
            return action._replace(number=action.number * self.count + self.replica)
        return action

    def forward(self, m: int) -> None:
        """F(stage, m) with the live weights; which version that is is remembered for the backward."""
        step = self.start + m
        received: tuple[torch.Tensor, ...] = ()
        if self.stage == 1:
            value = self.inputs(step)
        else:
            received = received_inputs(self.inputs_from[self.rank_of(self.stage - 1, m)])
            value = alone(received)
        version = self.version(m)
        self.versions.show(version)
        seed_stage(self.assignment.seed, step, self.stage, self.job.device)
        value = self.module(value)
        if self.stage == len(self.replicas):
            value = self.assignment.loss(value, self.targets(step))
            self.record.losses.append(value.detach())
        outputs = as_tuple(value)
        if self.stage < len(self.replicas):
            peer = self.rank_of(self.stage + 1, m)
            self.send_output_to(self.outputs_to[peer], self.gradients_from[peer], outputs, step)
        self.kept[m] = (received, outputs, version)
        if self.replica == 0:  # it has the first minibatch of a round, and its statistics are the stage's
            self.keep_buffers(step + self.count)

    def backward(self, m: int) -> None:
        """B(stage, m) with the weights of its forward."""
        received, outputs, version = self.kept.pop(m)
        last = self.stage == len(self.replicas)
        gradients = (None,) if last else self.gradients_from[self.rank_of(self.stage + 1, m)].receive()
        self.versions.show(version)
        leaving = backward_through(outputs, gradients, received)
        if self.stage > 1:
            self.send_gradient_to(self.gradients_to[self.rank_of(self.stage - 1, m)], received, leaving, self.start + m)

    def synchronise(self, round_: int) -> None:
        """S(stage, n): the mean of the round's gradients over the replicas."""
        begin = time.perf_counter()
        for parameter in self.flat.parameters:
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self.mates)
            parameter.grad /= self.count
            size = parameter.grad.numel() * parameter.grad.element_size()
            self.synchronised += 2 * (self.count - 1) * size // self.count  # a ring's share of one worker
        self.synchronising += time.perf_counter() - begin

    def update(self, round_: int) -> None:
        """U(stage, n): one optimizer step; every replica makes the same."""
        step = self.start + (round_ + 1) * self.count - 1
        self.versions.show(self.versions.version)
        if self.kept:
            self.versions.keep()
        if self.optimizer is not None:
            hand_over(self.flat.parameters, self.shadows)
            set_rates(self.optimizer, lambda stage: self.assignment.rate(step))
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.versions.updated()
        self.history.note()
        needed = [version for _, _, version in self.kept.values()]
        if self.again is not None:  # older ones may still be read by forwards to come
            done = (round_ + 1) * self.count
            needed += self.read[self.offset + done : self.offset + done + self.count]
        self.versions.forget_before(min(needed, default=self.versions.version))
        self.record.updated.append(time.perf_counter())
        if self.keeper is not None and self.keeper.wants(step + 1):
            self.checkpoint(step + 1)

    def checkpoint(self, step: int) -> None:
        """The first replica writes the stage's part, with the losses of all replicas in the order of minibatches."""
        self.ordered = self.losses_of_all((step - self.start) // self.count) if self.stage == len(self.replicas) else []
        if self.replica == 0:
            over = step - self.start == self.assignment.steps
            self.write_checkpoint(step, None if over else {"entries": self.history.entries})

    def losses_of_all(self, rounds: int) -> list[torch.Tensor]:
        """Those of the replicas' first minibatches, in the order of minibatches; all call this after the same round."""
        own = torch.stack(self.record.losses[:rounds])
        parts = [torch.empty_like(own) for _ in range(self.count)]
        if self.count == 1:
            return list(own)
        dist.all_gather(parts, own, group=self.mates)
        return list(torch.stack(parts, 1).flatten())

    def losses_so_far(self) -> Sequence[torch.Tensor]:
        """Those that all replicas had at the checkpoint that is being written."""
        return self.ordered
