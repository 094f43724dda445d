"""A worker that owns one stage of a pipeline: forward, backward and update, each with the weights the method reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pipelag.data.split import split
from pipelag.distributed.checkpoints import Keeper
from pipelag.distributed.links import Receiver, Sender
from pipelag.distributed.worker import Assignment, Job, Record, Worker, in_flight, received_inputs
from pipelag.errors import PipelagError
from pipelag.history import History, restore, state_of
from pipelag.methods import Method
from pipelag.optim import group_by_stage, set_rates
from pipelag.policy import StageWeights
from pipelag.randomness import seed_stage
from pipelag.recompute import backward_through, recompute_lags, segmented
from pipelag.schedules import Action
from pipelag.tensors import alone, as_tuple, kept_for_backward, unchanged_buffers
from pipelag.weights import FlatParameters, hand_over, shadows


@dataclass
class Kept:
    """What a forward leaves for its backward; with recomputation no outputs, but what the stage was called with."""

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    entering: Any = None


def check_real(method: Method, stages: int) -> None:
    """Refuse a method that the real executor cannot run: it performs a schedule, one stage per worker."""
    if method.random is not None:
        raise PipelagError(
            f"method '{method.name}' draws its delays at random, which a real pipeline cannot promise; run it in the "
            "simulated executor"
        )
    if method.data_parallel:
        return
    rows = method.schedule(stages, 1).workers
    for worker, row in enumerate(rows):
        if len(rows) != stages or any(action.stage != worker + 1 for action in row):
            raise PipelagError(
                f"method '{method.name}' does not give each of the {stages} stages a worker of its own, as the real "
                "executor does; run it in the simulated executor"
            )


class StageWorker(Worker):
    """The stage of this rank, for one phase.

    Args:
        module: the stage. Its parameters become views of one flat buffer.
        again: what the policy remembered at the checkpoint that the phase goes on from (`pipelag.history`). None at the
            phase's start, and where the pipeline goes on as another than wrote the checkpoint: it then fills anew.
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
        phase = assignment.phase
        stage, stages, method = job.rank + 1, phase.stages, phase.method
        self.stage, self.stages, self.method, self.again = stage, stages, method, again
        self.microbatches, self.segment = phase.microbatches, int(phase.recompute)
        self.delays = method.delays(stages, self.microbatches)
        self.taus = method.rate_taus(stages, self.microbatches)
        steps, microbatches = assignment.steps, self.microbatches
        if self.segment > 1:
            schedule = segmented(method, stages, steps, microbatches, self.segment)
        else:
            schedule = method.schedule(stages, steps, microbatches)
        self.actions = schedule.workers[stage - 1]
        self.recompute = self.segment == 1
        # In a segment a stage runs again in actions of its own: the first from its kept input, the others as sent.
        self.runs_again, self.heads = ("R", stage) in schedule.owners, schedule.heads(stage)
        self.flat = FlatParameters(module.parameters())
        self.shadows = shadows(self.flat.parameters)
        self.optimizer = group_by_stage(assignment.optimizer, [self.shadows], phase.stage_lr, [stage])
        self.back = max(*self.delays.forward_lags[stage - 1], *self.delays.backward_lags[stage - 1])
        # While a pipeline fills again its forwards read versions that it no longer needs once it is full.
        back = method.versions_back(stages, microbatches)[stage - 1] if again is None else self.back
        self.weights = StageWeights(self.flat, method, stage, stages, self.delays, self.optimizer, self.shadows, back)
        self.again_lags = recompute_lags(method, stages, microbatches, self.segment) if self.segment > 1 else []
        if self.again_lags:
            self.weights.correct_recomputation(self.again_lags[stage - 1])
        self.kept: dict[int, Kept] = {}
        self.kept_bytes = self.entering_bytes = 0
        self.events: list[torch.cuda.Event] = []
        self.parts: dict[str, tuple[int, list[Any]]] = {}
        up, down = job.rank - 1, job.rank + 1
        first, last = stage == 1, stage == stages
        count, ahead = steps * microbatches, in_flight(self.actions) + 2
        self.receive_input = None if first else Receiver(job.wire(job.forward, f"F{stage - 1}"), up, count)
        self.send_output = None if last else Sender(job.wire(job.forward, f"F{stage}"), down, ahead)
        self.receive_gradient = None if last else Receiver(job.wire(job.backward, f"B{stage + 1}"), down, count)
        self.send_gradient = None if first else Sender(job.wire(job.backward, f"B{stage}"), up, ahead, metas=[])
        self.receive_again: Receiver | None = None
        self.send_again: Sender | None = None
        if self.segment > 1:
            group = job.recomputation()
            if self.runs_again and not self.heads:
                self.receive_again = Receiver(job.wire(group, f"R{stage - 1}"), up, count)
            if self.runs_again and not last and not schedule.heads(stage + 1):
                self.send_again = Sender(job.wire(group, f"R{stage}"), down, ahead)

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase. `inputs(step)` is asked for by the first stage only, `targets(step)` by the last."""
        self.inputs, self.targets = inputs, targets
        self.go_on()
        self.perform_all(
            [each for each in (self.receive_input, self.receive_gradient, self.receive_again) if each is not None],
            [each for each in (self.send_output, self.send_gradient, self.send_again) if each is not None],
        )
        self.record.memory = self.memory()
        if self.events:
            torch.cuda.synchronize()
            self.record.updated = [self.events[0].elapsed_time(event) / 1000 for event in self.events]
        return self.record

    def go_on(self) -> None:
        """Bring the policy to the version that the phase begins or goes on with, the optimizer's state being there."""
        self.set_rates(0)  # what predictions of the first version go by
        if self.again is not None:
            restore(self.weights, self.again)
        else:
            self.weights.begin_at(self.offset)
        entries = None if self.again is None else self.again["entries"]
        self.history = History(self.weights, self.assignment.marks(self.keeper), self.back, entries)

    def perform(self, action: Action) -> None:
        """F, R, B or U."""
        perform = {"F": self.forward, "R": self.run_again, "B": self.backward, "U": self.update}
        perform[action.kind](action.number)

    def memory(self) -> dict[str, int]:
        """Bytes by kind; activations are those of one microbatch times the most that are under way.

        With recomputation, the stage's inputs of those, and all activations of the one that is being recomputed; in a
        segment, the first stage's inputs, and all activations of those that wait for their gradient.
        """
        waiting, recomputed = in_flight(self.actions), 1 if self.recompute else 0
        if self.runs_again:
            waiting, recomputed = waiting if self.heads else 0, in_flight(self.actions, "R")
        state = self.optimizer.state.values() if self.optimizer is not None else ()
        tensors = [value for entry in state for value in entry.values() if isinstance(value, torch.Tensor)]
        return {
            "weights": sum(buffer.numel() * buffer.element_size() for buffer in self.flat.buffers),
            "weight_copies": self.weights.bytes,
            "optimizer": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            "activations": (self.entering_bytes if recomputed else self.kept_bytes) * waiting
            + self.kept_bytes * recomputed,
        }

    def part(self, what: str, m: int) -> Any:
        """Microbatch m of a minibatch's "inputs" or "targets"."""
        minibatch, j = divmod(m, self.microbatches)
        if self.parts.get(what, (-1,))[0] != minibatch:
            whole = (self.inputs if what == "inputs" else self.targets)(self.start + minibatch)
            self.parts[what] = (minibatch, split(whole, self.microbatches))
        return self.parts[what][1][j]

    def version(self, m: int, lags: Sequence[tuple[int, ...]]) -> int:
        """The version that a pass of microbatch m reads here."""
        minibatch, j = divmod(m, self.microbatches)
        oldest = self.offset if self.again is None else 0
        return max(oldest, self.offset + minibatch - lags[self.stage - 1][j])

    def forward(self, m: int) -> None:
        """F(stage, m): the activations are kept for the backward."""
        step = self.start + m // self.microbatches
        if self.receive_input is None:
            value = self.part("inputs", m)
            received: tuple[torch.Tensor, ...] = ()
        else:
            received = received_inputs(self.receive_input)
            value = alone(received)
        self.weights.load("F", self.version(m, self.delays.forward_lags), m % self.microbatches)
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
        if self.runs_again:
            self.kept[m] = Kept(received, (), entering) if self.heads else Kept((), ())
        else:
            self.kept[m] = Kept(received, (), (entering, target)) if self.recompute else Kept(received, outputs)
        if (m + 1) % self.microbatches == 0:
            self.keep_buffers(step + 1)

    def run_again(self, m: int) -> None:
        """R(stage, m): the forward once more, by itself, keeping its activations for the backward."""
        kept = self.kept[m]
        if self.receive_again is not None:
            received = received_inputs(self.receive_again)
            kept.inputs, kept.entering = received, alone(received)
        self.weights.load("R", self.version(m, self.again_lags), m % self.microbatches)
        with unchanged_buffers(self.module):
            value = self.compute(kept.entering, m)
        kept.outputs = as_tuple(value)
        if self.send_again is not None:
            self.send_again.send(kept.outputs, f"stage {self.stage}'s second output for microbatch {m}")

    def compute(self, entering: Any, m: int, target: torch.Tensor | None = None) -> Any:
        """The stage's output for microbatch m, or on the last stage the loss."""
        seed_stage(self.assignment.seed, self.start * self.microbatches + m, self.stage, self.job.device)
        value = self.module(entering)
        if self.send_output is None:
            value = self.assignment.loss(value, self.part("targets", m) if target is None else target)
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
        self.weights.load("B", self.version(m, self.delays.backward_lags), m % self.microbatches)
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
            self.weights.before_step()
            self.optimizer.step()
            self.weights.after_step()
            self.optimizer.zero_grad(set_to_none=True)
            if m + 1 < self.assignment.steps:
                self.set_rates(m + 1)
                self.weights.prepare()
            self.history.note()
        self.mark()
        if self.keeper is not None and self.keeper.wants(step + 1):
            over = self.offset + m + 1 == self.assignment.phase.steps
            self.write_checkpoint(step + 1, None if over else state_of(self.weights, self.history))

    def set_rates(self, m: int) -> None:
        """The rate of the update of minibatch m, counted from where this worker began; predictions go by it before."""
        if self.optimizer is not None:
            policy, tau = self.method.learning_rate, self.taus[self.stage - 1]
            own = policy(self.stage, self.stages, self.offset + m, tau) if policy else 1.0
            set_rates(self.optimizer, lambda stage: self.assignment.rate(self.start + m) * own)

    def mark(self) -> None:
        """Note the time."""
        if self.job.device.type == "cuda":
            self.events.append(torch.cuda.Event(enable_timing=True))
            self.events[-1].record()
        else:
            self.record.updated.append(time.perf_counter())
