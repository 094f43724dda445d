"""One worker of a real pipeline: performs its list of actions, talks to its neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipelag.data.split import split
from pipelag.distributed.links import Receiver, Sender, TensorMeta, Wire
from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.optim import OptimizerFactory, group_by_stage, set_rates
from pipelag.policy import StageWeights
from pipelag.randomness import seed_stage
from pipelag.recompute import backward_through
from pipelag.schedules import Action
from pipelag.tensors import as_tuple, kept_for_backward, unchanged_buffers
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
    """What a forward leaves for its backward; with recomputation no outputs, but what the stage was called with."""

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    entering: Any = None


@dataclass
class Record:
    """What a worker saw: losses (last stage only), the second at which each update was done, the waiting for messages.

    `spans`: (action, start, end) of every action by the machine's monotonic clock, the waiting for its inputs left out;
    an update or synchronisation has the number of the worker's own minibatch. `seconds` is the whole phase, of which
    `waited` went into waiting for messages and `sending` into sending them; the rest is `busy`. On a GPU the spans say
    when work was handed to it, and `updated` is read off its events when the phase is over, so that timing makes nobody
    wait.
    `memory`: bytes by kind at the fullest moment: weights, weight copies, optimizer state, kept activations.
    """

    losses: list[torch.Tensor] = field(default_factory=list)
    updated: list[float] = field(default_factory=list)
    waited: float = 0.0
    sending: float = 0.0
    seconds: float = 0.0
    sent_bytes: int = 0
    spans: list[tuple[Action, float, float]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    snapshots: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    @property
    def busy(self) -> float:
        """Seconds of the phase in which the worker computed."""
        return self.seconds - self.waited - self.sending

    def shares(self) -> dict[str, float]:
        """How the phase's time divides (the spectrain paper's breakdown, section 4.2)."""
        whole = self.seconds or 1.0
        return {"busy": self.busy / whole, "communication": self.sending / whole, "idle": self.waited / whole}


def in_flight(actions: Sequence[Action]) -> int:
    """The most microbatches that are between their forward and their backward here at any time."""
    now = most = 0
    for action in actions:
        now += {"F": 1, "B": -1}.get(action.kind, 0)
        most = max(most, now)
    return most


def received_inputs(receiver: Receiver) -> tuple[torch.Tensor, ...]:
    """The next message as inputs that want a gradient where the sender's outputs did."""
    received = receiver.receive()
    assert receiver.metas is not None
    for tensor, meta in zip(received, receiver.metas, strict=True):
        tensor.requires_grad_(meta.differentiable)
    return received


def check_real(method: Method, stages: int) -> None:
    """Refuse a method that the real executor cannot run: it performs a schedule, one stage per worker."""
    if method.random is not None:
        raise PipelagError(
            f"method '{method.name}' draws its delays at random, which a real pipeline cannot promise; run it in the "
            "simulated executor"
        )
    rows = method.schedule(stages, 1).workers
    for worker, row in enumerate(rows):
        if len(rows) != stages or any(action.stage != worker + 1 for action in row):
            raise PipelagError(
                f"method '{method.name}' does not give each of the {stages} stages a worker of its own, as the real "
                "executor does; run it in the simulated executor"
            )


