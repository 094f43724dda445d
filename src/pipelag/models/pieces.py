"""One layer of a linearised model: some of its operators, and the modules and parameters that they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError, a
from pipelag.models.memory import ATEN_VIEWS, LOOKS, PLAIN, VIEWS
from pipelag.models.steps import Operator, Step, Traced, attribute, constant, filled, refs
from pipelag.tensors import as_tuple


class Piece(nn.Module):
    """One layer of a linearised model: some of its operators, with the model's own modules and parameters.

    label: the path of the first module with weights.
    merged: the paths of all modules, and the names of all functions and methods, that the layer calls, in order.
    takes, gives: the numbers of tensors that cross the boundaries before and after the layer.
    """

    def __init__(
        self,
        model: nn.Module,
        traced: Traced,
        steps: Sequence[Step],
        inputs: Sequence[str],
        output: Any,
        settled: Sequence[Step] = (),
    ) -> None:
        """Make a layer of steps, with the inputs and the output that cross its boundaries.

        settled: steps that run first, for values that depend on sizes only.
        """
        super().__init__()
        self.original = nn.Module()
        for step in steps:
            if step.op in ("call_module", "get_attr"):
                graft(self.original, step.target, thing(model, step))
        self.merged = words(steps, bool(traced.shapes))
        matrices = {step.name for step in steps if step.op == "get_attr" and is_weight(thing(model, step))}
        heavy = (s for s in steps if weighted(model, s) or (s.within and not matrices.isdisjoint(s.uses)))
        self.label = next((step.within or step.called for step in heavy), self.merged[0])
        self.inputs, self.output = tuple(inputs), output
        self.asked = traced.asked if self.inputs == traced.inputs else ()
        self.shapes = tuple(traced.shapes.get(name) for name in inputs)
        self.takes, self.gives = len(inputs), len(set(refs(output)))
        steps = [*settled, *steps]
        # A tensor of another layer is not overwritten, because that layer's backward may need it.
        made = {step.name for step in steps}
        foreign = {step.name: step for step in steps if step.inplace and step.uses and step.uses[0] not in made}
        plain = {name: replace(step, target=PLAIN.get(step.target, step.target)) for name, step in foreign.items()}
        self.steps = [plain.get(step.name, step) for step in steps]
        self.copied = [step.name in foreign and step.target not in PLAIN for step in steps]
        last = {name: number for number, step in enumerate(steps) for name in (step.name, *step.uses)}
        stay = set(refs(output))
        self.done = [[n for n, at in last.items() if at == number and n not in stay] for number in range(len(steps))]

    def forward(self, value: Any) -> Any:
        """The layer's output: a tensor, or a tuple of the tensors that cross to the next layer."""
        given = self.given(value)
        device = next((one.device for one in given if isinstance(one, torch.Tensor)), None)
        values = dict(zip(self.inputs, given, strict=True))
        for step, copied, done in zip(self.steps, self.copied, self.done, strict=True):
            if copied:
                values[step.uses[0]] = values[step.uses[0]].clone()
            values[step.name] = step.run(values, self.original, device)
            for name in done:
                del values[name]
        output = filled(self.output, values, self.training)
        for name, one in zip(refs(self.output), as_tuple(output), strict=True):
            if not isinstance(one, torch.Tensor):
                raise PipelagError(
                    f"layer '{self.label}' returns a {type(one).__name__} ('{name}'), but only tensors can cross a "
                    "boundary; name the module around it in whole=(...)"
                )
        return output

    def given(self, value: Any) -> tuple[Any, ...]:
        """The layer's inputs as a tuple; a mapping of the model's inputs is taken by name.

        Raises:
            PipelagError: inputs other than those for which the model was laid out.
        """
        asked = ", ".join(f"'{name}'" for name in self.asked)
        if self.asked and isinstance(value, Mapping):
            if set(value) != set(self.asked):
                more = "; name the ones to keep in linearise(model, inputs=...)"
                raise PipelagError(f"the model was laid out for the inputs {asked}, but is given {names(value)}{more}")
            value = tuple(value[name] for name in self.asked)
        given = as_tuple(value)
        if len(given) != len(self.inputs):
            cure = (
                "name optional ones to keep, such as masks, in linearise(model, inputs=...)"
                if len(given) > len(self.inputs)
                else "give them as a tuple in this order"
            )
            raise PipelagError(
                f"the model was laid out for {len(self.inputs)} input{'s' * (len(self.inputs) > 1)} ({asked}), but is "
                f"given {len(given)}; {cure}"
                if self.asked
                else f"layer '{self.label}' takes {len(self.inputs)} tensors, but is given {len(given)}"
            )
        known: dict[str, int] = {}  # this minibatch's values of sizes that differ between minibatches
        for name, one, shape in zip(self.asked, given, self.shapes, strict=False):
            if shape is not None and not fits(one, shape, known):
                actual = list(one.shape) if isinstance(one, torch.Tensor) else a(type(one).__name__)
                expected = ", ".join(str(size if isinstance(size, int) else known.get(size, "any")) for size in shape)
                beside = " given the inputs before it" if any(size in known for size in shape) else ""
                raise PipelagError(
                    f"'{name}' is {actual}, but the model was laid out for the shape [{expected}]{beside}"
                )
        return given

    def extra_repr(self) -> str:
        """The label."""
        return self.label


