"""Rooflines of LSTMs without running every step: the costs of a long sequence are extrapolated from short ones.

On the meta device torch runs an LSTM step by step, with some eighty operators per word. For a sequence of T steps, some
operators run once per step, all with the same shapes, and a few run once on the whole sequence, with operations and
bytes linear in T. So both follow from sequences of 3, 4 and 5 steps as straight lines. If some number does not lie on
one, the whole sequence is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from pipelag.timing.storages import Saved, id_of

if TYPE_CHECKING:
    from pipelag.timing.roofline import Operator, Roofline

SHORT = (3, 4, 5)  # the numbers of steps of the sequences that are run
Tensors = tuple[torch.Tensor, ...]
Layout = tuple[int, ...]  # a tensor's sizes, then its strides


class Crooked(Exception):
    """Some number is not linear in the number of steps."""


@dataclass(frozen=True)
class Call:
    """A call of torch.lstm: the sequence, the initial states, the weights, and the arguments that are no tensors."""

    sequence: torch.Tensor
    first: Tensors
    weights: Tensors
    options: tuple[Any, ...]

    @property
    def along(self) -> int:
        """The dimension of the sequence that counts its steps."""
        return 1 if self.options[-1] else 0

    @property
    def tensors(self) -> Tensors:
        """All tensor arguments."""
        return (self.sequence, *self.first, *self.weights)

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for calls of equal cost."""
        return (*((*layout(t), t.dtype, t.requires_grad) for t in self.tensors), self.options)

    def shortened(self, steps: int) -> Call:
        """The same call on a sequence of so many steps, with its dimensions in the same order in memory.

        All its tensors are leaves of the graph.
        """
        shape = [steps if d == self.along else size for d, size in enumerate(self.sequence.shape)]
        order = sorted(range(3), key=self.sequence.stride, reverse=True)
        packed = torch.empty([shape[d] for d in order], dtype=self.sequence.dtype, device="meta")
        sequence = packed.permute([order.index(d) for d in range(3)])
        copies = [t.detach().requires_grad_(t.requires_grad) for t in self.tensors[1:]]
        split = len(self.first)
        sequence.requires_grad_(self.sequence.requires_grad)
        return Call(sequence, tuple(copies[:split]), tuple(copies[split:]), self.options)

    def run(self) -> Tensors:
        """Make the call; returns (states, last state, last cells)."""
        return torch.lstm(self.sequence, self.first, self.weights, *self.options)


@dataclass(frozen=True)
class Cost:
    """What a call runs and what it keeps.

    forward, backward: the operators that run.
    outputs, gradients: the layouts of the outputs, and of the gradients of the call's tensors (None: no gradient).
    kept_bytes: bytes of the intermediate tensors that autograd keeps.
    inputs_kept, outputs_kept: which of the call's tensors, and which of its outputs, autograd keeps as well.
    """

    forward: Counter[Operator]
    backward: Counter[Operator]
    outputs: tuple[Layout, ...]
    gradients: tuple[Layout | None, ...]
    kept_bytes: int
    inputs_kept: tuple[bool, ...]
    outputs_kept: tuple[bool, ...]


class Unrolled(TorchFunctionMode):
    """A mode in which LSTMs on the meta device are counted instead of run."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: Roofline | None = None
        self.weights = True  # whether a backward computes the gradients of the weights
        self.costs: dict[tuple[Any, ...], Cost] = {}

    @contextmanager
    def into(self, clock: Roofline, weights: bool = True) -> Iterator[None]:
        """Activate the mode, and add the operators to this clock.

        weights: whether backwards compute the gradients of the weights, which `torch.autograd` does not tell.
        """
        self.clock, self.weights = clock, weights
        with self:
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.lstm and not isinstance(args[1], torch.Tensor) and args[0].is_meta:  # no packed sequence
            call = Call(args[0], tuple(args[1]), tuple(args[2]), tuple(args[3:]))
            steps = call.sequence.shape[call.along]
            if steps > max(SHORT) and layout(call.shortened(steps).sequence) == layout(call.sequence):
                return Lstm.apply(self, call.options, len(call.first), *call.tensors)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))

    def cost(self, call: Call, used: tuple[bool, ...], wanted: tuple[bool, ...]) -> Cost:
        """The cost of a call. used: which of its outputs have gradients; wanted: which of its tensors need one."""
        key, steps = (call.key, used, wanted), call.sequence.shape[call.along]
        if key not in self.costs:
            assert self.clock is not None
            blank_clock = partial(type(self.clock), self.clock.device)
            with self.clock.paused():
                runs = [traced(call.shortened(few), used, wanted, blank_clock()) for few in SHORT]
                try:
                    self.costs[key] = extended(runs, steps)
                except Crooked:
                    self.costs[key] = traced(call.shortened(steps), used, wanted, blank_clock())
        return self.costs[key]


class Lstm(torch.autograd.Function):
    """An LSTM that runs no operator, but makes and keeps tensors like torch's, whose operators the clock counts."""

    @staticmethod
    def forward(ctx: Any, mode: Unrolled, options: tuple[Any, ...], states: int, *tensors: torch.Tensor) -> Tensors:  # type: ignore[override]
        """See the class."""
        call = Call(tensors[0], tensors[1 : 1 + states], tensors[1 + states :], options)
        cost = mode.cost(call, (True, False, False), tuple(t.requires_grad for t in call.tensors))
        assert mode.clock is not None
        mode.clock.operators.update(cost.forward)
        outputs = tuple(blank(where, tensors[0]) for where in cost.outputs)
        filler = torch.empty(cost.kept_bytes, dtype=torch.uint8, device="meta")
        keeps = (*cost.inputs_kept, *cost.outputs_kept)
        ctx.save_for_backward(*(t for t, keep in zip((*tensors, *outputs), keeps, strict=True) if keep), filler)
        ctx.set_materialize_grads(False)
        ctx.mode, ctx.call = mode, call
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """See the class."""
        needed = ctx.needs_input_grad[-len(ctx.call.tensors) :]
        of_weights = len(needed) - len(ctx.call.weights)
        wanted = tuple(needs and (ctx.mode.weights or at < of_weights) for at, needs in enumerate(needed))
        cost = ctx.mode.cost(ctx.call, tuple(gradient is not None for gradient in gradients), wanted)
        ctx.mode.clock.operators.update(cost.backward)
        of_tensors = (None if where is None else blank(where, ctx.call.sequence) for where in cost.gradients)
        return (None, None, None, *of_tensors)


