"""The base of all real workers: the job that they share, their assignment, their record, and the order of actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch import nn

from pipelag.distributed import channel
from pipelag.distributed.channel import Channel
from pipelag.distributed.checkpoints import CheckpointWriter
from pipelag.distributed.heartbeat import Heartbeat
from pipelag.distributed.p2p import Receiver, Sender, Wire, reaching
from pipelag.distributed.routes import Route
from pipelag.schedules import Action, Schedule
from pipelag.schedules.actions import Kind
from pipelag.stage.guard import Later
from pipelag.stage.optimizers import OptimizerFactory, placed
from pipelag.stage.phase import Phase
from pipelag.stage.rounded import Masters
from pipelag.tensors import trainable

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
ENDLESS = timedelta(days=365)  # the timeout of a message: a minibatch may take hours, and heartbeats detect dead ranks
KINDS = get_args(Kind)
AHEAD = 2  # messages that a worker may be ahead of its neighbour, beyond its microbatches under way


@dataclass
class Job:
    """What the processes of one launch share.

    groups: process groups over all ranks, by what is sent in them and a number. Activations and gradients have
        connections of their own, so that neither waits for the other (with nccl that could deadlock).
    shared: the ranks of a machine compute on one GPU, and send through the CPU's memory (gloo), because nccl needs a
        GPU for each rank.
    near: the ranks of this machine that can send through shared memory (`pipelag.distributed.channel`).
    channels: the channels of the present phase's routes; None: the route's two ranks cannot have one.
    """

    rank: int
    world: int
    device: torch.device
    store: Any  # torch.distributed.Store
    heart: Heartbeat | None = None
    groups: dict[tuple[str, int], dist.ProcessGroup] = field(default_factory=dict)
    uneven: bool = False  # minibatches differ in shape
    phases: int = 0  # the number of phases begun, which makes the names of links in the store unique
    met: set[tuple[Any, int, int]] = field(default_factory=set)  # (group, rank, rank) that have exchanged a message
    shares: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict)  # groups of replicas, by their ranks
    shared: bool = False
    near: Sequence[int] = ()
    channels: dict[Route, Channel | None] = field(default_factory=dict)

    @property
    def outside(self) -> torch.device:
        """The device on which messages lie while they are under way."""
        return torch.device("cpu") if self.shared else self.device

    def group(self, kind: str, lane: int = 0, backend: str | None = None) -> dist.ProcessGroup:
        """A process group over all ranks; all ranks ask for a new one together.

        backend: of a new group; None: the job's.
        """
        if (kind, lane) not in self.groups:
            group = dist.new_group(timeout=ENDLESS, backend=backend or dist.get_backend())
            assert group is not None
            self.groups[kind, lane] = group  # type: ignore[assignment]
        return self.groups[kind, lane]

    def share(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """The process group of a stage's replicas; all ranks ask for a new one together, as torch requires."""
        key = tuple(ranks)
        if key not in self.shares:
            self.shares[key] = dist.new_group(list(key), timeout=ENDLESS)  # type: ignore[assignment]
        return self.shares[key]

    def meet(self, pairs: Iterable[tuple[int, int]], groups: Iterable[dist.ProcessGroup | None]) -> None:
        """Have pairs of ranks exchange a first message in each group, before any schedule runs.

        A backend may connect two ranks at their first message, and block until both reach it (nccl does). All ranks
        call this with the same pairs, which meet in the same order, so that no ranks wait for one another in a circle.
        """
        token = torch.zeros(1, device=self.outside)
        for group in groups:
            for low, high in sorted(set(pairs)):
                if self.rank not in (low, high) or (group, low, high) in self.met:
                    continue
                peer = high if self.rank == low else low
                with reaching(self.rank, peer):
                    for sender in (low, high):
                        talk = dist.isend if sender == self.rank else dist.irecv
                        work = talk(token, peer, group=group)
                        assert work is not None
                        work.wait()
                self.met.add((group, low, high))

    def arrive(self) -> None:
        """Wait without a timeout until every rank has called this; in a collective an idle rank would time out."""
        names = [f"phase{self.phases}/done/{rank}" for rank in range(self.world)]
        self.store.set(names[self.rank], "yes")
        self.store.wait(names, ENDLESS)

    def leave(self, last: bool = False) -> None:
        """Leave the job when this rank's work is done.

        last: this rank holds the store, and waits until the others have left.
        """
        if self.heart is not None:
            self.heart.stop()
            if last:
                self.heart.farewell()

    def open_channels(self, schedule: Schedule, routes: Sequence[Route]) -> None:
        """Open channels for a phase's routes between ranks of one machine; all ranks call this together."""
        self.close_channels()
        unread = cache(lambda rank: in_flight(schedule.workers[rank]) + AHEAD)
        for route in routes:
            low, high = sorted((route.source, route.target))
            if self.rank not in (low, high) or not {low, high} <= set(self.near):
                continue
            if max(unread(low), unread(high)) > channel.MOST_UNREAD:
                continue
            opened = channel.listen if self.rank == low else channel.join
            self.channels[route] = opened(self.store, f"phase{self.phases}/channel/{route.name}")

    def close_channels(self) -> None:
        """Close the channels, once the phase is over on all ranks; this frees the memory of its messages."""
        for opened in self.channels.values():
            if opened is not None:
                opened.close()
        self.channels.clear()

    def wire(self, route: Route) -> Wire:
        """What the link of a route needs of the job, in the present phase."""
        return Wire(
            self.rank,
            self.group(route.kind, route.lane),
            self.store,
            self.outside,
            f"phase{self.phases}/{route.name}",
            self.uneven,
            self.device,
            self.channels.get(route),
        )