def words(steps: Sequence[Step], exported: bool) -> tuple[str, ...]:
    """The names of what the steps call, in order.

    Of an exported model, torch's operators are named by the module around them, once, and views are left out.
    """
    called: list[str] = []
    for step in steps:
        is_aten = exported and step.op == "call_function"
        if step.op == "get_attr" or (not step.within and is_aten and step.called in VIEWS | ATEN_VIEWS):
            continue
        word = step.within or step.called
        if not (is_aten and step.within and called[-1:] == [word]) and step.target is not constant:
            called.append(word)
    return tuple(called) or tuple(step.called for step in steps if step.op != "get_attr")[:1]


def names(given: Mapping[str, Any]) -> str:
    """The keys of a mapping, for a message."""
    return ", ".join(f"'{name}'" for name in given) or "none"


def fits(value: Any, shape: Sequence[int | str], known: dict[str, int]) -> bool:
    """Whether a tensor has this shape, in which a name stands for any size, but always for the same.

    known: sizes by their names, from the tensors before; the sizes of a tensor that fits are added.
    """
    if not isinstance(value, torch.Tensor) or value.dim() != len(shape):
        return False
    sizes = dict(known)
    for size, actual in zip(shape, value.shape, strict=True):
        if (size if isinstance(size, int) else sizes.setdefault(size, actual)) != actual:
            return False
    known.update(sizes)
    return True


def weighted(model: nn.Module, step: Step) -> bool:
    """Whether a step calls a module with weights (biases and normalisation do not count)."""
    return step.op == "call_module" and any(map(is_weight, thing(model, step).parameters()))


def is_weight(value: Any) -> bool:
    """Whether a value is a weight: a parameter with two or more dimensions (a kernel or a matrix)."""
    return isinstance(value, nn.Parameter) and value.dim() > 1


def writes(model: nn.Module, step: Step) -> bool:
    """Whether a step writes a new tensor."""
    looks = step.op == "call_module" and isinstance(thing(model, step), LOOKS)
    aten_view = isinstance(step.target, Operator) and step.called in ATEN_VIEWS
    return not (step.inplace or looks or aten_view or step.called in VIEWS)


def thing(model: nn.Module, step: Step) -> Any:
    """The module, parameter or buffer that a step names."""
    return model.get_submodule(step.target) if step.op == "call_module" else attribute(model, step.target)


def graft(tree: nn.Module, path: str, value: Any) -> None:
    """Put a module, parameter or buffer into a tree of modules, at its path in the original."""
    *parents, name = path.split(".")
    for parent in parents:
        if parent not in tree._modules:
            tree.add_module(parent, nn.Module())
        tree = tree.get_submodule(parent)
    if isinstance(value, nn.Module):
        tree.add_module(name, value)
    elif isinstance(value, nn.Parameter):
        tree.register_parameter(name, value)
    elif isinstance(value, torch.Tensor):
        tree.register_buffer(name, value)
    else:
        setattr(tree, name, value)
