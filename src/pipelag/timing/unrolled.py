"""Rooflines of LSTMs without running them word by word: a few short sequences tell what a long one takes.

On the meta device torch runs an LSTM step by step, some eighty operators for every word. What a sequence of T steps
runs is some operators once for every step, all of one shape, and a few on the whole sequence, whose operations and
bytes grow in proportion to T. So sequences of 3, 4 and 5 steps give both as straight lines; where anything does
not lie on one, the sequence is run in full.
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

SHORT = (3, 4, 5)  # steps of the sequences that are run
Tensors = tuple[torch.Tensor, ...]
Layout = tuple[int, ...]  # a tensor's sizes, then its strides


class Crooked(Exception):
    """Something does not grow in proportion to the steps."""


@dataclass(frozen=True)
class Call:
    """A call of torch.lstm: a sequence, its first states, weights, and the arguments that are no tensors."""

    sequence: torch.Tensor
    first: Tensors
    weights: Tensors
    options: tuple[Any, ...]

    @property
    def along(self) -> int:
        """The dimension of the steps."""
        return 1 if self.options[-1] else 0

    @property
    def tensors(self) -> Tensors:
        """All of them."""
        return (self.sequence, *self.first, *self.weights)

    @property
    def key(self) -> tuple[Any, ...]:
        """Calls of one key cost the same."""
        return (*((*layout(t), t.dtype, t.requires_grad) for t in self.tensors), self.options)

    def shortened(self, steps: int) -> Call:
        """The same on a sequence of so many steps, laid out alike; all tensors are leaves."""
        shape = [steps if d == self.along else size for d, size in enumerate(self.sequence.shape)]
        order = sorted(range(3), key=self.sequence.stride, reverse=True)
        packed = torch.empty([shape[d] for d in order], dtype=self.sequence.dtype, device="meta")
        sequence = packed.permute([order.index(d) for d in range(3)])
        copies = [t.detach().requires_grad_(t.requires_grad) for t in self.tensors[1:]]
        split = len(self.first)
        sequence.requires_grad_(self.sequence.requires_grad)
        return Call(sequence, tuple(copies[:split]), tuple(copies[split:]), self.options)

    def run(self) -> Tensors:
        """(states, last state, last cells)."""
        return torch.lstm(self.sequence, self.first, self.weights, *self.options)


@dataclass(frozen=True)
class Cost:
    """What a call runs and leaves. forward, backward: operators. outputs, gradients: layouts (None: no gradient).

    kept_bytes: of what it makes and autograd keeps; inputs_kept, outputs_kept: which of its tensors and its outputs are
    kept beside.
    """

    forward: Counter[Operator]
    backward: Counter[Operator]
    outputs: tuple[Layout, ...]
    gradients: tuple[Layout | None, ...]
    kept_bytes: int
    inputs_kept: tuple[bool, ...]
    outputs_kept: tuple[bool, ...]


class Unrolled(TorchFunctionMode):
    """While it is active, LSTMs on the meta device are counted instead of run."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: Roofline | None = None
        self.costs: dict[tuple[Any, ...], Cost] = {}

    @contextmanager
    def into(self, clock: Roofline) -> Iterator[None]:
        """Tell this clock what runs."""
        self.clock = clock
        with self:
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.lstm and not isinstance(args[1], torch.Tensor) and args[0].is_meta:  # no packed sequence
            call = Call(args[0], tuple(args[1]), tuple(args[2]), tuple(args[3:]))
            steps = call.sequence.shape[call.along]
            if steps > max(SHORT) and layout(call.shortened(steps).sequence) == layout(call.sequence):
                return Lstm.apply(self, call.options, len(call.first), *call.tensors)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))

    def cost(self, call: Call, used: tuple[bool, ...]) -> Cost:
        """Of a call, of whose outputs those `used` have gradients."""
        key, steps = (call.key, used), call.sequence.shape[call.along]
        if key not in self.costs:
            assert self.clock is not None
            blank_clock = partial(type(self.clock), self.clock.device)
            with self.clock.paused():
                runs = [traced(call.shortened(few), used, blank_clock()) for few in SHORT]
                try:
                    self.costs[key] = extended(runs, steps)
                except Crooked:
                    self.costs[key] = traced(call.shortened(steps), used, blank_clock())
        return self.costs[key]


class Lstm(torch.autograd.Function):
    """An LSTM that makes and keeps what torch's does, without any operator; the clock is told those of torch's."""

    @staticmethod
    def forward(ctx: Any, mode: Unrolled, options: tuple[Any, ...], states: int, *tensors: torch.Tensor) -> Tensors:  # type: ignore[override]
        """See the class."""
        call = Call(tensors[0], tensors[1 : 1 + states], tensors[1 + states :], options)
        cost = mode.cost(call, (True, False, False))
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
        cost = ctx.mode.cost(ctx.call, tuple(gradient is not None for gradient in gradients))
        ctx.mode.clock.operators.update(cost.backward)
        of_tensors = (None if where is None else blank(where, ctx.call.sequence) for where in cost.gradients)
        return (None, None, None, *of_tensors)


def traced(call: Call, used: tuple[bool, ...], clock: Roofline) -> Cost:
    """Run a call and its backward, counting."""
    weights = {id_of(t) for t in call.weights}
    keep = Saved(weights)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with clock:
            outputs = call.run()
        forward, clock.operators = clock.operators, Counter()
        wanted = [t for t in call.tensors if t.requires_grad]
        sources = [t for t, has in zip(outputs, used, strict=True) if has and t.requires_grad]
        with clock:
            of_wanted = iter(torch.autograd.grad(sources, wanted, [torch.empty_like(t) for t in sources]))
    gradients = [next(of_wanted) if t.requires_grad else None for t in call.tensors]
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
    """The cost of so many steps, from those of `SHORT`."""
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
    """What so many steps run: those of all `runs` so often, the others, in their order, so much larger."""
    everywhere = {one for one in runs[0] if all(one in run for run in runs)}
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
    """Those of so many steps."""
    return tuple(
        None if None in alike else tuple(at(steps, numbers) for numbers in zip(*alike, strict=True))  # type: ignore[arg-type]
        for alike in zip(*runs, strict=True)
    )


def at(steps: int, values: Sequence[int]) -> int:
    """The value at so many steps on the straight line through those at `SHORT`.

    Raises:
        Crooked: there is none.
    """
    slope = values[1] - values[0]
    if any(value != values[0] + slope * (place - SHORT[0]) for place, value in zip(SHORT, values, strict=True)):
        raise Crooked
    return values[0] + slope * (steps - SHORT[0])


def layout(tensor: torch.Tensor) -> Layout:
    """Sizes and strides."""
    return (*tensor.shape, *tensor.stride())


def blank(where: Layout, like: torch.Tensor) -> torch.Tensor:
    """A tensor of that layout on the meta device."""
    half = len(where) // 2
    return torch.empty_strided(where[:half], where[half:], dtype=like.dtype, device="meta")
