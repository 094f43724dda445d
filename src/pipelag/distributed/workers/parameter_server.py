"""Asynchronous data parallelism (ASP) on real workers: a parameter server, and workers that never wait for each other.

A worker takes a minibatch's number and the newest weights from the server, computes the gradient, and sends it back.
The server runs in threads of rank 0, and makes an update from every gradient as it arrives. Meanwhile other updates
have moved the weights on; the record says by how many (PipeDream section 2.1; Recht et al.'s Hogwild with locks). The
order of updates depends on timing, so two runs differ; with one worker this is plain training.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from threading import Lock, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipelag.distributed.checkpoints import CheckpointWriter
from pipelag.distributed.job import Job
from pipelag.distributed.p2p import reaching
from pipelag.distributed.record import Record
from pipelag.distributed.workers.base import Assignment, WholeModel
from pipelag.randomness import seed_stage
from pipelag.stage.optimizers import group_by_stage, set_rates
from pipelag.stage.weights import FlatParameters

Buffers = list[torch.Tensor]
NONE = -1  # no minibatch is left


class ParameterServer:
    """Holds the weights, and updates them with gradients in the order in which these arrive.

    Args:
        model: the server's own copy.
        workers: their number.
        after_update: called after every update with the number of the run's updates, before the next one.
    """

    def __init__(
        self, model: nn.Module, assignment: Assignment, workers: int, after_update: Callable[[int], None]
    ) -> None:
        self.model, self.assignment, self.after_update = model, assignment, after_update
        self.flat = FlatParameters(model.parameters())
        self.optimizer = group_by_stage(assignment.optimizer, [self.flat.parameters], assignment.phase.stage_lr, [1])
        self.lock = Lock()
        self.next = workers  # the first minibatches are the workers' ranks
        self.updates = 0
        self.losses: list[torch.Tensor] = []  # in the order of updates, like the ages and times below
        self.ages: list[int] = []
        self.updated: list[float] = []

    def exchange(
        self, gradients: Buffers, there: Sequence[float], version: int, loss: float
    ) -> tuple[int, int, Buffers]:
        """Update with a gradient computed at the weights of `version`; returns (next minibatch, version, weights).

        there: per parameter, whether it has a gradient; a parameter without one gets no weight decay either.
        """
        with self.lock:
            step = self.assignment.start + self.updates
            share = self.assignment.rate_of(1, step - self.assignment.begun)
            if self.optimizer is not None:
                for parameter, gradient, known in zip(
                    self.flat.parameters, self.flat.views(gradients), there, strict=True
                ):
                    parameter.grad = gradient if known else None
                set_rates(self.optimizer, lambda stage: share)
                self.optimizer.step()
                self.flat.take_back(self.flat.parameters)
            self.losses.append(torch.tensor(loss))
            self.ages.append(self.updates - version)
            self.updated.append(time.perf_counter())
            self.updates += 1
            self.after_update(step + 1)
            number, self.next = self.next, self.next + 1
            number = number if number < self.assignment.steps else NONE
            return number, self.updates, [buffer.clone() for buffer in self.flat.buffers]


class AsynchronousWorker(WholeModel):
    """A worker that trains the whole model; rank 0 also runs the server. Arguments are those of `ReplicaWorker`.

    Batch-norm statistics are those of rank 0.
    """

    def __init__(
        self, job: Job, model: nn.Module, assignment: Assignment, writer: CheckpointWriter | None = None
    ) -> None:
        super().__init__(job, model, assignment, writer)
        # Gradients and weights go through gloo on the CPU, over connections of their own, with a server thread per
        # worker.
        self.group = job.group("ASP", backend="gloo")
        self.server: ParameterServer | None = None
        if job.rank == 0:
            self.server = ParameterServer(copy.deepcopy(model), assignment, job.world, self.checkpoint)
        self.flat = FlatParameters(model.parameters())
        self.optimizer = self.server.optimizer if self.server else None
        self.shadows = self.server.flat.parameters if self.server else self.flat.parameters
        self.failure: BaseException | None = None
        self.counting = Lock()
        self.waited = 0.0

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase: compute the gradient of one minibatch after another, until none is left."""
        self.began = time.perf_counter()
        peers = range(1, min(self.job.world, self.assignment.steps)) if self.server else ()
        threads = [Thread(target=self.serve, args=(peer,), daemon=True) for peer in peers]
        for thread in threads:
            thread.start()
        number, version = self.job.rank, 0
        number = number if number < self.assignment.steps else NONE
        while number != NONE:
            gradients, there, loss = self.gradient(inputs, targets, self.assignment.start + number)
            began = time.perf_counter()
            number, version, weights = self.exchange(gradients, there, version, loss)
            self.waited += time.perf_counter() - began
            for buffer, new in zip(self.flat.buffers, weights, strict=True):
                buffer.copy_(new)
            if self.failure is not None:  # at once, because the worker of the failed thread would wait to the end
                raise self.failure
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        if self.server:
            for buffer, new in zip(self.flat.buffers, self.server.flat.buffers, strict=True):
                buffer.copy_(new)
            self.record.losses, self.record.ages = dict(enumerate(self.server.losses)), self.server.ages
            self.record.updated = self.server.updated
        self.stop_clock()
        return self.record

    def waiting(self) -> float:
        """The seconds so far of waiting for the server's answers."""
        return self.waited

    @property
    def trained(self) -> nn.Module:
        """The server's model."""
        assert self.server is not None
        return self.server.model

    def gradient(
        self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor], step: int
    ) -> tuple[Buffers, list[float], float]:
        """The gradient of the run's minibatch `step` at this worker's weights.

        Returns:
            The flat gradient, per parameter whether it has one, and the loss.
        """
        seed_stage(self.assignment.seed, step, 1, self.job.device)
        self.step = step
        loss = self.part_of_loss(self.module(inputs(step)), targets(step))
        loss.backward()
        flat = [torch.zeros_like(buffer) for buffer in self.flat.buffers]
        there = [float(parameter.grad is not None) for parameter in self.flat.parameters]
        for parameter, view in zip(self.flat.parameters, self.flat.views(flat), strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
                parameter.grad = None
        return flat, there, float(loss.detach())

    def exchange(
        self, gradients: Buffers, there: Sequence[float], version: int, loss: float
    ) -> tuple[int, int, Buffers]:
        """Give the server a gradient and take weights; see `ParameterServer.exchange`."""
        if self.server:
            return self.server.exchange(gradients, there, version, loss)
        head = torch.tensor([float(version), loss, *there], dtype=torch.float64)
        self.send([head, *(gradient.cpu() for gradient in gradients)], 0)
        answer = torch.empty(2, dtype=torch.int64)
        weights = [torch.empty_like(buffer, device="cpu") for buffer in self.flat.buffers]
        self.receive([answer, *weights], 0)
        return int(answer[0]), int(answer[1]), weights

    def serve(self, peer: int) -> None:
        """Answer one worker, on rank 0, until no minibatch is left for it."""
        assert self.server is not None
        try:
            number = 0
            while number != NONE:
                head = torch.empty(2 + len(self.flat.parameters), dtype=torch.float64)
                gradients = [torch.empty_like(buffer, device="cpu") for buffer in self.flat.buffers]
                self.receive([head, *gradients], peer)
                on_device = [gradient.to(self.job.device) for gradient in gradients]
                read, loss, *there = head.tolist()
                number, version, weights = self.server.exchange(on_device, there, int(read), loss)
                self.send([torch.tensor([number, version]), *(buffer.cpu() for buffer in weights)], peer)
        except BaseException as error:  # raised by rank 0's own worker
            self.failure = error

    def send(self, message: Sequence[torch.Tensor], peer: int) -> None:
        """Send tensors one after the other."""
        for tensor in message:
            with reaching(self.job.rank, peer):
                dist.send(tensor, peer, group=self.group)
            with self.counting:
                self.synchronised += tensor.numel() * tensor.element_size()

    def receive(self, message: Sequence[torch.Tensor], peer: int) -> None:
        """Receive into these tensors."""
        for tensor in message:
            with reaching(self.job.rank, peer):
                dist.recv(tensor, peer, group=self.group)

    def checkpoint(self, step: int) -> None:
        """Write the checkpoint after `step` updates, of any minibatches, with rank 0's statistics at this moment."""
        if self.writer is not None and self.writer.wants(step):
            assert self.server is not None
            self.record.losses = dict(enumerate(self.server.losses))  # in the order of updates
            self.keep_buffers(step)
            self.write_checkpoint(step)