class Worker:
    """What every worker of a pipeline is: a list of actions to perform, and the optimizer of one stage's weights."""

    stage: int
    module: nn.Module
    actions: Sequence[Action]
    record: Record
    optimizer: torch.optim.Optimizer | None
    shadows: list[nn.Parameter]
    flat: FlatParameters

    def perform(self, action: Action) -> None:
        """Do one action."""
        raise NotImplementedError

    def named(self, action: Action) -> Action:
        """The action as a timeline names it."""
        return action

    def perform_all(self, receivers: Sequence[Receiver], senders: Sequence[Sender]) -> None:
        """All actions in order, with the clocks that `Record` keeps."""
        began = time.perf_counter()
        for action in self.actions:
            start, waited = time.perf_counter(), sum(receiver.waited for receiver in receivers)
            self.perform(action)
            start += sum(receiver.waited for receiver in receivers) - waited
            self.record.spans.append((self.named(action), start, time.perf_counter()))
        for sender in senders:
            sender.finish()
            self.record.sent_bytes += sender.bytes
            self.record.sending += sender.seconds
        self.record.waited = sum(receiver.waited for receiver in receivers)
        self.record.seconds = time.perf_counter() - began

    def send_output_to(
        self, sender: Sender, gradients: Receiver, outputs: tuple[torch.Tensor, ...], minibatch: int
    ) -> None:
        """Pass a forward's outputs on, and learn from the first ones what gradients will come back."""
        sender.send(outputs, f"the output of stage {self.stage} for minibatch {minibatch}")
        if gradients.metas is None:
            gradients.describe([TensorMeta.of(output) for output in outputs if output.requires_grad])

    def send_gradient_to(
        self, sender: Sender, inputs: tuple[torch.Tensor, ...], leaving: tuple[torch.Tensor, ...], minibatch: int
    ) -> None:
        """Return the gradients of what came in."""
        if not sender.metas:
            sender.metas = [TensorMeta.of(tensor) for tensor in inputs if tensor.requires_grad]
        sender.send(leaving, f"the gradient of stage {self.stage} for minibatch {minibatch}")

    def keep_buffers(self, step: int) -> None:
        """For the evaluation after `step` minibatches: batch-norm statistics."""
        kept = self.record.snapshots.setdefault(step, {})
        kept |= {name: buffer.clone() for name, buffer in self.module.named_buffers()}

    def keep_weights(self, step: int) -> None:
        """For the evaluation after `step` minibatches: the weights."""
        kept = self.record.snapshots.setdefault(step, {})
        kept |= {name: p.detach().clone() for name, p in self.module.named_parameters()}

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


