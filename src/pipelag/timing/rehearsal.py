"""Count the bytes that a method's weight policy moves and holds on a stage, by rehearsing the policy.

A rehearsal performs the stage's row of the schedule with the same objects that the executors use
(`pipelag.stage.policy`, the optimizer), but without the passes themselves. So a new method is counted without code of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipelag.methods import Method
from pipelag.schedules import Action, Delays
from pipelag.stage.optimizers import OptimizerFactory, group_by_stage, set_rates
from pipelag.stage.policy import StageWeights
from pipelag.stage.weights import FlatParameters, shadows

KINDS = ("F", "B", "U", "step")
FLOAT = 4
PADDED = 64  # bytes; weights begin on multiples of it (`FlatParameters`), so a tensor of this size needs no padding
COUNTED = 2  # the updates over which traffic is counted; in the steady state all are alike
UNMOVED = ("aten::detach", "aten::empty", "aten::new_empty", "aten::_unsafe_view", "aten::lift")
OVERWRITES = ("aten::copy_", "aten::_foreach_copy_", "aten::fill_", "aten::zero_")  # these do not read what they write


@dataclass
class Moved:
    """Bytes that go between a device's memory and its processors, per byte of weights.

    separate: every operator reads its operands from memory and writes its result, as in the rooflines of the passes.
    fused: every step of the policy (showing weights, predicting, following an average) is one kernel, which reads each
        tensor once and keeps intermediate results in registers.
    """

    separate: float = 0.0
    fused: float = 0.0


@dataclass(frozen=True)
class Held:
    """Bytes of a stage in this package's executors, as `Record.memory` counts them.

    weights: the live weights, each tensor padded to a multiple of `PADDED`.
    copies: other versions of them, and the weights computed from versions for passes to read.
    remembered: the policy's other state (XPipe's moments over SGD, PipeMare's delta).
    optimizer: the optimizer's state.
    """

    weights: float
    copies: float
    remembered: float
    optimizer: float


@dataclass(frozen=True)
class Rehearsed:
    """What a method moves and holds of the weights of one stage of a full pipeline.

    moved: bytes moved per update (of a minibatch, or a round of replicas), by purpose. "F" and "B": loading the
        weights that the forwards and backwards of all its microbatches read. "step": the optimizer's step. "U": the
        rest of the update, such as predictions from the new version.
    copies, remembered, state: bytes held per byte of weights (see `Held`; `state` is the optimizer's).
    numbers: bytes of the optimizer's step counts, per tensor.
    """

    moved: dict[str, Moved]
    copies: float
    remembered: float
    state: float
    numbers: int

    def held(self, sizes: Sequence[int]) -> Held:
        """The bytes that a stage holds whose weights are tensors of these sizes in bytes."""
        padded = sum(-(-size // PADDED) * PADDED for size in sizes)
        state = self.state * sum(sizes) + self.numbers * sum(1 for size in sizes if size)
        return Held(padded, self.copies * padded, self.remembered * padded, state)


class Traffic(TorchDispatchMode):
    """Counts the bytes of the operators that run inside; see `Moved`."""

    def __init__(self) -> None:
        super().__init__()
        self.separate = self.fused = 0
        self.read, self.written, self.made = set[int](), set[int](), set[int]()
        self.alive: list[torch.Tensor] = []  # kept, as a new storage may get the identity of one that is gone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.is_view or func.name().startswith(UNMOVED):
            return out
        read, written = operands(func, args, kwargs or {})
        new = [t for t in tensors_in(out) if not any(t is old for old in written)]
        self.separate += sum(t.numel() * t.element_size() for t in (*read, *written, *new))
        for tensors, seen, without in (
            (read, self.read, self.written | self.made),
            (written, self.written, self.made),
        ):
            for storage in (t.untyped_storage() for t in tensors):
                if storage._cdata not in seen | without:
                    seen.add(storage._cdata)
                    self.fused += storage.nbytes()
        self.made |= {t.untyped_storage()._cdata for t in new}
        self.alive += new
        return out


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors among these values, except numbers (no dimensions), such as an optimizer's step count."""
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor) and t.dim()]