@dataclass(frozen=True)
class Assignment:
    """What all workers of a phase are given: the phase, the training's settings, and where in the run they begin.

    rate: gives the factor on the base learning rate at a step of the run.
    start: the run's step of the worker's first minibatch.
    offset: the phase's minibatches that were done before it (more than 0 after a restart).
    masters: in bfloat16, the float32 master weights of the model's parameters.
    to_come: what the phases after this one would refuse in the layers.
    """

    phase: Phase
    optimizer: OptimizerFactory
    loss: Loss
    rate: Callable[[int], float]
    seed: int
    start: int
    offset: int = 0
    masters: Masters | None = None
    to_come: Later | None = None

    @property
    def steps(self) -> int:
        """The number of minibatches that are left of the phase."""
        return self.phase.steps - self.offset

    def marks(self, writer: CheckpointWriter | None) -> list[int]:
        """The numbers of minibatches of the phase after which a checkpoint is written.

        The last of the phase is among them, because the phase may be longer after a restart.
        """
        first = self.start - self.offset
        ends = range(self.offset + 1, self.phase.steps + 1)
        return [end for end in ends if writer is not None and writer.wants(first + end)]


@dataclass
class Record:
    """What a worker measured in a phase.

    losses: on the last stage, by the number of the minibatch since the worker began; replicas have a part each.
    updated: the second at which each update of the worker's first stage was done.
    seconds: the whole phase. waited: waiting for messages. sending: sending messages and summing gradients over
        replicas. The rest is `busy`.
    sent_bytes: bytes that the worker sent, those of sums included.
    spans: (action, start, end) of every action by the machine's monotonic clock, without the wait for its inputs. An
        update or synchronisation has the number of the worker's own minibatch.
    memory: bytes by kind at the peak: weights, weight copies, optimizer state, kept activations. On a GPU also the
        `peak` of its allocator, which includes all of these and the passes' temporary tensors.
    ages: on a parameter server, how many updates older than the newest weights each gradient's weights were.
    carriers: what the messages from other stages went through: shared memory, or a backend of torch.
    opaque: a library sends and waits within its own steps (DDP, torch's schedules), so that only `seconds` is known.

    On a GPU the spans tell when work was handed to the GPU, and `updated` is read from its events at the end of the
    phase, so that timing makes no worker wait.
    """

    losses: dict[int, torch.Tensor] = field(default_factory=dict)
    updated: list[float] = field(default_factory=list)
    waited: float = 0.0
    sending: float = 0.0
    seconds: float = 0.0
    sent_bytes: int = 0
    spans: list[tuple[Action, float, float]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    ages: list[int] = field(default_factory=list)
    carriers: list[str] = field(default_factory=list)
    opaque: bool = False

    @property
    def busy(self) -> float:
        """The seconds of the phase in which the worker computed."""
        return self.seconds - self.waited - self.sending

    def packed(self) -> dict[str, Any]:
        """The record as plain values and few tensors, which other ranks accept (`pipelag.distributed.gather`)."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        actions = [(KINDS.index(action.kind), action.stage, action.number) for action, _, _ in self.spans]
        times = [(start, end) for _, start, end in self.spans]
        spans = torch.tensor(actions, dtype=torch.int64), torch.tensor(times, dtype=torch.float64)
        return plain | {"losses": packed(self.losses), "spans": spans}

    @classmethod
    def unpacked(cls, plain: Mapping[str, Any]) -> Record:
        """The record that `packed` has packed."""
        actions, times = (part.tolist() for part in plain["spans"])
        spans = [
            (Action(KINDS[kind], stage, number), start, end)
            for (kind, stage, number), (start, end) in zip(actions, times, strict=True)
        ]
        return cls(**(dict(plain) | {"losses": unpacked(plain["losses"]), "spans": spans}))

    def shares(self) -> dict[str, float]:
        """The shares of the phase's time (the breakdown of SpecTrain section 4.2); empty if they are unknown."""
        if self.opaque:
            return {}
        whole = self.seconds or 1.0
        return {"busy": self.busy / whole, "communication": self.sending / whole, "idle": self.waited / whole}


def carried_by(carriers: Iterable[str]) -> str:
    """What the messages between stages went through, in words."""
    return ", ".join(sorted({*carriers})) or str(dist.get_backend())


def packed(losses: Mapping[int, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Losses by minibatch as two tensors, the minibatches' numbers and the losses; None: there are no losses."""
    if not losses:
        return None
    return torch.tensor(list(losses), dtype=torch.int64), torch.stack(
        [value.detach() for value in losses.values()]
    ).cpu()


def unpacked(losses: tuple[torch.Tensor, torch.Tensor] | None) -> dict[int, torch.Tensor]:
    """The losses that `packed` has packed."""
    return {} if losses is None else dict(zip(losses[0].tolist(), losses[1].unbind(), strict=True))


def in_flight(actions: Sequence[Action], begins: Kind = "F") -> int:
    """The largest number of microbatches under way in a worker's actions, from `begins` (F or R) to the backward."""
    now = most = 0
    for action in actions:
        now += {begins: 1, "B": -1}.get(action.kind, 0)
        most = max(most, now)
    return most


def received_inputs(receiver: Receiver) -> tuple[torch.Tensor, ...]:
    """The next message as inputs, which require gradients if the sender's outputs did."""
    received = receiver.receive()
    assert receiver.metas is not None
    for tensor, meta in zip(received, receiver.metas, strict=True):
        tensor.requires_grad_(meta.differentiable)
    return received


class Worker:
    """The base class of a phase's workers: it performs actions, keeps the clocks, and leaves a `Record`."""

    synchronising = 0.0  # seconds and, below, bytes of the sums over replicas
    synchronised = 0
    step = 0  # the run's minibatch under way, for error messages
    saving = 0.0  # seconds of writing checkpoints, which no clock counts

    def __init__(self, job: Job, assignment: Assignment, base: Mapping[str, float] | None = None) -> None:
        self.job, self.assignment, self.base = job, assignment, base or {}
        self.start, self.offset = assignment.start, assignment.offset
        self.record = Record()
        self.events: list[torch.cuda.Event] = []  # one per update, on a GPU
        self.receivers: Sequence[Receiver] = ()
        self.senders: Sequence[Sender] = ()

    def run(self, inputs: Callable[[int], Any], targets: Callable[[int], torch.Tensor]) -> Record:
        """Perform the phase, after the optimizers got their state."""
        raise NotImplementedError

    def perform(self, action: Action) -> None:
        """Do one action."""
        raise NotImplementedError

    def named(self, action: Action) -> Action:
        """The action with its name in a timeline."""
        return action

    def perform_all(self, actions: Sequence[Action]) -> None:
        """Perform all actions in order, and keep the clocks of `Record`."""
        self.began = time.perf_counter()
        for action in actions:
            start, aside = time.perf_counter(), self.saving + self.waiting()
            self.perform(action)
            start += self.saving + self.waiting() - aside
            self.record.spans.append((self.named(action), start, time.perf_counter()))
        for sender in self.senders:
            sender.finish()
        self.stop_clock()

    def stop_clock(self) -> None:
        """Note the phase's times and traffic at its end."""
        for name, value in self.clock().items():
            setattr(self.record, name, value)

    def mark(self) -> None:
        """Note the time of an update; on a GPU with an event, because no one waits for the update there."""
        if self.job.device.type == "cuda":
            self.events.append(torch.cuda.Event(enable_timing=True))
            self.events[-1].record()
        else:
            self.record.updated.append(time.perf_counter())

    def read_marks(self) -> None:
        """Wait for the GPU, and read the times of its updates from their events."""
        if self.events:
            torch.cuda.synchronize(self.job.device)
            self.record.updated = [self.events[0].elapsed_time(event) / 1000 for event in self.events]

    def waiting(self) -> float:
        """The seconds so far of waiting for messages."""
        return sum(receiver.waited for receiver in self.receivers)

    def clock(self) -> dict[str, float]:
        """The times and traffic of the phase so far, including those before a restart (`base`); see `Record`."""
        now = {
            "seconds": time.perf_counter() - self.began - self.saving,
            "waited": self.waiting(),
            "sending": sum(sender.seconds for sender in self.senders) + self.synchronising,
            "sent_bytes": sum(sender.bytes for sender in self.senders) + self.synchronised,
        }
        return {name: value + self.base.get(name, 0) for name, value in now.items()}


class WholeModel(Worker):
    """The base class of workers that train one module with one optimizer, by a library or a server.

    Args:
        module: a stage, or the whole model.
        writer: writes the checkpoints; None: none are written.
    """

    optimizer: torch.optim.Optimizer | None
    shadows: list[nn.Parameter]

    def __init__(self, job: Job, module: nn.Module, assignment: Assignment, writer: CheckpointWriter | None) -> None:
        super().__init__(job, assignment, writer.base if writer is not None else None)
        self.module, self.writer = module, writer

    @property
    def trained(self) -> nn.Module:
        """The module that holds the newest weights."""
        return self.module

    def part_of_loss(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """The loss of this worker's part of a minibatch."""
        return trainable(self.assignment.loss(output, target))

    def keep_buffers(self, step: int) -> None:
        """Keep batch-norm statistics for the checkpoint after `step` minibatches, before they change again."""
        if self.writer is not None and self.writer.wants(step):
            self.writer.note_buffers(step, self.module)

    def write_checkpoint(self, step: int) -> None:
        """Write the checkpoint after `step` minibatches."""
        assert self.writer is not None
        clock, began = self.clock(), time.perf_counter()
        since = range(self.writer.last - self.start, step - self.start)
        losses = [self.record.losses[t] for t in since] if self.record.losses else []  # of torch's stages only the last
        state = optimizer_state(self.optimizer, self.shadows)
        self.writer.save(step, self.trained, self.optimizer, state, losses, clock, None)
        self.saving += time.perf_counter() - began


def optimizer_state(
    optimizer: torch.optim.Optimizer | None, parameters: Sequence[nn.Parameter]
) -> dict[int, dict[str, Any]]:
    """An optimizer's state per parameter, by the parameter's position."""
    if optimizer is None:
        return {}
    return {i: dict(optimizer.state[p]) for i, p in enumerate(parameters) if p in optimizer.state}


def load_optimizer_state(
    optimizer: torch.optim.Optimizer | None, parameters: Sequence[nn.Parameter], state: Mapping[int, dict[str, Any]]
) -> None:
    """Give an optimizer the state from an earlier phase, or from a checkpoint."""
    if optimizer is not None:
        groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
        for i, values in state.items():
            optimizer.state[parameters[i]] = placed(values, parameters[i], groups.get(parameters[i], {}))
