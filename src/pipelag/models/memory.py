"""Which values of a trace lie in one memory, and what follows where one of them is overwritten."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from pipelag.models.steps import Step, refs, scalars

VIEWS = {"getitem", "flatten", "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "expand", "_assert"}
ATEN_VIEWS = {"slice", "select", "split", "split_with_sizes", "chunk", "unbind", "t", "alias"}  # of Aten's
MORE_VIEWS = {"tensor_split", "narrow", "movedim", "swapaxes", "unflatten", "view_as", "expand_as", "diagonal"}
LOOKS = (nn.Flatten, nn.Unflatten, nn.Identity)
OVERWRITING = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
PLAIN = {overwriting: getattr(operator, overwriting.__name__[1:]) for overwriting in OVERWRITING}


def views(model: nn.Module, step: Step) -> bool:
    """Whether a step's value may lie in the memory of what it works on."""
    if step.op == "call_module":
        return isinstance(model.get_submodule(step.target), LOOKS)
    return step.called in VIEWS | ATEN_VIEWS | MORE_VIEWS


class Memory:
    """Of steps in their order: `owner`, by whom a value's memory was made, by names; `made` and `last`, the numbers of
    the steps that make a value and need it last (that of the steps: the output)."""

    def __init__(self, model: nn.Module, steps: Sequence[Step], output: Any) -> None:
        self.owner: dict[str, str] = {}
        self.made = {step.name: at for at, step in enumerate(steps)}
        self.last = {name: at for at, step in enumerate(steps) for name in step.uses}
        self.last |= dict.fromkeys(refs(output), len(steps))
        for step in steps:
            shared = bool(step.uses) and (step.inplace or views(model, step))
            self.owner[step.name] = self.of(step.uses[0]) if shared else step.name

    def of(self, name: str) -> str:
        """Who made the memory of a value; what no step makes made its own."""
        return self.owner.get(name, name)

    def seen_later(self, step: Step, but: Collection[str]) -> bool:
        """Whether one who comes after a step needs what lies in the memory of the step's first argument."""
        at, whole = self.made[step.name], self.of(step.uses[0])
        return any(last > at and self.of(name) == whole and name not in but for name, last in self.last.items())


def overwritten_views(model: nn.Module, steps: Sequence[Step], output: Any) -> list[tuple[int, int]]:
    """Where no layer may begin, the first and last step each: between a tensor and what overwrites it through a view,
    or while a view of it is still needed. What a layer receives it overwrites in a copy, which the views are not of."""
    memory, spans = Memory(model, steps, output), []
    for at, step in enumerate(steps):
        if step.inplace and step.uses:
            old, whole = step.uses[0], memory.of(step.uses[0])
            if memory.made.get(whole, -1) < memory.made.get(old, -1) or memory.seen_later(step, (old, step.name)):
                spans.append((memory.made.get(whole, -1) + 1, at))
    return spans


def assigned_in_place(
    model: nn.Module, steps: Sequence[Step], output: Any, augmented: Collection[str]
) -> Iterable[Step]:
    """The steps, those `augmented` by `+=` and the like in place where another than their name's holder sees it.

    torch.fx writes x += y down as x = x + y; numbers such as sizes are not overwritten in Python either.
    """
    memory, numbers = Memory(model, steps, output), scalars(steps)
    constants = {step.name for step in steps if step.op == "get_attr"}
    overwriting = {plain: target for target, plain in PLAIN.items()}
    for step in steps:
        assigned = step.name in augmented and bool(step.uses) and step.uses[0] not in numbers
        if assigned and (step.uses[0] in constants or memory.seen_later(step, (step.name,))):
            yield replace(step, target=overwriting[step.target], inplace=True)
        else:
            yield step