def operands(func: Any, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that an operator reads, and those that it changes."""
    read: list[torch.Tensor] = []
    written: list[torch.Tensor] = []
    for number, argument in enumerate(func._schema.arguments):
        tensors = tensors_in(args[number] if number < len(args) else kwargs.get(argument.name))
        changed = argument.alias_info is not None and argument.alias_info.is_write
        if changed:
            written += tensors
        if not changed or not (argument.is_out or func.name().split(".")[0] in OVERWRITES):
            read += tensors
    return read, written


class Rehearsal:
    """A stage, or the first of its replicas, with one tensor of weights, before its first minibatch.

    Args:
        back: the number of versions that the stage keeps behind the live one (`Method.versions_back`).
    """

    def __init__(self, method: Method, optimizer: OptimizerFactory, stage: int, delays: Delays, back: int) -> None:
        self.stage, self.delays = stage, delays
        flat = FlatParameters([nn.Parameter(torch.ones(PADDED // FLOAT))])
        self.shadows = shadows(flat.parameters)
        grouped = group_by_stage(optimizer, [self.shadows], {}, [stage])
        assert grouped is not None
        self.optimizer = grouped
        stages = len(delays.forward_lags)
        self.weights = StageWeights(flat, method, stage, stages, delays, grouped, self.shadows, back)
        set_rates(grouped, lambda _: 1.0)
        self.weights.begin_at(0)
        self.moved = {kind: Moved() for kind in KINDS}

    @contextmanager
    def counting(self, kind: str) -> Iterator[None]:
        """Add the bytes that are moved inside to `moved`."""
        with Traffic() as traffic:
            yield
        self.moved[kind].separate += traffic.separate
        self.moved[kind].fused += traffic.fused

    def perform(self, action: Action) -> None:
        """Do with the weights what an action does, without its pass."""
        if action.kind == "U":
            self.update()
        if action.kind not in ("F", "B"):
            return
        lags = (self.delays.forward_lags if action.kind == "F" else self.delays.backward_lags)[self.stage - 1]
        update, j = divmod(action.number, self.delays.periods[self.stage - 1])
        with self.counting(action.kind):
            self.weights.load(action.kind, max(0, update - lags[j]), j)

    def update(self) -> None:
        """Make an update as the executors do."""
        for shadow in self.shadows:
            shadow.grad = torch.ones_like(shadow)
        with self.counting("U"):
            self.weights.before_step()
        with self.counting("step"):
            self.optimizer.step()
        with self.counting("U"):
            self.weights.after_step()
        with self.counting("U"):
            self.weights.prepare()

    def result(self, updates: int) -> Rehearsed:
        """What the stage has moved per update, over so many updates, and what it holds."""
        remembered = sum(size_of(memory.buffers) for memory in self.weights.memories.values())
        values = [value for entry in self.optimizer.state.values() for value in entry.values()]
        state = [value for value in values if isinstance(value, torch.Tensor)]
        large = size_of(value for value in state if value.dim())
        each = updates * PADDED
        return Rehearsed(
            {kind: Moved(one.separate / each, one.fused / each) for kind, one in self.moved.items()},
            (self.weights.bytes - remembered) / PADDED,
            remembered / PADDED,
            large / PADDED,
            size_of(state) - large,
        )


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of all these tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def rehearse(
    method: Method,
    optimizer: OptimizerFactory,
    stage: int,
    stages: int,
    microbatches: int = 1,
    replicas: Sequence[int] = (),
) -> Rehearsed:
    """Rehearse a stage (or the first of its replicas) until its pipeline is full, and count from there.

    Raises:
        PipelagError: the method does not suit the optimizer, the number of microbatches or the replicas.
    """
    delays = method.delays(stages, microbatches, replicas)
    back = method.versions_back(stages, microbatches, replicas)[stage - 1]
    rehearsal = Rehearsal(method, optimizer, stage, delays, back)
    fill = max(*delays.forward_lags[stage - 1], *delays.backward_lags[stage - 1]) + 2
    rounds = (fill + COUNTED + 2 * stages) * math.prod(replicas)
    schedule = method.schedule(stages, rounds, microbatches, replicas)
    row = [action for action in schedule.workers[schedule.replicas[stage - 1][0]] if action.stage == stage]
    full, end = (row.index(Action("U", stage, last)) + 1 for last in (fill - 1, fill + COUNTED - 1))
    for action in row[:full]:
        rehearsal.perform(action)
    rehearsal.moved = {kind: Moved() for kind in KINDS}
    for action in row[full:end]:
        rehearsal.perform(action)
    return rehearsal.result(COUNTED)
