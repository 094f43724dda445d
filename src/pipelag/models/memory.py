"""Find which values of a trace share memory, and what follows when one of them is overwritten."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from pipelag.models.steps import Step, refs, scalars

VIEWS = {"getitem", "flatten", "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "expand", "_assert"}
ATEN_VIEWS = {"slice", "select", "split", "split_with_sizes", "chunk", "unbind", "t", "alias"}  # of ATen's operators
MORE_VIEWS = {"tensor_split", "narrow", "movedim", "swapaxes", "unflatten", "view_as", "expand_as", "diagonal"}
LOOKS = (nn.Flatten, nn.Unflatten, nn.Identity)
OVERWRITING = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
PLAIN = {overwriting: getattr(operator, overwriting.__name__[1:]) for overwriting in OVERWRITING}


def views(model: nn.Module, step: Step) -> bool:
    """Whether a step's value may share the memory of its input."""
    if step.op == "call_module":
        return isinstance(model.get_submodule(step.target), LOOKS)
    return step.called in VIEWS | ATEN_VIEWS | MORE_VIEWS


class Memory:
    """Where the values of a list of steps lie in memory, and when they are needed. All are dicts by a value's name.

    owner: the name of the value whose step made the memory.
    made: the number of the step that makes the value.
    last: the number of the last step that needs the value; for the output, the number of steps.
    """

    def __init__(self, model: nn.Module, steps: Sequence[Step], output: Any) -> None:
        self.owner: dict[str, str] = {}
        self.made = {step.name: at for at, step in enumerate(steps)}
        self.last = {name: at for at, step in enumerate(steps) for name in step.uses}
        self.last |= dict.fromkeys(refs(output), len(steps))
        for step in steps:
            shared = bool(step.uses) and (step.inplace or views(model, step))
            self.owner[step.name] = self.of(step.uses[0]) if shared else step.name

    def of(self, name: str) -> str:
        """The owner of a value's memory; a value that no step makes owns its memory."""
        return self.owner.get(name, name)

    def seen_later(self, step: Step, but: Collection[str]) -> bool:
        """Whether a later step, or the output, needs a value in the memory of the step's first argument.

        but: names of values that do not count.
        """
        at, whole = self.made[step.name], self.of(step.uses[0])
        return any(last > at and self.of(name) == whole and name not in but for name, last in self.last.items())


def overwritten_views(model: nn.Module, steps: Sequence[Step], output: Any) -> list[tuple[int, int]]:
    """The ranges of steps (first, last) at which no layer may begin.

    They lie between a tensor and a step that overwrites it through a view, or while a view of it is still needed. A
    layer overwrites only a copy of a tensor that it receives, and views of the tensor would not see that.
    """
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
    """The steps, where an augmented assignment (`+=` and the like) is in place if some other value can see its effect.

    torch.fx records x += y as x = x + y. Numbers such as sizes are never overwritten in place, as in Python.

    augmented: the names of the steps that were augmented assignments.
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