class StageWorker(Worker):
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
        microbatches: int = 1,
        recompute: bool = False,
    ) -> None:
        self.job, self.stage, self.stages, self.module, self.method = job, stage, stages, module, method
        self.loss, self.rate, self.seed, self.start, self.steps = loss, rate, seed, start, steps
        self.snapshot_after = snapshot_after
        self.microbatches, self.recompute = microbatches, recompute
        self.delays = method.delays(stages, microbatches)
        schedule = method.schedule(stages, steps, microbatches)
        self.actions = schedule.workers[stage - 1]
        self.flat = FlatParameters(module.parameters())
        self.shadows = shadows(self.flat.parameters)
        self.optimizer = group_by_stage(optimizer, [self.shadows], stage_lr or {}, [stage])
        back = method.versions_back(stages, microbatches)[stage - 1]
        self.weights = StageWeights(self.flat, method, stage, stages, self.delays, self.optimizer, self.shadows, back)
        self.kept: dict[int, Kept] = {}
        self.kept_bytes = self.entering_bytes = 0
        self.record = Record()
        self.events: list[torch.cuda.Event] = []
        self.parts: dict[str, tuple[int, list[Any]]] = {}
        up, down = job.rank - 1, job.rank + 1
        first, last = stage == 1, stage == stages
        count, ahead = steps * microbatches, in_flight(self.actions) + 2
        self.receive_input = None if first else Receiver(job.wire(job.forward, f"F{stage - 1}"), up, count)
        self.send_output = None if last else Sender(job.wire(job.forward, f"F{stage}"), down, ahead)
        self.receive_gradient = None if last else Receiver(job.wire(job.backward, f"B{stage + 1}"), down, count)
        self.send_gradient = None if first else Sender(job.wire(job.backward, f"B{stage}"), up, ahead, metas=[])

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase. `inputs(step)` is asked for by the first stage only, `targets(step)` by the last."""
        self.inputs, self.targets = inputs, targets
        self.perform_all(
            [each for each in (self.receive_input, self.receive_gradient) if each is not None],
            [each for each in (self.send_output, self.send_gradient) if each is not None],
        )
        self.record.memory = self.memory()
        if self.events:
            torch.cuda.synchronize()
            self.record.updated = [self.events[0].elapsed_time(event) / 1000 for event in self.events]
        return self.record

    def perform(self, action: Action) -> None:
        """F, B or U."""
        {"F": self.forward, "B": self.backward, "U": self.update}[action.kind](action.number)

    def memory(self) -> dict[str, int]:
        """Bytes by kind; activations are those of one microbatch times the most that are under way.

        With recomputation, the stage's inputs of those, and all activations of the one that is being recomputed.
        """
        state = self.optimizer.state.values() if self.optimizer is not None else ()
        tensors = [value for entry in state for value in entry.values() if isinstance(value, torch.Tensor)]
        return {
            "weights": sum(buffer.numel() * buffer.element_size() for buffer in self.flat.buffers),
            "weight_copies": self.weights.bytes,
            "optimizer": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            "activations": (self.entering_bytes if self.recompute else self.kept_bytes) * in_flight(self.actions)
            + (self.kept_bytes if self.recompute else 0),
        }

    def part(self, what: str, m: int) -> Any:
        """Microbatch m of a minibatch's "inputs" or "targets"."""
        minibatch, j = divmod(m, self.microbatches)
        if self.parts.get(what, (-1,))[0] != minibatch:
            whole = (self.inputs if what == "inputs" else self.targets)(self.start + minibatch)
            self.parts[what] = (minibatch, split(whole, self.microbatches))
        return self.parts[what][1][j]

    def version(self, m: int, lags: tuple[tuple[int, ...], ...]) -> int:
        """The version that a pass of microbatch m reads here."""
        minibatch, j = divmod(m, self.microbatches)
        return max(0, minibatch - lags[self.stage - 1][j])

    def forward(self, m: int) -> None:
        """F(stage, m): the activations are kept for the backward."""
        step = self.start + m // self.microbatches
        if self.receive_input is None:
            value = self.part("inputs", m)
            received: tuple[torch.Tensor, ...] = ()
        else:
            received = received_inputs(self.receive_input)
            value = received[0] if len(received) == 1 else received
        self.weights.load("F", self.version(m, self.delays.forward_lags))
        entering = value
        self.entering_bytes = sum(t.numel() * t.element_size() for t in as_tuple(value) if isinstance(t, torch.Tensor))
        if m == 0:
            with kept_for_backward({buffer.untyped_storage().data_ptr() for buffer in self.flat.buffers}) as held:
                value = self.compute(entering, m)
            self.kept_bytes = sum(held.values())
        else:
            value = self.compute(entering, m)
        if self.send_output is None:
            self.note_loss(m, value.detach())
        outputs = as_tuple(value)
        if self.send_output is not None and self.receive_gradient is not None:
            self.send_output_to(self.send_output, self.receive_gradient, outputs, step)
        target = self.part("targets", m) if self.recompute and self.send_output is None else None
        self.kept[m] = Kept(received, (), (entering, target)) if self.recompute else Kept(received, outputs)
        if step + 1 in self.snapshot_after and (m + 1) % self.microbatches == 0:
            self.keep_buffers(step + 1)

    def compute(self, entering: Any, m: int, target: torch.Tensor | None = None) -> Any:
        """The stage's output for microbatch m, or on the last stage the loss."""
        seed_stage(self.seed, self.start * self.microbatches + m, self.stage, self.job.device)
        value = self.module(entering)
        if self.send_output is None:
            value = self.loss(value, self.part("targets", m) if target is None else target)
            if self.microbatches > 1:
                value = value / self.microbatches
        return value

    def note_loss(self, m: int, value: torch.Tensor) -> None:
        """A minibatch's loss is the mean over its microbatches."""
        if m % self.microbatches:
            self.record.losses[-1] = self.record.losses[-1] + value
        else:
            self.record.losses.append(value)

    def backward(self, m: int) -> None:
        """B(stage, m): with the kept activations and the weights that the method's backward reads."""
        kept = self.kept.pop(m)
        gradients = self.receive_gradient.receive() if self.receive_gradient is not None else (None,)
        self.weights.load("B", self.version(m, self.delays.backward_lags))
        output: Any = kept.outputs
        if self.recompute:
            with unchanged_buffers(self.module):
                output = self.compute(kept.entering[0], m, kept.entering[1])
        leaving = backward_through(output, gradients, kept.inputs)
        if self.send_gradient is not None:
            self.send_gradient_to(self.send_gradient, kept.inputs, leaving, self.start + m // self.microbatches)

    def update(self, m: int) -> None:
        """U(stage, m): one optimizer step on this stage."""
        step = self.start + m
        if self.optimizer is not None:
            hand_over(self.flat.parameters, self.shadows)
            policy = self.method.learning_rate
            own = policy(self.stage, self.stages, m, self.delays.tau[self.stage - 1]) if policy else 1.0
            set_rates(self.optimizer, lambda stage: self.rate(step) * own)
            self.weights.before_step()
            self.optimizer.step()
            self.weights.after_step()
            self.optimizer.zero_grad(set_to_none=True)
        self.mark()
        if step + 1 in self.snapshot_after:
            self.keep_weights(step + 1)

    def mark(self) -> None:
        """Note the time."""
        if self.job.device.type == "cuda":
            self.events.append(torch.cuda.Event(enable_timing=True))
            self.events[-1].record()
        else:
            self.record.updated.append(time.perf_counter())
