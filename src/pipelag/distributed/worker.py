"""One worker of a real pipeline: performs its list of actions, talks to its neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipelag.distributed.links import Receiver, Sender, TensorMeta, Wire
from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.optim import OptimizerFactory, group_by_stage, set_rates
from pipelag.randomness import seed_stage
from pipelag.weights import FlatParameters, hand_over, shadows

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass
class Job:
    """What the processes of one launch share.

    `forward` and `backward` are two groups over all ranks: activations and gradients travel on connections of their
    own, so that neither waits for the other's turn (with nccl that could deadlock).
    """

    rank: int
    world: int
    device: torch.device
    store: Any  # torch.distributed.Store
    forward: dist.ProcessGroup
    backward: dist.ProcessGroup
    phases: int = 0  # phases begun, so that every phase's links have names of their own in the store

    def wire(self, group: dist.ProcessGroup, name: str) -> Wire:
        """The wiring of a link of the present phase."""
        return Wire(self.rank, group, self.store, self.device, f"phase{self.phases}/{name}")


@dataclass
class Kept:
    """What a forward leaves for its backward."""

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    weights: list[torch.Tensor] | None  # the stashed version, where the method's backward reads that


@dataclass
class Record:
    """What a worker saw: losses (last stage only), the second at which each update was done, the waiting for messages.

    On a GPU `updated` is read off its events when the phase is over, so that timing makes nobody wait.
    """

    losses: list[torch.Tensor] = field(default_factory=list)
    updated: list[float] = field(default_factory=list)
    waited: float = 0.0
    sent_bytes: int = 0
    snapshots: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)


class StageWorker:
    """Stage number `stage` of `stages` on this rank, for one phase.

    Args:
        module: the stage. Its parameters become views of one flat buffer.
        optimizer: factory; the optimizer steps on parameters that share storage with the module's.
        rate: the factor on the base rate at a step of the run; `start`: the run's step at which the phase starts.
        snapshot_after: steps (of the run, counted as done) whose weights and buffers are to be kept, for evaluation.
    """

    def __init__(
        self,
        job: Job,
        stage: int,
        stages: int,
        module: nn.Module,
        method: Method,
        optimizer: OptimizerFactory,
        loss: Loss,
        rate: Callable[[int], float],
        seed: int,
        start: int,
        steps: int,
        stage_lr: dict[int, float] | None = None,
        snapshot_after: frozenset[int] = frozenset(),
    ) -> None:
        self.job, self.stage, self.stages, self.module, self.method = job, stage, stages, module, method
        self.loss, self.rate, self.seed, self.start, self.steps = loss, rate, seed, start, steps
        self.snapshot_after = snapshot_after
        schedule = method.schedule(stages, steps)
        self.actions = schedule.workers[stage - 1]
        if any(action.stage != stage for action in self.actions):
            raise PipelagError(
                f"method '{method.name}' puts other stages than {stage} on worker {stage - 1}; the real executor runs "
                "one stage per worker"
            )
        self.delay = method.delays(stages).forward[stage - 1]
        self.flat = FlatParameters(module.parameters())
        self.shadows = shadows(self.flat.parameters)
        self.optimizer = group_by_stage(optimizer, [self.shadows], stage_lr or {}, [stage])
        self.kept: dict[int, Kept] = {}
        self.record = Record()
        self.events: list[torch.cuda.Event] = []
        up, down = job.rank - 1, job.rank + 1
        first, last = stage == 1, stage == stages
        self.receive_input = None if first else Receiver(job.wire(job.forward, f"F{stage - 1}"), up, steps)
        self.send_output = None if last else Sender(job.wire(job.forward, f"F{stage}"), down, self.delay + 2)
        self.receive_gradient = None if last else Receiver(job.wire(job.backward, f"B{stage + 1}"), down, steps)
        self.send_gradient = (
            None if first else Sender(job.wire(job.backward, f"B{stage}"), up, self.delay + 2, metas=[])
        )

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase. `inputs(step)` is asked for by the first stage only, `targets(step)` by the last."""
        perform = {"F": self.forward, "B": self.backward, "U": self.update}
        self.inputs, self.targets = inputs, targets
        for action in self.actions:
            perform[action.kind](action.number)
        for sender in (self.send_output, self.send_gradient):
            if sender is not None:
                sender.finish()
                self.record.sent_bytes += sender.bytes
        for receiver in (self.receive_input, self.receive_gradient):
            if receiver is not None:
                self.record.waited += receiver.waited
        if self.events:
            torch.cuda.synchronize()
            self.record.updated = [self.events[0].elapsed_time(event) / 1000 for event in self.events]
        return self.record

    def forward(self, m: int) -> None:
        """F(stage, m): with the live weights; the activations are kept for the backward."""
        step = self.start + m
        if self.receive_input is None:
            value = self.inputs(step)
            received: tuple[torch.Tensor, ...] = ()
        else:
            received = self.receive_input.receive()
            assert self.receive_input.metas is not None
            for tensor, meta in zip(received, self.receive_input.metas, strict=True):
                tensor.requires_grad_(meta.differentiable)
            value = received[0] if len(received) == 1 else received
        stashed = self.flat.snapshot() if self.method.backward_reads == "stashed" and self.delay else None
        seed_stage(self.seed, step, self.stage, self.job.device)
        value = self.module(value)
        if self.send_output is None:
            value = self.loss(value, self.targets(step))
            self.record.losses.append(value.detach())
        outputs = value if isinstance(value, tuple) else (value,)
        if self.send_output is not None:
            self.send_output.send(outputs, f"the output of stage {self.stage} for minibatch {step}")
            if self.receive_gradient is not None and self.receive_gradient.metas is None:
                self.receive_gradient.describe([TensorMeta.of(o) for o in outputs if o.requires_grad])
        self.kept[m] = Kept(received, outputs, stashed)
        if step + 1 in self.snapshot_after:
            kept = self.record.snapshots.setdefault(step + 1, {})
            kept |= {name: buffer.clone() for name, buffer in self.module.named_buffers()}

    def backward(self, m: int) -> None:
        """B(stage, m): with the kept activations, and the live weights or the stashed ones as the method says."""
        kept = self.kept.pop(m)
        outputs = tuple(output for output in kept.outputs if output.requires_grad)
        gradients = self.receive_gradient.receive() if self.receive_gradient is not None else (None,)
        live = None
        if kept.weights is not None:
            live = self.flat.snapshot()
            torch._foreach_copy_(self.flat.buffers, kept.weights)
        torch.autograd.backward(outputs, gradients)
        if live is not None:
            torch._foreach_copy_(self.flat.buffers, live)
        if self.send_gradient is not None:
            sources = [tensor for tensor in kept.inputs if tensor.requires_grad]
            if not self.send_gradient.metas:
                self.send_gradient.metas = [TensorMeta.of(tensor) for tensor in sources]
            self.send_gradient.send(
                tuple(tensor.grad if tensor.grad is not None else torch.zeros_like(tensor) for tensor in sources),
                f"the gradient of stage {self.stage} for minibatch {self.start + m}",
            )

    def update(self, m: int) -> None:
        """U(stage, m): one optimizer step on this stage."""
        step = self.start + m
        if self.optimizer is not None:
            hand_over(self.flat.parameters, self.shadows)
            policy = self.method.learning_rate
            own = policy(self.stage, self.stages, m, self.delay) if policy else 1.0
            set_rates(self.optimizer, lambda stage: self.rate(step) * own)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.mark()
        if step + 1 in self.snapshot_after:
            kept = self.record.snapshots.setdefault(step + 1, {})
            kept |= {name: p.detach().clone() for name, p in self.module.named_parameters()}

    def mark(self) -> None:
        """Note the time."""
        if self.job.device.type == "cuda":
            self.events.append(torch.cuda.Event(enable_timing=True))
            self.events[-1].record()
        else:
            self.record.updated.append(time.perf_counter())

    def optimizer_state(self) -> dict[int, dict[str, Any]]:
        """The optimizer's state per parameter, by the parameter's position in the stage."""
        if self.optimizer is None:
            return {}
        return {i: dict(self.optimizer.state[s]) for i, s in enumerate(self.shadows) if s in self.optimizer.state}

    def load_optimizer_state(self, state: dict[int, dict[str, Any]]) -> None:
        """Continue with the state of an earlier phase."""
        if self.optimizer is not None:
            for i, values in state.items():
                self.optimizer.state[self.shadows[i]] = values
