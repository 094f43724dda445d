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

from pipelag.distributed.links import Receiver, Sender
from pipelag.distributed.worker import Job, Loss, Record, Worker, in_flight, received_inputs
from pipelag.optim import OptimizerFactory, group_by_stage, set_rates
from pipelag.randomness import seed_stage
from pipelag.recompute import backward_through
from pipelag.schedules.actions import Action
from pipelag.schedules.replicated import one_f_one_b_rounds
from pipelag.simulate.replicated import Versions
from pipelag.tensors import as_tuple
from pipelag.weights import FlatParameters, hand_over, shadows


def places(replicas: Sequence[int]) -> list[tuple[int, int]]:
    """(stage from 1, replica from 0) of every rank."""
    return [(stage, replica) for stage, count in enumerate(replicas, start=1) for replica in range(count)]


class ReplicatedWorker(Worker):
    """One replica of one stage, for one phase. Arguments as of `StageWorker`; `replicas`: workers of each stage."""

    def __init__(
        self,
        job: Job,
        replicas: Sequence[int],
        module: nn.Module,
        optimizer: OptimizerFactory,
        loss: Loss,
        rate: Callable[[int], float],
        seed: int,
        start: int,
        steps: int,
        stage_lr: dict[int, float],
        snapshot_after: frozenset[int] = frozenset(),
    ) -> None:
        self.job, self.replicas, self.module, self.loss, self.rate = job, tuple(replicas), module, loss, rate
        self.seed, self.start, self.steps, self.snapshot_after = seed, start, steps, snapshot_after
        self.stage, self.replica = places(replicas)[job.rank]
        self.count = replicas[self.stage - 1]
        self.actions = one_f_one_b_rounds(len(replicas), steps, replicas).workers[job.rank]
        self.flat = FlatParameters(module.parameters())
        self.shadows = shadows(self.flat.parameters)
        self.optimizer = group_by_stage(optimizer, [self.shadows], stage_lr, [self.stage])
        self.versions = Versions(self.flat)
        self.kept: dict[int, tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], int]] = {}
        self.record = Record()
        # Every rank makes every group, in one order: torch.distributed demands it.
        offset = 0
        self.mates: Any = None
        for stage, count in enumerate(replicas, start=1):
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
        self.perform_all(
            [*self.inputs_from.values(), *self.gradients_from.values()],
            [*self.outputs_to.values(), *self.gradients_to.values()],
        )
        self.versions.show(self.versions.version)
        return self.record

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
            value = received[0] if len(received) == 1 else received
        self.versions.show(self.versions.version)
        seed_stage(self.seed, step, self.stage, self.job.device)
        value = self.module(value)
        if self.stage == len(self.replicas):
            value = self.loss(value, self.targets(step))
            self.record.losses.append(value.detach())
        outputs = as_tuple(value)
        if self.stage < len(self.replicas):
            peer = self.rank_of(self.stage + 1, m)
            self.send_output_to(self.outputs_to[peer], self.gradients_from[peer], outputs, step)
        self.kept[m] = (received, outputs, self.versions.version)
        ends = step + self.count  # replica 0 has the first minibatch of a round, its statistics are the stage's
        if self.replica == 0 and ends in self.snapshot_after:
            self.keep_buffers(ends)

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
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self.mates)
            parameter.grad /= self.count
            size = parameter.grad.numel() * parameter.grad.element_size()
            self.record.sent_bytes += 2 * (self.count - 1) * size // self.count  # a ring's share of one worker
        self.record.sending += time.perf_counter() - begin

    def update(self, round_: int) -> None:
        """U(stage, n): one optimizer step; every replica makes the same."""
        step = self.start + (round_ + 1) * self.count - 1
        self.versions.show(self.versions.version)
        if self.kept:
            self.versions.keep()
        if self.optimizer is not None:
            hand_over(self.flat.parameters, self.shadows)
            set_rates(self.optimizer, lambda stage: self.rate(step))
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.versions.updated()
        self.versions.forget_before(
            min((version for _, _, version in self.kept.values()), default=self.versions.version)
        )
        self.record.updated.append(time.perf_counter())
        if self.replica == 0 and step + 1 in self.snapshot_after:
            self.keep_weights(step + 1)