def traced(call: Call, used: tuple[bool, ...], wanted: tuple[bool, ...], clock: Roofline) -> Cost:
    """Run a call and its backward, and count their cost; `used`, `wanted`: see `Unrolled.cost`."""
    weights = {id_of(t) for t in call.weights}
    keep = Saved(weights)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with clock:
            outputs = call.run()
        forward, clock.operators = clock.operators, Counter()
        targets = [t for t, needs in zip(call.tensors, wanted, strict=True) if needs and t.requires_grad]
        sources = [t for t, has in zip(outputs, used, strict=True) if has and t.requires_grad]
        with clock:
            found = torch.autograd.grad(sources, targets, [torch.empty_like(t) for t in sources])
    by_target = dict(zip(map(id, targets), found, strict=True))
    gradients = [by_target.get(id(t)) for t in call.tensors]
    outside = [id_of(t) for t in (*call.tensors, *outputs)]
    return Cost(
        forward,
        clock.operators,
        tuple(layout(t) for t in outputs),
        tuple(None if t is None else layout(t) for t in gradients),
        sum(size for place, size in keep.bytes.items() if place not in outside),
        tuple(id_of(t) in keep.bytes for t in call.tensors),
        tuple(id_of(t) in keep.bytes for t in outputs),
    )


def extended(runs: Sequence[Cost], steps: int) -> Cost:
    """The cost of so many steps, extrapolated from the costs at `SHORT`."""
    first = runs[0]
    if any((run.inputs_kept, run.outputs_kept) != (first.inputs_kept, first.outputs_kept) for run in runs):
        raise Crooked
    line = [layouts([run.outputs for run in runs], steps), layouts([run.gradients for run in runs], steps)]
    return Cost(
        operators([run.forward for run in runs], steps),
        operators([run.backward for run in runs], steps),
        tuple(one for one in line[0] if one is not None),
        line[1],
        at(steps, [run.kept_bytes for run in runs]),
        first.inputs_kept,
        first.outputs_kept,
    )


def operators(runs: Sequence[Counter[Operator]], steps: int) -> Counter[Operator]:
    """The operators that so many steps run.

    Operators found in all `runs` run more often with more steps; the others, matched by their order, become larger.
    """
    # In order, for a sum of floating-point times depends on it, and a set's order is another in each process.
    everywhere = dict.fromkeys(one for one in runs[0] if all(one in run for run in runs))
    result = Counter({one: at(steps, [run[one] for run in runs]) for one in everywhere})
    growing = [[(one, often) for one, often in run.items() if one not in everywhere] for run in runs]
    if len({len(run) for run in growing}) != 1:
        raise Crooked
    for alike in zip(*growing, strict=True):
        if len({(one.name, often) for one, often in alike}) != 1:
            raise Crooked
        ((first, often), *_) = alike
        larger = {of: at(steps, [getattr(one, of) for one, _ in alike]) for of in ("operations", "moved")}
        result[replace(first, shapes=(), **larger)] += often
    return result


def layouts(runs: Sequence[Sequence[Layout | None]], steps: int) -> tuple[Layout | None, ...]:
    """The layouts at so many steps."""
    return tuple(
        None if None in alike else tuple(at(steps, numbers) for numbers in zip(*alike, strict=True))  # type: ignore[arg-type]
        for alike in zip(*runs, strict=True)
    )


def at(steps: int, values: Sequence[int]) -> int:
    """The value at so many steps on the straight line through those at `SHORT`.

    Raises:
        Crooked: the values do not lie on a straight line.
    """
    slope = values[1] - values[0]
    if any(value != values[0] + slope * (place - SHORT[0]) for place, value in zip(SHORT, values, strict=True)):
        raise Crooked
    return values[0] + slope * (steps - SHORT[0])


def layout(tensor: torch.Tensor) -> Layout:
    """A tensor's sizes, then its strides."""
    return (*tensor.shape, *tensor.stride())


def blank(where: Layout, like: torch.Tensor) -> torch.Tensor:
    """An empty tensor of this layout on the meta device."""
    half = len(where) // 2
    return torch.empty_strided(where[:half], where[half:], dtype=like.dtype, device="meta")
